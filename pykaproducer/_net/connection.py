"""The connection to one broker: its socket, and the requests and responses on it.

Each Bridge has one, and Metadata has one. A connection has no thread. Its owner calls
:meth:`Connection.poll`, which writes, reads and waits, and returns events. After :class:`Lost` it
may be opened again, with everything except the wake-up socket created anew.

Guarantees: no method blocks longer than its deadline, with two exceptions. ``open`` calls the
resolver, and ``poll`` may call a token provider while it authenticates. Every submitted request is
returned once: in ``Answered``, in ``FullyWritten`` (if no response is expected) or in ``Lost``.
``Lost`` separates requests of which no byte was given to the socket from those that the broker may
have received.

Relies on: one thread at a time calling it. Only ``wakeup.poke`` may be called by others. While
``poll`` waits, one other thread may write, and the caller ensures that there is at most one.

Request timeouts: see ``_machines/request_timeouts.py``.
"""

from __future__ import annotations

import contextlib
import selectors
from collections import deque
from collections.abc import Callable

from pykaproducer._machines.request_timeouts import NEVER, RequestTimeouts
from pykaproducer._machines.session import (
    Answered,
    Move,
    NoCommonVersion,
    Ready,
    Request,
    Session,
    SessionState,
)
from pykaproducer._net.events import (
    FAILURES,
    Event,
    FullyWritten,
    Lost,
    as_connection_failed,
    with_likely_cause,
)
from pykaproducer._net.outbox import Outbox
from pykaproducer._net.poller import Poller
from pykaproducer._net.transport import (
    ConnectionFailed,
    ConnectionSettings,
    Endpoint,
    HandshakeFailed,
    HungUp,
    Network,
    Select,
    Transport,
)
from pykaproducer._net.wakeup import Wakeup
from pykaproducer._util.clock import Clock, earlier
from pykaproducer._util.guarded_log import GuardedLogger
from pykaproducer._util.randomness import system_random
from pykaproducer._wire.frames import FrameReader

__all__ = [
    "Answered",
    "Connection",
    "ConnectionFailed",
    "ConnectionSettings",
    "Event",
    "FullyWritten",
    "Lost",
    "Ready",
    "Request",
    "SessionState",
]

log = GuardedLogger("pykaproducer.net")

#: Maximum time to set up a connection: name resolution, TCP, TLS, handshake (seconds).
_SETUP_TIMEOUT = 10.0
#: Maximum bytes encoded ahead of the socket.
_ENCODED_AHEAD = 4 * 1024 * 1024


