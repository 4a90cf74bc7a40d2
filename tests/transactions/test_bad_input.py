"""Wrong arguments, and what only the brokers can refuse: nothing is left half done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pykaproducer import (
    TopicPartition,
)
from pykaproducer.testing import ScriptedCluster
from pykaproducer.transaction_control import CommittedOffset
from tests.transactions.helper import Kafka
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
