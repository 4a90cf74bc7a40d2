"""Handles, functions that wait for a row, and the memory kept for messages not accepted."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import pykaproducer._kernel as _kernel
from pykaproducer._kernel import Chunk, Delivery, Slice, TopicSlot
from tests._support.no_memory import call_without_memory, needs_hook

from .helper import TOPIC, Door, NoSpaceError, deliver, fail, report, some


def rows(door: Door, *values: bytes) -> tuple[list[Slice], list[Delivery]]:
    """Return a slice for each row of one chunk, and the handles."""
    handles = [door.send(TOPIC, value) for value in values]
    chunk = door.chunk()
    return [chunk.pick([row], 0) for row in range(len(values))], handles


@pytest.mark.parametrize("kind", [Delivery, Chunk, Slice, TopicSlot])
def test_one_that_nothing_is_behind_cannot_be_made(kind: Any) -> None:
    for make in (lambda: kind.__new__(kind), lambda: object.__new__(kind), kind):
        with pytest.raises(TypeError):
            make()


def test_each_caller_gets_an_error_of_its_own() -> None:
    door = Door()
    told: list[Any] = []
    handles = [door.send(TOPIC, b"v", on_delivery=lambda e, _: told.append(e)) for _ in range(2)]
    cause = OSError(5, "the disk")
    stored = LookupError("never")
    stored.__cause__ = cause
    stored.add_note("seen by all")
    report(door.chunk().whole().fail(stored, TimeoutError()))
    found = [*told, *(handle.error for handle in handles)]
    found += [handle.peek_failure() for handle in handles]
    assert len({id(error) for error in [stored, *found]}) == 7
    for error in found:
        assert repr(error) == repr(stored)
        assert repr(error.__cause__) == repr(cause)
        assert error.__cause__ is not cause
        assert error.__notes__ == ["seen by all"]
        error.add_note("mine")


def test_those_who_wait_for_other_rows_are_not_waked() -> None:
    """Each slice wakes its own waiters: the total cost is proportional to the chunk's rows."""
    (a, b, c), handles = rows(Door(), b"a", b"b", b"c")
    locks = [threading.Lock() for _ in handles]
    for handle, lock in zip(handles, locks, strict=True):
        lock.acquire()
        assert handle.watch(lock)
    settled = some(a.deliver(0, wake=False))  # its waiters are woken later
    b.deliver(1)
    assert [lock.locked() for lock in locks] == [True, False, True]
    settled.wake_waiters()
    assert [lock.locked() for lock in locks] == [False, False, True]
    c.chunk.whole().fail(LookupError(), TimeoutError())
    assert [lock.locked() for lock in locks] == [False, False, False]
    assert not handles[0].watch(locks[0])


def test_a_waiter_that_raises_does_not_let_others_wait() -> None:
    class Raises:
        def release(self) -> None:
            raise LookupError

    (part,), (handle,) = rows(Door(), b"v")
    lock = threading.Lock()
    lock.acquire()
    for each in (Raises(), lock):
        handle.unwatch(each)  # it does not wait yet
        assert handle.watch(each)
    with pytest.raises(LookupError):
        part.deliver(0)
    assert not lock.locked()


# Functions that are added while the row is settled ----------------------------------------------


@pytest.fixture
def in_a_finalizer() -> Iterator[Callable[[Callable[[], object]], None]]:
    """Run a function in a finalizer, at the next object that the kernel makes."""

    class Finalizer:
        def __init__(self, work: Callable[[], object]) -> None:
            self.work, self.circle = work, self

        def __del__(self) -> None:
            self.work()

    def arm(work: Callable[[], object]) -> None:
        gc.collect()
        gc.disable()
        Finalizer(work)
        gc.set_threshold(1, 1, 1)
        gc.enable()

    before = gc.get_threshold()
    yield arm
    gc.set_threshold(*before)
    gc.enable()


