"""The log: each change of state once, and nothing while everything works."""

from __future__ import annotations

import itertools
import logging
import threading
import time

import pytest

from pykaproducer import DeliveryError, Producer
from pykaproducer._errors.codes import ErrorCode
from pykaproducer._pipeline.log_writer import LogWriter
from pykaproducer._pipeline.worker import Worker
from pykaproducer._util.guarded_log import GuardedLogger
from pykaproducer.interceptors import Interceptor, ProducerRecord
from pykaproducer.testing import ScriptedCluster
from pykaproducer.testing.scripted import Drop, Refuse
from tests._support import programs
from tests.pipeline.helper import FAST, SOON, came, offsets, pipeline_of, send, warm_up


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


def test_errors_of_a_disabled_logger_are_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """fileConfig() disables all loggers that exist by then, which programs do not intend."""
    for name in ("producer", "broker"):
        monkeypatch.setattr(logging.getLogger(f"pykaproducer.{name}"), "disabled", True)
    with ScriptedCluster(topics={"t": 1}) as cluster:
        producer = cluster.producer(**FAST)
        cluster.next("produce", Refuse(ErrorCode.MESSAGE_TOO_LARGE), Drop())
        send(producer, [b"lost"])
        producer.close()
    printed = capsys.readouterr().err
    assert "1 message was not delivered, and no callback or read outcome has reported it" in printed
    assert "trying again" not in printed  # a warning


def test_a_line_names_the_place_that_wrote_it(said: pytest.LogCaptureFixture) -> None:
    with ScriptedCluster(topics={"t": 1}) as cluster, cluster.producer(**FAST) as producer:
        warm_up(producer)
    (connected,) = [record for record in said.records if "connected" in record.getMessage()]
    assert (connected.name, connected.module) == ("pykaproducer.broker", "connection_log")


class ToKafka(logging.Handler):
    """Sends the program's own lines to a topic and waits, as handlers do, under its own lock."""

    def __init__(self, producer: Producer, topic: str) -> None:
        super().__init__()
        self.producer, self.topic = producer, topic

    def emit(self, record: logging.LogRecord) -> None:
        if not record.name.startswith("pykaproducer"):
            self.producer.send(self.topic, record.getMessage().encode()).result(SOON)


class Waiting(logging.Handler):
    """Waits before it keeps a line."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.go_on = threading.Event(), threading.Event()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.entered.set()
        self.go_on.wait(SOON)
        self.lines.append(record.getMessage())


class Raising(logging.Handler):
    """Raises an error for each line."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def emit(self, record: logging.LogRecord) -> None:
        raise self.error


@pytest.fixture
def handlers(monkeypatch: pytest.MonkeyPatch) -> list[logging.Handler]:
    """The handlers of the root logger."""
    own: list[logging.Handler] = []
    monkeypatch.setattr(logging.getLogger(), "handlers", own)
    return own


def test_a_handler_may_wait_for_what_it_sends(handlers: list[logging.Handler]) -> None:
    """1. The handler sends to a topic that is refused, and waits. 2. The dispatcher logs that."""
    with (
        ScriptedCluster(topics={"t": 1}) as cluster,
        cluster.producer(**FAST) as producer,
    ):
        cluster.next("metadata", *[Refuse(ErrorCode.TOPIC_AUTHORIZATION_FAILED)] * 50)
        handlers.append(ToKafka(producer, "not-ours"))
        with pytest.raises(DeliveryError, match="TOPIC_AUTHORIZATION_FAILED"):
            logging.getLogger("app").warning("a line")


def test_a_handler_may_wait_for_a_broker_that_comes_back(handlers: list[logging.Handler]) -> None:
    """1. The handler sends, and waits. 2. The connection is lost, which the BrokerWorker logs."""
    with ScriptedCluster(topics={"t": 1}) as cluster, cluster.producer(**FAST) as producer:
        warm_up(producer)
        cluster.next("produce", Drop())
        handlers.append(ToKafka(producer, "t"))
        logging.getLogger("app").warning("a line")
        assert cluster.log("t")[-1].value == b"a line"


def test_a_handler_may_wait_in_a_line_of_a_stage(handlers: list[logging.Handler]) -> None:
    sent: list[int] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.getMessage().endswith("trying again"):
                sent.append(producer.send("t", b"a line").result(SOON).offset)
                producer.flush(SOON)

    handlers.append(Handler())
    with ScriptedCluster(topics={"t": 1}) as cluster, cluster.producer(**FAST) as producer:
        warm_up(producer)
        cluster.next("produce", Drop())
        offsets(send(producer, [b"1"]))
    assert sent


