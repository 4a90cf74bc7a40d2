"""PartitionWorker: one per topic-partition in use. Finds the leader and keeps the order.

In Sarama: ``partitionProducer.dispatch``. Owns: the partition's ordering machine (retry levels,
high-watermark, chaser), its lane, and its reference to the leader's BrokerWorker.

Guarantees: the lane gets items in an order that keeps ``send()`` order in the log (P4); a lane that
is let go gets the chaser as its last item.
Relies on: a lane that has failed hands back everything, oldest first, before the chaser.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from pykaproducer._kernel import Slice
from pykaproducer._machines.backlog import Backlog, Sweep
from pykaproducer._machines.lane import Batch, Chaser, Lane
from pykaproducer._machines.ordering import (
    Effect,
    FindPath,
    Forward,
    Item,
    Ordering,
    SendChaser,
)
from pykaproducer._machines.sequencing import Sequencer
from pykaproducer._machines.verdicts import FATAL_TOPIC_ERRORS
from pykaproducer._pipeline.broker import BrokerWorker, Put
from pykaproducer._pipeline.brokers import Brokers
from pykaproducer._pipeline.metadata import Metadata, ViewChanged
from pykaproducer._pipeline.reports import Settler
from pykaproducer._pipeline.trouble import Trouble
from pykaproducer._pipeline.worker import Worker
from pykaproducer.errors import DeliveryError, Status, delivery_error_for


@dataclass(frozen=True, slots=True)
class Rest:
    """The partition has long been unused: release what is kept for further messages.

    *tell* is called when nothing is under way any more, and never if something comes first.
    """

    tell: Callable[[], None]


class PartitionWorker(Worker):
    """Drives the ordering machine of one partition."""

    # Set by wiring, before the first item.
    topic: str
    partition: int
    brokers: Brokers
    metadata: Metadata
    settler: Settler
    trouble: Trouble
    #: Seconds for which a view that refuses the topic is believed without another look.
    believed_for: float

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.ordering = Ordering()
        self._sequencer = Sequencer()
        self._broker: BrokerWorker | None = None
        self._lane: Lane | None = None
        # Since when something waits for a leader (monotonic seconds); None: nothing does, or what
        # does has its outcome.
        self._waits_since: float | None = None
        # Called when the partition is at rest; None: not asked to rest.
        self._when_at_rest: Callable[[], None] | None = None

    @property
    def queued(self) -> int:
        """Bytes that wait to be sealed, or for a retry. For a glance from any thread: it may be a
        moment old."""
        lane = self._lane
        return self.ordering.held + (0 if lane is None else lane.nbytes)

    @property
    def lane(self) -> Lane | None:
        """Its path to the leader, None if it has none. For a glance from any thread."""
        return self._lane

    def held(self) -> Iterable[object]:
        return self.ordering.held_items()

    def in_place(self, item: Item | Chaser | Sweep | ViewChanged | Rest) -> bool:
        return True  # a few table look-ups

    def step(self, item: Item | Chaser | Sweep | ViewChanged | Rest) -> None:
        match item:
            case Chaser():
                self._perform(self.ordering.chaser(item.level))
                self._look_whether_at_rest()
            case ViewChanged():
                self._find_path()
            case Sweep():
                self.ordering.sweep()
                if self._lane is not None:
                    self._put(item)
                self._look_whether_at_rest()
            case Rest():
                self._when_at_rest = item.tell
                if not self._anything_waits():
                    self.ordering.give_up()
                    self._waits_since = None
                self._perform(self.ordering.rest())
                self._look_whether_at_rest()
            case _:
                self._when_at_rest = None
                if isinstance(item, Backlog):
                    item.take_along()  # it may wait, and then it may be part of another one
                effects = self.ordering.item(item)
                self._perform(effects)
                if self._lane is None:
                    if not isinstance(item, Backlog):
                        item.take_along()  # it waits for a leader
                    if self._waits_since is None:
                        self._find_path()
                if (trace := self.meter.trace) is not None and not (effects and self._lane):
                    waits = "waits in order" if self._lane else "waits for a leader"
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
            self.brokers.release(former)  # last: the new path mostly leads to the same broker

    def _put(self, item: Item | Chaser | Sweep) -> None:
        assert self._broker is not None, "the machine forwards only once a path was found"
        assert self._lane is not None, "a path is a broker and a lane"
        if (trace := self.meter.trace) is not None:
            trace.note("forwarded", self, item, broker=self._broker.broker_id)
        self._broker.put(Put(self._lane, item))

    def _let_go(self, chaser: Chaser) -> BrokerWorker | None:
        """End the lane; return its broker's worker, which is still to be released."""
        self._put(chaser)
        former, self._broker, self._lane = self._broker, None, None
        return former

    def _find_path(self) -> None:
        if not self.ordering.wants_path:
            return
        leader = self.metadata.view.leader(self.topic, self.partition)
        if leader is None:
            self._wait_for_leader()
            return
        self._waits_since = None
        self._broker = self.brokers.acquire(leader)
        self._lane = Lane(self.topic, self.partition, self._sequencer)
        self._perform(self.ordering.path_found())

    def _wait_for_leader(self) -> None:
        """Wait where we are; the next view of the cluster is put into our inbox."""
        now = self.clock.monotonic()
        since = now if self._waits_since is None else self._waits_since
        view = self.metadata.view.topics.get(self.topic)
        if (
            view is not None
            and view.error_code in FATAL_TOPIC_ERRORS
            and view.is_recent(since, now, self.believed_for)
        ):
            self._refuse(view.error_code)
        if self._anything_waits():
            self._waits_since = since
            self.metadata.want_topics(self.topic, waiter=self)
        else:
            # The next item asks again: a leader that no message waits for is not looked up.
            self._waits_since = None
            self.metadata.tell(self)

    def _anything_waits(self) -> bool:
        # The youngest usually have the most time left.
        return any(
            part.oldest_deadline() is not None
            for item in reversed(self.ordering.held_items())
            for part in _youngest_first(item)
        )

    def _refuse(self, code: int) -> None:
        """Fail what waits with *code*: waiting does not help."""

        def make_error(status: Status) -> DeliveryError:
            return delivery_error_for(
                code, topic=self.topic, partition=self.partition, status=status
            )

        for item in self.ordering.held_items():
            for part in list(_youngest_first(item)):
                self.settler.fail(part, make_error)
        self.trouble.refused(self.topic, make_error(Status.NOT_PERSISTED))

    def _look_whether_at_rest(self) -> None:
        if self._when_at_rest is not None and self.ordering.is_at_rest:
            tell, self._when_at_rest = self._when_at_rest, None
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