def test_a_function_for_a_row_that_has_its_outcome_leaves_nothing(
    in_a_finalizer: Callable[[Callable[[], object]], None],
) -> None:
    (a, b), handles = rows(Door(), b"a", b"b")
    in_a_finalizer(lambda: deliver(a))
    when_settled = handles[0].when_settled
    assert when_settled(lambda _: None) in (False, True)
    gc.collect()
    assert not handles[0].when_settled(lambda _: None)
    settled = some(b.deliver(1))
    assert not settled.wants_report


def test_a_function_is_not_compared(in_a_finalizer: Callable[[Callable[[], object]], None]) -> None:
    class Picky:
        def __init__(self) -> None:
            self.called = 0

        def __call__(self, delivery: Delivery) -> None:
            self.called += 1

        def __eq__(self, other: object) -> bool:
            raise AssertionError("compared")

        __hash__ = None  # type: ignore[assignment]

    (part,), (handle,) = rows(Door(), b"v")
    first, second = Picky(), Picky()
    assert handle.when_settled(first)
    settled: list[Slice | None] = []
    in_a_finalizer(lambda: settled.append(part.deliver(0)))
    # Where a finalizer runs in the middle of the call, the row is settled after the check.
    if not handle.when_settled(second):
        second(handle)
    gc.collect()
    report(settled[0])
    assert (first.called, second.called) == (1, 1)
    assert not handle.when_settled(first)


def test_what_the_log_raises_does_not_stop_the_other_callbacks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ignored: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda it: ignored.append(it.exc_value))
    door = Door()
    told: list[bytes | None] = []

    def raises(error: object, delivery: Delivery) -> None:
        told.append(delivery.value)
        raise ArithmeticError

    def cannot_log(callback: object, error: BaseException) -> None:
        raise KeyError("request_id")

    handles = [door.send(TOPIC, value, on_delivery=raises) for value in (b"a", b"b")]
    handles[1].when_settled(lambda it: raises(None, it))
    settled = some(door.chunk().whole().deliver(0))
    assert settled.report(cannot_log)
    assert told == [b"a", b"b", b"b"]
    assert [repr(error) for error in ignored] == ["KeyError('request_id')"] * 3
    assert door.budget.used == 0


def test_a_callback_that_raises_its_error_leaves_nothing_behind() -> None:
    class Request:
        pass

    door = Door()
    requests: list[Any] = []

    def raises(error: BaseException | None, delivery: Delivery) -> None:
        request = Request()
        requests.append(id(request))
        assert error is not None
        raise error

    handle = door.send(TOPIC, b"v", on_delivery=raises)
    settled = some(door.chunk().whole().fail(LookupError(), TimeoutError()))
    settled.report(lambda callback, error: None)
    gc.collect()
    assert requests
    assert not [it for it in gc.get_objects() if type(it) is Request]
    assert handle.failed()


# Topics and forks -------------------------------------------------------------------------------


def slots() -> int:
    gc.collect()
    return sum(type(found) is TopicSlot for found in gc.get_objects())


def test_names_of_refused_messages_are_not_kept() -> None:
    door = Door(limit=1000)
    door.send(TOPIC, b"v")
    before = slots()
    for number in range(100):
        with pytest.raises(TypeError):
            door.send(f"topic-{number}", 1.5)
        with pytest.raises(ValueError, match="between"):
            door.send(f"topic-{number}", b"v", partition=-1)
        block = _kernel.SentBlock()
        columns = [_kernel.columns_of([bytes(2000)])]
        with pytest.raises(ValueError, match="max_request_size"):
            door._send_block(block, f"topic-{number}", columns, None, None, ())
    assert slots() == before


