"""A stage that owns a socket: what Bridge and Metadata have in common.

Whoever runs the stage owns its connection: that is its thread, which lets go of it only while it
waits. It waits on two things at once, its inbox and its socket: it always waits in the connection's
``poll``, and every ``put`` pokes the wake-up that the connection watches beside the socket. Only
while the system refuses the file descriptors of that wake-up does it wait for the bell.

A small request may be written in place, by the thread that brings it (``worker.py``); the answer is
always read by the stage's own. On an idle producer that saves a wake-up on each message's way, if
the thread need not be waked because of the request's deadline: so after each request and answer it
dozes for a while, instead of sleeping until somebody pokes it.

No item is overlooked: ``put`` (1) puts the item, (2) looks whether there is a connection and pokes
it; the thread (1) makes its connection known, (2) empties the inbox, (3) waits.
"""

from __future__ import annotations

import logging
import math
import selectors
import threading
from collections.abc import Callable
from typing import Any, Final

from pykaproducer._chance import chance
from pykaproducer._clock import earlier
from pykaproducer._machines.cluster import Backoff
from pykaproducer._net.connection import (
    Answered,
    Connection,
    ConnectionFailed,
    Event,
    Lost,
    Ready,
    Request,
    SessionState,
    Written,
)
from pykaproducer._net.transport import Network
from pykaproducer._pipeline.meter import Link
from pykaproducer._pipeline.worker import STOP, Worker, in_a_stage
from pykaproducer.config import Config

log = logging.getLogger("pykaproducer.net")

#: How long it dozes (seconds): less than any request has time. (With a request_timeout_ms shorter
#: than this the thread is waked for each request.)
_DOZE: Final = 2.0
#: How far a connection has come that does not stand yet.
_SETTING_UP: Final = {
    SessionState.CONNECTING: "the connection to {}:{} does not stand yet",
    SessionState.NEGOTIATING: "{}:{} has not answered the first request yet",
    SessionState.AUTHENTICATING: "authentication with {mechanism} at {}:{} has not ended yet",
}
#: What may take long in it.
_ASKED: Final = {"OAUTHBEARER": "; has sasl_oauth_token_provider returned?"}
#: How long to wait at least after the system refused file descriptors (seconds).
_FEWEST_DESCRIPTORS: Final = 0.05
#: Length and correlation id, before an answer's payload.
_ANSWER_HEAD: Final = 8


