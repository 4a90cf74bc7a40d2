"""A connection for one request at a time. One thread can wait for several connections."""

from __future__ import annotations

import selectors
from collections.abc import Callable, Sequence

from pykaproducer._control.control_request import Address, ControlRequest, RequestHeader
from pykaproducer._machines.coordination import TV1
from pykaproducer._machines.coordinator_queries import protocol_of
from pykaproducer._net.connection import (
    Connection,
    ConnectionSettings,
    Event,
    Ready,
    Request,
    SessionState,
)
from pykaproducer._net.transport import Network
from pykaproducer._util.clock import Clock


class Link:
    """A connection to the broker at *address*.

    Raises ConnectionFailed if the system has no file descriptors or no memory for it.
    """

    def __init__(
        self,
        address: Address,
        config: ConnectionSettings,
        clock: Clock,
        network: Network,
        *,
        bootstrap: bool,
    ) -> None:
        self.address = address
        #: Whether it was opened for requests that any broker can answer.
        self.bootstrap = bootstrap
        #: Those in flight, which were sent as one.
        self.requests: Sequence[ControlRequest] = ()
        #: It could be used at some time.
        self.was_ready = False
        #: The transaction protocol of the broker's cluster.
        self.protocol = TV1
        self._config = config
        self._clock = clock
        self._versions: dict[int, int] = {}
        self._selector: selectors.BaseSelector | None = None
        self._any = False
        self._connection = Connection(address, config=config, clock=clock, network=network)
        self._connection.open()

    @property
    def is_free(self) -> bool:
        """Whether a request can be sent now."""
        return self.was_ready and self._connection.state is SessionState.READY and not self.requests

    @property
    def next_deadline(self) -> float | None:
        """When to call :meth:`poll` if no socket is ready (monotonic seconds); None: never."""
        return self._connection.next_deadline

    def refuses(self, request: ControlRequest) -> str | None:
        """Return why the broker cannot handle *request*, None if it can."""
        return self._connection.refuses(request.api_key, *request.versions(self.protocol))

    def most(self, request: ControlRequest) -> int:
        """Return how many requests like this one may be sent as one."""
        return request.most(self._versions.get(request.api_key, 0))

    def send(self, requests: Sequence[ControlRequest]) -> None:
        """Send *requests* as one."""
        self.requests, first = requests, requests[0]
        client_id = self._config.client_id
        at_least, at_most = first.versions(self.protocol)
        self._connection.submit(
            Request(
                first.api_key,
                lambda version, number: [
                    first.encode(requests, RequestHeader(version, number, client_id))
                ],
                deadline=self._clock.monotonic() + self._config.request_timeout_ms / 1000,
                at_least=at_least,
                at_most=at_most,
            )
        )

    def poll(self) -> list[Event]:
        """Write and read what is possible without waiting. Return the events."""
        connection, events = self._connection, []
        while True:
            self._any = False
            events += connection.poll(self._clock.monotonic(), self._look)
            # An answer may have added something to write. If nothing was read, all that the socket
            # takes has been written.
            if connection.is_closed or not self._any:
                break
        for event in events:
            if isinstance(event, Ready):
                self._versions = event.versions
                self.protocol = protocol_of(event.features, event.versions)
                self.was_ready = True  # last: an interrupt may come before
        return events

    def _look(
        self, selector: selectors.BaseSelector, deadline: float | None, wake: Callable[[], None]
    ) -> list[tuple[selectors.SelectorKey, int]]:
        self._selector = selector
        found = selector.select(0)
        self._any = bool(found)
        return found

    def watch(self, selector: selectors.BaseSelector) -> None:
        """Make *selector* wait for what this connection waits for."""
        if self._selector is not None and not self._connection.is_closed:
            for key in self._selector.get_map().values():
                selector.register(key.fileobj, key.events)

    def close(self) -> None:
        """Close the connection; forget the requests in flight."""
        self.requests = ()
        self._connection.close()
