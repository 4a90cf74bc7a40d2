"""The stages of transactions without threads and sockets, and the pipeline that has them.

Coordinator and GroupCoordinator are the product's own, and so are the bytes of their requests. Only
what is below them is replaced: a list of requests takes the place of a connection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest import mock

from pykaproducer._machines.coordinator_queries import TV2_VERSIONS
from pykaproducer._machines.session import LAST_VERSION
from pykaproducer._net.connection import Answered, Request
from pykaproducer._pipeline.admission_functions import AdmissionFunctions
from pykaproducer._pipeline.coordinator import Coordinator
from pykaproducer._pipeline.coordinator_connection import CoordinatorConnection
from pykaproducer._pipeline.group import GroupCoordinator, OffsetsAnswered
from pykaproducer._wire.messages import VERSIONS, ApiKey
from pykaproducer.config import Config
from pykaproducer.transactions import TransactionalMethods
from tests.kernel.helper import Door

from .cluster import Fate, Kind
from .coordinator_requests import answer_call, answer_lookup
from .promises import check
from .stages import ModelDoor, ModelMetadata, ModelPipeline
from .transactional_log import TransactionalCluster

_PORT = 9092


class Call(NamedTuple):
    """A request as the broker gets it."""

    api_key: int
    version: int
    data: bytes


class ModelConnection(CoordinatorConnection):
    """A connection to a coordinator: the requests given to the socket, at most one at a time."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.wire: deque[tuple[Request, Call]] = deque()
        #: The response to the oldest of them.
        self.done: deque[bytes] = deque()

    def submit(self, request: Request) -> None:
        assert self.ready, "a request without a connection"
        check(not self.wire, "one request", f"{request.tag} while {self.wire} is unanswered")
        version = min(request.at_most, VERSIONS[request.api_key][1])
        assert version >= request.at_least
        (data,) = request.encode(version, 0)
        self.wire.append((request, Call(request.api_key, version, bytes(data))))

    def refuses(
        self, api_key: int, *, at_least: int = 0, at_most: int = LAST_VERSION
    ) -> str | None:
        return None

    def write_now(self) -> None:
        """Write the request to the socket: see submit()."""

    def writes_at_once(self) -> bool:
        return self.ready

    def is_unused_too_long(self, now: float) -> bool:
        return False

    def drop(self, reason: str) -> None:
        if self.ready:
            self._lost(reason, written=True)

    # Actions of the model ------------------------------------------------------------------------

    @property
    def broker_id(self) -> int:
        """The broker to which it is, or will be, connected."""
        assert self._address is not None
        return self._address[1] - _PORT

    def wants_to_connect(self) -> bool:
        """Return whether its thread would connect now."""
        return not self.ready and not self.stopping and self.wants_connection()

    def connected(self, works: bool, cluster: TransactionalCluster) -> None:
        """Finish a connection attempt."""
        if works:
            self.ready = True
            self.features = {"transaction.version": cluster.coordinator.level}
            self.versions = TV2_VERSIONS
            self.on_ready()
        else:
            self.on_lost("refused", [], [])

    def taken_by_broker(self, cluster: TransactionalCluster, fate: Fate) -> None:
        """Let the broker handle the request, and answer."""
        self.done.append(answer_call(cluster, self.broker_id, *self.wire[0][1], fate))

    def answered(self) -> None:
        """Deliver the answer."""
        (request, call), payload = self.wire.popleft(), self.done.popleft()
        request.version = call.version
        self.on_answer(Answered(request, call.version, payload))
        self.on_inbox_drained()  # which its thread calls after each answer

    def cut(self, cluster: TransactionalCluster, *, written: bool, arrives: bool) -> Call | None:
        """Lose the connection; return the request that the broker may handle later.

        *written*: a request was given to the socket; *arrives*: and the broker has handled it.
        """
        written |= bool(self.done)
        if self.wire and not self.done and written and arrives:
            self.taken_by_broker(cluster, Fate(Kind.TAKE))
        late = self.wire[0][1] if self.wire and written and not self.done else None
        self._lost("cut", written=written)
        return late

    def idle(self) -> None:
        """Close the connection, which has been idle."""
        if not self.wire:
            self.ready = False
            self.on_connection_idle()

    def _lost(self, reason: str, *, written: bool) -> None:
        requests = [request for request, _ in self.wire]
        self.wire.clear()
        self.done.clear()
        self.ready = False
        self.on_lost(reason, requests if written else [], [] if written else requests)


