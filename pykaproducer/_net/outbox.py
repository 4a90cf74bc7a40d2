"""Bytes to be written to a socket, and the requests that they belong to."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from pykaproducer._machines.session import Request

if TYPE_CHECKING:
    from typing_extensions import Buffer


class _Leaving(NamedTuple):
    """A request with unsent bytes, and its position in the stream."""

    start: int
    end: int
    request: Request


class Outbox:
    """Buffers in sending order, which are never copied.

    Positions are counted in bytes from the beginning of the connection.
    """

    def __init__(self) -> None:
        #: The buffers to write next.
        self.buffers: list[memoryview] = []
        self._leaving: deque[_Leaving] = deque()
        self._sent = 0  # start position of the first buffer
        self._end = 0  # end position of the last buffer

    def __len__(self) -> int:
        """Return the number of unsent bytes."""
        return self._end - self._sent

    def add(self, buffers: Iterable[Buffer], request: Request | None = None) -> None:
        """Append *buffers*. If *request* is given, they are its complete encoding."""
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
        """Remove *count* bytes that the socket took. Return the requests that are now written."""
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
        """Return the oldest request with unsent bytes, or None."""
        return self._leaving[0].request if self._leaving else None

    def clear(self) -> tuple[list[Request], list[Request]]:
        """Discard everything. Return the partially sent requests (at most one) and the unsent ones.

        Fully sent requests are in neither list.
        """
        begun = [each.request for each in self._leaving if each.start < self._sent]
        others = [each.request for each in self._leaving if each.start >= self._sent]
        self.buffers.clear()
        self._leaving.clear()
        self._sent = self._end
        return begun, others
