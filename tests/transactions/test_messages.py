"""Messages in a transaction: blocks, interceptors, callbacks, flush(), and deadlines."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pyarrow
import pytest

from pykaproducer import DeliveryFailures, Producer, Status
from pykaproducer.errors import (
    BrokerRejectedError,
    BufferFullError,
    DeliveryTimeoutError,
    MessageTooLargeError,
    PartitionerError,
    TransactionAbortableError,
    TransactionAbortedError,
    TransactionStateError,
)
from pykaproducer.interceptors import Interceptor, ProducerRecord
from tests.transactions.helper import PATIENCE, SHORT_MS, Kafka


def rows(*values: bytes, partition: int = 0) -> pyarrow.RecordBatch:
    partitions = pyarrow.array([partition] * len(values), "int32")
    return pyarrow.record_batch({"value": list(values), "partition": partitions})


SEND_BLOCK: dict[str, Callable[[Producer, str, list[bytes], int], Any]] = {
    "send_many": lambda producer, topic, values, partition: producer.send_many(
        topic, values, partitions=[partition] * len(values)
    ),
    "send_arrow": lambda producer, topic, values, partition: producer.send_arrow(
        rows(*values, partition=partition), topic
    ),
}
each_block = pytest.mark.parametrize("send_block", SEND_BLOCK.values(), ids=SEND_BLOCK)


def begun(producer: Producer) -> Producer:
    producer.init_transactions()
    producer.begin_transaction()
    return producer


# Blocks ------------------------------------------------------------------------------------------


@each_block
def test_a_block_is_visible_after_the_commit(kafka: Kafka, topic: str, send_block: Any) -> None:
    with kafka.producer() as producer:
        with producer.transaction():
            kept = send_block(producer, topic, [b"a", b"b", b"c"], 1)
        assert kept.done()
        assert kept.outcome(0).delivered == {(topic, 1): (3, 3)}
        with producer.transaction() as transaction:
            send_block(producer, topic, [b"d"], 1).result(PATIENCE)
            transaction.abort()
    assert kafka.committed(topic) == [b"a", b"b", b"c"]
    assert kafka.written(topic) == [b"a", b"b", b"c", b"d"]


@each_block
def test_a_failed_row_of_a_block_makes_it_abortable(
    kafka: Kafka, topic: str, send_block: Any
) -> None:
    with kafka.producer() as producer:
        begun(producer).send(topic, b"in time", partition=0).result(PATIENCE)
        block = send_block(producer, topic, [b"nowhere", b"nowhere, either"], 99)
        with pytest.raises(TransactionAbortableError, match="partition 99") as raised:
            producer.commit_transaction()
        assert isinstance(raised.value.__cause__, PartitionerError)
        failed = block.outcome(0).failed
        assert [row for row, _ in failed] == [0, 1]
        assert isinstance(failed[0][1], PartitionerError)
        with pytest.raises(TransactionAbortableError, match="partition 99"):
            send_block(producer, topic, [b"refused"], 0)
        producer.abort_transaction()
        with producer.transaction():
            send_block(producer, topic, [b"after"], 0)
    assert kafka.committed(topic) == [b"after"]


@each_block
def test_what_a_block_raises_does_not_spoil_it(kafka: Kafka, topic: str, send_block: Any) -> None:
    """It accepts nothing."""
    with kafka.producer(max_request_size=1_000) as producer:
        with producer.transaction():
            with pytest.raises(MessageTooLargeError):
                send_block(producer, topic, [b"small", bytes(2_000)], 0)
            for arguments in (("no spaces", [b"value"]), (topic, b"one cell"), (topic, [7])):
                with pytest.raises((ValueError, TypeError)):
                    producer.send_many(*arguments)
            send_block(producer, topic, [b"kept"], 0)
        assert producer.stats()["transactions"]["aborted"] == 0
    assert kafka.written(topic) == [b"kept"]


def test_a_full_buffer_does_not_spoil_it(kafka: Kafka, topic: str) -> None:
    with kafka.producer(proxied=True, buffer_memory=50_000, max_block_ms=100) as producer:
        producer.init_transactions(PATIENCE)
        producer.begin_transaction()
        kafka.proxy.black_hole()
        accepted = 0
        try:
            with pytest.raises(BufferFullError):  # noqa: PT012 - it is the last one that raises
                while True:
                    producer.send(topic, bytes(10_000), partition=0)
                    accepted += 1
        finally:
            kafka.proxy.restore()
        producer.commit_transaction(PATIENCE)
    assert kafka.committed(topic) == [bytes(10_000)] * accepted


# Interceptors and callbacks ----------------------------------------------------------------------


class Watching(Interceptor):
    """Changes each message, and records the outcomes."""

    def __init__(self) -> None:
        self.outcomes: list[tuple[bytes, type | None]] = []

    def on_send(self, record: ProducerRecord) -> ProducerRecord | None:
        return record.replace(value=record.value + b"!")

    def on_acknowledgement(self, metadata: Any, exception: Any, record: ProducerRecord) -> None:
        self.outcomes.append((record.value, exception and type(exception)))


def test_interceptors(kafka: Kafka, topic: str) -> None:
    watching = Watching()
    with kafka.producer(interceptors=[watching], linger_ms=60_000) as producer:
        with producer.transaction():
            producer.send(topic, b"one", partition=0)
            producer.send_many(topic, [b"two", b"three"], partitions=[0, 0])
        assert watching.outcomes == [(b"one!", None), (b"two!", None), (b"three!", None)]
        with pytest.raises(TransactionStateError):
            producer.send(topic, b"outside")
        assert watching.outcomes.pop() == (b"outside!", TransactionStateError)
        with producer.transaction() as transaction:
            producer.send(topic, b"dropped", partition=0)
            transaction.abort()
        assert watching.outcomes.pop() == (b"dropped!", TransactionAbortedError)
    assert kafka.committed(topic) == [b"one!", b"two!", b"three!"]


def test_a_callback_is_called_at_the_acknowledgement(kafka: Kafka, topic: str) -> None:
    """Readers see the message later, or never: it stays delivered even so."""
    reported: list[tuple[Any, Any]] = []
    called = threading.Event()

    def on_delivery(error: Any, delivery: Any) -> None:
        reported.append((error, delivery.offset))
        called.set()

    with kafka.producer() as producer:
        begun(producer)
        delivery = producer.send(topic, b"value", partition=0, on_delivery=on_delivery)
        assert called.wait(PATIENCE)
        producer.abort_transaction()
        assert reported == [(None, 0)]
        assert delivery.result(0).offset == 0
        assert delivery.status is Status.PERSISTED
        assert delivery.succeeded()
    assert kafka.committed(topic) == []
    assert kafka.written(topic) == [b"value"]


def test_callbacks_have_run_when_a_call_returns(kafka: Kafka, topic: str) -> None:
    reported: list[str] = []

    def on_delivery(error: Any, delivery: Any) -> None:
        reported.append(type(error).__name__)

    with kafka.producer(linger_ms=60_000) as producer:
        producer.init_transactions()
        for n in range(1, 20):
            producer.begin_transaction()
            for i in range(n):
                producer.send(topic, b"%d" % n, partition=i % 3, on_delivery=on_delivery)
            if n % 2:
                producer.commit_transaction()
                assert reported == ["NoneType"] * n
            else:
                producer.abort_transaction()
                assert reported == ["TransactionAbortedError"] * n
            reported.clear()


# flush() -----------------------------------------------------------------------------------------


def test_flush_raises_what_made_it_abortable_and_the_commit_raises_it_again(
    kafka: Kafka, topic: str
) -> None:
    with kafka.producer() as producer:
        begun(producer).send(topic, b"nowhere", partition=99)
        with pytest.raises(DeliveryFailures, match="partition 99"):
            producer.flush()
        with pytest.raises(TransactionAbortableError, match="partition 99"):
            producer.commit_transaction()
        producer.abort_transaction()
        producer.flush()


@pytest.mark.parametrize("end", ["commit_transaction", "abort_transaction"])
def test_what_the_end_has_told_is_not_raised_again(kafka: Kafka, topic: str, end: str) -> None:
    with kafka.producer(linger_ms=60_000) as producer:
        begun(producer).send(topic, b"lingers")
        producer.send(topic, b"nowhere", partition=99)
        if end == "commit_transaction":
            with pytest.raises(TransactionAbortableError):
                producer.commit_transaction()
        else:
            producer.abort_transaction()
        producer.flush()  # neither here nor at the end of `with`


# Deadlines ---------------------------------------------------------------------------------------


def test_a_commit_ends_at_the_deadline_of_its_messages(kafka: Kafka, topic: str) -> None:
    with kafka.producer(proxied=True) as producer:
        producer.init_transactions(PATIENCE)
        producer.begin_transaction()
        producer.send(topic, b"in time", partition=0).result(PATIENCE)
        kafka.proxy.black_hole()
        try:
            late = producer.send(topic, b"late", partition=0, delivery_timeout_ms=500)
            began = time.monotonic()
            with pytest.raises(TransactionAbortableError) as raised:
                producer.commit_transaction()
            assert time.monotonic() - began < 20  # not the default of delivery_timeout_ms
        finally:
            kafka.proxy.restore()
        assert isinstance(raised.value.__cause__, DeliveryTimeoutError)
        assert isinstance(late.exception(0), DeliveryTimeoutError)
        producer.abort_transaction(PATIENCE)
        with producer.transaction():
            producer.send(topic, b"after", partition=0).result(PATIENCE)
    assert kafka.committed(topic) == [b"after"]


def test_the_end_of_a_transaction_by_its_timeout_fails_its_messages(
    kafka: Kafka, topic: str
) -> None:
    """Even if no broker can be reached: the producer watches the time itself."""
    with kafka.producer(proxied=True, transaction_timeout_ms=SHORT_MS) as producer:
        producer.init_transactions(PATIENCE)
        producer.begin_transaction()
        producer.send(topic, b"in time", partition=0).result(PATIENCE)
        kafka.proxy.black_hole()
        try:
            waits = producer.send(topic, b"waits", partition=0)
            error = waits.exception(PATIENCE)
            assert isinstance(error, TransactionAbortedError | BrokerRejectedError)
            with pytest.raises(
                TransactionAbortableError, match="transaction_timeout_ms has passed"
            ):
                producer.send(topic, b"too late", partition=0)
        finally:
            kafka.proxy.restore()
    assert kafka.committed(topic) == []
