"""Callbacks of a transaction: they have run when its end returns, and do not delay it."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from pykaproducer.errors import (
    ProducerClosedError,
    TransactionAbortableError,
    TransactionAbortedError,
    TransactionError,
    TransactionStateError,
)
from tests.transactions.helper import PATIENCE, Kafka


def test_a_transaction_is_committed_before_its_callbacks_have_run(kafka: Kafka, topic: str) -> None:
    """Readers see the messages, and the call returns when the callbacks have run."""
    started, go_on = threading.Event(), threading.Event()
    order: list[str] = []

    def on_delivery(_error: Any, _delivery: Any) -> None:
        started.set()
        go_on.wait(PATIENCE)
        order.append("callback")

    def commit() -> None:
        producer.commit_transaction()
        order.append("commit")

    with kafka.producer() as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for partition in range(3):
            producer.send(topic, b"%d" % partition, partition=partition, on_delivery=on_delivery)
        committing = threading.Thread(target=commit)
        committing.start()
        assert started.wait(PATIENCE)
        assert kafka.committed(topic) == [b"0", b"1", b"2"]
        assert order == []
        go_on.set()
        committing.join(PATIENCE)
    assert order == ["callback"] * 3 + ["commit"]


def test_a_message_that_a_callback_sends_after_an_abort(kafka: Kafka, topic: str) -> None:
    """It is refused, and never part of the next transaction."""
    reported: list[tuple[BaseException | None, BaseException]] = []

    def on_delivery(error: Any, delivery: Any) -> None:
        try:
            producer.send(topic, delivery.value, partition=0)
        except TransactionError as refused:
            reported.append((error, refused))

    with kafka.producer(linger_ms=60_000) as producer:
        producer.init_transactions()
        for n in range(3):
            producer.begin_transaction()
            producer.send(topic, b"retried %d" % n, partition=n, on_delivery=on_delivery)
            producer.abort_transaction()
            assert len(reported) == n + 1
            error, refused = reported[-1]
            assert isinstance(error, TransactionAbortedError)
            assert isinstance(refused, TransactionStateError)
            with producer.transaction():
                producer.send(topic, b"%d" % n, partition=0)
    assert kafka.committed(topic) == [b"0", b"1", b"2"]


def test_a_message_that_a_callback_sends_after_a_failure(kafka: Kafka, topic: str) -> None:
    reported: list[BaseException] = []

    def on_delivery(_error: Any, _delivery: Any) -> None:
        try:
            producer.send(topic, b"again", partition=0)
        except TransactionError as refused:
            reported.append(refused)

    with kafka.producer() as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"nowhere", partition=99, on_delivery=on_delivery)
        with pytest.raises(TransactionAbortableError):
            producer.commit_transaction()
        producer.abort_transaction()
        assert len(reported) == 1
        with producer.transaction():
            producer.send(topic, b"next", partition=0)
    assert kafka.committed(topic) == [b"next"]


def test_a_message_that_a_callback_sends_while_the_producer_is_closed(
    kafka: Kafka, topic: str
) -> None:
    reported: list[BaseException] = []

    def on_delivery(_error: Any, _delivery: Any) -> None:
        try:
            producer.send(topic, b"again", partition=0)
        except ProducerClosedError as refused:
            reported.append(refused)

    producer = kafka.producer(linger_ms=60_000)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(topic, b"value", partition=0, on_delivery=on_delivery)
    producer.close()
    assert len(reported) == 1
    assert kafka.committed(topic) == []
