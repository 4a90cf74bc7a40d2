"""Dispatcher: one per producer. Takes the open chunks and routes by topic.

In Sarama: ``asyncProducer.dispatcher``. Owns: the table of topics that wait for their metadata
(entries without a thread: ten thousand unknown topics cost no thread), and the deadline of every
accepted chunk.

Guarantees: chunks of one topic reach its worker in the order in which they were opened, those
that waited for metadata first; what comes round again from the retry handler takes the same way.
Never waits for anything but its inbox.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from pykaproducer import _threads as threads
from pykaproducer._kernel import Chunk, Slice, TopicSlot
from pykaproducer._machines.backlog import Backlog, Line, Sweep
from pykaproducer._machines.batching import Batch, Chaser
from pykaproducer._machines.cluster import TopicView
from pykaproducer._machines.deadlines import Deadlines, has_expired
from pykaproducer._machines.verdicts import FATAL_TOPIC_ERRORS
from pykaproducer._pipeline.inflight import InFlight, Mark
from pykaproducer._pipeline.metadata import Metadata, ViewChanged
from pykaproducer._pipeline.reports import Settler
from pykaproducer._pipeline.topic import TopicWorker
from pykaproducer._pipeline.trouble import Trouble
from pykaproducer._pipeline.worker import Worker
from pykaproducer.errors import DeliveryError, DeliveryTimeoutError, Status, delivery_error_for

#: What has expired leaves the lists it waited in within this time (seconds).
_SWEEP_AFTER = 2.0


@dataclass(frozen=True, slots=True)
class FlushMark:
    """flush() has been called: everything before it is to be on its way."""

    mark: Mark


class Dispatcher(Worker):
    """Routes by topic; expires what is too late, wherever it is."""

    keeps_threads = True

    # Set by wiring, before the first item.
    take: Callable[[TopicSlot], list[Chunk]]
    topic_worker: Callable[[str], TopicWorker]
    metadata: Metadata
    inflight: InFlight
    settler: Settler
    trouble: Trouble
    #: Another stage has died: everything fails with this, made for a topic and a status.
    broken_by: Callable[[str, Status], DeliveryError] | None = None

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._topics: dict[str, TopicWorker] = {}
        self._waiting: dict[str, Line[Chunk]] = {}
        self._deadlines = Deadlines()
        # Partitions of which rows have expired since the last sweep, and when the next one is due.
        self._to_sweep: set[tuple[str, int]] = set()
        self._sweep_at: float | None = None

    def step(self, item: TopicSlot | Batch | Backlog | Chaser | FlushMark | ViewChanged) -> None:
        match item:
            case TopicSlot():
                chunks = self.take(item)
                for chunk in chunks:
                    self.inflight.enter(chunk)  # all of them first: the crash policy looks there
                if (trace := self.meter.trace) is not None:
                    trace.taken(self, chunks)
                for chunk in chunks:
                    self._deadlines.watch(chunk)
                    if self.broken_by is None:
                        self._route(chunk)
                    else:
                        make_error = functools.partial(self.broken_by, chunk.topic)
                        self.settler.fail(chunk.whole(), make_error)
            case Batch() | Backlog() | Chaser():
                if (trace := self.meter.trace) is not None:
                    trace.note("comes again", self, item)
                self._topics[item.topic].put(item)
            case FlushMark():
                self.inflight.meet(item.mark)
            case ViewChanged():
                self._metadata_came()

    def announce(self, slot: TopicSlot) -> bool:
        """Have *slot* taken; false if the system refuses the thread that would take it.

        For ``send()``, which announces the slot again with the next message then. From any thread.
        """
        if threads.is_missing(self) and slot in self.inbox():
            self.wake()
        else:
            self.put(slot)
        return not threads.is_missing(self)

    @property
    def waiting(self) -> Iterable[str]:
        """Topics whose messages wait for metadata."""
        return self._waiting

    def held(self) -> Iterable[object]:
        return [chunk for chunks in list(self._waiting.values()) for chunk in list(chunks)]

    def deadline(self) -> float | None:
        expiry = self._deadlines.next()
        if expiry is not None and self.shortage.holds():
            expiry = self.shortage.until
        if self._sweep_at is None:
            return expiry
        return self._sweep_at if expiry is None else min(expiry, self._sweep_at)

    def on_time(self, now: float) -> None:
        for chunk in self._deadlines.expired(now):
            try:
                for part in chunk.expired(now):
                    self._expire(part)
            except MemoryError:
                chunk.overdue(now)
                self.shortage.begin("the outcome of expired messages")
            if not has_expired(chunk):
                self._deadlines.watch(chunk)
            elif (waiting := self._waiting.get(chunk.topic)) is not None:
                waiting.sweep()
                if not waiting:
                    del self._waiting[chunk.topic]
        if self._sweep_at is not None and now >= self._sweep_at:
            self._sweep_at = None
            swept, self._to_sweep = self._to_sweep, set()
            for topic, partition in swept:
                self._topics[topic].put(Sweep(topic, partition))

    def _route(self, chunk: Chunk) -> None:
        worker = self._topics.get(chunk.topic)
        if worker is not None:
            worker.put(chunk)
            return
        waiting = self._waiting.get(chunk.topic)
        if waiting is None:
            waiting = self._waiting[chunk.topic] = Line(has_expired)
        waiting.append(chunk)
        view = self.metadata.view.topics.get(chunk.topic)
        if view is not None:
            self._look_at(view)
        if chunk.topic in self._waiting:
            if (trace := self.meter.trace) is not None:
                trace.note("waits for metadata", self, chunk)
            self.metadata.want_topic(chunk.topic)

    def _metadata_came(self) -> None:
        topics = self.metadata.view.topics
        for topic in list(self._waiting):
            view = topics.get(topic)
            if view is not None:
                self._look_at(view)

    def _look_at(self, view: TopicView) -> None:
        """Metadata of a topic that is waited for: let its chunks go, or fail, or wait on."""
        if view.partitions:
            worker = self._topics[view.name] = self.topic_worker(view.name)
            for chunk in self._waiting.pop(view.name):
                worker.put(chunk)
        elif view.error_code in FATAL_TOPIC_ERRORS:
            code = view.error_code
            error = delivery_error_for(code, topic=view.name, status=Status.NOT_PERSISTED)
            self.trouble.refused(view.name, error)
            for chunk in self._waiting.pop(view.name):
                self.settler.fail(
                    chunk.whole(),
                    lambda status: delivery_error_for(code, topic=view.name, status=status),
                )

    def _expire(self, part: Slice) -> None:
        topic, partition = part.topic, part.partition if part.partition >= 0 else None
        reason = self.trouble.why(topic, partition)

        def make_error(status: Status) -> DeliveryTimeoutError:
            return DeliveryTimeoutError(
                topic=topic,
                partition=partition,
                waited=self.clock.monotonic() - part.chunk.opened,
                status=status,
                reason=reason,
            )

        self.settler.fail(part, make_error)
        # Whoever holds these rows is told once for many of them.
        if partition is not None and topic in self._topics:
            self._to_sweep.add((topic, partition))
            if self._sweep_at is None:
                self._sweep_at = self.clock.monotonic() + _SWEEP_AFTER
