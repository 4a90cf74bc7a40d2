"""Sending at a fixed rate, or without limit, until a signal arrives; and waiting for outcomes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pykaproducer._util.clock import Clock, WakeEvent
from pykaproducer.cli._signals import Signals
from pykaproducer.delivery import Delivery
from pykaproducer.errors import BufferFullError, DeliveryFailures, FlushTimeoutError
from pykaproducer.producer import Producer

#: Maximum duration of a wait between checks for a signal (seconds).
LOOK = 0.2
#: Time for pending messages to be delivered after a signal (seconds).
GRACE = 5.0
#: Time for the last callbacks to run (seconds).
_REPORTING = 30.0
#: Interval between checks for them (seconds).
_REPORTING_LOOK = 0.01
#: Pauses shorter than this are skipped, so that several messages are sent at once (seconds).
_SHORTEST = 0.001


class Pace:
    """A schedule with evenly spaced messages; messages that are late catch up."""

    def __init__(self, rate: float | None, signals: Signals, clock: Clock | None = None) -> None:
        self.clock = clock or Clock()
        self.start = self.clock.monotonic()
        self._gap = 1 / rate if rate else 0.0
        self._signals = signals
        # Never set: only the timeout ends a wait.
        self._silent = WakeEvent()

    def wait_for(self, number: int, poll: Callable[[], object]) -> bool:
        """Wait until message *number*, from 0, is due. Return false if a signal arrives first.

        *poll* is called repeatedly during the wait.
        """
        due = self.start + number * self._gap
        while not self._signals.count:
            left = due - self.clock.monotonic()
            if left < _SHORTEST:
                return True
            self.clock.wait(self._silent, self.clock.monotonic() + min(left, LOOK))
            poll()
        return False


class Patience:
    """The wait for buffer space: ``max_block_ms`` if it is set, else unlimited.

    The producer's own ``max_block_ms`` is shorter, to allow checks for a signal.
    """

    def __init__(self, settings: Mapping[str, Any], signals: Signals) -> None:
        self._whole: float = settings.get("max_block_ms", float("inf"))
        self._piece = min(self._whole, LOOK * 1000)
        self._signals = signals

    def shortened(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return *settings* with the shorter ``max_block_ms``."""
        return {**settings, "max_block_ms": self._piece}

    def send(self, send: Callable[[], Delivery], poll: Callable[[], object]) -> Delivery | None:
        """Retry a send that found the buffer full. Return None if a signal arrives.

        Raises:
            BufferFullError: there was no space within ``max_block_ms``.
        """
        waited = self._piece
        while not self._signals.count:
            if waited >= self._whole:
                raise BufferFullError("no space in buffer_memory within max_block_ms")
            poll()
            try:
                return send()
            except BufferFullError:
                waited += self._piece
        return None


def settle(
    producer: Producer,
    signals: Signals,
    on_signal: Callable[[], object],
    poll: Callable[[], object],
) -> bool:
    """Wait until every message has an outcome. Return false if some have none.

    After a signal, *on_signal* is called, and the wait ends after ``GRACE`` seconds or at the next
    signal.
    """
    clock, count, end = Clock(), 0, float("inf")
    while clock.monotonic() < end:
        if signals.count and not count:
            count, end = signals.count, clock.monotonic() + GRACE
            on_signal()
        elif signals.count > count:
            return False
        try:
            producer.flush(LOOK)
        except FlushTimeoutError:
            poll()
        except DeliveryFailures:  # the summary has them
            return True
        else:
            return True
    return False


def wait_for_callbacks(all_reported: Callable[[], bool]) -> None:
    """Wait for callbacks that have not run yet, after the producer was closed."""
    clock, silent = Clock(), WakeEvent()
    end = clock.monotonic() + _REPORTING
    while not all_reported() and clock.monotonic() < end:
        clock.wait(silent, clock.monotonic() + _REPORTING_LOOK)
