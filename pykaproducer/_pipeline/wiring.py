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
import math
import traceback
import weakref
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Final, TypeVar

from pykaproducer._errors.formatting import format_partition
from pykaproducer._errors.tracebacks import copied
from pykaproducer._kernel import Chunk
from pykaproducer._machines.ordering import Transitions
from pykaproducer._net.token_gate import tokens_of
from pykaproducer._net.transport import Network
from pykaproducer._pipeline.admission_functions import AdmissionFunctions
from pykaproducer._pipeline.background_task import spawn_later
from pykaproducer._pipeline.bridge import CallerHooks
from pykaproducer._pipeline.broker import BrokerWorker
from pykaproducer._pipeline.broker_events import FlushStarted, Shutdown
from pykaproducer._pipeline.broker_registry import Brokers
from pykaproducer._pipeline.current_thread import in_a_stage_with
from pykaproducer._pipeline.dispatcher import Dispatcher
from pykaproducer._pipeline.dispatcher_items import CallersChunk, FlushMark, TakeHeld
from pykaproducer._pipeline.incomplete import FlushBarrier, IncompleteChunks
from pykaproducer._pipeline.last_errors import LastErrors
from pykaproducer._pipeline.log_writer import LogWriter
from pykaproducer._pipeline.metadata import Metadata
from pykaproducer._pipeline.metrics import ProducerMetrics
from pykaproducer._pipeline.partition import PartitionWorker
from pykaproducer._pipeline.reports import Reports, ReportsCollaborators, Settler
from pykaproducer._pipeline.retry import RetryHandler
from pykaproducer._pipeline.token_fetcher import TokenFetcher
from pykaproducer._pipeline.topic import TopicWorker
from pykaproducer._pipeline.unreported import UnreportedFailures
from pykaproducer._pipeline.worker import AnyWorker, StageContext
from pykaproducer._util import compression
from pykaproducer._util.checksum import crc32c_function
from pykaproducer._util.clock import Clock
from pykaproducer._util.guarded_log import GuardedLogger
from pykaproducer._util.memory import NO_MEMORY
from pykaproducer.config import Config
from pykaproducer.errors import AbortedError, DeliveryError, ProducerBrokenError, Status

if TYPE_CHECKING:
    from pykaproducer._pipeline.coordinator import Coordinator
    from pykaproducer._pipeline.group import GroupCoordinator, GroupUnused, OffsetsAnswered

W = TypeVar("W", bound=AnyWorker)

log = GuardedLogger("pykaproducer.producer")


def import_transactions() -> None:
    """Import what only transactional producers need, in the thread that constructs one.

    A stage that imported it would hold the locks of these modules: see ``_util/checksum.py``.
    """
    from pykaproducer._pipeline import coordinator, transaction_rows  # noqa: F401


#: Maximum time for which messages stay in the open chunk while no broker takes more (seconds).
_LONGEST_HOLD: Final = 0.1
#: The same while they linger. It is short, as a full batch must not linger.
_LINGER_HOLD: Final = 0.01
#: With a batch_max_messages below this, they do not linger there.
_MANY_MESSAGES: Final = 1_000
#: How often the crash policy is repeated after an exception other than MemoryError.
_CRASH_ATTEMPTS: Final = 3
#: How long the end of the pipeline waits for the last log lines (seconds).
_LOG_TIMEOUT: Final = 1.0


