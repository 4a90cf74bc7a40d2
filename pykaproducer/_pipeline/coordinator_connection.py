"""A connection to a coordinator, the base class of Coordinator and GroupCoordinator."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from pykaproducer._kernel import ConnectionMetrics
from pykaproducer._machines.session import LAST_VERSION
from pykaproducer._net.connection import Request
from pykaproducer._net.transport import Network
from pykaproducer._pipeline.metadata import Metadata
from pykaproducer._pipeline.metadata_events import CoordinatorCame, WantCoordinator
from pykaproducer._pipeline.socket_worker import SocketWorker
from pykaproducer._pipeline.worker import Item, StageContext
from pykaproducer._util.guarded_log import GuardedLogger
from pykaproducer._wire import WireError
from pykaproducer._wire.transactions import CoordinatorKind
from pykaproducer.config import Config

log = GuardedLogger("pykaproducer.transactions")


class CoordinatorConnection(SocketWorker[Item]):
    """A stage with a connection to the broker that coordinates a transactional id or a group.

    :meth:`look_up` has Metadata find the broker, and connects to it. Then :meth:`found` is called,
    or :meth:`not_found`; after that, :meth:`lost` if the connection is lost.
    """

    #: The items that the thread of another stage may handle. They lead to one request at most.
    inline_items: tuple[type, ...] = ()

    def __init__(
        self,
        name: str,
        context: StageContext,
        config: Config,
        network: Network,
        metadata: Metadata,
        kind: CoordinatorKind,
    ) -> None:
        super().__init__(name, context, config, network)
        self._metadata = metadata
        self._kind = kind
        # The coordinator's address; a lookup is under way; the connection is being replaced.
        self._address: tuple[str, int] | None = None
        self._finding = False
        self._key = ""  # of the last lookup
        self._leaving = False
        # A response is being handled: the connection no longer counts its request as unanswered.
        self._garbled = False

    @property
    def address(self) -> str | None:
        """The coordinator's address, None if it is not known. May be read from any thread."""
        address = self._address
        return None if address is None else f"{address[0]}:{address[1]}"

    # To be overridden ----------------------------------------------------------------------------

    def found(self, now: float) -> None:
        """React to a connection to the coordinator, which is ready for requests."""

    def not_found(self, code: int | None, now: float) -> None:
        """React to a failed lookup, or to a failed attempt to connect (None)."""

    def lost(self, now: float, *, written: bool) -> None:
        """React to the loss of the connection; *written*: a request may have been written."""

    def unsupported(self, api_key: int, now: float) -> None:
        """React to a request that the coordinator does not support."""

    # For subclasses ------------------------------------------------------------------------------

    def look_up(self: CoordinatorConnection[CoordinatorCame], key: str, *, again: bool) -> None:
        """Find the coordinator of *key*, and connect to it; *again*: the last one was of no use."""
        self._finding, self._key = True, key
        self._metadata.put(WantCoordinator(self._kind, key, self, again))

    def coordinator_came(self, item: CoordinatorCame, now: float) -> None:
        """Handle the result of a lookup."""
        if not self._finding or item.key != self._key:
            return  # of an earlier lookup
        if item.address is None:
            self._finding = False
            self.not_found(item.code, now)
            return
        address = item.address.host, item.address.port
        if self.ready and address == self._address:
            self._finding = False
            self.found(now)
            return
        self.disconnect("the coordinator is another broker")
        self._address = address

    def disconnect(self, reason: str) -> None:
        """Close the connection. Neither :meth:`lost` nor :meth:`not_found` is called."""
        was_ready = self.ready
        self._address = None
        self._leaving = True
        self.drop(reason)
        self._leaving = False
        if was_ready:
            self.next_server_at_once()  # the backoff is for a server that is not reachable

    def send(
        self,
        api_key: int,
        encode: Callable[[int, int, str | None], bytes],
        *,
        at_least: int = 0,
        at_most: int = LAST_VERSION,
    ) -> None:
        """Send a request. *encode*: takes the version, the correlation id and the client id."""
        now = self.clock.monotonic()
        if self.refuses(api_key, at_least=at_least, at_most=at_most) is not None:
            self.unsupported(api_key, now)
            return

        def counted(version: int, correlation_id: int) -> list[Any]:
            request = encode(version, correlation_id, self._config.client_id)
            self.count_outgoing(self.clock.monotonic(), len(request))
            return [request]

        deadline = now + self._config.request_timeout_ms / 1000
        self.submit(
            Request(
                api_key,
                counted,
                deadline=deadline,
                tag=api_key,
                at_least=at_least,
                at_most=at_most,
            )
        )
        if self.thread is not threading.current_thread():
            self.write_now()

    def can_run_inline(self, item: Item) -> bool:
        return (
            isinstance(item, self.inline_items)
            and self.ready
            and self.writes_at_once()
            and not self.is_unused_too_long(self.clock.monotonic())
        )

    @contextlib.contextmanager
    def not_answered(self) -> Iterator[None]:
        """While the block handles a response, count its request as written and not answered.

        The connection counts it as answered. If the response is malformed, the connection is
        closed. If an error in the library leaves the block, the stage ends, and reports the request
        to the machine as written.
        """
        self._garbled = True
        try:
            yield
        except WireError as error:
            self.drop(f"malformed response: {error}")
        self._garbled = False

    # The connection ------------------------------------------------------------------------------

    def connection_metrics(self) -> ConnectionMetrics:
        return self.metrics.coordinator

    def wants_connection(self) -> bool:
        return self._finding and self._address is not None

    def next_address(self) -> tuple[str, int] | str:
        return self._address or "the coordinator is not known"

    def on_ready(self) -> None:
        self._finding = False
        self.found(self.clock.monotonic())

    def on_connection_idle(self) -> None:
        self._address = None
        self.lost(self.clock.monotonic(), written=False)

    def on_lost(self, reason: str, unanswered: list[Request], unwritten: list[Request]) -> None:
        if self._leaving:
            return
        now = self.clock.monotonic()
        self._address = None
        if not self.stopping:
            log.info("%s: the coordinator is not reachable: %s", self.name, reason)
        if self._finding:
            self._finding = False
            self.not_found(None, now)
        else:
            self.lost(now, written=bool(unanswered) or self._garbled)
