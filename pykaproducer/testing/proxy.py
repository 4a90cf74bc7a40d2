"""A TCP proxy in front of a broker that injects network faults.

A client connects to the addresses that the brokers *advertise*. A cluster with proxies therefore
advertises the proxies' addresses::

    with FaultProxy() as proxy, KafkaCluster(proxies=[proxy]) as cluster:
        producer = Producer(bootstrap_servers=cluster.proxied_servers)
        proxy.cut(Cut.AFTER)        # the next Produce request is written, its response is lost
"""

from __future__ import annotations

import logging
import selectors
import socket
import threading
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, TypeVar

from pykaproducer._kernel import monotonic
from pykaproducer.testing._relay import (
    PRODUCE,
    ConnectionIsOver,
    Cut,
    ProxiedRequest,
    Relay,
    Weather,
)

__all__ = ["Cut", "FaultProxy", "ProxiedRequest"]

T = TypeVar("T")

#: Timeout for calls into the thread (seconds), which normally take milliseconds.
_SOON = 30.0
_HOST = "127.0.0.1"

_log = logging.getLogger("pykaproducer.testing")


class FaultProxy:
    """A proxy between clients and one server that speaks Kafka's protocol, unencrypted.

    It listens on :attr:`port` of loopback and forwards to :attr:`target`. Faults persist until
    :meth:`restore`, except for cuts, which happen immediately or with the next request.

    Guarantees:

    - One thread, named after the port. :meth:`close` joins it in any state.
    - A command has taken effect when its method returns.
    - A fault affects nothing else: frames are forwarded completely and in order.

    *watch*: the numbers in Kafka's protocol of the requests that :attr:`unanswered` lists. *port*:
    the port to listen on; 0 means any free one.

    Relies on: the port stays reserved even while the proxy does not listen (:meth:`refuse`),
    because a second socket is bound to it. This works only on Linux.
    """

    def __init__(
        self,
        target: tuple[str, int] | None = None,
        *,
        watch: Collection[int] = (PRODUCE,),
        port: int = 0,
    ) -> None:
        self.watched = frozenset(watch)
        #: Cuts for the next requests, with their API. Guarded by this lock, like the counters.
        self._changed = threading.Condition()
        self._armed: list[tuple[int, Cut]] = []
        self._unanswered: dict[ProxiedRequest, None] = {}
        self._cuts = 0
        # Used by the thread only.
        self._changes: dict[int, Callable[[int, bytes], bytes]] = {}
        self._target = target
        self.weather = Weather()
        self._relays: list[Relay] = []
        self._listener: socket.socket | None = None
        self._selector = selectors.DefaultSelector()
        self._closing = False
        # Commands to the thread.
        self._commands: SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = SimpleQueue()
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._wake_sender.setblocking(False)
        self._wake_receiver.setblocking(False)
        self._keeper = _bound(port)
        self.port: int = self._keeper.getsockname()[1]
        self._thread = threading.Thread(
            target=self._run, name=f"fault-proxy-{self.port}", daemon=True
        )
        self._closed = False
        self._thread.start()
        self._call(self._listen)

    @property
    def target(self) -> tuple[str, int] | None:
        """Host and port of the server, as set by :class:`KafkaCluster`.

        None: clients can connect, but nothing is forwarded.
        """
        return self._target

    @target.setter
    def target(self, target: tuple[str, int] | None) -> None:
        self._call(lambda: setattr(self, "_target", target))

    @property
    def address(self) -> str:
        """``"127.0.0.1:port"``, for ``bootstrap_servers``."""
        return f"{_HOST}:{self.port}"

    def __enter__(self) -> FaultProxy:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection and end the thread; no effect on a closed proxy."""
        if self._closed:
            return
        self._closed = True
        self._commands.put((self._stop, Future()))
        self._wake_up()
        self._thread.join(_SOON)
        self._keeper.close()
        self._wake_receiver.close()
        self._wake_sender.close()

    def __repr__(self) -> str:
        return f"<FaultProxy {self.address} for {self.target}, {self.weather}>"

    # Observations ------------------------------------------------------------------------------

    @property
    def unanswered(self) -> list[ProxiedRequest]:
        """The watched requests that have been received completely and not answered.

        Requests of connections that have ended are excluded.
        """
        with self._changed:
            return list(self._unanswered)

    @property
    def cuts(self) -> int:
        """Number of requests cut by :meth:`cut`."""
        with self._changed:
            return self._cuts

    @property
    def connections(self) -> int:
        """Number of client connections, including half-closed ones."""
        return len(self._relays)

    def wait_for(self, condition: Callable[[], object], timeout: float) -> bool:
        """Wait until *condition*, over the properties above, is true. Return false on timeout.

        It is checked after each request, each response and each cut.
        """
        with self._changed:
            return bool(self._changed.wait_for(condition, timeout))

    # Faults ------------------------------------------------------------------------------------

    def cut(self, where: Cut, count: int = 1, *, api_key: int = PRODUCE) -> None:
        """Cut the connections of the next *count* Produce requests, at the point *where*.

        Both sides see a reset. *api_key*: the number in Kafka's protocol of other requests to cut,
        for example 26 for EndTxn.
        """
        with self._changed:
            self._armed += [(api_key, where)] * count

    def cut_all(self) -> int:
        """Reset every connection, now. Return how many watched requests were unanswered."""

        def reset() -> int:
            lost = len(self.unanswered)
            for relay in self._relays:
                self._end(relay, reset=True)
            self._relays.clear()
            return lost

        return self._call(reset)

    def delay(self, seconds: float) -> None:
        """Delay each frame in each direction. Delays of successive frames overlap.

        Nothing is lost: requests that a client has given up on still reach the broker, late.
        """
        self._change(delay=seconds)

    def throttle(self, bytes_per_second: float) -> None:
        """Limit the rate of each connection and direction."""
        if bytes_per_second <= 0:
            raise ValueError("bytes_per_second must be greater than 0; use black_hole()")
        self._change(rate=bytes_per_second)

    def black_hole(self) -> None:
        """Forward nothing in either direction. Clients can still connect.

        Data is queued until :meth:`restore`, as TCP does when a network recovers. Requests that a
        client has given up on reach the broker late.
        """
        self._change(black_hole=True)

    def drop_silently(self) -> int:
        """Drop every connection that there is now, silently. Return their number.

        Nothing is forwarded on them any more, in either direction, and neither side is notified, as
        when a firewall or a load balancer drops an idle connection. (What a client sends is still
        acknowledged, by this host.) New connections work. :meth:`restore` does not undo it.
        """

        def drop() -> int:
            for relay in self._relays:
                relay.drop_silently()
            return len(self._relays)

        return self._call(drop)

    def refuse(self) -> None:
        """Reset every connection and refuse new ones, as if no server were listening."""
        self.cut_all()
        self._call(self._refuse)

    def alter(self, api_key: int, change: Callable[[int, bytes], bytes] | None) -> None:
        """Forward what *change* returns instead of each response to requests of *api_key*.

        It is called, in the proxy's thread, with the version and the response without its length.
        If it raises :class:`ValueError`, the connection is reset. None ends it; :meth:`restore`
        does not.
        """

        def set_change() -> None:
            self._changes.pop(api_key, None)
            if change is not None:
                self._changes[api_key] = change

        self._call(set_change)

    def restore(self) -> None:
        """End every fault, forward queued data, and discard pending cuts."""
        with self._changed:
            self._armed.clear()

        def clear() -> None:
            self.weather = Weather()
            if self._listener is None:
                self._listen()

        self._call(clear)

    # Called by the relays in the thread --------------------------------------------------------

    def seen(self, request: ProxiedRequest) -> Cut | None:
        with self._changed:
            self._unanswered[request] = None
            self._changed.notify_all()
        return self.cut_of(request.api_key)

    def cut_of(self, api_key: int) -> Cut | None:
        with self._changed:
            for armed in self._armed:
                if armed[0] == api_key:
                    self._armed.remove(armed)
                    return armed[1]
        return None

    def answered(self, request: ProxiedRequest) -> None:
        with self._changed:
            request.answered = True
            self._unanswered.pop(request, None)
            self._changed.notify_all()

    def altered(self, api_key: int, version: int, response: bytes) -> bytes:
        change = self._changes.get(api_key)
        return response if change is None else change(version, response)

    def forget(self, requests: Iterator[ProxiedRequest]) -> None:
        with self._changed:
            for request in requests:
                self._unanswered.pop(request, None)
            self._changed.notify_all()

    def was_cut(self, count: int) -> None:
        with self._changed:
            self._cuts += count
            self._changed.notify_all()

    # The thread --------------------------------------------------------------------------------

    def _change(self, **weather: Any) -> None:
        def change() -> None:
            self.weather = self.weather._replace(**weather)

        self._call(change)

    def _call(self, function: Callable[[], T]) -> T:
        """Call *function* in the thread and return its result."""
        if self._closed:
            raise ValueError("the proxy is closed")
        future: Future[T] = Future()
        self._commands.put((function, future))
        self._wake_up()
        return future.result(_SOON)

    def _wake_up(self) -> None:
        try:
            self._wake_sender.send(b"\0")
        except BlockingIOError:
            pass  # a wake-up is pending already

    def _run(self) -> None:
        self._selector.register(self._wake_receiver, selectors.EVENT_READ)
        try:
            while not self._closing:
                self._step()
        finally:
            for relay in self._relays:
                self._end(relay, reset=True)
            if self._listener is not None:
                self._listener.close()
            self._selector.close()

    def _step(self) -> None:
        """Wait for the next event and process it."""
        wake: float | None = None
        now = monotonic()
        for relay in self._relays:
            events, due = relay.interest(now)
            for each, mask in events.items():
                self._watch(each, mask)
            if due is not None:
                wake = due if wake is None else min(wake, due)
        if self._listener is not None:
            listening = not self.weather.black_hole and self._target is not None
            self._watch(self._listener, selectors.EVENT_READ if listening else 0)
        timeout = None if wake is None else max(0.0, wake - now)
        ready = {key.fileobj: mask for key, mask in self._selector.select(timeout)}
        now = monotonic()
        for relay in list(self._relays):
            try:
                relay.work(ready, now)  # type: ignore[arg-type]  # only sockets are registered
            except ConnectionIsOver as over:
                self._relays.remove(relay)
                self._end(relay, reset=over.reset)
        if self._listener in ready:
            self._accept(self._listener)
        if self._wake_receiver in ready:
            self._run_commands()

    def _watch(self, each: socket.socket, mask: int) -> None:
        key = self._selector.get_map().get(each)
        if key is None:
            if mask:
                self._selector.register(each, mask)
        elif not mask:
            self._selector.unregister(each)
        elif key.events != mask:
            self._selector.modify(each, mask)

    def _end(self, relay: Relay, *, reset: bool) -> None:
        for each in relay.interest(0.0)[0]:
            self._watch(each, 0)
        relay.close(reset=reset)

    def _accept(self, listener: socket.socket | None) -> None:
        assert listener is not None
        assert self._target is not None
        try:
            client, _ = listener.accept()
        except OSError:
            return  # the client has closed the connection
        try:
            self._relays.append(Relay(self, client, self._target))
        except OSError as error:
            _log.warning("%r: cannot open a connection: %s", self, error)
            client.close()

    def _run_commands(self) -> None:
        self._wake_receiver.recv(4096)
        while True:
            try:
                function, future = self._commands.get_nowait()
            except Empty:
                return
            try:
                future.set_result(function())
            except OSError as error:
                future.set_exception(error)

    def _listen(self) -> None:
        self._listener = _bound(self.port)
        self._listener.setblocking(False)
        self._listener.listen(128)

    def _refuse(self) -> None:
        if self._listener is not None:
            self._watch(self._listener, 0)
            self._listener.close()
            self._listener = None

    def _stop(self) -> None:
        self._closing = True


def _bound(port: int) -> socket.socket:
    """Return a socket bound to *port* that does not listen; several may be bound to it (Linux)."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind((_HOST, port))
    return made