class Connected(Worker):
    """A worker with one connection, made again with backoff as long as it is wanted."""

    # Set by wiring, before the first item.
    config: Config
    network: Network

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.ready = False
        self._connection: Connection | None = None
        self._stop_has_come = False
        # Something was sent or answered since it last waited.
        self._busy = False
        # When the connection will have been unused for too long.
        self._idle_at = math.inf
        # Connecting again: not before this.
        self._not_before = 0.0
        self._reconnect: Backoff | None = None

    # What a stage is ---------------------------------------------------------------------------

    def wants_connection(self) -> bool:
        """Whether a connection is to be made if there is none."""
        raise AssertionError(f"{type(self).__name__} has no wants_connection")

    def next_address(self) -> tuple[str, int] | str:
        """Where to connect to, or why there is no address."""
        raise AssertionError(f"{type(self).__name__} has no next_address")

    def on_ready(self) -> None:
        """The connection is made and negotiated."""

    def on_answer(self, event: Answered) -> None:
        """A request has been answered."""

    def on_written(self, request: Request) -> None:
        """The last byte of a request without answer has been given to the socket."""

    def on_idle(self) -> None:
        """React to the end of an idle connection. Nothing was under way."""

    def on_lost(self, reason: str, unanswered: list[Request], unwritten: list[Request]) -> None:
        """The connection is lost, or could not be made."""

    def on_all_handled(self) -> None:
        """React to the end of a round of events: all that came together were handled."""

    def link(self) -> Link:
        """Where it is counted what goes over its connection."""
        raise AssertionError(f"{type(self).__name__} has no link")

    def count_outgoing(self, nbytes: int) -> None:
        """A request of so many bytes goes out."""
        self.link().outgoing.add(self.clock.monotonic(), nbytes)

    def setting_up(self) -> str:
        """How far the connection has come, in words; empty: it stands, or there is none.

        For other threads: it may be this one that a token provider holds up.
        """
        connection = self._connection
        text = None if connection is None else _SETTING_UP.get(connection.state)
        if connection is None or text is None:
            return ""
        text = text.format(*connection.address, mechanism=self.config.sasl_mechanism)
        if connection.state is SessionState.AUTHENTICATING:
            text += _ASKED.get(self.config.sasl_mechanism or "", "")
        return text

    def submit(self, request: Request) -> None:
        """Have *request* written. Only while ``ready``."""
        assert self._connection is not None
        self._connection.submit(request)
        self._busy = True

    def writes_at_once(self) -> bool:
        """Whether nothing waits for room in the socket."""
        return self._connection is not None and not self._connection.has_to_go_on

    def write_now(self) -> None:
        """What was submitted: in place, in another stage's thread."""
        assert self._connection is not None
        self._connection.write_now()

    def wakes_by(self) -> float | None:
        connection = self._connection
        if connection is None:
            return self.deadline()
        if connection.has_to_go_on:
            return 0.0
        return earlier(self.deadline(), connection.next_deadline)

    def refuses(self, api_key: int) -> str | None:
        """Return why the server refuses these requests; None: it does not. Only while ``ready``."""
        assert self._connection is not None
        return self._connection.refuses(api_key)

    def drop(self, reason: str) -> None:
        """Treat the connection as lost: what the broker said makes no sense."""
        connection = self._connection
        if connection is not None and not connection.is_closed:
            self._event(connection.give_up(reason))

    def next_server_at_once(self) -> None:
        """Do not wait before the next attempt: it is at another server."""
        self._not_before = 0.0

    # The thread --------------------------------------------------------------------------------

    def wake(self, *, at_end: bool = False) -> None:
        self._need_thread(at_end)
        connection = self._connection
        if connection is None:
            # No item is overlooked: the thread makes a connection known before it empties the
            # inbox, and waits for the bell only without one.
            self._bell.ring()
        # In its own thread it looks at its inbox before it waits again.
        elif self.thread is not threading.current_thread():
            connection.wakeup.poke(surely=not in_a_stage())

    def _loop(self) -> None:
        with self._running:
            self._run_connection()

    def _run_connection(self) -> None:
        self._make_connection(self.clock.monotonic())
        try:
            while True:
                now = self.clock.monotonic()
                # Before anything is written to it: a NAT or load balancer may have dropped it.
                self._close_if_idle(now)
                self._empty_inbox()
                if self._stop_has_come and self.may_end():
                    break
                deadline = self.deadline()
                if deadline is not None and deadline <= now:
                    self.on_time(now)
                self.turn()
                connection = self._connection
                if connection is None:
                    self._wait_for_descriptors(now)
                    continue
                self._handle(connection.poll(self._connect_or_wait(connection, now), self._wait))
        finally:
            self.drop("the producer was closed")
            if self._connection is not None:
                self._connection.close()
            self.at_end()

    def _make_connection(self, now: float) -> None:
        """Make the connection object. It needs file descriptors, which the system may refuse."""
        try:
            self._connection = Connection(
                ("", 0), config=self.config, clock=self.clock, network=self.network, name=self.name
            )
        except ConnectionFailed as error:
            self._failed(str(error), [], [])
            # Another server would not help.
            self._not_before = max(self._not_before, now + _FEWEST_DESCRIPTORS)

    def _wait_for_descriptors(self, now: float) -> None:
        """Wait until it is time to ask for file descriptors again, or an item comes."""
        if now >= self._not_before:
            self._make_connection(now)
            return  # what has come in the meantime is handled before the next wait
        until = self._wakes_at(earlier(self.deadline(), self._not_before))
        self._sleeps_until = until
        self._running.release()
        try:
            self.clock.hear(self._bell, until)
        finally:
            self._running.acquire()

    def _connect_or_wait(self, connection: Connection, now: float) -> float | None:
        """Connect if it is wanted and time; how long to wait for what comes."""
        if connection.is_closed and self.wants_connection() and now >= self._not_before:
            self._connect(connection)
        deadline = self._wakes_at(self.deadline())
        if connection.is_closed and self.wants_connection():
            return self._not_before if deadline is None else min(deadline, self._not_before)
        if self.ready and self._idle_at != math.inf and connection.is_idle:
            return earlier(deadline, self._idle_at)
        return deadline

    def is_unused_too_long(self) -> bool:
        """Return whether the connection must be closed before anything is written to it."""
        return self.clock.monotonic() >= self._idle_at

    def _close_if_idle(self, now: float) -> None:
        """Close the connection if it has been unused for ``connections_max_idle_ms``.

        A request that another thread writes in place is not lost: (1) this thread waits until the
        connection would be idle; (2) the other writes; (3) this thread looks whether a request is
        unanswered. Both hold ``_running``.
        """
        if not self.ready or now < self._idle_at:
            return
        connection = self._connection
        assert connection is not None, "without a connection it is not ready"
        if connection.is_idle:
            log.debug("%s: closing the idle connection", self.name)
            connection.give_up("it was idle")
            self.ready = False
            self.on_idle()

    def _used(self) -> float:
        """Record that the connection has just been used; return the time."""
        now = self.clock.monotonic()
        most = self.config.connections_max_idle_ms
        self._idle_at = now + most / 1000 if most > 0 else math.inf
        return now

    def _wait(
        self,
        selector: selectors.BaseSelector,
        until: float | None,
        wake: Callable[[], None],
    ) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait for the socket, or to be poked; meanwhile the stage may be run in place."""
        if self._items and self._connection is not None:
            # 1. we emptied the inbox; 2. in the connection's turn something of the user's was run
            #    (a token provider, a handler of logs), which sends; 3. it came back to this inbox,
            #    by this very thread, which does not poke itself. It would wait for the broker.
            self._connection.wakeup.poke()
        if self._busy:
            self._busy = False
            until = earlier(until, self.clock.monotonic() + _DOZE)
        self._sleeps_until = until
        self._running.release()
        try:
            return self.clock.select(selector, until, wake)
        finally:
            self._running.acquire()

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
                self.step(item)

    def _handle(self, events: list[Event]) -> None:
        # A method, so that while it waits it does not hold the last answered request's batches.
        for event in events:
            self._event(event)
        self.on_all_handled()

    def _event(self, event: Event) -> None:
        match event:
            case Ready():
                self.ready = True
                self.link().made.add(self._used(), 1)
                self.on_ready()
            case Answered():
                self._busy = True
                size = len(event.payload) + _ANSWER_HEAD
                self.link().incoming.add(self._used(), size)
                # Only now: a server may shake hands and hang up at the first request.
                self._backoff().reset()
                self.on_answer(event)
            case Written():
                self._used()
                self._backoff().reset()
                self.on_written(event.request)
            case Lost():
                if self.ready:
                    self.link().lost.add(self.clock.monotonic(), 1)
                self.ready = False
                assert self._connection is not None
                host, port = self._connection.address
                self._failed(
                    f"no connection to {host}:{port}: {event.reason}",
                    event.unanswered,
                    event.unwritten,
                )

    def _failed(self, reason: str, unanswered: list[Request], unwritten: list[Request]) -> None:
        self._not_before = self.clock.monotonic() + self._backoff().next(chance.random())
        self.on_lost(reason, unanswered, unwritten)

    def _backoff(self) -> Backoff:
        if self._reconnect is None:
            self._reconnect = Backoff(
                self.config.reconnect_backoff_ms / 1000,
                self.config.reconnect_backoff_max_ms / 1000,
            )
        return self._reconnect
