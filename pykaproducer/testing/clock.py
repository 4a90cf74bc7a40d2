"""A clock that a test controls."""

from __future__ import annotations

import contextlib
import itertools
import selectors
import threading
from collections.abc import Callable, Iterator
from typing import Any

from pykaproducer._util.clock import Clock, Waitable, WakeEvent

#: Interval between checks of the time while waiting for a raw lock (real seconds). A thread cannot
#: wait for a lock and for something else at the same time.
_LOOK = 0.005


class FakeClock(Clock):
    """A clock that stands still until :meth:`jump`, to be used by a producer in a test.

    Waiting threads are really blocked. A jump wakes exactly those whose deadline it reaches. A
    thread that begins to wait at the same moment either sees the new time or is woken:

    1. The thread registers its deadline and how to wake it, under the clock's lock.
    2. It checks the time, and waits if the deadline has not been reached.

    A jump sets the time and selects the threads to wake under the same lock. If it occurs before
    step 1, step 2 sees the new time. If it occurs later, the thread is selected, and is woken even
    between step 2 and the wait, because the wake-up event stays set, or the wake-up stays in the
    selector's socket.

    The library's deadlines are counted from ``send()``, so a test may jump immediately, whatever
    the threads have done so far. If a wait is counted from an action of a thread (a backoff),
    :meth:`jump_to_next` waits until the thread has begun it.
    """

    is_real = False

    def __init__(self, monotonic: float = 1_000.0, time: float = 1_700_000_000.0) -> None:
        # Guards all fields below; notified when a thread begins to wait.
        self._changed = threading.Condition()
        self._now = monotonic
        self._epoch = time - monotonic
        self._waiting: dict[int, tuple[float, Callable[[], None]]] = {}
        self._tickets = itertools.count()

    # For tests ----------------------------------------------------------------------------------

    def jump(self, seconds: float) -> None:
        """Advance the time by *seconds*."""
        if seconds < 0:
            raise ValueError(f"cannot go back in time: jump({seconds})")
        with self._changed:
            self._move_to(self._now + seconds)

    def next_deadline(self) -> float | None:
        """Return the earliest deadline for which a thread currently waits, or None."""
        with self._changed:
            return self._earliest()

    def jump_to_next(self) -> float:
        """Wait until a thread waits for a deadline; jump to the earliest. Return the distance."""
        with self._changed:
            while (deadline := self._earliest()) is None:
                self._changed.wait()
            seconds = max(0.0, deadline - self._now)
            self._move_to(max(deadline, self._now))
            return seconds

    def _earliest(self) -> float | None:
        return min((deadline for deadline, _ in self._waiting.values()), default=None)

    def _move_to(self, now: float) -> None:
        self._now = now
        # Each waiter is woken once; it registers again for the next wait.
        due = [ticket for ticket, (deadline, _) in self._waiting.items() if deadline <= now]
        for wake in [self._waiting.pop(ticket)[1] for ticket in due]:
            wake()

    # For the library ----------------------------------------------------------------------------

    def monotonic(self) -> float:
        return self._now

    def time(self) -> float:
        return self._epoch + self._now

    def thread_time(self) -> float:
        return 0.0  # work takes no time

    def wait(self, event: WakeEvent, deadline: float | None) -> bool:
        if deadline is None:
            return event.wait()
        # A jump sets the event although no item has arrived, and it may stay set for the next
        # wait. This is harmless, because a woken thread checks its queue and the time.
        with self._waits(deadline, event.set):
            return event.wait(0) if self._now >= deadline else event.wait()

    def acquire(self, lock: Waitable, deadline: float | None) -> bool:
        if deadline is None:
            return lock.acquire()
        with self._waits(deadline, _no_wake_up):
            while not lock.acquire(timeout=_LOOK):
                if self._now >= deadline:
                    # The lock may have been released since the last attempt.
                    return lock.acquire(blocking=False)
        return True

    def select(
        self,
        selector: selectors.BaseSelector,
        deadline: float | None,
        wake: Callable[[], None],
    ) -> list[tuple[selectors.SelectorKey, int]]:
        if deadline is None:
            return selector.select()
        with self._waits(deadline, wake):
            return selector.select(0 if self._now >= deadline else None)

    @contextlib.contextmanager
    def _waits(self, deadline: float, wake: Callable[[], None]) -> Iterator[None]:
        """Within the block, arrange for *wake* to be called when *deadline* is reached."""
        ticket = next(self._tickets)
        with self._changed:
            if deadline > self._now:
                self._waiting[ticket] = deadline, wake
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._waiting.pop(ticket, None)

    def __reduce__(self) -> Any:
        raise TypeError("a FakeClock cannot be pickled: a copy would not follow its jumps")


def _no_wake_up() -> None:
    """Do nothing: for waiters that check the time by polling."""
