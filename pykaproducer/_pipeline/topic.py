"""TopicWorker: one per topic whose metadata is known. Partitions.

In Sarama: ``topicProducer.dispatch``. Owns: the topic's partitioner and its state.

Guarantees: each row gets its partition once; what comes round again keeps it. Rows of one
partition keep their order. A partitioner that fails harms its own row only. A row for a partition
that the view does not have is refused only by an answer that was requested after the row came.
"""

from __future__ import annotations

import functools
import operator
import struct
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from pykaproducer._kernel import Chunk, Partitioner, Slice
from pykaproducer._machines import balance
from pykaproducer._machines.backlog import Backlog, Sweep
from pykaproducer._machines.cluster import TopicView
from pykaproducer._machines.lane import Batch, Chaser
from pykaproducer._machines.verdicts import FATAL_TOPIC_ERRORS
from pykaproducer._pipeline.metadata import Metadata, ViewChanged
from pykaproducer._pipeline.partition import PartitionWorker, Rest
from pykaproducer._pipeline.reports import Settler
from pykaproducer._pipeline.worker import Worker
from pykaproducer._texts import place
from pykaproducer.errors import PartitionerError, Status, delivery_error_for
from pykaproducer.partitioners import PartitionerFunction


@dataclass(frozen=True, slots=True)
class AtRest:
    """A partition has nothing under way, in answer to the *round*-th question to all."""

    partition: int
    round: int


Item = Chunk | Batch | Backlog | Chaser | Sweep | ViewChanged | Rest | AtRest


