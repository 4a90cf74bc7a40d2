"""The product's pipeline without threads and sockets: the model decides which stage runs.

Every stage is the product's own, and so is the wiring. Only the inboxes are replaced (by
:class:`Schedule`), and everything below Bridge and Metadata (a list of requests takes the place of
a connection).
"""

from __future__ import annotations

import contextlib
import struct
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pykaproducer._kernel as _kernel
from pykaproducer._machines.batch import Batch
from pykaproducer._machines.ordering import Ordering, Transitions
from pykaproducer._machines.session import LAST_VERSION
from pykaproducer._net.connection import Answered, Request
from pykaproducer._net.transport import Network
from pykaproducer._pipeline.admission_functions import AdmissionFunctions
from pykaproducer._pipeline.bridge import Bridge, ProduceRequest
from pykaproducer._pipeline.broker import BrokerWorker
from pykaproducer._pipeline.metadata import Metadata
from pykaproducer._pipeline.partition import PartitionWorker
from pykaproducer._pipeline.wiring import Pipeline
from pykaproducer._pipeline.worker import Worker
from pykaproducer._wire.messages import VERSIONS, ApiKey
from pykaproducer.config import Config
from pykaproducer.testing import FakeClock
from tests.kernel.helper import TOPIC, Door

from .cluster import Cluster, Fate, Kind
from .promises import check

_STOP = object()


class Schedule:
    """The inboxes of all stages and the order in which they run; it replaces the threads.

    ``running`` holds the stages that are in the middle of a step, the outermost first. With
    ``direct``, a stage runs the next one inline under the product's conditions: it is not running,
    its inbox is empty, and it agrees.
    """

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.inboxes: dict[Worker, deque[Any]] = {}
        self.running: list[Worker] = []
        self.direct = False
        #: Stages that are suspended.
        self.held_up: set[Worker] = set()
        self._stopped: set[Worker] = set()
        self._ended: set[Worker] = set()

    @contextlib.contextmanager
    def in_charge(self) -> Iterator[None]:
        """Replace the inboxes of all workers; no thread starts."""
        with (
            mock.patch.object(Worker, "put", lambda worker, item: self.put(worker, item)),
            mock.patch.object(Worker, "append", lambda worker, item: self.append(worker, item)),
            mock.patch.object(Worker, "pull", lambda worker, ask: self.pull(worker, ask)),
            mock.patch.object(Worker, "__init__", self._init_worker()),
            mock.patch.object(Worker, "stop", lambda worker: self.stop(worker)),
            mock.patch.object(Worker, "is_alive", lambda worker: worker not in self._ended),
        ):
            yield

    def put(self, worker: Worker, item: Any) -> None:
        """Replace Worker.put."""
        inbox = self.inboxes.setdefault(worker, deque())
        idle = self._is_idle(worker)
        if self.direct and self.running and idle and worker.can_run_inline(item):
            with self._runs(worker):
                worker.handle(item)
                worker.on_inbox_drained()
        else:
            inbox.append(item)

    def append(self, worker: Worker, item: Any) -> None:
        """Replace Worker.append."""
        self.inboxes.setdefault(worker, deque()).append(item)

    def _init_worker(self) -> Callable[..., None]:
        """Return Worker.__init__ with another lock."""
        init: Callable[..., None] = Worker.__init__

        def replacement(worker: Worker, *args: Any) -> None:
            init(worker, *args)
            running: Any = _Running(self, worker)
            worker._running = running

        return replacement

    def borrow(self, worker: Worker) -> bool:
        """Let the running stage hold *worker*, if that is idle."""
        if not self.direct or not self.running or not self._is_idle(worker):
            return False
        self.running.append(worker)
        return True

    def pull(self, worker: Worker, ask: Callable[[], None]) -> None:
        """Replace Worker.pull."""
        inbox = self.inboxes.setdefault(worker, deque())
        if inbox:
            return
        ask()
        for _ in range(len(inbox)):
            if inbox[0] is _STOP:
                break
            worker.handle(inbox.popleft())

    def stop(self, worker: Worker) -> None:
        """Replace Worker.stop."""
        worker.stopping = True
        self.inboxes.setdefault(worker, deque()).append(_STOP)

    def busy(self) -> list[Worker]:
        """Return the stages that have work and are not suspended."""
        now = self.clock.monotonic()
        off = self._ended | self.held_up
        return [
            worker
            for worker, inbox in self.inboxes.items()
            if worker not in off and (inbox or _is_due(worker, now))
        ]

    def run(self, worker: Worker, most: int) -> None:
        """Run one iteration of *worker*'s loop, with *most* items at most."""
        inbox = self.inboxes[worker]
        with self._runs(worker):
            now = self.clock.monotonic()
            if _is_due(worker, now):
                worker.on_time(now)
            for _ in range(min(most, len(inbox))):
                item = inbox.popleft()
                if item is _STOP:
                    self._stopped.add(worker)
                else:
                    worker.handle(item)
            worker.on_inbox_drained()
            if worker in self._stopped and worker.can_stop():
                worker.on_stop()
                self._ended.add(worker)

    def next_time(self, *, without: Worker) -> float | None:
        """Return the next deadline of any stage except *without*."""
        found = [
            worker.deadline()
            for worker in self.inboxes
            if worker is not without and worker not in self._ended
        ]
        return min((deadline for deadline in found if deadline is not None), default=None)

    def _is_idle(self, worker: Worker) -> bool:
        has_items = bool(self.inboxes.get(worker))
        return not (has_items or worker in self.running or worker in self.held_up)

    @contextlib.contextmanager
    def _runs(self, worker: Worker) -> Iterator[None]:
        self.running.append(worker)
        try:
            yield
        finally:
            self.running.pop()


