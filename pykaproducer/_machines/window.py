"""Limits on the requests in flight to one broker: their number, and the bytes of each.

The machine is pure: the owner reports with ``now`` when a request is sealed, answered or lost, and
reads the limits.

Two requests may always be in flight, so that the next one is on its way while the broker handles
the first. Messages that arrive in that time make the next batches larger. Where round trips are
short, that is worth more than a third request. Further requests, up to
``max_in_flight_requests_per_connection``, are sent

* if a batch, or the request, is full: waiting would not make it larger (of the messages in the open
  chunks, the BrokerWorker learns when a response arrives);
* if the last one was sealed long enough ago (:data:`PAUSE`, or the round trip divided by the limit
  if that is longer). Where round trips are long, requests are then sent at even intervals instead
  of two at a time, and a message waits for a part of the round trip instead of all of it.

A request has at most ``max_request_size`` bytes, because brokers have limits too, and because a
slow connection has to transmit it within the request timeout. If it does not, the bound adapts:

1. a request is lost in transit, or is answered late;
2. the next requests are smaller, down to :data:`LEAST`, and so are batches not sealed yet;
3. each request that is answered soon, and was as large as the bound allows, doubles the bound.
"""

from __future__ import annotations

from typing import Final

from pykaproducer._kernel import WindowState

#: Number of requests that may always be in flight, if the limit allows it.
ALWAYS: Final = 2
#: Minimum interval before a further request that is not full (seconds).
PAUSE: Final = 0.001
#: Lower limit of the bound on a request's bytes.
LEAST: Final = 16 << 10
#: A request that took less than this fraction of the timeout may be twice as large.
_SOON: Final = 0.25
#: Target duration, as a fraction of the timeout, after a request took too long.
_AIM: Final = 0.5


class Window(WindowState):
    """Limits on the requests of one broker's worker.

    *limit*: maximum number of requests in flight; *most*: configured maximum of bytes of a request;
    *timeout*: how long a request may take (seconds).
    """

    def __init__(self, *, limit: int, most: int, timeout: float) -> None:
        super().__init__(limit, ALWAYS, PAUSE, timeout)
        self._configured = most
        #: Maximum number of bytes of a request. (A single batch may be larger.)
        self.most = most

    def sealed(self, now: float) -> None:
        """Record that a request has been sealed."""
        self.sealed_at = now

    def answered(self, now: float, sent: float, size: int) -> None:
        """Record that a request of *size* bytes, sent at *sent*, was answered or fully written."""
        self.record_answer(now, sent)
        took = self.took
        if took > self.timeout:
            self.most = self._within(min(self.most, int(size * _AIM * self.timeout / took)))
        elif took <= _SOON * self.timeout and 2 * size >= self.most:
            self.most = self._within(2 * self.most)

    def lost(self, size: int) -> None:
        """Record that the connection was lost with a request of *size* bytes in flight."""
        if 2 * size >= self.most:
            self.most = self._within(self.most // 2)

    def _within(self, size: int) -> int:
        return min(self._configured, max(LEAST, size))
