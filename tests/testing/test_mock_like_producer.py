"""``MockProducer`` is the real producer: its checks, partitions, memory, blocks, counters."""

from __future__ import annotations

import os
import pickle
import threading
from typing import Any

import pyarrow
import pytest

import pykaproducer
from pykaproducer import (
    AbortedError,
    BlockFailures,
    BufferFullError,
    Delivery,
    DeliveryError,
    DeliveryTimeoutError,
    FlushTimeoutError,
    ForkedProducerError,
    MetadataTimeoutError,
    PartitionerError,
    Producer,
)
from pykaproducer.interceptors import Interceptor
from pykaproducer.testing import MockKafkaProducer, MockProducer
from tests._support.threads import Call
from tests.testing.test_mock import SOON, manual

# What the real producer does, too ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "settings"),
    [
        (("events", "text"), {}),
        ((5, b"value"), {}),
        (("no spaces", b"value"), {}),
        (("", b"value"), {}),
        (("events", b"value", "key"), {}),
        (("events", b"value", None, {"a": b"b"}), {}),
        (("events", b"value", None, [("a", "text")]), {}),
        (("events", b"value", None, None, -1), {}),
        (("events", b"value", None, None, "0"), {}),
        (("events", b"value", None, None, None, -5), {}),
        (("events", bytes(2_000)), {"max_request_size": 1_000}),
    ],
)
def test_wrong_arguments_raise_the_same_errors(
    arguments: tuple[Any, ...], settings: dict[str, Any]
) -> None:
    errors = []
    for kind in (Producer, MockProducer):
        producer = kind(**settings)
        with pytest.raises((TypeError, ValueError)) as caught:
            producer.send(*arguments)
        errors.append((type(caught.value), str(caught.value)))
        producer.abort()
    assert errors[0] == errors[1]


@pytest.mark.parametrize("settings", [{"linger": 5}, {"acks": 7}, {"compression_type": "lz5"}])
def test_wrong_settings_raise_the_same_errors(settings: dict[str, Any]) -> None:
    errors = []
    for kind in (Producer, MockProducer):
        with pytest.raises(pykaproducer.ConfigurationError) as caught:
            kind(**settings)
        errors.append(str(caught.value))
    assert errors[0] == errors[1]


def test_settings_by_position_are_refused() -> None:
    with pytest.raises(TypeError, match=r"MockProducer\(\) takes settings by name"):
        MockProducer({"linger_ms": 5})


def test_serializers_and_interceptors() -> None:
    told: list[object] = []

    class Stamp(Interceptor):
        def on_send(self, record: Any) -> Any:
            return record.replace(headers=[("stamp", b"1")])

        def on_acknowledgement(self, metadata: Any, exception: Any, record: Any) -> None:
            told.append((metadata.offset, exception, record.value))

    producer = MockProducer(
        value_serializer=lambda value: value.upper().encode(), interceptors=[Stamp()]
    )
    producer.send("events", "text")
    (record,) = producer.history()
    assert (record.value, record.headers) == (b"TEXT", (("stamp", b"1"),))
    assert told == [(0, None, "text")]


def test_blocks() -> None:
    producer = MockProducer(partitions={"events": 2})
    block = producer.send_many("events", [b"1", b"2", b"3"], partitions=[0, 1, 0])
    assert block.result(0).offsets == {("events", 0): [range(2)], ("events", 1): [range(1)]}
    table = pyarrow.table({"topic": ["a", "b"], "value": [b"4", b"5"], "key": [None, b"k"]})
    assert producer.send_arrow(table).done()
    assert [record.value for record in producer.history()] == [b"1", b"2", b"3", b"4", b"5"]
    assert producer.history()[-1].key == b"k"


def test_a_block_in_which_one_message_fails() -> None:
    producer = manual()
    told: list[object] = []
    block = producer.send_many(
        "events", [b"1", b"2", b"3"], on_delivery=lambda error, block: told.append(error)
    )
    producer.complete_next()
    producer.fail_next(10)
    assert not told
    producer.complete_next()
    with pytest.raises(BlockFailures) as caught:
        block.result(0)
    assert [row for row, _ in caught.value.metadata.failed] == [1]
    assert [type(error) for error in told] == [BlockFailures]


def test_a_partition_that_the_topic_does_not_have() -> None:
    producer = MockProducer(partitions={"events": 3})
    delivery = producer.send("events", b"value", partition=3)
    with pytest.raises(PartitionerError, match="the topic has partitions 0 to 2"):
        delivery.result()
    assert producer.history() == []


