"""How much may be under way to one broker: bytes of a request.

Pure: what was answered or lost comes in, with ``now``; nobody is told, the numbers are looked at.

A request holds ``max_request_size`` at most, because brokers have limits too, and because a slow
line has to take it in the time that a request has. Where it does not, the bound adapts to the line:

1. a request is lost on its way, or is answered late;
2. the next ones are smaller, down to :data:`LEAST`; batches that are not sealed yet as well;
3. each request that is answered soon, and was as large as the bound allows, doubles the bound.
"""

from __future__ import annotations

from typing import Final

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

    *most*: bytes of a request, by the settings; *timeout*: how long a request may take (seconds).
    """

    def __init__(self, *, most: int, timeout: float) -> None:
        self._configured = most
        self._timeout = timeout
        #: Most bytes of a request. (A single batch may be larger.)
        self.most = most
        #: How long the last answered request took, from when it was its turn (seconds).
        self.took = 0.0
        self._answered_at = 0.0

    def answered(self, now: float, sent: float, size: int) -> None:
        """A request of *size* bytes, sent at *sent*, has been answered, or written whole."""
        # The broker answers in order: its turn came with the answer before it.
        took = self.took = now - max(sent, self._answered_at)
        self._answered_at = now
        if took > self._timeout:
            self.most = self._within(min(self.most, int(size * _AIM * self._timeout / took)))
        elif took <= _SOON * self._timeout and 2 * size >= self.most:
            self.most = self._within(2 * self.most)

    def lost(self, size: int) -> None:
        """The connection was lost while a request of *size* bytes was written, or unanswered."""
        if 2 * size >= self.most:
            self.most = self._within(self.most // 2)

    def patience(self, least: float) -> float:
        """How long a request may take that has only *least* seconds by its messages' deadlines.

        Longer on a line that is slow and works: a connection that is given up for messages that
        are late anyway costs those behind them more.
        """
        return min(self._timeout, max(least, _SPARE * self.took))

    def _within(self, size: int) -> int:
        return min(self._configured, max(LEAST, size))
