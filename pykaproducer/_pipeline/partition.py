"""PartitionWorker: finds the leader of a partition and preserves the order of its messages.

There is one for each topic-partition in use. In Sarama: ``partitionProducer.dispatch``. Owns: the
partition's ordering machine (retry levels, high-watermark, chaser), its partition buffer, and its
reference to the leader's BrokerWorker.

Guarantees: the buffer gets items in an order that preserves ``send()`` order in the log (P4). The
last item of a released buffer is the chaser.
In the ordinary state the TopicWorker borrows this stage and puts new slices into the path itself
(``_kernel_parts/route.pxi``).
Relies on: a failed buffer returns all its items, oldest first, before the chaser.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from pykaproducer._kernel import PartitionPath, Slice
from pykaproducer._machines.backlog import Backlog, Sweep
from pykaproducer._machines.batch import Batch, Chaser
from pykaproducer._machines.ordering import (
    Effect,
    FindPath,
    Forward,
    Item,
    Ordering,
    SendChaser,
)
from pykaproducer._machines.partition_buffer import PartitionBuffer
from pykaproducer._machines.sequencing import ProducerId, Sequencer
from pykaproducer._machines.verdicts import FATAL_TOPIC_ERRORS
from pykaproducer._pipeline.broker import BrokerWorker
from pykaproducer._pipeline.broker_events import Enqueue
from pykaproducer._pipeline.broker_registry import Brokers
from pykaproducer._pipeline.last_errors import LastErrors
from pykaproducer._pipeline.metadata import Metadata
from pykaproducer._pipeline.metadata_events import ViewChanged
from pykaproducer._pipeline.reports import Settler
from pykaproducer._pipeline.worker import StageContext, Worker
from pykaproducer.config import Config
from pykaproducer.errors import DeliveryError, Status, delivery_error_for


class Rest(NamedTuple):
    """The partition has long been unused: release everything kept for further messages.

    *tell* is called when nothing is in progress any more, or never if an item arrives first.
    """

    tell: Callable[[], None]


PartitionItem = Item | Chaser | Sweep | ViewChanged | Rest


class PartitionWorker(Worker[PartitionItem]):
    """Runs the ordering machine of one partition."""

    def __init__(
        self,
        context: StageContext,
        config: Config,
        brokers: Brokers,
        metadata: Metadata,
        settler: Settler,
        last_errors: LastErrors,
        topic: str,
        partition: int,
    ) -> None:
        super().__init__(f"partition-{topic}-{partition}", context)
        self.topic = topic
        self.partition = partition
        self._has_own_thread = config.stage_threads == "own"
        self._brokers = brokers
        self._metadata = metadata
        self._settler = settler
        self._last_errors = last_errors
        # Maximum age of a view whose fatal topic error is accepted without a refresh (seconds).
        self._believed_for = config.retry_backoff_max_ms / 1000
        self._sequencer = Sequencer()
        #: The leader's BrokerWorker and its buffer there. A TopicWorker may use it too.
        self.path = PartitionPath(self._items, self._running, Ordering())
        # Since when an unsettled item has waited for a leader (monotonic seconds); None: none does.
        self._waits_since: float | None = None

    @property
    def producer(self) -> ProducerId | None:
        """The producer id and epoch of the last batch. May be read from any thread."""
        return self._sequencer.producer

    @property
    def ordering(self) -> Ordering:
        """Its ordering machine."""
        ordering: Ordering = self.path.ordering
        return ordering

    @property
    def queued(self) -> int:
        """Bytes that wait to be sealed or retried.

        May be read from any thread; the value may be slightly out of date.
        """
        buffer = self.path.buffer
        return self.ordering.held + (0 if buffer is None else buffer.nbytes)

    @property
    def buffer(self) -> PartitionBuffer | None:
        """Its path to the leader, None if it has none. May be read from any thread."""
        buffer: PartitionBuffer | None = self.path.buffer
        return buffer

    def held_items(self) -> Iterable[object]:
        return self.ordering.held_items()

    def can_run_inline(self, item: PartitionItem) -> bool:
        return not self._has_own_thread  # a few table look-ups

    def handle(self, item: PartitionItem) -> None:
        match item:
            case Chaser():
                self._perform(self.ordering.chaser(item.level))
                self._report_if_at_rest()
            case ViewChanged():
                self._find_path()
            case Sweep():
                self.ordering.sweep()
                if self.path.buffer is not None:
                    self._put(item)
                self._report_if_at_rest()
            case Rest():
                self.path.when_at_rest = item.tell
                if not self._anything_waits():
                    self.ordering.give_up()
                    self._waits_since = None
                self._perform(self.ordering.rest())
                self._report_if_at_rest()
            case _:
                self.path.when_at_rest = None
                if isinstance(item, Backlog):
                    # It may have to wait, and may be joined to another backlog then.
                    item.detach_payload()
                effects = self.ordering.item(item)
                self._perform(effects)
                if self.path.buffer is None:
                    if not isinstance(item, Backlog):
                        item.detach_payload()  # it waits for a leader
                    if self._waits_since is None:
                        self._find_path()
                if (trace := self.metrics.trace) is not None and not (effects and self.path.buffer):
                    waits = "waits in order" if self.path.buffer else "waits for a leader"
                    trace.note(waits, self, item)

    def _perform(self, effects: list[Effect]) -> None:
        former = None
        for effect in effects:
            match effect:
                case Forward():
                    self._put(effect.item)
                case SendChaser():
                    former = self._let_go(Chaser(self.topic, self.partition, effect.level))
                case FindPath():
                    self._find_path()
        if former is not None:
            self._brokers.release(former)  # last, as the new path usually leads to the same broker

    def _put(self, item: Item | Chaser | Sweep) -> None:
        assert self.path.broker is not None, "the machine forwards only after a path was found"
        assert self.path.buffer is not None, "a path is a broker and a buffer"
        self.note_forwarded(item)
        self.path.broker.put(Enqueue(self.path.buffer, item))

    def note_forwarded(self, item: Item | Chaser | Sweep) -> None:
        """Record in the trace, if there is one, that *item* goes to the leader's BrokerWorker."""
        if (trace := self.metrics.trace) is not None:
            trace.note("forwarded", self, item, broker=self.path.broker.broker_id)

    def _let_go(self, chaser: Chaser) -> BrokerWorker | None:
        """End the buffer; return its broker's worker, which is still to be released."""
        self._put(chaser)
        former: BrokerWorker | None = self.path.broker
        self.path.broker = self.path.buffer = None
        return former

    def _find_path(self) -> None:
        if not self.ordering.wants_path:
            return
        leader = self._metadata.view.leader(self.topic, self.partition)
        if leader is None:
            self._wait_for_leader()
            return
        self._waits_since = None
        self.path.broker = self._brokers.acquire(leader)
        self.path.buffer = PartitionBuffer(self.topic, self.partition, self._sequencer)
        self._perform(self.ordering.path_found())

    def _wait_for_leader(self) -> None:
        """Wait for a leader, or fail the waiting messages if the topic has a permanent error.

        The next view of the cluster is put into the inbox.
        """
        now = self.clock.monotonic()
        since = now if self._waits_since is None else self._waits_since
        view = self._metadata.view.topics.get(self.topic)
        if (
            view is not None
            and view.error_code in FATAL_TOPIC_ERRORS
            and view.is_recent(since, now, self._believed_for)
        ):
            self._fail_waiting(view.error_code)
        if self._anything_waits():
            self._waits_since = since
            self._metadata.want_topics(self.topic, waiter=self)
        else:
            # Do not look up a leader for which no message waits. The next item will do so.
            self._waits_since = None
            self._metadata.tell(self)

    def _anything_waits(self) -> bool:
        # Youngest first: these usually have the most time left.
        return any(
            part.oldest_deadline() is not None
            for item in reversed(self.ordering.held_items())
            for part in _youngest_first(item)
        )

    def _fail_waiting(self, code: int) -> None:
        """Fail the waiting messages with *code*, a permanent error."""

        def make_error(status: Status) -> DeliveryError:
            return delivery_error_for(
                code, topic=self.topic, partition=self.partition, status=status
            )

        held = self.ordering.held_items()
        self._settler.fail([part for item in held for part in _youngest_first(item)], make_error)
        self._last_errors.rejected(self.topic, make_error(Status.NOT_PERSISTED))

    def _report_if_at_rest(self) -> None:
        if self.path.when_at_rest is not None and self.ordering.is_at_rest:
            tell, self.path.when_at_rest = self.path.when_at_rest, None
            tell()


def _youngest_first(item: Item) -> Iterable[Slice]:
    """Return the slices of *item*, youngest first."""
    match item:
        case Batch():
            return reversed(item.parts)
        case Backlog():
            return item.youngest_first()
        case _:
            return (item,)
