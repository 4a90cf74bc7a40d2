"""TopicWorker: one per topic whose metadata is known. Partitions.

In Sarama: ``topicProducer.dispatch``. Owns: the topic's partitioner and its state.

Guarantees: each row gets its partition once; what comes round again keeps it. Rows of one
partition keep their order. A partitioner that fails harms its own row only.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from pykaproducer._kernel import Chunk, Partitioner, Slice
from pykaproducer._machines import balance
from pykaproducer._machines.backlog import Backlog, Sweep
from pykaproducer._machines.batching import Batch, Chaser
from pykaproducer._machines.cluster import TopicView
from pykaproducer._pipeline.metadata import Metadata
from pykaproducer._pipeline.partition import PartitionWorker
from pykaproducer._pipeline.reports import Settler
from pykaproducer._pipeline.worker import Worker
from pykaproducer._texts import place
from pykaproducer.errors import PartitionerError, Status
from pykaproducer.partitioners import PartitionerFunction


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

    def in_place(self, item: Chunk | Batch | Backlog | Chaser | Sweep) -> bool:
        # Partitioning is quick, or else lets the GIL go; a user's function may be anything.
        return isinstance(self.partitioner, Partitioner)

    def step(self, item: Chunk | Batch | Backlog | Chaser | Sweep) -> None:
        if isinstance(item, Sweep):
            if (worker := self._partitions.get(item.partition)) is not None:
                worker.put(item)
            return
        if not isinstance(item, Chunk):
            self._partition(item.partition).put(item)
            return
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
            self._refuse(strays, view)

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
                if isinstance(partition, int) and 0 <= partition < view.partitions:
                    chunk.assign(row, partition)
                    continue
                text = f"returned {partition!r}; partitions of the topic: {view.partitions}"
            except Exception as error:  # a user's partitioner: its own row fails (P9)
                cause, where = error, _place_of(error)
                text = f"raised {type(error).__name__}: {error}"
            self._fail(chunk.pick([row]), f"the partitioner {text}", cause, where)

    def _refuse(self, strays: Slice, view: TopicView) -> None:
        for row in strays.row_numbers():
            part = strays.chunk.pick([row])
            partition = strays.chunk.partition_of(row)
            self._fail(
                part,
                f"there is no partition {partition}; the topic has partitions 0 to "
                f"{view.partitions - 1}",
            )

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
    """Where the partitioner raised: all that is kept of its traceback."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None:
        return None
    code = last.tb_frame.f_code
    return f'raised in {code.co_qualname}, file "{code.co_filename}", line {last.tb_lineno}'


def _numbers(packed: bytes) -> list[int]:
    return list(struct.unpack(f"{len(packed) // 4}i", packed))