class Connection:
    """A connection to the broker at *address* (host, port); *name* is for logs and errors."""

    def __init__(
        self,
        address: tuple[str, int],
        *,
        config: ConnectionSettings,
        clock: Clock,
        network: Network,
        name: str | None = None,
    ) -> None:
        self.address = address
        self.name = name or "broker at {}:{}".format(*address)
        self._config = config
        self._clock = clock
        self._network = network
        self._setup_timeout = min(_SETUP_TIMEOUT, config.request_timeout_ms / 1000)
        # Kept for all attempts.
        self.wakeup = Wakeup()
        self._selector = Poller()
        self._selector.register(self.wakeup, selectors.EVENT_READ)
        self._events: list[Event] = []
        # Of the current attempt.
        self._session = Session(config.client_id)
        self._frames = FrameReader(config.receive_message_max_bytes)
        self._endpoints: list[Endpoint] = []
        self._transport: Transport | None = None
        self._watched = 0  # events of the transport that the selector waits for
        self._setup_deadline = 0.0  # for the whole setup, or for re-authentication
        self._endpoint_deadline = 0.0  # for connecting to one endpoint
        self._handshake_failed: HandshakeFailed | None = None
        self._heard = False  # the broker has answered a request
        self._timeouts = RequestTimeouts()
        # Requests that are submitted and not encoded yet.
        self._queued: deque[Request] = deque()
        # Encoded bytes that the socket has not taken yet.
        self._outbox = Outbox()

    # Life cycle ------------------------------------------------------------------------------

    @property
    def state(self) -> SessionState:
        """Return the state of the session."""
        return self._session.state

    @property
    def is_closed(self) -> bool:
        """Return whether ``open()`` may be called."""
        return self._session.state is SessionState.CLOSED

    def open(self) -> None:
        """Begin to connect. The resolver may block. A failure becomes an event."""
        now = self._clock.monotonic()
        self._session = Session(
            self._config.client_id,
            self._network.authenticator(self.address[0]),
            system_random.random(),
        )
        self._handshake_failed = None
        self._heard = False
        self._timeouts = RequestTimeouts(now)
        self._frames = FrameReader(self._config.receive_message_max_bytes)
        self._session.move(Move.OPEN)
        self._setup_deadline = now + self._setup_timeout
        try:
            self._endpoints = self._network.resolve(*self.address)
        except ConnectionFailed as error:
            self._lose(error)
            return
        self._next_endpoint(ConnectionFailed("the host name has no address"))

    def give_up(self, reason: str) -> Lost:
        """Treat the connection as lost because of *reason*. ``poll`` does not report this."""
        if self.is_closed:
            return Lost(reason, self._take_queued(), [])
        return self._lost(ConnectionFailed(reason))

    def close(self) -> None:
        """Close the connection permanently. To get the requests back, call ``give_up`` first.

        Must not be called in a forked child, which shares the selector with its parent.
        """
        if not self.is_closed:
            self._lost(ConnectionFailed("closed"))
        self._selector.close()
        self.wakeup.close()

    # Requests --------------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """Return whether it is ready, with no request queued, being written or in flight."""
        session = self._session
        return (
            session.state is SessionState.READY
            and not (session.unanswered or self._queued or self._outbox.buffers)
            and not session.reauth_pending
        )

    def submit(self, request: Request) -> None:
        """Queue *request*. ``poll`` encodes and writes it once the connection is ready."""
        request.timeout = request.deadline - self._clock.monotonic()
        self._queued.append(request)

    def refuses(self, api_key: int) -> str | None:
        """Return why the broker does not support these requests, or None if it does.

        Only once the connection is ready.
        """
        return self._session.refuses(api_key)

    @property
    def next_deadline(self) -> float | None:
        """Return when the connection will be lost, or re-authenticated, if nothing happens."""
        state = self._session.state
        if state is SessionState.CONNECTING:
            return min(self._endpoint_deadline, self._earliest())
        if state is SessionState.READY:
            earliest = self._earliest()
            if self._session.reauth_at is not None and not self._session.reauth_pending:
                return min(earliest, self._session.reauth_at)
            return None if earliest == NEVER else earliest
        if state is SessionState.CLOSED:
            return None
        return min(self._setup_deadline, self._earliest())

    def _earliest(self) -> float:
        """Return when the first request times out."""
        return self._timeouts.earliest(self._session.unanswered, self._outbox.first, self._queued)

    # Polling ---------------------------------------------------------------------------------

    def poll(self, deadline: float | None, select: Select | None = None) -> list[Event]:
        """Write and read as much as possible, and wait for events until *deadline*.

        Returns as soon as there is an event or the wake-up socket was poked. *select* replaces the
        clock's. While it waits, another thread may call :meth:`submit` and :meth:`write_now`, and
        read public attributes.
        """
        woken = False
        select = select or self._clock.select
        while True:
            self._work(self._flush)
            if self._events or woken:
                break
            due = self.next_deadline
            ready = select(self._selector, earlier(deadline, due), self.wakeup.poke)
            for key, mask in ready:
                if key.fileobj is self.wakeup:
                    self.wakeup.drain()
                    woken = True
                elif key.fileobj is self._transport:
                    self._work(self._attend, mask)
            now = self._clock.monotonic()
            if due is not None and now >= due:
                self._work(self._expire, now)
            if deadline is not None and now >= deadline:
                break
        events, self._events = self._events, []
        return events

    def write_now(self) -> None:
        """Write submitted requests in a thread other than the polling one.

        Only while ready, and only for requests that expect a response, because no event can be
        returned here. The polling thread writes the rest and handles failures: see
        :attr:`has_to_go_on`.
        """
        assert self._transport is not None
        written: list[Request] = []
        with contextlib.suppress(ConnectionFailed, NoCommonVersion, MemoryError):
            self._encode_queued()
            written = self._write(self._transport, patient=False)
        assert all(request.expects_answer for request in written)

    @property
    def has_to_go_on(self) -> bool:
        """Return whether there is anything left to write."""
        reauth_pending = self._session.reauth_pending and not self.is_closed
        return bool(self._queued or self._outbox.buffers or reauth_pending)

    def _work(self, step: Callable[..., None], *args: object) -> None:
        """Call *step*. A failure in it ends the connection."""
        try:
            step(*args)
        except HungUp as error:
            self._lose(with_likely_cause(error, self._session, self._network.protocol, self._heard))
        except FAILURES as error:
            self._lose(as_connection_failed(error))

    def _attend(self, mask: int) -> None:
        """Handle readiness of the socket."""
        if self._session.state is SessionState.CONNECTING:
            self._connecting()
        elif mask & selectors.EVENT_READ:
            self._receive()

    def _expire(self, now: float) -> None:
        """Handle deadlines that have passed by *now*."""
        due = self.next_deadline
        if due is None or now < due:
            return
        if self._session.state is SessionState.READY:
            if now < self._earliest():
                log.debug("%s: re-authenticating", self.name)
                self._session.rest()
                return
            taken = not self._outbox
            did = "answer" if taken else "read"
            raise ConnectionFailed(f"the broker did not {did} a request in time")
        if self._session.state is SessionState.CONNECTING:
            assert self._transport is not None
            self._next_endpoint(ConnectionFailed(f"{self._transport.doing} took too long"))
        else:
            raise ConnectionFailed(
                "connected, but the broker does not answer; is this a Kafka listener with the "
                f"configured security protocol, {self._network.protocol}?"
            )

    # Setup -----------------------------------------------------------------------------------

    def _next_endpoint(self, reason: ConnectionFailed) -> None:
        """Connect to the host's next address. If there is none, fail because of *reason*."""
        while self._endpoints:
            self._forget_transport()
            endpoint = self._endpoints.pop(0)
            now = self._clock.monotonic()
            share = (self._setup_deadline - now) / (len(self._endpoints) + 1)
            self._endpoint_deadline = now + max(0.0, share)
            log.debug("%s: connecting to %s", self.name, endpoint)
            try:
                self._transport = self._network.connect(endpoint)
                self._go_on_connecting(self._transport)
            except ConnectionFailed as error:
                reason = self._noted(error)
            else:
                return
        # A failed handshake is more informative than another address without a listener.
        self._lose(self._handshake_failed or reason)

    def _connecting(self) -> None:
        assert self._transport is not None
        try:
            self._go_on_connecting(self._transport)
        except ConnectionFailed as error:
            self._next_endpoint(self._noted(error))

    def _noted(self, error: ConnectionFailed) -> ConnectionFailed:
        if isinstance(error, HandshakeFailed):
            self._handshake_failed = error
        return error

    def _go_on_connecting(self, transport: Transport) -> None:
        wanted = transport.finish_connect()
        self._watch(wanted or selectors.EVENT_READ)
        if not wanted:
            log.debug("%s: connected", self.name)
            self._outbox.add([self._session.connected()])

    def _watch(self, events: int) -> None:
        """Make the selector wait for *events* of the transport."""
        if events != self._watched:
            self._selector.modify(self._transport, events)
            self._watched = events

    def _forget_transport(self) -> None:
        if self._transport is None:
            return
        if self._watched:
            # Before closing it, because its descriptor may be reused immediately afterwards.
            self._selector.unregister(self._transport)
            self._watched = 0
        self._transport.close()
        self._transport = None

    # Writing ---------------------------------------------------------------------------------

    def _encode_queued(self) -> None:
        """Encode requests, but no more than the socket is likely to take soon.

        A request that waits for others is thus encoded, with its remaining time, when its turn
        comes.
        """
        while self._queued and len(self._outbox) < _ENCODED_AHEAD:
            request = self._queued[0]
            self._outbox.add(self._session.encode(request), request)
            self._queued.popleft()

    def _flush(self) -> None:
        """Encode and write until the socket is full."""
        if self._session.reauth_pending:
            self._authenticate_again()
        if not self._queued and not self._outbox.buffers:
            return
        transport = self._transport
        if transport is None or self._session.state is SessionState.CONNECTING:
            return
        while True:
            if self._queued and self._session.takes_requests:
                self._encode_queued()
            if not self._outbox:
                self._watch(selectors.EVENT_READ)
                return
            for request in self._write(transport):
                if not request.expects_answer:
                    self._events.append(FullyWritten(request))
            if self._outbox:
                # The socket took less than it was offered, so it is full.
                self._watch(selectors.EVENT_READ | selectors.EVENT_WRITE)
                return

    def _write(self, transport: Transport, *, patient: bool = True) -> list[Request]:
        """Write as much as the socket takes. Return the requests that are now fully written."""
        now = self._clock.monotonic()
        count = transport.send(self._outbox.buffers, patient=patient)
        if not count:
            return []
        self._timeouts.taken(now)
        written = self._outbox.took(count)
        for request in written:
            request.written = now
        return written

    def _authenticate_again(self) -> None:
        """Start re-authentication if no request is in flight any more."""
        session = self._session
        if session.state is SessionState.READY and not session.unanswered and not self._outbox:
            self._setup_deadline = self._clock.monotonic() + self._setup_timeout
            self._outbox.add([session.authenticate_again()])

    # Reading ---------------------------------------------------------------------------------

    def _receive(self) -> None:
        """Read and handle all available data."""
        assert self._transport is not None
        while True:
            space = self._frames.space()
            count = self._transport.receive(space)
            for frame in self._frames.received(count):
                self._handle(frame)
            if count < len(space):
                return

    def _handle(self, frame: bytes) -> None:
        session = self._session
        now = self._clock.monotonic()
        result = session.received(frame, now)
        self._frames.least = 0 if session.raw else 4
        if isinstance(result, bytes):
            self._outbox.add([result])
            if session.state is SessionState.AUTHENTICATING:
                # The time that a token provider took does not count against the broker.
                self._setup_deadline = self._clock.monotonic() + self._setup_timeout
        elif result is not None:
            self._heard |= isinstance(result, Answered)
            self._timeouts.answered(now)
            self._events.append(result)

    # The end -------------------------------------------------------------------------------------

    def _lose(self, error: ConnectionFailed) -> None:
        self._events.append(self._lost(error))

    def _lost(self, error: ConnectionFailed) -> Lost:
        """End this attempt and return the event with its unfinished requests."""
        self._session.move(Move.LOSE)
        self._forget_transport()
        begun, unwritten = self._outbox.clear()
        # The session knows all encoded requests that expect a response.
        not_begun = set(map(id, unwritten))
        unanswered = [r for r in self._session.unanswered if id(r) not in not_begun]
        unanswered += [r for r in begun if not r.expects_answer]
        self._endpoints.clear()
        log.debug("%s: connection lost: %s", self.name, error)
        return Lost(str(error), unwritten + self._take_queued(), unanswered)

    def _take_queued(self) -> list[Request]:
        queued = list(self._queued)
        self._queued.clear()
        return queued
