"""Time, and every way of waiting for it, behind one object.

Nothing in the package calls :func:`time.sleep` or passes a timeout to a lock, a queue or a
selector by itself: it asks the clock with a *deadline* (a point on :meth:`Clock.monotonic`,
``None`` for "no deadline"). A test puts :class:`pykaproducer.testing.FakeClock` in its place
and moves the time by hand, so no test sleeps.
"""

from __future__ import annotations

import queue
import selectors
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

T = TypeVar("T")

#: The longest single wait that the platform's lock and select calls take (seconds).
#: A longer deadline is waited for in several pieces.
_LONGEST_WAIT = 86_400.0


class Waitable(Protocol):
    """What :meth:`Clock.acquire` can wait for: a raw lock."""

    def acquire(self, blocking: bool = ..., timeout: float = ...) -> bool: ...


class Clock:
    """The real time of this machine."""

    #: The kernel reads the same clock by itself, in C, when this is true.
    is_real = True

    def monotonic(self) -> float:
        """Seconds since some fixed moment; deadlines are points on this line."""
        return time.monotonic()

    def time(self) -> float:
        """Seconds since the epoch: what a message's timestamp is made of."""
        return time.time()

    def get(self, inbox: queue.SimpleQueue[T], deadline: float | None) -> T:
        """Take the next item of *inbox*; :class:`queue.Empty` when *deadline* has come."""
        if deadline is None:
            return inbox.get()
        left = deadline - time.monotonic()
        if left <= 0:
            return inbox.get_nowait()
        return inbox.get(timeout=min(left, _LONGEST_WAIT))

    def acquire(self, lock: Waitable, deadline: float | None) -> bool:
        """Acquire *lock*, which somebody else will release; false when *deadline* has come."""
        if deadline is None:
            return lock.acquire()
        left = max(0.0, deadline - time.monotonic())
        return lock.acquire(timeout=min(left, _LONGEST_WAIT))

    def select(
        self,
        selector: selectors.BaseSelector,
        deadline: float | None,
        wake: Callable[[], None],
    ) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait for I/O until *deadline*.

        *wake* must make the selector return at once when it is called from another thread;
        the real clock has no use for it, a fake one calls it when its time has been moved.
        """
        if deadline is None:
            return selector.select()
        left = max(0.0, deadline - time.monotonic())
        return selector.select(min(left, _LONGEST_WAIT))

    def __reduce__(self) -> Any:
        return (Clock, ())
