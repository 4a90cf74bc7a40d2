"""LogWriter: writes the log lines of the other stages, because logging handlers are user code.

There is one per producer. It owns nothing except its inbox of lines. A handler that blocks delays
other lines, but no message. ``_util/guarded_log.py`` explains why no stage writes its own lines.

Guarantees: lines of one stage are written in order. Beyond about :data:`_MAX_LINES` waiting lines,
further ones are dropped, and their number is logged.
"""

from __future__ import annotations

import math
from typing import Final

from pykaproducer._pipeline.worker import StageContext, Worker
from pykaproducer._util.guarded_log import GuardedLogger, LogLine

log = GuardedLogger("pykaproducer.producer")

_MAX_LINES: Final = 1000


class LogWriter(Worker[LogLine]):
    """The stage that runs logging filters and handlers."""

    is_user_thread = True

    def __init__(self, context: StageContext) -> None:
        super().__init__("log", context)
        self._dropped = 0
        self._ends_at = math.inf

    def put(self, item: LogLine) -> None:
        # No lock: two stages at once may exceed the limit by one, or miscount.
        if len(self._items) < _MAX_LINES:
            super().put(item)
        else:
            self._dropped += 1
            self.wake()

    def handle(self, item: LogLine) -> None:
        if self.clock.monotonic() >= self._ends_at:
            self._dropped += 1
            return
        try:
            item.write()
        except BaseException:  # some handlers call sys.exit(); the other lines are written (P9)
            item.print_exception()

    def on_inbox_drained(self) -> None:
        if self._dropped:
            dropped, self._dropped = self._dropped, 0
            log.warning("%d log lines were dropped: the logging handlers are too slow", dropped)

    def stop_by(self, deadline: float) -> None:
        """Write the lines in the inbox, and stop. Drop those not written by *deadline*."""
        self._ends_at = deadline
        self.stop()
        self.join(deadline)