class Pipeline:
    """All stages of one producer."""

    _is_abandoned = False  # in the child of a fork: see abandon()

    def __init__(
        self,
        config: Config,
        clock: Clock,
        network: Network,
        name: str,
        admission: AdmissionFunctions,
        metrics: ProducerMetrics | None = None,
    ) -> None:
        self.config = config
        self.metrics = ProducerMetrics.of(config) if metrics is None else metrics
        self.clock = clock
        self.network = network
        self.name = name
        self._admission = admission
        self.broken: BaseException | None = None
        self.ended = False
        # The dispatcher has ended, and everything that was accepted has entered and failed.
        self._no_dispatcher = False
        # No lock guards `stages` and `_barriers`: a flush that held one could be interrupted by a
        # signal whose handler flushes too, and waits for a stage that waits for the lock.
        # Stages of topics and partitions are removed when they are no longer used.
        self.stages: dict[AnyWorker, None] = {}
        # Removed stages whose threads may still be running.
        self._gone: list[AnyWorker] = []
        self._gone_groups: list[AnyWorker] = []
        # Barriers of waiting flushes, by id: a crashed dispatcher would never arm them.
        # Weak, so that a flush that is interrupted leaves no barrier.
        self._barriers: weakref.WeakValueDictionary[int, FlushBarrier] = (
            weakref.WeakValueDictionary()
        )
        #: Returns whether a send() found buffer_memory full, and it still is.
        self.space_wanted: Callable[[], bool] = bool
        context = StageContext(name, clock, self.metrics, self._crashed)
        self.log_writer = LogWriter(context)
        self._context = context._replace(pass_on_line=self.log_writer.put)
        self.last_errors = LastErrors()
        self.incomplete = IncompleteChunks(clock)
        self.unreported = UnreportedFailures(clock)
        self.reports = self._add(
            Reports(self._context, ReportsCollaborators(self.incomplete, self.unreported))
        )
        self.settler = Settler(self.reports, self.incomplete, self.unreported, clock, self.metrics)
        self.brokers = Brokers(self._new_broker_worker)
        self._longest_hold = min(_LONGEST_HOLD, config.delivery_timeout_ms / 10_000)
        # Only the BrokerWorkers count the messages of a batch.
        is_small = 0 < config.batch_max_messages < _MANY_MESSAGES
        self._linger_hold = 0.0 if is_small else min(_LINGER_HOLD, config.linger_ms / 1000)
        crc32c_function()  # imported here, in the thread of a caller
        self._compressor = compression.compressor(config.compression_type, config.compression_level)
        tokens = tokens_of(network)
        self._token_fetcher = None if tokens is None else TokenFetcher(self._context, tokens)
        self.metadata = self._add(
            Metadata(self._context, config, network, self.last_errors, self.brokers.all)
        )
        self.dispatcher = self._new_dispatcher()
        self.metadata.subscribe(self.dispatcher)
        self.coordinator = self._new_coordinator()
        self.retry = self._add(RetryHandler(self._context, self.dispatcher.put))

    # Creation of the stages. Those of topics, partitions and brokers are created on demand -------

    def _add(self, stage: W) -> W:
        # No stage is missed by stop(): that (1) sets `ended`, (2) reads `stages`; this method
        # (1) adds the stage, (2) reads `ended`.
        self.stages[stage] = None
        if self._is_abandoned:
            stage.abandon()
        if self.ended:
            stage.stopping = True
        return stage

    def _new_coordinator(self) -> Coordinator | None:
        admission = self._admission.transactions
        if self.config.transactional_id is None or admission is None:
            return None
        from pykaproducer._pipeline.coordinator import Coordinator
        from pykaproducer._pipeline.transaction_rows import TransactionRows

        rows = TransactionRows(
            self.dispatcher, lambda: self.retry, self._barriers, self._end_lingering
        )
        coordinator = Coordinator(
            self._context,
            config=self.config,
            network=self.network,
            metadata=self.metadata,
            last_errors=self.last_errors,
            admission=admission,
            broker_workers=self.brokers.all,
            watch_rows=rows.watch,
            watch_reports=rows.watch_reports,
            fail_rows=rows.fail,
            new_group=self._new_group,
            release_group=self._release_group,
        )
        self.settler.on_failure = coordinator.failure_reporter
        return self._add(coordinator)

    def _new_group(
        self, group: str, number: int, report: Callable[[OffsetsAnswered | GroupUnused], None]
    ) -> GroupCoordinator:
        from pykaproducer._pipeline.group import GroupCoordinator

        common = self._context, self.config, self.network, self.metadata
        return self._add(GroupCoordinator(*common, report, group, number))

    def _release_group(self, stage: AnyWorker) -> None:
        """Release the stage of a group that is not used any more. For the coordinator's stage."""
        self._gone_groups = [e for e in (*self._gone_groups, stage) if e.is_alive()]
        stage.stop()
        self.stages.pop(stage, None)

    def _new_dispatcher(self) -> Dispatcher:
        dispatcher = Dispatcher(
            self._context,
            config=self.config,
            admission=self._admission,
            hold_time=self.hold_time,
            new_topic_worker=self._new_topic_worker,
            may_forget=self._may_forget,
            release_topic=self._release_topic,
            metadata=self.metadata,
            incomplete=self.incomplete,
            settler=self.settler,
            last_errors=self.last_errors,
        )
        return self._add(dispatcher)

    def _new_topic_worker(self, topic: str) -> TopicWorker:
        common = self._context, self.config, self._new_partition_worker, self.metadata
        return self._add(TopicWorker(*common, self.settler, topic))

    def _new_partition_worker(self, topic: str, partition: int) -> PartitionWorker:
        common = self._context, self.config, self.brokers, self.metadata, self.settler
        return self._add(PartitionWorker(*common, self.last_errors, topic, partition))

    def _new_broker_worker(self, broker_id: int) -> BrokerWorker:
        worker = BrokerWorker(
            self._context,
            broker_id,
            config=self.config,
            network=self.network,
            metadata=self.metadata,
            retry=self.retry,
            settler=self.settler,
            compressor=self._compressor,
            last_errors=self.last_errors,
            is_flushing=self.is_flushing,
            held=self.dispatcher.held,
            take_held=self._take_held,
            callers=CallerHooks(
                enter=self._enter_taken,
                announce=self.dispatcher.announce,
                track=self.incomplete.enter,
                report_settled=self.settler.report_settled,
                inbox=self.reports.compiled_inbox,
            ),
            coordinator=self.coordinator,
            end_unused=self.brokers.end_unused,
        )
        worker.stopping = worker.bridge.stopping = self.ended
        return worker

    def _may_forget(self, worker: TopicWorker) -> bool:
        """Return whether the sequence numbers of the topic of *worker* may be lost.

        Those of a transactional producer go on in the same epoch, with TV1 also in the next
        transaction: a batch with the number 0 would seem a duplicate.
        """
        if self.coordinator is None:
            return True  # the next ones are of another producer id
        current = self.coordinator.machine.producer
        used = [each.producer for each in list(worker.partitions.values())]
        return current is None or current not in used

    def _release_topic(self, topic: str, worker: TopicWorker | None) -> None:
        """Release the stages of *topic*, which has nothing in progress. For the dispatcher."""
        workers: list[AnyWorker] = []
        if worker is not None:
            workers += [worker, *worker.partitions.values()]
        self._gone = [each for each in (*self._gone, *workers) if each.is_alive()]
        for each in workers:
            each.stop()
            self.stages.pop(each, None)
        self.last_errors.forget(topic, () if worker is None else worker.partitions)
        self.metrics.forget(topic)

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

    def reasons(self) -> Callable[[str, int | None], str | None]:
        """Return a weak version of :meth:`LastErrors.reason_for`, for handles."""
        reference = weakref.ref(self.last_errors)

        def reason_for(topic: str, partition: int | None) -> str | None:
            errors = reference()
            return None if errors is None else errors.reason_for(topic, partition)

        return reason_for

    def lingering_ender(self) -> Callable[[], None]:
        """Return a weak version of :meth:`_end_lingering`, for handles."""
        reference = weakref.WeakMethod(self._end_lingering)

        def end_lingering() -> None:
            if (function := reference()) is not None:
                function()

        return end_lingering

    def why_pending(self) -> str:
        """Return the topic of the oldest pending message and why it is pending, or ""."""
        for chunk in self.incomplete.chunks():
            if chunk.unsettled and (reason := self.last_errors.reason_for_any(chunk.topic)):
                return f"{format_partition(chunk.topic)}: {reason}"
        return ""

    def stuck_callback(self, pending: int) -> str:
        """Return a text on the callbacks of *pending* messages, which have not returned.

        "" if a message has no outcome yet.
        """
        for chunk in self.incomplete.chunks():
            if (
                not chunk.is_settled
            ):  # not all(): a Ctrl-C in a generator that it ends would be lost
                return ""
        what = "1 message's callback has" if pending == 1 else f"{pending} messages' callbacks have"
        name = self.reports.callback_name()
        return f"{what} not returned" + (f" ({name})" if name else "")

    def is_flushing(self) -> bool:
        """Return whether batches must not linger.

        That is while a flush waits, a send() found no space, or a thread waits alone for a message.
        """
        return len(self._barriers) > 0 or self.space_wanted()

    def hold_time(self, leaders: Iterable[int]) -> float:
        """Return how long no message could be sent to any of *leaders* anyway (seconds)."""
        now = self.clock.monotonic()
        opens = self._longest_hold
        for broker_id in leaders:
            broker = self.brokers.find(broker_id)
            if broker is None:
                return 0.0  # the first message has it created
            opens = min(opens, broker.opens_in(now))
        return max(opens, 0.0 if self.is_flushing() else self._linger_hold)

    def buffer_is_full(self) -> None:
        """End lingering, because lingering messages may hold the bytes that a send() needs.

        No message is overlooked: (1) ``space_wanted`` becomes true, (2) the BrokerWorkers check
        their pending items. They check items that arrive later on arrival.
        """
        if self.config.linger_ms:
            self._end_lingering()

    def _enter_taken(self, chunk: Chunk) -> None:
        """Make *chunk*, which a caller has taken from the slot, known to the stages."""
        self.incomplete.enter_late(chunk)
        self.dispatcher.put(CallersChunk(chunk))

    def _take_held(self) -> None:
        self.dispatcher.put(TakeHeld())

    def _end_lingering(self) -> None:
        if self.dispatcher.held:
            self._take_held()
        for worker in self.brokers.all():
            worker.bridge.caller_link.end_lingering()
            if worker.batcher.waiting:  # the others look at what they get later when it arrives
                worker.put(FlushStarted())

    def flush(self, deadline: float | None) -> int:
        """Wait until everything that was accepted before is settled and reported.

        Return the number of messages for which that is not the case at *deadline*.
        """
        barrier = FlushBarrier()
        try:
            self.begin_flush(barrier)
            return (
                0 if self.incomplete.wait(barrier, deadline) else self.incomplete.pending(barrier)
            )
        finally:
            self._barriers.pop(id(barrier), None)

    def begin_flush(self, barrier: FlushBarrier) -> None:
        """Send everything that was accepted before, without waiting for it."""
        self._barriers[id(barrier)] = barrier
        if not self._no_dispatcher:
            self.dispatcher.put(FlushMark(barrier))
        else:
            # In a separate thread: arm() takes a lock for which stages may wait.
            spawn_later(f"{self.name}-flush", functools.partial(self.incomplete.arm, barrier))
        self._end_lingering()

    def abandon(self) -> None:
        """Handle nothing more, in the child of a fork: see :meth:`Worker.abandon`."""
        self._is_abandoned = True
        # With it, a failure would wait for a lock that a thread of the parent may have held.
        self.settler.on_failure = None
        for stage in list(self.stages):
            stage.abandon()

    def transitions(self) -> Transitions:
        """Return how often the ordering machines of all partitions have taken each transition.

        Does not count slices that a TopicWorker passes on itself.
        """
        workers = [stage for stage in list(self.stages) if isinstance(stage, PartitionWorker)]
        return sum((worker.ordering.taken for worker in workers), Transitions())

    def fail_everything(self, make_error: Callable[[str, Status], DeliveryError]) -> list[Chunk]:
        """Fail all accepted messages that have no outcome; return their chunks."""
        chunks = self.incomplete.chunks()
        for chunk in chunks:
            self.settler.fail([chunk.whole()], functools.partial(make_error, chunk.topic))
        return chunks

    def abort(self, reason: str) -> None:
        """Fail all accepted messages that have no outcome, on request: *reason* names it."""

        def make_error(topic: str, status: Status, partition: int | None = None) -> AbortedError:
            waited_for = self.last_errors.reason_for(topic, partition)
            text = f"{format_partition(topic, partition)}: {reason}" + (
                f"; it waited: {waited_for}" if waited_for else ""
            )
            return AbortedError(text, status=status, topic=topic, partition=partition)

        for chunk in self.incomplete.chunks():
            for part in chunk.expired(math.inf):  # all of them, by partition
                partition = part.partition if part.partition >= 0 else None
                error = functools.partial(make_error, part.topic, partition=partition)
                self.settler.fail([part], error)
        self.fail_everything(make_error)  # also those that are partitioned meanwhile

    def stop(self, deadline: float) -> list[str]:
        """Stop all stages; return the names of those that have not ended by *deadline*.

        The dispatcher ends first. After that nothing new is accepted, and messages of a concurrent
        send() fail. Of the stages that handle messages, Reports ends last. The LogWriter follows,
        so that their last lines are written; it is not among the names. All other threads are
        requested to stop before the first one is joined, so the time to close does not grow with
        the number of idle threads.
        """
        self.ended = self.brokers.ended = True  # stages created from now on start no thread
        stages = [s for s in list(self.stages) if s not in (self.reports, self.dispatcher)]
        self.dispatcher.stop()
        late = [] if self.dispatcher.join(deadline) else [self.dispatcher.name]
        for chunk in self._admission.take_all():
            self.incomplete.enter_late(chunk)
        self.abort("the producer was closed while it was sent")
        self._arm_barriers()
        brokers = self.brokers.all()
        for broker in brokers:
            broker.put(Shutdown())
        stages += brokers
        for worker in stages:
            worker.stop()
        stages += [broker.bridge for broker in brokers]
        stages += [*self._gone, *self._gone_groups]
        late += [worker.name for worker in stages if not worker.join(deadline)]
        if self.coordinator is not None:
            self.coordinator.give_up()
        self.reports.stop()
        if not self.reports.join(deadline):
            late.append(self.reports.name)
        if self._token_fetcher is not None and not self._token_fetcher.stop_by(deadline):
            late.append(self._token_fetcher.name)
        # It may wait for the lock of a logging handler that the caller of close() holds.
        self.log_writer.stop_by(min(deadline, self.clock.monotonic() + _LOG_TIMEOUT))
        return late

    def _crashed(self, worker: AnyWorker, error: BaseException) -> None:
        """Fail everything, so that nothing hangs, after *worker* has crashed due to a bug (P9).

        A lack of memory may be the reason. So this is repeated until there is memory for it, and
        what only describes the error is left out if it cannot be done.
        """
        if worker.is_abandoned:
            return
        first, stack, failures = self.broken is None, error.__traceback__, 0
        if first:
            self.broken = error
        cause: BaseException | None = None
        taken: list[Chunk] | None = None
        while True:
            try:
                # For each crash: a second one may settle everything before the first comes here.
                self._admission.on_broken()
                taken = [] if taken is None else taken
                if cause is None:
                    # The errors of all failed messages and of later send() calls have this cause.
                    # The original would keep the frames of the stages alive.
                    cause = self._described(error, stack) if first else copied(error)
                if first:
                    self.broken = cause
                self._fail_all(worker, cause, taken)
                break
            except NO_MEMORY:
                worker.shortage.wait()
            except Exception as failure:
                failures += 1
                if failures > _CRASH_ATTEMPTS:
                    log.error("a step after the crash of %s failed", worker.name, exc_info=failure)
                    break
        if first:
            log.error("the producer is broken by an error in the library", exc_info=error)

    def _described(self, error: BaseException, stack: TracebackType | None) -> BaseException:
        """Return a copy of *error* with its traceback as a note."""
        cause = copied(error)
        try:
            cause.add_note("".join(traceback.format_tb(stack)))
        except Exception:  # no memory, or what a test has put there
            pass
        return cause

    def _fail_all(self, worker: AnyWorker, cause: BaseException, taken: list[Chunk]) -> None:
        """Fail everything with *cause*. May be repeated, with the same list *taken*."""

        def make_error(topic: str, status: Status) -> DeliveryError:
            return ProducerBrokenError(
                f"topic {topic!r}: the thread {worker.name} died of an error in the library",
                status=status,
                topic=topic,
                cause=cause,
            )

        # The dispatcher itself fails chunks that it has taken and not yet entered: it (1) enters a
        # chunk, (2) looks whether it has to fail it; this method (1) has it fail chunks from now
        # on, (2) fails the chunks that have entered.
        self.dispatcher.fail_from_now_on(make_error)
        self._admission.take_all(taken)
        for chunk in (*taken, *(self.dispatcher.taken if worker is self.dispatcher else ())):
            self.incomplete.enter_late(chunk)
        if worker is self.reports:
            self.settler.reports_have_ended()
        failed = self.fail_everything(make_error)
        if worker is self.dispatcher:
            self._arm_barriers()
        self.incomplete.abandon(failed)
        self.metadata.waiting_threads.wake_all()
        if self.coordinator is not None:
            self.coordinator.give_up()
        if isinstance(worker, BrokerWorker):
            worker.bridge.stop()  # as in on_stop(), which may not be called now

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
