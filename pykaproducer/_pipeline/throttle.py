"""Client-side throttling: stop sending while a broker enforces a quota (KIP-219).

The broker does not read requests in the meantime, so they would only appear to be unanswered.
"""

from __future__ import annotations

from pykaproducer._pipeline.last_errors import LastErrors
from pykaproducer._util.clock import Clock
from pykaproducer._util.guarded_log import GuardedLogger

log = GuardedLogger("pykaproducer.broker")


class Throttle:
    """The throttling state of one broker, used by its BrokerWorker only."""

    def __init__(self, broker_id: int, clock: Clock, last_errors: LastErrors) -> None:
        self._broker_id = broker_id
        self._clock = clock
        self._last_errors = last_errors
        # Whether the last response requested it.
        self._on = False
        #: Send nothing before this (monotonic seconds); None: no throttling.
        self.until: float | None = None

    def answered(self, wait: float) -> None:
        """React to a response with a throttle time of *wait* seconds, which may be 0."""
        if wait and not self._on:
            log.warning(
                "broker %d: throttles this client by %.3g s (a quota); further requests wait",
                self._broker_id,
                wait,
            )
        elif self._on and not wait:
            log.info("broker %d: does not throttle this client any more", self._broker_id)
        if not wait:
            # The entry may be from an earlier worker of this broker, which has ended since.
            self._last_errors.throttled.pop(self._broker_id, None)
        self._on = bool(wait)
        if wait:
            text = f"broker {self._broker_id} throttles this client (a quota)"
            self._last_errors.throttled[self._broker_id] = text
            self.until = self._clock.monotonic() + wait

    def holds(self) -> bool:
        """Return whether sending is still suspended."""
        if self.until is not None and self._clock.monotonic() >= self.until:
            self.until = None
        return self.until is not None

    def forget(self) -> None:
        """End the throttling, as the connection is lost and the next one may be used at once."""
        self._last_errors.throttled.pop(self._broker_id, None)
        self.until = None
