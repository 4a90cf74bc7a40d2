"""A clock that a test moves by hand."""

from __future__ import annotations

import contextlib
import pickle
import selectors
import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from pykaproducer._net.wakeup import Wakeup
from pykaproducer._util.clock import Clock, WakeEvent
from pykaproducer.testing import FakeClock
from tests._support.threads import Call


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def arrived(clock: FakeClock, count: int = 1) -> None:
    """Wait until *count* threads wait for the clock."""
    with clock._changed:
        clock._changed.wait_for(lambda: len(clock._waiting) == count)


def test_time_moves_only_by_jumps(clock: FakeClock) -> None:
    began = clock.monotonic(), clock.time()
    assert (clock.monotonic(), clock.time()) == began
    clock.jump(2.5)
    assert (clock.monotonic(), clock.time()) == (began[0] + 2.5, began[1] + 2.5)


def test_time_does_not_go_back(clock: FakeClock) -> None:
    with pytest.raises(ValueError, match="cannot go back"):
        clock.jump(-1)


def test_two_clocks_are_alike() -> None:
    assert FakeClock().monotonic() == FakeClock().monotonic()
    assert FakeClock().time() == FakeClock().time()


def test_it_cannot_be_pickled(clock: FakeClock) -> None:
    with pytest.raises(TypeError, match="pickled"):
        pickle.dumps(clock)


# Each way of waiting ----------------------------------------------------------------------------


@pytest.mark.parametrize("make_clock", [Clock, FakeClock])
def test_a_bell_that_is_rung_is_heard_whatever_the_time(make_clock: Callable[[], Clock]) -> None:
    clock, event = make_clock(), WakeEvent()
    for deadline in (None, 0.0, clock.monotonic() + 5000):
        event.set()
        assert clock.wait(event, deadline)
        assert not event.is_set


@pytest.mark.parametrize("make_clock", [Clock, FakeClock])
def test_a_bell_rung_often_is_heard_once(make_clock: Callable[[], Clock]) -> None:
    clock, event = make_clock(), WakeEvent()
    for _ in range(3):
        event.set()
    assert clock.wait(event, clock.monotonic())
    assert not clock.wait(event, clock.monotonic())


def test_a_deadline_that_is_very_near_ends_the_wait() -> None:
    """It may pass while the wait begins; a get() of queue.SimpleQueue then never ends."""
    clock = Clock()
    for near in (1e-9, 1e-7, 1e-6, 1e-5):
        for _ in range(5000):
            assert not clock.wait(WakeEvent(), clock.monotonic() + near)


def test_ringing_ends_the_wait(clock: FakeClock) -> None:
    event = WakeEvent()
    for deadline in (None, 5000.0):
        task = Call(partial(clock.wait, event, deadline))
        event.set()
        assert task.outcome() is True
    assert clock.next_deadline() is None


def test_a_jump_ends_the_waits_whose_deadline_has_come(clock: FakeClock) -> None:
    events = [WakeEvent() for _ in range(3)]
    deadlines = [1005.0, 1010.0, 1015.0]
    tasks = [
        Call(partial(clock.wait, event, deadline))
        for event, deadline in zip(events, deadlines, strict=True)
    ]
    arrived(clock, 3)
    clock.jump(10)
    for task in tasks[:2]:
        task.outcome()
    assert clock.next_deadline() == 1015.0
    events[2].set()
    assert tasks[2].outcome() is True


def test_a_jump_that_is_not_far_enough_changes_nothing(clock: FakeClock) -> None:
    event = WakeEvent()
    task = Call(lambda: clock.wait(event, 1010.0))
    arrived(clock)
    clock.jump(9.9)
    assert clock.next_deadline() == 1010.0
    event.set()
    assert task.outcome() is True


def test_a_lock_is_waited_for(clock: FakeClock) -> None:
    lock = threading.Lock()
    lock.acquire()
    released = Call(lambda: clock.acquire(lock, 1010.0))
    arrived(clock)
    lock.release()
    assert released.outcome() is True
    late = Call(lambda: clock.acquire(lock, 1010.0))
    arrived(clock)
    clock.jump(10)
    assert late.outcome() is False
    assert clock.acquire(lock, 1.0) is False
    lock.release()
    assert clock.acquire(lock, 1.0) is True


def test_a_selector_is_woken(clock: FakeClock) -> None:
    wakeup = Wakeup()
    with selectors.DefaultSelector() as selector:
        selector.register(wakeup, selectors.EVENT_READ)
        assert clock.select(selector, clock.monotonic(), wakeup.poke) == []
        task = Call(lambda: clock.select(selector, 1010.0, wakeup.poke))
        arrived(clock)
        clock.jump(10)
        ((key, _),) = task.outcome()
        assert key.fileobj is wakeup
    wakeup.close()


# Races --------------------------------------------------------------------------------------------


def test_a_jump_before_the_wait_begins_is_not_missed(clock: FakeClock) -> None:
    class Late(FakeClock):
        """A clock that jumps between a waiter's registration of its deadline and its check."""

        @contextlib.contextmanager
        def _waits(self, deadline: float, wake: Callable[[], None]) -> Iterator[None]:
            with super()._waits(deadline, wake):
                self.jump(1000)
                yield

    late = Late()
    late.wait(WakeEvent(), 1010.0)  # returns
    assert late.monotonic() >= 1010.0


def test_waiters_and_jumps_at_the_same_time(clock: FakeClock) -> None:
    """No wait misses a jump, whenever the jumps happen."""
    rounds = 50

    def wait() -> int:
        event = WakeEvent()
        for _ in range(rounds):
            deadline = clock.monotonic() + 1
            while clock.monotonic() < deadline:
                clock.wait(event, deadline)
        return rounds

    tasks = [Call(wait) for _ in range(4)]
    while any(task.is_alive() for task in tasks):
        clock.jump(1)
    assert [task.outcome() for task in tasks] == [rounds] * 4
    assert clock.next_deadline() is None


# Jumping to the next deadline ---------------------------------------------------------------------


def test_jump_to_next_waits_for_a_waiter(clock: FakeClock) -> None:
    jumped = Call(clock.jump_to_next)
    task = Call(lambda: clock.wait(WakeEvent(), 1007.0))
    task.outcome()
    assert jumped.outcome() == 7.0
    assert clock.monotonic() == 1007.0


def test_jump_to_next_takes_the_earliest(clock: FakeClock) -> None:
    tasks = [
        Call(partial(clock.wait, WakeEvent(), deadline)) for deadline in (1030.0, 1010.0, 1020.0)
    ]
    arrived(clock, 3)
    assert [clock.jump_to_next() for _ in range(3)] == [10.0, 10.0, 10.0]
    for task in tasks:
        task.outcome()
