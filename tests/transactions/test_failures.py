"""Failed messages, lost transactions, and producers with the same transactional id."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pykaproducer import Producer, Status
from pykaproducer.errors import (
    BrokerRejectedError,
    BufferFullError,
    CommitOutcome,
    DeliveryTimeoutError,
    MessageTooLargeError,
    PartitionerError,
    ProducerFencedError,
    TransactionAbortableError,
    TransactionAbortedError,
    TransactionError,
)
from tests.transactions.helper import PATIENCE, SHORT_MS, Kafka


def assert_goes_on(kafka: Kafka, producer: Producer, topic: str) -> None:
    """Assert that the transaction can only be aborted, and that the next one works."""
    with pytest.raises(TransactionAbortableError) as raised:
        producer.commit_transaction()
    assert raised.value.abortable
    assert not raised.value.fatal
    assert raised.value.outcome is CommitOutcome.NOT_COMMITTED
    producer.abort_transaction()
    for value in (b"after", b"and after"):
        producer.begin_transaction()
        producer.send(topic, value, partition=0)
        producer.commit_transaction()
    assert kafka.committed(topic) == [b"after", b"and after"]


def assert_ends_after_timeout(kafka: Kafka, producer: Producer, topic: str) -> None:
    """Assert that the producer can be used further, or that its error says why not.

    A coordinator of TV1 answers to it as to a producer that was fenced.
    """
    if kafka.protocol == "TV2":
        assert_goes_on(kafka, producer, topic)
        return
    with pytest.raises(TransactionAbortableError):
        producer.commit_transaction()
    with pytest.raises(ProducerFencedError) as raised:
        producer.abort_transaction()
    assert raised.value.outcome is not CommitOutcome.COMMITTED


def begun(producer: Producer) -> Producer:
    producer.init_transactions()
    producer.begin_transaction()
    return producer


def test_an_unknown_partition(kafka: Kafka, topic: str) -> None:
    with kafka.producer() as producer:
        begun(producer).send(topic, b"in time", partition=0).result(PATIENCE)
        failed = producer.send(topic, b"nowhere", partition=99)
        assert isinstance(failed.exception(PATIENCE), PartitionerError)
        assert_goes_on(kafka, producer, topic)


def test_a_message_that_is_too_large_for_the_topic(kafka: Kafka, topic: str) -> None:
    small = f"{topic}-small"
    kafka.cluster.create_topic(small, config={"max.message.bytes": "1000"})
    with kafka.producer(linger_ms=60_000) as producer:
        other = begun(producer).send(topic, b"waits", partition=0)
        failed = producer.send(small, bytes(2_000), partition=0)
        producer.send(topic, b"goes with it", partition=1)
        with pytest.raises(TransactionAbortableError, match="MESSAGE_SIZE_TOO_LARGE"):
            producer.commit_transaction()
        error = failed.exception(PATIENCE)
        assert isinstance(error, BrokerRejectedError)
        assert error.code == 10
        # The brokers may have been asked to write it.
        assert isinstance(other.exception(PATIENCE), TransactionAbortedError | None)
        assert_goes_on(kafka, producer, topic)


def test_a_message_that_is_too_large_for_the_producer_does_not_spoil_it(
    kafka: Kafka, topic: str
) -> None:
    with kafka.producer(max_request_size=1_000) as producer, producer.transaction():
        with pytest.raises(MessageTooLargeError):
            producer.send(topic, bytes(2_000))
        with pytest.raises(TypeError):
            producer.send(topic, 7)
        producer.send(topic, b"small")
    assert kafka.committed(topic) == [b"small"]


@pytest.mark.parametrize(
    "on_delivery", [None, lambda error, block: None], ids=["handle", "callback"]
)
def test_rows_of_a_block_that_were_refused(
    kafka: Kafka, topic: str, on_delivery: Callable[[Any, Any], None] | None
) -> None:
    with kafka.producer(proxied=True, buffer_memory=50_000, max_block_ms=100) as producer:
        producer.init_transactions(PATIENCE)
        producer.begin_transaction()
        kafka.proxy.black_hole()
        try:
            block = producer.send_many(topic, [bytes(10_000)] * 10, on_delivery=on_delivery)
            with pytest.raises(TransactionAbortableError, match="buffer_memory"):
                producer.commit_transaction()
            failures = block.exception(PATIENCE)
            assert failures is not None
            assert failures.metadata.failed[-1][0] == 9
            assert isinstance(failures.metadata.failed[-1][1], BufferFullError)
        finally:
            kafka.proxy.restore()
        producer.abort_transaction(PATIENCE)
        producer.begin_transaction()
        producer.send(topic, b"after", partition=0)
        producer.commit_transaction(PATIENCE)
    assert kafka.committed(topic) == [b"after"]


def test_a_message_that_expires(kafka: Kafka, topic: str) -> None:
    with kafka.producer(proxied=True) as producer:
        begun(producer).send(topic, b"in time", partition=0).result(PATIENCE)
        kafka.proxy.black_hole()
        try:
            failed = producer.send(topic, b"too late", partition=0, delivery_timeout_ms=100)
            waits = producer.send(topic, b"goes with it", partition=1)
            assert isinstance(failed.exception(PATIENCE), DeliveryTimeoutError)
            assert isinstance(waits.exception(PATIENCE), TransactionAbortedError)
            assert isinstance(waits.exception(0).__cause__, DeliveryTimeoutError)  # type: ignore[union-attr]
        finally:
            kafka.proxy.restore()
        assert_goes_on(kafka, producer, topic)


def test_a_transaction_that_takes_too_long(kafka: Kafka, topic: str) -> None:
    with kafka.producer(transaction_timeout_ms=SHORT_MS) as producer:
        begun(producer).send(topic, b"early", partition=0).result(PATIENCE)
        assert kafka.committed(topic) == []  # waits until the coordinator has aborted it
        with pytest.raises(TransactionAbortableError, match="transaction_timeout_ms has passed"):
            producer.send(topic, b"late", partition=0)
        assert_ends_after_timeout(kafka, producer, topic)


@pytest.mark.parametrize("with_message", [False, True], ids=["commit", "send"])
def test_a_transaction_that_only_the_coordinator_finds_too_long(
    kafka: Kafka, topic: str, with_message: bool
) -> None:
    """The clock of the producer's machine may be slow, or have been suspended."""
    with kafka.producer(transaction_timeout_ms=SHORT_MS) as producer:
        begun(producer).send(topic, b"early", partition=0).result(PATIENCE)
        pipeline = producer._pipeline
        assert pipeline is not None
        assert pipeline.coordinator is not None
        pipeline.coordinator.machine._timeout = 600.0
        assert kafka.committed(topic) == []
        if with_message:
            late = producer.send(topic, b"late", partition=0)
            assert isinstance(late.exception(PATIENCE), BrokerRejectedError)
            assert_ends_after_timeout(kafka, producer, topic)
        elif kafka.protocol == "TV2":
            assert_goes_on(kafka, producer, topic)
        else:
            with pytest.raises(ProducerFencedError) as raised:
                producer.commit_transaction()
            assert raised.value.outcome is CommitOutcome.NOT_COMMITTED


