"""What a caller that does not want to wait any longer is told, and how long it then waits."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from pykaproducer import (
    AbortedError,
    Delivery,
    FlushTimeoutError,
    KafkaProducer,
    OutcomeTimeoutError,
    Producer,
)
from pykaproducer.testing import ScriptedCluster
from tests._support.logs import told_by_log
from tests.pipeline.helper import Amend
from tests.producer.test_producer import SOON

REFUSED = "connection refused: nothing listens there"


@pytest.mark.parametrize(
    ("kind", "wait"),
    [
        (Producer, lambda delivery: delivery.result(timeout=0)),
        (Producer, lambda delivery: delivery.exception(timeout=0.001)),
        (KafkaProducer, lambda delivery: delivery.get(timeout=0.001)),
    ],
)
def test_a_timeout_says_why_the_message_waits(
    refusing: str, kind: type[Producer], wait: Callable[[Delivery], object]
) -> None:
    producer = kind(bootstrap_servers=refusing)
    with told_by_log(REFUSED) as told:
        delivery = producer.send("events", b"value")
        assert told.wait(SOON)
    with pytest.raises(OutcomeTimeoutError) as caught:
        wait(delivery)
    producer.close(0)
    text = str(caught.value)
    assert text.startswith("topic 'events': no outcome within 0")
    assert f" s: no connection to {refusing}: {REFUSED}" in text
    assert text.endswith("; the message is still being sent, until delivery_timeout_ms ends it")


def test_the_cluster_advertises_a_name_that_is_unknown_here() -> None:
    def rename(answer: Any) -> None:
        answer.brokers[0].host = "kafka.invalid"

    reason = "kafka.invalid:9092: the host name 'kafka.invalid' cannot be resolved"
    with (
        ScriptedCluster(topics={"t": 1}) as cluster,
        cluster.producer() as producer,
        told_by_log(reason) as told,
    ):
        cluster.always("metadata", Amend(rename))
        producer.send("t", b"value")
        assert told.wait(SOON)
        error = producer.send("t", b"value", delivery_timeout_ms=50).exception(SOON)
        producer.close(0)
    assert reason in str(error)
    assert "; the cluster advertises this address (advertised.listeners" in str(error)


@pytest.mark.parametrize(
    ("count", "timeout", "text"),
    [
        (1, 0.001, "1 message had no outcome after 0.001 s (topic 'events': no connection to"),
        (2, -1, "2 messages had no outcome after 0 s (topic 'events': no connection to"),
    ],
)
def test_flush_says_why_the_messages_wait(
    refusing: str, count: int, timeout: float, text: str
) -> None:
    producer = Producer(bootstrap_servers=refusing)
    with told_by_log(REFUSED) as told:
        for _ in range(count):
            producer.send("events", b"value")
        assert told.wait(SOON)
    with pytest.raises(FlushTimeoutError) as caught:
        producer.flush(timeout)
    assert str(caught.value).startswith(text)
    assert f"{REFUSED}); {'it is' if count == 1 else 'they are'} still" in str(caught.value)
    producer.close(0)


def test_a_long_close_says_why_it_waits(
    refusing: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pykaproducer._process.closing._PATIENCE", 0.1)
    with told_by_log(REFUSED) as told:
        producer = Producer(bootstrap_servers=refusing, delivery_timeout_ms=2500)
        producer.send("events", b"value", on_delivery=lambda error, delivery: None)
        assert told.wait(SOON)
    producer.close()
    (line,) = [one for one in caplog.messages if "waiting for 1 message" in one]
    assert REFUSED in line


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
def test_an_exception_does_not_wait_in_the_with_block_for_long(
    refusing: str, kind: type[BaseException]
) -> None:
    started = time.monotonic()
    sent: list[Delivery] = []

    def run() -> None:
        with Producer(bootstrap_servers=refusing, exit_flush_timeout_ms=10) as producer:
            sent.append(producer.send("events", b"value"))
            raise kind

    with pytest.raises(kind):
        run()
    assert time.monotonic() - started < SOON
    error = sent[0].exception(timeout=0)
    assert isinstance(error, AbortedError)
    assert "close() ended after its timeout of 0.01 s" in str(error)


def test_a_handle_that_is_kept_does_not_keep_the_pipeline(refusing: str) -> None:
    producer = Producer(bootstrap_servers=refusing)
    delivery = producer.send("events", b"value")
    pipeline = producer._pipeline
    assert pipeline is not None
    errors = weakref.ref(pipeline.last_errors)
    producer.close(0)
    del producer, pipeline
    gc.collect()
    assert errors() is None
    assert delivery.failed()
