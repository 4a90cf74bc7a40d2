"""A clock that a test moves by hand."""

from __future__ import annotations

import contextlib
import itertools
import selectors
import threading
from collections.abc import Callable, Iterator
from typing import Any

from pykaproducer._clock import Bell, Clock, Waitable

#: How often a wait for a raw lock looks at the time (real seconds): nothing can wait for a lock
#: and for something else at once.
_LOOK = 0.005


class FakeClock(Clock):
    """Stands still until :meth:`jump`; give it to a producer in place of the real clock.

    Threads that wait are really blocked. A jump wakes those whose deadline has come by it, and no
    others; a thread that begins to wait at the same moment either finds the new time or is woken:

    1. it tells the clock its deadline and how to wake it, under the clock's lock;
    2. it looks at the time, and waits if the deadline has not come.

    A jump sets the time and picks whom to wake under the same lock. If it comes before step 1, step
    2 sees the new time; if after, the thread is among those picked, and the wake-up reaches it
    also between step 2 and the wait: the bell stays rung, or it lies in the selector's socket.

    The deadlines of the library are points in time counted from ``send()``, so a test may jump at
    once, before the threads have got anywhere. Where a wait is counted from what a thread does (a
    backoff), :meth:`jump_to_next` waits for the thread to get there.
    """

    is_real = False

    def __init__(self, monotonic: float = 1_000.0, time: float = 1_700_000_000.0) -> None:
        # Guards all that follows; notified when somebody begins to wait.
        self._changed = threading.Condition()
        self._now = monotonic
        self._epoch = time - monotonic
        self._waiting: dict[int, tuple[float, Callable[[], None]]] = {}
        self._tickets = itertools.count()

    # What a test does ---------------------------------------------------------------------------

    def jump(self, seconds: float) -> None:
        """Let *seconds* pass."""
        if seconds < 0:
            raise ValueError(f"time does not go back: jump({seconds})")
        with self._changed:
            self._move_to(self._now + seconds)

    def next_deadline(self) -> float | None:
        """The earliest deadline that a thread waits for at this moment; None if none does."""
        with self._changed:
            return self._earliest()

    def jump_to_next(self) -> float:
        """Wait for a thread to wait for a deadline, and jump to the earliest; how far that was."""
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
        # A waiter is woken once: until it is here again it is awake.
        due = [ticket for ticket, (deadline, _) in self._waiting.items() if deadline <= now]
        for wake in [self._waiting.pop(ticket)[1] for ticket in due]:
            wake()

    # What the library does -----------------------------------------------------------------------

    def monotonic(self) -> float:
        return self._now

    def time(self) -> float:
        return self._epoch + self._now

    def thread_time(self) -> float:
        return 0.0  # no work takes time

    def hear(self, bell: Bell, deadline: float | None) -> bool:
        if deadline is None:
            return bell.heard()
        # What a jump rings may be heard as if somebody had come, and once more the next time:
        # whoever hears a bell looks at what has come and at the time.
        with self._waits(deadline, bell.ring):
            return bell.heard(0) if self._now >= deadline else bell.heard()

    def acquire(self, lock: Waitable, deadline: float | None) -> bool:
        if deadline is None:
            return lock.acquire()
        with self._waits(deadline, _nobody):
            while not lock.acquire(timeout=_LOOK):
                if self._now >= deadline:
                    # It may have been released since the last look.
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
        """Have *wake* called when the time comes to *deadline* meanwhile."""
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
        raise TypeError("a FakeClock cannot be pickled: time would stand still elsewhere")


def _nobody() -> None:
    """Wake a waiter that looks at the time by itself."""
