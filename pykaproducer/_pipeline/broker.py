"""BrokerWorker: batches records for one broker. Reference-counted.

There is one for each broker that leads a partition in use. In Sarama: ``brokerProducer``. It is
created with the first PartitionWorker that needs it, and ends some time after the last one has
released it. Owns: the buffers of its partitions with their pending and in-flight batches, and its
Bridge.

Guarantees: a partition's batches reach the bridge in order, with sequence numbers in that order. A
partition has at most one batch in flight without idempotence, and five with it. Everything in a
failed buffer is retried, oldest first, and only when none of its batches is in flight.
Relies on: its bridge reports each request of its own or of ``CallerSent`` once, as answered, lost,
or (``acks=0``) written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from pykaproducer._kernel import ProduceRequest, RequestSealer, Slice
from pykaproducer._machines.backlog import Backlog, Sweep
from pykaproducer._machines.batch import Batch, Chaser
from pykaproducer._machines.batcher import batcher_for, sealed_limit
from pykaproducer._machines.partition_buffer import PartitionBuffer
from pykaproducer._machines.window import Window
from pykaproducer._net.transport import Network
from pykaproducer._pipeline.attached_buffers import AttachedBuffers
from pykaproducer._pipeline.bridge import (
    SMALL,
    Bridge,
    CallerHooks,
    CallerSent,
    Down,
    GiveUp,
    Idle,
    RequestsLost,
    RequestWritten,
    ResponseReceived,
    Up,
)
from pykaproducer._pipeline.broker_events import (
    Drain,
    Enqueue,
    EnqueueNew,
    Event,
    FlushStarted,
    Shutdown,
    TransactionChanged,
    Unused,
    is_small,
    unused_time,
)
from pykaproducer._pipeline.caller_paths import CallerPaths
from pykaproducer._pipeline.connection_log import ConnectionLog
from pykaproducer._pipeline.held_puller import HeldPuller
from pykaproducer._pipeline.held_slots import HeldSlots
from pykaproducer._pipeline.last_errors import LastErrors
from pykaproducer._pipeline.metadata import Metadata
from pykaproducer._pipeline.metadata_events import ViewChanged
from pykaproducer._pipeline.producer_id import NoProducerId, ProducerIdCame
from pykaproducer._pipeline.reports import Settler
from pykaproducer._pipeline.request_builder import RequestBuilder, new_sealer
from pykaproducer._pipeline.responses import ProduceResponseHandler
from pykaproducer._pipeline.retry import RetryHandler
from pykaproducer._pipeline.sealed_ahead import SealedAhead, drop_expired
from pykaproducer._pipeline.throttle import Throttle
from pykaproducer._pipeline.watch import SilenceWatch
from pykaproducer._pipeline.worker import StageContext, Worker
from pykaproducer._util.clock import earlier
from pykaproducer._util.compression import Compressor
from pykaproducer._util.memory import NO_MEMORY
from pykaproducer.config import Config

if TYPE_CHECKING:
    from pykaproducer._pipeline.coordinator import Coordinator


class BrokerWorker(Worker[Event]):
    """Seals batches, sends them, and has the responses handled.

    *is_flushing* returns whether batches must not linger; *held*: the messages that the dispatcher
    has left in open chunks, and *take_held* has it take them; *end_unused* stops a worker that has
    long been unused.
    """

    needs_thread_to_stop = True  # it stops its bridge

    def __init__(
        self,
        context: StageContext,
        broker_id: int,
        *,
        config: Config,
        network: Network,
        metadata: Metadata,
        retry: RetryHandler,
        settler: Settler,
        compressor: Compressor | None,
        last_errors: LastErrors,
        is_flushing: Callable[[], bool],
        held: HeldSlots,
        take_held: Callable[[], None],
        callers: CallerHooks,
        coordinator: Coordinator | None,
        end_unused: Callable[[BrokerWorker], None],
    ) -> None:
        super().__init__(f"broker-{broker_id}", context)
        self.broker_id = broker_id
        self._config = config
        self._metadata = metadata
        self._last_errors = last_errors
        self._is_flushing, self._end_unused = is_flushing, end_unused
        self.bridge = Bridge(context, config, network, metadata, self.put, callers, broker_id)
        self._batch_size = min(config.batch_size, config.max_request_size)
        self._window = window = Window(
            limit=config.max_in_flight_requests_per_connection,
            most=config.max_request_size,
            timeout=config.request_timeout_ms / 1000,
        )
        self.batcher = batcher_for(config, self._batch_size)
        self._held = HeldPuller(self, held, take_held, self.batcher, window, self._opens_at)
        self._buffers = AttachedBuffers(broker_id, lambda: metadata.cluster)
        self._ahead = SealedAhead(one_at_a_time=not config.idempotent and config.acks != 0)
        self._log = ConnectionLog(broker_id, last_errors)
        self._throttle = Throttle(broker_id, self.clock, last_errors)
        self._watch = SilenceWatch(
            broker_id, metadata, window.patience, self._buffers.waiting_topics, self._give_up
        )
        self._transactional = coordinator is not None
        sealer = new_sealer(self, config, self.batcher, compressor)
        self.responses = self._new_response_handler(sealer, retry, settler, coordinator)
        self._callers = self._new_caller_paths(sealer)
        self._builder = RequestBuilder(
            self,
            config=config,
            batcher=self.batcher,
            window=window,
            sealer=sealer,
            responses=self.responses,
            metadata=metadata,
            last_errors=last_errors,
            coordinator=coordinator,
        )
        self._drain: Drain | None = None
        self._up = self._quitting = self._new_view = False
        self._requests = 0  # submitted to the bridge and not yet reported by it
        # When to ask to be stopped, unless a PartitionWorker needs this worker before that.
        self._end_at: float | None = None

    def _new_response_handler(
        self,
        sealer: RequestSealer,
        retry: RetryHandler,
        settler: Settler,
        coordinator: Coordinator | None,
    ) -> ProduceResponseHandler:
        return ProduceResponseHandler(
            config=self._config,
            clock=self.clock,
            metadata=self._metadata,
            retry=retry,
            settler=settler,
            last_errors=self._last_errors,
            metrics=self.metrics,
            buffer_changed=self._buffer_changed,
            batcher=self.batcher,
            moved=self._buffers.moved,
            sealer=sealer,
            coordinator=coordinator,
        )

    def _new_caller_paths(self, sealer: RequestSealer) -> CallerPaths:
        return CallerPaths(
            self,
            self.bridge,
            self._config,
            self._metadata,
            sealer=sealer,
            settler=self.responses.request_settler,
            window=self._window,
            sent=self._sent,
        )

    def handle(self, item: Event) -> None:
        match item:
            case Enqueue():
                self._put(item.buffer, item.item)
            case EnqueueNew():
                self._put_new(item.items)
            case ResponseReceived():
                self._on_response(item)
            case RequestWritten():
                self._log.answered()
                self._reported(item.request)
                self._record_response(item.request)
                self.responses.written(item.request)
            case RequestsLost():
                self._on_requests_lost(item)
            case CallerSent():
                # It may have been counted already: _put() takes the buffer back first.
                for batch in item.request.batches:
                    self._callers.take_back(batch.in_buffer)
            case Up():
                self._up = True
                self.batcher.sealed_limit = sealed_limit(self._config, item.version)
                self._log.connected()
            case Down():
                self._on_connection_lost(item.reason)
            case Idle():
                self._disconnected()
            case ViewChanged():
                self._buffers.view_changed(item.moved)
                self._new_view = True
                if item.give_up:
                    self._give_up(item.give_up)
                self._end_if_gone()
            case ProducerIdCame():
                self._builder.producer_id_came()
            case NoProducerId():
                self._builder.no_producer_id(item.code)
            case Shutdown():
                self._callers.take_all_back()
                self._quitting = True
                self.bridge.stop()  # after the requests that are in its inbox
            case FlushStarted():
                pass  # on_inbox_drained() seals what is due now
            case TransactionChanged():
                self._builder.producer_id_came()
            case Drain():
                self._drain = item
            case Unused():
                self._end_at = self.clock.monotonic() + unused_time(self._config)
                self._end_if_gone()

    def _end_if_gone(self) -> None:
        """End soon if this worker is unused, and its broker has been removed or replaced."""
        if self._end_at is not None and self.broker_id not in self._metadata.view.brokers:
            self._end_at = self.clock.monotonic()

    def _on_response(self, item: ResponseReceived) -> None:
        self._log.answered()
        self._reported(item.request)
        self._record_response(item.request)
        if item.request.first_of is not None:
            item.request.first_of.took = self.clock.monotonic() - item.request.sent
        if (trace := self.metrics.trace) is not None:
            trace.answered(self, self.broker_id, item.request, item.answer)
        throttle_ms = 0 if item.answer is None else item.answer.throttle_ms
        self._throttle.answered(throttle_ms / 1000)
        if throttle_ms:
            self._callers.take_all_back()
            self.wake()  # it sleeps until self._watch is due
        offers = self._callers.offers(item.request)
        self.responses.answered(item)
        if self._throttle.until is not None:
            offers = []
        self._callers.offer(offers, alone=not self._requests)

    def can_run_inline(self, item: Event) -> bool:
        # Large batches are encoded in this stage's own thread. The calling thread, which may be the
        # dispatcher's, continues with its next item and is never late for a deadline.
        return self.batcher.is_small(SMALL) and is_small(item, SMALL)

    def opens_in(self, now: float) -> float:
        """Return after how long (seconds) a small request may be sealed. May be out of date.

        Infinity: after a response or a connection, which have the dispatcher take what it holds.
        """
        if not self._up:
            return math.inf if self.batcher.waiting else 0.0
        return self._held.opens_in(now)

    @property
    def requests(self) -> int:
        """Number of requests not yet reported by the bridge. May be read from any thread."""
        return self._requests

    def held_items(self) -> Iterable[object]:
        return [*self._buffers.pending_items(), *self._ahead.batches()]

    def deadline(self) -> float | None:
        due = self._next_seal()
        check = self._watch.due
        if (
            check is not None
            and (due is None or check < due)
            and (self._throttle.until is None or self._requests)
        ):
            due = check
        if self._up and self._throttle.until is None:
            due = earlier(due, self._held.opens_later(self.clock.monotonic()))
        if self._transactional:
            due = earlier(due, self._builder.turn_at)
        return due if self._end_at is None else earlier(due, self._end_at)

    def _next_seal(self) -> float | None:
        # holds() rather than `until`: without a connection, on_inbox_drained() does not check it.
        if self._throttle.until is not None and self._throttle.holds():
            return self._throttle.until
        due = self.batcher.next_due() if self._up else None
        opens = None if due is None else self._opens_at(self.batcher.fills(self._window.most))
        if due is None or opens is None:
            return None  # only an item in the inbox can change that
        if self.shortage.until is not None and self.shortage.holds():
            return self.shortage.until
        return opens if self._is_flushing() else max(due, opens)

    def on_time(self, now: float) -> None:
        # on_inbox_drained() seals what is due.
        if self._watch.due is not None and self._watch.due <= now:
            self._watch.check(now)
        if self._end_at is not None and now >= self._end_at:
            self._end_at = None
            self._end_unused(self)

    def can_stop(self) -> bool:
        # The chasers of all buffers came before the stop item; the last response returns them.
        return self._requests == 0 or self._quitting

    def on_stop(self) -> None:
        self.responses.ended()
        if not self._quitting:
            self.bridge.stop()

    def _disconnected(self) -> None:
        """Make batches that were sealed ahead pending again, as there is no connection."""
        self._up = False
        self._callers.take_all_back()
        buffers = self._ahead.counts()
        self._ahead.withdraw(buffers)
        for buffer in buffers:
            self.batcher.reschedule(buffer)

    def _on_connection_lost(self, reason: str) -> None:
        self._throttle.forget()
        self._disconnected()
        for buffer in self._buffers.all():
            buffer.sweep()  # do not reconnect for messages that have expired
            self.batcher.reschedule(buffer)
        needed = bool(self._requests or self.batcher.waiting)
        self._log.lost(reason, needed=needed, stopping=self.stopping)
        if needed:
            self._metadata.want()

    def _on_requests_lost(self, item: RequestsLost) -> None:
        if item.unanswered:
            self._window.lost(max(request.size for request in item.unanswered))
            self._adapt()
        for request in (*item.unanswered, *item.unwritten):
            self._reported(request)
            if (trace := self.metrics.trace) is not None:
                reason = self._last_errors.brokers.get(self.broker_id)
                trace.lost(self, self.broker_id, request.batches, reason)
        self.responses.lost(item)

    # From the buffers to the bridge --------------------------------------------------------------

    def _put(self, buffer: PartitionBuffer, item: Slice | Batch | Backlog | Chaser | Sweep) -> None:
        self._callers.take_back(buffer)
        if isinstance(item, Sweep):
            self._ahead.drop_expired(buffer)
            self._buffers.answered(buffer)
            buffer.sweep()
            self.batcher.reschedule(buffer)
            return
        if isinstance(item, Chaser):
            buffer.end(item)
            self._buffer_changed(buffer)
            self._buffers.detach(buffer)
            self._builder.forget(buffer)
        elif buffer.failing:
            buffer.add(item, 0.0)
        else:
            if self.broker_id in self._last_errors.brokers:
                item.detach_payload()  # it may have to wait for a long time
            if (trace := self.metrics.trace) is not None:
                trace.note("queued", self, item, broker=self.broker_id)
            self._end_at = None
            self._buffers.attach(buffer)
            self.batcher.add(buffer, item, self.batcher.lingers_since(item, self.clock.monotonic()))
        if buffer.failing:
            self.responses.drain_for_retry(buffer)

    def _put_new(self, items: list[tuple[PartitionBuffer, Slice]]) -> None:
        """Put new slices into their buffers: :meth:`_put` without its rare cases."""
        ordinary = self.broker_id not in self._last_errors.brokers
        self._end_at = None
        if self._callers.lent:
            for buffer, _ in items:
                self._callers.take_back(buffer)
        others = self.batcher.add_new(items) if ordinary else items
        if (trace := self.metrics.trace) is not None:
            for item in items:
                if item not in others:
                    trace.note("queued", self, item[1], broker=self.broker_id)
        for buffer, part in others:
            self._put(buffer, part)

    def on_inbox_drained(self) -> None:
        """Seal the batches that are due, within the limits of the window."""
        self._seal_due()
        if self._drain is not None and not self._requests:
            drain, self._drain = self._drain, None
            drain.report(self)
        if self._held.look():
            self._seal_due()  # with the messages that were left because the request was full

    def _seal_due(self) -> None:
        """Take what is held and can be used, then seal and send requests until none is due."""
        # The window first, then what is held: see Dispatcher._hold.
        self._builder.look()
        if self._up:
            self._held.pull()
        if self._buffers.to_check:
            self._check_leaders()
        if not self._up:
            if self.batcher.waiting:
                self.bridge.connect()
            return
        if self._throttle.until is not None and self._throttle.holds():
            return
        if self._ahead.requests:
            self._send_ahead(None)
        if self.shortage.until is not None and self.shortage.holds():
            return
        if self.batcher.waiting and not self._requests and self.bridge.check_first():
            self._disconnected()
            return
        # A shortage may begin while batches are sealed.
        while self.batcher.waiting and not self._quitting and self.shortage.until is None:
            self._builder.look()
            now = self.clock.monotonic()
            opens = self._opens_at(self.batcher.fills(self._window.most))
            if opens is None or opens > now:
                return
            batches = self._builder.seal(now, flushing=self._is_flushing())
            if not batches:
                return
            self._window.sealed(now)
            self._ahead.add(batches)
            self._send_ahead(batches)

    def _opens_at(self, full: bool) -> float | None:
        """Return when the next request may be sealed, None if only after a response."""
        opens = self._window.opens_at(self._requests + len(self._ahead.requests), full=full)
        if opens is None or not self._transactional:
            return opens
        return max(opens, self._builder.not_before)

    def _send_ahead(self, just_sealed: list[Batch] | None) -> None:
        """Send sealed batches, as far as the window and the limit of each partition allow.

        The batches *just_sealed* are not checked for expiry.
        """
        while self._requests < self._window.limit:
            batches = self._ahead.next()
            if batches is None:
                return
            if batches is not just_sealed:
                for buffer in drop_expired(batches):
                    self._buffers.answered(buffer)
                    self.batcher.reschedule(buffer)
                if self._buffers.to_check:
                    self._check_leaders()
                if not batches:
                    continue
            try:
                request = self._builder.request(batches)
            except NO_MEMORY:
                self._ahead.put_back(batches)
                self.shortage.begin("a request")
                return
            self._sent(request)
            self.bridge.put(request)

    def _sent(self, request: ProduceRequest) -> None:
        """Count *request* as in flight: the bridge gets it, or a caller has written it."""
        self._ahead.sent(request.batches)
        self._requests += 1
        self._watch.sent(request)

    def _reported(self, request: ProduceRequest) -> None:
        self._requests -= 1
        self._builder.reported(request)
        self._watch.reported(request)
        self._ahead.reported(request.batches)

    def _record_response(self, request: ProduceRequest) -> None:
        now = self.clock.monotonic()
        self._watch.heard(now)
        self._window.answered(now, request.sent, request.size)
        self._adapt()

    def _adapt(self) -> None:
        # A request is at least as large as a batch, so a slow connection needs smaller batches too.
        self.batcher.batch_size = min(self._batch_size, self._window.most)

    def _give_up(self, reason: str) -> None:
        self.bridge.put(GiveUp(reason))

    # Failed buffers ------------------------------------------------------------------------------

    def _buffer_changed(self, buffer: PartitionBuffer) -> None:
        """React to a response for a batch of *buffer*, or to the failure of *buffer*."""
        if buffer.failing:
            self._callers.take_back(buffer)
            if buffer.unanswered:
                self._ahead.withdraw([buffer])
        self._buffers.answered(buffer)
        self.batcher.reschedule(buffer)

    def _check_leaders(self) -> None:
        """Release the buffers of partitions with another leader now."""
        self._callers.take_all_back()
        view = self._metadata.view
        moved = self._buffers.moved_away(view, self._ahead.counts())
        self._ahead.withdraw(set(moved))  # together: each call looks at every batch
        for buffer in moved:
            buffer.fail()
            self._buffer_changed(buffer)
            self.responses.drain_for_retry(buffer)
        # Request metadata for waiting partitions without a leader, while this broker is down.
        if self._new_view and not self._up and (topics := self._buffers.without_leader(view)):
            self._metadata.want_topics(*topics)
        self._new_view = False
