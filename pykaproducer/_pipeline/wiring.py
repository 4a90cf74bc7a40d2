"""Creation of the stages and of the connections between them.

::

    send() -> Dispatcher -> TopicWorker -> PartitionWorker -> BrokerWorker -> Bridge -> broker
                  ^                                             |     |
                  |                                             |     +-> Settler -> Reports
                  +---------------- RetryHandler <--------------+
    Metadata: serves all stages, and notifies them when the view of the cluster changes.
"""

from __future__ import annotations

import functools
import logging
import traceback
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from pykaproducer import partitioners
from pykaproducer._errors.formatting import format_partition
from pykaproducer._errors.tracebacks import without_frames
from pykaproducer._kernel import Chunk, TopicSlot
from pykaproducer._machines import adaptive_partitioning
from pykaproducer._machines.batcher import Batcher
from pykaproducer._machines.ordering import Transitions
from pykaproducer._machines.window import Window
from pykaproducer._net.transport import Network
from pykaproducer._pipeline.bridge import Bridge, GiveUp
from pykaproducer._pipeline.broker import BrokerWorker, FlushStarted, Shutdown
from pykaproducer._pipeline.broker_registry import Brokers
from pykaproducer._pipeline.dispatcher import Dispatcher, FlushMark
from pykaproducer._pipeline.incomplete import FlushBarrier, IncompleteChunks
from pykaproducer._pipeline.last_errors import LastErrors
from pykaproducer._pipeline.metadata import Metadata
from pykaproducer._pipeline.metrics import ProducerMetrics
from pykaproducer._pipeline.partition import PartitionWorker
from pykaproducer._pipeline.reports import Reports, Settler
from pykaproducer._pipeline.responses import ProduceResponseHandler
from pykaproducer._pipeline.retry import RetryHandler
from pykaproducer._pipeline.sealer import Sealer
from pykaproducer._pipeline.throttle import Throttle
from pykaproducer._pipeline.topic import TopicWorker
from pykaproducer._pipeline.unreported import UnreportedFailures
from pykaproducer._pipeline.watch import Watch
from pykaproducer._pipeline.worker import Worker, in_a_stage_with, spawn_later
from pykaproducer._util import compression
from pykaproducer._util.clock import Clock
from pykaproducer.config import Config
from pykaproducer.errors import AbortedError, DeliveryError, ProducerBrokenError, Status

W = TypeVar("W", bound=Worker)

#: Called when a stage has crashed: nothing more is admitted.
OnBroken = Callable[[], None]

log = logging.getLogger("pykaproducer.producer")


