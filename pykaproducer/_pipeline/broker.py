"""BrokerWorker: batches records for one broker. Reference-counted.

There is one for each broker that leads a partition in use. In Sarama: ``brokerProducer``. It is
created with the first PartitionWorker that needs it, and ends some time after the last one has
released it. Owns: the buffers of its partitions with their pending and in-flight batches, and its
Bridge.

Guarantees: a partition's batches reach the bridge in order, with sequence numbers in that order. A
partition has at most one batch in flight without idempotence, and five with it. Everything in a
failed buffer is retried, oldest first, and only when none of its batches is in flight.
Relies on: its bridge reports each request once, as answered, lost, or (``acks=0``) written.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from pykaproducer._errors.formatting import format_partition
from pykaproducer._kernel import Slice
from pykaproducer._machines.backlog import Backlog, Sweep
from pykaproducer._machines.batch import Batch, Chaser
from pykaproducer._machines.batcher import Batcher
from pykaproducer._machines.partition_buffer import PartitionBuffer
from pykaproducer._machines.window import Window
from pykaproducer._pipeline.bridge import (
    SMALL,
    Bridge,
    Down,
    Idle,
    ProduceRequest,
    RequestsLost,
    RequestWritten,
    ResponseReceived,
    Up,
)
from pykaproducer._pipeline.last_errors import LastErrors
from pykaproducer._pipeline.metadata import Metadata, ViewChanged
from pykaproducer._pipeline.producer_id import NoProducerId, ProducerIdCame
from pykaproducer._pipeline.responses import ProduceResponseHandler
from pykaproducer._pipeline.sealer import Sealer
from pykaproducer._pipeline.throttle import Throttle
from pykaproducer._pipeline.trace import in_words, sealing
from pykaproducer._pipeline.watch import Watch
from pykaproducer._pipeline.worker import Worker
from pykaproducer._util.clock import earlier
from pykaproducer.config import Config

log = logging.getLogger("pykaproducer.broker")

#: Bytes that a request has for each batch in addition to the batch: its partition and its length.
_BATCH_OVERHEAD = 16
#: Minimum timeout of a request, within request_timeout_ms (seconds).
_MIN_REQUEST_TIMEOUT = 3.0
#: An unused worker ends after connections_max_idle_ms, but not before this (seconds).
_UNUSED_LEAST = 30.0
#: An unused worker ends after this if idle connections are never closed (seconds).
_UNUSED_WITHOUT_LIMIT = 540.0


@dataclass(frozen=True, slots=True)
class Enqueue:
    """A partition's worker adds *item* to its *buffer*."""

    buffer: PartitionBuffer
    item: Slice | Batch | Backlog | Chaser | Sweep


@dataclass(frozen=True, slots=True)
class FlushStarted:
    """A flush has begun, or buffer_memory is full: pending messages must not linger."""


@dataclass(frozen=True, slots=True)
class Shutdown:
    """The producer closes and every message has its outcome: do not wait for responses."""


@dataclass(frozen=True, slots=True)
class Unused:
    """The last PartitionWorker has released this worker."""


Event = (
    Enqueue
    | ResponseReceived
    | RequestsLost
    | RequestWritten
    | Up
    | Down
    | Idle
    | ViewChanged
    | ProducerIdCame
    | NoProducerId
    | FlushStarted
    | Unused
    | Shutdown
)


