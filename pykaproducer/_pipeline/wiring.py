"""Makes the stages and connects them.

::

    send() -> Dispatcher -> TopicWorker -> PartitionWorker -> BrokerWorker -> Bridge -> broker
                  ^                                             |     |
                  |                                             |     +-> Settler -> Reports
                  +---------------- RetryHandler <--------------+
    Metadata: asked by all of them, and tells them when the view of the cluster changes.
"""

from __future__ import annotations

import functools
import logging
import traceback
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from pykaproducer import partitioners
from pykaproducer._clock import Clock
from pykaproducer._frames import without_frames
from pykaproducer._kernel import Chunk, TopicSlot
from pykaproducer._machines import balance
from pykaproducer._machines.batching import Batcher
from pykaproducer._machines.ordering import Transitions
from pykaproducer._machines.window import Window
from pykaproducer._net.transport import Network
from pykaproducer._pipeline.bridge import Bridge, GiveUp
from pykaproducer._pipeline.broker import BrokerWorker, Hurry, Quit
from pykaproducer._pipeline.brokers import Brokers
from pykaproducer._pipeline.dispatcher import Dispatcher, FlushMark
from pykaproducer._pipeline.inflight import InFlight, Mark
from pykaproducer._pipeline.judge import Judge
from pykaproducer._pipeline.metadata import Metadata
from pykaproducer._pipeline.meter import Meter
from pykaproducer._pipeline.partition import PartitionWorker
from pykaproducer._pipeline.reports import Reports, Settler
from pykaproducer._pipeline.retry import RetryHandler
from pykaproducer._pipeline.sealer import Sealer
from pykaproducer._pipeline.throttle import Throttle
from pykaproducer._pipeline.topic import TopicWorker
from pykaproducer._pipeline.trouble import Trouble
from pykaproducer._pipeline.untold import Untold
from pykaproducer._pipeline.watch import Watch
from pykaproducer._pipeline.worker import Worker, in_a_stage_with, spawn_later
from pykaproducer._texts import place
from pykaproducer._wire import compression
from pykaproducer.config import Config
from pykaproducer.errors import AbortedError, DeliveryError, ProducerBrokenError, Status

W = TypeVar("W", bound=Worker)

