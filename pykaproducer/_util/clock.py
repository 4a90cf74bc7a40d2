"""A clock object for reading the time and for all timed waits.

The pipeline never calls :func:`time.sleep`, nor passes a timeout to a lock or a selector. It calls
the clock with a *deadline* (a point on :meth:`Clock.monotonic`, ``None`` for "no deadline"). Tests
replace the clock by a :class:`pykaproducer.testing.FakeClock` and advance it manually, so no test
sleeps. Not through the clock: a request to a token endpoint, whose blocking calls have timeouts
(``_net/http_request.py``), and the command line and ``testing``, which may wait for the system.
"""

from __future__ import annotations

import _thread
import selectors
import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import pykaproducer._kernel as _kernel
from pykaproducer._kernel import WakeEvent

__all__ = [
    "Clock",
    "Waitable",
    "WakeEvent",
    "discard",
    "earlier",
    "held_lock",
    "in_seconds",
    "wake_all",
]

_thread_time = time.thread_time  # whatever a test patches later

#: Maximum single wait (seconds), within the limits of the platform's lock and select calls.
#: Longer waits consist of several pieces.
_LONGEST_WAIT = 86_400.0


def earlier(one: float | None, other: float | None) -> float | None:
    """Return the earlier of two deadlines. None means no deadline."""
    if one is None or other is None:
        return one if other is None else other
    return min(one, other)


def held_lock() -> _thread.LockType:
    """Return a new lock that is held, for one thread to wait for and another one to release.

    Such a raw lock lets a signal interrupt the wait, and needs no lock of its own to be released.
    """
    lock = _thread.allocate_lock()
    lock.acquire()
    return lock


def wake_all(locks: Iterable[Any]) -> None:
    """Release every lock that is held.

    The waiting threads remove their locks from the collection. Removing them here could, if
    interrupted by a KeyboardInterrupt, lose a waiter that was never released.
    """
    for lock in list(locks):
        try:
            lock.release()
        except RuntimeError:
            pass  # another thread has released it


def in_seconds(timeout: Any) -> float | None:
    """Return a user's *timeout*, a number of any type, as a float, or None for None.

    Raises:
        TypeError, ValueError: *timeout* is not a number.
    """
    if timeout is None:
        return None
    # result() calls this for each message, and isinstance() with a union or a protocol is slow.
    if not hasattr(timeout, "__float__"):
        raise TypeError(f"timeout must be a number of seconds, or None, not {timeout!a:.60}")
    try:
        seconds = float(timeout)
    except OverflowError:
        raise ValueError(
            "timeout must be a number of seconds, or None; this one is too large"
        ) from None
    if seconds != seconds:
        raise ValueError("timeout must be a number of seconds, or None, not NaN")
    return seconds


def discard(locks: list[Any], lock: _thread.LockType) -> None:
    """Remove *lock* from *locks*, unless an interrupt has prevented that it was added."""
    if lock in locks:
        locks.remove(lock)


class Waitable(Protocol):
    """A lock that :meth:`Clock.acquire` can wait for."""

    def acquire(self, blocking: bool = ..., timeout: float = ...) -> bool: ...


class Clock:
    """The system clock."""

    #: If true, the compiled kernel reads the same clock directly in C.
    is_real = True

    def monotonic(self) -> float:
        """Return seconds since an arbitrary fixed point. Deadlines use this clock.

        It is the kernel's, as a test may patch the module :mod:`time`, to freeze it for example: a
        producer with two clocks would fail its messages at once, or wait forever.
        """
        return _kernel.monotonic()

    def time(self) -> float:
        """Return seconds since the epoch, for timestamps of messages."""
        return time.time()

    def thread_time(self) -> float:
        """Return the CPU time of the calling thread in seconds."""
        return _thread_time()

    def after(self, timeout: float | None) -> float | None:
        """Return the deadline for a user's *timeout* in seconds, or None for None.

        A negative timeout is treated as 0: only an immediate result counts.

        Raises:
            TypeError, ValueError: *timeout* is not a number.
        """
        seconds = in_seconds(timeout)
        return None if seconds is None else self.monotonic() + max(0.0, seconds)

    def wait(self, event: WakeEvent, deadline: float | None) -> bool:
        """Wait for *event* and consume it. Return false when *deadline* has come."""
        if deadline is None:
            return event.wait()
        left = max(0.0, deadline - _kernel.monotonic())
        return event.wait(min(left, _LONGEST_WAIT))

    def acquire(self, lock: Waitable, deadline: float | None) -> bool:
        """Acquire *lock*, which another thread releases. Return false at *deadline*."""
        if deadline is None:
            return lock.acquire()
        left = max(0.0, deadline - _kernel.monotonic())
        return lock.acquire(timeout=min(left, _LONGEST_WAIT))

    def select(
        self,
        selector: selectors.BaseSelector,
        deadline: float | None,
        wake: Callable[[], None],
    ) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait for I/O until *deadline*.

        *wake* must make the selector return at once when called from another thread. A fake clock
        calls it when its time is advanced. The system clock does not use it.
        """
        if deadline is None:
            return selector.select()
        left = max(0.0, deadline - _kernel.monotonic())
        return selector.select(min(left, _LONGEST_WAIT))

    def __reduce__(self) -> Any:
        return (Clock, ())
