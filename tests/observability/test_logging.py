"""The log: each change of state once, and nothing while everything works."""

from __future__ import annotations

import itertools
import logging
import threading

import pytest

from pykaproducer._errors.codes import ErrorCode
from pykaproducer.testing import ScriptedCluster
from pykaproducer.testing.scripted import Drop, Refuse
from tests.pipeline.helper import FAST, SOON, came, offsets, send, warm_up


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "pykaproducer")
    return caplog


def lines(said: pytest.LogCaptureFixture, least: int = logging.INFO) -> list[str]:
    return [record.getMessage() for record in said.records if record.levelno >= least]


def test_nothing_loud_while_all_is_well(said: pytest.LogCaptureFixture) -> None:
    with (
        ScriptedCluster(2, topics={"t": 2}, auto_create=True) as cluster,
        cluster.producer(**FAST) as producer,
    ):
        for partition in (0, 1):
            warm_up(producer, partition=partition)
        for number in range(100):
            producer.send("t", b"%d" % number)
        producer.send("made-by-asking", b"1")
        producer.flush(SOON)
    assert lines(said, logging.WARNING) == []
    assert sorted(lines(said)) == [
        "broker 0: connected",
        "broker 1: connected",
        "the cluster answers; broker ids: 0, 1",
    ]


def test_a_broker_that_goes_and_comes_back(said: pytest.LogCaptureFixture) -> None:
    with ScriptedCluster(2, topics={"t": 2}) as cluster, cluster.producer(**FAST) as producer:
        for partition in (0, 1):
            warm_up(producer, partition=partition)
        said.clear()
        cluster.stop(1)
        waits = send(producer, [b"1"], partition=1)
        came(cluster, "metadata", len(cluster.received("metadata")) + 5)
        cluster.start(1)
        offsets(waits)
        producer.flush(SOON)
        of_broker = [line for line in lines(said) if line.startswith("broker 1: ")]
        of_topic = [line for line in lines(said) if line.startswith("topic")]
        assert of_topic[0] == "topic 't': no leader any more: partition 1"
        assert of_broker[0].endswith("trying again")
        assert "broker 1: connected" not in of_broker
        # A state is logged when it begins.
        for told in (of_broker, of_topic):
            assert all(one != next_one for one, next_one in itertools.pairwise(told))


def test_a_leader_that_moves(said: pytest.LogCaptureFixture) -> None:
    with ScriptedCluster(2, topics={"t": 1}) as cluster, cluster.producer(**FAST) as producer:
        warm_up(producer)
        cluster.move_leader("t", 0, 1)
        offsets(send(producer, [b"1", b"2"]))
    told = [line for line in lines(said) if "moved" in line]
    assert told == ["topic 't': the leader has moved: partition 0 (from broker 0 to 1)"]


def test_a_new_epoch(said: pytest.LogCaptureFixture) -> None:
    with ScriptedCluster(topics={"t": 1}) as cluster, cluster.producer(**FAST) as producer:
        warm_up(producer)
        cluster.next("produce", Refuse(ErrorCode.INVALID_RECORD))
        send(producer, [b"bad"])[0].exception(SOON)
        offsets(send(producer, [b"good"]))
    told = [line for line in lines(said) if "epoch" in line]
    assert told == ["topic 't' partition 0: the producer epoch was bumped"]


def test_a_connection_that_is_lost_under_way(said: pytest.LogCaptureFixture) -> None:
    with ScriptedCluster(topics={"t": 1}) as cluster, cluster.producer(**FAST) as producer:
        warm_up(producer)
        cluster.next("produce", Drop())
        offsets(send(producer, [b"1"]))
    told = [line for line in lines(said) if line.startswith("broker 0")]
    assert len(told) == 3
    assert told[0] == "broker 0: connected"
    assert told[1].endswith("trying again")
    assert told[2] == "broker 0: works again"


def test_no_payload_and_no_key(said: pytest.LogCaptureFixture) -> None:
    said.set_level(logging.DEBUG, "pykaproducer")
    with ScriptedCluster(topics={"t": 1}) as cluster, cluster.producer(**FAST) as producer:
        cluster.next("produce", Refuse(ErrorCode.NOT_ENOUGH_REPLICAS), Drop())
        producer.send("t", b"hunter2", key=b"hunter3").result(SOON)
    assert "hunter" not in said.text


def test_a_filter_that_raises_ends_no_stage(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(record: logging.LogRecord) -> bool:
        raise ValueError(f"cannot filter {record.name}")

    for name in ("broker", "metadata", "net", "delivery", "producer"):
        logger = logging.getLogger(f"pykaproducer.{name}")
        monkeypatch.setattr(logger, "filters", [refuse])
        monkeypatch.setattr(logger, "level", logging.DEBUG)
    with ScriptedCluster(2, topics={"t": 2}) as cluster, cluster.producer(**FAST) as producer:
        offsets([producer.send("t", b"1", on_delivery=lambda error, delivery: 1 / 0)])
        cluster.stop(1)
        waits = send(producer, [b"2"], partition=1)
        came(cluster, "metadata", len(cluster.received("metadata")) + 5)
        cluster.start(1)
        offsets(waits)
    printed = capsys.readouterr().err
    for name in ("broker", "metadata", "delivery"):
        assert f"ValueError: cannot filter pykaproducer.{name}" in printed


def test_a_line_names_the_place_that_wrote_it(said: pytest.LogCaptureFixture) -> None:
    with ScriptedCluster(topics={"t": 1}) as cluster, cluster.producer(**FAST) as producer:
        warm_up(producer)
    (connected,) = [record for record in said.records if "connected" in record.getMessage()]
    assert (connected.name, connected.module) == ("pykaproducer.broker", "broker")


def test_a_handler_may_wait_for_another_producer_that_logs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The stages of two producers write lines at once: none waits for another one's line."""
    first_writes, second_wrote = threading.Event(), threading.Event()
    waited: list[bool] = []

    class Handler(logging.Handler):
        def handle(self, record: logging.LogRecord) -> bool:  # without the handler's own lock
            name = record.threadName or ""
            if name.startswith("first"):
                first_writes.set()
                waited.append(second_wrote.wait(SOON))
            elif name.startswith("second"):
                second_wrote.set()
            return True

    monkeypatch.setattr(logging.getLogger("pykaproducer"), "handlers", [Handler()])
    monkeypatch.setattr(logging.getLogger("pykaproducer"), "level", logging.INFO)
    with ScriptedCluster(topics={"t": 1}) as cluster:
        first, second = (cluster.producer(client_id=name, **FAST) for name in ("first", "second"))
        one = first.send("t", b"1")
        assert first_writes.wait(SOON)
        offsets([second.send("t", b"2"), one])
        first.close()
        second.close()
    assert waited
    assert all(waited)
