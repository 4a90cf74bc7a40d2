"""One broker's connection: its socket and all that is said over it.

There is one for each Bridge and one for Metadata. It has no thread: whoever owns it calls
:meth:`Connection.poll`, which writes, reads and waits, and says what has happened. After
:class:`Lost` it may be opened again; everything but the wake-up is made anew then.

Guarantees: no method blocks longer than it is told to but ``open``, which asks the resolver, and
``poll`` while it authenticates, which may ask a token provider.
Every request that was submitted comes back exactly once: in ``Answered``, in ``Written`` (when no
answer is expected) or in ``Lost``. ``Lost`` tells requests of which no byte was given to the
socket from those that the broker may have seen.

Relies on: one thread at a time calling it; only ``wakeup.poke`` is for others. While ``poll`` waits
another thread may write, if its caller sees to it that there is one at most.

**When a request takes too long.** A request has its time from when it is its turn, not from when
it was submitted. On a slow line that makes the difference:

1. five requests of 1 MB are submitted at once; the line takes 1 MB in ten seconds;
2. counted from there, the fourth is late after 30 s, although none was written slower than the
   line allows;
3. the connection counts as lost, and all that the broker has not answered is written once more.

So while a request is being written its time counts from the last byte that the socket took, and
once it is written from its last byte. Each answer starts both again: the broker answers in order,
so what is behind the answered request could not have been answered before. The connection to a
broker that sends nothing is lost after the request's time: nothing starts the time again.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
from collections import deque
from collections.abc import Callable
from typing import Protocol

from pykaproducer._chance import chance
from pykaproducer._clock import Clock, earlier
from pykaproducer._machines.authentication import AuthenticationFailed
from pykaproducer._machines.session import (
    Answered,
    Move,
    NoCommonVersion,
    Ready,
    Request,
    Session,
    SessionState,
)
from pykaproducer._net.events import Event, Lost, Written, with_a_guess
from pykaproducer._net.outbox import Outbox
from pykaproducer._net.poller import Poller
from pykaproducer._net.transport import (
    ConnectionFailed,
    Endpoint,
    HandshakeFailed,
    HungUp,
    Network,
    SocketSettings,
    Transport,
)
from pykaproducer._net.wakeup import Wakeup
from pykaproducer._wire import WireError
from pykaproducer._wire.frames import FrameReader

__all__ = [
    "Answered",
    "Connection",
    "ConnectionFailed",
    "ConnectionSettings",
    "Event",
    "Lost",
    "Ready",
    "Request",
    "SessionState",
    "Written",
]

log = logging.getLogger("pykaproducer.net")

#: Setting up a connection (name, TCP, TLS, handshake) takes no longer than this (seconds).
_SETUP_TIMEOUT = 10.0
#: So many bytes are encoded ahead of what the socket has taken.
_ENCODED_AHEAD = 4 * 1024 * 1024
_NEVER = float("inf")


class ConnectionSettings(SocketSettings, Protocol):
    """The settings that concern a connection, as in the configuration."""

    @property
    def client_id(self) -> str | None: ...

    @property
    def request_timeout_ms(self) -> int: ...

    @property
    def receive_message_max_bytes(self) -> int: ...


#: Waits for I/O, as Clock.select.
Select = Callable[
    [selectors.BaseSelector, float | None, Callable[[], None]],
    list[tuple[selectors.SelectorKey, int]],
]


class Connection:
    """See above. *address* is (host, port), *name* what logs and errors call the broker."""

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
        # For the owner's whole life, over all attempts.
        self.wakeup = Wakeup()
        self._selector = Poller()
        self._selector.register(self.wakeup, selectors.EVENT_READ)
        self._events: list[Event] = []
        # Of this attempt.
        self._session = Session(config.client_id)
        self._frames = FrameReader(config.receive_message_max_bytes)
        self._endpoints: list[Endpoint] = []
        self._transport: Transport | None = None
        self._watched = 0  # events of the transport that the selector waits for
        self._setup_deadline = 0.0  # for the whole set-up, or for authenticating again
        self._endpoint_deadline = 0.0  # for connecting to one endpoint
        self._handshake_failed: HandshakeFailed | None = None
        self._heard = False  # a request of ours has been answered
        self._answered_at = 0.0  # when the last one was
        self._taken_at = 0.0  # when the socket last took bytes
        # Requests: submitted, not encoded yet.
        self._queued: deque[Request] = deque()
        # What is encoded and not wholly given to the socket yet.
        self._outbox = Outbox()

    # Its life --------------------------------------------------------------------------------

    @property
    def state(self) -> SessionState:
        """Where it stands."""
        return self._session.state

    @property
    def is_closed(self) -> bool:
        """True when ``open()`` may be called."""
        return self._session.state is SessionState.CLOSED

    def open(self) -> None:
        """Begin to connect. The resolver may block; what goes wrong becomes an event."""
        now = self._clock.monotonic()
        self._session = Session(
            self._config.client_id, self._network.sign_in(self.address[0]), chance.random()
        )
        self._handshake_failed = None
        self._heard = False
        self._answered_at = self._taken_at = now
        self._frames = FrameReader(self._config.receive_message_max_bytes)
        self._session.move(Move.OPEN)
        self._setup_deadline = now + self._setup_timeout
        try:
            self._endpoints = self._network.resolve(*self.address)
        except ConnectionFailed as error:
            self._lose(error)
            return
        self._next_endpoint(ConnectionFailed("the host name stands for no address"))

    def give_up(self, reason: str) -> Lost:
        """Treat the connection as lost, because of *reason*. No ``poll`` tells it again."""
        if self.is_closed:
            return Lost(reason, self._take_queued(), [])
        return self._lost(ConnectionFailed(reason))

    def close(self) -> None:
        """Close it for ever. Whoever wants the requests back calls ``give_up`` first.

        Not in a forked child: the selector is shared with the parent, which would become deaf.
        """
        if not self.is_closed:
            self._lost(ConnectionFailed("closed"))
        self._selector.close()
        self.wakeup.close()

    # Requests --------------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """Return whether it is ready, and nothing is queued, on its way, or unanswered."""
        session = self._session
        return (
            session.state is SessionState.READY
            and not (session.unanswered or self._queued or self._outbox.buffers)
            and not session.resting
        )

    def submit(self, request: Request) -> None:
        """Queue *request*; it is encoded and written by ``poll`` once the connection is ready."""
        request.timeout = request.deadline - self._clock.monotonic()
        self._queued.append(request)

    def refuses(self, api_key: int) -> str | None:
        """Return why the server refuses these requests, None if it does not; once it is ready."""
        return self._session.refuses(api_key)

    @property
    def next_deadline(self) -> float | None:
        """When the connection will be lost, or authenticates again, if nothing happens until
        then."""
        state = self._session.state
        if state is SessionState.CONNECTING:
            return min(self._endpoint_deadline, self._earliest())
        if state is SessionState.READY:
            earliest = self._earliest()
            if self._session.rests_at is not None and not self._session.resting:
                return min(earliest, self._session.rests_at)
            return None if earliest == _NEVER else earliest
        if state is SessionState.CLOSED:
            return None
        return min(self._setup_deadline, self._earliest())

    def _earliest(self) -> float:
        """Return when the first request will have taken too long: see the top of this file."""
        earliest, answered = _NEVER, self._answered_at
        for request in self._session.unanswered:
            if request.written is None:
                break  # nor are those behind it
            earliest = min(earliest, max(request.written, answered) + request.timeout)
        # If it expects no answer it is not among the session's unanswered ones.
        leaving = self._outbox.first
        if leaving is not None:
            began = leaving.deadline - leaving.timeout
            return min(earliest, max(began, self._taken_at, answered) + leaving.timeout)
        if earliest == _NEVER and self._queued:
            return min(request.deadline for request in self._queued)
        return earliest

    # The turn --------------------------------------------------------------------------------

    def poll(self, deadline: float | None, select: Select | None = None) -> list[Event]:
        """Write and read what is possible, and wait until *deadline* at most for more.

        Returns as soon as there is an event or somebody has poked the wake-up. *select*: in place
        of the clock's; while it waits another thread may call :meth:`submit`, :meth:`write_now`,
        and look at what is public here.
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
        """Write what was submitted, in another thread than the one that polls.

        Only while ready, and only requests that expect an answer: no event arises here. What is
        left, and what goes wrong, is left to that thread: see :attr:`has_to_go_on`.
        """
        assert self._transport is not None
        written: list[Request] = []
        with contextlib.suppress(ConnectionFailed, NoCommonVersion, MemoryError):
            self._encode_queued()
            written = self._write(self._transport, patient=False)
        assert all(request.expects_answer for request in written)

    @property
    def has_to_go_on(self) -> bool:
        """Whether something is to be written, and could not be so far."""
        resting = self._session.resting and not self.is_closed
        return bool(self._queued or self._outbox.buffers or resting)

    def _work(self, step: Callable[..., None], *args: object) -> None:
        """Do *step*; what goes wrong in it ends the connection."""
        try:
            step(*args)
        except HungUp as error:
            self._lose(with_a_guess(error, self._session, self._network.protocol, self._heard))
        except ConnectionFailed as error:
            self._lose(error)
        except AuthenticationFailed as error:
            self._lose(ConnectionFailed(str(error)))
        except NoCommonVersion as error:
            self._lose(ConnectionFailed(f"the broker is of no use to this client: {error}"))
        except WireError as error:
            self._lose(ConnectionFailed(f"the broker sent what makes no sense: {error}"))
        except MemoryError:
            self._lose(ConnectionFailed("this process has no memory for a request or an answer"))

    def _attend(self, mask: int) -> None:
        """The socket is ready for something."""
        if self._session.state is SessionState.CONNECTING:
            self._connecting()
        elif mask & selectors.EVENT_READ:
            self._receive()

    def _expire(self, now: float) -> None:
        """Something may have taken too long."""
        due = self.next_deadline
        if due is None or now < due:
            return
        if self._session.state is SessionState.READY:
            if now < self._earliest():
                log.debug("%s: authenticating again", self.name)
                self._session.rest()
                return
            taken = not self._outbox
            did = "answer" if taken else "take"
            raise ConnectionFailed(f"the broker did not {did} a request in time")
        if self._session.state is SessionState.CONNECTING:
            assert self._transport is not None
            self._next_endpoint(ConnectionFailed(f"{self._transport.doing} took too long"))
        else:
            raise ConnectionFailed(
                "the connection stands, but the broker does not answer; is this a Kafka listener "
                f"with the security protocol that is configured, {self._network.protocol}?"
            )

    # Setting it up ---------------------------------------------------------------------------

    def _next_endpoint(self, reason: ConnectionFailed) -> None:
        """Connect to the next of the host's addresses; lost for *reason* if there is none."""
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
        # That nobody listens at a name's other address is no news then.
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
        """Let the selector wait for *events* of the transport."""
        if events == self._watched:
            return
        assert self._transport is not None
        if self._watched:
            self._selector.modify(self._transport, events)
        else:
            self._selector.register(self._transport, events)
        self._watched = events

    def _forget_transport(self) -> None:
        if self._transport is None:
            return
        if self._watched:
            # Before it is closed: its number may be another socket's the next moment.
            self._selector.unregister(self._transport)
            self._watched = 0
        self._transport.close()
        self._transport = None

    # Writing ---------------------------------------------------------------------------------

    def _encode_queued(self) -> None:
        """Encode requests, no more than the socket can be expected to take soon.

        So one that has to wait behind others is encoded, with the time left to it, when its turn
        comes.
        """
        while self._queued and len(self._outbox) < _ENCODED_AHEAD:
            request = self._queued[0]
            self._outbox.add(self._session.encode(request), request)
            self._queued.popleft()

    def _flush(self) -> None:
        """Give the socket what it takes."""
        if self._session.resting:
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
                    self._events.append(Written(request))
            if self._outbox:
                # It took less than it was offered: it is full.
                self._watch(selectors.EVENT_READ | selectors.EVENT_WRITE)
                return

    def _write(self, transport: Transport, *, patient: bool = True) -> list[Request]:
        """Give the socket what it takes; return the requests that are written now."""
        now = self._clock.monotonic()
        count = transport.send(self._outbox.buffers, patient=patient)
        if not count:
            return []
        self._taken_at = now
        written = self._outbox.took(count)
        for request in written:
            request.written = now
        return written

    def _authenticate_again(self) -> None:
        """If nothing is under way any more."""
        session = self._session
        if session.state is SessionState.READY and not session.unanswered and not self._outbox:
            self._setup_deadline = self._clock.monotonic() + self._setup_timeout
            self._outbox.add([session.authenticate_again()])

    # Reading ---------------------------------------------------------------------------------

    def _receive(self) -> None:
        """Take what has come."""
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
        self._frames.least = 0 if session.bare else 4
        if isinstance(result, bytes):
            self._outbox.add([result])
            if session.state is SessionState.AUTHENTICATING:
                # A token provider may have taken its time: that is not the broker's.
                self._setup_deadline = self._clock.monotonic() + self._setup_timeout
        elif result is not None:
            self._heard |= isinstance(result, Answered)
            self._answered_at = now
            self._events.append(result)

    # The end -------------------------------------------------------------------------------------

    def _lose(self, error: ConnectionFailed) -> None:
        self._events.append(self._lost(error))

    def _lost(self, error: ConnectionFailed) -> Lost:
        """This attempt is over."""
        self._session.move(Move.LOSE)
        self._forget_transport()
        begun, unwritten = self._outbox.clear()
        # The session knows all that were encoded and expect an answer.
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
