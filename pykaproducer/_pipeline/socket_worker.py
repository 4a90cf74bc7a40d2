"""SocketWorker: a stage that owns a socket, the base class of Bridge and Metadata.

The thread that runs the stage owns its connection. That is the stage's own thread, except while it
waits. It waits for its inbox and its socket at once, in the connection's ``poll``: every ``put``
triggers the wake-up descriptor that the connection watches in addition to the socket. Only while
the system refuses the descriptors or the memory for that does it wait for the wake-up event.

A small request may be written inline, by the calling thread (``worker.py``). The response is always
read by the stage's own thread. On an idle producer that saves one wake-up per message, provided
that the thread does not have to be woken because of the request's deadline. Therefore the thread
wakes up by itself some time after each request and response, instead of sleeping without a limit.
(Not while callers may use the connection: waking up would hand their requests over.)

No item is overlooked: ``put`` (1) appends the item, (2) checks for a connection and triggers its
wake-up; the thread (1) publishes its connection, (2) empties the inbox, (3) waits.
"""

from __future__ import annotations

import math
import selectors
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from pykaproducer._kernel import ConnectionMetrics
from pykaproducer._machines.cluster import Backoff
from pykaproducer._machines.session import LAST_VERSION, Checked
from pykaproducer._net.connection import (
    Answered,
    Connection,
    ConnectionFailed,
    Event,
    FullyWritten,
    Lost,
    Ready,
    Request,
    SessionState,
)
from pykaproducer._net.token_gate import tokens_of
from pykaproducer._net.transport import Network
from pykaproducer._pipeline.current_thread import in_a_stage
from pykaproducer._pipeline.worker import STOP, Item, StageContext, Worker
from pykaproducer._util.clock import earlier
from pykaproducer._util.guarded_log import GuardedLogger
from pykaproducer._util.memory import NO_MEMORY
from pykaproducer._util.randomness import system_random
from pykaproducer.config import Config

if TYPE_CHECKING:
    from pykaproducer._net.tokens import TokenFailure, Tokens

log = GuardedLogger("pykaproducer.net")

#: Maximum time to sleep after a request or a response (seconds). It is shorter than the usual
#: request timeout. (With a shorter request_timeout_ms, the thread is woken for each request.)
_DOZE: Final = 2.0
#: Descriptions of a connection that is being set up.
_SETTING_UP: Final = {
    SessionState.CONNECTING: "the connection to {}:{} is not established yet",
    SessionState.CHECKING: "{}:{} has not answered the check of the unused connection yet",
    SessionState.NEGOTIATING: "{}:{} has not answered the first request yet",
    SessionState.AUTHENTICATING: "authentication with {mechanism} at {}:{} has not ended yet",
}
#: Hints for mechanisms that may take long.
_HINTS: Final = {"OAUTHBEARER": "; has sasl_oauth_token_provider returned?"}
#: Minimum wait after the system refused file descriptors or memory (seconds).
_RESOURCES_BACKOFF: Final = 0.05
#: Bytes of the length and correlation id before a response's payload.
_RESPONSE_HEAD: Final = 8


