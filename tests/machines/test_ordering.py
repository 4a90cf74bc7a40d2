"""The ordering machine against its specification: Sarama's page "Producer implementation"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from pykaproducer._machines.ordering import (
    FindPath,
    Forward,
    IllegalEventError,
    Ordering,
    SendChaser,
)


@dataclass(eq=False)
class Message:
    """A message that moves through the machine."""

    name: str
    level: int = 0
    nbytes: int = 1


class Partition:
    """A machine and the items sent down its path: names of messages, and ``chaser N``."""

    def __init__(self) -> None:
        self.machine = Ordering()
        self.path: list[str] = []
        self.asked = 0

    def send(self, *messages: Message) -> None:
        for message in messages:
            self._perform(self.machine.item(message))  # type: ignore[arg-type]

    def chaser(self, level: int) -> None:
        self._perform(self.machine.chaser(level))

    def path_found(self) -> None:
        self._perform(self.machine.path_found())

    def rest(self) -> None:
        self._perform(self.machine.rest())

    def _perform(self, effects: list[Any]) -> None:
        for effect in effects:
            match effect:
                case Forward(item):
                    self.path.append(item.name)
                case SendChaser(level):
                    self.path.append(f"chaser {level}")
                case FindPath():
                    self.asked += 1

    def taken(self) -> list[str]:
        path, self.path = self.path, []
        return path


def again(*messages: Message) -> tuple[Message, ...]:
    for message in messages:
        message.level += 1
    return messages


def made(*names: str) -> tuple[Message, ...]:
    return tuple(Message(name) for name in names)


def started(*messages: Message) -> Partition:
    partition = Partition()
    partition.send(*messages)
    assert partition.taken() == []
    partition.path_found()
    return partition


def test_normal_operation_passes_everything_on() -> None:
    partition = started(*made("1"))
    partition.send(*made("2", "3"))
    assert partition.taken() == ["1", "2", "3"]
    assert partition.machine.high_watermark == 0
    assert partition.asked == 1


def test_without_a_leader_messages_wait_in_order_and_it_is_asked_once() -> None:
    partition = Partition()
    partition.send(*made("1", "2", "3"))
    assert partition.taken() == []
    assert partition.asked == 1
    partition.path_found()
    assert partition.taken() == ["1", "2", "3"]


def test_one_failure_as_the_document_tells_it() -> None:
    one, two, three, four, five = messages = made("1", "2", "3", "4", "5")
    partition = started(*messages)
    partition.taken()
    # The first retried message sends a chaser down the old path, and waits for the new path.
    partition.send(*again(one))
    assert partition.taken() == ["chaser 1"]
    assert partition.machine.high_watermark == 1
    partition.path_found()
    partition.send(*again(two, three, four, five))
    six = Message("6")
    partition.send(six)  # new messages are buffered
    assert partition.taken() == ["1", "2", "3", "4", "5"]
    partition.chaser(1)
    assert partition.taken() == ["6"]
    assert partition.machine.high_watermark == 0


def test_the_watermark_may_rise_by_more_than_one() -> None:
    messages = made("1", "2")
    partition = started(*messages)
    partition.taken()
    partition.send(*again(*again(*messages)))
    assert partition.taken() == ["chaser 2"]
    partition.path_found()
    assert partition.taken() == ["1", "2"]
    late = Message("3", level=1)
    fresh = Message("4")
    partition.send(fresh, late)
    assert partition.taken() == []
    partition.chaser(2)
    # Level 1 was skipped: it expects no chaser, and its buffer is sent before that of level 0.
    assert partition.taken() == ["3", "4"]
    assert partition.machine.high_watermark == 0


def two_chasers() -> tuple[Partition, Message, Message]:
    """Return a partition with 5 and 6 in the old worker's inbox as the new one fails 1 to 4."""
    one, two, three, four, five, six = messages = made("1", "2", "3", "4", "5", "6")
    partition = started(*messages)
    partition.send(*again(one))
    partition.path_found()
    partition.send(*again(two, three, four))
    partition.taken()
    partition.send(*again(one, two, three, four))
    assert partition.taken() == ["chaser 2"]
    partition.path_found()
    assert partition.taken() == ["1", "2", "3", "4"]
    partition.send(Message("7"))
    return partition, *again(five, six)


def test_two_chasers_the_older_comes_first() -> None:
    partition, five, six = two_chasers()
    partition.send(five, six)
    partition.chaser(1)
    assert partition.taken() == []
    partition.chaser(2)
    assert partition.taken() == ["5", "6", "7"]
    assert partition.machine.high_watermark == 0


def test_two_chasers_the_younger_comes_first() -> None:
    partition, five, six = two_chasers()
    partition.chaser(2)
    assert partition.machine.high_watermark == 1
    partition.send(five, six)
    assert partition.taken() == ["5", "6"]
    partition.chaser(1)
    assert partition.taken() == ["7"]
    assert partition.machine.high_watermark == 0


def test_a_flush_without_a_leader_waits_for_one() -> None:
    one, two = made("1", "2")
    partition = started(one)
    partition.taken()
    partition.send(*again(one))
    partition.taken()
    partition.send(two)
    partition.chaser(1)
    assert partition.taken() == []
    partition.path_found()
    assert partition.taken() == ["1", "2"]


def test_a_failure_that_cannot_have_happened_raises_and_changes_nothing() -> None:
    one, two = made("1", "2")
    partition = started(one, two)
    partition.taken()
    partition.send(*again(two))
    with pytest.raises(IllegalEventError, match="level 2"):
        partition.send(*again(*again(one)))
    assert partition.machine.high_watermark == 1
    partition.path_found()
    partition.chaser(1)
    assert partition.taken() == ["chaser 1", "2"]


def test_a_path_that_is_let_go_to_rest_hands_back_what_was_retried() -> None:
    """A batch whose messages have expired may still be in the path: a younger one needs it."""
    (needed,) = again(*made("needed"))
    partition = started(*made("1"))
    partition.send(needed)
    partition.path_found()
    partition.chaser(1)
    assert partition.machine.high_watermark == 0
    partition.taken()
    partition.rest()
    (chaser,) = partition.taken()
    partition.send(*again(needed))  # the path hands it back before the chaser
    partition.path_found()
    partition.chaser(int(chaser.removeprefix("chaser ")))
    assert partition.taken() == ["needed"]
    assert partition.machine.high_watermark == 0
    assert not partition.machine.is_at_rest


def test_a_partition_that_looks_for_a_path_is_not_at_rest() -> None:
    """The view that it waits for would give it a path that is never released."""
    partition = Partition()
    settled = Message("settled")
    partition.send(settled)
    partition.machine._waiting.take_all()
    assert not partition.machine.is_at_rest
    partition.machine.give_up()
    assert partition.machine.is_at_rest