class ModelCoordinator(ModelConnection, Coordinator):
    """The stage of the transactional id."""


class ModelGroupCoordinator(ModelConnection, GroupCoordinator):
    """The stage of a group."""


class TransactionalMetadata(ModelMetadata):
    """Metadata that also finds coordinators."""

    def answered(self, cluster: Any) -> None:
        request = self.wire[0]
        assert request.api_key != ApiKey.INIT_PRODUCER_ID, "the coordinator gives the id"
        if request.api_key == ApiKey.METADATA:
            super().answered(cluster)
            return
        self.wire.popleft()
        request.version = version = VERSIONS[ApiKey.FIND_COORDINATOR][1]
        (data,) = request.encode(version, 0)
        payload = answer_lookup(cluster, version, bytes(data))
        self.on_answer(Answered(request, version, payload))
        self.on_inbox_drained()  # which its thread calls after each answer


class NoWaiters:
    """Nobody waits for space in ``buffer_memory``."""

    def wake_all(self) -> None:
        """Do nothing."""


class TransactionalDoor(TransactionalMethods, ModelDoor):
    """The producer's entry point, opened and shut by the coordinator's stage."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self._pipeline = None
        self._space: Any = NoWaiters()

    def _start(self) -> None:
        self._check_transaction()

    def _announce_missed_slots(self) -> None:
        """Do nothing: no signal interrupts send()."""


class TransactionalPipeline(ModelPipeline):
    """The product's wiring of a transactional producer."""

    metadata_type = TransactionalMetadata
    door: TransactionalDoor
    #: Tests replace them.
    coordinator_type: type[ModelCoordinator] = ModelCoordinator
    group_type: type[ModelGroupCoordinator] = ModelGroupCoordinator

    def __init__(self, *args: Any) -> None:
        self.connections: list[ModelConnection] = []
        super().__init__(*args)

    @property
    def transactions(self) -> ModelCoordinator:
        """The stage of the transactional id."""
        assert isinstance(self.coordinator, ModelCoordinator)
        return self.coordinator

    def _admission_of(self, door: Door) -> AdmissionFunctions:
        assert isinstance(door, TransactionalDoor)
        return AdmissionFunctions(
            door._take, door._take_all, door._take_callers, door._let_go, lambda: None, door
        )

    def _new_coordinator(self) -> Coordinator | None:
        with mock.patch("pykaproducer._pipeline.coordinator.Coordinator", self.coordinator_type):
            coordinator = super()._new_coordinator()
        assert isinstance(coordinator, ModelCoordinator)
        self.connections.append(coordinator)
        return coordinator

    def _new_group(
        self, group: str, number: int, report: Callable[[OffsetsAnswered], None]
    ) -> GroupCoordinator:
        with mock.patch("pykaproducer._pipeline.group.GroupCoordinator", self.group_type):
            stage = super()._new_group(group, number, report)
        assert isinstance(stage, ModelGroupCoordinator)
        self.connections.append(stage)
        return stage

    def connections_that(self, kind: str) -> Iterator[ModelConnection]:
        """Yield those that want to connect, have an unhandled request, an answer, or neither."""
        for connection in self.connections:
            if kind == "wants":
                found = connection.wants_to_connect()
            elif kind == "unhandled":
                found = bool(connection.wire) and not connection.done
            elif kind == "handled":
                found = bool(connection.done)
            else:
                found = connection.ready
            if found:
                yield connection