class _Running:
    """The lock of the thread that runs a stage, as a stage that borrows it sees it."""

    def __init__(self, schedule: Schedule, worker: Worker) -> None:
        self._schedule = schedule
        self._worker = worker

    def acquire(self, blocking: bool) -> bool:
        assert not blocking, "this would wait for another stage"
        return self._schedule.borrow(self._worker)

    def release(self) -> None:
        self._schedule.running.remove(self._worker)


def _is_due(worker: Worker, now: float) -> bool:
    deadline = worker.deadline()
    return deadline is not None and deadline <= now


class ModelBridge(Bridge):
    """A bridge whose connection is a list of the requests given to the socket, oldest first."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.wire: deque[Request] = deque()
        #: The broker's results for the oldest of them.
        self.done: deque[list[tuple[int, int]]] = deque()

    def submit(self, request: Request) -> None:
        assert self.ready, "a request without a connection"
        self.wire.append(request)

    def write_now(self) -> None:
        """Write the requests to the socket: see submit()."""

    def refuses(self, *_: int, **__: int) -> None:
        """Return None: the broker supports all requests."""

    def on_stop(self) -> None:
        assert not self.wire, "the bridge of a stage that still waits for answers"
        self.ready = False

    # Actions of the model -----------------------------------------------------------------------

    def wants_to_connect(self) -> bool:
        """Return whether its thread would connect now."""
        return not self.ready and not self.stopping and self.wants_connection()

    def connected(self, works: bool) -> None:
        """Finish a connection attempt."""
        if works:
            self.ready, self.versions = True, {ApiKey.PRODUCE: LAST_VERSION}
            self.on_ready()
        else:
            self.on_lost("refused", [], [])

    def taken_by_broker(self, cluster: Cluster, fates: list[Fate]) -> None:
        """Let the broker handle the oldest request that it has not handled."""
        request = self.wire[len(self.done)]
        version = produce_version(request)
        self.done.append(
            [
                cluster.produce(self.broker_id, batch, fates[i % len(fates)], version)
                for i, batch in enumerate(request.tag.batches)
            ]
        )

    def answered(self) -> None:
        """Deliver the oldest answer."""
        request, results = self.wire.popleft(), self.done.popleft()
        request.version = 3
        partitions = [batch.partition for batch in request.tag.batches]
        payload = _produce_answer(list(zip(partitions, results, strict=True)))
        self.on_answer(Answered(request, 3, payload))

    def cut(self, written: int, arrives: int, cluster: Cluster) -> deque[tuple[Batch, int]]:
        """Lose the connection, and return the batches that the broker may handle later.

        Each is returned with the version of its request. *written* requests were given to the
        socket, and the broker has handled *arrives* of them.
        """
        written = min(max(written, len(self.done)), len(self.wire))
        while len(self.done) < min(arrives, written):
            self.taken_by_broker(cluster, [Fate(Kind.TAKE)])
        requests = list(self.wire)
        late = deque(
            (batch, produce_version(request))
            for request in requests[len(self.done) : written]
            for batch in request.tag.batches
        )
        self.wire.clear()
        self.done.clear()
        self.ready = False
        self.on_lost("cut", requests[:written], requests[written:])
        return late


class ModelMetadata(Metadata):
    """Metadata whose connection is a list and never fails."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.ready = True
        self.wire: deque[Request] = deque()
        self._next_id = 1000

    def submit(self, request: Request) -> None:
        self.wire.append(request)

    def refuses(self, api_key: int) -> str | None:
        return None

    def answered(self, cluster: Cluster) -> None:
        """Answer the oldest request."""
        request = self.wire.popleft()
        request.version = 0
        if request.api_key == ApiKey.METADATA:
            payload = _metadata_answer(cluster)
        else:
            payload = struct.pack(">ihqh", 0, 0, self._next_id, 0)
            self._next_id += 1
        self.on_answer(Answered(request, 0, payload))