def test_a_partitioner_function() -> None:
    def choose(key: bytes | None, everything: list[int], available: list[int]) -> int:
        if key == b"bad":
            raise KeyError(key)
        return everything[-1]

    producer = MockProducer(partitioner=choose, partitions=5)
    assert producer.send("events", b"", key=b"good").result().partition == 4
    with pytest.raises(PartitionerError, match="KeyError") as caught:
        producer.send("events", b"", key=b"bad").result()
    assert isinstance(caught.value.__cause__, KeyError)


def test_topics_that_do_not_exist() -> None:
    producer = MockProducer(partitions={"events": 3}, allow_auto_create_topics=False)
    assert producer.partitions_for("events") == {0, 1, 2}
    with pytest.raises(MetadataTimeoutError, match="'evnets'"):
        producer.partitions_for("evnets")
    with pytest.raises(DeliveryTimeoutError, match="without this topic in partitions"):
        producer.send("evnets", b"value").result()
    assert MockProducer().partitions_for("anything") == {0}


def test_a_full_buffer() -> None:
    producer = manual(buffer_memory=4_000, max_block_ms=1, batch_size=1_000)
    for _ in range(3):
        producer.send("events", bytes(1_000))
    with pytest.raises(BufferFullError, match="was full for max_block_ms"):
        producer.send("events", bytes(1_000))
    producer.complete_next()
    producer.complete_all()
    producer.send("events", bytes(1_000))


def test_a_thread_that_waits_for_space_gets_it() -> None:
    producer = manual(buffer_memory=4_000, max_block_ms=SOON * 1000, batch_size=1_000)
    for _ in range(3):
        producer.send("events", bytes(1_000))
    sender = Call(lambda: producer.send("events", bytes(1_000)))
    while sender.is_alive():
        producer.complete_all()
        sender.join(0.01)
    assert isinstance(sender.outcome(), Delivery)


def test_stats_and_metrics_count() -> None:
    producer = manual()
    for _ in range(3):
        producer.send("events", b"value")
    producer.complete_next()
    producer.fail_next()
    messages = {"accepted": 3, "delivered": 1, "failed": 1, "pending": 1}
    assert producer.stats()["messages"] == messages
    metrics = producer.metrics()
    assert metrics is not None
    assert metrics["producer-metrics"]["record-error-total"] == 1
    producer.complete_all()
    assert producer.stats()["buffer"]["used"] == 0


