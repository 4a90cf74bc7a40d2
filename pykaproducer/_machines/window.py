"""How much may be under way to one broker: requests, and bytes of each.

Pure: what was sealed, answered or lost comes in, with ``now``; the owner looks at the numbers.

Two requests may always be unanswered: while the broker works on one, the next is on its way. What
comes in that time makes the next batches larger, and where round trips are short that is worth
more than a third request. Up to ``max_in_flight_requests_per_connection`` of them go

* if a batch, or the request, is full: waiting would not make it larger;
* if the last one was sealed a good while ago (:data:`PAUSE`, or the round trip divided by the limit
  if that is longer): where round trips are long, requests go at even distances instead of two
  at a time, and a message waits for a part of the round trip, not for all of it.

A request holds ``max_request_size`` at most, because brokers have limits too, and because a slow
line has to take it in the time that a request has. Where it does not, the bound adapts to the line:

1. a request is lost on its way, or is answered late;
2. the next ones are smaller, down to :data:`LEAST`; batches that are not sealed yet as well;
3. each request that is answered soon, and was as large as the bound allows, doubles the bound.
"""

from __future__ import annotations

from typing import Final

#: Requests that may be unanswered in any case, if the limit allows it.
ALWAYS: Final = 2
#: A further request that is not full is sent this long after the one before it (seconds).
PAUSE: Final = 0.005
#: The bound on a request's bytes goes no lower.
LEAST: Final = 16 << 10
#: A request that took less than this part of its time would fit its time if it were twice as large.
_SOON: Final = 0.25
#: What a request that took too long is cut down to: the part of its time that it should take.
_AIM: Final = 0.5
#: How much longer than the last one a request may take (see :meth:`Window.patience`).
_SPARE: Final = 2.0


class Window:
    """What one broker's worker may send.

    *limit*: requests that may be unanswered; *most*: bytes of a request, by the settings;
    *timeout*: how long a request may take (seconds).
    """

    def __init__(self, *, limit: int, most: int, timeout: float) -> None:
        self.limit = limit
        self._configured = most
        self._timeout = timeout
        #: Most bytes of a request. (A single batch may be larger.)
        self.most = most
        #: How long the last answered request took, from when it was its turn (seconds).
        self.took = 0.0
        self._answered_at = 0.0
        self._sealed_at = 0.0
        # Of the last answered request, from when it was sent.
        self._round_trip = 0.0

    def opens_at(self, under_way: int, *, full: bool) -> float | None:
        """Return when the next request may be sealed: 0 for now, None for not before an answer.

        *under_way*: requests that are sealed and not answered. *full*: whether what is pending
        fills a batch, or a request. (With a limit of 1 a full one is sealed ahead, and waits.)
        """
        if under_way < min(ALWAYS, self.limit):
            return 0.0
        if under_way >= max(ALWAYS, self.limit):
            return None
        if full:
            return 0.0
        if self.limit < ALWAYS:
            return None
        return self._sealed_at + max(PAUSE, self._round_trip / self.limit)

    def sealed(self, now: float) -> None:
        """Record that a request has been sealed."""
        self._sealed_at = now

    def answered(self, now: float, sent: float, size: int) -> None:
        """Record that a request of *size* bytes, sent at *sent*, was answered, or written whole."""
        self._round_trip = now - sent
        # The broker answers in order: its turn came with the answer before it.
        took = self.took = now - max(sent, self._answered_at)
        self._answered_at = now
        if took > self._timeout:
            self.most = self._within(min(self.most, int(size * _AIM * self._timeout / took)))
        elif took <= _SOON * self._timeout and 2 * size >= self.most:
            self.most = self._within(2 * self.most)

    def lost(self, size: int) -> None:
        """Record that the connection was lost with a request of *size* bytes under way."""
        if 2 * size >= self.most:
            self.most = self._within(self.most // 2)

    def patience(self, least: float) -> float:
        """Return how long to wait for a request whose messages' deadlines leave it *least* seconds.

        It is longer on a slow line that works: giving up the connection for messages that are late
        anyway would delay those behind them even more.
        """
        return min(self._timeout, max(least, _SPARE * self.took))

    def _within(self, size: int) -> int:
        return min(self._configured, max(LEAST, size))
