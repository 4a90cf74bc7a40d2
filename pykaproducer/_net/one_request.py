"""One request on a connection opened for it, which blocks the caller."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from pykaproducer._net.connection import Answered, Connection, ConnectionSettings, Lost, Request
from pykaproducer._net.networks import network_for
from pykaproducer._net.secure import SecureNetworkSettings
from pykaproducer._net.transport import Network
from pykaproducer._util.clock import Clock
from pykaproducer._util.guarded_log import GuardedLogger
from pykaproducer._wire import WireError
from pykaproducer.errors import MetadataTimeoutError

log = GuardedLogger("pykaproducer.net")

#: Pause after all servers have been tried (seconds).
_PAUSE = 0.1
#: After this time, the reason for the lack of an answer is logged (seconds).
_PATIENCE = 1.0

T = TypeVar("T")


class OneRequestSettings(ConnectionSettings, SecureNetworkSettings, Protocol):
    """The configuration settings for one request."""


class OneRequest(Generic[T]):
    """A request that is sent to servers in turn until one answers it.

    *encode*: (version, correlation id) -> the framed request. *decode*: (version, payload, server)
    -> the answer. *about*: the beginning of the error's text.
    """

    def __init__(
        self,
        config: OneRequestSettings,
        api_key: int,
        encode: Callable[[int, int], bytes],
        decode: Callable[[int, bytes, tuple[str, int]], T],
        about: str,
    ) -> None:
        self._config = config
        self._api_key = api_key
        self._encode = encode
        self._decode = decode
        self._about = about
        self._reason: str | None = None
        self._logged: set[str | None] = set()

    def answer(
        self,
        servers: Sequence[tuple[str, int]],
        timeout: float | None,
        clock: Clock | None = None,
        network: Network | None = None,
    ) -> T:
        """Return the answer of one of *servers*.

        Raises:
            MetadataTimeoutError: none has answered after *timeout* seconds (None: wait forever);
                the text has the last reason.
        """
        self._clock = clock = clock or Clock()
        self._began = clock.monotonic()
        self._deadline = None if timeout is None else clock.monotonic() + timeout
        network = network or network_for(self._config)
        self._connection = Connection(("", 0), config=self._config, clock=clock, network=network)
        try:
            return self._answer(random.sample(servers, len(servers)))
        finally:
            self._connection.close()

    def _answer(self, servers: Sequence[tuple[str, int]]) -> T:
        while True:
            for server in servers:
                found = self._ask(server)
                if found is not None:
                    return found
                self._check_time()
            self._log_reason()
            # poll() of a closed connection only waits.
            pause = self._clock.monotonic() + _PAUSE
            self._connection.poll(pause if self._deadline is None else min(pause, self._deadline))
            self._check_time()

    def _log_reason(self) -> None:
        """Log why there is no answer yet, once for each reason, if the caller waits for long."""
        reason = self._reason
        if reason in self._logged or self._clock.monotonic() < self._began + _PATIENCE:
            return
        self._logged.add(reason)
        log.warning("%s; trying again", reason)

    def _check_time(self) -> None:
        if self._deadline is not None and self._clock.monotonic() >= self._deadline:
            raise MetadataTimeoutError(
                f"{self._about} within the timeout: {self._reason or 'no response'}"
            )

    def _ask(self, server: tuple[str, int]) -> T | None:
        """Ask one server. Return its answer, or None if there is none."""
        connection = self._connection
        connection.address = server
        connection.name = "broker at {}:{}".format(*server)
        connection.open()
        due = self._clock.monotonic() + self._config.request_timeout_ms / 1000
        if self._deadline is not None:
            due = min(due, self._deadline)
        connection.submit(
            Request(
                self._api_key,
                lambda version, correlation_id: [self._encode(version, correlation_id)],
                deadline=due,
            )
        )
        while True:
            for event in connection.poll(due):
                match event:
                    case Answered():
                        return self._decoded(event, server)
                    case Lost():
                        self._failed(server, event.reason)
                        return None
            if self._clock.monotonic() >= due:
                self._failed(server, "no response in time")
                return None

    def _decoded(self, event: Answered, server: tuple[str, int]) -> T | None:
        try:
            found = self._decode(event.version, event.payload, server)
        except WireError as error:
            self._failed(server, f"malformed response from the broker: {error}")
            return None
        self._connection.give_up("done")
        return found

    def _failed(self, server: tuple[str, int], reason: str) -> None:
        # An attempt cut short by the deadline is not informative. An earlier failure, such as a
        # rejected password, is.
        cut = self._deadline is not None and self._clock.monotonic() >= self._deadline
        if self._reason is None or not cut:
            self._reason = "no connection to {}:{}: {}".format(*server, reason)
        self._connection.give_up(reason)