class SocketWorker(Worker[Item]):
    """A worker with one connection, re-established with backoff while it is wanted."""

    _connection_type: type[Connection] = Connection

    def __init__(self, name: str, context: StageContext, config: Config, network: Network) -> None:
        super().__init__(name, context)
        self._config = config
        self._network = network
        # None: the credentials are always there.
        self._tokens = tokens_of(network)
        self._awaits_token = False
        self._seen_failure: TokenFailure | None = None
        self.ready = False
        #: The finalized features of the cluster, as of the present connection.
        self.features: Mapping[str, int] = {}
        #: The newest common version of each request, as of the present connection.
        self.versions: dict[int, int] = {}
        self._connection: Connection | None = None
        #: An exception is about to end the thread.
        self.has_crashed = False
        #: Callers may use the connection while this thread waits.
        self.is_lent = False
        # A request was sent or answered since the last wait.
        self._busy = False
        # When the connection will have been unused for too long.
        self._idle_at = math.inf
        # Do not reconnect before this.
        self._not_before = 0.0
        self._reconnect: Backoff | None = None

    # To be overridden ----------------------------------------------------------------------------

    def wants_connection(self) -> bool:
        """Return whether to connect if there is no connection."""
        raise AssertionError(f"{type(self).__name__} does not implement wants_connection()")

    def next_address(self) -> tuple[str, int] | str:
        """Return the address to connect to, or a text that explains why there is none."""
        raise AssertionError(f"{type(self).__name__} does not implement next_address()")

    def on_ready(self) -> None:
        """React to a new connection, which is ready for requests."""

    def on_checked(self) -> None:
        """React to the end of a connection check: the connection may be used."""

    def on_answer(self, event: Answered) -> None:
        """Handle the response to a request."""

    def on_written(self, request: Request) -> None:
        """React to the last byte of a request without a response having been written."""

    def on_connection_idle(self) -> None:
        """React to the closing of an idle connection. No request was in flight."""

    def on_lost(self, reason: str, unanswered: list[Request], unwritten: list[Request]) -> None:
        """React to the loss of the connection, or to a failed attempt to connect."""

    def on_all_handled(self) -> None:
        """React to the end of a round of events: all that came together were handled."""

    def connection_metrics(self) -> ConnectionMetrics:
        """Return the metrics of the connection."""
        raise AssertionError(f"{type(self).__name__} does not implement link()")

    def lend(self) -> float | None:
        """Let callers use the connection: this thread is about to wait.

        Return when it has to take the connection back at the latest.
        """
        return None

    def take_back(self) -> bool:
        """Let callers no longer use the connection: this thread runs the stage again.

        Return whether this has dealt with what the socket had.
        """
        return False

    # For subclasses and other stages -------------------------------------------------------------

    def count_outgoing(self, now: float, nbytes: int) -> None:
        """Count a request of *nbytes* bytes that is being sent."""
        self.connection_metrics().outgoing.add(now, nbytes)

    def setting_up(self) -> str:
        """Describe the progress of a connection that is being set up; empty if none is.

        Called by other threads, because a token provider may block this stage's own thread.
        """
        if self._awaits_token and self._tokens is not None:
            return self._tokens.waiting_for
        connection = self._connection
        text = None if connection is None else _SETTING_UP.get(connection.state)
        if connection is None or text is None:
            return ""
        text = text.format(*connection.address, mechanism=self._config.sasl_mechanism)
        if connection.state is SessionState.AUTHENTICATING and self._tokens is None:
            text += _HINTS.get(self._config.sasl_mechanism or "", "")
        return text

    def submit(self, request: Request) -> None:
        """Have *request* written. Only while ``ready``."""
        assert self._connection is not None
        self._connection.submit(request)
        self._busy = True

    def writes_at_once(self) -> bool:
        """Return whether no earlier bytes wait for space in the socket."""
        return self._connection is not None and not self._connection.has_to_go_on

    def write_now(self) -> None:
        """Write the submitted requests inline, in another stage's thread."""
        assert self._connection is not None
        self._connection.write_now()

    def next_wakeup(self) -> float | None:
        connection = self._connection
        if connection is None:
            return self.deadline()
        if connection.has_to_go_on:
            return 0.0
        return earlier(self.deadline(), connection.next_deadline)

    def refuses(
        self, api_key: int, *, at_least: int = 0, at_most: int = LAST_VERSION
    ) -> str | None:
        """Return why the server does not support these requests, None if it does.

        Only while ``ready``. *at_least*, *at_most*: as in :class:`Request`.
        """
        assert self._connection is not None
        return self._connection.refuses(api_key, at_least, at_most)

    def drop(self, reason: str) -> None:
        """Close the connection because of *reason*, and treat it as lost.

        If there is no memory to collect its requests, they are reported later:

        1. ``on_lost`` is called now, without requests: a subclass may have to report another one
           first, whose response was malformed;
        2. ``ready`` remains true, so requests that arrive in the meantime are queued after those;
        3. ``poll`` returns ``Lost``, and ``on_lost`` is called with all of them.
        """
        connection = self._connection
        if connection is None or connection.is_closed:
            return
        lost = connection.give_up(reason)
        if lost is not None:
            self._event(lost)
        else:
            self.on_lost(self._no_connection_text(reason), [], [])

    def next_server_at_once(self) -> None:
        """Skip the backoff before the next attempt, which is for another server."""
        self._not_before = 0.0

    # The thread --------------------------------------------------------------------------------

    def wake(self, *, on_stop: bool = False) -> None:
        self._need_thread(on_stop)
        connection = self._connection
        if connection is None:
            # No item is overlooked: the thread publishes a connection before it empties the inbox,
            # and waits for the wake-up event only without one.
            self._wake_event.set()
        # The stage's own thread checks its inbox before it waits again.
        elif self.thread is not threading.current_thread():
            connection.wakeup.poke(surely=not in_a_stage())

    def _loop(self) -> None:
        self._running.acquire()
        try:
            self._run_connection()
        finally:
            self._running.release()  # `with` would need memory for it

    def _run_connection(self) -> None:
        try:
            while True:
                try:
                    if self._work_and_wait():
                        break
                except NO_MEMORY:
                    if self._in_step:
                        raise
                    self.shortage.wait()
        except BaseException:
            self.has_crashed = True  # on_stop() comes before the crash policy
            raise
        finally:
            self.drop("the producer does not need the connection any more")
            if self._connection is not None:
                self._connection.close()
            self.on_stop()

    def _work_and_wait(self) -> bool:
        self._wait_for_memory()
        now = self.clock.monotonic()
        self._in_step = True
        # Before anything is written: a NAT or load balancer may have dropped it.
        self._close_if_idle(now)
        self._empty_inbox()
        if self._stop_has_come and self.can_stop():
            return True
        deadline = self.deadline()
        if deadline is not None and deadline <= now:
            self.on_time(now)
        self.on_inbox_drained()
        connection = self._connection
        if connection is not None:
            self._connect_if_due(connection, now)
        self._in_step = False
        if connection is None:
            self._wait_for_resources(now)
            return False
        events = connection.poll(self._waits_until(connection), self._wait)
        self._wait_for_memory()
        self._in_step = True
        self._handle(events)
        self._in_step = False
        return False

    def _wait_for_memory(self) -> None:
        while self.pauses():
            self.shortage.wait()  # with _running: events of the connection come first

    def _make_connection(self, now: float) -> None:
        """Create the connection object, unless the system refuses file descriptors or memory."""
        try:
            self._connection = self._connection_type(
                ("", 0),
                config=self._config,
                clock=self.clock,
                network=self._network,
                name=self.name,
            )
        except ConnectionFailed as error:
            self._failed(str(error), [], [])
            # Trying another server would not help.
            self._not_before = max(self._not_before, now + _RESOURCES_BACKOFF)

    def _wait_for_resources(self, now: float) -> None:
        """Wait until it is time to create the connection object, or an item arrives."""
        if now >= self._not_before:
            self._make_connection(now)
            return  # items that have arrived in the meantime are handled before the next wait
        until = self._wakes_at(earlier(self.deadline(), self._not_before))
        self._sleeps_until = until
        self._running.release()
        try:
            self.clock.wait(self._wake_event, until)
        finally:
            self._running.acquire()

    def _connect_if_due(self, connection: Connection, now: float) -> None:
        """Connect if that is wanted and due."""
        self._awaits_token = False
        is_due = connection.is_closed and self.wants_connection() and now >= self._not_before
        if is_due and (self._tokens is None or self._has_token(self._tokens)):
            self._connect(connection)

    def _waits_until(self, connection: Connection) -> float | None:
        """Return until when to wait for events."""
        deadline = self._wakes_at(self.deadline())
        if connection.is_closed and self.wants_connection() and not self._awaits_token:
            return self._not_before if deadline is None else min(deadline, self._not_before)
        if self.ready and self._idle_at != math.inf and connection.is_idle:
            return earlier(deadline, self._idle_at)
        return deadline

    def _has_token(self, tokens: Tokens) -> bool:
        """Return whether there is a token to connect with.

        If not, a new failure is reported once, and this stage is woken by the next token or
        failure.
        """
        if tokens.is_valid():
            return True
        failure = tokens.failure
        if failure is not None and failure is not self._seen_failure:
            self._seen_failure = failure
            self._failed(failure.reason, [], [])
        else:
            self._awaits_token = True
            tokens.want(self.wake, failure)
        return False

    def is_unused_too_long(self, now: float) -> bool:
        """Return whether the connection must be closed before anything is written to it."""
        return now >= self._idle_at

    def _close_if_idle(self, now: float) -> None:
        """Close the connection if it has been unused for ``connections_max_idle_ms``.

        A request that another thread writes inline is not lost: (1) this thread waits until the
        connection would be idle; (2) the other thread writes; (3) this thread checks whether a
        request is in flight. Both hold ``_running``.
        """
        if not self.ready or now < self._idle_at:
            return
        connection = self._connection
        assert connection is not None, "the stage is ready only with a connection"
        if connection.is_idle:
            log.debug("%s: closing the idle connection", self.name)
            if connection.give_up("it was idle") is None:
                return  # no memory: poll() returns Lost
            self.ready = False
            self.on_connection_idle()

    def _used(self) -> float:
        """Record that the connection has just been used; return the time."""
        now = self.clock.monotonic()
        self._used_at(now)
        return now

    def _used_at(self, time: float) -> None:
        most = self._config.connections_max_idle_ms
        self._idle_at = time + most / 1000 if most > 0 else math.inf

    def _wait(
        self,
        selector: selectors.BaseSelector,
        until: float | None,
        wake: Callable[[], None],
    ) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait for the socket or a wake-up, and let other threads run the stage inline."""
        if self._items and self._connection is not None:
            # Without this, the following item would wait for the broker:
            # 1. this thread emptied the inbox; 2. the connection then called user code (a token
            #    provider), which sent a message; 3. that put an item into this inbox, from this
            #    very thread, which does not wake itself.
            self._connection.wakeup.poke()
        doze = None
        if self._busy:
            self._busy = False
            doze = self.clock.monotonic() + _DOZE
        while True:
            limit = earlier(until, self.lend())
            # Not while it is lent: waking up would hand the callers' requests over.
            self._sleeps_until = limit if self.is_lent else earlier(limit, doze)
            self._running.release()
            try:
                ready = self.clock.select(selector, self._sleeps_until, wake)
            finally:
                self._running.acquire()
                is_done = self.take_back()
            # An item in the inbox, and a deadline, come before the next request of a caller.
            is_late = until is not None and self.clock.monotonic() >= until
            if not is_done or self._items or is_late:
                return ready

    def _connect(self, connection: Connection) -> None:
        address = self.next_address()
        if isinstance(address, str):
            self._failed(address, [], [])
            return
        connection.address = address
        connection.open()

    def _empty_inbox(self) -> None:
        while self._items:
            item = self._items.popleft()
            if item is STOP:
                self._stop_has_come = True
            else:
                self.handle(item)

    def _handle(self, events: list[Event]) -> None:
        # A separate method, so that no local variable keeps the last request's batches alive while
        # the thread waits.
        for event in events:
            self._event(event)
        self.on_all_handled()

    def _event(self, event: Event) -> None:
        match event:
            case Ready():
                self.ready = True
                self.features = event.features
                self.versions = event.versions
                self.connection_metrics().made.add(self._used(), 1)
                self.on_ready()
            case Checked():
                self.on_checked()
            case Answered():
                self._busy = True
                size = len(event.payload) + _RESPONSE_HEAD
                self.connection_metrics().incoming.add(self._used(), size)
                # Not earlier: a server may accept a connection and close it at the first request.
                self._backoff().reset()
                self.on_answer(event)
            case FullyWritten():
                self._used()
                self._backoff().reset()
                self.on_written(event.request)
            case Lost():
                if self.ready:
                    self.connection_metrics().lost.add(self.clock.monotonic(), 1)
                self.ready = False
                self._failed(
                    self._no_connection_text(event.reason), event.unanswered, event.unwritten
                )

    def _no_connection_text(self, reason: str) -> str:
        assert self._connection is not None
        host, port = self._connection.address
        return f"no connection to {host}:{port}: {reason}"

    def _failed(self, reason: str, unanswered: list[Request], unwritten: list[Request]) -> None:
        self._not_before = self.clock.monotonic() + self._backoff().next(system_random.random())
        self.on_lost(reason, unanswered, unwritten)

    def _backoff(self) -> Backoff:
        if self._reconnect is None:
            self._reconnect = Backoff(
                self._config.reconnect_backoff_ms / 1000,
                self._config.reconnect_backoff_max_ms / 1000,
            )
        return self._reconnect
