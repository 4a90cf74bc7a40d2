"""A connection whose socket a caller may use while its owner waits: the connection of a Bridge.

``_kernel_parts/caller.pxi`` describes what a caller does with it. While the socket is lent, the
connection is idle and its owner waits in ``poll``. A request that a caller has begun, and not
settled, is adopted: from then on it is as if the connection had written and read those bytes.
"""

from __future__ import annotations

from pykaproducer._kernel import CallerLink, ProduceRequest
from pykaproducer._net.connection import Connection, Request, SessionState
from pykaproducer._net.transport import PlainTransport
from pykaproducer._util.memory import NO_MEMORY


class LendableConnection(Connection):
    """A connection that can be lent through a :class:`~pykaproducer._kernel.CallerLink`."""

    _link: CallerLink | None = None

    def attach(self, link: CallerLink, api_key: int) -> int | None:
        """Make the socket available to *link*; return the version of requests to write.

        Called once the connection is ready. Returns None on other systems than Linux, with a clock
        that is not real, and for transports that are not sockets.
        """
        transport = self._transport
        if transport is None or not self._clock.is_real:
            return None
        if transport.stream is None and not isinstance(transport, PlainTransport):
            return None
        if not link.attach(transport.fileno(), self.wakeup.writer(), transport.stream):
            return None
        self._link = link
        try:
            self._selector.watch_instead(transport, link)
        except NO_MEMORY:
            return None
        return self._session.versions.get(api_key)

    def check(self) -> bool:
        """Check the connection if it was unused too long. Return whether ``Checked`` follows."""
        if self._session.takes_requests and self._must_check(self._clock.monotonic()):
            self._work(self._encode_queued)
        return self._session.state is SessionState.CHECKING

    def used(self, now: float) -> None:
        """Record that a caller received the response to its request at *now*."""
        self._timeouts.answered(now)
        self._liveness.just_checked = False

    def adopt(self, request: Request, begun: ProduceRequest) -> None:
        """Continue with *request*, which a caller has *begun*.

        Called for all of them, oldest first, before :meth:`received`. A failure ends the connection
        only then, and so with all of them.
        """
        request.correlation_id = begun.correlation_id
        request.timeout = request.deadline - begun.sent
        self._timeouts.taken(begun.sent)
        self._liveness.just_checked = False
        self._session.unanswered.append(request)
        try:
            self._outbox.add_begun(begun.buffers, request, begun.written, begun.sent)
        except NO_MEMORY as error:
            self._failure = error

    def received(self, data: bytes) -> None:
        """Continue with *data*, what was read of the responses to requests that are adopted."""
        self._work(self._go_on_reading, data)

    def _go_on_reading(self, data: bytes) -> None:
        space = self._frames.space()
        space[: len(data)] = data
        for frame in self._frames.received(len(data)):
            self._handle(frame)
        self._receive()  # with TLS, the rest of it may have left the socket

    def _forget_transport(self) -> None:
        if self._link is not None:
            # Before the socket is closed: a forked child may have a duplicate of it, with which the
            # system would keep watching.
            self._link.detach()
            self._link = None
        super()._forget_transport()
