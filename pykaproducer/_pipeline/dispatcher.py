"""Dispatcher: takes the open chunks and routes them by topic. One per producer.

In Sarama: ``asyncProducer.dispatcher``. Owns: the table of topics that wait for their metadata
(entries have no threads, so ten thousand unknown topics cost no thread), and the deadline of every
accepted chunk. It detects topics that are no longer used, and releases everything kept for them.

Guarantees: chunks of one topic reach its worker in the order in which they were opened, and those
that waited for metadata come first. Retried items take the same route. The dispatcher waits only
for its inbox, and for rows that another stage is about to settle.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

from pykaproducer._kernel import Chunk, Slice, TopicSlot
from pykaproducer._machines.backlog import Backlog, Line, Sweep
from pykaproducer._machines.batch import Batch, Chaser
from pykaproducer._machines.cluster import TopicView
from pykaproducer._machines.deadlines import Deadlines, has_expired
from pykaproducer._machines.verdicts import FATAL_TOPIC_ERRORS
from pykaproducer._pipeline.admission_functions import AdmissionFunctions
from pykaproducer._pipeline.dispatcher_items import (
    CallersChunk,
    FailAll,
    FlushMark,
    Forgotten,
    Item,
    TakeHeld,
    TopicAtRest,
)
from pykaproducer._pipeline.held_slots import HeldSlots
from pykaproducer._pipeline.incomplete import IncompleteChunks
from pykaproducer._pipeline.last_errors import LastErrors
from pykaproducer._pipeline.metadata import Metadata
from pykaproducer._pipeline.metadata_events import ViewChanged
from pykaproducer._pipeline.partition import Rest
from pykaproducer._pipeline.reports import Settler
from pykaproducer._pipeline.topic import TopicWorker
from pykaproducer._pipeline.worker import StageContext, Worker
from pykaproducer._util import threads
from pykaproducer._util.clock import earlier
from pykaproducer._util.deques import copied_items
from pykaproducer._util.memory import NO_MEMORY
from pykaproducer.config import Config
from pykaproducer.errors import DeliveryError, DeliveryTimeoutError, Status, delivery_error_for

#: Expired messages are removed from the lists in which they waited within this time (seconds).
_SWEEP_AFTER = 2.0
#: A message that expires within this time is not left in the open chunk (seconds).
_SHORT_TIME = 1.0


class Dispatcher(Worker[Item]):
    """Routes by topic, and expires messages in whichever stage they are.

    *admission*: of the producer. *hold_time* returns how long messages for these leaders may stay
    in the open chunk, as they could not be sent sooner (seconds); *may_forget*, whether the
    sequence numbers of an unused topic may be lost. *release_topic* releases a topic's stages and
    its counters.
    """

    keeps_threads = True

    def __init__(
        self,
        context: StageContext,
        *,
        config: Config,
        admission: AdmissionFunctions,
        hold_time: Callable[[Iterable[int]], float],
        new_topic_worker: Callable[[str], TopicWorker],
        may_forget: Callable[[TopicWorker], bool],
        release_topic: Callable[[str, TopicWorker | None], None],
        metadata: Metadata,
        incomplete: IncompleteChunks,
        settler: Settler,
        last_errors: LastErrors,
    ) -> None:
        super().__init__("dispatcher", context)
        self._take, self._take_callers = admission.take, admission.take_callers
        self._release_slot = admission.release_slot
        self._hold_time = hold_time
        #: The slots that were announced and are not taken yet.
        self.held = HeldSlots(self._partitions_of)
        # The leaders of each topic's partitions in this view.
        self._leaders: dict[str, tuple[TopicView, frozenset[int]]] = {}
        self._new_topic_worker = new_topic_worker
        self._release_topic = release_topic
        self._metadata = metadata
        self._incomplete = incomplete
        self._settler = settler
        self._last_errors = last_errors
        # Time without a message after which a topic is forgotten (seconds).
        self._max_idle = config.metadata_max_idle_ms / 1000
        # The sequence numbers of a topic are lost with it.
        self._may_forget = may_forget
        # Maximum age of a view whose fatal topic error is accepted without a refresh (seconds).
        self._believed_for = config.retry_backoff_max_ms / 1000
        # Makes the error for a topic and a status with which everything fails; None: as long as no
        # stage has crashed.
        self._make_broken_error: Callable[[str, Status], DeliveryError] | None = None
        #: Chunks just taken, which the crash policy may not find elsewhere.
        self.taken: list[Chunk] = []
        self._topics: dict[str, TopicWorker] = {}
        self._waiting: dict[str, Line[Chunk]] = {}
        self._deadlines = Deadlines()
        # Partitions with rows that expired since the last sweep, and when the next sweep is due.
        self._to_sweep: set[tuple[str, int]] = set()
        self._sweep_at: float | None = None
        # When each topic was used last (monotonic seconds), and when to look for idle ones.
        self._used: dict[str, float] = {}
        self._look_for_idle: float | None = None
        # Topics that have been asked to rest, with the round of the question; see _forget().
        self._resting: dict[str, int] = {}
        self._round = 0
        # Topics that Metadata was asked to forget and has not yet reported as forgotten.
        self._leaving: set[str] = set()

    def handle(self, item: Item) -> None:
        match item:
            case TopicSlot():
                self._announced(item)
            case list():
                for slot in item:
                    self._announced(slot)
            case Batch() | Backlog() | Chaser():
                if (trace := self.metrics.trace) is not None:
                    trace.note("retried", self, item)
                self._topics[item.topic].put(item)
            case FlushMark():
                self._take_held()
                for chunk in self._take_callers():
                    self._incomplete.enter_late(chunk)
                self._incomplete.arm(item.barrier)
            case TakeHeld():
                self._take_held()
            case FailAll():
                self._fail_all(item)
            case CallersChunk():
                self._watch(item.chunk)
                self._use(item.chunk.topic, item.chunk.opened)
            case ViewChanged():
                self._metadata_came()
            case TopicAtRest():
                if self._resting.get(item.topic) == item.round:
                    self._forget(item.topic)
            case Forgotten():
                self._leaving.discard(item.topic)
                self._metadata_came()

    def _fail_all(self, item: FailAll) -> None:
        """Fail all rows without outcome, and have the stages drop them."""
        self._take_held()
        self._settler.failing.acquire()
        self._settler.failing.release()  # the rows that are the reason have their own errors now
        for chunk in self._incomplete.chunks():
            self._settler.fail([chunk.whole()], functools.partial(item.make_error, chunk.topic))
        self._drop_settled()
        for topic, worker in self._topics.items():
            for partition in list(worker.partitions):
                worker.put(Sweep(topic, partition))
        item.done()

    def announce(self, slots: TopicSlot | list[TopicSlot]) -> bool:
        """Have *slots* taken; return False if the dispatcher has no thread to take them.

        Called by ``send()``, which then announces the slot again with the next message. May be
        called from any thread. A list is one item, so that an interrupt leaves out none of them.
        """
        if self.thread is None and threads.is_missing(self) and slots in self.inbox():
            self.wake()
        else:
            self.put(slots)
        return self.thread is not None or not threads.is_missing(self)

    def fail_from_now_on(self, make_error: Callable[[str, Status], DeliveryError]) -> None:
        """Fail all chunks that are taken from now on, because a stage has crashed.

        *make_error* makes the error for a topic and a status. May be called from any thread.
        """
        self._make_broken_error = make_error

    def can_run_inline(self, item: Item) -> bool:
        # TakeHeld: on the thread of the BrokerWorker that has just got a response. A hop to this
        # stage's own thread would leave the broker idle. FlushMark: on that of the Coordinator,
        # which has nothing else to do before the rows are settled. (flush() is a user thread.)
        return isinstance(item, TakeHeld | FlushMark)

    @property
    def waiting(self) -> Iterable[str]:
        """Topics whose messages wait for metadata."""
        return self._waiting

    def can_stop(self) -> bool:
        # Pipeline.stop() takes what is left in the open chunks. A BrokerWorker must not: nothing
        # would fail these messages.
        self.held.take()
        return True

    def held_items(self) -> Iterable[object]:
        lines = list(self._waiting.values())
        return [chunk for line in lines for chunk in copied_items(line.items)]

    def deadline(self) -> float | None:
        expiry = self._deadlines.next()
        if expiry is not None and self.shortage.until is not None and self.shortage.holds():
            expiry = self.shortage.until
        look = self._look_for_idle
        if look is not None and (expiry is None or look < expiry):
            expiry = look
        if self.held.until is not None:
            expiry = earlier(expiry, self.held.until)
        return expiry if self._sweep_at is None else earlier(expiry, self._sweep_at)

    def on_time(self, now: float) -> None:
        if self.held.until is not None and self.held.until <= now:
            self._take_held()
        if self._look_for_idle is not None and self._look_for_idle <= now:
            self._let_idle_rest(now)
        self._expire_rows(now)
        if self._sweep_at is not None and now >= self._sweep_at:
            self._sweep_at = None
            swept, self._to_sweep = self._to_sweep, set()
            for topic, partition in swept:
                if (worker := self._topics.get(topic)) is not None:
                    worker.put(Sweep(topic, partition))

    def on_pause(self) -> None:
        self._expire_rows(self.clock.monotonic())

    def _expire_rows(self, now: float) -> None:
        for chunk in self._deadlines.expired(now):
            try:
                for part in chunk.expired(now):
                    self._expire(part)
            except NO_MEMORY:
                chunk.overdue(now)
                self.shortage.begin("the outcome of expired messages")
                return
            if has_expired(chunk) and (waiting := self._waiting.get(chunk.topic)) is not None:
                waiting.sweep()
                if not waiting:
                    del self._waiting[chunk.topic]

    def _drop_settled(self) -> None:
        for topic, waiting in list(self._waiting.items()):
            waiting.sweep()
            if not waiting:
                del self._waiting[topic]

    # The open chunks -----------------------------------------------------------------------------

    def _announced(self, slot: TopicSlot) -> None:
        if slot.is_empty:
            self._use(slot.topic, self.clock.monotonic())  # a caller has taken its chunk
        else:
            self._hold(slot)

    def _hold(self, slot: TopicSlot) -> None:
        """Take the messages of *slot*, or leave them in the open chunk if they could not be sent.

        Taking a chunk costs a slice for each of its partitions, and the batch is not larger for it.
        So messages that would only wait in a BrokerWorker stay where they are, at most for
        ``hold_time()``, and one take gets all of them. A topic that waits for metadata is not held:
        its messages have to be looked up. Nor is a message with a short time of its own, for which
        ``send()`` announces the slot again.

        No message is left behind when a broker can take it. (1) This method adds the slot, (2) it
        reads the windows; a BrokerWorker (1) opens its window, or finds that its next request is no
        longer full, (2) reads :attr:`held`. If a window opens by time, both stages have a deadline.
        """
        now = self.clock.monotonic()
        may_wait = slot not in self.held and slot.next_deadline > now + _SHORT_TIME
        self.held.add(slot)
        leaders = self._leaders_of(slot.topic) if slot.topic in self._topics else ()
        if may_wait and leaders and (wait := self._hold_time(leaders)):
            self.held.keep(now + wait)
        else:
            self._take_held()

    def _partitions_of(self, topic: str) -> int:
        view = self._metadata.view.topics.get(topic)
        return 1 if view is None else max(1, view.partitions)

    def _leaders_of(self, topic: str) -> frozenset[int]:
        view = self._metadata.view.topics[topic]
        known, leaders = self._leaders.get(topic, (None, frozenset()))
        if known is not view:
            leaders = frozenset(view.leaders.values())
            self._leaders[topic] = view, leaders
        return leaders

    def _take_held(self) -> None:
        for slot in self.held.take():
            self._take_slot(slot)

    def _take_slot(self, slot: TopicSlot) -> None:
        chunks = self.taken = self._take(slot)
        for chunk in chunks:
            # All of them before anything else, for the crash policy.
            self._incomplete.enter(chunk)
        self.taken = []
        if chunks:
            self._use(slot.topic, chunks[-1].opened)
        if (trace := self.metrics.trace) is not None:
            trace.taken(self, chunks)
        for chunk in chunks:
            if self._watch(chunk):
                self._route(chunk)

    def _watch(self, chunk: Chunk) -> bool:
        """Watch the deadlines of *chunk*; fail it and return False if a stage has crashed."""
        self._deadlines.watch(chunk)
        if self._make_broken_error is None:
            return True
        make_error = functools.partial(self._make_broken_error, chunk.topic)
        self._settler.fail([chunk.whole()], make_error)
        return False

    def _route(self, chunk: Chunk) -> None:
        worker = self._topics.get(chunk.topic)
        if worker is not None:
            worker.put(chunk)
            return
        waiting = self._waiting.get(chunk.topic)
        if waiting is None:
            waiting = self._waiting[chunk.topic] = Line(has_expired)
        waiting.append(chunk)
        view = self._metadata.view.topics.get(chunk.topic)
        if view is not None and chunk.topic not in self._leaving:
            self._look_at(view)
        if chunk.topic in self._waiting:
            if (trace := self.metrics.trace) is not None:
                trace.note("waits for metadata", self, chunk)
            self._metadata.want_topics(chunk.topic)

    def _metadata_came(self) -> None:
        topics = self._metadata.view.topics
        if topics and self._look_for_idle is None:
            self._look_for_idle = self.clock.monotonic() + self._max_idle  # only looked up so far
        self._drop_settled()
        for topic in list(self._waiting):
            view = topics.get(topic)
            if view is not None and topic not in self._leaving:
                self._look_at(view)
        if self._waiting:
            self._metadata.want_topics(*self._waiting)  # each answer ends the request

    def _look_at(self, view: TopicView) -> None:
        """Handle metadata of a topic with waiting chunks: pass them on, fail them, or wait."""
        if view.partitions:
            worker = self._topics[view.name] = self._new_topic_worker(view.name)
            for chunk in self._waiting.pop(view.name):
                worker.put(chunk)
        elif view.error_code in FATAL_TOPIC_ERRORS and self._is_believed(view):
            code = view.error_code
            error = delivery_error_for(code, topic=view.name, status=Status.NOT_PERSISTED)
            self._last_errors.rejected(view.name, error)
            self._settler.fail(
                [chunk.whole() for chunk in self._waiting.pop(view.name)],
                lambda status: delivery_error_for(code, topic=view.name, status=status),
            )

    def _is_believed(self, view: TopicView) -> bool:
        """Return whether *view* is recent enough to fail messages: ACLs may have changed since."""
        since = next(iter(self._waiting[view.name])).opened
        return view.is_recent(since, self.clock.monotonic(), self._believed_for)

    # Unused topics -------------------------------------------------------------------------------

    def _use(self, topic: str, time: float) -> None:
        self._used[topic] = time
        self._resting.pop(topic, None)
        if self._look_for_idle is None:
            self._look_for_idle = time + self._max_idle

    def _let_idle_rest(self, now: float) -> None:
        """Ask topics that have long been unused to rest; forget those without a worker.

        This includes topics that were only looked up by ``partitions_for()``.
        """
        for topic in self._metadata.view.topics:
            self._used.setdefault(topic, now)
        busy = {chunk.topic for chunk in self._incomplete.chunks()}
        self._round += 1
        for topic, used in list(self._used.items()):
            worker = self._topics.get(topic)
            if worker is not None and worker.used_at > used:
                used = self._used[topic] = worker.used_at
            if used + self._max_idle > now or topic in busy:
                continue
            if worker is not None and not self._may_forget(worker):
                self._used[topic] = now
                continue
            self._resting[topic] = self._round
            if worker is None:
                self._forget(topic)
            else:
                answer = TopicAtRest(topic, self._round)
                worker.put(Rest(functools.partial(self.put, answer)))
        oldest = min(self._used.values(), default=None)
        self._look_for_idle = (
            None if oldest is None else max(oldest + self._max_idle, now + self._max_idle / 4)
        )

    def _forget(self, topic: str) -> None:
        """Release everything kept for *topic*: nothing of it is in progress or has arrived.

        A concurrent send() is safe:

        1. If send() appends to the slot first, the slot is not released, and the topic stays.
        2. If the slot is released first, send() notices, makes a new one, and announces it after
           this call. Its chunk waits until the view no longer has the topic (:class:`Forgotten`),
           so that no new TopicWorker relies on a view that is about to lose it. Then the topic is
           looked up.
        """
        del self._resting[topic]
        if topic in self._waiting or not self._release_slot(topic):
            return
        self._used.pop(topic, None)
        self._leaders.pop(topic, None)
        self._release_topic(topic, self._topics.pop(topic, None))
        self._leaving.add(topic)
        self._metadata.forget(topic, lambda gone: self.put(Forgotten(gone)))

    def _expire(self, part: Slice) -> None:
        topic, partition = part.topic, part.partition if part.partition >= 0 else None
        reason = self._last_errors.reason_for(topic, partition)

        def make_error(status: Status) -> DeliveryTimeoutError:
            return DeliveryTimeoutError(
                topic=topic,
                partition=partition,
                waited=self.clock.monotonic() - part.chunk.opened,
                status=status,
                reason=reason,
            )

        # The stages that hold these rows get one Sweep for many rows.
        if partition is not None and topic in self._topics:
            self._to_sweep.add((topic, partition))
            if self._sweep_at is None:
                self._sweep_at = self.clock.monotonic() + _SWEEP_AFTER
        self._settler.fail([part], make_error)
