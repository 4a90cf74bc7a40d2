"""BrokerWorker: one per broker that leads a partition in use, reference-counted. Batches.

In Sarama: ``brokerProducer``. Appears with the first PartitionWorker that needs it, ends when it
has been unused for some time since the last has let go. Owns: the lanes of its partitions, what
waits in them and what is unanswered, and its Bridge.

Guarantees: a partition's batches reach the bridge in order, with sequence numbers in that order;
a partition has at most one unanswered batch without idempotence, five with; a lane that fails
hands back everything, oldest first, and only when none of its batches is unanswered.
Relies on: its bridge reports each request once: answered, lost, or (``acks=0``) written.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from pykaproducer._clock import earlier
from pykaproducer._kernel import Slice
from pykaproducer._machines.backlog import Backlog, Sweep
from pykaproducer._machines.batching import Batcher
from pykaproducer._machines.lane import Batch, Chaser, Lane
from pykaproducer._machines.window import Window
from pykaproducer._pipeline.bridge import (
    SMALL,
    Answered,
    Bridge,
    Down,
    Idle,
    Lost,
    ProduceRequest,
    Up,
    Written,
)
from pykaproducer._pipeline.judge import Judge
from pykaproducer._pipeline.metadata import Metadata, ViewChanged
from pykaproducer._pipeline.producer_id import NoProducerId, ProducerIdCame
from pykaproducer._pipeline.sealer import Sealer
from pykaproducer._pipeline.throttle import Throttle
from pykaproducer._pipeline.trace import in_words, sealing
from pykaproducer._pipeline.trouble import Trouble
from pykaproducer._pipeline.watch import Watch
from pykaproducer._pipeline.worker import Worker
from pykaproducer._texts import place
from pykaproducer.config import Config

log = logging.getLogger("pykaproducer.broker")

#: Bytes of a request for each batch in addition to the batch: its partition and its length.
_BESIDE = 16
#: A request gets at least so long to be answered, within request_timeout_ms (seconds).
_LEAST = 3.0
#: An unused worker ends after connections_max_idle_ms, but not before this (seconds).
_LINGER = 30.0
#: The same if idle connections are never closed.
_LINGER_MOST = 540.0


@dataclass(frozen=True, slots=True)
class Put:
    """A partition's worker puts *item* into its *lane*."""

    lane: Lane
    item: Slice | Batch | Backlog | Chaser | Sweep


@dataclass(frozen=True, slots=True)
class Hurry:
    """A flush has begun, or buffer_memory is full: what is here must not linger."""


@dataclass(frozen=True, slots=True)
class Quit:
    """The producer closes, and everything has its outcome: do not wait for answers."""


@dataclass(frozen=True, slots=True)
class Unused:
    """The last PartitionWorker has let it go."""


Event = (
    Put
    | Answered
    | Lost
    | Written
    | Up
    | Down
    | Idle
    | ViewChanged
    | ProducerIdCame
    | NoProducerId
    | Hurry
    | Unused
    | Quit
)


