"""Describe a cluster: open one connection, send one Metadata request, and close it again.

Used to inspect all topics, and blocks the caller. The pipeline has a persistent way to metadata,
limited to the topics in use.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol

from pykaproducer._errors.formatting import format_partition
from pykaproducer._net.connection import Answered, Connection, ConnectionSettings, Lost, Request
from pykaproducer._net.networks import network_for
from pykaproducer._net.secure import SecureNetworkSettings
from pykaproducer._net.transport import Network
from pykaproducer._util.clock import Clock
from pykaproducer._wire import WireError
from pykaproducer._wire.describe import ClusterDescription, decode_description
from pykaproducer._wire.messages import ApiKey, metadata_request
from pykaproducer.errors import MetadataTimeoutError

#: Pause after all servers have been tried (seconds).
_PAUSE = 0.1


class InspectSettings(ConnectionSettings, SecureNetworkSettings, Protocol):
    """The configuration settings for describing a cluster."""

    @property
    def bootstrap_servers(self) -> tuple[tuple[str, int], ...]: ...


def list_cluster(
    config: InspectSettings,
    timeout: float | None,
    topic: str | None = None,
    *,
    create: bool = False,
    clock: Clock | None = None,
    network: Network | None = None,
) -> ClusterDescription:
    """Ask one of ``bootstrap_servers`` to describe its cluster, with all topics or only *topic*.

    The servers are tried in turn until one answers. A topic that does not exist is in the result,
    with its error code.

    Args:
        config: the configuration of a producer.
        timeout (float): seconds. None waits until a server answers.
        topic (str): None returns all topics.
        create (bool): whether the brokers may create *topic*, if their configuration permits it.
        clock, network: replacements for tests.

    Raises:
        MetadataTimeoutError: no server answered within *timeout*; the text has the last reason.
    """
    clock = clock or Clock()
    deadline = None if timeout is None else clock.monotonic() + timeout
    connection = Connection(
        ("", 0), config=config, clock=clock, network=network or network_for(config)
    )
    try:
        return _Inquiry(connection, config, clock, deadline, topic, create).answer()
    finally:
        connection.close()


class _Inquiry:
    """One Metadata request, sent until a server answers it."""

    def __init__(
        self,
        connection: Connection,
        config: InspectSettings,
        clock: Clock,
        deadline: float | None,
        topic: str | None,
        create: bool,
    ) -> None:
        self._connection = connection
        self._config = config
        self._clock = clock
        self._deadline = deadline
        self._topic = topic
        self._create = create
        self._reason: str | None = None

    def answer(self) -> ClusterDescription:
        servers = list(self._config.bootstrap_servers)
        random.shuffle(servers)
        while True:
            for server in servers:
                found = self._ask(server)
                if found is not None:
                    return found
                self._check_time()
            # poll() of a closed connection only waits.
            pause = self._clock.monotonic() + _PAUSE
            self._connection.poll(pause if self._deadline is None else min(pause, self._deadline))
            self._check_time()

    def _check_time(self) -> None:
        if self._deadline is not None and self._clock.monotonic() >= self._deadline:
            where = "" if self._topic is None else f"{format_partition(self._topic)}: "
            raise MetadataTimeoutError(
                f"{where}no metadata within the timeout: {self._reason or 'no response'}"
            )

    def _ask(self, server: tuple[str, int]) -> ClusterDescription | None:
        """Ask one server. Return its answer, or None if there is none."""
        connection = self._connection
        connection.address = server
        connection.name = "broker at {}:{}".format(*server)
        connection.open()
        due = self._clock.monotonic() + self._config.request_timeout_ms / 1000
        if self._deadline is not None:
            due = min(due, self._deadline)
        connection.submit(Request(ApiKey.METADATA, self._encode, deadline=due))
        while True:
            for event in connection.poll(due):
                match event:
                    case Answered():
                        return self._decode(event, server)
                    case Lost():
                        self._failed(server, event.reason)
                        return None
            if self._clock.monotonic() >= due:
                self._failed(server, "no response in time")
                return None

    def _encode(self, version: int, correlation_id: int) -> Sequence[bytes]:
        topics = None if self._topic is None else [self._topic]
        client_id = self._config.client_id
        return [metadata_request(version, correlation_id, client_id, topics, self._create)]

    def _decode(self, event: Answered, server: tuple[str, int]) -> ClusterDescription | None:
        try:
            found = decode_description(event.version, event.payload, server)
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
