"""The connection to one broker: its socket, and the requests and responses on it.

Each Bridge has one, and Metadata has one. A connection has no thread. Its owner calls
:meth:`Connection.poll`, which writes, reads and waits, and returns events. After :class:`Lost` it
may be opened again, with everything except the wake-up socket created anew.

Guarantees: no method blocks longer than its deadline, with two exceptions. ``open`` calls the
resolver, and ``poll`` may call a token provider while it authenticates. Every submitted request is
returned once: in ``Answered``, in ``FullyWritten`` (if no response is expected) or in ``Lost``.
``Lost`` separates requests of which no byte was given to the socket from the others.

If a step of ``open`` or ``poll`` runs out of memory, the connection is lost. Requests are discarded
only once ``Lost`` exists; until there is memory for it, ``poll`` retries.

Relies on: one thread at a time calling it. Only ``wakeup.poke`` may be called by others. While
``poll`` waits, one other thread may write, and the caller ensures that there is at most one.
"""

from __future__ import annotations

import selectors
from collections.abc import Callable

from pykaproducer._machines.liveness import CHECK_TIMEOUT, Liveness
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
from pykaproducer._net.approach import Approach
from pykaproducer._net.events import FAILURES, Event, FullyWritten, Lost, no_answer, why_lost
from pykaproducer._net.outbox import Outbox
from pykaproducer._net.poller import Poller
from pykaproducer._net.transport import (
    ConnectionFailed,
    ConnectionSettings,
    Network,
    Select,
    Transport,
)
from pykaproducer._net.wakeup import Wakeup
from pykaproducer._util.clock import Clock, WakeEvent, earlier
from pykaproducer._util.guarded_log import GuardedLogger
from pykaproducer._util.memory import NO_MEMORY
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

#: Not a literal in the ``except`` clause: that needs memory.
_CANNOT_WRITE = (ConnectionFailed, NoCommonVersion, *NO_MEMORY)
#: Pause before a retry after a MemoryError (seconds).
_NO_MEMORY_WAIT = 0.1


