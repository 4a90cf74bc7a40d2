"""``trace``: the path of real messages, with increasing times, also through errors."""

from __future__ import annotations

import json
import subprocess
from itertools import pairwise
from typing import Any

import pytest

from pykaproducer.cli import main, trace
from pykaproducer.testing import KafkaCluster
from pykaproducer.testing.scripted import Refuse, ScriptedCluster
from tests._support.consumer import consume

from .helper import NOWHERE, run
from .terminal import on_a_terminal

#: The path of a message without errors.
WAY = [
    *("accepted", "dispatched", "partitioned", "forwarded", "sealed", "sent", "answered"),
    "settled",
]
#: The same if the thread that sends a message also writes it.
SHORT_WAY = ["accepted", "sealed", "sent", "answered", "settled"]

#: Kafka's number of the error.
NOT_ENOUGH_REPLICAS = 19


def traced(*arguments: str) -> tuple[subprocess.CompletedProcess[bytes], list[dict[str, Any]]]:
    done = run("trace", "--json", *arguments)
    assert b"Traceback" not in done.stderr
    return done, [json.loads(line) for line in done.stdout.splitlines()]


def names(message: dict[str, Any]) -> list[str]:
    return [event["event"] for event in message["events"]]


def test_one_after_another(cluster: KafkaCluster, topic: str) -> None:
    cluster.create_topic(topic, partitions=3)
    servers = cluster.bootstrap_servers
    done, messages = traced(
        *("-t", topic, "--bootstrap-servers", servers, "--partition", "2", "--key", "k"),
        *("--value", "first", "--value", "second", "--header", "a=b"),
    )
    assert done.returncode == 0, done.stderr.decode()
    for number, message in enumerate(messages):
        assert (message["partition"], message["offset"], message["error"]) == (2, number, None)
        assert [name for name in names(message) if name in WAY] in ([WAY, SHORT_WAY][: number + 1])
        times = [event["at_s"] for event in message["events"]]
        assert all(before <= after for before, after in pairwise(times))
        assert "reported" in names(message)
    assert "waits for metadata" in names(messages[0])
    assert "waits for metadata" not in names(messages[1])
    records = consume(servers, topic, 2, [2])
    assert [(r.key, r.value, r.headers) for r in records] == [
        (b"k", value, [("a", b"b")]) for value in (b"first", b"second")
    ]


def test_together_they_share_a_batch(cluster: KafkaCluster, topic: str) -> None:
    cluster.create_topic(topic)
    done, messages = traced(
        *("-t", topic, "--bootstrap-servers", cluster.bootstrap_servers, "--together"),
        *("--value", "a", "--value", "b", "-X", "linger_ms=30000"),
    )
    assert done.returncode == 0, done.stderr.decode()
    for message in messages:
        (sealed,) = [event for event in message["events"] if event["event"] == "sealed"]
        assert sealed["rows"] == 2


def test_in_words(cluster: KafkaCluster, topic: str) -> None:
    cluster.create_topic(topic)
    done = run("trace", "-t", topic, "--bootstrap-servers", cluster.bootstrap_servers)
    assert done.returncode == 0, done.stderr.decode()
    assert b"\x1b" not in done.stdout
    first, *lines = done.stdout.decode().splitlines()
    assert f"delivered to {topic}, partition 0, offset 0, after " in first
    at = [line.split()[0] for line in lines]
    assert at[0] == "+0"
    stages = "\n".join(lines)
    for word in ("Dispatcher", "TopicWorker", "PartitionWorker", "BrokerWorker", "Bridge"):
        assert word in stages


def test_on_a_terminal(cluster: KafkaCluster, topic: str) -> None:
    cluster.create_topic(topic)
    for columns in (40, 120):
        with on_a_terminal(
            *("trace", "-t", topic, "--bootstrap-servers", cluster.bootstrap_servers),
            columns=columns,
        ) as terminal:
            assert terminal.end() == 0
            assert b"sealed" in terminal.shown
            # The timeline is drawn where there is space for it.
            assert ("━".encode() in terminal.shown) == (columns == 120)


def test_a_retry_is_seen(capsys: pytest.CaptureFixture[str]) -> None:
    with ScriptedCluster(topics={"t": 1}) as cluster:
        cluster.next("produce", Refuse(NOT_ENOUGH_REPLICAS))
        producer = cluster.producer(retry_backoff_ms=1, retry_backoff_max_ms=1)
        try:
            (message,) = trace.traced(producer, "t", [b"v"], (None, None, None), False)
        finally:
            producer.close()
    found = [event["event"] for event in message.events]
    there = [found.index(event) for event in ("answered", "retry scheduled", "retried")]
    assert there == sorted(there)
    assert found.count("sent") == 2
    trace.show(message)
    shown = capsys.readouterr().out
    assert "delivered to t, partition 0, offset 0" in shown
    (again,) = [line for line in shown.splitlines() if "retry scheduled" in line]
    assert "level 1" in again
    assert "not enough" in again.lower().replace("_", " ")


def test_what_is_not_delivered(capsys: pytest.CaptureFixture[str]) -> None:
    done, (message,) = traced(
        *("-t", "t", "--bootstrap-servers", NOWHERE, "-X", "delivery_timeout_ms=3000")
    )
    assert done.returncode == 1
    assert message["partition"] is None
    assert NOWHERE in message["error"]
    assert names(message)[0] == "accepted"
    assert "settled" in names(message)
    trace.show(trace.TracedMessage("t", 3, None, ValueError("no")))
    assert capsys.readouterr().out == "3 B failed: no\n"


def test_mistakes(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, text in (
        (["-t", "not/a/topic"], "not/a/topic"),
        (["-t", "t", "--header", "x"], "--header x"),
        (["-t", "t", "-X", "lingr_ms=3"], "linger_ms"),
    ):
        assert main(["trace", "--bootstrap-servers", NOWHERE, *arguments]) == 2
        assert text in capsys.readouterr().err


def test_a_message_that_is_refused() -> None:
    arguments = ("-t", "t", "--bootstrap-servers", NOWHERE, "-X", "max_request_size=1000")
    done, (message,) = traced(*arguments, "--value", "x" * 10_000)
    assert done.returncode == 1
    assert message["error"].startswith("MessageTooLargeError")
    assert message["events"] == []
