"""Time, and every way of waiting for it, behind one object.

Nothing in the package calls :func:`time.sleep` or passes a timeout to a lock or a selector by
itself: it asks the clock with a *deadline* (a point on :meth:`Clock.monotonic`, ``None`` for "no
deadline"). A test puts :class:`pykaproducer.testing.FakeClock` in its place
and moves the time by hand, so no test sleeps.
"""

from __future__ import annotations

import _thread
import selectors
import time
from collections.abc import Callable
from typing import Any, Protocol

#: The longest single wait that the platform's lock and select calls take (seconds).
#: A longer deadline is waited for in several pieces.
_LONGEST_WAIT = 86_400.0


def earlier(one: float | None, other: float | None) -> float | None:
    """Return the earlier of two deadlines; None is no deadline."""
    if one is None or other is None:
        return one if other is None else other
    return min(one, other)


class Waitable(Protocol):
    """What :meth:`Clock.acquire` can wait for: a raw lock."""

    def acquire(self, blocking: bool = ..., timeout: float = ...) -> bool: ...


class Bell:
    """What a stage's thread sleeps by: rung when something has come for it.

    It stays rung until the thread has heard it, and is rung once however often. One thread alone
    waits for it, through :meth:`Clock.hear`; any may ring, also a signal handler that strikes while
    its own thread rings.

    Not a ``queue.SimpleQueue`` of tokens: a ``get`` of it with a timeout may wait for ever (seen in
    CPython 3.11: with nothing in the queue its lock may be free at first; the time runs out
    while ``get`` takes it; what is left, now negative, counts as no timeout). A deadline that is
    near would then stop a stage for good.
    """

    def __init__(self) -> None:
        # Held: not rung.
        self._silence = _thread.allocate_lock()
        self._silence.acquire()

    @property
    def is_rung(self) -> bool:
        """Whether nobody has heard it yet."""
        return not self._silence.locked()

    def ring(self) -> None:
        """Wake whoever waits, or comes to wait next."""
        try:
            self._silence.release()
        except RuntimeError:
            pass  # it is rung

    def heard(self, timeout: float = -1) -> bool:
        """Wait until it is rung, at most *timeout* seconds; for :meth:`Clock.hear`."""
        return self._silence.acquire(timeout=timeout)


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

    def thread_time(self) -> float:
        """Seconds that the calling thread has worked; waiting for the CPU does not count."""
        return time.thread_time()

    def after(self, timeout: float | None) -> float | None:
        """The deadline that a *timeout* in seconds means, as users give it; None: none.

        Raises:
            TypeError, ValueError: it is no number.
        """
        if timeout is None:
            return None
        if isinstance(timeout, str) or not hasattr(timeout, "__float__"):
            raise TypeError(f"timeout is a number of seconds, or None, not {timeout!a:.60}")
        try:
            seconds = float(timeout)
        except OverflowError:
            raise ValueError("timeout is a number of seconds, or None, not that large") from None
        if seconds != seconds:
            raise ValueError("timeout is a number of seconds, or None, not NaN")
        return self.monotonic() + seconds

    def hear(self, bell: Bell, deadline: float | None) -> bool:
        """Wait for *bell* to ring; false when *deadline* has come."""
        if deadline is None:
            return bell.heard()
        left = max(0.0, deadline - time.monotonic())
        return bell.heard(min(left, _LONGEST_WAIT))

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
