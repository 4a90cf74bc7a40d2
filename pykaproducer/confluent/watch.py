"""What error_cb, throttle_cb, stats_cb and logger are told: looked for now and then by poll().

The producer below has no such callbacks; it says what is wrong in ``stats()``. So whoever polls
looks there, a few times a second at most, and only with one of these callbacks set.
"""

from __future__ import annotations

import json
import logging
from typing import Any, Final

from pykaproducer._clock import Clock
from pykaproducer._version import VERSION
from pykaproducer.confluent.errors import KafkaError, text_of, trouble_code
from pykaproducer.confluent.message import ThrottleEvent
from pykaproducer.confluent.reports import Events
from pykaproducer.confluent.settings import Translated
from pykaproducer.confluent.statistics import statistics
from pykaproducer.producer import Producer as Core

#: How often errors are looked for (seconds).
_EVERY: Final = 0.2


class Watch:
    """Guarantees: each change is told once; everything is told through the events' queue."""

    def __init__(self, settings: Translated, events: Events, clock: Clock, core: Core) -> None:
        self._settings = settings
        self._events = events
        self._clock = clock
        self._core = core
        self._born = clock.monotonic()
        #: What was told of each broker last; of the whole cluster under None.
        self._told: dict[int | None, str] = {}
        # Whether none could be reached when we looked last.
        self._was_all_down = False
        self._throttled = 0.0
        wanted = (settings.error_cb, settings.logger, settings.throttle_cb)
        self._errors_due = None if wanted == (None, None, None) else self._born
        if settings.logger is not None and settings.debug:
            text = f"INIT [{core.config.client_id}] pykaproducer {VERSION}: a producer was made"
            events.put(settings.logger.log, logging.DEBUG, text)
        wants_stats = settings.stats_cb is not None and settings.stats_interval > 0
        self._stats_due = self._born + settings.stats_interval if wants_stats else None

    def next_look(self, now: float) -> float | None:
        """When to look again; None: never."""
        due = [time for time in (self._errors_due, self._stats_due) if time is not None]
        return max(now, min(due)) if due else None

    def look(self) -> None:
        """Look, if it is time, and put what there is to tell into the queue."""
        if self._errors_due is None and self._stats_due is None:
            return
        now = self._clock.monotonic()
        if self._errors_due is not None and now >= self._errors_due:
            self._errors_due = now + _EVERY
            stats = self._core.stats()
            if stats["state"] == "idle":
                # There it connects when it is made, and may have something to tell.
                self._core.connect()
            self._look_for_errors(stats)
            self._look_for_throttling(stats)
        if self._stats_due is not None and now >= self._stats_due:
            self._stats_due = now + self._settings.stats_interval
            waiting = len(self._events.queue)
            told = statistics(self._core.stats(), self._settings, waiting, now, now - self._born)
            self._events.put(self._settings.stats_cb, json.dumps(told))

    def _look_for_errors(self, stats: dict[str, Any]) -> None:
        found: dict[int | None, str] = {
            broker["id"]: broker["last_error"]
            for broker in stats["brokers"]
            if broker["last_error"]
        }
        if stats["trouble"]:
            found[None] = stats["trouble"]
        for broker, reason in found.items():
            if self._told.get(broker) != reason:
                self._tell(trouble_code(reason), reason)
        down = [broker for broker in found if broker is not None]
        known = len(stats["brokers"])
        all_down = (None in found and not known) or (known > 0 and len(down) == known)
        if all_down and not self._was_all_down:
            count = max(1, known)
            self._tell(KafkaError._ALL_BROKERS_DOWN, f"{count}/{count} brokers are down")
        self._told, self._was_all_down = found, all_down

    def _tell(self, code: int, reason: str) -> None:
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
            # Which of several it was is not known.
            name, number = "", -1
            if len(connected) == 1:
                name, number = connected[0]["address"], connected[0]["id"]
            self._events.put(self._settings.throttle_cb, ThrottleEvent(name, number, more))