class BrokerWorker(Worker):
    """Seals batches, sends them, and has the responses handled."""

    needs_thread_to_stop = True  # it stops its bridge

    # Set by wiring, before the first item.
    broker_id: int
    config: Config
    idempotent: bool
    one_at_a_time: bool
    bridge: Bridge
    batcher: Batcher
    window: Window
    metadata: Metadata
    last_errors: LastErrors
    throttle: Throttle
    watch: Watch
    batch_size: int
    responses: ProduceResponseHandler
    sealer: Sealer
    is_flushing: Callable[[], bool]
    end_unused: Callable[[BrokerWorker], None]

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._up = self._was_up = False
        self._requests = 0  # submitted to the bridge and not yet reported by it
        self._without_id: dict[PartitionBuffer, None] = {}
        self._quitting = False
        # Without sequence numbers a partition has one batch on the wire. The next one is sealed
        # ahead, and sent only after the response has been handled: an error may affect it.
        self._ahead: deque[list[Batch]] = deque()
        # Whether they all wait for a response. Looking at a thousand batches for each item that
        # comes would cost more than everything else.
        self._ahead_waits = False
        self._on_the_wire: set[tuple[str, int]] = set()
        self._buffers: dict[tuple[str, int], PartitionBuffer] = {}
        # Partitions whose leader _check_leaders() looks up in the view.
        self._look_at: set[tuple[str, int]] = set()
        # Buffers of partitions with another leader now, which still wait for a response here.
        self._moved: set[PartitionBuffer] = set()
        self._new_view = False
        # When to ask to be stopped, unless a PartitionWorker needs this worker before that.
        self._end_at: float | None = None

    def handle(self, item: Event) -> None:
        match item:
            case Enqueue():
                self._put(item.buffer, item.item)
            case ResponseReceived():
                self._log_recovery()
                self._reported(item.request)
                self._record_response(item.request)
                if self.metrics.trace is not None:
                    self._trace_answer(item)
                self.throttle.answered(item.answer.throttle_ms / 1000)
                if item.answer.throttle_ms:
                    self.wake()  # it sleeps until self.watch is due
                self.responses.answered(item)
            case RequestWritten():
                self._log_recovery()
                self._reported(item.request)
                self._record_response(item.request)
                self.responses.written(item.request)
            case RequestsLost():
                if item.unanswered:
                    self.window.lost(max(request.size for request in item.unanswered))
                    self._adapt()
                for request in (*item.unanswered, *item.unwritten):
                    self._reported(request)
                    if (trace := self.metrics.trace) is not None:
                        reason = self.last_errors.brokers.get(self.broker_id)
                        for batch in request.batches:
                            trace.note("lost", self, batch, broker=self.broker_id, detail=reason)
                self.responses.lost(item)
            case Up():
                self._on_connected()
            case Down():
                self._on_connection_lost(item.reason)
            case Idle():
                self._disconnected()
            case ViewChanged():
                self._look_at |= item.moved
                self._new_view = True
            case ProducerIdCame():
                self._on_producer_id()
            case NoProducerId():
                for buffer in self._without_id:
                    self.responses.fail_unsealed(buffer, item.code)
                self._on_producer_id()
            case Shutdown():
                self._quitting = True
                self.bridge.stop()  # after the requests that are in its inbox
            case FlushStarted():
                pass  # on_inbox_drained() seals what is due now
            case Unused():
                idle = self.config.connections_max_idle_ms / 1000
                self._end_at = self.clock.monotonic() + (
                    max(idle, _UNUSED_LEAST) if idle > 0 else _UNUSED_WITHOUT_LIMIT
                )

    def can_run_inline(self, item: Event) -> bool:
        # Large batches are encoded in this stage's own thread. The calling thread, which may be the
        # dispatcher's, continues with its next item and is never late for a deadline.
        if not isinstance(item, Enqueue | ResponseReceived) or not self.batcher.is_small(SMALL):
            return False
        return not (isinstance(item, Enqueue) and isinstance(item.item, Slice | Backlog)) or (
            item.item.nbytes <= SMALL
        )

    @property
    def requests(self) -> int:
        """Number of requests not yet reported by the bridge. May be read from any thread."""
        return self._requests

    def held_items(self) -> Iterable[object]:
        pending = [item for buffer in list(self._buffers.values()) for item in list(buffer.pending)]
        return [*pending, *(batch for batches in list(self._ahead) for batch in list(batches))]

    def deadline(self) -> float | None:
        due = self._next_seal()
        if self.watch.due is not None and (self.throttle.until is None or self._requests):
            due = earlier(due, self.watch.due)
        return due if self._end_at is None else earlier(due, self._end_at)

    def _next_seal(self) -> float | None:
        # holds() rather than `until`: without a connection, on_inbox_drained() does not check it.
        if self.throttle.holds():
            return self.throttle.until
        due = self.batcher.next_due() if self._up else None
        opens = None if due is None else self._opens_at()
        if due is None or opens is None:
            return None  # only an item in the inbox can change that
        if self.shortage.holds():
            return self.shortage.until
        return opens if self.is_flushing() else max(due, opens)

    def on_time(self, now: float) -> None:
        # on_inbox_drained() seals what is due.
        if self.watch.due is not None and self.watch.due <= now:
            self.watch.check(now)
        if self._end_at is not None and now >= self._end_at:
            self._end_at = None
            self.end_unused(self)

    def can_stop(self) -> bool:
        # The chasers of all buffers came before the stop item; the last response returns them.
        return self._requests == 0 or self._quitting

    def on_stop(self) -> None:
        if not self._quitting:
            self.bridge.stop()

    def _on_connected(self) -> None:
        self._up = True
        # INFO for the first connection only. After an error, the recovery is logged when the broker
        # answers a request.
        again = self._was_up or self.broker_id in self.last_errors.brokers
        level = logging.DEBUG if again else logging.INFO
        log.log(level, "broker %d: connected", self.broker_id)
        self._was_up = True

    def _log_recovery(self) -> None:
        # A successful connection attempt alone does not show that the broker works again.
        if self.last_errors.brokers.pop(self.broker_id, None) is not None:
            log.info("broker %d: works again", self.broker_id)

    def _disconnected(self) -> None:
        """Make batches that were sealed ahead pending again, as there is no connection."""
        self._up = False
        for batches in list(self._ahead):
            for batch in list(batches):
                self._withdraw_sealed(batch.in_buffer)
                self.batcher.reschedule(batch.in_buffer)

    def _on_connection_lost(self, reason: str) -> None:
        self.throttle.forget()
        self._disconnected()
        for buffer in list(self._buffers.values()):
            buffer.sweep()  # do not reconnect for messages that have expired
            self.batcher.reschedule(buffer)
        # Log once per change of reason, and only at DEBUG if the connection was not needed.
        needed = self._requests or self.batcher.waiting
        if self.last_errors.brokers.get(self.broker_id) != reason and not self.stopping:
            log.log(
                logging.WARNING if needed else logging.DEBUG,
                "broker %d: %s; trying again",
                self.broker_id,
                reason,
            )
        self.last_errors.brokers[self.broker_id] = reason
        if needed:
            self.metadata.want()

    # From the buffers to the bridge --------------------------------------------------------------

    def _put(self, buffer: PartitionBuffer, item: Slice | Batch | Backlog | Chaser | Sweep) -> None:
        if isinstance(item, Sweep):
            for batches in self._ahead:
                self._drop_expired(batches, only=buffer)
            self._tidy_ahead()
            buffer.sweep()
            self.batcher.reschedule(buffer)
            return
        if isinstance(item, Chaser):
            buffer.end(item)
            self.buffer_changed(buffer)
            self._buffers.pop((buffer.topic, buffer.partition), None)
            self._without_id.pop(buffer, None)
            self._moved.discard(buffer)
        elif buffer.failing:
            buffer.add(item, 0.0)
        else:
            if self.broker_id in self.last_errors.brokers:
                item.detach_payload()  # it may have to wait for a long time
            if (trace := self.metrics.trace) is not None:
                trace.note("queued", self, item, broker=self.broker_id)
            self._end_at = None
            here = buffer.topic, buffer.partition
            if self._buffers.get(here) is not buffer:
                # No later view reports a change of leader in this case:
                # 1. the buffer is created for the leader in one view; 2. the next view has another
                # leader; 3. the buffer's first item arrives here.
                self._buffers[here] = buffer
                self._look_at.add(here)
            self.batcher.add(buffer, item, self.clock.monotonic())
        self.responses.drain_for_retry(buffer)

    def on_inbox_drained(self) -> None:
        """Seal the batches that are due, within the limits of the window."""
        if self._look_at or self._new_view:
            self._check_leaders()
        if not self._up:
            if self.batcher.waiting:
                self.bridge.connect()
            return
        if self.throttle.holds():
            return
        if not self._ahead_waits:
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
        """Return when the next request may be sealed, None if only after a response."""
        under_way = self._requests + len(self._ahead)
        return self.window.opens_at(under_way, full=self.batcher.fills(self.window.most))

    def _send_ahead(self) -> None:
        """Send sealed batches, as far as the window and the limit of each partition allow."""
        waiting: set[tuple[str, int]] = set()  # partitions of the batches that stay here
        for batches in list(self._ahead):
            if self._requests >= self.window.limit:
                break
            if self.one_at_a_time:
                partitions = _partitions_of(batches)
                if not partitions.isdisjoint(self._on_the_wire) or not partitions.isdisjoint(
                    waiting
                ):
                    waiting |= partitions
                    continue
            self._ahead.remove(batches)
            self._drop_expired(batches)
            if not batches:
                continue
            if self.one_at_a_time:
                self._on_the_wire |= _partitions_of(batches)
            self._requests += 1
            request = self._request(batches, self.clock.monotonic())
            self.watch.sent(request)
            self.bridge.put(request)
        self._ahead_waits = bool(self._ahead)

    def _drop_expired(self, batches: list[Batch], only: PartitionBuffer | None = None) -> None:
        """Remove expired batches from *batches*, which are sealed and not sent.

        *only*: those of one buffer.
        """
        for batch in list(batches):
            buffer = batch.in_buffer
            if only in (None, buffer) and buffer.drop_ahead(batch):
                batches.remove(batch)
                self.batcher.reschedule(buffer)

    def _reported(self, request: ProduceRequest) -> None:
        self._ahead_waits = False
        self._requests -= 1
        self.watch.reported(request)
        self._on_the_wire -= _partitions_of(request.batches)

    def _withdraw_sealed(self, buffer: PartitionBuffer) -> None:
        """Make batches of *buffer* that were sealed but not sent pending again, in order."""
        for batches in reversed(self._ahead):
            for batch in [batch for batch in batches if batch.buffer is buffer]:
                batches.remove(batch)
                buffer.put_back(batch)
        self._tidy_ahead()

    def _tidy_ahead(self) -> None:
        self._ahead = deque(batches for batches in self._ahead if batches)
        self._ahead_waits = False  # perhaps for a partition that is no longer in it

    def _record_response(self, request: ProduceRequest) -> None:
        now = self.clock.monotonic()
        self.watch.heard(now)
        self.window.answered(now, request.sent, request.size)
        self._adapt()

    def _adapt(self) -> None:
        # A request is at least as large as a batch, so a slow connection needs smaller batches too.
        self.batcher.batch_size = min(self.batch_size, self.window.most)

    def _seal(self, buffers: Iterable[PartitionBuffer], now: float) -> list[Batch]:
        batches: list[Batch] = []
        room = self.window.most
        for buffer in buffers:
            if isinstance(buffer.pending[0], Batch) and buffer.drop_unneeded():
                self.batcher.reschedule(buffer)
                continue  # its numbers may be stale now, and it may have to wait
            if self.idempotent and not self._has_producer_id(buffer):
                continue
            if batches and not self.sealer.compresses and self.batcher.size_of_next(buffer) > room:
                self.batcher.stays_first(buffer)
                break
            try:
                taken = self.batcher.take(buffer)
                batch = self._sealed_before(buffer, taken) if isinstance(taken, Batch) else None
                if isinstance(taken, list):
                    batch = self.sealer.seal(buffer, taken)
            except MemoryError as error:
                self._no_memory(buffer, error)
                break
            if batch is not None:
                buffer.sent(batch)
                if batches and len(batch.payload) > room:
                    self.batcher.put_back(batch)
                    break
                self.metrics.batch_sealed(batch, now)
                if (trace := self.metrics.trace) is not None and batch is not taken:
                    trace.note("sealed", self, batch, **sealing(batch))
                batches.append(batch)
                room -= len(batch.payload) + _BATCH_OVERHEAD
            self.batcher.reschedule(buffer)
        return batches

    def _no_memory(self, buffer: PartitionBuffer, error: MemoryError) -> None:
        """Pause sealing for all buffers, as there is no memory for a batch of *buffer*."""
        reason = str(error) or "no memory for a batch"
        self.last_errors.partitions[buffer.topic, buffer.partition] = reason
        self.shortage.begin("a batch")
        self.batcher.reschedule(buffer)

    def _sealed_before(self, buffer: PartitionBuffer, batch: Batch) -> Batch | None:
        """Return *batch* if it can be sent unchanged.

        Otherwise its sequence numbers are of an earlier epoch: make its slices pending again, or
        fail it if that is unsafe, and return None.
        """
        left = buffer.sequencer.has_left(batch.producer_id, batch.producer_epoch)
        if not (batch.sequenced and left):
            return batch
        slices = buffer.unseal_stale_epoch(batch)
        if slices is None:
            self.responses.fail_ambiguous(batch)
        else:
            buffer.requeue_front(slices)
        return None

    def _has_producer_id(self, buffer: PartitionBuffer) -> bool:
        if isinstance(buffer.pending[0], Batch):
            return True  # it was sealed with a producer id
        if buffer.sequencer.renew():
            log.info(
                "%s: the producer epoch was bumped",
                format_partition(buffer.topic, buffer.partition),
            )
        if buffer.sequencer.adopt(self.metadata.producer_id):
            return True
        spent = buffer.sequencer.spent_id
        if not self._without_id or spent is not None:
            self.metadata.want_producer_id(self, instead_of=spent)
        self._without_id[buffer] = None
        buffer.waits_for_id = True
        self.batcher.reschedule(buffer)
        return False

    def _on_producer_id(self) -> None:
        # A buffer that cannot use this id requests another one.
        buffers, self._without_id = self._without_id, {}
        for buffer in buffers:
            buffer.waits_for_id = False
            self.batcher.reschedule(buffer)

    def _request(self, batches: list[Batch], now: float) -> ProduceRequest:
        # Do not wait long for a request whose rows are about to expire: a silent broker would block
        # its partitions. But after an outage the head of a backlog is always about to expire. If a
        # request timed out with its oldest row (as in librdkafka and Kafka):
        #
        # 1. the brokers are back, the oldest row has 1 ms left, and the request is sent;
        # 2. the row expires, the connection is considered lost, and everything is backed off;
        # 3. now the next rows have 1 ms left. The partition never catches up, and neither do the
        #    broker's other partitions.
        #
        # So each request gets a few seconds, or more on a slow connection. This does not delay the
        # expiry of rows: the dispatcher settles them in time.
        deadline = now + self.config.request_timeout_ms / 1000
        # The cheap check first: usually some batch has more time than that.
        if not any(batch.has_until(deadline) for batch in batches):
            alive = [d for d in (batch.next_deadline() for batch in batches) if d is not None]
            least = now + self.window.patience(_MIN_REQUEST_TIMEOUT)
            deadline = min(deadline, max([least, *alive]))
        timeout_ms = max(1, int((deadline - now) * 1000))
        size = sum([len(batch.payload) for batch in batches])
        return ProduceRequest(batches, deadline, timeout_ms, now, size)

    def _trace_answer(self, item: ResponseReceived) -> None:
        trace = self.metrics.trace
        answers = {(a.topic, a.partition): a for a in item.answer.partitions}
        for batch in item.request.batches:
            if trace is not None:
                detail = in_words(answers[batch.topic, batch.partition])
                trace.note("answered", self, batch, broker=self.broker_id, detail=detail)
                if item.answer.throttle_ms:
                    wait = item.answer.throttle_ms / 1000
                    trace.note("throttled", self, batch, broker=self.broker_id, wait_s=wait)

    # Failed buffers ------------------------------------------------------------------------------

    def buffer_changed(self, buffer: PartitionBuffer) -> None:
        """React to a response for a batch of *buffer*, or to the failure of *buffer*."""
        if buffer.failing:
            self._withdraw_sealed(buffer)
        if buffer in self._moved and not buffer.unanswered:
            self._moved.discard(buffer)
            self._look_at.add((buffer.topic, buffer.partition))
        self.batcher.reschedule(buffer)

    def _fail_buffer(self, buffer: PartitionBuffer) -> None:
        buffer.fail()
        self.buffer_changed(buffer)

    def _check_leaders(self) -> None:
        """Release the buffers of partitions with another leader now: one check for many views."""
        looked_at, self._look_at = self._look_at, set()
        for topic, partition in looked_at:
            buffer = self._buffers.get((topic, partition))
            leader = self.metadata.view.leader(topic, partition)
            if buffer is None or leader is None or leader == self.broker_id:
                continue
            if buffer.unanswered:
                self._moved.add(buffer)
            else:
                self._fail_buffer(buffer)
                self.responses.drain_for_retry(buffer)
        if self._new_view and not self._up:
            self._look_for_leaders()
        self._new_view = False

    def _look_for_leaders(self) -> None:
        """Request metadata for waiting partitions without a leader, while this broker is down."""
        topics = {
            buffer.topic
            for buffer in self._buffers.values()
            if buffer.pending and self.metadata.view.leader(buffer.topic, buffer.partition) is None
        }
        if topics:
            self.metadata.want_topics(*topics)


def _partitions_of(batches: list[Batch]) -> set[tuple[str, int]]:
    return {(batch.topic, batch.partition) for batch in batches}
