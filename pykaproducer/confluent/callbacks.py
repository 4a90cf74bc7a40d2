"""Calls of error_cb, throttle_cb, stats_cb and logger, for changes that poll() detects.

The producer below has no such callbacks, but reports problems in ``stats()``. poll() therefore
checks them a few times per second at most, and only if one of these callbacks is set.
"""

from __future__ import annotations

import json
import logging
import threading
from typing import Any, Final

from pykaproducer._util.clock import Clock
from pykaproducer._version import VERSION
from pykaproducer.confluent.delivery_queue import Events
from pykaproducer.confluent.errors import KafkaError, error_code_for, text_of
from pykaproducer.confluent.message import ThrottleEvent
from pykaproducer.confluent.settings import Translated
from pykaproducer.confluent.statistics import statistics
from pykaproducer.producer import Producer as Core

#: How often errors are checked (seconds).
_EVERY: Final = 0.2


class CallbackWatch:
    """A watch on ``stats()`` that queues one call of the callbacks for each change."""

    def __init__(self, settings: Translated, events: Events, clock: Clock, core: Core) -> None:
        self._settings = settings
        self._events = events
        self._clock = clock
        self._core = core
        self._born = clock.monotonic()
        #: The last reported error of each broker; of the whole cluster under None.
        self._reported: dict[int | None, str] = {}
        # Held during a check, so that a change is reported once. No thread waits for it: a thread
        # may hold it when the process is forked, or when a signal handler interrupts it.
        self._checking = threading.Lock()
        # Whether no broker was reachable at the last check.
        self._was_all_down = False
        self._throttled = 0.0
        wanted = (settings.error_cb, settings.logger, settings.throttle_cb)
        self._errors_due = None if all(each is None for each in wanted) else self._born
        if settings.logger is not None and settings.debug:
            text = f"INIT [{core.config.client_id}] pykaproducer {VERSION}: producer created"
            events.put(settings.logger.log, logging.DEBUG, text)
        wants_stats = settings.stats_cb is not None and settings.stats_interval > 0
        self._stats_due = self._born + settings.stats_interval if wants_stats else None

    def next_check(self, now: float) -> float | None:
        """Return the time of the next check, or None if there is none."""
        due = [time for time in (self._errors_due, self._stats_due) if time is not None]
        return max(now, min(due)) if due else None

    def check(self) -> None:
        """Check, if it is time, and queue calls of the callbacks for changes."""
        if self._errors_due is None and self._stats_due is None:
            return
        if not self._checking.acquire(blocking=False):
            return
        try:
            self._check_now()
        finally:
            self._checking.release()

    def _check_now(self) -> None:
        now = self._clock.monotonic()
        if self._errors_due is not None and now >= self._errors_due:
            self._errors_due = now + _EVERY
            stats = self._core.stats()
            if stats["state"] == "idle":
                # librdkafka connects when it is created, and may report errors before a message.
                self._core.connect()
            self._look_for_errors(stats)
            self._look_for_throttling(stats)
        if self._stats_due is not None and now >= self._stats_due:
            self._stats_due = now + self._settings.stats_interval
            waiting = self._events.queue.count
            found = statistics(self._core.stats(), self._settings, waiting, now, now - self._born)
            self._events.put(self._settings.stats_cb, json.dumps(found))

    def _look_for_errors(self, stats: dict[str, Any]) -> None:
        found: dict[int | None, str] = {
            broker["id"]: broker["last_error"]
            for broker in stats["brokers"]
            if broker["last_error"]
        }
        if stats["cluster_error"]:
            found[None] = stats["cluster_error"]
        for broker, reason in found.items():
            if self._reported.get(broker) != reason:
                self._report(error_code_for(reason), reason)
        down = [broker for broker in found if broker is not None]
        known = len(stats["brokers"])
        all_down = (None in found and not known) or (known > 0 and len(down) == known)
        if all_down and not self._was_all_down:
            count = max(1, known)
            self._report(KafkaError._ALL_BROKERS_DOWN, f"{count}/{count} brokers are down")
        self._reported, self._was_all_down = found, all_down

    def _report(self, code: int, reason: str) -> None:
        error = KafkaError(code, f"{text_of(code)}: {reason}")
        if self._settings.error_cb is not None:
            self._events.put(self._settings.error_cb, error)
        if self._settings.logger is not None:
            self._events.put(self._settings.logger.log, logging.ERROR, error.str())

    def _look_for_throttling(self, stats: dict[str, Any]) -> None:
        total = stats["requests"]["throttle_ms"] / 1000
        more, self._throttled = total - self._throttled, total
        if more > 0 and self._settings.throttle_cb is not None:
            connected = [b for b in stats["brokers"] if b["state"] == "connected"]
            # With several connected brokers, it is unknown which one throttled.
            name, number = "", -1
            if len(connected) == 1:
                name, number = connected[0]["address"], connected[0]["id"]
            self._events.put(self._settings.throttle_cb, ThrottleEvent(name, number, more))
