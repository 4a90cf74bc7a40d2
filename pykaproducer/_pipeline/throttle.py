"""Leaving a broker alone that asks for it: a quota of its was exceeded (KIP-219).

It reads nothing more from us meanwhile, so what we sent would only count as unanswered.
"""

from __future__ import annotations

import logging

from pykaproducer._clock import Clock
from pykaproducer._pipeline.trouble import Trouble

log = logging.getLogger("pykaproducer.broker")


class Throttle:
    """One for each BrokerWorker, called by it alone."""

    def __init__(self, broker_id: int, clock: Clock, trouble: Trouble) -> None:
        self._broker_id = broker_id
        self._clock = clock
        self._trouble = trouble
        # Whether it was asked for in the last answer.
        self._on = False
        #: Nothing is to be sent before then (monotonic seconds); None: it may.
        self.until: float | None = None

    def answered(self, wait: float) -> None:
        """An answer has come; the broker wants to be left alone for *wait* seconds."""
        if wait and not self._on:
            log.warning(
                "broker %d: throttles this client by %.3g s (a quota); what follows waits",
                self._broker_id,
                wait,
            )
        elif self._on and not wait:
            log.info("broker %d: does not throttle this client any more", self._broker_id)
        if not wait:
            # Perhaps it was told of by the broker's worker before us, which has ended since.
            self._trouble.throttled.pop(self._broker_id, None)
        self._on = bool(wait)
        if wait:
            text = f"broker {self._broker_id} throttles this client (a quota)"
            self._trouble.throttled[self._broker_id] = text
            self.until = self._clock.monotonic() + wait

    def holds(self) -> bool:
        """Whether nothing may be sent yet."""
        if self.until is not None and self._clock.monotonic() >= self.until:
            self.until = None
        return self.until is not None

    def forget(self) -> None:
        """The connection is lost; the next may be used at once."""
        self._trouble.throttled.pop(self._broker_id, None)
        self.until = None
