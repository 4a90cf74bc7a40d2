"""The measurement of ``perf``: messages are sent one by one, and their latencies recorded.

Latency is measured from the call of ``send()``, including the wait for buffer space, to the
callback, as in Kafka's own tool. All messages share one callback, which looks up the send time by
the message's chunk and its row there.
"""

from __future__ import annotations

import functools
import time
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pykaproducer._kernel import CHUNK_ROWS, ROW_COST
from pykaproducer.cli._histogram import Histogram
from pykaproducer.cli._pace import Pace, Patience, settle, wait_for_callbacks
from pykaproducer.cli._rejects import FailureCounts
from pykaproducer.cli._signals import Signals
from pykaproducer.delivery import Delivery
from pykaproducer.errors import BufferFullError, PykaproducerError
from pykaproducer.producer import Producer

#: Initial width of the intervals (seconds), and the number of intervals above which pairs of them
#: are merged.
_WIDTH = 1.0
_MOST_INTERVALS = 600
#: Interval between collections of the latencies that callbacks have measured (seconds).
_COUNTING = 0.05
#: Interval between progress lines (seconds).
_PROGRESS_INTERVAL = 5.0


@dataclass(frozen=True)
class PerfLoad:
    """The messages to send."""

    topic: str
    count: int
    #: Messages per second; None means no limit.
    rate: float | None
    #: Used in turn.
    payloads: Sequence[bytes]
    keys: Sequence[bytes | None] = (None,)
    headers: list[tuple[str, bytes]] | None = None


@dataclass
class Interval:
    """Latencies of the messages delivered within a time interval."""

    #: Seconds since the start of the measurement.
    start: float
    width: float
    latencies: Histogram = field(default_factory=Histogram)


class _Flight:
    """Send times of the messages of one chunk, and the number of messages accepted before it."""

    __slots__ = ("first", "sent")

    def __init__(self, first: int) -> None:
        self.first = first
        self.sent = array("d")