def produce_version(request: Request) -> int:
    """Return the version in which a Produce request is sent to a broker of today."""
    version = min(request.at_most, VERSIONS[ApiKey.PRODUCE][1])
    assert version >= request.at_least
    return version


def _produce_answer(results: list[tuple[int, tuple[int, int]]]) -> bytes:
    name = TOPIC.encode()
    answer = struct.pack(f">ih{len(name)}si", 1, len(name), name, len(results))
    for partition, (code, offset) in results:
        answer += struct.pack(">ihqq", partition, code, offset, -1)
    return answer + struct.pack(">i", 0)


def _metadata_answer(cluster: Cluster) -> bytes:
    name = TOPIC.encode()
    answer = struct.pack(">i", cluster.brokers)
    for broker in range(cluster.brokers):
        answer += struct.pack(">ih1si", broker, 1, b"h", 9092 + broker)
    answer += struct.pack(f">ihh{len(name)}si", 1, 0, len(name), name, len(cluster.published))
    for partition, leader in enumerate(cluster.published):
        answer += struct.pack(">hiiii", 5 if leader < 0 else 0, partition, leader, 0, 0)
    return answer


class ModelPipeline(Pipeline):
    """The product's wiring, with the bridges and the metadata above."""

    #: A test may replace it.
    ordering = Ordering
    metadata_type: type[ModelMetadata] = ModelMetadata

    def __init__(
        self, config: Config, clock: FakeClock, door: Door, transitions: Transitions
    ) -> None:
        self.bridges: list[ModelBridge] = []
        self.taken = transitions
        self.flushing = False
        #: The youngest batch for each producer id and epoch of a partition.
        self.youngest: dict[tuple[int, int, int], int] = {}
        no_network = mock.create_autospec(Network, instance=True)
        with mock.patch("pykaproducer._pipeline.wiring.Metadata", self.metadata_type):
            super().__init__(config, clock, no_network, "model", self._admission_of(door))

    def _admission_of(self, door: Door) -> AdmissionFunctions:
        return AdmissionFunctions(
            door._take, door._take_all, door._take_callers, door._let_go, lambda: None
        )

    def is_flushing(self) -> bool:
        return self.flushing

    def _new_partition_worker(self, topic: str, partition: int) -> PartitionWorker:
        worker = super()._new_partition_worker(topic, partition)
        worker.path.ordering = self.ordering()
        worker.ordering.taken = self.taken
        return worker

    def _new_broker_worker(self, broker_id: int) -> BrokerWorker:
        with mock.patch("pykaproducer._pipeline.broker.Bridge", ModelBridge):
            worker = super()._new_broker_worker(broker_id)
        assert isinstance(worker.bridge, ModelBridge)
        self.bridges.append(worker.bridge)
        make = worker._builder.request

        def request(batches: list[Batch]) -> ProduceRequest:
            for batch in batches:
                self._check_written(batch)
            return make(batches)

        worker._builder.request = request  # type: ignore[method-assign]
        return worker

    def _check_written(self, batch: Batch) -> None:
        """Check that a batch reported as failed is written only if a younger one needs it."""
        numbers = batch.partition, batch.producer_id, batch.producer_epoch
        youngest = self.youngest[numbers] = max(batch.number, self.youngest.get(numbers, 0))
        needless = batch.is_settled and not (batch.sequenced and batch.number < youngest)
        check(not needless, "reported", f"{batch} is written, and nothing waits for it")


class ModelDoor(Door):
    """The producer's entry point, which notifies the dispatcher."""

    dispatcher: Worker

    def _announce(self, slots: _kernel.TopicSlot | list[_kernel.TopicSlot]) -> None:
        self.dispatcher.put(slots)