#: Called when a stage has died of a bug: nothing more is to be admitted.
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
        let_slot_go: Callable[[str], bool],
        meter: Meter | None = None,
    ) -> None:
        self.config = config
        self.meter = Meter.of(config) if meter is None else meter
        self.clock = clock
        self.network = network
        self.name = name
        self._take_all = take_all
        self._on_broken = on_broken
        self.broken: BaseException | None = None
        self.ended = False
        # The dispatcher has gone, and all that was accepted has entered and failed.
        self._no_dispatcher = False
        # No lock guards these two: a flush that held one could be interrupted by a signal whose
        # handler flushes too, and waits for a stage that waits for the lock.
        # Topics and partitions come, and go when they are not used any more.
        self.stages: dict[Worker, None] = {}
        # Those that have gone and whose threads may still end.
        self._gone: list[Worker] = []
        self._let_slot_go = let_slot_go
        # Marks of flushes that wait, by id: a dead dispatcher would never meet them.
        # Weak: a flush that is interrupted between two steps takes its mark along.
        self._marks: weakref.WeakValueDictionary[int, Mark] = weakref.WeakValueDictionary()

        #: Whether a send() found buffer_memory full, and it still is.
        self.space_wanted: Callable[[], bool] = bool
        self.trouble = Trouble()
        self.inflight = InFlight(clock)
        self.reports = self._new(Reports, "reports")
        self.untold = Untold(clock)
        self.reports.inflight = self.inflight
        self.reports.untold = self.untold
        self.settler = Settler(self.reports, self.inflight, self.untold, clock, self.meter)
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

    # Making the stages, in the order of the pipeline -----------------------------------------

    def _new(self, kind: type[W], name: str, **place: Any) -> W:
        worker = kind(f"{self.name}-{name}", self.clock, self._crashed)
        worker.meter = self.meter
        for field, value in place.items():
            setattr(worker, field, value)  # whoever finds it in the list looks at these
        # stop() (1) sets `ended`, (2) goes over the list: one of us sees the other.
        self.stages[worker] = None
        if self.ended:
            worker.stopping = True
        return worker

    def _dispatcher(self, take: Callable[[TopicSlot], list[Chunk]]) -> Dispatcher:
        dispatcher = self._new(Dispatcher, "dispatcher")
        dispatcher.take = take
        dispatcher.topic_worker = self._topic_worker
        dispatcher.metadata = self.metadata
        dispatcher.inflight = self.inflight
        dispatcher.settler = self.settler
        dispatcher.trouble = self.trouble
        dispatcher.max_idle = self.config.metadata_max_idle_ms / 1000
        dispatcher.believed_for = self.config.retry_backoff_max_ms / 1000
        dispatcher.let_slot_go = self._let_slot_go
        dispatcher.let_topic_go = self._let_topic_go
        return dispatcher

    def _let_topic_go(self, topic: str, worker: TopicWorker | None) -> None:
        """Release the stages of *topic*, of which nothing is under way. For the dispatcher."""
        workers = [] if worker is None else [worker, *worker.partitions.values()]
        self._gone = [each for each in (*self._gone, *workers) if each.is_alive()]
        for each in workers:
            each.stop()
            self.stages.pop(each, None)
        self.trouble.forget(topic, () if worker is None else worker.partitions)

    def _topic_worker(self, topic: str) -> TopicWorker:
        worker = self._new(TopicWorker, f"topic-{topic}", topic=topic)
        chosen = self.config.partitioner
        worker.partitioner = (
            partitioners.named(chosen, sticky_bytes=self.config.batch_size)
            if isinstance(chosen, str)
            else chosen
        )
        worker.adaptive = self.config.partitioner_adaptive_partitioning_enable
        worker.queue_unit = max(1, min(self.config.batch_size, balance.UNIT))
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
        worker.trouble = self.trouble
        worker.believed_for = self.config.retry_backoff_max_ms / 1000
        return worker

    def _broker_worker(self, broker_id: int) -> BrokerWorker:
        config = self.config
        worker = BrokerWorker(f"{self.name}-broker-{broker_id}", self.clock, self._crashed)
        worker.meter = self.meter
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
            # Without sequence numbers one is on the wire and one is sealed ahead of its answer.
            sealed_limit=config.max_in_flight_requests_per_connection if config.idempotent else 2,
        )
        worker.bridge = self._bridge(broker_id, worker)
        worker.metadata = self.metadata
        worker.trouble = self.trouble
        worker.throttle = Throttle(broker_id, self.clock, self.trouble)
        worker.watch = Watch(
            broker_id,
            self.metadata,
            worker.window.patience,
            lambda reason: worker.bridge.put(GiveUp(reason)),
        )
        worker.sealer = self._sealer
        worker.judge = Judge(
            config=config,
            clock=self.clock,
            metadata=self.metadata,
            retry=self.retry,
            settler=self.settler,
            trouble=self.trouble,
            meter=self.meter,
            lane_changed=worker.lane_changed,
        )
        worker.is_flushing = self.is_flushing
        worker.end_unused = self.brokers.end_unused
        return worker

    def _bridge(self, broker_id: int, worker: BrokerWorker) -> Bridge:
        bridge = Bridge(f"{self.name}-bridge-{broker_id}", self.clock, self._crashed)
        bridge.meter = self.meter
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
        metadata.configure(self.config, self.trouble)
        self.trouble.setting_up = metadata.setting_up
        return metadata

    def in_a_stage(self) -> bool:
        """Whether the calling thread is one of these stages'."""
        return in_a_stage_with(self._crashed)

    def own_threads(self) -> Callable[[], bool]:
        """Return :meth:`in_a_stage` for handles, which must not keep the pipeline alive.

        A stage's thread keeps it alive: if the caller is one, the reference is not dead.
        """
        reference = weakref.ref(self)

        def in_own_thread() -> bool:
            pipeline = reference()
            return pipeline is not None and pipeline.in_a_stage()

        return in_own_thread

    def is_flushing(self) -> bool:
        """Return whether nothing may linger: a flush waits, or a send() found no space."""
        return len(self._marks) > 0 or self.space_wanted()

    def buffer_is_full(self) -> None:
        """End lingering: messages that linger may hold the bytes that a send() needs.

        No message is overlooked: (1) ``space_wanted`` is true, (2) the BrokerWorkers look at what
        they hold. What comes to one of them later is looked at then.
        """
        if self.config.linger_ms:
            self._hurry()

    def _hurry(self) -> None:
        for worker in self.brokers.all():
            worker.put(Hurry())

    def flush(self, deadline: float | None) -> int:
        """Wait until all that was accepted before is settled and reported.

        Returns how many messages are not by *deadline*.
        """
        mark = Mark()
        try:
            self._marks[id(mark)] = mark
            if not self._no_dispatcher:
                self.dispatcher.put(FlushMark(mark))
            else:
                # Not here: a lock is needed that stages may wait for.
                spawn_later(f"{self.name}-flush", functools.partial(self.inflight.meet, mark))
            self._hurry()
            return 0 if self.inflight.wait(mark, deadline) else self.inflight.pending(mark)
        finally:
            self._marks.pop(id(mark), None)

    def transitions(self) -> Transitions:
        """How often the partitions' ordering machines have taken each transition, together."""
        workers = [stage for stage in list(self.stages) if isinstance(stage, PartitionWorker)]
        return sum((worker.ordering.taken for worker in workers), Transitions())

    def fail_everything(self, make_error: Callable[[str, Status], DeliveryError]) -> list[Chunk]:
        """Settle everything that is accepted and has no outcome: all rows of these chunks."""
        chunks = self.inflight.chunks()
        for chunk in chunks:
            self.settler.fail(chunk.whole(), functools.partial(make_error, chunk.topic))
        return chunks

    def abort(self, reason: str) -> None:
        """Fail everything that has no outcome, because somebody wants it so: *reason*."""

        def make_error(topic: str, status: Status) -> AbortedError:
            why = self.trouble.why(topic, None)
            text = f"{place(topic)}: {reason}" + (f"; it waited: {why}" if why else "")
            return AbortedError(text, status=status, topic=topic)

        self.fail_everything(make_error)

    def stop(self, deadline: float) -> list[str]:
        """End every thread; the names of those that have not ended by *deadline*.

        The dispatcher ends first: behind it nothing new is accepted, and what a send() that was
        under way has brought meanwhile fails. The reports end last. Every other thread is told to
        end before the first is waited for: closing costs nothing per idle thread.
        """
        self.ended = self.brokers.ended = True  # what is made from now on never starts a thread
        stages = [s for s in list(self.stages) if s not in (self.reports, self.dispatcher)]
        self.dispatcher.stop()
        late = [] if self.dispatcher.join(deadline) else [self.dispatcher.name]
        for chunk in self._take_all():
            self.inflight.enter(chunk)
        self.abort("the producer was closed while it was sent")
        self._meet_marks()
        brokers = self.brokers.all()
        for broker in brokers:
            broker.put(Quit())
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
        """A stage has died of a bug (P9): everything gets its outcome, nothing hangs."""
        first = self.broken is None
        if first:
            self.broken = error
        # Each time: the first may not have come so far when the second settles everything.
        self._on_broken()
        if first:
            log.error("the producer is broken by an error in the library", exc_info=error)
            # Each failed message, and every later send(), names this cause. They get the text of
            # the traceback; the traceback itself would keep the frames of the stages alive.
            error.add_note("".join(traceback.format_tb(error.__traceback__)))
            without_frames(error)
        if isinstance(worker, BrokerWorker):
            worker.bridge.stop()  # it would have done that at its end
        self.metadata.wake_lookers()
        for chunk in self._take_all():
            self.inflight.enter(chunk)

        def make_error(topic: str, status: Status) -> DeliveryError:
            return ProducerBrokenError(
                f"topic {topic!r}: the thread {worker.name} died of an error in the library",
                status=status,
                topic=topic,
                cause=error,
            )

        # What the dispatcher has taken and not entered yet it fails itself: it (1) enters a chunk,
        # (2) looks at this; we (1) set it, (2) go over what has entered.
        self.dispatcher.broken_by = make_error
        self.settler.no_reports |= worker is self.reports
        failed = self.fail_everything(make_error)
        if worker is self.dispatcher:
            self._meet_marks()
        self.inflight.abandon(failed)

    def _meet_marks(self) -> None:
        """The dispatcher will not meet them any more.

        No flush is forgotten: flush() (1) enters its mark, (2) looks whether the dispatcher is
        there; whoever ends the dispatcher (1) writes that down, (2) looks at the marks.
        """
        self._no_dispatcher = True
        for reference in self._marks.valuerefs():
            mark = reference()
            if mark is not None:
                self.inflight.meet(mark)
