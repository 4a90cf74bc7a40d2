"""Messages in a transaction: what readers see, blocks, interceptors, callbacks, and deadlines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow
import pytest

from pykaproducer import DeliveryFailures, Producer, Status
from pykaproducer.errors import (
    BufferFullError,
    MessageTooLargeError,
    PartitionerError,
    ProducerClosedError,
    TransactionAbortableError,
    TransactionAbortedError,
    TransactionError,
    TransactionStateError,
)
from pykaproducer.interceptors import Interceptor, ProducerRecord
from tests.transactions.helper import BOTH, PATIENCE, Kafka


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
    with kafka.begun() as producer:
        producer.send(topic, b"in time", partition=0).result(PATIENCE)
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
    with kafka.begun(proxied=True, buffer_memory=50_000, max_block_ms=100) as producer:
        accepted = 0
        with kafka.silent(), pytest.raises(BufferFullError):  # noqa: PT012 - the last one raises it
            while True:
                producer.send(topic, bytes(10_000), partition=0)
                accepted += 1
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


# flush() -----------------------------------------------------------------------------------------


def test_flush_raises_what_made_it_abortable_and_the_commit_raises_it_again(
    kafka: Kafka, topic: str
) -> None:
    with kafka.begun() as producer:
        producer.send(topic, b"nowhere", partition=99)
        with pytest.raises(DeliveryFailures, match="partition 99"):
            producer.flush()
        with pytest.raises(TransactionAbortableError, match="partition 99"):
            producer.commit_transaction()
        producer.abort_transaction()
        producer.flush()


@pytest.mark.parametrize("end", ["commit_transaction", "abort_transaction"])
def test_what_the_end_has_told_is_not_raised_again(kafka: Kafka, topic: str, end: str) -> None:
    with kafka.begun(linger_ms=60_000) as producer:
        producer.send(topic, b"lingers")
        producer.send(topic, b"nowhere", partition=99)
        if end == "commit_transaction":
            with pytest.raises(TransactionAbortableError):
                producer.commit_transaction()
        else:
            producer.abort_transaction()
        producer.flush()  # neither here nor at the end of `with`


def test_a_failed_message_is_logged_once(
    kafka: Kafka, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    with kafka.begun() as producer:
        producer.send(topic, b"nowhere", partition=99)
        with pytest.raises(TransactionAbortableError):
            producer.commit_transaction()
        producer.abort_transaction()
        producer.flush()
    # The one line about the transaction; none about the message.
    (line,) = [each for each in caplog.records if each.levelname in ("WARNING", "ERROR")]
    assert line.name == "pykaproducer.transactions"


# What readers see --------------------------------------------------------------------------------


@BOTH
def test_commit_and_abort(kafka: Kafka, topic: str) -> None:
    with kafka.begun() as producer:
        kept = [producer.send(topic, b"kept-%d" % i, partition=i) for i in range(3)]
        producer.commit_transaction()
        assert all(delivery.result(0).offset >= 0 for delivery in kept)
        producer.begin_transaction()
        written = producer.send(topic, b"dropped", partition=0)
        written.result(PATIENCE)
        producer.abort_transaction()
        # What was written stays delivered, and is not readable.
        assert written.exception(0) is None
        assert written.status is Status.PERSISTED
    assert kafka.committed(topic) == [b"kept-0", b"kept-1", b"kept-2"]
    assert kafka.written(topic) == [b"kept-0", b"dropped", b"kept-1", b"kept-2"]


def test_the_next_producer_ends_what_the_last_one_left(kafka: Kafka, topic: str) -> None:
    with kafka.begun(transactional_id=f"left-{topic}") as first:
        first.send(topic, b"left", partition=0).result(PATIENCE)
        first.abort()
    with kafka.producer(transactional_id=f"left-{topic}") as second, second.transaction():
        second.send(topic, b"next", partition=0)
    assert kafka.committed(topic) == [b"next"]
    assert kafka.written(topic) == [b"left", b"next"]


# Callbacks at the end ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("end", "reported"),
    [
        ("abort_transaction", (TransactionAbortedError, TransactionStateError)),
        ("commit_transaction", (PartitionerError, TransactionError)),  # it has failed
        ("close", (TransactionAbortedError, ProducerClosedError)),
    ],
)
def test_a_message_that_a_callback_sends_at_the_end(
    kafka: Kafka, topic: str, end: str, reported: tuple[type[Exception], ...]
) -> None:
    """It is refused, and never part of the next transaction."""
    found: list[tuple[Any, Exception]] = []

    def on_delivery(error: Any, _delivery: Any) -> None:
        try:
            producer.send(topic, b"again", partition=0)
        except (TransactionError, ProducerClosedError) as refused:
            found.append((error, refused))

    with kafka.begun(linger_ms=60_000) as producer:
        partition = 99 if end == "commit_transaction" else 0
        producer.send(topic, b"value", partition=partition, on_delivery=on_delivery)
        if end == "commit_transaction":
            with pytest.raises(TransactionAbortableError):
                producer.commit_transaction()
            producer.abort_transaction()
        else:
            getattr(producer, end)()
        assert len(found) == 1
        assert all(map(isinstance, found[0], reported))
        if end != "close":
            with producer.transaction():
                producer.send(topic, b"next", partition=0)
    assert kafka.committed(topic) == [b"next"] * (end != "close")
