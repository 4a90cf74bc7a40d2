"""What is to be given to a socket, and which requests it belongs to."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from pykaproducer._machines.session import Request

if TYPE_CHECKING:
    from typing_extensions import Buffer


class _Leaving(NamedTuple):
    """A request of which some bytes are still here, and where in the stream it lies."""

    start: int
    end: int
    request: Request


class Outbox:
    """Buffers in the order in which they are sent, without ever copying one.

    Positions are counted in bytes from the beginning of the connection.
    """

    def __init__(self) -> None:
        #: What the socket is to be offered.
        self.buffers: list[memoryview] = []
        self._leaving: deque[_Leaving] = deque()
        self._sent = 0  # the position before the first of the buffers
        self._end = 0  # the position behind the last

    def __len__(self) -> int:
        """How many bytes are here."""
        return self._end - self._sent

    def add(self, buffers: Iterable[Buffer], request: Request | None = None) -> None:
        """Put *buffers* behind what is here; they are the whole of *request*, if it is given."""
        start = self._end
        for buffer in buffers:
            view = memoryview(buffer)
            if view.format != "B" or view.ndim != 1:
                view = view.cast("B")
            self.buffers.append(view)
            self._end += len(view)
        if request is not None:
            self._leaving.append(_Leaving(start, self._end, request))

    def took(self, count: int) -> list[Request]:
        """The socket took *count* bytes: the requests of which the last byte is gone now."""
        self._sent += count
        whole = 0
        for view in self.buffers:
            if count < len(view):
                break
            count -= len(view)
            whole += 1
        del self.buffers[:whole]
        if count:
            self.buffers[0] = self.buffers[0][count:]
        gone: list[Request] = []
        while self._leaving and self._leaving[0].end <= self._sent:
            gone.append(self._leaving.popleft().request)
        return gone

    @property
    def first(self) -> Request | None:
        """Return the oldest request of which some bytes are still here."""
        return self._leaving[0].request if self._leaving else None

    def clear(self) -> tuple[list[Request], list[Request]]:
        """Forget everything: the requests that were begun (one at most), and those that were not.

        All of them were not wholly sent.
        """
        begun = [each.request for each in self._leaving if each.start < self._sent]
        others = [each.request for each in self._leaving if each.start >= self._sent]
        self.buffers.clear()
        self._leaving.clear()
        self._sent = self._end
        return begun, others
