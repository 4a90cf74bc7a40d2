"""A TCP proxy in front of a broker, with faults: the network as it is on a bad day.

A client follows the addresses that the brokers *advertise*. So a cluster that is to be reached
through proxies only is told of them, and advertises theirs::

    with FaultProxy() as proxy, KafkaCluster(proxies=[proxy]) as cluster:
        producer = Producer(bootstrap_servers=cluster.proxied_servers)
        proxy.cut(Cut.AFTER)            # the next Produce request is written, its answer is lost
"""

from __future__ import annotations

import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, TypeVar

from pykaproducer.testing._relay import ConnectionIsOver, Cut, ProxiedRequest, Relay, Weather

__all__ = ["Cut", "FaultProxy", "ProxiedRequest"]

T = TypeVar("T")

#: What the thread is asked for is a matter of milliseconds (seconds).
_SOON = 30.0
_HOST = "127.0.0.1"

_log = logging.getLogger("pykaproducer.testing")


class FaultProxy:
    """Stands between clients and one server that speaks Kafka's protocol, unencrypted.

    It listens on :attr:`port` of loopback and hands everything on to :attr:`target`, until it is
    told otherwise. The faults hold until :meth:`restore`, but for the cuts, which happen at once
    or to the next Produce request that comes.

    Guarantees:

    - One thread, named after the port, and joined by :meth:`close`, whatever state it is in.
    - A command has taken effect when its method returns.
    - A fault tears nothing that is not its own: frames go on whole and in order.

    Relies on: the port stays ours, also while nobody listens on it (:meth:`refuse`), because a
    second socket is bound to it. Only Linux keeps it from others then.
    """

    def __init__(self, target: tuple[str, int] | None = None) -> None:
        #: The next Produce requests' fate; under the lock, as the numbers.
        self._changed = threading.Condition()
        self._armed: list[Cut] = []
        self._unanswered: dict[ProxiedRequest, None] = {}
        self._cuts = 0
        # Of the thread alone.
        self._target = target
        self.weather = Weather()
        self._relays: list[Relay] = []
        self._listener: socket.socket | None = None
        self._selector = selectors.DefaultSelector()
        self._closing = False
        # The way to it.
        self._commands: SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = SimpleQueue()
        self._bell, self._wake = socket.socketpair()
        self._wake.setblocking(False)
        self._bell.setblocking(False)
        self._keeper = _bound(0)
        self.port: int = self._keeper.getsockname()[1]
        self._thread = threading.Thread(
            target=self._run, name=f"fault-proxy-{self.port}", daemon=True
        )
        self._closed = False
        self._thread.start()
        self._call(self._listen)

    @property
    def target(self) -> tuple[str, int] | None:
        """Where the server is: host and port, as :class:`KafkaCluster` sets it. None: connecting
        works, and nothing more.
        """
        return self._target

    @target.setter
    def target(self, target: tuple[str, int] | None) -> None:
        self._call(lambda: setattr(self, "_target", target))

    @property
    def address(self) -> str:
        """``"127.0.0.1:port"``: for ``bootstrap_servers``."""
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
        """End every connection and the thread; no effect on a closed proxy."""
        if self._closed:
            return
        self._closed = True
        self._commands.put((self._stop, Future()))
        self._ring()
        self._thread.join(_SOON)
        self._keeper.close()
        self._bell.close()
        self._wake.close()

    def __repr__(self) -> str:
        return f"<FaultProxy {self.address} for {self.target}, {self.weather}>"

    # What it has seen --------------------------------------------------------------------------

    @property
    def unanswered(self) -> list[ProxiedRequest]:
        """The Produce requests that have come, whole, and have no answer yet.

        Those of connections that have ended are not among them.
        """
        with self._changed:
            return list(self._unanswered)

    @property
    def cuts(self) -> int:
        """How many Produce requests have been cut as :meth:`cut` had asked for."""
        with self._changed:
            return self._cuts

    @property
    def connections(self) -> int:
        """How many clients' connections there are, also those that have ended half."""
        return len(self._relays)

    def wait_for(self, condition: Callable[[], object], timeout: float) -> bool:
        """Wait until *condition*, over the properties above, is true; false if it never was.

        It is looked at again with each request, each answer and each cut.
        """
        with self._changed:
            return bool(self._changed.wait_for(condition, timeout))

    # Faults ------------------------------------------------------------------------------------

    def cut(self, where: Cut, count: int = 1) -> None:
        """Cut the connections of the next *count* Produce requests.

        Both sides see a reset; see :class:`Cut` for the moment.
        """
        with self._changed:
            self._armed += [where] * count

    def cut_all(self) -> int:
        """Reset every connection, now; how many Produce requests were unanswered."""

        def reset() -> int:
            lost = len(self.unanswered)
            for relay in self._relays:
                self._end(relay, reset=True)
            self._relays.clear()
            return lost

        return self._call(reset)

    def delay(self, seconds: float) -> None:
        """Have each frame wait, in each direction; those behind it wait at the same time.

        Nothing is lost: what a client has given up still comes to the broker, late.
        """
        self._change(delay=seconds)

    def throttle(self, bytes_per_second: float) -> None:
        """Let so many bytes a second through, for each connection and direction."""
        if bytes_per_second <= 0:
            raise ValueError("bytes_per_second must be more than 0: use black_hole()")
        self._change(rate=bytes_per_second)

    def black_hole(self) -> None:
        """Let nothing through, in no direction: connecting works, and then nothing happens.

        What comes waits and goes on after :meth:`restore`, as it does where TCP goes on when a
        network heals: also what a client has given up meanwhile comes to the broker, late.
        """
        self._change(black_hole=True)

    def refuse(self) -> None:
        """Reset every connection and refuse new ones, as where nobody listens."""
        self.cut_all()
        self._call(self._refuse)

    def restore(self) -> None:
        """End every fault; what waits goes on, and cuts that no request has met are off."""
        with self._changed:
            self._armed.clear()

        def clear() -> None:
            self.weather = Weather()
            if self._listener is None:
                self._listen()

        self._call(clear)

    # For the relays: in the thread -------------------------------------------------------------

    def seen(self, request: ProxiedRequest) -> Cut | None:
        with self._changed:
            self._unanswered[request] = None
            self._changed.notify_all()
            return self._armed.pop(0) if self._armed else None

    def answered(self, request: ProxiedRequest) -> None:
        with self._changed:
            request.answered = True
            self._unanswered.pop(request, None)
            self._changed.notify_all()

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
        """Have *function* called in the thread; its result."""
        if self._closed:
            raise ValueError("the proxy is closed")
        future: Future[T] = Future()
        self._commands.put((function, future))
        self._ring()
        return future.result(_SOON)

    def _ring(self) -> None:
        try:
            self._wake.send(b"\0")
        except BlockingIOError:
            pass  # it rings already

    def _run(self) -> None:
        self._selector.register(self._bell, selectors.EVENT_READ)
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
        """Wait for the next event, and see to it."""
        wake: float | None = None
        now = time.monotonic()
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
        now = time.monotonic()
        for relay in list(self._relays):
            try:
                relay.work(ready, now)  # type: ignore[arg-type]  # sockets are what we register
            except ConnectionIsOver as over:
                self._relays.remove(relay)
                self._end(relay, reset=over.reset)
        if self._listener in ready:
            self._accept(self._listener)
        if self._bell in ready:
            self._obey()

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
            return  # it has gone again
        try:
            self._relays.append(Relay(self, client, self._target))
        except OSError as error:
            _log.warning("%r: no connection more: %s", self, error)
            client.close()

    def _obey(self) -> None:
        self._bell.recv(4096)
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
    """A socket that has the port and does not listen; several may have it (Linux)."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind((_HOST, port))
    return made