class Pipeline:
    """All stages of one producer."""

    def __init__(
        self,
        config: Config,
        clock: Clock,
        network: Network,
        name: str,
        take: Callable[[TopicSlot], list[Chunk]],
        take_all: Callable[[], list[Chunk]],
        on_broken: OnBroken,
        release_slot: Callable[[str], bool],
        metrics: ProducerMetrics | None = None,
    ) -> None:
        self.config = config
        self.metrics = ProducerMetrics.of(config) if metrics is None else metrics
        self.clock = clock
        self.network = network
        self.name = name
        self._take_all = take_all
        self._on_broken = on_broken
        self.broken: BaseException | None = None
        self.ended = False
        # The dispatcher has ended, and everything that was accepted has entered and failed.
        self._no_dispatcher = False
        # No lock guards `stages` and `_barriers`: a flush that held one could be interrupted by a
        # signal whose handler flushes too, and waits for a stage that waits for the lock.
        # Stages of topics and partitions are removed when they are no longer used.
        self.stages: dict[Worker, None] = {}
        # Removed stages whose threads may still be running.
        self._gone: list[Worker] = []
        self._release_slot = release_slot
        # Barriers of waiting flushes, by id: a crashed dispatcher would never arm them.
        # Weak, so that a flush that is interrupted leaves no barrier.
        self._barriers: weakref.WeakValueDictionary[int, FlushBarrier] = (
            weakref.WeakValueDictionary()
        )

        #: Returns whether a send() found buffer_memory full, and it still is.
        self.space_wanted: Callable[[], bool] = bool
        self.last_errors = LastErrors()
        self.incomplete = IncompleteChunks(clock)
        self.reports = self._new(Reports, "reports")
        self.unreported = UnreportedFailures(clock)
        self.reports.incomplete = self.incomplete
        self.reports.unreported = self.unreported
        self.settler = Settler(self.reports, self.incomplete, self.unreported, clock, self.metrics)
        self.brokers = Brokers(self._broker_worker)
        self.metadata = self._metadata()
        self.dispatcher = self._dispatcher(take)
        self.metadata.dispatcher = self.dispatcher
        self.metadata.broker_workers = self.brokers.all
        self.retry = self._new(RetryHandler, "retry-handler")
        self.retry.dispatch = self.dispatcher.put
        self._sealer = Sealer(
            compression.compressor(config.compression_type, config.compression_level),
            idempotent=config.idempotent,
        )

    # Creation of the stages ----------------------------------------------------------------------

    def _new(self, kind: type[W], name: str, **place: Any) -> W:
        worker = kind(f"{self.name}-{name}", self.clock, self._crashed)
        worker.metrics = self.metrics
        for field, value in place.items():
            setattr(worker, field, value)  # before it is in `stages`, where others may read these
        # No stage is missed by stop(): that (1) sets `ended`, (2) reads `stages`; this method
        # (1) adds the stage, (2) reads `ended`.
        self.stages[worker] = None
        if self.ended:
            worker.stopping = True
        return worker

    def _dispatcher(self, take: Callable[[TopicSlot], list[Chunk]]) -> Dispatcher:
        dispatcher = self._new(Dispatcher, "dispatcher")
        dispatcher.take = take
        dispatcher.topic_worker = self._topic_worker
        dispatcher.metadata = self.metadata
        dispatcher.incomplete = self.incomplete
        dispatcher.settler = self.settler
        dispatcher.last_errors = self.last_errors
        dispatcher.max_idle = self.config.metadata_max_idle_ms / 1000
        dispatcher.believed_for = self.config.retry_backoff_max_ms / 1000
        dispatcher.release_slot = self._release_slot
        dispatcher.release_topic = self._release_topic
        return dispatcher

    def _release_topic(self, topic: str, worker: TopicWorker | None) -> None:
        """Release the stages of *topic*, which has nothing in progress. For the dispatcher."""
        workers = [] if worker is None else [worker, *worker.partitions.values()]
        self._gone = [each for each in (*self._gone, *workers) if each.is_alive()]
        for each in workers:
            each.stop()
            self.stages.pop(each, None)
        self.last_errors.forget(topic, () if worker is None else worker.partitions)
        self.metrics.forget(topic)

    def _topic_worker(self, topic: str) -> TopicWorker:
        worker = self._new(TopicWorker, f"topic-{topic}", topic=topic)
        chosen = self.config.partitioner
        worker.partitioner = (
            partitioners.named(chosen, sticky_bytes=self.config.batch_size)
            if isinstance(chosen, str)
            else chosen
        )
        worker.adaptive = self.config.partitioner_adaptive_partitioning_enable
        worker.queue_unit = max(1, min(self.config.batch_size, adaptive_partitioning.UNIT))
        worker.partition_worker = self._partition_worker
        worker.metadata = self.metadata
        worker.settler = self.settler
        return worker

    def _partition_worker(self, topic: str, partition: int) -> PartitionWorker:
        worker = self._new(
            PartitionWorker, f"partition-{topic}-{partition}", topic=topic, partition=partition
        )
        worker.brokers = self.brokers
        worker.metadata = self.metadata
        worker.settler = self.settler
        worker.last_errors = self.last_errors
        worker.believed_for = self.config.retry_backoff_max_ms / 1000
        return worker

    def _broker_worker(self, broker_id: int) -> BrokerWorker:
        config = self.config
        worker = BrokerWorker(f"{self.name}-broker-{broker_id}", self.clock, self._crashed)
        worker.metrics = self.metrics
        worker.stopping = self.ended
        worker.broker_id = broker_id
        worker.config = config
        worker.idempotent = config.idempotent
        worker.one_at_a_time = not config.idempotent and config.acks != 0
        worker.batch_size = min(config.batch_size, config.max_request_size)
        worker.window = Window(
            limit=config.max_in_flight_requests_per_connection,
            most=config.max_request_size,
            timeout=config.request_timeout_ms / 1000,
        )
        worker.batcher = Batcher(
            linger=config.linger_ms / 1000,
            batch_size=worker.batch_size,
            batch_messages=config.batch_max_messages,
            # Without sequence numbers: one on the wire, and one sealed ahead of the response.
            sealed_limit=config.max_in_flight_requests_per_connection if config.idempotent else 2,
        )
        worker.bridge = self._bridge(broker_id, worker)
        worker.metadata = self.metadata
        worker.last_errors = self.last_errors
        worker.throttle = Throttle(broker_id, self.clock, self.last_errors)
        worker.watch = Watch(
            broker_id,
            self.metadata,
            worker.window.patience,
            lambda reason: worker.bridge.put(GiveUp(reason)),
        )
        worker.sealer = self._sealer
        worker.responses = ProduceResponseHandler(
            config=config,
            clock=self.clock,
            metadata=self.metadata,
            retry=self.retry,
            settler=self.settler,
            last_errors=self.last_errors,
            metrics=self.metrics,
            buffer_changed=worker.buffer_changed,
        )
        worker.is_flushing = self.is_flushing
        worker.end_unused = self.brokers.end_unused
        return worker

    def _bridge(self, broker_id: int, worker: BrokerWorker) -> Bridge:
        bridge = Bridge(f"{self.name}-bridge-{broker_id}", self.clock, self._crashed)
        bridge.metrics = self.metrics
        bridge.stopping = self.ended
        bridge.config = self.config
        bridge.network = self.network
        bridge.report = worker.put
        bridge.address = lambda: self.metadata.view.brokers.get(broker_id)
        bridge.broker_id = broker_id
        return bridge

    def _metadata(self) -> Metadata:
        metadata = self._new(Metadata, "metadata")
        metadata.network = self.network
        metadata.configure(self.config, self.last_errors)
        self.last_errors.setting_up = metadata.setting_up
        return metadata

    def in_a_stage(self) -> bool:
        """Return whether the calling thread belongs to one of these stages."""
        return in_a_stage_with(self._crashed)

    def own_threads(self) -> Callable[[], bool]:
        """Return a weak version of :meth:`in_a_stage`, for handles.

        Handles must not keep the pipeline alive. The threads of the stages do, so the weak
        reference is valid whenever the caller is one of them.
        """
        reference = weakref.ref(self)

        def in_own_thread() -> bool:
            pipeline = reference()
            return pipeline is not None and pipeline.in_a_stage()

        return in_own_thread

    def is_flushing(self) -> bool:
        """Return whether batches must not linger: a flush waits, or a send() found no space."""
        return len(self._barriers) > 0 or self.space_wanted()

    def buffer_is_full(self) -> None:
        """End lingering, because lingering messages may hold the bytes that a send() needs.

        No message is overlooked: (1) ``space_wanted`` becomes true, (2) the BrokerWorkers check
        their pending items. They check items that arrive later on arrival.
        """
        if self.config.linger_ms:
            self._end_lingering()

    def _end_lingering(self) -> None:
        for worker in self.brokers.all():
            worker.put(FlushStarted())

    def flush(self, deadline: float | None) -> int:
        """Wait until everything that was accepted before is settled and reported.

        Return the number of messages for which that is not the case at *deadline*.
        """
        barrier = FlushBarrier()
        try:
            self._barriers[id(barrier)] = barrier
            if not self._no_dispatcher:
                self.dispatcher.put(FlushMark(barrier))
            else:
                # In a separate thread: arm() takes a lock for which stages may wait.
                spawn_later(f"{self.name}-flush", functools.partial(self.incomplete.arm, barrier))
            self._end_lingering()
            return (
                0 if self.incomplete.wait(barrier, deadline) else self.incomplete.pending(barrier)
            )
        finally:
            self._barriers.pop(id(barrier), None)

    def transitions(self) -> Transitions:
        """Return how often the ordering machines of all partitions have taken each transition."""
        workers = [stage for stage in list(self.stages) if isinstance(stage, PartitionWorker)]
        return sum((worker.ordering.taken for worker in workers), Transitions())

    def fail_everything(self, make_error: Callable[[str, Status], DeliveryError]) -> list[Chunk]:
        """Fail all accepted messages that have no outcome; return their chunks."""
        chunks = self.incomplete.chunks()
        for chunk in chunks:
            self.settler.fail(chunk.whole(), functools.partial(make_error, chunk.topic))
        return chunks

    def abort(self, reason: str) -> None:
        """Fail all accepted messages that have no outcome, on request: *reason* names it."""

        def make_error(topic: str, status: Status) -> AbortedError:
            waited_for = self.last_errors.reason_for(topic, None)
            text = f"{format_partition(topic)}: {reason}" + (
                f"; it waited: {waited_for}" if waited_for else ""
            )
            return AbortedError(text, status=status, topic=topic)

        self.fail_everything(make_error)

    def stop(self, deadline: float) -> list[str]:
        """Stop all threads; return the names of those that have not ended by *deadline*.

        The dispatcher ends first. After that nothing new is accepted, and messages of a concurrent
        send() fail. Reports ends last. All other threads are requested to stop before the first one
        is joined, so the time to close does not grow with the number of idle threads.
        """
        self.ended = self.brokers.ended = True  # stages created from now on start no thread
        stages = [s for s in list(self.stages) if s not in (self.reports, self.dispatcher)]
        self.dispatcher.stop()
        late = [] if self.dispatcher.join(deadline) else [self.dispatcher.name]
        for chunk in self._take_all():
            self.incomplete.enter(chunk)
        self.abort("the producer was closed while it was sent")
        self._arm_barriers()
        brokers = self.brokers.all()
        for broker in brokers:
            broker.put(Shutdown())
        for worker in (*stages, *brokers):
            worker.stop()
        bridges = (broker.bridge for broker in brokers)
        threads = (*stages, *brokers, *bridges, *self._gone)
        late += [worker.name for worker in threads if not worker.join(deadline)]
        self.reports.stop()
        if not self.reports.join(deadline):
            late.append(self.reports.name)
        return late

    def _crashed(self, worker: Worker, error: BaseException) -> None:
        """Fail everything, so that nothing hangs, after *worker* has crashed due to a bug (P9)."""
        first = self.broken is None
        if first:
            self.broken = error
        # For each crash: a second one may settle everything before the first gets to this line.
        self._on_broken()
        if first:
            log.error("the producer is broken by an error in the library", exc_info=error)
            # The errors of all failed messages and of later send() calls have this cause. Keep only
            # the text of the traceback, which would keep the frames of the stages alive.
            error.add_note("".join(traceback.format_tb(error.__traceback__)))
            without_frames(error)
        if isinstance(worker, BrokerWorker):
            worker.bridge.stop()  # as in on_stop(), which may not be called now
        self.metadata.wake_lookers()
        for chunk in self._take_all():
            self.incomplete.enter(chunk)

        def make_error(topic: str, status: Status) -> DeliveryError:
            return ProducerBrokenError(
                f"topic {topic!r}: the thread {worker.name} died of an error in the library",
                status=status,
                topic=topic,
                cause=error,
            )

        # The dispatcher itself fails chunks that it has taken and not yet entered: it (1) enters a
        # chunk, (2) reads `broken_by`; this method (1) sets `broken_by`, (2) fails the chunks that
        # have entered.
        self.dispatcher.broken_by = make_error
        self.settler.no_reports |= worker is self.reports
        failed = self.fail_everything(make_error)
        if worker is self.dispatcher:
            self._arm_barriers()
        self.incomplete.abandon(failed)

    def _arm_barriers(self) -> None:
        """Arm the barriers of all flushes, because the dispatcher has ended.

        No flush is missed: flush() (1) adds its barrier, (2) reads ``_no_dispatcher``; this method
        (1) sets ``_no_dispatcher``, (2) reads the barriers.
        """
        self._no_dispatcher = True
        for reference in self._barriers.valuerefs():
            barrier = reference()
            if barrier is not None:
                self.incomplete.arm(barrier)
