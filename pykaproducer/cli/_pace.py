"""Sending at a rate, or as fast as it goes, until a signal comes; and waiting for the outcomes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pykaproducer._clock import Bell, Clock
from pykaproducer.cli._signals import Signals
from pykaproducer.delivery import Delivery
from pykaproducer.errors import BufferFullError, FlushTimeoutError
from pykaproducer.producer import Producer

#: How long any wait may last before we look for a signal (seconds).
LOOK = 0.2
#: How long what was sent may take to be delivered after a signal (seconds).
GRACE = 5.0
#: How long callbacks may take to tell what became of the last messages (seconds).
_REPORTING = 30.0
#: How often we look whether they have (seconds).
_REPORTING_LOOK = 0.01
#: A pause shorter than this is not made: several messages go at once then (seconds).
_SHORTEST = 0.001


class Pace:
    """When each message is due: evenly, so many a second from the start; late ones catch up."""

    def __init__(self, rate: float | None, signals: Signals, clock: Clock | None = None) -> None:
        self.clock = clock or Clock()
        self.start = self.clock.monotonic()
        self._gap = 1 / rate if rate else 0.0
        self._signals = signals
        # Nobody rings: time alone ends a wait.
        self._silent = Bell()

    def wait_for(self, number: int, meanwhile: Callable[[], object]) -> bool:
        """Wait until message *number*, from 0, is due; false: a signal came before.

        *meanwhile* is called now and then while it waits.
        """
        due = self.start + number * self._gap
        while not self._signals.count:
            left = due - self.clock.monotonic()
            if left < _SHORTEST:
                return True
            self.clock.hear(self._silent, self.clock.monotonic() + min(left, LOOK))
            meanwhile()
        return False


class Patience:
    """How long a message waits for room: ``max_block_ms`` if it is set, else as long as it takes.

    The producer's own is shorter, so that we look for a signal in between.
    """

    def __init__(self, settings: Mapping[str, Any], signals: Signals) -> None:
        self._whole: float = settings.get("max_block_ms", float("inf"))
        self._piece = min(self._whole, LOOK * 1000)
        self._signals = signals

    def shortened(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """*settings* for the producer."""
        return {**settings, "max_block_ms": self._piece}

    def send(
        self, send: Callable[[], Delivery], meanwhile: Callable[[], object]
    ) -> Delivery | None:
        """Send one that has found no room once; None: a signal came.

        Raises:
            BufferFullError: there was no room all the time.
        """
        waited = self._piece
        while not self._signals.count:
            if waited >= self._whole:
                raise BufferFullError("there was no room in buffer_memory within max_block_ms")
            meanwhile()
            try:
                return send()
            except BufferFullError:
                waited += self._piece
        return None


def settle(
    producer: Producer,
    signals: Signals,
    tell: Callable[[], object],
    meanwhile: Callable[[], object],
) -> bool:
    """Wait until everything has its outcome; after a signal, which is told of, for ``GRACE``
    seconds or until another one. False: not everything has."""
    clock, count, end = Clock(), 0, float("inf")
    while clock.monotonic() < end:
        if signals.count and not count:
            count, end = signals.count, clock.monotonic() + GRACE
            tell()
        elif signals.count > count:
            return False
        try:
            producer.flush(LOOK)
        except FlushTimeoutError:
            meanwhile()
        else:
            return True
    return False


def wait_for_callbacks(have_told: Callable[[], bool]) -> None:
    """The producer is closed, so that all have an outcome; callbacks may still have to run."""
    clock, silent = Clock(), Bell()
    end = clock.monotonic() + _REPORTING
    while not have_told() and clock.monotonic() < end:
        clock.hear(silent, clock.monotonic() + _REPORTING_LOOK)
