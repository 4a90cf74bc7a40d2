"""Which slices of a chunk go directly into the buffers of their partitions' leaders."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

import pytest

from pykaproducer._kernel import BorrowedPaths, PartitionPath, Slice
from pykaproducer._machines.batch import Chaser
from pykaproducer._machines.ordering import Ordering
from pykaproducer._machines.partition_buffer import PartitionBuffer
from pykaproducer._machines.sequencing import Sequencer

from .helper import TOPIC, Door, split


class Partition:
    """The parts of a PartitionWorker that are looked at. It has a path."""

    def __init__(self, number: int, *, inbox: deque[Any] | None = None) -> None:
        self.inbox: deque[Any] = deque() if inbox is None else inbox
        self.running = threading.Lock()
        self.ordering = Ordering()
        self.path = PartitionPath(self.inbox, self.running, self.ordering)
        self.path.broker = f"leader of {number % 2}"
        self.path.buffer = PartitionBuffer(TOPIC, number, Sequencer())


def slices(count: int) -> list[Slice]:
    """Return a slice of one message for each of *count* partitions."""
    door = Door()
    for partition in range(count):
        door.send(TOPIC, b"new", partition=partition)
    return [part for _, part in sorted(split(door.chunk(), count).items())]


def borrowed(partitions: list[Partition], parts: list[Slice]) -> BorrowedPaths:
    return BorrowedPaths({n: each.path for n, each in enumerate(partitions)}, parts)


def test_slices_are_grouped_by_leader_until_the_stages_are_given_back() -> None:
    partitions = [Partition(number) for number in range(4)]
    parts = slices(4)
    partitions[3].path.when_at_rest = lambda: None

    paths = borrowed(partitions, parts)

    assert paths.others == []
    assert paths.new == {
        "leader of 0": [(partitions[n].path.buffer, parts[n]) for n in (0, 2)],
        "leader of 1": [(partitions[n].path.buffer, parts[n]) for n in (1, 3)],
    }
    assert all(each.running.locked() for each in partitions)
    assert partitions[3].path.when_at_rest is None  # a message has come: it is not at rest
    paths.give_back()
    paths.give_back()
    assert not any(each.running.locked() for each in partitions)


def _without_a_path(partition: Partition) -> None:
    partition.path.broker = partition.path.buffer = None


def _while_messages_are_retried(partition: Partition) -> None:
    partition.ordering.high_watermark = 1


def _with_an_item_before_it(partition: Partition) -> None:
    partition.inbox.append(Chaser(TOPIC, 1, 1))


def _while_another_thread_runs_it(partition: Partition) -> None:
    partition.running.acquire()


@pytest.mark.parametrize(
    "change",
    [
        _without_a_path,
        _while_messages_are_retried,
        _with_an_item_before_it,
        _while_another_thread_runs_it,
    ],
)
def test_a_partition_in_another_state_gets_its_slice_itself(change: Any) -> None:
    partitions = [Partition(number) for number in range(3)]
    change(partitions[1])
    is_run = partitions[1].running.locked()
    parts = slices(3)

    paths = borrowed(partitions, parts)

    assert paths.others == [parts[1]]
    assert [part for _, part in paths.new["leader of 0"]] == [parts[0], parts[2]]
    assert partitions[1].running.locked() == is_run
    paths.give_back()
    assert [each.running.locked() for each in partitions] == [False, is_run, False]


def test_a_partition_without_a_stage_gets_its_slice_itself() -> None:
    parts = slices(2)
    paths = borrowed([Partition(0)], parts)
    assert paths.others == [parts[1]]
    paths.give_back()


class _FilledLater(deque[Any]):
    """An inbox into which an item is put just before the stage's lock is taken."""

    looks = 0

    def __bool__(self) -> bool:
        self.looks += 1
        return self.looks > 1


def test_an_item_put_in_the_meantime_goes_first() -> None:
    partition = Partition(0, inbox=_FilledLater())
    parts = slices(1)
    paths = borrowed([partition], parts)
    assert (paths.others, paths.new) == (parts, {})
    assert not partition.running.locked()


def test_after_an_error_every_stage_is_given_back_once() -> None:
    """A lock that is given back twice would be free while another thread runs the stage."""
    partitions = [Partition(number) for number in range(2)]
    parts: list[Any] = [*slices(2), "not a slice"]
    with pytest.raises(TypeError):
        borrowed(partitions, parts)
    assert not any(each.running.locked() for each in partitions)
