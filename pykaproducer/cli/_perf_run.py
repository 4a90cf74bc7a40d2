"""What ``perf`` measures: messages sent one by one, and the time until each one's outcome.

A message's latency runs from the call of ``send()``, waiting for room included, to its callback,
as in Kafka's own tool. All messages share one callback, which finds out when its message was sent
by the message's place: the chunk it was put into, and its row there.
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
from pykaproducer.cli._rejects import Failures
from pykaproducer.cli._signals import Signals
from pykaproducer.delivery import Delivery
from pykaproducer.errors import BufferFullError, PykaproducerError
from pykaproducer.producer import Producer

#: The first width of the intervals that the course of time is kept in (seconds); and how many
#: there may be, before two become one.
_WIDTH = 1.0
_MOST_INTERVALS = 600
#: How often what callbacks have measured is counted (seconds).
_COUNTING = 0.05
#: How often a line tells how it goes (seconds).
_TELLING = 5.0


@dataclass(frozen=True)
class Load:
    """What is sent."""

    topic: str
    count: int
    #: Messages a second; None: as fast as it goes.
    rate: float | None
    #: Taken in turn.
    payloads: Sequence[bytes]
    keys: Sequence[bytes | None] = (None,)
    headers: list[tuple[str, bytes]] | None = None


@dataclass
class Interval:
    """What was delivered in a part of the time."""

    #: Seconds since the beginning.
    start: float
    width: float
    latencies: Histogram = field(default_factory=Histogram)


class _Flight:
    """The messages of one chunk: how many were accepted before, and when each was sent."""

    __slots__ = ("first", "sent")

    def __init__(self, first: int) -> None:
        self.first = first
        self.sent = array("d")


class Run:
    """One measurement."""

    def __init__(
        self,
        load: Load,
        producer: Producer,
        signals: Signals,
        patience: Patience,
        show: Callable[[Sequence[Interval]], None],
    ) -> None:
        self.sent = self.delivered = 0
        #: Bytes of the messages' values.
        self.size = self.lost_size = 0
        self.failures = Failures()
        self.intervals: list[Interval] = [Interval(0.0, _WIDTH)]
        self.seconds = 0.0
        self._load = load
        self._producer = producer
        self._signals = signals
        self._patience = patience
        self._show = show
        self._flights: dict[int, _Flight] = {}
        # Told of before we have noted where they are. Rare.
        self._early: list[tuple[float, BaseException | None, Delivery]] = []
        self._latencies = self.intervals[0].latencies
        # From callbacks, which do no more than they must; _count() takes them away.
        self._measured: deque[float] = deque()
        self._began = self._next_look = self._told = time.perf_counter()
        self._first_untold = 0

    def go(self, ending: Callable[[], None]) -> None:
        """Send all, and wait for what becomes of it; *ending* is called if a signal comes."""
        self._began = self._told = time.perf_counter()
        self._next_look = self._began + _COUNTING
        self._send_all()
        settle(self._producer, self._signals, ending, self._look)
        self.seconds = time.perf_counter() - self._began
        last = self.intervals[-1]
        last.width = max(self.seconds - last.start, 1e-6)

    def finish(self) -> None:
        """After the producer was closed: wait for the last callbacks."""
        wait_for_callbacks(self._have_told)

    def _have_told(self) -> bool:
        self._count()
        return not self.unaccounted

    @property
    def unaccounted(self) -> int:
        """How many messages have not been told of."""
        return self.sent - self.delivered - self.failures.total

    @property
    def delivered_size(self) -> int:
        """The bytes of the values that were delivered."""
        return self.size - self.lost_size

    @property
    def latencies(self) -> Histogram:
        """Those of all messages."""
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
        """A message was refused: try again while that may help. None: it was not sent."""
        if isinstance(error, BufferFullError):
            try:
                return self._patience.send(again, self._look)
            except PykaproducerError as another:
                error = another
        self.sent += 1
        self.failures.add(error)
        return None

    # What became of them --------------------------------------------------------------------------

    def _report(self, error: BaseException | None, delivery: Delivery) -> None:
        now = time.perf_counter()
        serial = delivery.chunk.serial
        try:
            began = self._flights[serial].sent[delivery.row]
        except (KeyError, IndexError):
            # 1. send() has accepted it. 2. It is delivered, and we run. 3. The sender notes it.
            self._early.append((now, error, delivery))
            return
        if error is None:
            self._measured.append(now - began)
        else:
            self.failures.add(error)
            self.lost_size += delivery.serialized_value_size

    def _count(self) -> None:
        """What callbacks have left us, and those that came before we had noted where they are."""
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

    # The course of time ---------------------------------------------------------------------------

    def _look(self) -> None:
        """Begin a new interval if it is time, and tell how it goes."""
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
        if now - self._told >= _TELLING:
            self._told = now
            self._show(self.intervals[self._first_untold : -1])
            self._first_untold = len(self.intervals) - 1
            self._join_intervals()

    def _forget(self) -> None:
        """Chunks so old that all of them has been told: buffer_memory holds no more than since."""
        most = self._producer.config.buffer_memory // ROW_COST + CHUNK_ROWS
        oldest = self._producer.accepted - most
        for serial, flight in list(self._flights.items())[:-1]:
            if flight.first + len(flight.sent) > oldest:
                return
            del self._flights[serial]

    def _join_intervals(self) -> None:
        """Two of them become one when there are many, all but the one that grows."""
        if len(self.intervals) <= _MOST_INTERVALS:
            return
        # A callback may still write into the one before the last.
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
        self._first_untold = len(joined) + 1
