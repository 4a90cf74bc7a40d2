"""Barriers: those of a flush, and those that are met when all rows have their outcome."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

from pykaproducer._kernel import Chunk, Slice
from pykaproducer._pipeline.dispatcher_items import FailAll, FlushMark
from pykaproducer._pipeline.incomplete import FlushBarrier, IncompleteChunks
from pykaproducer._pipeline.transaction_rows import TransactionRows
from pykaproducer.testing import FakeClock
from tests._support.no_memory import call_without_memory, needs_hook
from tests.kernel.helper import TOPIC, Door, split


class Rows:
    """Chunks of one topic with two rows each, in two partitions."""

    def __init__(self) -> None:
        self.door = Door()
        self.incomplete = IncompleteChunks(FakeClock())
        self.met: list[str] = []

    def chunk(self) -> tuple[Chunk, list[Slice]]:
        for partition in (0, 1):
            self.door.send(TOPIC, b"value", partition=partition)
        chunk = self.door.chunk()
        self.incomplete.enter(chunk)
        return chunk, [part for _, part in sorted(split(chunk, 2).items())]

    def barrier(self, name: str, *, settled_only: bool) -> FlushBarrier:
        barrier = FlushBarrier(lambda: self.met.append(name), settled_only=settled_only)
        self.incomplete.arm(barrier)
        return barrier

    def settle(self, part: Slice) -> Slice:
        """Settle *part* as the stages do, and let its callback wait."""
        settled = part.deliver(0)
        assert settled is not None
        if self.incomplete.watches_outcomes and part.chunk.is_settled:
            self.incomplete.settled(part.chunk)
        return settled

    def report(self, settled: Slice) -> None:
        if settled.finish():
            self.incomplete.leave(settled.chunk)


@pytest.fixture
def rows() -> Rows:
    return Rows()


def test_outcomes_suffice_for_one_kind_of_barrier(rows: Rows) -> None:
    _, parts = rows.chunk()
    kept = rows.barrier("flush", settled_only=False), rows.barrier("outcomes", settled_only=True)
    first, second = rows.settle(parts[0]), rows.settle(parts[1])
    assert rows.met == ["outcomes"]
    rows.report(first)
    rows.report(second)
    assert rows.met == ["outcomes", "flush"]
    assert all(not barrier.pending for barrier in kept)


def test_nothing_is_watched_unless_a_barrier_asks_for_it(rows: Rows) -> None:
    _, parts = rows.chunk()
    assert not rows.incomplete.watches_outcomes
    flush = rows.barrier("flush", settled_only=False)
    assert not rows.incomplete.watches_outcomes
    outcomes = rows.barrier("outcomes", settled_only=True)
    assert rows.incomplete.watches_outcomes
    for part in parts:
        rows.settle(part)
    assert not rows.incomplete.watches_outcomes
    del flush, outcomes


def test_rows_that_are_settled_before_it_is_armed(rows: Rows) -> None:
    """Also if their callbacks have not run."""
    _, parts = rows.chunk()
    for part in parts:
        rows.settle(part)
    rows.barrier("outcomes", settled_only=True)
    assert rows.met == ["outcomes"]
    assert not rows.incomplete.watches_outcomes


def test_later_rows_are_not_waited_for(rows: Rows) -> None:
    _, parts = rows.chunk()
    kept = rows.barrier("outcomes", settled_only=True)
    rows.chunk()
    for part in parts:
        rows.settle(part)
    assert rows.met == ["outcomes"]
    assert not kept.pending


def test_a_chunk_that_is_abandoned_is_not_waited_for(rows: Rows) -> None:
    """A stage has crashed."""
    chunk, _ = rows.chunk()
    kept = rows.barrier("outcomes", settled_only=True), rows.barrier("flush", settled_only=False)
    rows.incomplete.abandon([chunk])
    assert sorted(rows.met) == ["flush", "outcomes"]
    assert not any(barrier.pending for barrier in kept)


def test_a_barrier_that_nobody_holds_is_forgotten(rows: Rows) -> None:
    _, parts = rows.chunk()
    rows.barrier("outcomes", settled_only=True)
    for part in parts:
        rows.settle(part)
    assert rows.met == []


@pytest.mark.parametrize("arms", [True, False])
def test_barriers_that_end_while_another_thread_looks_at_them(rows: Rows, arms: bool) -> None:
    """A stage ends them without a lock, and the thread that waited drops them."""
    barriers = rows.incomplete.barriers
    rows.chunk()

    class Ended:
        """A reference to a barrier that ends while it is read."""

        def __call__(self) -> None:
            barriers.pop(-1, None)

    kept = rows.barrier("first", settled_only=True)
    barriers[-1] = Ended()  # type: ignore[assignment]
    if arms:
        rows.incomplete.arm(FlushBarrier())
    else:
        rows.incomplete._watch_outcomes()
    assert id(kept) in barriers
    assert -1 not in barriers


# The rows of a transaction ------------------------------------------------------------------------


class Stage:
    """Takes the items of another stage."""

    def __init__(self) -> None:
        self.items: list[Any] = []

    def put(self, item: Any) -> None:
        self.items.append(item)

    put_now = put


def test_barriers_of_a_transaction_are_gone_when_they_are_met(rows: Rows) -> None:
    """While there is one, messages do not linger."""
    barriers: weakref.WeakValueDictionary[int, FlushBarrier] = weakref.WeakValueDictionary()
    dispatcher, retry = Stage(), Stage()
    watched: Any = TransactionRows(dispatcher, lambda: retry, barriers, lambda: None)  # type: ignore[arg-type,return-value]
    gc.collect()
    gc.disable()
    try:
        for watch in (watched.watch, watched.watch_reports):
            _, parts = rows.chunk()
            watch(lambda: rows.met.append("met"))
            assert len(barriers) == 1
            mark = dispatcher.items.pop()
            assert isinstance(mark, FlushMark)
            rows.incomplete.arm(mark.barrier)
            del mark
            for part in parts:
                rows.report(rows.settle(part))
            assert rows.met.pop() == "met"
            assert len(barriers) == 0
    finally:
        gc.enable()


def test_when_rows_are_failed_nothing_waits_for_them(rows: Rows) -> None:
    barriers: weakref.WeakValueDictionary[int, FlushBarrier] = weakref.WeakValueDictionary()
    dispatcher, retry = Stage(), Stage()
    watched: Any = TransactionRows(dispatcher, lambda: retry, barriers, lambda: None)  # type: ignore[arg-type,return-value]
    watched.watch(lambda: rows.met.append("settled"))
    watched.watch_reports(lambda: rows.met.append("reported"))
    watched.fail(None, lambda: rows.met.append("failed"))
    item = dispatcher.items.pop()
    assert isinstance(item, FailAll)
    dispatcher.items.clear()
    assert len(barriers) == 0
    item.done()
    assert rows.met == ["failed"]
    assert len(retry.items) == 1


@needs_hook
@pytest.mark.parametrize("settled_only", [False, True])
def test_a_barrier_is_met_without_memory(rows: Rows, settled_only: bool) -> None:
    """Each allocation of the last step is refused in turn: it waits for memory."""
    for number in range(25):
        _, parts = rows.chunk()
        kept = rows.barrier("met", settled_only=settled_only)
        reported = [rows.settle(part) for part in parts[:1]]
        last = parts[1].deliver(0)
        assert last is not None
        rows.report(reported[0])
        last.finish()
        leave = rows.incomplete.settled if settled_only else rows.incomplete.leave
        call_without_memory(number, leave, last.chunk)
        leave(last.chunk)  # if it was refused before the function began
        assert kept.done.acquire(blocking=False)
        assert not rows.incomplete.watches_outcomes
        assert rows.met == ["met"] * (number + 1)


def test_a_notification_without_memory_is_repeated(rows: Rows) -> None:
    _, parts = rows.chunk()
    met: list[str] = []

    def notify() -> None:
        met.append("met")
        if len(met) == 1:
            raise MemoryError

    kept = FlushBarrier(notify)
    rows.incomplete.arm(kept)
    for part in parts:
        rows.report(rows.settle(part))
    assert met == ["met", "met"]
    assert kept.done.acquire(blocking=False)