def assert_fenced(producer: Producer, topic: str) -> None:
    """Assert that nothing works any more, and that every call says why."""
    calls: list[Callable[[], object]] = [
        producer.init_transactions,
        producer.begin_transaction,
        producer.commit_transaction,
        producer.abort_transaction,
        lambda: producer.send(topic, b"never"),
    ]
    for call in calls:
        with pytest.raises(ProducerFencedError, match="another producer has taken over") as raised:
            call()
        assert raised.value.fatal
        assert repr(producer.config.transactional_id) in str(raised.value)


@pytest.mark.parametrize("with_message", [False, True], ids=["commit", "send"])
def test_a_second_producer_fences_the_first(kafka: Kafka, topic: str, with_message: bool) -> None:
    name = f"shared-{topic}"
    with kafka.producer(transactional_id=name) as first:
        begun(first).send(topic, b"first", partition=0).result(PATIENCE)
        with kafka.producer(transactional_id=name) as second:
            second.init_transactions()
            if with_message:
                late = first.send(topic, b"late", partition=0)
                assert late.exception(PATIENCE) is not None
                with pytest.raises(TransactionError):
                    first.commit_transaction()
                with pytest.raises(ProducerFencedError):
                    first.abort_transaction()
            else:
                with pytest.raises(ProducerFencedError) as raised:
                    first.commit_transaction()
                assert raised.value.outcome is CommitOutcome.NOT_COMMITTED
            assert_fenced(first, topic)
            first.close()
            with second.transaction():
                second.send(topic, b"second", partition=0)
    assert kafka.committed(topic) == [b"second"]


def test_a_failed_message_without_a_reader_is_reported_once(
    kafka: Kafka, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither ``flush()`` nor the end of ``with`` reports again what the commit has raised."""
    with kafka.producer() as producer:
        begun(producer).send(topic, b"nowhere", partition=99)
        with pytest.raises(TransactionAbortableError):
            producer.commit_transaction()
        producer.abort_transaction()
        producer.flush()
    # The one line about the transaction; none about the message.
    (line,) = [each for each in caplog.records if each.levelname in ("WARNING", "ERROR")]
    assert line.name == "pykaproducer.transactions"


def test_status_of_messages_whose_transaction_was_aborted(kafka: Kafka, topic: str) -> None:
    with kafka.producer(linger_ms=60_000) as producer:
        lingers = begun(producer).send(topic, b"lingers")
        producer.abort_transaction()
    assert lingers.status is Status.NOT_PERSISTED