class TopicWorker(Worker):
    """Splits each chunk by partition."""

    # Set by wiring, before the first item.
    topic: str
    #: The compiled partitioner, or a user's function.
    partitioner: Partitioner | PartitionerFunction
    partition_worker: Callable[[str, int], PartitionWorker]
    metadata: Metadata
    settler: Settler
    #: Whether partitions with a long queue get fewer messages without a key.
    adaptive: bool
    #: Bytes by which queues are compared.
    queue_unit: int

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._partitions: dict[int, PartitionWorker] = {}
        self._weigh_again = 0.0
        # Rows for partitions that the view does not have, and since when each slice waits.
        self._strays: deque[tuple[Slice, float]] = deque()
        # The partitions that have not yet reported that they are at rest; None: something has come.
        self._restless: set[int] | None = None
        self._round = 0
        self._when_at_rest: Callable[[], None] = _nothing

    def in_place(self, item: Item) -> bool:
        # Partitioning is quick, or else lets the GIL go; a user's function may be anything.
        return isinstance(self.partitioner, Partitioner)

    def held(self) -> Iterable[object]:
        return [strays for strays, _ in list(self._strays)]

    @property
    def partitions(self) -> dict[int, PartitionWorker]:
        """The workers of its partitions."""
        return self._partitions

    def step(self, item: Item) -> None:
        match item:
            case Chunk():
                self._restless = None
                self._take(item)
            case Chaser():
                self._partition(item.partition).put(item)
            case Sweep():
                if (worker := self._partitions.get(item.partition)) is not None:
                    worker.put(item)
            case ViewChanged():
                self._look_for_strays()
            case Rest():
                self._rest(item.tell)
            case AtRest():
                self._is_at_rest(item)
            case _:
                self._restless = None
                self._partition(item.partition).put(item)

    def _take(self, item: Chunk) -> None:
        if self._strays:
            self._look_for_strays()  # those whose partition exists by now go first
        view = self.metadata.view.topics[self.topic]
        try:
            slices, strays = self._split(item, view)
        except MemoryError:
            # Rows that have a partition keep it.
            self.retry_later(item, "partitioning")
            return
        trace = self.meter.trace
        for part in slices:
            if trace is not None:
                trace.note("partitioned", self, part)
            self._partition(part.partition).put(part)
        if strays is not None and strays.waiting():
            self._keep(strays)

    def _split(self, chunk: Chunk, view: TopicView) -> tuple[list[Slice], Slice | None]:
        if isinstance(self.partitioner, Partitioner):
            if self.adaptive and view.partitions > 1 and self.partitioner.is_sticky:
                self._weigh(self.partitioner, view)
            return chunk.split(self.partitioner, view.partitions, view.available)
        self._ask_function(self.partitioner, chunk, view)
        return chunk.split(None, view.partitions, view.available)

    def _partition(self, partition: int) -> PartitionWorker:
        worker = self._partitions.get(partition)
        if worker is None:
            worker = self._partitions[partition] = self.partition_worker(self.topic, partition)
        return worker

    def _weigh(self, partitioner: Partitioner, view: TopicView) -> None:
        now = self.clock.monotonic()
        if now < self._weigh_again:
            return
        self._weigh_again = now + balance.pause(view.partitions)
        workers = map(self._partitions.get, _numbers(view.available))
        queues = [0 if worker is None else worker.queued for worker in workers]
        bounds = balance.bounds(queues, self.queue_unit)
        packed = None if bounds is None else struct.pack(f"{len(bounds)}I", *bounds)
        partitioner.favour(view.available, packed)

    def _ask_function(self, function: PartitionerFunction, chunk: Chunk, view: TopicView) -> None:
        everything = list(range(view.partitions))
        available = _numbers(view.available)
        for row in chunk.unassigned():
            cause: Exception | None = None
            where: str | None = None
            try:
                partition = function(chunk.key(row), everything, available or everything)
                if _is_index(partition) and 0 <= partition < view.partitions:
                    chunk.assign(row, operator.index(partition))
                    continue
                text = f"returned {partition!r}; partitions of the topic: {view.partitions}"
            except Exception as error:  # a user's partitioner: its own row fails (P9)
                cause, where = error, _place_of(error)
                text = f"raised {type(error).__name__}: {error}"
            self._fail(chunk.pick([row]), f"the partitioner {text}", cause, where)

    # Partitions that the view does not have ----------------------------------------------------

    def _keep(self, strays: Slice) -> None:
        """Keep *strays* until there is a fresh view: the present one may be too old.

        1. A partition is added to the topic. 2. A message for it is sent. 3. It comes here, and the
        view is from before 1. Only an answer that is requested now is conclusive.
        """
        while self._strays and not self._strays[0][0].waiting():
            self._strays.popleft()  # expired
        strays.take_along()
        self._strays.append((strays, self.clock.monotonic()))
        self.metadata.want_topics(self.topic, waiter=self, anew=True)

    def _look_for_strays(self) -> None:
        """Pass on or fail strays by the present view; the rest wait for another answer.

        The view may not have the topic any more:

        1. A stray waits for a view, and expires. The stage is still to be told of the next view.
        2. No message comes for long: the topic is forgotten, and this stage stops.
        3. The next view comes.
        """
        if not self._strays:
            return
        view = self.metadata.view.topics[self.topic]
        waiting, self._strays = self._strays, deque()
        for strays, since in waiting:
            if not strays.waiting():
                continue
            chunk = strays.chunk
            by_partition: dict[int, list[int]] = {}
            for row in strays.row_numbers():
                by_partition.setdefault(chunk.partition_of(row), []).append(row)
            others: list[int] = []
            for partition, rows in by_partition.items():
                if partition < view.partitions:
                    self._partition(partition).put(chunk.pick(rows, partition))
                else:
                    others += rows
            if others and not self._refused(chunk, others, view, since):
                self._strays.append((chunk.pick(sorted(others)), since))
        if self._strays:
            self.metadata.want_topics(self.topic, waiter=self, anew=True)

    def _refused(self, chunk: Chunk, rows: list[int], view: TopicView, since: float) -> bool:
        """Fail *rows* if *view*, requested after *since*, refuses them; return whether it does."""
        if view.asked_at < since:
            return False
        if view.error_code in FATAL_TOPIC_ERRORS:
            self.settler.fail(
                chunk.pick(rows),
                lambda status: delivery_error_for(view.error_code, topic=self.topic, status=status),
            )
            return True
        if view.error_code:
            return False
        for row in rows:
            self._fail(
                chunk.pick([row]),
                f"there is no partition {chunk.partition_of(row)}; the topic has partitions 0 to "
                f"{view.partitions - 1}",
            )
        return True

    # Rest ----------------------------------------------------------------------------------------

    def _rest(self, tell: Callable[[], None]) -> None:
        """Ask each partition whether it is at rest.

        Answers to an earlier round do not count, nor do answers overtaken by an item:

        1. a partition is at rest, and reports it;
        2. before that is read here, a message for the partition is passed on;
        3. the answer is read: the topic is not at rest, as something has come.
        """
        self._round += 1
        self._when_at_rest = tell
        if any(strays.waiting() for strays, _ in self._strays):
            return
        self._strays.clear()
        self._restless = set(self._partitions)
        if not self._restless:
            tell()
        for partition, worker in self._partitions.items():
            answer = AtRest(partition, self._round)
            worker.put(Rest(functools.partial(self.put, answer)))

    def _is_at_rest(self, item: AtRest) -> None:
        if self._restless is None or item.round != self._round:
            return
        self._restless.discard(item.partition)
        if not self._restless:
            self._restless = None
            self._when_at_rest()

    def _fail(
        self,
        part: Slice,
        text: str,
        cause: Exception | None = None,
        where: str | None = None,
    ) -> None:
        def make_error(status: Status) -> PartitionerError:
            error = PartitionerError(
                f"{place(self.topic)}: {text}", status=status, topic=self.topic, cause=cause
            )
            if where is not None:
                error.add_note(where)
            return error

        self.settler.fail(part, make_error)


def _place_of(error: Exception) -> str | None:
    """Return where the partitioner raised: all that is kept of its traceback."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None:
        return None
    code = last.tb_frame.f_code
    return f'raised in {code.co_qualname}, file "{code.co_filename}", line {last.tb_lineno}'


def _is_index(value: object) -> bool:
    """Return whether *value* is an integer; NumPy's integers count."""
    return hasattr(value, "__index__")


def _nothing() -> None:
    """Do nothing: the topic was not asked to rest."""


def _numbers(packed: bytes) -> list[int]:
    return list(struct.unpack(f"{len(packed) // 4}i", packed))