class Connection:
    """A connection to the broker at *address* (host, port); *name* is for logs and errors.

    Raises :class:`ConnectionFailed` if the system has no file descriptors or no memory for it.
    """

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
        try:
            self._events: list[Event] = []
            self._failure: BaseException | str | None = None  # ended it, and is not reported yet
            self._session = Session(config.client_id)
            self._frames = FrameReader(config.receive_message_max_bytes)
            self._transport: Transport | None = None  # once connected
            self._watched = 0  # events of the transport that the selector waits for
            self._setup_deadline = 0.0  # for the whole setup, or for re-authentication
            self._heard = False  # the broker has answered a request
            self._timeouts = RequestTimeouts()
            self._liveness = Liveness(config)
            self._outbox = Outbox()
            # Kept for all attempts.
            self._never = WakeEvent()  # never set: for pauses without the selector
            self._selector = Poller()
            self._approach = Approach(network, self._selector, config)
            self.wakeup = Wakeup()
            network.close_in_child(self.wakeup)
            self._selector.register(self.wakeup, selectors.EVENT_READ)
        except NO_MEMORY as error:
            raise ConnectionFailed("out of memory for a connection") from error

    # Life cycle ------------------------------------------------------------------------------

    @property
    def state(self) -> SessionState:
        """Return the state of the session."""
        return self._session.state

    @property
    def is_closed(self) -> bool:
        """Return whether ``open()`` may be called. False until a loss has been reported."""
        return self._session.state is SessionState.CLOSED and self._failure is None

    def open(self) -> None:
        """Begin to connect. The resolver may block. A failure becomes an event."""
        self._work(self._open)

    def _open(self) -> None:
        now = self._clock.monotonic()
        self._session = Session(
            self._config.client_id,
            self._network.authenticator(self.address[0]),
            system_random.random(),
            self._network.ladders.versions(self.address, now),
        )
        self._heard = False
        self._timeouts = RequestTimeouts(now)
        self._liveness = Liveness(self._config)
        self._frames = FrameReader(self._config.receive_message_max_bytes)
        self._session.move(Move.OPEN)
        self._setup_deadline = self._approach.begin(self.address, self.name, self._clock)
        self._go_on_connecting()

    def give_up(self, reason: str) -> Lost | None:
        """Close the connection because of *reason*; return the event, which ``poll`` does not.

        Return None if there is no memory for the event: ``poll`` returns it later.
        """
        try:
            lost = self._end(reason)
        except NO_MEMORY:
            self._failure = reason
            return None
        self._forget_requests()
        return lost

    def close(self) -> None:
        """Close the connection permanently. To get the requests back, call ``give_up`` first.

        Must not be called in a forked child, which shares the selector with its parent.
        """
        if not self.is_closed:
            self.give_up("closed")
        self._selector.close()
        self.wakeup.close()

    # Requests --------------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """Return whether it is ready, with no request queued, being written or in flight."""
        session = self._session
        return (
            session.state is SessionState.READY
            and self._outbox.is_empty
            and not (session.unanswered or session.reauth_pending or self._failure)
        )

    def submit(self, request: Request) -> None:
        """Queue *request*. ``poll`` encodes and writes it once the connection is ready."""
        request.timeout = request.deadline - self._clock.monotonic()
        self._liveness.is_one_way |= not request.expects_answer
        self._outbox.queued.append(request)

    def refuses(self, api_key: int, *bounds: int) -> str | None:
        """Return why the broker does not support these requests, or None if it does.

        *bounds*: see :meth:`Session.refuses`. Only once the connection is ready.
        """
        return self._session.refuses(api_key, *bounds)

    @property
    def next_deadline(self) -> float | None:
        """Return when the connection will be lost, or re-authenticated, if nothing happens."""
        state = self._session.state
        if state is SessionState.CONNECTING:
            return min(self._approach.deadline, self._earliest())
        if state is SessionState.READY:
            due = self._earliest()
            if due != NEVER or self._liveness.is_one_way:
                due = min(due, self._liveness.next_look_at(self._timeouts.used_at))
            due = min(due, self._session.reauth_due)
            return None if due == NEVER else due
        if state is SessionState.CLOSED:
            return None
        return min(self._setup_deadline, self._earliest())

    @property
    def stale_at(self) -> float:
        """Return from when on no other thread may write, as the connection must be checked."""
        return self._liveness.stale_at(self._timeouts.used_at)

    def _earliest(self) -> float:
        """Return when the first request times out."""
        outbox = self._outbox
        return self._timeouts.earliest(self._session.unanswered, outbox.first, outbox.queued)

    # Polling ---------------------------------------------------------------------------------

    def poll(self, deadline: float | None, select: Select | None = None) -> list[Event]:
        """Write and read as much as possible, and wait for events until *deadline*.

        Returns as soon as there is an event or the wake-up socket was poked. *select* replaces the
        clock's. While it waits, another thread may call :meth:`submit` and :meth:`write_now`, and
        read public attributes.
        """
        woken = False
        try:
            select = select or self._clock.select
            while True:
                self._work(self._flush)
                if self._events or woken:
                    break
                due = self.next_deadline
                if self._failure is not None:
                    due = self._clock.monotonic() + _NO_MEMORY_WAIT
                ready = select(self._selector, earlier(deadline, due), self.wakeup.poke)
                for key, mask in ready:
                    if key.fileobj is self.wakeup:
                        self.wakeup.drain()
                        woken = True
                    elif key.fileobj is self._transport:
                        if mask & selectors.EVENT_READ:
                            self._work(self._receive)
                    elif self._session.state is SessionState.CONNECTING:
                        self._work(self._go_on_connecting, key.fileobj)
                now = self._clock.monotonic()
                if due is not None and now >= due:
                    self._work(self._expire, now)
                if deadline is not None and now >= deadline:
                    break
        except NO_MEMORY:  # not in a step: the next call continues
            if not (self._events or woken):
                self._wait_for_memory(deadline)
        events, self._events = self._events, []
        return events

    def _wait_for_memory(self, deadline: float | None) -> None:
        """Pause without the selector, which may need memory. ``wakeup.poke`` does not end it."""
        try:
            until = self._clock.monotonic() + _NO_MEMORY_WAIT
            self._clock.wait(self._never, earlier(deadline, until))
        except NO_MEMORY:
            return

    def write_now(self) -> None:
        """Write submitted requests in a thread other than the polling one.

        Only while ready, and only for requests that expect a response, because no event can be
        returned here. The polling thread writes the rest and handles failures: see
        :attr:`has_to_go_on`.
        """
        now = self._clock.monotonic()
        due = self._failure is not None or now >= self._session.reauth_due
        if due or self._must_check(now) or self._transport is None:
            return
        try:
            self._outbox.encode_queued(self._session)
            self._outbox.write(self._transport, now, self._timeouts, self._events, patient=False)
        except _CANNOT_WRITE:
            return

    @property
    def has_to_go_on(self) -> bool:
        """Return whether there is anything left to write."""
        return not self._outbox.is_empty or (self._session.reauth_pending and not self.is_closed)

    def _work(self, step: Callable[..., None], *args: object) -> None:
        """Call *step*. A failure in it ends the connection."""
        if self._failure is None:
            try:
                step(*args)
            except FAILURES as error:
                self._failure = error
            else:
                return
        try:
            self._lose(self._failure)
        except NO_MEMORY:
            return  # the next call tries again

    def _expire(self, now: float) -> None:
        """Handle deadlines that have passed by *now*."""
        due = self.next_deadline
        if due is None or now < due:
            return
        session = self._session
        if session.state is SessionState.READY:
            if now >= session.reauth_due:
                log.debug("%s: re-authenticating", self.name)
                session.rest()
            elif now < self._earliest():
                self._look(now)
            else:
                did = "read" if self._outbox else "answer"
                raise ConnectionFailed(f"the broker did not {did} a request in time")
            return
        if session.state is not SessionState.CONNECTING:
            raise no_answer(session, self._network.protocol)
        if now >= self._earliest():
            raise ConnectionFailed(f"{self._approach.doing} took too long")
        self._go_on_connecting()

    # Setup -----------------------------------------------------------------------------------

    def _go_on_connecting(self, ready: object = None) -> None:
        """Continue with the attempt whose transport is *ready*, or with those that are due."""
        now = self._clock.monotonic()
        found = self._approach.go_on(now) if ready is None else self._approach.attend(ready, now)
        if found is not None:
            self._transport = found
            self._watched = selectors.EVENT_READ
            self._liveness.can_look = found.unacknowledged() is not None
            self._outbox.add([self._session.connected()])

    def _watch(self, events: int) -> None:
        """Make the selector wait for *events* of the transport."""
        if events != self._watched:
            self._selector.modify(self._transport, events)
            self._watched = events

    def _forget_transport(self) -> None:
        self._approach.close()
        if self._transport is None:
            return
        if self._watched:
            # Before closing it, because its descriptor may be reused immediately afterwards.
            self._selector.unregister(self._transport)
            self._watched = 0
        self._transport.close()
        self._transport = None

    # Writing ---------------------------------------------------------------------------------

    def _flush(self) -> None:
        """Encode and write until the socket is full."""
        if self._session.reauth_pending:
            self._authenticate_again()
        transport = self._transport
        if transport is None or self._outbox.is_empty:
            return
        while True:
            if self._outbox.queued and self._session.takes_requests:
                self._encode_queued()
            if not self._outbox:
                self._watch(selectors.EVENT_READ)
                return
            self._outbox.write(transport, self._clock.monotonic(), self._timeouts, self._events)
            if self._outbox:  # it took less than it was offered, so the socket is full
                self._watch(selectors.EVENT_READ | selectors.EVENT_WRITE)
                return

    def _must_check(self, now: float) -> bool:
        """Return whether to check the connection before the next request."""
        return now >= self.stale_at and not (self._session.unanswered or self._outbox)

    def _encode_queued(self) -> None:
        """Encode the next requests, or first the one that checks the connection."""
        now = self._clock.monotonic()
        if now >= self._session.reauth_due:  # it fell due while the connection was checked
            self._session.rest()
            self._authenticate_again()
        elif self._must_check(now):
            log.debug("%s: checking the connection, which was unused", self.name)
            self._setup_deadline = now + CHECK_TIMEOUT
            self._outbox.add([self._session.check()])
        else:
            self._liveness.just_checked = False
            self._outbox.encode_queued(self._session)

    def _look(self, now: float) -> None:
        """Look at what the broker's host has acknowledged."""
        assert self._transport is not None
        silent = self._transport.unacknowledged()
        if failure := self._liveness.failure(silent, self._timeouts.used_at, now):
            raise ConnectionFailed(failure)

    def _authenticate_again(self) -> None:
        """Start re-authentication if no request is in flight any more."""
        session = self._session
        if session.state is SessionState.READY and not session.unanswered and not self._outbox:
            self._setup_deadline = self._clock.monotonic() + self._approach.timeout
            self._outbox.add([session.authenticate_again()])

    # Reading ---------------------------------------------------------------------------------

    def _receive(self) -> None:
        """Read and handle all available data."""
        assert self._transport is not None
        while True:
            space = self._frames.space()
            count = self._transport.receive(space)
            self._expect_frame()
            for frame in self._frames.received(count):
                self._handle(frame)
                self._expect_frame()
            if count < len(space):
                return

    def _expect_frame(self) -> None:
        self._frames.least = 0 if self._session.raw else 4
        self._frames.in_setup = self._session.state is not SessionState.READY

    def _handle(self, frame: bytes) -> None:
        session = self._session
        now = self._clock.monotonic()
        checking = session.state is SessionState.CHECKING
        result = session.received(frame, now)
        if isinstance(result, bytes):
            self._outbox.add([result])
            if session.state is SessionState.AUTHENTICATING:
                # The time that a token provider took does not count against the broker.
                self._setup_deadline = self._clock.monotonic() + self._approach.timeout
            return
        self._timeouts.answered(now)
        self._liveness.just_checked = checking
        if isinstance(result, Ready):
            self._approach.ended(well=True)
            self._network.ladders.succeeded(self.address, now)
        if result is not None:
            self._events.append(result)
        if isinstance(result, Answered):
            self._heard = True
            session.unanswered.popleft()  # last: any step before it may lack memory

    # The end -------------------------------------------------------------------------------------

    def _lose(self, failure: BaseException | str) -> None:
        """Report that *failure* has ended this attempt."""
        self._forget_transport()  # first, because why_lost() may raise MemoryError
        negotiating = self._session.state is SessionState.NEGOTIATING
        if negotiating or self._session.state is SessionState.CONNECTING:
            self._approach.ended(well=False)
        if negotiating and isinstance(failure, ConnectionFailed) and not self._frames.partial:
            self._network.ladders.failed(self.address, self._session.ladder)
        reason = why_lost(failure, self._session, self._network.protocol, self._heard)
        if self._session.state is SessionState.CONNECTING and self._approach.doubts(failure):
            reason += "; the cluster advertises this address (advertised.listeners of the broker)"
        self._events.append(self._end(reason))
        self._forget_requests()

    def _end(self, reason: str) -> Lost:
        """End this attempt. Return the event with its requests, which are not forgotten yet."""
        self._forget_transport()
        if self._session.state is not SessionState.CLOSED:
            self._session.move(Move.LOSE)
        log.debug("%s: connection lost: %s", self.name, reason)
        return self._outbox.lost(reason, self._session.unanswered)

    def _forget_requests(self) -> None:
        """Forget the requests, which were reported. Allocates nothing."""
        self._failure = None
        self._session.unanswered.clear()
        self._outbox.clear()
