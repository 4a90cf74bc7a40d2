"""Failed messages, lost transactions, and producers with the same transactional id."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pykaproducer import Producer
from pykaproducer.errors import (
    BrokerRejectedError,
    BufferFullError,
    CommitOutcome,
    ProducerFencedError,
    TransactionAbortableError,
)
from tests.transactions.helper import BOTH, PATIENCE, SHORT_MS, Kafka


def assert_goes_on(kafka: Kafka, producer: Producer, topic: str) -> None:
    """Assert that the transaction can only be aborted, and that the next one works."""
    with pytest.raises(TransactionAbortableError) as raised:
        producer.commit_transaction()
    assert raised.value.abortable
    assert not raised.value.fatal
    assert raised.value.outcome is CommitOutcome.NOT_COMMITTED
    producer.abort_transaction()
    for value in (b"after", b"and after"):
        with producer.transaction():
            producer.send(topic, value, partition=0)
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


@pytest.mark.parametrize(
    "on_delivery", [None, lambda error, block: None], ids=["handle", "callback"]
)
def test_rows_of_a_block_that_were_refused(
    kafka: Kafka, topic: str, on_delivery: Callable[[Any, Any], None] | None
) -> None:
    with kafka.begun(proxied=True, buffer_memory=50_000, max_block_ms=100) as producer:
        with kafka.silent():
            block = producer.send_many(topic, [bytes(10_000)] * 10, on_delivery=on_delivery)
            with pytest.raises(TransactionAbortableError, match="buffer_memory"):
                producer.commit_transaction()
            failures = block.exception(PATIENCE)
            assert failures is not None
            assert failures.metadata.failed[-1][0] == 9
            assert isinstance(failures.metadata.failed[-1][1], BufferFullError)
        producer.abort_transaction(PATIENCE)
        producer.begin_transaction()
        producer.send(topic, b"after", partition=0)
        producer.commit_transaction(PATIENCE)
    assert kafka.committed(topic) == [b"after"]


@BOTH
def test_a_transaction_that_takes_too_long(
    kafka: Kafka, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    with kafka.begun(transaction_timeout_ms=SHORT_MS) as producer:
        producer.send(topic, b"early", partition=0).result(PATIENCE)
        assert kafka.committed(topic) == []  # waits until the coordinator has aborted it
        with pytest.raises(TransactionAbortableError, match="transaction_timeout_ms has passed"):
            producer.send(topic, b"late", partition=0)
        assert producer.stats()["transactions"]["state"] == "abortable"
        assert_ends_after_timeout(kafka, producer, topic)
    first = next(each for each in caplog.records if each.name == "pykaproducer.transactions")
    assert first.levelname == "WARNING"
    said = "transaction_timeout_ms has passed; the transaction must be aborted"
    assert said in first.getMessage()


@BOTH
@pytest.mark.parametrize("with_message", [False, True], ids=["commit", "send"])
def test_a_transaction_that_only_the_coordinator_finds_too_long(
    kafka: Kafka, topic: str, with_message: bool
) -> None:
    """The clock of the producer's machine may be slow, or have been suspended."""
    with kafka.begun(transaction_timeout_ms=SHORT_MS) as producer:
        producer.send(topic, b"early", partition=0).result(PATIENCE)
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
