"""Threads that the system refused to start, and the retries that start them later.

A process at its limit of threads (a container's pids limit, ``RLIMIT_NPROC``) gets a
``RuntimeError`` for each new one. That is no reason to break a producer: the stage keeps its items,
registers itself here, and gets its thread as soon as the system allows it. Retries are made by

- the *keepers*: the stages of any producer that never block and whose thread is running
  (``Worker.keeps_threads``). They look every :data:`RETRY_INTERVAL` while a thread is missing;
- each user thread that waits in ``result()``, ``flush()`` or ``send()``: see :func:`acquire`. If
  the system refuses even the first thread, there is no keeper yet;
- the next ``send()`` to a topic that the dispatcher has not taken.

The registry covers the whole process, because the shortage does.

No missing thread is overlooked: :func:`start` (1) enters the owner, (2) wakes the keepers; a keeper
(1) is woken, (2) looks at the registry before it waits again.
"""

from __future__ import annotations

import _thread
from collections.abc import Callable
from typing import Final, Protocol

from pykaproducer._util.clock import Clock, Waitable
from pykaproducer._util.guarded_log import GuardedLogger
from pykaproducer._util.memory import NO_MEMORY, NO_THREAD

log = GuardedLogger("pykaproducer.producer")

#: Seconds between two attempts to start a thread that was refused.
RETRY_INTERVAL: Final = 0.1
#: At most one shortage is logged in this time (seconds).
_LOG_INTERVAL: Final = 60.0


class Owner(Protocol):
    """An object that needs a thread."""

    name: str

    def start_thread(self) -> None:
        """Start the thread, unless it is running or no longer needed.

        A second call has no effect. Raises RuntimeError or MemoryError if the system refuses.
        """


# None of the tables has a lock, because a signal handler may interrupt its own thread here. Each
# operation is atomic in the interpreter.
_missing: dict[Owner, None] = {}
_keepers: dict[object, Callable[[], None]] = {}
#: The locks for which user threads wait: released in the child of a fork.
until_fork: set[_thread.LockType] = set()


def start(owner: Owner) -> None:
    """Start the thread of *owner*, now or as soon as the system allows it.

    Raises MemoryError if there is none to note that it is missing.
    """
    try:
        owner.start_thread()
    except NO_THREAD:
        # Logged by start_missing(), because the caller may hold a lock that a logging handler
        # waits for.
        if owner not in _missing:
            _missing[owner] = None
            try:
                keepers = list(_keepers.values())
            except NO_MEMORY:
                _missing.pop(owner, None)  # the next call wakes them
                raise
            for wake in keepers:
                wake()


def start_missing(clock: Clock) -> bool:
    """Try to start every missing thread; return whether any is still missing."""
    for owner in list(_missing):
        try:
            owner.start_thread()
        except NO_THREAD as error:
            _shortage.refused(clock, owner.name, error)
            return True  # the system would refuse the others as well
        _missing.pop(owner, None)
    if not _missing:
        _shortage.over()
    return bool(_missing)


class _Shortage:
    """The log messages for the start and the end of a shortage of threads."""

    def __init__(self) -> None:
        self._logged = False
        self._quiet: tuple[Clock, float] | None = None

    def refused(self, clock: Clock, name: str, error: BaseException) -> None:
        now = clock.monotonic()
        if self._quiet is not None and self._quiet[0] is clock and now < self._quiet[1]:
            return
        self._quiet, self._logged = (clock, now + _LOG_INTERVAL), True
        log.warning(
            "cannot start the thread %s: %s; trying again every %g s", name, error, RETRY_INTERVAL
        )

    def over(self) -> None:
        if self._logged:
            self._logged = False
            log.info("threads can be started again")


_shortage = _Shortage()


def any_missing() -> bool:
    """Return whether a thread is missing."""
    return bool(_missing)


def is_missing(owner: Owner) -> bool:
    """Return whether the thread of *owner* was refused and has not been started since."""
    return owner in _missing


def give_up(owner: Owner) -> None:
    """Stop trying to start a thread for *owner*."""
    _missing.pop(owner, None)


def keep(keeper: object, wake: Callable[[], None]) -> None:
    """Add a keeper; *wake* makes it call :func:`start_missing`."""
    _keepers[keeper] = wake


def stop_keeping(keeper: object) -> None:
    """Remove a keeper whose thread ends."""
    _keepers.pop(keeper, None)


def acquire_or_fork(clock: Clock, lock: _thread.LockType, deadline: float | None) -> bool:
    """Acquire *lock* as :func:`acquire` does, but not in the child of a fork.

    If a signal handler forks during the wait, return True in the child, where no thread would ever
    release the lock. The caller must check whether it is in the child.
    """
    try:  # not before: an interrupt in between would leave the lock there
        until_fork.add(lock)
        return acquire(clock, lock, deadline)
    finally:
        until_fork.discard(lock)


def acquire(clock: Clock, lock: Waitable, deadline: float | None) -> bool:
    """Acquire *lock* as :meth:`Clock.acquire` does; start missing threads in the meantime.

    For user threads that wait for what a stage does.
    """
    while _missing and start_missing(clock):
        soon = clock.monotonic() + RETRY_INTERVAL
        if deadline is not None and deadline <= soon:
            break
        if clock.acquire(lock, soon):
            return True
    return clock.acquire(lock, deadline)


def forget_all() -> None:
    """Clear the tables in a forked child, where the parent's threads do not exist."""
    while until_fork:
        lock = until_fork.pop()
        if lock.locked():
            lock.release()
    _missing.clear()
    _keepers.clear()
