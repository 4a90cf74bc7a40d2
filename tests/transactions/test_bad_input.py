"""Wrong arguments, and what only the brokers can refuse: nothing is left half done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pykaproducer import (
    TopicPartition,
    TransactionAbortableError,
    TransactionError,
    TransactionStateError,
    TransactionTimeoutError,
)
from pykaproducer.testing import ScriptedCluster
from pykaproducer.transaction_control import CommittedOffset
from tests.transactions.helper import PATIENCE, Kafka
from tests.transactions.scripted_helper import producer_of, send_and_commit, values


def place(topic: str, partition: int = 0) -> TopicPartition:
    return TopicPartition(topic, partition)


class Consumer:
    """A consumer without a group."""

    def group_metadata(self) -> Any:
        return None


WRONG_OFFSETS: list[tuple[Callable[[str], Any], Any, type[Exception], str]] = [
    (lambda topic: 7, "g", TypeError, "offsets must be a dict"),
    (lambda topic: topic, "g", TypeError, "offsets must be a dict"),
    (lambda topic: {topic: 1}, "g", TypeError, "the keys of offsets, .* must have the attribute"),
    (lambda topic: [1], "g", TypeError, "a list of offsets must have the attribute 'offset'"),
    (lambda topic: {place(topic): "1"}, "g", TypeError, "must have the attribute 'offset'"),
    (lambda topic: {place(topic): True}, "g", TypeError, "must have the attribute 'offset'"),
    (lambda topic: {place(topic): 1.5}, "g", TypeError, "must have the attribute 'offset'"),
    (lambda topic: {place(topic): -1}, "g", ValueError, "the offset is -1, but must be 0 to"),
    (lambda topic: {place(topic): 2**63}, "g", ValueError, r"but must be 0 to 2\*\*63 - 1"),
    (lambda topic: {place(topic, -1): 1}, "g", ValueError, "partition's number is -1, but must"),
    (lambda topic: {place(""): 1}, "g", ValueError, "a topic's name is empty"),
    (
        lambda topic: {place(topic): CommittedOffset(1, -1, b"x")},  # type: ignore[arg-type]
        "g",
        TypeError,
        "the metadata of an offset must be a str, not bytes",
    ),
    (
        lambda topic: {place(topic): CommittedOffset(1, -1, "x" * 40_000)},
        "g",
        ValueError,
        "the metadata of an offset has 40000 bytes, more than 32767",
    ),
    (lambda topic: {place(topic): 1}, "", ValueError, "the group's name is empty"),
    (lambda topic: {place(topic): 1}, None, TypeError, "the group must be its name"),
    (lambda topic: {place(topic): 1}, 7, TypeError, "the group must be its name"),
    (lambda topic: {place(topic): 1}, Consumer(), TypeError, "the group must be its name"),
    (lambda topic: {place(topic): 1}, b"g", ValueError, "the group's metadata are bytes"),
]


def test_offsets_and_groups_that_are_none(kafka: Kafka, topic: str) -> None:
    """They are refused before anything is sent, and the transaction continues."""
    with kafka.begun() as producer:
        for offsets, group, error, text in WRONG_OFFSETS:
            with pytest.raises(error, match=text):
                producer.send_offsets_to_transaction(offsets(topic), group)
        producer.send(topic, b"x", partition=0)
        producer.send_offsets_to_transaction({}, "g")  # nothing to do
        producer.send_offsets_to_transaction({place(topic): 1}, topic)
        producer.commit_transaction()
    assert kafka.committed(topic) == [b"x"]


@pytest.mark.parametrize(
    ("partition", "metadata", "code", "name"),
    [(0, "x" * 5_000, 12, "OFFSET_METADATA_TOO_LARGE"), (99, "", 3, "UNKNOWN_TOPIC_OR_PARTITION")],
)
def test_offsets_that_the_group_refuses(
    kafka: Kafka, topic: str, partition: int, metadata: str, code: int, name: str
) -> None:
    """A partition may be created at any time, so it is waited for, up to the timeout."""
    offsets = {place(topic, partition): CommittedOffset(1, -1, metadata)}
    with kafka.begun() as producer:
        producer.send(topic, b"before", partition=0).result(PATIENCE)
        for timeout in (0.3, PATIENCE):
            with pytest.raises((TransactionAbortableError, TransactionTimeoutError)) as raised:
                producer.send_offsets_to_transaction(offsets, "g", timeout=timeout)
            if raised.value.abortable:
                break
        assert raised.value.code == code
        for call in (producer.commit_transaction, lambda: producer.send(topic, b"x")):
            with pytest.raises(TransactionAbortableError) as refused:
                call()
            assert f"{name} ({code})" in str(refused.value)
        producer.abort_transaction()
        with producer.transaction():
            producer.send(topic, b"after", partition=0)
            producer.send_offsets_to_transaction({place(topic): 1}, topic)
    assert kafka.committed(topic) == [b"after"]


def test_a_timeout_above_the_limit_of_the_brokers(kafka: Kafka, topic: str) -> None:
    """``init_transactions()`` may be repeated, as the brokers' limit can be raised."""
    with kafka.producer(transaction_timeout_ms=2_000_000, transactional_id=topic) as producer:
        for call in (*[producer.init_transactions] * 2, producer.transaction().__enter__):
            with pytest.raises(TransactionError, match="INVALID_TRANSACTION_TIMEOUT") as raised:
                call()
            assert raised.value.code == 50
            assert "transaction_timeout_ms is above" in str(raised.value)
            assert "transaction.max.timeout.ms" in str(raised.value)
            assert not raised.value.fatal
            assert not raised.value.abortable
        with pytest.raises(
            TransactionStateError, match=r"n\(\): init_transactions\(\) failed: .*; call it again$"
        ) as refused:
            producer.begin_transaction()
        assert isinstance(refused.value.__cause__, TransactionError)
    with kafka.producer(transactional_id=topic) as other, other.transaction():
        other.send(topic, b"x", partition=0)
    assert kafka.committed(topic) == [b"x"]


@pytest.mark.parametrize(
    "timeout", ["1", float("nan"), [], 10**400], ids=lambda each: f"{each!r:.5}"
)
def test_a_timeout_that_is_none(scripted: ScriptedCluster, timeout: Any) -> None:
    with producer_of(scripted) as producer:
        calls: list[Callable[[], Any]] = [
            lambda: producer.init_transactions(timeout),
            lambda: producer.commit_transaction(timeout),
            lambda: producer.abort_transaction(timeout),
            lambda: producer.prepare_transaction(timeout),
            lambda: producer.send_offsets_to_transaction({place("t"): 1}, "g", timeout=timeout),
        ]
        for prepare in (lambda: None, producer.init_transactions, producer.begin_transaction):
            prepare()
            for call in calls:
                with pytest.raises((TypeError, ValueError), match="timeout must be a number"):
                    call()
        send_and_commit(producer)
    assert values(scripted) == [b"value"]
