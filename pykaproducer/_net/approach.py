"""Reaching a host: the sockets of the race between its addresses.

``_machines/address_race.py`` decides which address is tried when. The connection that wants to
reach the host polls the sockets of all attempts with its own selector.
"""

from __future__ import annotations

import math
import selectors
from dataclasses import dataclass

from pykaproducer._machines.address_race import AddressRace, SetupTimeouts, interleaved
from pykaproducer._net.poller import Poller
from pykaproducer._net.transport import (
    ConnectionFailed,
    ConnectionSettings,
    Endpoint,
    HandshakeFailed,
    Network,
    Transport,
    is_shortage,
)
from pykaproducer._util.clock import Clock
from pykaproducer._util.guarded_log import GuardedLogger
from pykaproducer._util.randomness import system_random

log = GuardedLogger("pykaproducer.net")


@dataclass(eq=False, slots=True)
class _Attempt:
    """The attempt to connect to one address."""

    #: The index of the address.
    index: int
    transport: Transport | None = None
    #: The events that the selector waits for; 0: it is not registered.
    watched: int = 0


class Approach:
    """The way of one connection to its hosts, one after the other.

    :meth:`begin` starts the attempts to reach a host. They end with :meth:`close`, or when one of
    them is ready.
    """

    def __init__(self, network: Network, selector: Poller, config: ConnectionSettings) -> None:
        self._network = network
        self._selector = selector
        self._most = config.request_timeout_ms / 1000
        self._timeouts = SetupTimeouts(
            config.socket_connection_setup_timeout_ms / 1000,
            config.socket_connection_setup_timeout_max_ms / 1000,
        )
        #: Maximum time to set up the connection: TCP, a proxy, TLS, handshake (seconds).
        self.timeout = 0.0
        # Of the address that was used last. Only its family is remembered: a name may have several
        # addresses so that clients use all of them.
        self._family: int | None = None
        self._reached: tuple[str, int] | None = None  # the host of that address
        self._known = {host for host, _ in config.bootstrap_servers}
        self._is_direct = config.proxy_url is None
        self._name = ""
        self._host = ("", 0)
        self._endpoints: list[Endpoint] = []
        self._race: AddressRace | None = None  # while connecting
        self._attempts: list[_Attempt] = []
        # The reason if all fail. A failed handshake is more informative than another address
        # without a listener.
        self._reason = ConnectionFailed("")

    def begin(self, host: tuple[str, int], name: str, clock: Clock) -> float:
        """Look up *host*, for the connection *name*. Return when it must be set up.

        The resolver may block. Its time does not count, or a resolver that is slower than the
        timeout would make every attempt fail. It has its own time limit.

        Raises:
            ConnectionFailed: there is no such host.
        """
        self.timeout = min(self._timeouts.timeout(host, system_random.random()), self._most)
        self._name, self._host = name, host
        self._endpoints = interleaved(self._network.resolve(*host), self._family)
        # Until an attempt fails.
        self._reason = ConnectionFailed(
            "connecting took too long" if self._endpoints else "the host name has no address"
        )
        now = clock.monotonic()
        self._race = AddressRace(len(self._endpoints), now, now + self.timeout)
        return now + self.timeout

    def ended(self, *, well: bool) -> None:
        """Record whether the connection has become ready. If not, the next one has more time."""
        if well:
            self._timeouts.succeeded(self._host)
        else:
            self._timeouts.failed(self._host)

    def doubts(self, failure: BaseException | str) -> bool:
        """Return whether the host may be unreachable from here, rather than down.

        It is not in the user's ``bootstrap_servers``, and was not reached before *failure*.
        """
        if self._host[0] in self._known or self._host == self._reached:
            return False
        if not isinstance(failure, ConnectionFailed) or isinstance(failure, HandshakeFailed):
            return False
        return self._is_direct and not is_shortage(failure)

    @property
    def deadline(self) -> float:
        """When to call :meth:`go_on`."""
        return math.inf if self._race is None else self._race.deadline

    @property
    def doing(self) -> str:
        """The current step, worded to precede "took too long"."""
        for attempt in self._attempts:
            if attempt.transport is not None:
                return attempt.transport.doing
        return "connecting"

    def go_on(self, now: float) -> Transport | None:
        """Start the attempts that are due at *now*, and end those that take too long.

        Returns the connection that is ready, still registered to be read.

        Raises:
            ConnectionFailed: all addresses have failed.
        """
        race = self._race
        if race is None:
            return None
        if race.late(now):
            for attempt in list(self._attempts):
                assert attempt.transport is not None
                text = f"{attempt.transport.doing} took too long"
                kind = HandshakeFailed if attempt.transport.reached else ConnectionFailed
                self._fail(attempt, kind(text), now)
        while (index := race.start(now)) is not None:
            log.debug("%s: connecting to %s", self._name, self._endpoints[index])
            attempt = _Attempt(index)
            self._attempts.append(attempt)  # first, so that close() closes its socket
            try:
                attempt.transport = self._network.connect(self._endpoints[index])
            except ConnectionFailed as error:
                self._fail(attempt, error, now)
            else:
                ready = self._attend(attempt, now)
                if ready is not None:
                    return ready
        if race.is_over(now):
            raise self._reason
        return None

    def attend(self, transport: object, now: float) -> Transport | None:
        """Handle readiness of the socket of *transport*, which may have been given up.

        Returns and raises as :meth:`go_on`.
        """
        for attempt in self._attempts:
            if attempt.transport is transport:
                return self._attend(attempt, now) or self.go_on(now)
        return None

    def close(self) -> None:
        """End all attempts. Allocates nothing."""
        for attempt in self._attempts:
            self._forget(attempt)
        self._attempts.clear()
        self._race = None

    def _attend(self, attempt: _Attempt, now: float) -> Transport | None:
        transport = attempt.transport
        assert transport is not None
        already = transport.reached
        try:
            wanted = transport.finish_connect()
        except ConnectionFailed as error:
            self._fail(attempt, error, now)
            return None
        if transport.reached and not already:
            self._win(attempt, now)
        self._watch(attempt, wanted or selectors.EVENT_READ)
        if wanted:
            return None
        endpoint = self._endpoints[attempt.index]
        log.debug("%s: connected to %s", self._name, endpoint)
        self._family = endpoint.family
        self._reached = self._host
        self._attempts.clear()  # the caller owns it now
        self._race = None
        return transport

    def _win(self, winner: _Attempt, now: float) -> None:
        others = [attempt for attempt in self._attempts if attempt is not winner]
        for attempt in others:
            self._forget(attempt)
            self._attempts.remove(attempt)
        assert self._race is not None
        self._race.won([attempt.index for attempt in others], now)

    def _fail(self, attempt: _Attempt, error: ConnectionFailed, now: float) -> None:
        self._forget(attempt)
        self._attempts.remove(attempt)
        assert self._race is not None
        self._race.failed(now)
        log.debug("%s: %s: %s", self._name, self._endpoints[attempt.index], error)
        if not isinstance(self._reason, HandshakeFailed) or isinstance(error, HandshakeFailed):
            self._reason = error

    def _watch(self, attempt: _Attempt, events: int) -> None:
        if events != attempt.watched:
            self._selector.modify(attempt.transport, events)
            attempt.watched = events

    def _forget(self, attempt: _Attempt) -> None:
        if attempt.transport is None:
            return
        if attempt.watched:
            # Before closing it, because its descriptor may be reused immediately afterwards.
            self._selector.unregister(attempt.transport)
            attempt.watched = 0
        attempt.transport.close()
