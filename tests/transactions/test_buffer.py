"""Messages that wait for space in the buffer while their transaction ends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from pykaproducer import Producer
from pykaproducer._kernel import Turn
from pykaproducer.block import BlockDelivery
from pykaproducer.errors import (
    TransactionAbortableError,
    TransactionError,
    TransactionStateError,
    TransactionTimeoutError,
)
from pykaproducer.testing._processes import tick
from tests._support.threads import Call
from tests.transactions.helper import PATIENCE, Kafka

SETTINGS: dict[str, Any] = {
    "proxied": True,
    "buffer_memory": 50_000,
    "max_block_ms": 1000 * PATIENCE,
}


def waiting(producer: Producer, call: Callable[[], Any]) -> Call:
    """Make a call that waits for space."""
    made = Call(call)
    while not producer._space.waiting and made.is_alive():
        tick()
    return made


def begun(kafka: Kafka, topic: str) -> Producer:
    producer = kafka.producer(**SETTINGS)
    producer.init_transactions(PATIENCE)
    producer.begin_transaction()
    producer.send(topic, b"first", partition=0).result(PATIENCE)
    return producer


@pytest.mark.parametrize("block", [False, True], ids=["send", "send_many"])
def test_a_message_does_not_wait_into_the_next_transaction(
    kafka: Kafka, topic: str, block: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    with begun(kafka, topic) as producer:
        wait = producer._wait_for_space

        def wait_long(turn: Turn) -> None:
            """Wait, and do not run again before the next transaction has begun."""
            wait(turn)
            go_on.wait(PATIENCE)

        monkeypatch.setattr(producer, "_wait_for_space", wait_long)
        with kafka.silent():
            full = [producer.send(topic, bytes(10_000), partition=0) for _ in range(4)]
            if block:
                sender = waiting(producer, lambda: producer.send_many(topic, [bytes(10_000)] * 2))
            else:
                sender = waiting(producer, lambda: producer.send(topic, bytes(10_000)))
            assert sender.is_alive()
        producer.abort_transaction(PATIENCE)
        producer.begin_transaction()
        go_on.set()
        error = sender.error()
        assert isinstance(error, TransactionStateError), sender.result
        assert "the transaction in which it was called has ended" in str(error)
        assert all(each.done() for each in full)
        producer.send(topic, b"next", partition=0)
        producer.commit_transaction(PATIENCE)
    assert kafka.committed(topic) == [b"next"]


def test_a_block_whose_transaction_ends_while_it_waits(kafka: Kafka, topic: str) -> None:
    """Accepted rows have their outcome; for the others the handle raises."""
    with begun(kafka, topic) as producer:
        with kafka.silent():
            sender = waiting(producer, lambda: producer.send_many(topic, [bytes(10_000)] * 10))
            with pytest.raises(TransactionTimeoutError):
                producer.abort_transaction(0)
            assert sender.error() is None
        assert isinstance(sender.result, BlockDelivery)
        failures = sender.result.exception(PATIENCE)
        assert failures is not None
        assert 0 < sender.result.accepted < 10
        assert isinstance(failures.metadata.failed[-1][1], TransactionError)
        producer.abort_transaction(PATIENCE)
        with producer.transaction():
            producer.send(topic, b"next", partition=0)
    assert kafka.committed(topic) == [b"next"]


def test_a_block_that_is_cut_by_a_commit_spoils_it(kafka: Kafka, topic: str) -> None:
    with begun(kafka, topic) as producer:
        with kafka.silent():
            sender = waiting(producer, lambda: producer.send_many(topic, [bytes(10_000)] * 10))
            committing = Call(lambda: producer.commit_transaction(PATIENCE))
            assert sender.error() is None
            assert isinstance(committing.error(), TransactionAbortableError)
        failures = sender.result.exception(PATIENCE)
        assert isinstance(failures.metadata.failed[-1][1], TransactionError)
        producer.abort_transaction(PATIENCE)
    assert kafka.committed(topic) == []
