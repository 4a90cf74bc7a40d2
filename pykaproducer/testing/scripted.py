"""A Kafka cluster in this process that responds according to a test's script.

``ScriptedCluster.network`` replaces the real network. Every connection is a pair of connected
sockets. A thread at the far end speaks Kafka's protocol using a separate codec (``_codec``) and
kafka-python's record reader, so that the library is never tested against itself. Differences from
real brokers are listed at the top of ``_scripted_apis`` and ``_scripted_log``.

    with ScriptedCluster(topics={"t": 3}) as cluster:
        cluster.next("produce", Refuse(19), Drop(appended=True))
        ...
        assert [record.value for record in cluster.log("t", 0)] == [b"once"]

Without a script, requests are answered as by a healthy cluster.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from pykaproducer._errors.codes import ErrorCode
from pykaproducer._net.transport import (
    ConnectionFailed,
    Endpoint,
    Network,
    Transport,
)
from pykaproducer._util.clock import Clock
from pykaproducer.config import Config
from pykaproducer.producer import Producer
from pykaproducer.testing._scripted_actions import (
    Action,
    Disconnect,
    Drop,
    Exchange,
    Hold,
    Mangle,
    Omit,
    Refuse,
    cut_short,
    garbage,
    huge_length,
    negative_length,
    proceed,
    truncated,
    twice,
    wrong_correlation_id,
)
from pykaproducer.testing._scripted_apis import NAMES, TRANSACTION_VERSION, ClusterState
from pykaproducer.testing._scripted_connection import BrokerEnd, NeverConnected
from pykaproducer.testing._scripted_log import LoggedBatch, LoggedRecord
from pykaproducer.testing._scripted_transactions import KINDS

__all__ = [
    "Action",
    "Disconnect",
    "Drop",
    "Exchange",
    "Hold",
    "LoggedBatch",
    "LoggedRecord",
    "Mangle",
    "Omit",
    "Received",
    "Refuse",
    "ScriptedCluster",
    "cut_short",
    "garbage",
    "huge_length",
    "negative_length",
    "proceed",
    "truncated",
    "twice",
    "wrong_correlation_id",
]


@dataclass(frozen=True, slots=True)
class Received:
    """A request that a broker has received."""

    broker: int
    #: Its name, as in :meth:`ScriptedCluster.next`.
    api: str
    version: int
    client_id: str | None
    #: The decoded request, with the attributes of kafka-python 3's classes.
    request: Any
    #: Index of the connection, from 0 over all brokers.
    connection: int


class ScriptedCluster:
    """An in-process cluster with scripted responses.

    *topics* are names with numbers of partitions, which are led by the brokers in turn. *versions*
    restricts the supported versions, for example ``{"produce": (3, 7)}``. *features* are levels of
    features: ``{"transaction.version": 0}`` has the transaction protocol before KIP-890.
    :meth:`close` ends all connections and joins the threads.
    """

    def __init__(
        self,
        brokers: int = 1,
        topics: Mapping[str, int] | None = None,
        *,
        versions: Mapping[str, tuple[int, int]] | None = None,
        auto_create: bool = False,
        features: Mapping[str, int] | None = None,
    ) -> None:
        # Guards all fields below; notified when a request arrives.
        self._changed = threading.Condition(threading.RLock())
        self._state = ClusterState(brokers, dict(versions or {}), auto_create)
        for name, partitions in (topics or {}).items():
            self._state.add_topic(name, partitions)
        for name, level in (features or {}).items():
            self.set_feature(name, level)
        self._script: dict[str, deque[tuple[int | None, Action]]] = {api: deque() for api in NAMES}
        self._standing: dict[str, Action] = {}
        self._history: list[Received] = []
        self._connections: list[BrokerEnd] = []
        self._held: set[threading.Event] = set()
        self._closed = False
        #: Replacement for the real network.
        self.network = ScriptedNetwork(self)

    def __enter__(self) -> ScriptedCluster:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def bootstrap_servers(self) -> str:
        """The brokers' addresses, which are valid for :attr:`network` only."""
        return ",".join(f"{b.host}:{b.port}" for b in self._state.brokers.values())

    # The script --------------------------------------------------------------------------------

    def producer(self, *, clock: Clock | None = None, **settings: Any) -> Producer:
        """Return a producer that uses this cluster's network, and *clock* if it is given."""
        return _scripted_producer(self.network, clock)(
            **{"bootstrap_servers": self.bootstrap_servers, **settings}
        )

    def next(self, api: str, *actions: Action, broker: int | None = None) -> None:
        """Apply *actions* to the next requests of *api* (to *broker*), one each, in this order.

        *api* is Kafka's name of the request in lower case: ``"produce"``, ``"metadata"``,
        ``"api_versions"``, ``"init_producer_id"``, ``"find_coordinator"``,
        ``"add_partitions_to_txn"``, ``"add_offsets_to_txn"``, ``"txn_offset_commit"``,
        ``"end_txn"``, ``"offset_fetch"``, ``"describe_transactions"`` or ``"list_transactions"``.
        """
        with self._changed:
            self._script[api].extend((broker, action) for action in actions)

    def always(self, api: str, action: Action) -> None:
        """Apply *action* to all requests of *api* from now on that :meth:`next` does not name.

        ``always(api, proceed)`` ends this.
        """
        _check_name(api)
        with self._changed:
            self._standing[api] = action

    def _action_for(self, api: str, broker: int) -> Action:
        script = self._script[api]
        for number, (wanted, action) in enumerate(script):
            if wanted is None or wanted == broker:
                del script[number]
                return action
        return self._standing.get(api, proceed)

    # The cluster -------------------------------------------------------------------------------

    def add_topic(self, name: str, partitions: int = 1) -> None:
        """Create a topic."""
        with self._changed:
            self._state.add_topic(name, partitions)

    def move_leader(self, topic: str, partition: int, broker: int) -> None:
        """Make *broker* the leader of the partition."""
        with self._changed:
            found = self._state.topics[topic][partition]
            found.leader = broker
            found.leader_epoch += 1

    def stop(self, broker: int, *, silently: bool = False) -> None:
        """Stop the broker: its connections are closed and new ones refused.

        With *silently*, as if its cable were unplugged: connections stay open without any traffic,
        and new ones are neither established nor refused.
        """
        with self._changed:
            state = self._state.brokers[broker]
            state.running = False
            state.reachable = not silently
            connections = [c for c in self._connections if c.broker == broker]
        for connection in connections:
            if silently:
                connection.mute()
            else:
                connection.hang_up()

    def start(self, broker: int) -> None:
        """Start the broker again, with its log. Requests from before the stop stay unanswered."""
        with self._changed:
            state = self._state.brokers[broker]
            state.running = state.reachable = True

    def log(self, topic: str, partition: int = 0, *, committed: bool = False) -> list[LoggedRecord]:
        """Return the records of a partition.

        With *committed* only those that a consumer with ``isolation.level=read_committed`` reads.
        """
        with self._changed:
            log = self._state.topics[topic][partition].log
            return log.committed() if committed else list(log.records)

    def batches(self, topic: str, partition: int = 0) -> list[LoggedBatch]:
        """Return the batches of a partition."""
        with self._changed:
            return list(self._state.topics[topic][partition].log.batches)

    # Transactions ------------------------------------------------------------------------------

    def set_feature(self, name: str, level: int) -> None:
        """Change the level of a feature. Connections learn it when they are opened."""
        if name != TRANSACTION_VERSION or not 0 <= level <= 2:
            raise ValueError(f"{TRANSACTION_VERSION} may be 0 to 2; there is no {name} {level}")
        with self._changed:
            self._state.set_level(level)

    def move_coordinator(self, kind: str, key: str, broker: int) -> None:
        """Make *broker* the coordinator of a ``"group"`` or of a transactional id.

        *kind*: ``"group"`` or ``"transaction"``. Before that it is broker 0.
        """
        if kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, not {kind!r}")
        with self._changed:
            self._state.transactions.placed[kind, key] = broker

    def time_out(self, transactional_id: str) -> None:
        """Abort the open transaction, as a coordinator does when its timeout has passed."""
        with self._changed:
            self._state.coordinators.time_out(transactional_id)

    def transaction_state(self, transactional_id: str) -> str:
        """Return Kafka's name of the state: ``"Empty"``, ``"Ongoing"``, ``"CompleteCommit"`` ..."""
        with self._changed:
            return self._state.coordinators.ids[transactional_id].state

    def offsets(self, group: str) -> dict[tuple[str, int], int]:
        """Return the committed offsets of *group* by topic and partition."""
        with self._changed:
            stored = self._state.coordinators.stored(group)
            return {place: each.offset for place, each in stored.items()}

    # Received requests -------------------------------------------------------------------------

    def received(self, api: str) -> list[Received]:
        """Return the received requests of *api*, in order."""
        with self._changed:
            return self._received(api)

    def wait_for(self, api: str, count: int) -> list[Received]:
        """Wait until *count* requests of *api* have been received, and return all of them."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._received(api)) >= count)
            return self._received(api)

    def _received(self, api: str) -> list[Received]:
        _check_name(api)
        return [received for received in self._history if received.api == api]

    def join_connections(self) -> None:
        """Wait until the brokers have noticed the end of every connection that was closed."""
        with self._changed:
            connections = list(self._connections)
        for connection in connections:
            connection.join()

    # Internals ---------------------------------------------------------------------------------

    def close(self) -> None:
        """Close all connections and join the threads. Idempotent."""
        with self._changed:
            self._closed = True
            connections = list(self._connections)
            for event in self._held:
                event.set()
        for connection in connections:
            connection.hang_up()
        self.join_connections()

    def _connect(self, endpoint: Endpoint) -> Transport:
        with self._changed:
            broker, state = next(
                (i, s)
                for i, s in self._state.brokers.items()
                if (s.host, s.port) == endpoint.address
            )
            if not state.reachable:
                return NeverConnected()
            if self._closed or not state.running:
                raise ConnectionFailed("connection refused: nothing listens there")
            connection = BrokerEnd(broker, len(self._connections), self._handle)
            transport = connection.start()
            # With the lock still held: close() joins the threads that it finds in this list.
            self._connections.append(connection)
        return transport

    def _handle(self, connection: BrokerEnd, frame: bytes) -> None:
        """Handle a request according to the script."""
        key, version = struct.unpack_from(">hh", frame)
        api, kind = next((api, kind) for api, kind in NAMES.items() if key == kind.API_KEY)
        request = kind.decode(frame, version=version, header=True)
        exchange = Exchange(
            connection.broker,
            request,
            lambda skip: self._perform(connection.broker, request, skip),
            lambda code: self._refuse(request, code),
            connection.send,
            self._wait,
        )
        header = request.header
        with self._changed:
            self._history.append(
                Received(
                    connection.broker, api, version, header.client_id, request, connection.number
                )
            )
            action = self._action_for(api, connection.broker)
            self._changed.notify_all()
            first, last = self._state.versions[kind]
        if first <= version <= last:
            action(exchange)
        elif api == "api_versions":
            # ApiVersions is answered whatever its version is: in version 0.
            request.API_VERSION = 0
            exchange.answer(exchange.refusal(ErrorCode.UNSUPPORTED_VERSION))
        else:
            raise Disconnect

    def _perform(self, broker: int, request: Any, skip: Any) -> Any:
        with self._changed:
            return self._state.perform(broker, request, skip)

    def _refuse(self, request: Any, code: int) -> Any:
        with self._changed:
            return self._state.refuse(request, code)

    def _wait(self, released: threading.Event) -> bool:
        with self._changed:
            if self._closed:
                return False
            self._held.add(released)
        released.wait()
        with self._changed:
            self._held.discard(released)
            return not self._closed


def _check_name(api: str) -> None:
    if api not in NAMES:
        raise ValueError(f"unknown request {api!r}; use one of {', '.join(NAMES)}")


def _scripted_producer(network: Network, clock: Clock | None) -> type[Producer]:
    class ScriptedProducer(Producer):
        _network_type = staticmethod(lambda config: network)

    if clock is not None:
        ScriptedProducer._clock = clock
    return ScriptedProducer


class ScriptedNetwork(Network):
    """A network that connects only to the brokers of a :class:`ScriptedCluster`.

    Its sockets belong to the cluster, so that a forked child does not close them.
    """

    def __init__(self, cluster: ScriptedCluster) -> None:
        super().__init__(Config.from_kwargs({}))
        self._cluster = cluster

    def resolve(self, host: str, port: int) -> list[Endpoint]:
        """Return the only address of a scripted broker."""
        for broker in self._cluster._state.brokers.values():
            if (broker.host, broker.port) == (host, port):
                return [Endpoint(socket.AF_UNIX, (host, port))]
        raise ConnectionFailed(
            f"the host name {host!r} cannot be resolved: there is no such broker"
        )

    def connect(self, endpoint: Endpoint) -> Transport:
        """Return the client's end of a pair of sockets."""
        return self._cluster._connect(endpoint)
