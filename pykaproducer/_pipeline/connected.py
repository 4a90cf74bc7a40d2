"""A stage that owns a socket: what Bridge and Metadata have in common.

The stage's thread alone touches its connection. It waits on two things at once, its inbox and its
socket: it always waits in the connection's ``poll``, and every ``put`` pokes the wake-up that the
connection watches beside the socket. It is never run in place: the socket is its thread's.

No item is overlooked: ``put`` (1) puts the item, (2) looks whether there is a connection and pokes
it; the thread (1) makes its connection known, (2) empties the inbox, (3) waits.
"""

from __future__ import annotations

import random
import threading
from typing import Any

from pykaproducer._machines.cluster import Backoff
from pykaproducer._net.connection import (
    Answered,
    Connection,
    Event,
    Lost,
    Ready,
    Request,
    Written,
)
from pykaproducer._net.transport import Network
from pykaproducer._pipeline.worker import STOP, Worker, in_a_stage
from pykaproducer.config import Config


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

    def on_lost(self, reason: str, unanswered: list[Request], unwritten: list[Request]) -> None:
        """The connection is lost, or could not be made."""

    def submit(self, request: Request) -> None:
        """Have *request* written. Only while ``ready``."""
        assert self._connection is not None
        self._connection.submit(request)

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
        # In its own thread it looks at its inbox before it waits again.
        if connection is not None and self.thread is not threading.current_thread():
            connection.wakeup.poke(surely=not in_a_stage())

    def _loop(self) -> None:
        connection = self._connection = Connection(
            ("", 0), config=self.config, clock=self.clock, network=self.network, name=self.name
        )
        try:
            while True:
                self._empty_inbox()
                if self._stop_has_come and self.may_end():
                    break
                now = self.clock.monotonic()
                deadline = self.deadline()
                if deadline is not None and deadline <= now:
                    self.on_time(now)
                self.turn()
                for event in connection.poll(self._connect_or_wait(connection, now)):
                    self._event(event)
        finally:
            self.drop("the producer was closed")
            connection.close()
            self.at_end()

    def _connect_or_wait(self, connection: Connection, now: float) -> float | None:
        """Connect if it is wanted and time; how long to wait for what comes."""
        if connection.is_closed and self.wants_connection() and now >= self._not_before:
            self._connect(connection)
        deadline = self.deadline()
        if connection.is_closed and self.wants_connection():
            return self._not_before if deadline is None else min(deadline, self._not_before)
        return deadline

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

    def _event(self, event: Event) -> None:
        match event:
            case Ready():
                self.ready = True
                self.on_ready()
            case Answered():
                # Only now: a server may shake hands and hang up at the first request.
                self._backoff().reset()
                self.on_answer(event)
            case Written():
                self._backoff().reset()
                self.on_written(event.request)
            case Lost():
                self.ready = False
                assert self._connection is not None
                host, port = self._connection.address
                self._failed(
                    f"no connection to {host}:{port}: {event.reason}",
                    event.unanswered,
                    event.unwritten,
                )

    def _failed(self, reason: str, unanswered: list[Request], unwritten: list[Request]) -> None:
        self._not_before = self.clock.monotonic() + self._backoff().next(random.random())
        self.on_lost(reason, unanswered, unwritten)

    def _backoff(self) -> Backoff:
        if self._reconnect is None:
            self._reconnect = Backoff(
                self.config.reconnect_backoff_ms / 1000,
                self.config.reconnect_backoff_max_ms / 1000,
            )
        return self._reconnect
