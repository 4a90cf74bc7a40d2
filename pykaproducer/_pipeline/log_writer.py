"""LogWriter: writes the log lines of the other stages, because logging handlers are user code.

There is one per producer. It owns nothing except its inbox of lines. A handler that blocks delays
other lines, but no message. ``_util/guarded_log.py`` explains why no stage writes its own lines.

Guarantees: lines of one stage are written in their order. At most :data:`_MOST` lines wait. Further
ones are dropped and counted, as the handlers are too slow for them.
"""

from __future__ import annotations

import math
import threading
from typing import Final

from pykaproducer._pipeline.worker import StageContext, Worker
from pykaproducer._util.guarded_log import GuardedLogger, LogLine

log = GuardedLogger("pykaproducer.producer")

#: Maximum number of lines that wait.
_MOST: Final = 1000


class LogWriter(Worker):
    """The stage that runs logging filters and handlers."""

    is_user_thread = True

    def __init__(self, context: StageContext) -> None:
        super().__init__("log", context)
        self._dropped = 0
        self._ends_at = math.inf

    def put(self, item: LogLine | threading.Event) -> None:
        if len(self._items) < _MOST:
            super().put(item)
        else:
            self._dropped += 1
            self.wake()

    def handle(self, item: LogLine | threading.Event) -> None:
        if isinstance(item, threading.Event):
            item.set()
        elif self.clock.monotonic() >= self._ends_at:
            self._dropped += 1
        else:
            item.write()

    def on_inbox_drained(self) -> None:
        if self._dropped:
            dropped, self._dropped = self._dropped, 0
            log.warning("%d log lines were dropped: the logging handlers are too slow", dropped)

    def stop_by(self, deadline: float) -> bool:
        """Stop after the lines that wait; return False if it is not over by *deadline*.

        Lines that are not written by then are dropped.
        """
        self._ends_at = deadline
        self.stop()
        return self.join(deadline)

    def wait(self, timeout: float) -> None:
        """Wait until the lines are written that wait now. For tests."""
        if self._items or self.thread is not None:
            written = threading.Event()
            super().put(written)  # also if too many lines wait
            written.wait(timeout)
