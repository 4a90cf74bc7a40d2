"""PartitionWorker: one per topic-partition in use. Finds the leader and keeps the order.

In Sarama: ``partitionProducer.dispatch``. Owns: the partition's ordering machine (retry levels,
high-watermark, chaser), its lane, and its reference to the leader's BrokerWorker.

Guarantees: the lane gets items in an order that keeps ``send()`` order in the log (P4); a lane that
is let go gets the chaser as its last item.
Relies on: a lane that has failed hands back everything, oldest first, before the chaser.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pykaproducer._machines.backlog import Backlog, Sweep
from pykaproducer._machines.batching import Chaser, Lane
from pykaproducer._machines.ordering import (
    Effect,
    FindPath,
    Forward,
    Item,
    Ordering,
    SendChaser,
)
from pykaproducer._machines.sequencing import Sequencer
from pykaproducer._pipeline.broker import BrokerWorker, Put
from pykaproducer._pipeline.brokers import Brokers
from pykaproducer._pipeline.metadata import Metadata, ViewChanged
from pykaproducer._pipeline.worker import Worker


class PartitionWorker(Worker):
    """Drives the ordering machine of one partition."""

    # Set by wiring, before the first item.
    topic: str
    partition: int
    brokers: Brokers
    metadata: Metadata

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.ordering = Ordering()
        self._sequencer = Sequencer()
        self._broker: BrokerWorker | None = None
        self._lane: Lane | None = None

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

    def in_place(self, item: Item | Chaser | Sweep | ViewChanged) -> bool:
        return True  # a few table look-ups

    def step(self, item: Item | Chaser | Sweep | ViewChanged) -> None:
        match item:
            case Chaser():
                self._perform(self.ordering.chaser(item.level))
            case ViewChanged():
                self._find_path()
            case Sweep():
                self.ordering.sweep()
                if self._lane is not None:
                    self._put(item)
            case _:
                if isinstance(item, Backlog):
                    item.take_along()  # it may wait, and then it may be part of another one
                effects = self.ordering.item(item)
                self._perform(effects)
                if self._lane is None and not isinstance(item, Backlog):
                    item.take_along()  # it waits for a leader
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
        """Let the lane go; its broker's worker, still to be released."""
        self._put(chaser)
        former, self._broker, self._lane = self._broker, None, None
        return former

    def _find_path(self) -> None:
        if self._lane is not None:
            return
        leader = self.metadata.view.leader(self.topic, self.partition)
        if leader is None:
            # Wait where we are; the next view of the cluster is put into our inbox.
            self.metadata.want_leader(self.topic, self)
            return
        self._broker = self.brokers.acquire(leader)
        self._lane = Lane(self.topic, self.partition, self._sequencer)
        self._perform(self.ordering.path_found())
