"""TopicWorker: assigns the messages of a topic to partitions. One per topic with known metadata.

In Sarama: ``topicProducer.dispatch``. Owns: the topic's partitioner and its state.

Guarantees: each row gets its partition once and keeps it when retried. Rows of one partition keep
their order. An exception in a partitioner fails its own row only. A row for a partition that is
not in the view fails only after all servers have denied the partition (``Denials``).
"""

from __future__ import annotations

import functools
import struct
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from pykaproducer import partitioners
from pykaproducer._kernel import (
    BorrowedPaths,
    CallerRoute,
    Chunk,
    Partitioner,
    PartitionPath,
    Slice,
)
from pykaproducer._machines import adaptive_partitioning
from pykaproducer._machines.backlog import Backlog, Sweep
from pykaproducer._machines.batch import Batch, Chaser
from pykaproducer._machines.cluster import TopicView
from pykaproducer._machines.refresh import Denials
from pykaproducer._machines.verdicts import FATAL_TOPIC_ERRORS
from pykaproducer._pipeline.broker_events import EnqueueNew
from pykaproducer._pipeline.custom_partitioner import (
    assign_partitions,
    error_maker,
    no_such_partition,
)
from pykaproducer._pipeline.metadata import Metadata
from pykaproducer._pipeline.metadata_events import ViewChanged
from pykaproducer._pipeline.partition import PartitionWorker, Rest
from pykaproducer._pipeline.reports import Failure, Settler
from pykaproducer._pipeline.worker import StageContext, Worker
from pykaproducer._util.deques import copied_items
from pykaproducer._util.memory import NO_MEMORY
from pykaproducer.config import Config
from pykaproducer.errors import DeliveryError, Status, delivery_error_for
from pykaproducer.partitioners import PartitionerFunction


class AtRest(NamedTuple):
    """Reply to a :class:`~pykaproducer._pipeline.partition.Rest`: nothing is in progress."""

    partition: int
    #: Number of the round of questions to all partitions.
    round: int


@dataclass(eq=False, repr=False, slots=True)
class _Unknown:
    """Rows for partitions that are not in the view."""

    part: Slice
    #: Since when they wait (monotonic seconds).
    since: float
    #: When the first view was requested that does not have their partitions, either.
    denied_at: float | None = None


#: While rows wait for partitions that are not in the view, it is requested this often (seconds).
_ASK_AGAIN_AFTER = 0.25

Item = Chunk | Batch | Backlog | Chaser | Sweep | ViewChanged | Rest | AtRest


