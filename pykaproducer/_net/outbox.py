"""Requests to be written to a socket, and their bytes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from pykaproducer._machines.request_timeouts import RequestTimeouts
from pykaproducer._machines.session import Request, Session
from pykaproducer._net.events import Event, FullyWritten, Lost
from pykaproducer._net.transport import Transport
from pykaproducer._util.memory import NO_MEMORY

if TYPE_CHECKING:
    from typing_extensions import Buffer

#: Maximum bytes encoded ahead of the socket.
_ENCODED_AHEAD = 4 * 1024 * 1024


class _Leaving(NamedTuple):
    """A request with unsent bytes, and its position in the stream."""

    start: int
    end: int
    request: Request


class Outbox:
    """Requests that wait, and buffers in sending order, which are never copied.

    Positions are counted in bytes from the beginning of the connection.

    Guarantees: no request is lost if memory runs out. After a MemoryError each request is either
    queued or fully encoded. After one in :meth:`write`, nothing more can be written.
    """

    def __init__(self) -> None:
        #: Requests that are submitted and not encoded yet.
        self.queued: deque[Request] = deque()
        #: The buffers to write next.
        self.buffers: list[memoryview] = []
        # The socket may have taken more bytes than are counted.
        self._sent_unknown = False
        self._leaving: deque[_Leaving] = deque()
        self._sent = 0  # start position of the first buffer
        self._end = 0  # end position of the last buffer

    def __len__(self) -> int:
        """Return the number of unsent bytes."""
        return self._end - self._sent

    @property
    def is_empty(self) -> bool:
        """Whether no request is queued or being written."""
        return not (self.queued or self.buffers)

    def encode_queued(self, session: Session) -> None:
        """Encode requests, but no more than the socket is likely to take soon.

        A request that waits for others is thus encoded, with its remaining time, when its turn
        comes.
        """
        while self.queued and self._end - self._sent < _ENCODED_AHEAD:
            request = self.queued[0]
            buffers = session.encode(request)
            try:
                self.add(buffers, request)
            except NO_MEMORY:
                session.withdraw(request)
                raise
            self.queued.popleft()

    def add(self, buffers: Iterable[Buffer], request: Request | None = None) -> None:
        """Append *buffers*. If *request* is given, they are its complete encoding."""
        end = self._end
        views: list[memoryview] = []
        for buffer in buffers:
            view = memoryview(buffer)
            if view.format != "B" or view.ndim != 1:
                view = view.cast("B")
            views.append(view)
            end += len(view)
        if request is not None:
            self._leaving.append(_Leaving(self._end, end, request))
        try:
            self.buffers += views
        except NO_MEMORY:
            if request is not None:
                self._leaving.pop()
            raise
        self._end = end

    def add_begun(
        self, buffers: Iterable[Buffer], request: Request, written: int, now: float
    ) -> None:
        """Append the encoding of *request*, of which the socket took *written* bytes at *now*.

        *request* expects a response. After a MemoryError nothing more can be written.
        """
        try:
            self.add(buffers, request)
            self.took(written, now, [])
        except NO_MEMORY:
            self._sent_unknown = True
            raise

    def write(
        self,
        transport: Transport,
        now: float,
        timeouts: RequestTimeouts,
        events: list[Event],
        *,
        patient: bool = True,
    ) -> None:
        """Write as much as the socket takes. See :meth:`took` for *now* and *events*.

        After a MemoryError every call raises one. Otherwise bytes could be written twice:

        1. the socket takes bytes, and there is no memory for their number;
        2. the same buffers are written again from their beginning.
        """
        if self._sent_unknown:
            raise MemoryError
        try:
            count = transport.send(self.buffers, patient=patient)
            if count:
                self.took(count, now, events)
                timeouts.taken(now)
        except NO_MEMORY:
            self._sent_unknown = True
            raise

    def took(self, count: int, now: float, events: list[Event]) -> None:
        """Remove *count* bytes that the socket took at *now*.

        Fully written requests that expect no response are added to *events*.
        """
        sent = self._sent + count
        whole = 0
        for view in self.buffers:
            if count < len(view):
                break
            count -= len(view)
            whole += 1
        left = self.buffers[whole:]
        if count:
            left[0] = left[0][count:]
        new: list[Event] = []
        for each in self._leaving:
            if each.end > sent:
                break
            if not each.request.expects_answer:
                new.append(FullyWritten(each.request))
        events += new
        # Nothing is allocated from here on.
        self.buffers = left
        self._sent = sent
        while self._leaving and self._leaving[0].end <= sent:
            self._leaving.popleft().request.written = now

    @property
    def first(self) -> Request | None:
        """Return the oldest request with unsent bytes, or None."""
        return self._leaving[0].request if self._leaving else None

    def lost(self, reason: str, unanswered: Iterable[Request]) -> Lost:
        """Return the event that reports all requests. Changes nothing.

        *unanswered*: the encoded requests that expect a response, oldest first.
        """
        # If the number of sent bytes is unknown, the broker may have received any of them.
        sent = self._end if self._sent_unknown else self._sent
        begun = [each.request for each in self._leaving if each.start < sent]
        unwritten = [each.request for each in self._leaving if each.start >= sent]
        not_begun = set(unwritten)
        possibly_received = [request for request in unanswered if request not in not_begun]
        possibly_received += [request for request in begun if not request.expects_answer]
        return Lost(reason, [*unwritten, *self.queued], possibly_received)

    def clear(self) -> None:
        """Discard everything. Allocates nothing."""
        self.queued.clear()
        self.buffers.clear()
        self._leaving.clear()
        self._sent = self._end
        self._sent_unknown = False