@pytest.mark.parametrize("auto_complete", [True, False])
def test_many_threads(auto_complete: bool) -> None:
    producer = MockProducer(auto_complete=auto_complete, partitions=4)
    count, not_done, running, most = 1_000, 0, 0, 0
    told: list[tuple[str, int, int]] = []
    sent = threading.Event()

    def report(error: DeliveryError | None, delivery: Delivery) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        assert delivery.partition is not None
        assert delivery.offset is not None
        told.append((delivery.topic, delivery.partition, delivery.offset))
        running -= 1

    def send(topic: str) -> None:
        nonlocal not_done
        for number in range(count):
            delivery = producer.send(topic, b"", partition=number % 4, on_delivery=report)
            not_done += auto_complete and not delivery.done()

    def complete() -> None:
        while not sent.is_set():
            producer.complete_next()

    senders = [threading.Thread(target=send, args=(topic,)) for topic in ("a", "b", "a", "b")]
    others = [] if auto_complete else [threading.Thread(target=complete) for _ in range(2)]
    for thread in (*senders, *others):
        thread.start()
    for thread in senders:
        thread.join()
    sent.set()
    for thread in others:
        thread.join()
    producer.flush()
    assert (not_done, most) == (0, 1)
    for topic, partition in [(topic, partition) for topic in "ab" for partition in range(4)]:
        offsets = [offset for *place, offset in told if place == [topic, partition]]
        assert offsets == list(range(count // 2))
    assert producer.stats()["buffer"]["used"] == 0


def test_a_fork_leaves_the_messages_to_the_parent() -> None:
    producer = manual()
    pending = producer.send("events", b"parent")
    child = os.fork()
    if not child:
        passed = False
        try:
            with pytest.raises(ForkedProducerError):
                pending.result()
            assert (producer.pending, producer.history()) == (0, [])
            delivery = producer.send("events", b"child")
            producer.complete_next()
            passed = delivery.offset == 0
        finally:
            os._exit(not passed)
    assert os.waitpid(child, 0)[1] == 0
    assert producer.complete_next()
    assert pending.offset == 0


def test_without_metrics() -> None:
    producer = MockProducer(metrics_enabled=False)
    producer.fail_next()
    assert producer.send("events", b"value").failed()
    assert producer.send("events", b"value").succeeded()
    assert producer.metrics() is None


def test_a_pickle_is_an_empty_mock_with_the_same_arguments() -> None:
    producer = manual(partitions={"events": 3}, client_id="app")
    producer.send("events", b"value")
    made = pickle.loads(pickle.dumps(producer))
    assert isinstance(made, MockProducer)
    assert made.config.client_id == "app"
    assert made.partitions_for("events") == {0, 1, 2}
    assert made.history() == []
    made.send("events", b"value")
    assert made.pending == 1


# Errors of the calls themselves ------------------------------------------------------------------


def test_raise_next() -> None:
    producer = MockProducer()
    producer.raise_next("send", BufferFullError("the buffer is full"))
    with pytest.raises(BufferFullError):
        producer.send("events", b"1")
    producer.send("events", b"2")
    producer.raise_next("send", BufferFullError("the buffer is full"))
    with pytest.raises(BufferFullError):
        producer.send_many("events", [b"3"])
    assert [record.value for record in producer.history()] == [b"2"]
    producer.raise_next("flush", FlushTimeoutError("1 message", pending=1))
    with pytest.raises(FlushTimeoutError):
        producer.flush()
    producer.flush()
    producer.raise_next("partitions_for", MetadataTimeoutError("no metadata"))
    with pytest.raises(MetadataTimeoutError):
        producer.partitions_for("events")
    producer.raise_next("close", KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        producer.close()
    producer.close()


def test_raise_next_of_something_else() -> None:
    with pytest.raises(ValueError, match="'send', 'flush', 'close', 'partitions_for'"):
        MockProducer().raise_next("abort", OSError())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="error must be an exception"):
        MockProducer().raise_next("send", "OSError")  # type: ignore[arg-type]


def test_clear() -> None:
    producer = manual()
    producer.send("events", b"1")
    producer.complete_next()
    pending = producer.send("events", b"2")
    producer.raise_next("send", OSError())
    producer.clear()
    assert isinstance(pending.error, AbortedError)
    assert (producer.history(), producer.pending) == ([], 0)
    delivery = producer.send("events", b"3")
    producer.flush()
    assert delivery.offset == 0


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"auto_complete": 1}, TypeError, "auto_complete must be a bool, not int"),
        ({"partitions": "events"}, TypeError, "partitions must be an int, not str"),
        ({"partitions": 0}, ValueError, "partitions must be at least 1, not 0"),
        ({"partitions": {"events": 0}}, ValueError, r"partitions\['events'\] must be at least 1"),
        ({"partitions": {"events": True}}, TypeError, "must be an int, not bool"),
        ({"partitions": {"no spaces": 1}}, ValueError, "no spaces"),
    ],
)
def test_wrong_arguments_of_its_own(
    arguments: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        MockProducer(**arguments)


def test_repr() -> None:
    producer = manual(client_id="app")
    producer.send("events", b"secret")
    assert repr(producer) == "<MockProducer app 1 pending message>"


# In place of KafkaProducer -----------------------------------------------------------------------


def test_in_place_of_kafka_python_s_producer() -> None:
    producer = MockKafkaProducer(
        auto_complete=False, key_serializer=str.encode, value_serializer=str.encode
    )
    assert isinstance(producer, pykaproducer.KafkaProducer)
    told: list[object] = []
    first = producer.send("events", "value", key="key").add_callback(told.append)
    second = producer.send("events", "value", key="key").add_errback(told.append)
    assert not first.is_done
    producer.complete_next()
    producer.fail_next(10)
    assert (first.get(), second.exception) == tuple(told)
    assert first.value is not None
    assert first.value.offset == 0
    with pytest.raises(ValueError, match="needs a value or a key"):
        producer.send("events")
    producer.close(timeout=1, null_logger=True)


def test_kafka_python_s_producer_logs_failures(caplog: pytest.LogCaptureFixture) -> None:
    producer = MockKafkaProducer()
    producer.fail_next()
    producer.send("events", b"value")
    producer.flush()
    assert "1 message was not delivered" in caplog.text


def test_kafka_python_s_partitioner_objects() -> None:
    class Last:
        def partition(
            self, topic: str, key: Any, packed: Any, value: Any, data: Any, cluster: Any
        ) -> int:
            assert cluster.topics() >= {"events"}
            return max(cluster.available_partitions_for_topic(topic))

    producer = MockKafkaProducer(partitions={"events": 4}, partitioner=Last())
    assert producer.send("events", b"value").get().partition == 3
