"""Ask a cluster once what it is: one connection, one Metadata request, and it is closed again.

Not the pipeline's way to its metadata, which lasts and knows the topics that are sent to: this is
for whoever wants to look at all topics, and may wait.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol

from pykaproducer._clock import Clock
from pykaproducer._net.connection import Answered, Connection, ConnectionSettings, Lost, Request
from pykaproducer._net.secure import SecuritySettings, network_for
from pykaproducer._net.transport import Network
from pykaproducer._texts import place
from pykaproducer._wire import WireError
from pykaproducer._wire.describe import ClusterDescription, decode_description
from pykaproducer._wire.kafka_python import ApiKey, metadata_request
from pykaproducer.errors import MetadataTimeoutError

#: Between two rounds over the servers (seconds).
_PAUSE = 0.1


class InspectSettings(ConnectionSettings, SecuritySettings, Protocol):
    """The settings that concern asking, as in the configuration."""

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
    """Ask one of ``bootstrap_servers`` for its cluster, with all topics or *topic* alone.

    The servers are tried in turn until one answers. A topic that does not exist is in the answer,
    with its error code.

    Args:
        config: the configuration of a producer.
        timeout (float): seconds; None: until one answers.
        topic (str): None: all topics.
        create (bool): whether the brokers may create *topic*, if they are set up so.
        clock, network: in place of the machine's, for tests.

    Raises:
        MetadataTimeoutError: no server answered by then; the text says why.
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
    """One question, asked until it is answered."""

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
            # Nothing is said over a closed connection: it only lets the time pass.
            pause = self._clock.monotonic() + _PAUSE
            self._connection.poll(pause if self._deadline is None else min(pause, self._deadline))
            self._check_time()

    def _check_time(self) -> None:
        if self._deadline is not None and self._clock.monotonic() >= self._deadline:
            where = "" if self._topic is None else f"{place(self._topic)}: "
            raise MetadataTimeoutError(
                f"{where}no metadata within the time given: {self._reason or 'no answer'}"
            )

    def _ask(self, server: tuple[str, int]) -> ClusterDescription | None:
        """The answer of one server; None if it gave none."""
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
                self._failed(server, "no answer in time")
                return None

    def _encode(self, version: int, correlation_id: int) -> Sequence[bytes]:
        topics = None if self._topic is None else [self._topic]
        client_id = self._config.client_id
        return [metadata_request(version, correlation_id, client_id, topics, self._create)]

    def _decode(self, event: Answered, server: tuple[str, int]) -> ClusterDescription | None:
        try:
            found = decode_description(event.version, event.payload, server)
        except WireError as error:
            self._failed(server, f"the broker sent what makes no sense: {error}")
            return None
        self._connection.give_up("done")
        return found

    def _failed(self, server: tuple[str, int], reason: str) -> None:
        # An attempt that the deadline has cut short says nothing: that no password was accepted
        # before, for one, does.
        cut = self._deadline is not None and self._clock.monotonic() >= self._deadline
        if self._reason is None or not cut:
            self._reason = "no connection to {}:{}: {}".format(*server, reason)
        self._connection.give_up(reason)