class BrokerWorker(Worker):
    """Seals batches, and decides what an answer means for them."""

    ends_itself = True  # it ends its bridge

    # Set by wiring, before the first item.
    broker_id: int
    config: Config
    idempotent: bool
    one_at_a_time: bool
    bridge: Bridge
    batcher: Batcher
    window: Window
    metadata: Metadata
    trouble: Trouble
    throttle: Throttle
    watch: Watch
    batch_size: int
    judge: Judge
    sealer: Sealer
    is_flushing: Callable[[], bool]
    end_unused: Callable[[BrokerWorker], None]

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._up = self._was_up = False
        self._requests = 0  # submitted to the bridge and not yet reported by it
        self._without_id: dict[Lane, None] = {}
        self._quitting = False
        # Without sequence numbers a partition has one batch on the wire; the next is sealed ahead
        # and sent when the answer is there: what an error answer means for it is decided first.
        self._ahead: deque[list[Batch]] = deque()
        self._on_the_wire: set[tuple[str, int]] = set()
        self._lanes: dict[tuple[str, int], Lane] = {}
        # Partitions whose leader turn() looks up in the view.
        self._look_at: set[tuple[str, int]] = set()
        # Lanes that belong to another broker now, and still wait for an answer here.
        self._moved: set[Lane] = set()
        self._new_view = False
        # When to ask to be ended, unless a PartitionWorker needs it before.
        self._end_at: float | None = None

    def step(self, item: Event) -> None:
        match item:
            case Put():
                self._put(item.lane, item.item)
            case Answered():
                self._heard()
                self._reported(item.request)
                self._worked(item.request)
                if self.meter.trace is not None:
                    self._trace_answer(item)
                self.throttle.answered(item.answer.throttle_ms / 1000)
                if item.answer.throttle_ms:
                    self.wake()  # it sleeps until self.watch is due
                self.judge.answered(item)
            case Written():
                self._heard()
                self._reported(item.request)
                self._worked(item.request)
                self.judge.written(item.request)
            case Lost():
                if item.unanswered:
                    self.window.lost(max(request.size for request in item.unanswered))
                    self._adapt()
                for request in (*item.unanswered, *item.unwritten):
                    self._reported(request)
                    if (trace := self.meter.trace) is not None:
                        why = self.trouble.brokers.get(self.broker_id)
                        for batch in request.batches:
                            trace.note("lost", self, batch, broker=self.broker_id, detail=why)
                self.judge.lost(item)
            case Up():
                self._came_up()
            case Down():
                self._went_down(item.reason)
            case Idle():
                self._disconnected()
            case ViewChanged():
                self._look_at |= item.moved
                self._new_view = True
            case ProducerIdCame():
                self._id_came()
            case NoProducerId():
                for lane in self._without_id:
                    self.judge.refuse_pending(lane, item.code)
                self._id_came()
            case Quit():
                self._quitting = True
                self.bridge.stop()  # behind the requests that are in its inbox
            case Hurry():
                pass  # turn() looks at what can be sealed now
            case Unused():
                idle = self.config.connections_max_idle_ms / 1000
                self._end_at = self.clock.monotonic() + (
                    max(idle, _LINGER) if idle > 0 else _LINGER_MOST
                )

    def in_place(self, item: Event) -> bool:
        # What is large is encoded here: its bringer goes on with the next one meanwhile, and the
        # dispatcher, which may be that bringer, is never late for a deadline.
        if not isinstance(item, Put | Answered) or not self.batcher.holds_little(SMALL):
            return False
        return not (isinstance(item, Put) and isinstance(item.item, Slice | Backlog)) or (
            item.item.nbytes <= SMALL
        )

    @property
    def requests(self) -> int:
        """Requests that the bridge has not reported yet. For a glance from any thread."""
        return self._requests

    def held(self) -> Iterable[object]:
        pending = [item for lane in list(self._lanes.values()) for item in list(lane.pending)]
        return [*pending, *(batch for batches in list(self._ahead) for batch in list(batches))]

    def deadline(self) -> float | None:
        due = self._next_seal()
        if self.throttle.until is None or self._requests:
            due = earlier(due, self.watch.due)
        return earlier(due, self._end_at)

    def _next_seal(self) -> float | None:
        if self.throttle.holds():  # not `until`: without a connection turn() does not look at it
            return self.throttle.until
        opens = self._opens_at() if self._up else None
        if opens is None:
            return None  # whatever changes that is an item in the inbox
        due = self.batcher.next_due()
        if due is None:
            return None
        if self.shortage.holds():
            return self.shortage.until
        return opens if self.is_flushing() else max(due, opens)

    def on_time(self, now: float) -> None:
        # turn() seals what is due.
        if self.watch.due is not None and self.watch.due <= now:
            self.watch.look(now)
        if self._end_at is not None and now >= self._end_at:
            self._end_at = None
            self.end_unused(self)

    def may_end(self) -> bool:
        # The chasers of all lanes came before the stop item; they go back with the last answer.
        return self._requests == 0 or self._quitting

    def at_end(self) -> None:
        if not self._quitting:
            self.bridge.stop()

    def _came_up(self) -> None:
        self._up = True
        # The first time. Behind trouble it has still to work; else it is nobody's business.
        again = self._was_up or self.broker_id in self.trouble.brokers
        level = logging.DEBUG if again else logging.INFO
        log.log(level, "broker %d: connected", self.broker_id)
        self._was_up = True

    def _heard(self) -> None:
        # A handshake is not enough to say that it works again.
        if self.trouble.brokers.pop(self.broker_id, None) is not None:
            log.info("broker %d: works again", self.broker_id)

    def _disconnected(self) -> None:
        """Make what was sealed ahead pending again: there is no connection."""
        self._up = False
        for batches in list(self._ahead):
            for batch in list(batches):
                self._recall(batch.in_lane)
                self.batcher.look(batch.in_lane)

    def _went_down(self, reason: str) -> None:
        self.throttle.forget()
        self._disconnected()
        for lane in list(self._lanes.values()):
            lane.sweep()  # no connection is made for messages that have expired
            self.batcher.look(lane)
        # Once per change. A connection that nobody needs may be closed by the broker: no news.
        needed = self._requests or self.batcher.waiting
        if self.trouble.brokers.get(self.broker_id) != reason and not self.stopping:
            log.log(
                logging.WARNING if needed else logging.DEBUG,
                "broker %d: %s; trying again",
                self.broker_id,
                reason,
            )
        self.trouble.brokers[self.broker_id] = reason
        if needed:
            self.metadata.want()

    # Down: from the lanes to the bridge ---------------------------------------------------------

    def _put(self, lane: Lane, item: Slice | Batch | Backlog | Chaser | Sweep) -> None:
        if isinstance(item, Sweep):
            lane.sweep()
            self.batcher.look(lane)
            return
        if isinstance(item, Chaser):
            lane.end(item)
            self.lane_changed(lane)
            self._lanes.pop((lane.topic, lane.partition), None)
            self._without_id.pop(lane, None)
            self._moved.discard(lane)
        elif lane.failing:
            lane.add(item, 0.0)
        else:
            if self.broker_id in self.trouble.brokers:
                item.take_along()  # it may wait long
            if (trace := self.meter.trace) is not None:
                trace.note("queued", self, item, broker=self.broker_id)
            self._end_at = None
            here = lane.topic, lane.partition
            if self._lanes.get(here) is not lane:
                # 1. The lane is made from one view; 2. the next view has another leader; 3. the
                # lane's first item comes here: no later view reports that change.
                self._lanes[here] = lane
                self._look_at.add(here)
            self.batcher.add(lane, item, self.clock.monotonic())
        self.judge.hand_back(lane)

    def turn(self) -> None:
        """Seal what is due, as long as the bridge has room for it."""
        if self._look_at or self._new_view:
            self._check_leaders()
        if not self._up:
            if self.batcher.waiting:
                self.bridge.connect()
            return
        if self.throttle.holds():
            return
        if self._ahead:
            self._drop_ahead()
        self._send_ahead()
        if self.shortage.holds():
            return
        while self._may_seal():
            opens, now = self._opens_at(), self.clock.monotonic()
            if opens is None or opens > now:
                return
            batches = self._seal(self.batcher.due(now, flushing=self.is_flushing()), now)
            if not batches:
                return
            self.window.sealed(now)
            self._ahead.append(batches)
            self._send_ahead()

    def _may_seal(self) -> bool:
        return self.batcher.waiting and not self._quitting and self.shortage.until is None

    def _opens_at(self) -> float | None:
        """Return when the next request may be sealed; None: not before an answer."""
        under_way = self._requests + len(self._ahead)
        return self.window.opens_at(under_way, full=self.batcher.fills(self.window.most))

    def _send_ahead(self) -> None:
        """Send what was sealed, as far as the window and the limit of each partition allow."""
        waiting: set[tuple[str, int]] = set()  # partitions of those that stay here
        for batches in list(self._ahead):
            if self._requests >= self.window.limit:
                return
            if self.one_at_a_time:
                spots = _spots(batches)
                if not spots.isdisjoint(self._on_the_wire) or not spots.isdisjoint(waiting):
                    waiting |= spots
                    continue
                self._on_the_wire |= spots
            self._ahead.remove(batches)
            self._requests += 1
            request = self._request(batches, self.clock.monotonic())
            self.watch.sent(request)
            self.bridge.put(request)

    def _drop_ahead(self) -> None:
        """Drop batches that have expired while they waited here, sealed."""
        for batches in self._ahead:
            for batch in [batch for batch in batches if batch.in_lane.drop_ahead(batch)]:
                batches.remove(batch)
                self.batcher.look(batch.in_lane)
        self._ahead = deque(batches for batches in self._ahead if batches)

    def _reported(self, request: ProduceRequest) -> None:
        self._requests -= 1
        self.watch.reported(request)
        self._on_the_wire -= _spots(request.batches)

    def _recall(self, lane: Lane) -> None:
        """Make what was sealed ahead for *lane*, and not sent, pending again, in its order."""
        for batches in reversed(self._ahead):
            for batch in [batch for batch in batches if batch.lane is lane]:
                batches.remove(batch)
                lane.put_back(batch)
        self._ahead = deque(batches for batches in self._ahead if batches)

    def _worked(self, request: ProduceRequest) -> None:
        now = self.clock.monotonic()
        self.watch.heard(now)
        self.window.answered(now, request.sent, request.size)
        self._adapt()

    def _adapt(self) -> None:
        # A request of one batch is as large as that: on a slow line batches are smaller as well.
        self.batcher.batch_size = min(self.batch_size, self.window.most)

    def _seal(self, lanes: Iterable[Lane], now: float) -> list[Batch]:
        batches: list[Batch] = []
        room = self.window.most
        for lane in lanes:
            if isinstance(lane.pending[0], Batch) and lane.drop_needless():
                self.batcher.look(lane)
                continue  # its numbers are stale now: perhaps it must wait
            if self.idempotent and not self._has_producer_id(lane):
                continue
            if batches and not self.sealer.compresses and self.batcher.size_of_next(lane) > room:
                self.batcher.stays_first(lane)
                break
            try:
                taken = self.batcher.take(lane)
                batch = self._sealed_before(lane, taken) if isinstance(taken, Batch) else None
                if isinstance(taken, list):
                    batch = self.sealer.seal(lane, taken)
            except MemoryError as error:
                self._no_memory(lane, error)
                break
            if batch is not None:
                lane.sent(batch)
                if batches and len(batch.payload) > room:
                    self.batcher.put_back(batch)
                    break
                self.meter.batch_sealed(batch, now)
                if (trace := self.meter.trace) is not None and batch is not taken:
                    trace.note("sealed", self, batch, **sealing(batch))
                batches.append(batch)
                room -= len(batch.payload) + _BESIDE
            self.batcher.look(lane)
        return batches

    def _no_memory(self, lane: Lane, error: MemoryError) -> None:
        """Pause sealing, for all lanes: there is no memory for a batch of *lane*."""
        why = str(error) or "no memory for a batch"
        self.trouble.partitions[lane.topic, lane.partition] = why
        self.shortage.begin("a batch")
        self.batcher.look(lane)

    def _sealed_before(self, lane: Lane, batch: Batch) -> Batch | None:
        """*batch*, if it can go as it is; else its slices are pending again, or it has failed."""
        left = lane.sequencer.has_left(batch.producer_id, batch.producer_epoch)
        if not (batch.sequenced and left):
            return batch
        slices = lane.outdated(batch)
        if slices is None:
            self.judge.fail_doubtful(batch)
        else:
            lane.put_first(slices)
        return None

    def _has_producer_id(self, lane: Lane) -> bool:
        if isinstance(lane.pending[0], Batch):
            return True  # sealed with its own
        if lane.sequencer.renew():
            log.info("%s: takes a new producer epoch", place(lane.topic, lane.partition))
        if lane.sequencer.adopt(self.metadata.producer_id):
            return True
        spent = lane.sequencer.spent_id
        if not self._without_id or spent is not None:
            self.metadata.want_producer_id(self, instead_of=spent)
        self._without_id[lane] = None
        lane.waits_for_id = True
        self.batcher.look(lane)
        return False

    def _id_came(self) -> None:
        # One that will not do for a lane is asked for again.
        lanes, self._without_id = self._without_id, {}
        for lane in lanes:
            lane.waits_for_id = False
            self.batcher.look(lane)

    def _request(self, batches: list[Batch], now: float) -> ProduceRequest:
        # A request whose rows have no time left is not worth waiting for: a silent broker would
        # block its partitions. But after an outage the head of a backlog is always about to
        # expire. If a request lived as long as its oldest row (librdkafka's rule, Kafka's too):
        #
        # 1. the brokers are back; the oldest row has 1 ms left; the request goes out;
        # 2. the row expires, the connection counts as lost, everything waits out its backoff;
        # 3. now the next rows have 1 ms left. It never catches up, and other partitions of the
        #    broker with it.
        #
        # So each gets a few seconds, or more where the line is slow. Rows expire in time all the
        # same: the dispatcher settles them.
        deadline = now + self.config.request_timeout_ms / 1000
        # Mostly one look at a chunk says that some batch has more time than that.
        if not any(batch.has_until(deadline) for batch in batches):
            alive = [d for d in (batch.next_deadline() for batch in batches) if d is not None]
            least = now + self.window.patience(_LEAST)
            deadline = min(deadline, max([least, *alive]))
        timeout_ms = max(1, int((deadline - now) * 1000))
        return ProduceRequest(batches, deadline, timeout_ms, now)

    def _trace_answer(self, item: Answered) -> None:
        trace = self.meter.trace
        answers = {(a.topic, a.partition): a for a in item.answer.partitions}
        for batch in item.request.batches:
            if trace is not None:
                detail = in_words(answers[batch.topic, batch.partition])
                trace.note("answered", self, batch, broker=self.broker_id, detail=detail)
                if item.answer.throttle_ms:
                    wait = item.answer.throttle_ms / 1000
                    trace.note("throttled", self, batch, broker=self.broker_id, wait_s=wait)

    # Lanes that have failed --------------------------------------------------------------------

    def lane_changed(self, lane: Lane) -> None:
        """Something of *lane* has been answered, or it has failed."""
        if lane.failing:
            self._recall(lane)
        if lane in self._moved and not lane.unanswered:
            self._moved.discard(lane)
            self._look_at.add((lane.topic, lane.partition))
        self.batcher.look(lane)

    def _fail_lane(self, lane: Lane) -> None:
        lane.fail()
        self.lane_changed(lane)

    def _check_leaders(self) -> None:
        """Release the lanes that belong to another broker now: one look for many views."""
        looked_at, self._look_at = self._look_at, set()
        for topic, partition in looked_at:
            lane = self._lanes.get((topic, partition))
            leader = self.metadata.view.leader(topic, partition)
            if lane is None or leader is None or leader == self.broker_id:
                continue
            if lane.unanswered:
                self._moved.add(lane)
            else:
                self._fail_lane(lane)
                self.judge.hand_back(lane)
        if self._new_view and not self._up:
            self._look_for_leaders()
        self._new_view = False

    def _look_for_leaders(self) -> None:
        """Ask for the leaders of waiting partitions that have none since this broker went down."""
        topics = {
            lane.topic
            for lane in self._lanes.values()
            if lane.pending and self.metadata.view.leader(lane.topic, lane.partition) is None
        }
        if topics:
            self.metadata.want_topics(*topics)


def _spots(batches: list[Batch]) -> set[tuple[str, int]]:
    return {(batch.topic, batch.partition) for batch in batches}