class Run:
    """One measurement."""

    def __init__(
        self,
        load: PerfLoad,
        producer: Producer,
        signals: Signals,
        patience: Patience,
        show: Callable[[Sequence[Interval]], None],
    ) -> None:
        self.sent = self.delivered = 0
        #: Bytes of the values sent, and of those among them that failed.
        self.size = self.lost_size = 0
        self.failures = FailureCounts()
        self.intervals: list[Interval] = [Interval(0.0, _WIDTH)]
        self.seconds = 0.0
        self._load = load
        self._producer = producer
        self._signals = signals
        self._patience = patience
        self._show = show
        self._flights: dict[int, _Flight] = {}
        # Messages reported before their send time was noted. Rare.
        self._early: list[tuple[float, BaseException | None, Delivery]] = []
        self._latencies = self.intervals[0].latencies
        # Appended by callbacks, which do as little as possible; _count() consumes it.
        self._measured: deque[float] = deque()
        self._began = self._next_look = self._last_progress = time.perf_counter()
        self._first_unshown = 0

    def go(self, ending: Callable[[], None]) -> None:
        """Send all messages and wait for their outcomes; *ending* is called after a signal."""
        self._began = self._last_progress = time.perf_counter()
        self._next_look = self._began + _COUNTING
        self._send_all()
        settle(self._producer, self._signals, ending, self._look)
        self.seconds = time.perf_counter() - self._began
        last = self.intervals[-1]
        last.width = max(self.seconds - last.start, 1e-6)

    def finish(self) -> None:
        """Wait for the last callbacks. Call this after the producer is closed."""
        wait_for_callbacks(self._all_reported)

    def _all_reported(self) -> bool:
        self._count()
        return not self.unaccounted

    @property
    def unaccounted(self) -> int:
        """Number of messages whose outcome has not been reported."""
        return self.sent - self.delivered - self.failures.total

    @property
    def delivered_size(self) -> int:
        """Bytes of the values that were delivered."""
        return self.size - self.lost_size

    @property
    def latencies(self) -> Histogram:
        """Latencies of all messages."""
        return Histogram.of(interval.latencies for interval in self.intervals)

    def _send_all(self) -> None:
        load, report, now = self._load, self._report, time.perf_counter
        send = functools.partial(self._producer.send, load.topic)
        payloads, keys, headers = load.payloads, load.keys, load.headers
        many, many_keys = len(payloads), len(keys)
        pace = Pace(load.rate, self._signals)
        chunk, flight = None, _Flight(0)
        for number in range(load.count):
            if load.rate is not None and not pace.wait_for(number, self._look):
                return
            payload = payloads[number % many]
            began = now()
            if began >= self._next_look:
                self._look()
                if self._signals.count:
                    return
            try:
                handle = send(payload, keys[number % many_keys], headers, on_delivery=report)
            except PykaproducerError as error:
                key = keys[number % many_keys]
                again = functools.partial(send, payload, key, headers, on_delivery=report)
                late = self._insist(error, again)
                if late is None:
                    if self._signals.count:
                        return
                    continue
                handle = late
            self.sent += 1
            self.size += len(payload)
            if handle.chunk is not chunk:
                chunk = handle.chunk
                flight = self._flights[chunk.serial] = _Flight(self._producer.accepted)
            flight.sent.append(began)

    def _insist(self, error: PykaproducerError, again: Callable[[], Delivery]) -> Delivery | None:
        """Retry a message that was not accepted. Return None if it was not sent."""
        if isinstance(error, BufferFullError):
            try:
                return self._patience.send(again, self._look)
            except PykaproducerError as another:
                error = another
        self.sent += 1
        self.failures.add(error)
        return None

    # Outcomes -------------------------------------------------------------------------------------

    def _report(self, error: BaseException | None, delivery: Delivery) -> None:
        now = time.perf_counter()
        serial = delivery.chunk.serial
        try:
            began = self._flights[serial].sent[delivery.row]
        except (KeyError, IndexError):
            # 1. send() accepts the message. 2. It is delivered, and this callback runs. 3. The
            # sending thread notes the send time.
            self._early.append((now, error, delivery))
            return
        if error is None:
            self._measured.append(now - began)
        else:
            self.failures.add(error)
            self.lost_size += delivery.serialized_value_size

    def _count(self) -> None:
        """Collect what callbacks have measured, including early messages (see _report)."""
        measured = self._measured
        latencies = [measured.popleft() for _ in range(len(measured))]
        self.delivered += len(latencies)
        self._latencies.add_all(latencies)
        early, self._early = self._early, []
        for now, error, delivery in early:
            flight = self._flights[delivery.chunk.serial]
            if error is None:
                self.delivered += 1
                self._latencies.add(now - flight.sent[delivery.row])
            else:
                self.failures.add(error)
                self.lost_size += delivery.serialized_value_size

    # Intervals ------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Start a new interval if it is time, and print progress."""
        now = time.perf_counter()
        self._next_look = now + _COUNTING
        self._count()
        interval = self.intervals[-1]
        start = now - self._began
        if start < interval.start + interval.width:
            return
        interval.width = start - interval.start
        self.intervals.append(Interval(start, self.intervals[0].width))
        self._latencies = self.intervals[-1].latencies
        self._forget()
        if now - self._last_progress >= _PROGRESS_INTERVAL:
            self._last_progress = now
            self._show(self.intervals[self._first_unshown : -1])
            self._first_unshown = len(self.intervals) - 1
            self._join_intervals()

    def _forget(self) -> None:
        """Drop the send times of chunks so old that all their messages must have an outcome.

        buffer_memory limits how many messages can be pending.
        """
        most = self._producer.config.buffer_memory // ROW_COST + CHUNK_ROWS
        oldest = self._producer.accepted - most
        for serial, flight in list(self._flights.items())[:-1]:
            if flight.first + len(flight.sent) > oldest:
                return
            del self._flights[serial]

    def _join_intervals(self) -> None:
        """Merge pairs of intervals when there are too many, except the last two."""
        if len(self.intervals) <= _MOST_INTERVALS:
            return
        # A callback may still write into the last but one.
        *done, before, last = self.intervals
        pairs = [done[place : place + 2] for place in range(0, len(done), 2)]
        joined = [
            Interval(
                pair[0].start,
                sum(each.width for each in pair),
                Histogram.of(each.latencies for each in pair),
            )
            for pair in pairs
        ]
        self.intervals = [*joined, before, last]
        self._first_unshown = len(joined) + 1
