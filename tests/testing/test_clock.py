"""Time that a test moves by hand."""

from __future__ import annotations

import contextlib
import pickle
import queue
import selectors
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from pykaproducer._net.wakeup import Wakeup
from pykaproducer.testing import FakeClock


class Task(threading.Thread):
    """A thread that ends with a result."""

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__()
        self.work = work
        self.start()

    def run(self) -> None:
        try:
            self.outcome: Any = self.work()
        except queue.Empty:
            self.outcome = "empty"

    def result(self) -> Any:
        self.join()
        return self.outcome


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
    with pytest.raises(ValueError, match="does not go back"):
        clock.jump(-1)


def test_two_clocks_are_alike() -> None:
    assert FakeClock().monotonic() == FakeClock().monotonic()
    assert FakeClock().time() == FakeClock().time()


def test_it_cannot_be_pickled(clock: FakeClock) -> None:
    with pytest.raises(TypeError, match="pickled"):
        pickle.dumps(clock)


# Each way of waiting ----------------------------------------------------------------------------


def test_an_item_that_is_there_is_taken_whatever_the_time(clock: FakeClock) -> None:
    inbox: queue.SimpleQueue[str] = queue.SimpleQueue()
    for deadline in (None, 0.0, 5000.0):
        inbox.put("item")
        assert clock.get(inbox, deadline) == "item"


def test_an_inbox_is_empty_when_the_deadline_has_passed(clock: FakeClock) -> None:
    with pytest.raises(queue.Empty):
        clock.get(queue.SimpleQueue(), clock.monotonic())


def test_an_item_ends_the_wait(clock: FakeClock) -> None:
    inbox: queue.SimpleQueue[str] = queue.SimpleQueue()
    for deadline in (None, 5000.0):
        task = Task(partial(clock.get, inbox, deadline))
        inbox.put("item")
        assert task.result() == "item"
    assert clock.next_deadline() is None


def test_a_jump_ends_the_waits_whose_deadline_has_come(clock: FakeClock) -> None:
    inboxes = [queue.SimpleQueue[str]() for _ in range(3)]
    deadlines = [1005.0, 1010.0, 1015.0]
    tasks = [
        Task(partial(clock.get, inbox, deadline))
        for inbox, deadline in zip(inboxes, deadlines, strict=True)
    ]
    arrived(clock, 3)
    clock.jump(10)
    assert [task.result() for task in tasks[:2]] == ["empty", "empty"]
    assert clock.next_deadline() == 1015.0
    inboxes[2].put("item")
    assert tasks[2].result() == "item"
    # Nothing is left behind in the inboxes.
    assert [inbox.qsize() for inbox in inboxes] == [0, 0, 0]


def test_a_jump_that_is_not_far_enough_changes_nothing(clock: FakeClock) -> None:
    inbox: queue.SimpleQueue[str] = queue.SimpleQueue()
    task = Task(lambda: clock.get(inbox, 1010.0))
    arrived(clock)
    clock.jump(9.9)
    assert clock.next_deadline() == 1010.0
    inbox.put("item")
    assert task.result() == "item"


def test_a_lock_is_waited_for(clock: FakeClock) -> None:
    lock = threading.Lock()
    lock.acquire()
    released = Task(lambda: clock.acquire(lock, 1010.0))
    arrived(clock)
    lock.release()
    assert released.result() is True
    late = Task(lambda: clock.acquire(lock, 1010.0))
    arrived(clock)
    clock.jump(10)
    assert late.result() is False
    assert clock.acquire(lock, 1.0) is False
    lock.release()
    assert clock.acquire(lock, 1.0) is True


def test_a_selector_is_woken(clock: FakeClock) -> None:
    wakeup = Wakeup()
    with selectors.DefaultSelector() as selector:
        selector.register(wakeup, selectors.EVENT_READ)
        assert clock.select(selector, clock.monotonic(), wakeup.poke) == []
        task = Task(lambda: clock.select(selector, 1010.0, wakeup.poke))
        arrived(clock)
        clock.jump(10)
        ((key, _),) = task.result()
        assert key.fileobj is wakeup
    wakeup.close()


# Races --------------------------------------------------------------------------------------------


def test_a_jump_before_the_wait_begins_is_not_missed(clock: FakeClock) -> None:
    class Late(FakeClock):
        """Time jumps between the two steps of a waiter: it has told its deadline, and looks."""

        @contextlib.contextmanager
        def _waits(self, deadline: float, wake: Callable[[], None]) -> Iterator[None]:
            with super()._waits(deadline, wake):
                self.jump(1000)
                yield

    late = Late()
    inbox: queue.SimpleQueue[str] = queue.SimpleQueue()
    with pytest.raises(queue.Empty):
        late.get(inbox, 1010.0)
    assert inbox.empty()


def test_an_item_and_the_deadline_at_the_same_time(clock: FakeClock) -> None:
    class Both(queue.SimpleQueue[str]):
        """The deadline comes when the waiter has just taken an item; others are behind it."""

        def get(self, block: bool = True, timeout: float | None = None) -> str:
            item = super().get(block, timeout)
            self.put("second")
            clock.jump(10)
            self.put("third")
            return item

    inbox = Both()
    inbox.put("first")
    assert clock.get(inbox, 1010.0) == "first"
    # What woke it is gone, and what others put is there.
    assert [inbox.get_nowait() for _ in range(inbox.qsize())] == ["second", "third"]


def test_waiters_and_jumps_at_the_same_time(clock: FakeClock) -> None:
    """None of many waits is missed by jumps that come at any moment."""
    rounds = 50

    def wait() -> int:
        inbox: queue.SimpleQueue[str] = queue.SimpleQueue()
        for _ in range(rounds):
            with pytest.raises(queue.Empty):
                clock.get(inbox, clock.monotonic() + 1)
        return rounds

    tasks = [Task(wait) for _ in range(4)]
    while any(task.is_alive() for task in tasks):
        clock.jump(1)
    assert [task.result() for task in tasks] == [rounds] * 4
    assert clock.next_deadline() is None


# Jumping to what is waited for --------------------------------------------------------------------


def test_jump_to_next_waits_for_a_waiter(clock: FakeClock) -> None:
    jumped = Task(clock.jump_to_next)
    task = Task(lambda: clock.get(queue.SimpleQueue(), 1007.0))
    assert task.result() == "empty"
    assert jumped.result() == 7.0
    assert clock.monotonic() == 1007.0


def test_jump_to_next_takes_the_earliest(clock: FakeClock) -> None:
    tasks = [
        Task(partial(clock.get, queue.SimpleQueue(), deadline))
        for deadline in (1030.0, 1010.0, 1020.0)
    ]
    arrived(clock, 3)
    assert [clock.jump_to_next() for _ in range(3)] == [10.0, 10.0, 10.0]
    assert [task.result() for task in tasks] == ["empty"] * 3
