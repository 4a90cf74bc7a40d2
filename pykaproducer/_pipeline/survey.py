"""A look at a pipeline that runs: what each stage holds, brokers, topics, partitions.

For ``stats()``: from any thread, also in a callback or a signal handler. Takes no lock that a
stage may hold and stops none, so each number is right for itself, and two of them may be of
slightly different moments.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pykaproducer._kernel import Chunk, Slice
from pykaproducer._machines.backlog import Backlog
from pykaproducer._machines.lane import Batch, Lane
from pykaproducer._pipeline.bridge import Answered, Bridge, Lost, ProduceRequest, Written
from pykaproducer._pipeline.broker import BrokerWorker, Put
from pykaproducer._pipeline.meter import copied
from pykaproducer._pipeline.partition import PartitionWorker
from pykaproducer._pipeline.retry import Again
from pykaproducer._pipeline.topic import TopicWorker
from pykaproducer._pipeline.worker import Worker
from pykaproducer._texts import code_text

if TYPE_CHECKING:
    from pykaproducer._pipeline.wiring import Pipeline


class Load:
    """Messages that are held somewhere."""

    def __init__(self) -> None:
        self.rows = 0
        self.bytes = 0
        #: When the oldest chunk of them was opened (monotonic seconds).
        self.oldest: float | None = None

    def add(self, item: object) -> None:
        """Count the messages of an item that stages hand on; other items have none."""
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
            case Put():
                self.add(item.item)
            case Again():
                self.add_all(item.items)
            case ProduceRequest():
                self.add_all(item.batches)
            case Answered() | Written():
                self.add_all(item.request.batches)
            case Lost():
                self.add_all((*item.unanswered, *item.unwritten))

    def add_all(self, items: Iterable[object]) -> None:
        """Count those of each."""
        for item in items:
            self.add(item)

    def count(self, rows: int, nbytes: int, opened: float) -> None:
        """So many messages, the oldest in a chunk that was opened then."""
        self.rows += rows
        self.bytes += nbytes
        if rows and (self.oldest is None or opened < self.oldest):
            self.oldest = opened


def stages(
    pipeline: Pipeline, now: float, open_rows: tuple[int, int, float | None]
) -> list[dict[str, Any]]:
    """Each stage: its thread, its inbox, and the messages that it holds, the inbox's too.

    *open_rows*: rows, bytes and opening of what has been accepted and nobody has taken yet.
    """
    return [_stage(pipeline, worker, now, open_rows) for worker in _workers(pipeline)]


def _workers(pipeline: Pipeline) -> list[Worker]:
    brokers = pipeline.brokers.all()
    return [*list(pipeline.stages), *brokers, *(broker.bridge for broker in brokers)]


def _stage(
    pipeline: Pipeline, worker: Worker, now: float, open_rows: tuple[int, int, float | None]
) -> dict[str, Any]:
    load = Load()
    inbox = worker.inbox()
    load.add_all(inbox)
    load.add_all(copied(lambda: list(worker.held())))
    if worker is pipeline.dispatcher and open_rows[2] is not None:
        load.count(open_rows[0], open_rows[1], open_rows[2])
    found: dict[str, Any] = {
        "stage": type(worker).__name__,
        "name": worker.name,
        "alive": worker.is_alive(),
        "inbox": len(inbox),
        "rows": load.rows,
        "bytes": load.bytes,
        "oldest_s": None if load.oldest is None else max(0.0, now - load.oldest),
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
    """Each broker of the cluster, and each that a worker is still there for."""
    workers: dict[int, list[BrokerWorker]] = {}
    for worker in pipeline.brokers.all():
        workers.setdefault(worker.broker_id, []).append(worker)
    known = pipeline.metadata.view.brokers
    trouble = pipeline.trouble.brokers
    found = []
    for broker_id in sorted({*known, *workers}):
        address = known.get(broker_id)
        here = workers.get(broker_id, [])
        error = trouble.get(broker_id)
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
    if any(worker.bridge.ready for worker in workers):
        return "connected"
    if error is not None:
        return "down"
    if any(worker.bridge.wants_connection() for worker in workers):
        return "connecting"
    return "idle" if workers else "unused"


def topics(pipeline: Pipeline) -> list[dict[str, Any]]:
    """Each topic that is known, or that messages wait for."""
    views = pipeline.metadata.view.topics
    found = []
    for name in sorted({*views, *copied(lambda: list(pipeline.dispatcher.waiting))}):
        view = views.get(name)
        partitions = 0 if view is None else view.partitions
        error = None
        if not partitions:
            error = pipeline.trouble.why(name, None)
        elif view is not None and view.error_code:
            error = code_text(view.error_code)
        found.append({"topic": name, "partitions": partitions, "error": error})
    return found


def partitions(pipeline: Pipeline) -> list[dict[str, Any]]:
    """Each partition in use."""
    view = pipeline.metadata.view
    counted = pipeline.meter.partitions
    found = []
    for worker in list(pipeline.stages):
        if not isinstance(worker, PartitionWorker):
            continue
        leader = view.leader(worker.topic, worker.partition)
        lane = worker.lane
        load = Load()
        load.add_all(worker.inbox())
        load.add_all(copied(lambda: list(worker.held())))  # noqa: B023
        delivered = counted.get((worker.topic, worker.partition))
        found.append(
            {
                "topic": worker.topic,
                "partition": worker.partition,
                "leader": -1 if leader is None else leader,
                "level": worker.ordering.high_watermark,
                "unanswered_batches": 0 if lane is None else len(lane.unanswered),
                "waiting_rows": load.rows + _pending(lane)[0],
                "waiting_bytes": load.bytes + _pending(lane)[1],
                "delivered": 0 if delivered is None else delivered.count,
                "bytes": 0 if delivered is None else round(delivered.sum),
            }
        )
    return found


def _pending(lane: Lane | None) -> tuple[int, int]:
    return (0, 0) if lane is None else (lane.rows, lane.nbytes)
