"""Interceptors see each message when it is sent and with its outcome, once each; isolation."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from pykaproducer import BufferFullError, DeliveryFailures, RecordMetadata
from pykaproducer._errors.codes import ErrorCode
from pykaproducer.errors import ConfigurationError
from pykaproducer.interceptors import Interceptor, ProducerRecord
from pykaproducer.testing import ScriptedCluster
from pykaproducer.testing.scripted import Refuse
from tests.pipeline.helper import SOON, ended, pipeline_of, running

Acknowledged = tuple[RecordMetadata, BaseException | None, ProducerRecord]


class Watching(Interceptor):
    """An interceptor that records its calls."""

    def __init__(self, change: Callable[[ProducerRecord], ProducerRecord | None] | None = None):
        self.change = change
        self.configs: list[dict[str, Any]] = []
        self.sent: list[ProducerRecord] = []
        self.acknowledged: list[Acknowledged] = []
        self.threads: list[str] = []
        self.closed = 0

    def configure(self, configs: dict[str, Any]) -> None:
        self.configs.append(configs)

    def on_send(self, record: ProducerRecord) -> ProducerRecord | None:
        self.sent.append(record)
        return None if self.change is None else self.change(record)

    def on_acknowledgement(
        self, metadata: RecordMetadata, exception: BaseException | None, record: ProducerRecord
    ) -> None:
        self.acknowledged.append((metadata, exception, record))
        self.threads.append(threading.current_thread().name)

    def close(self) -> None:
        self.closed += 1


def test_one_sees_a_message_and_its_outcome() -> None:
    watching = Watching()
    with running(topics={"t": 2}, client_id="me", interceptors=[watching]) as (_, producer):
        producer.send("t", b"value", b"key", [("h", b"1")], 1, 1234)
        producer.flush(SOON)
        assert watching.closed == 0
    (record,) = watching.sent
    assert record == ProducerRecord("t", b"value", b"key", [("h", b"1")], 1, 1234)
    ((metadata, exception, sent),) = watching.acknowledged
    assert exception is None
    assert metadata[:5] == ("t", 1, ("t", 1), 0, 1234)
    assert (metadata.serialized_key_size, metadata.serialized_value_size) == (3, 5)
    assert sent is record
    assert watching.threads == ["me-reports"]
    assert watching.closed == 1
    assert watching.configs[0]["client_id"] == "me"


def test_each_changes_what_the_one_before_it_made() -> None:
    first = Watching(lambda record: record.replace(value=record.value + b"1"))
    second = Watching(lambda record: record.replace(value=record.value + b"2", topic="u"))
    with running(topics={"t": 1, "u": 1}, interceptors=[first, second]) as (cluster, producer):
        assert producer.send("t", b"0").result(SOON).topic == "u"
        assert [record.value for record in cluster.log("u")] == [b"012"]
        assert cluster.log("t") == []
    assert second.sent[0].value == b"01"


def test_before_the_serializers() -> None:
    watching = Watching(lambda record: record.replace(value=record.value * 2))
    settings: dict[str, Any] = {"value_serializer": lambda value: str(value).encode()}
    with running(interceptors=[watching], **settings) as (cluster, producer):
        producer.send("t", 21).result(SOON)
        assert [record.value for record in cluster.log("t")] == [b"42"]


def test_a_context_goes_along() -> None:
    """Also if a later interceptor creates a new record."""

    def begin(record: ProducerRecord) -> None:
        record.context["span"] = record.value

    watching = Watching(begin)
    anew = Watching(lambda record: ProducerRecord(record.topic, b"anew"))
    with running(interceptors=[watching, anew]) as (_, producer):
        for number in range(3):
            producer.send("t", b"%d" % number)
    spans = [record.context["span"] for _, _, record in watching.acknowledged]
    assert spans == [b"0", b"1", b"2"]
    assert {record.value for _, _, record in watching.acknowledged} == {b"anew"}


def test_one_that_raises_harms_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def on_send(self, record: ProducerRecord) -> ProducerRecord:
            raise KeyError("on the way in")

        def on_acknowledgement(self, metadata: object, exception: object) -> None:
            raise KeyError("on the way back")

        def close(self) -> None:
            raise KeyError("at the end")

    after = Watching()
    with running(interceptors=[Broken, after]) as (cluster, producer):
        assert producer.send("t", b"value").result(SOON).offset == 0
        producer.flush(SOON)
        assert [record.value for record in cluster.log("t")] == [b"value"]
    assert len(after.acknowledged) == after.closed == 1
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(told) == 3
    assert all("interceptor" in text for text in told)


def test_one_that_returns_something_else(caplog: pytest.LogCaptureFixture) -> None:
    class Wrong:
        def on_send(self, record: ProducerRecord) -> str:
            return "a text"

    with running(interceptors=[Wrong()]) as (_, producer):
        assert producer.send("t", b"value").result(SOON).offset == 0
    assert "on_send()" in caplog.text


def test_a_message_that_fails() -> None:
    watching = Watching()
    with ScriptedCluster(topics={"t": 1}) as cluster:
        cluster.next("produce", Refuse(ErrorCode.INVALID_RECORD))
        with cluster.producer(interceptors=[watching]) as producer:
            producer.send("t", b"bad", partition=0)
            # The interceptor was notified, the user was not.
            with pytest.raises(DeliveryFailures):
                producer.flush(SOON)
    ((metadata, exception, _),) = watching.acknowledged
    assert (metadata.topic, metadata.partition, metadata.offset) == ("t", 0, -1)
    assert "INVALID_RECORD" in str(exception)


def test_a_message_that_send_refuses() -> None:
    watching = Watching()
    with (
        ScriptedCluster() as cluster,
        ended(
            cluster.producer(buffer_memory=2000, max_block_ms=0, interceptors=[watching])
        ) as producer,
    ):
        with pytest.raises(TypeError, match="value must be bytes"):
            producer.send("t", 3)
        producer.send("t", bytes(1500))
        with pytest.raises(BufferFullError) as full:
            producer.send("t", bytes(1500), partition=1)
    refusals = [(m.partition, type(e), r.value) for m, e, r in watching.acknowledged[:2]]
    assert refusals == [(-1, TypeError, 3), (1, BufferFullError, bytes(1500))]
    assert watching.acknowledged[1][1] is full.value
    assert watching.threads[0] == threading.current_thread().name


def test_callbacks_and_futures_are_as_without() -> None:
    told: list[Any] = []
    with running(interceptors=[Watching()]) as (_, producer):
        delivery = producer.send("t", b"1", on_delivery=lambda *both: told.append(both))
        assert delivery.result(SOON).offset == 0
        producer.flush(SOON)
        assert told == [(None, delivery)]


def test_send_many_row_by_row() -> None:
    watching = Watching(lambda record: record.replace(value=record.value + b"!"))
    with running(interceptors=[watching]) as (cluster, producer):
        block = producer.send_many("t", [b"1", b"2", b"3"], keys=[b"k", None, b"l"])
        assert block.result(SOON).rows == 3
        producer.flush(SOON)
        found = [(record.key, record.value) for record in cluster.log("t")]
        assert found == [(b"k", b"1!"), (None, b"2!"), (b"l", b"3!")]
    assert [record.key for record in watching.sent] == [b"k", None, b"l"]
    assert [metadata.offset for metadata, _, _ in watching.acknowledged] == [0, 1, 2]
    assert [record.value for _, _, record in watching.acknowledged] == [b"1!", b"2!", b"3!"]


def test_send_many_with_numpy() -> None:
    numpy = pytest.importorskip("numpy")
    watching = Watching()
    with running(topics={"t": 2}, interceptors=[watching]) as (cluster, producer):
        values, partitions = numpy.array([b"1", b"22"]), numpy.array([1, 0])
        producer.send_many("t", values, partitions=partitions).result(SOON)
        assert [record.value for record in cluster.log("t", 1)] == [b"1"]
    assert [(record.value, record.partition) for record in watching.sent] == [(b"1", 1), (b"22", 0)]


def test_send_many_that_is_refused() -> None:
    watching = Watching()
    with running(interceptors=[watching]) as (_, producer):
        with pytest.raises(TypeError):
            producer.send_many("t", [b"1", 2])
        with pytest.raises(ValueError, match="length"):
            producer.send_many("t", [b"1", b"2"], keys=[b"k"])
    assert [record.value for _, _, record in watching.acknowledged] == [b"1", 2]


def test_send_arrow_is_refused() -> None:
    with (
        running(interceptors=[Watching()]) as (_, producer),
        pytest.raises(ValueError, match="interceptors is set"),
    ):
        producer.send_arrow(object(), "t")


def test_a_producer_that_sent_nothing_closes_them_too() -> None:
    watching = Watching()
    with ScriptedCluster() as cluster:
        producer = cluster.producer(interceptors=[watching])
        producer.close()
        producer.close()
    assert watching.closed == 1


@pytest.mark.parametrize("wrong", [3, "on_send", [object()], [str]])
def test_what_is_none(wrong: Any) -> None:
    with ScriptedCluster() as cluster, pytest.raises(ConfigurationError, match="interceptors"):
        cluster.producer(interceptors=wrong)


@pytest.mark.parametrize("block", [False, True], ids=["send", "send_many"])
def test_an_interrupt_behind_the_append_does_not_hide_the_outcome(
    monkeypatch: pytest.MonkeyPatch, block: bool
) -> None:
    """An interrupted send() must not hide the outcome from the interceptor.

    1. The message is in the chunk.
    2. Ctrl-C strikes while the dispatcher is being notified.
    3. The message is delivered all the same; the interceptor must be notified of that, and once.
    """
    watching = Watching()
    # stage_threads="own" keeps send() from writing the message itself.
    with running(interceptors=[watching], stage_threads="own") as (cluster, producer):
        producer.send("t", b"first").result(SOON)
        dispatcher = pipeline_of(producer).dispatcher
        put = dispatcher.put
        strikes = iter([KeyboardInterrupt()])

        def interrupted(item: object) -> None:
            for strike in strikes:
                raise strike
            put(item)

        monkeypatch.setattr(dispatcher, "put", interrupted)
        with pytest.raises(KeyboardInterrupt):
            producer.send_many("t", [b"second"]) if block else producer.send("t", b"second")
        monkeypatch.undo()
        producer.flush(SOON)
        assert [record.value for record in cluster.log("t")] == [b"first", b"second"]
    told = [(metadata.offset, error) for metadata, error, _ in watching.acknowledged]
    assert told == [(0, None), (1, None)]
