"""Shortage of memory: a stage pauses, and retries its last step.

A process at its memory limit (``RLIMIT_AS``, or an overloaded machine) may get a ``MemoryError``
for a short time. So before a step, a stage looks whether there is memory at all
(``Worker.pauses``). Code that allocates much undoes its partial work after a ``MemoryError``. The
stage then pauses for :data:`PAUSE`, and retries. Deadlines are kept in the meantime: the kernel
reserves the memory that it needs to settle rows. Settled rows are reported in any case, however
long it takes (``Settler``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from pykaproducer._util.clock import Clock, held_lock
from pykaproducer._util.guarded_log import GuardedLogger
from pykaproducer._util.memory import NO_MEMORY

log = GuardedLogger("pykaproducer.producer")

Result = TypeVar("Result")

#: Time until the step is retried (seconds).
PAUSE: Final = 0.1
#: Minimum time between two log lines of a stage (seconds).
_LOG_INTERVAL: Final = 60.0


class Shortage:
    """The memory shortage of one stage. Only :meth:`wait` is also for other threads."""

    def __init__(self, name: str, clock: Clock) -> None:
        self._name = name
        self._clock = clock
        self._quiet_until = float("-inf")
        self._never_released = held_lock()
        #: When to retry (monotonic seconds); None: there is no shortage.
        self.until: float | None = None

    def begin(self, what: str) -> None:
        """Start a pause: there is no memory for *what*."""
        now = self._clock.monotonic()
        self.until = now + PAUSE
        if now >= self._quiet_until:
            self._quiet_until = now + _LOG_INTERVAL
            log.warning("%s: no memory for %s; trying again every %g s", self._name, what, PAUSE)

    def holds(self) -> bool:
        """Return whether it is too early to retry."""
        if self.until is not None and self._clock.monotonic() >= self.until:
            self.until = None
        return self.until is not None

    def repeat(self, step: Callable[[], Result]) -> Result:
        """Call *step*, which changes nothing without memory, until there is memory for it."""
        while True:
            try:
                return step()
            except NO_MEMORY:
                self.wait()

    def wait(self) -> None:
        """Wait for :data:`PAUSE`. From any thread, and from several at once."""
        try:
            self._clock.acquire(self._never_released, self._clock.monotonic() + PAUSE)
        except NO_MEMORY:
            pass  # the caller tries again, and waits again