def test_a_fork_in_a_serializer() -> None:
    """The child's message is separate even if the parent has a chunk open for the topic."""

    def forks(value: Any) -> bytes:
        if value == "fork":
            door.open()
        return b"%r" % value

    door = Door(serializers=(forks, forks))
    door.send(TOPIC, "the parent's")
    parents = door.budget
    handle = door.send(TOPIC, "fork")
    assert door.accepted == 1
    assert (len(handle.chunk), handle.row) == (1, 0)
    assert len(door.told) == 2  # one reported by the parent, one by the child
    (chunk,) = door._take_all()
    assert chunk is handle.chunk
    deliver(chunk.whole())
    assert door.budget.used == 0
    assert parents.used > 0


def test_a_fork_while_a_block_is_filled() -> None:
    class Forks(Door):
        forks = True

        def _check_topic(self, topic: object) -> None:
            super()._check_topic(topic)
            if self.accepted and self.forks:
                self.forks = False
                self.open()

    door = Forks()
    door.send(TOPIC, b"the parent's")
    block = _kernel.SentBlock()
    door._send_block(block, "others", [_kernel.columns_of([b"a", b"b"])], None, None, ())
    assert (block.accepted, door.accepted) == (2, 2)
    (chunk,) = door._take_all()
    assert [chunk.value(row) for row in range(2)] == [b"a", b"b"]
    fail(chunk.whole())
    assert block.failures() == 2
    assert door.budget.used == 0


def test_a_fork_behind_the_reservation_of_a_block() -> None:
    door = Door()
    door.send(TOPIC, b"the parent's")
    parents = door.budget
    before = parents.used
    times = iter([lambda: door.open()])

    class Forks(type(door.clock)):  # type: ignore[misc]
        def time(self) -> float:
            next(times, lambda: None)()
            return super().time()

    door.clock.__class__ = Forks
    block = _kernel.SentBlock()
    door._send_block(block, TOPIC, [_kernel.columns_of([b"a", b"b"])], None, None, ())
    assert (block.accepted, door.accepted, parents.used) == (2, 2, before)
    (chunk,) = door._take_all()
    assert [chunk.topic, len(chunk)] == [TOPIC, 2]


@needs_hook
@pytest.mark.parametrize("count", [1, 2])
def test_whichever_allocation_fails_a_large_block_has_the_rows_that_are_accepted(
    count: int,
) -> None:
    """Of a block larger than ``buffer_memory``, each piece is accepted or not."""
    columns = [_kernel.columns_of([bytes(100)] * 1000)]
    for allocation in range(150):
        door, block = Door(limit=100_000), _kernel.SentBlock()
        arguments = (block, TOPIC, columns, None, None, (NoSpaceError, MemoryError))
        call_without_memory(allocation, door._send_block, *arguments, count=count)
        assert block.accepted < 1000
        assert block.accepted == sum(len(segment.chunk) for segment in block.segments)
        assert block.accepted == sum(len(chunk) for chunk in door._take_all())


@needs_hook
@pytest.mark.parametrize("allocation", range(60))
def test_whichever_allocation_fails_a_block_is_accepted_or_not(allocation: int) -> None:
    door = Door()
    door.send(TOPIC, b"open")
    before = door.budget.used
    block = _kernel.SentBlock()
    columns = [_kernel.columns_of([b"a", b"b"])]
    call_without_memory(allocation, door._send_block, block, TOPIC, columns, None, None, ())
    assert block.accepted in {0, 2}
    assert door.accepted == 1 + block.accepted
    assert (door.budget.used > before) == bool(block.accepted)
    assert [len(chunk) for chunk in door._take_all()] == [1, 2][: 1 + bool(block.accepted)]
    assert len(block.segments) == bool(block.accepted)


def test_a_block_to_a_new_topic_is_in_progress_until_it_is_reported() -> None:
    """Otherwise flush() may return between the steps in which the dispatcher takes it."""
    door = Door()
    block = _kernel.SentBlock()
    door._send_block(block, "new", [_kernel.columns_of([b"a", b"b"])], None, None, ())
    assert not door._is_at_rest()
    chunk = door.chunk()
    assert not door._is_at_rest()
    deliver(chunk.whole())
    assert door._is_at_rest()