def test_a_stderr_that_is_closed_ends_no_stage() -> None:
    """Neither the handler nor the report about its exception can write."""
    script = """
        import sys
        from pykaproducer import DeliveryError
        from pykaproducer.testing import ScriptedCluster
        from pykaproducer.testing.scripted import Refuse

        with ScriptedCluster(topics={"t": 1}) as cluster:
            producer = cluster.producer()
            producer.send("t", b"0").result(30)
            sys.stderr.close()
            cluster.next("metadata", *[Refuse(29)] * 50)
            try:
                producer.send("not-ours", b"1").result(30)
            except DeliveryError:
                producer.close()
                print("refused")
        """
    assert programs.run(script) == "refused\n"


def test_close_waits_for_the_lines_of_the_stages(
    handlers: list[logging.Handler], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handler returns only once close() waits for it."""
    handler = Waiting()
    handlers.append(handler)

    def join(self: LogWriter, deadline: float) -> bool:
        handler.go_on.set()
        return Worker.join(self, deadline)

    monkeypatch.setattr(logging.getLogger("pykaproducer"), "level", logging.INFO)
    monkeypatch.setattr(LogWriter, "join", join)
    with ScriptedCluster(topics={"t": 1}) as cluster:
        producer = cluster.producer(**FAST)
        warm_up(producer)
        writer = pipeline_of(producer).log_writer
        assert handler.entered.wait(SOON)
        producer.close()
        told = list(handler.lines)
        handler.go_on.set()
    assert "broker 0: connected" in told
    assert not writer.is_alive()


def test_ctrl_c_while_a_user_thread_logs_is_not_swallowed(handlers: list[logging.Handler]) -> None:
    class Failing(Interceptor):
        def on_send(self, record: ProducerRecord) -> ProducerRecord:
            raise ValueError("logged by send()")

    handlers.append(Raising(KeyboardInterrupt()))
    with (
        ScriptedCluster(topics={"t": 1}) as cluster,
        cluster.producer(interceptors=[Failing()], **FAST) as producer,
        pytest.raises(KeyboardInterrupt),
    ):
        producer.send("t", b"value")


def test_lines_that_handlers_are_too_slow_for_are_dropped_and_counted(
    handlers: list[logging.Handler], said: pytest.LogCaptureFixture
) -> None:
    """Memory is bounded (P11), whatever a handler does."""
    handler = Waiting()
    handlers.append(handler)

    def partitioner(key: bytes | None, everything: list[int], available: list[int]) -> int:
        for number in range(1500):
            log.error("line %d", number)
            assert handler.entered.wait(SOON)
        return 0

    log = GuardedLogger("pykaproducer.broker")
    with (
        ScriptedCluster(topics={"t": 1}) as cluster,
        cluster.producer(partitioner=partitioner, **FAST) as producer,
    ):
        producer.send("t", b"value").result(SOON)
        handler.go_on.set()
        told = [record.getMessage() for record in said.records if record.levelno > logging.INFO]
    (count,) = (int(line.split()[0]) for line in told if "lines were dropped" in line)
    kept = [line for line in told if line.startswith("line ")]
    assert kept == [f"line {number}" for number in range(len(kept))]
    assert 990 <= len(kept) <= 1000  # some lines of other stages wait, too
    assert count >= 1500 - len(kept)


def test_a_handler_that_ends_the_thread_loses_no_other_line(
    handlers: list[logging.Handler], said: pytest.LogCaptureFixture
) -> None:
    """Some handlers call sys.exit() at an error."""
    handlers.append(Raising(SystemExit(1)))
    with ScriptedCluster(topics={"t": 1}) as cluster, cluster.producer(**FAST) as producer:
        warm_up(producer)
        cluster.next("produce", Drop())
        offsets(send(producer, [b"1"]))
        assert "broker 0: works again" in lines(said)


def test_a_line_has_the_time_the_thread_and_the_error_of_its_stage(
    said: pytest.LogCaptureFixture,
) -> None:
    """Although another thread writes it, and the error has lost its traceback by then."""

    def fail(error: object, delivery: object) -> None:
        threads.append(threading.current_thread())
        raise ValueError("a callback has failed")

    threads: list[threading.Thread] = []
    before = time.time()
    with ScriptedCluster(topics={"t": 1}) as cluster, cluster.producer(**FAST) as producer:
        producer.send("t", b"value", on_delivery=fail)
        producer.flush()
        (record,) = [record for record in said.records if record.levelno >= logging.ERROR]
    assert before <= record.created <= time.time()
    assert (record.threadName, record.thread) == (threads[0].name, threads[0].ident)
    assert record.module == "delivery"
    assert 'raise ValueError("a callback has failed")' in said.text
