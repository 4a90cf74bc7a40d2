"""A stage that has no memory for its next step: it pauses, and tries again.

A process at its limit (``RLIMIT_AS``, a full machine) gets a ``MemoryError`` for a moment. The
code that raises it undoes what the step has begun; the stage pauses for :data:`PAUSE`, and retries.
Deadlines are kept in the meantime: the kernel has a reserve for what giving rows an outcome takes.
"""

from __future__ import annotations

import logging
from typing import Final

from pykaproducer._clock import Clock

log = logging.getLogger("pykaproducer.producer")

#: Seconds until the step is tried again.
PAUSE: Final = 0.1
#: A stage logs at most one shortage in this time (seconds).
_LOG_INTERVAL: Final = 60.0


class Shortage:
    """The pause of one stage; used by the thread that runs the stage."""

    def __init__(self, name: str, clock: Clock) -> None:
        self._name = name
        self._clock = clock
        self._quiet_until = float("-inf")
        #: When to try again (monotonic seconds); None: there was memory the last time.
        self.until: float | None = None

    def begin(self, what: str) -> None:
        """Start a pause: there is no memory for *what*."""
        now = self._clock.monotonic()
        self.until = now + PAUSE
        if now >= self._quiet_until:
            self._quiet_until = now + _LOG_INTERVAL
            log.warning("%s: no memory for %s; trying again every %g s", self._name, what, PAUSE)

    def holds(self) -> bool:
        """Return whether it is too early to try again."""
        if self.until is not None and self._clock.monotonic() >= self.until:
            self.until = None
        return self.until is not None
