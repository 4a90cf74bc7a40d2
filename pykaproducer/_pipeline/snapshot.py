"""Snapshot of a running pipeline: the messages in each stage, the brokers, topics and partitions.

For ``stats()``, which may be called from any thread, including in a callback or a signal handler. A
snapshot takes no lock that a stage may hold, and stops no stage. So each number is correct, but two
numbers may be from slightly different times.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pykaproducer._errors.formatting import format_error_code
from pykaproducer._kernel import Chunk, ProduceRequest, Slice
from pykaproducer._machines.backlog import Backlog
from pykaproducer._machines.batch import Batch
from pykaproducer._machines.partition_buffer import PartitionBuffer
from pykaproducer._pipeline.bridge import (
    Bridge,
    RequestsLost,
    RequestWritten,
    ResponseReceived,
)
from pykaproducer._pipeline.broker import BrokerWorker
from pykaproducer._pipeline.broker_events import Enqueue, EnqueueNew
from pykaproducer._pipeline.metrics import copied
from pykaproducer._pipeline.partition import PartitionWorker
from pykaproducer._pipeline.retry import RetryItems
from pykaproducer._pipeline.topic import TopicWorker
from pykaproducer._pipeline.worker import AnyWorker

if TYPE_CHECKING:
    from pykaproducer._pipeline.wiring import Pipeline


class HeldMessages:
    """Number, bytes and age of messages that a stage holds."""

    def __init__(self) -> None:
        self.rows = 0
        self.bytes = 0
        #: When the oldest of their chunks was opened (monotonic seconds).
        self.oldest: float | None = None

    def add(self, item: object) -> None:
        """Count the messages of *item*, which may be any item of an inbox."""
        match item:
            case Chunk():
                self.count(len(item), item.nbytes, item.opened)
            case Slice():
                self.count(item.count, item.nbytes, item.chunk.opened)
            case Backlog():
                if (opened := item.opened) is not None:
                    self.count(item.count, item.nbytes, opened)
            case Batch():
                self.count(item.count, len(item.payload), item.parts[0].chunk.opened)
            case Enqueue():
                self.add(item.item)
            case EnqueueNew():
                self.add_all(part for _, part in item.items)
            case RetryItems():
                self.add_all(item.items)
            case ProduceRequest():
                self.add_all(item.batches)
            case ResponseReceived() | RequestWritten():
                self.add_all(item.request.batches)
            case RequestsLost():
                self.add_all((*item.unanswered, *item.unwritten))

    def add_all(self, items: Iterable[object]) -> None:
        """Count the messages of each item."""
        for item in items:
            self.add(item)

    def count(self, rows: int, nbytes: int, opened: float) -> None:
        """Count *rows* messages of *nbytes* bytes, the oldest in a chunk opened at *opened*."""
        self.rows += rows
        self.bytes += nbytes
        if rows and (self.oldest is None or opened < self.oldest):
            self.oldest = opened


def stages(
    pipeline: Pipeline, now: float, open_rows: tuple[int, int, float | None]
) -> list[dict[str, Any]]:
    """Describe each stage: its thread, its inbox, and the messages it holds, inbox included.

    *open_rows*: the number, the bytes and the opening time of the accepted messages that the
    dispatcher has not taken yet.
    """
    return [_stage(pipeline, worker, now, open_rows) for worker in _workers(pipeline)]


def _workers(pipeline: Pipeline) -> list[AnyWorker]:
    brokers = pipeline.brokers.all()
    bridges = (broker.bridge for broker in brokers)
    return [*list(pipeline.stages), *brokers, *bridges, pipeline.log_writer]


def _stage(
    pipeline: Pipeline, worker: AnyWorker, now: float, open_rows: tuple[int, int, float | None]
) -> dict[str, Any]:
    held = HeldMessages()
    inbox = worker.inbox()
    held.add_all(inbox)
    held.add_all(copied(lambda: list(worker.held_items())))
    if worker is pipeline.dispatcher and open_rows[2] is not None:
        held.count(open_rows[0], open_rows[1], open_rows[2])
    found: dict[str, Any] = {
        "stage": type(worker).__name__,
        "name": worker.name,
        "alive": worker.is_alive(),
        "inbox": len(inbox),
        "rows": held.rows,
        "bytes": held.bytes,
        "oldest_s": None if held.oldest is None else max(0.0, now - held.oldest),
    }
    match worker:
        case TopicWorker():
            found["topic"] = worker.topic
        case PartitionWorker():
            found["topic"], found["partition"] = worker.topic, worker.partition
        case BrokerWorker() | Bridge():
            found["broker"] = worker.broker_id
    return found


def brokers(pipeline: Pipeline) -> list[dict[str, Any]]:
    """Describe each broker of the cluster, and each other broker that still has a worker."""
    workers: dict[int, list[BrokerWorker]] = {}
    for worker in pipeline.brokers.all():
        workers.setdefault(worker.broker_id, []).append(worker)
    known = pipeline.metadata.view.brokers
    last_errors = pipeline.last_errors.brokers
    found = []
    for broker_id in sorted({*known, *workers}):
        address = known.get(broker_id)
        here = workers.get(broker_id, [])
        error = last_errors.get(broker_id)
        found.append(
            {
                "id": broker_id,
                "address": "" if address is None else f"{address.host}:{address.port}",
                "state": _state(here, error),
                "references": sum(pipeline.brokers.references(worker) for worker in here),
                "unanswered_requests": sum(worker.requests for worker in here),
                "last_error": error,
            }
        )
    return found


def _state(workers: list[BrokerWorker], error: str | None) -> str:
    if [worker for worker in workers if worker.bridge.ready]:
        return "connected"
    if error is not None:
        return "down"
    if [worker for worker in workers if worker.bridge.wants_connection()]:
        return "connecting"
    return "idle" if workers else "unused"


def topics(pipeline: Pipeline) -> list[dict[str, Any]]:
    """Describe each topic that is known or for which messages wait."""
    views = pipeline.metadata.view.topics
    found = []
    for name in sorted({*views, *copied(lambda: list(pipeline.dispatcher.waiting))}):
        view = views.get(name)
        partitions = 0 if view is None else view.partitions
        error = None
        if not partitions:
            error = pipeline.last_errors.reason_for(name, None)
        elif view is not None and view.error_code:
            error = format_error_code(view.error_code)
        found.append({"topic": name, "partitions": partitions, "error": error})
    return found


def partitions(pipeline: Pipeline) -> list[dict[str, Any]]:
    """Describe each partition in use."""
    view = pipeline.metadata.view
    counted = pipeline.metrics.partitions
    found = []
    for worker in list(pipeline.stages):
        if not isinstance(worker, PartitionWorker):
            continue
        leader = view.leader(worker.topic, worker.partition)
        buffer = worker.buffer
        held = HeldMessages()
        held.add_all(worker.inbox())
        held.add_all(copied(lambda: list(worker.held_items())))  # noqa: B023
        delivered = counted.get((worker.topic, worker.partition))
        found.append(
            {
                "topic": worker.topic,
                "partition": worker.partition,
                "leader": -1 if leader is None else leader,
                "level": worker.ordering.high_watermark,
                "unanswered_batches": 0 if buffer is None else len(buffer.unanswered),
                "waiting_rows": held.rows + _pending(buffer)[0],
                "waiting_bytes": held.bytes + _pending(buffer)[1],
                "delivered": 0 if delivered is None else delivered.count,
                "bytes": 0 if delivered is None else round(delivered.sum),
            }
        )
    return found


def _pending(buffer: PartitionBuffer | None) -> tuple[int, int]:
    return (0, 0) if buffer is None else (buffer.rows, buffer.nbytes)