class TopicWorker(Worker[Item]):
    """Splits each chunk by partition."""

    def __init__(
        self,
        context: StageContext,
        config: Config,
        new_partition_worker: Callable[[str, int], PartitionWorker],
        metadata: Metadata,
        settler: Settler,
        topic: str,
    ) -> None:
        super().__init__(f"topic-{topic}", context)
        self.topic = topic
        self._has_own_thread = config.stage_threads == "own"
        self._linger = config.linger_ms / 1000
        self._new_partition_worker = new_partition_worker
        self._metadata = metadata
        self._settler = settler
        chosen = config.partitioner
        # A compiled partitioner, or a user's function.
        self._partitioner: Partitioner | PartitionerFunction = (
            partitioners.named(chosen, sticky_bytes=config.batch_size)
            if isinstance(chosen, str)
            else chosen
        )
        # Whether partitions with longer queues get fewer of the messages without a key.
        self._adaptive = config.partitioner_adaptive_partitioning_enable
        # Unit in which the lengths of queues are compared (bytes).
        self._queue_unit = max(1, min(config.batch_size, adaptive_partitioning.UNIT))
        self._partitions: dict[int, PartitionWorker] = {}
        self._paths: dict[int, PartitionPath] = {}
        self._weigh_again = 0.0
        # The view with which callers partition their messages, and the object that they use.
        self._lent_view: TopicView | None = None
        self._route: CallerRoute | None = None
        # Rows for partitions that are not in the view, what the servers say about these, and when
        # to ask again.
        self._unknown: deque[_Unknown] = deque()
        self._denials = Denials()
        self._ask_at: float | None = None
        # Partitions that have not yet reported that they are at rest. None: not asked, or an item
        # has arrived since.
        self._not_at_rest: set[int] | None = None
        self._round = 0
        self._when_at_rest: Callable[[], None] = _nothing

    def can_run_inline(self, item: Item) -> bool:
        # A compiled partitioner is fast or releases the GIL; a user's function may take long.
        return isinstance(self._partitioner, Partitioner) and not self._has_own_thread

    def held_items(self) -> Iterable[object]:
        return [unknown.part for unknown in copied_items(self._unknown)]

    @property
    def partitions(self) -> dict[int, PartitionWorker]:
        """The workers of its partitions."""
        return self._partitions

    def handle(self, item: Item) -> None:
        match item:
            case Chunk():
                self._not_at_rest = None
                self._take(item)
            case Chaser():
                self._partition(item.partition).put(item)
            case Sweep():
                if (worker := self._partitions.get(item.partition)) is not None:
                    worker.put(item)
            case ViewChanged():
                self._resolve_unknown()
            case Rest():
                self._rest(item.tell)
            case AtRest():
                self._is_at_rest(item)
            case _:
                self._not_at_rest = None
                self._partition(item.partition).put(item)

    def _take(self, item: Chunk) -> None:
        if self._unknown:
            self._resolve_unknown()  # older rows whose partition exists now go first
        view = self._metadata.view.topics[self.topic]
        try:
            slices, unknown = self._split(item, view)
        except NO_MEMORY:
            # Rows that already have a partition keep it.
            self.retry_later(item, "partitioning")
            return
        self._lend_route(item, view)
        self._forward(slices)
        if unknown is not None and unknown.waiting():
            self._keep(unknown)

    def _forward(self, slices: list[Slice]) -> None:
        """Pass each slice to its partition's worker, or directly to the leader's.

        A chunk may have a slice for each of a thousand partitions. Most partitions would only
        forward it, so their slices are put into the brokers' workers together.
        """
        if (trace := self.metrics.trace) is not None:
            for part in slices:
                trace.note("partitioned", self, part)
        if self._has_own_thread:
            for part in slices:
                self._partition(part.partition).put(part)
            return
        borrowed = BorrowedPaths(self._paths, slices)
        try:
            for part in borrowed.others:
                self._partition(part.partition).put(part)
            for broker, items in borrowed.new.items():
                if trace is not None:
                    for _, part in items:
                        self._partitions[part.partition].note_forwarded(part)
                broker.put(EnqueueNew(items))
        finally:
            borrowed.give_back()

    def _lend_route(self, chunk: Chunk, view: TopicView) -> None:
        """Let callers partition their messages, with *view*."""
        partitioner = self._partitioner
        if view is self._lent_view or not isinstance(partitioner, Partitioner):
            return
        slot = chunk.slot  # None once its last row is reported, which may be at any moment
        if slot is not None:
            self._route = CallerRoute(
                partitioner,
                self._metadata,
                view,
                self.metrics,
                drives=not self._has_own_thread,
                linger=self._linger,
                used_at=self.used_at,
            )
            slot.lend_route(self._route)
            self._lent_view = view

    @property
    def used_at(self) -> float:
        """Return when a caller sent a message of the topic last (monotonic seconds); 0: never."""
        return 0.0 if self._route is None else self._route.used_at

    def _split(self, chunk: Chunk, view: TopicView) -> tuple[list[Slice], Slice | None]:
        if isinstance(self._partitioner, Partitioner):
            if self._adaptive and view.partitions > 1 and self._partitioner.is_sticky:
                self._weigh(self._partitioner, view)
            return chunk.split(self._partitioner, view.partitions, view.available)
        assign_partitions(
            self._partitioner,
            chunk,
            view.partitions,
            _numbers(view.available),
            functools.partial(self._fail, chunk),
        )
        return chunk.split(None, view.partitions, view.available)

    def _partition(self, partition: int) -> PartitionWorker:
        worker = self._partitions.get(partition)
        if worker is None:
            worker = self._partitions[partition] = self._new_partition_worker(self.topic, partition)
            self._paths[partition] = worker.path
        return worker

    def _weigh(self, partitioner: Partitioner, view: TopicView) -> None:
        now = self.clock.monotonic()
        if now < self._weigh_again:
            return
        self._weigh_again = now + adaptive_partitioning.pause(view.partitions)
        workers = map(self._partitions.get, _numbers(view.available))
        queues = [0 if worker is None else worker.queued for worker in workers]
        bounds = adaptive_partitioning.bounds(queues, self._queue_unit)
        packed = None if bounds is None else struct.pack(f"{len(bounds)}I", *bounds)
        partitioner.set_queue_bounds(view.available, packed)

    def _fail(self, chunk: Chunk, row: int, make_error: Callable[[Status], DeliveryError]) -> None:
        self._settler.fail([chunk.pick([row])], make_error)

    # Partitions that are not in the view ---------------------------------------------------------

    def _keep(self, unknown: Slice) -> None:
        """Keep rows of *unknown* partitions until there is a new view: this one may be too old.

        1. A partition is added to the topic.
        2. A message for it is sent.
        3. The message arrives here, and the view is from before 1. Only responses to requests that
           are made from now on are conclusive, and those of servers that lag behind are not.
        """
        while self._unknown and not self._unknown[0].part.waiting():
            self._unknown.popleft()  # expired
        unknown.detach_payload()
        self._unknown.append(_Unknown(unknown, self.clock.monotonic()))
        self._ask_again()

    def _ask_again(self) -> None:
        self._ask_at = None
        server = self._denials.next_server(self._metadata.servers)
        self._metadata.want_topics(self.topic, waiter=self, anew=True, server=server)

    def deadline(self) -> float | None:
        return self._ask_at

    def on_time(self, now: float) -> None:
        self._ask_again()

    def _resolve_unknown(self) -> None:
        """Pass on or fail the kept rows according to the view; keep the others for the next view.

        The topic may no longer be in the view:

        1. A row waits for a view and expires. The stage will still be notified of the next view.
        2. No message arrives for a long time: the topic is forgotten, and this stage stops.
        3. The next view arrives.
        """
        if not self._unknown:
            return
        view = self._metadata.view.topics[self.topic]
        self._denials.heard(view)
        waiting, self._unknown = self._unknown, deque()
        failures: list[Failure] = []
        for unknown in waiting:
            if not unknown.part.waiting():
                continue
            chunk = unknown.part.chunk
            by_partition: dict[int, list[int]] = {}
            for row in unknown.part.row_numbers():
                by_partition.setdefault(chunk.partition_of(row), []).append(row)
            others: list[int] = []
            for partition, rows in by_partition.items():
                if partition < view.partitions:
                    self._partition(partition).put(chunk.pick(rows, partition))
                else:
                    others += rows
            if others:
                unknown.part = chunk.pick(sorted(others))
                if found := self._failures_if_ruled_out(unknown, view):
                    failures += found
                else:
                    self._unknown.append(unknown)
        if failures:
            self._settler.fail_each(failures)
        if not self._unknown:
            self._denials, self._ask_at = Denials(), None
        elif self._ask_at is None:
            self._ask_at = self.clock.monotonic() + _ASK_AGAIN_AFTER

    def _failures_if_ruled_out(self, unknown: _Unknown, view: TopicView) -> list[Failure]:
        """Return the failures of the rows of *unknown* if the servers rule them out."""
        if view.asked_at < unknown.since:
            return []
        if view.error_code in FATAL_TOPIC_ERRORS:
            code = view.error_code
            return [
                Failure(
                    [unknown.part],
                    lambda status: delivery_error_for(code, topic=self.topic, status=status),
                )
            ]
        if view.named_by is None:
            return []
        if unknown.denied_at is None:
            unknown.denied_at = view.asked_at
        since, first = unknown.since, unknown.denied_at
        if not self._denials.suffice(view, since, first, self._metadata.servers):
            return []
        chunk = unknown.part.chunk
        failures = []
        for row in unknown.part.row_numbers():
            text = no_such_partition(chunk.partition_of(row), view.partitions)
            failures.append(Failure([chunk.pick([row])], error_maker(self.topic, text)))
        return failures

    # Rest ----------------------------------------------------------------------------------------

    def _rest(self, tell: Callable[[], None]) -> None:
        """Ask each partition to rest; call *tell* when all are at rest.

        Replies of an earlier round are ignored, and so are replies that an item has overtaken:

        1. a partition is at rest, and reports it;
        2. before the report is read here, a message for the partition is passed on;
        3. the report is read: the topic is not at rest, because the message has arrived.
        """
        self._round += 1
        self._when_at_rest = tell
        if any(unknown.part.waiting() for unknown in self._unknown):
            return
        self._unknown.clear()
        self._ask_at = None
        self._not_at_rest = set(self._partitions)
        if not self._not_at_rest:
            tell()
        for partition, worker in self._partitions.items():
            answer = AtRest(partition, self._round)
            worker.put(Rest(functools.partial(self.put, answer)))

    def _is_at_rest(self, item: AtRest) -> None:
        if self._not_at_rest is None or item.round != self._round:
            return
        self._not_at_rest.discard(item.partition)
        if not self._not_at_rest:
            self._not_at_rest = None
            self._when_at_rest()


def _nothing() -> None:
    """Do nothing; used while the topic was not asked to rest."""


def _numbers(packed: bytes) -> list[int]:
    return list(struct.unpack(f"{len(packed) // 4}i", packed))
