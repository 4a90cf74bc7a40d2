"""Handling of Produce responses and of lost connections.

Each BrokerWorker has one handler, which keeps no state and is called by that worker only.
``_machines/verdicts.py`` classifies error codes, and ``_machines/partition_buffer.py`` decides
which items of a failed buffer are retried. This module applies both.

Guarantees: every batch of a request is delivered, failed or retried, exactly once. Buffers are
drained only when all batches of the request have been handled, so batches of one request keep their
order too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import pykaproducer._kernel as _kernel
from pykaproducer._errors.codes import ErrorCode
from pykaproducer._errors.formatting import format_error_code, format_partition
from pykaproducer._errors.hints import ADVICE_IN_TRANSACTIONS, advice_for_batch
from pykaproducer._kernel import (
    Batcher,
    CompressionError,
    ProduceRequest,
    RequestSealer,
    RequestSettler,
)
from pykaproducer._machines.batch import Batch, Chaser
from pykaproducer._machines.cluster import LeaderHint, backoff
from pykaproducer._machines.coordination import soon_delay
from pykaproducer._machines.partition_buffer import PartitionBuffer
from pykaproducer._machines.verdicts import Action, Verdict, classify
from pykaproducer._pipeline.bridge import RequestsLost, ResponseReceived
from pykaproducer._pipeline.last_errors import LastErrors
from pykaproducer._pipeline.metadata import Metadata
from pykaproducer._pipeline.metrics import ProducerMetrics
from pykaproducer._pipeline.reports import Failure, MakeError, Settler
from pykaproducer._pipeline.retry import RetryHandler, RetryItems
from pykaproducer._util.clock import Clock
from pykaproducer._util.memory import NO_MEMORY
from pykaproducer._util.randomness import system_random
from pykaproducer._wire.produce import ProduceAnswer, ProducedPartition, results_of
from pykaproducer.config import Config
from pykaproducer.errors import DeliveryError, Status, delivery_error_for

if TYPE_CHECKING:
    from pykaproducer._pipeline.coordinator import Coordinator

#: From this retry level on, a temporary error also triggers a metadata refresh. A broker that is
#: cut off from the controllers may still act as the leader and never report that it no longer is.
_REFRESH_FROM_LEVEL = 2
#: The exceptions of a batch that cannot be sealed. (A literal in ``except`` would need memory.)
_NOT_SEALED = (CompressionError, *NO_MEMORY)


class ProduceResponseHandler:
    """Delivers, fails or retries the batches that a BrokerWorker has sent."""

    def __init__(
        self,
        *,
        config: Config,
        clock: Clock,
        metadata: Metadata,
        retry: RetryHandler,
        settler: Settler,
        last_errors: LastErrors,
        metrics: ProducerMetrics,
        buffer_changed: Callable[[PartitionBuffer], None],
        batcher: Batcher,
        moved: set[PartitionBuffer],
        sealer: RequestSealer,
        coordinator: Coordinator | None,
    ) -> None:
        # Settles what is confirmed, except for the batches of failed and of *moved* buffers.
        self.request_settler = RequestSettler(
            batcher, moved, last_errors.partitions, last_errors.rejected_topics, metrics
        )
        self._metrics = metrics
        self._config = config
        self._clock = clock
        self._metadata = metadata
        self._retry = retry
        self._settler = settler
        self._last_errors = last_errors
        self._buffer_changed = buffer_changed
        self._sealer = sealer
        self._coordinator = coordinator
        self._tally = None if coordinator is None else coordinator.tallies.of(sealer)

    def ended(self) -> None:
        """Record that the worker has ended."""
        if self._tally is not None:
            self._tally.has_ended = True

    # Requests ------------------------------------------------------------------------------------

    def answered(self, item: ResponseReceived) -> None:
        """Handle the response to a request; it has a result for each batch."""
        request, answer = item.request, item.answer
        batches, now = request.batches, self._clock.monotonic()
        left: Sequence[int] = range(len(batches))
        if answer is None and self._metrics.trace is None:
            left = self._settle(request, now)
        if self._tally is not None:
            self._tally.confirmed += len(batches) - len(left)
        if left:
            results = results_of(request, answer)
            if answer is not None:
                self._forward_leader_hints(answer)
            # Settled together: each has its own error, also if the transaction fails.
            rejected: list[Failure] = []
            for place in left:
                batch = batches[place]
                self._handle_batch(batch.in_buffer, batch, results[place], now, rejected)
            if rejected:
                self._settler.fail_each(rejected)
            self._drain_all_for_retry([request])

    def _settle(self, request: ProduceRequest, now: float) -> list[int]:
        """Settle confirmed batches in one step. Return the places of those that are left."""
        self._settler.shortage.repeat(request.prepare_settling)
        reports, report = iter(request.reports), self._settler.report_settled
        try:
            return self.request_settler.settle(request, now)
        finally:
            # Those of batches before one for which there was no memory, too.
            _kernel.call_in_any_case(report, reports, request.finished)

    def written(self, request: ProduceRequest) -> None:
        """Deliver the batches of a request with ``acks=0``, of which the last byte was written."""
        now = self._clock.monotonic()
        for batch in request.batches:
            batch.in_buffer.answered(batch)
            self._buffer_changed(batch.in_buffer)
            self._settler.deliver(batch, -1, -1, now)
        # A buffer that ended while the request was being written has its chaser left.
        self._drain_all_for_retry([request])

    def lost(self, item: RequestsLost) -> None:
        """Retry the batches that were in flight or not yet written when the connection was lost."""
        requests = [*item.unanswered, *item.unwritten]
        for request in requests:
            for batch in request.batches:
                batch.in_buffer.answered(batch)
                if request in item.unanswered:
                    self._mark_ambiguous(batch)
                # A sequenced batch whose rows have all expired is retried if a younger batch needs
                # it in the log. The buffer decides that when it is drained.
                keep = batch.sequenced or batch.next_deadline() is not None
                self._fail_buffer(batch.in_buffer, *([batch] if keep else ()), needs_backoff=True)
        self._drain_all_for_retry(requests)

    def drain_for_retry(self, buffer: PartitionBuffer) -> None:
        """Retry everything in *buffer* if it has failed and none of its batches is in flight."""
        if not buffer.failing:
            return
        needs_backoff, soon = buffer.needs_backoff, buffer.soon
        retried, ambiguous = buffer.drain_for_retry()
        for batch in ambiguous:
            self.fail_ambiguous(batch)
        if not retried:
            return
        wait = soon
        if needs_backoff and not isinstance(first := retried[0], Chaser):
            # Attempts that were repeated soon have raised the level, and mean nothing else.
            soon_ones = first.retried_soon if isinstance(first, Batch) else 0
            wait = backoff(
                self._config.retry_backoff_ms / 1000,
                self._config.retry_backoff_max_ms / 1000,
                max(0, first.level - 1 - soon_ones),
                system_random.random(),
            )
        now = self._clock.monotonic()
        for item in retried:
            if isinstance(item, Batch):
                self._metrics.batch_retried(item, now)
            if (trace := self._metrics.trace) is not None and not isinstance(item, Chaser):
                reason = self._last_errors.reason_for(item.topic, item.partition)
                trace.note(
                    "retry scheduled", None, item, level=item.level, wait_s=wait, detail=reason
                )
        self._retry.put(RetryItems(retried, now + wait))

    def _drain_all_for_retry(self, requests: Iterable[ProduceRequest]) -> None:
        for request in requests:
            for batch in request.batches:
                if batch.in_buffer.failing:
                    self.drain_for_retry(batch.in_buffer)

    # Batches -------------------------------------------------------------------------------------

    def _handle_batch(
        self,
        buffer: PartitionBuffer,
        batch: Batch,
        answer: ProducedPartition,
        now: float,
        rejected: list[Failure],
    ) -> None:
        """Handle the *answer* for *batch*; add it to *rejected* if all of its rows are to fail."""
        older = buffer.answered(batch)
        self._buffer_changed(buffer)
        verdict = classify(
            answer.error_code,
            older_unsettled=older,
            count=batch.count,
            sequenced=batch.sequenced,
            has_offset=answer.base_offset >= 0,
            transactional=self._coordinator is not None,
            retried_soon=batch.retried_soon > 0,
        )
        if verdict.possibly_persisted:
            self._mark_ambiguous(batch)
        match verdict.action:
            case Action.DELIVERED:
                self._last_errors.delivered(batch.topic, batch.partition)
                if batch.sequenced:
                    buffer.sequencer.delivered(batch.number)
                if self._tally is not None:
                    self._tally.confirmed += 1
                if answer.error_code:  # it is a duplicate: see classify()
                    answer = answer._replace(base_offset=-1, log_append_time_ms=-1)
                self._settler.deliver(batch, answer.base_offset, answer.log_append_time_ms, now)
            case Action.SPLIT_IN_PLACE:
                self._split_in_place(buffer, batch)
            case Action.FAILED if self._coordinator is not None:
                rejected.append(
                    self._reject_in_transaction(self._coordinator, batch, answer, verdict)
                )
            case Action.RETRY_SOON:
                self._retry_soon(buffer, batch, answer)
            case Action.FAILED:
                if not self._fail_rejected_records(buffer, batch, answer):
                    rejected.append(self._reject(buffer, batch, answer, verdict))
            case Action.SPLIT:
                self._split(buffer, batch)
            case Action.RETRY if batch.retries_used >= self._config.retries:
                rejected.append(self._reject(buffer, batch, answer, verdict, batch.retries_used))
            case action:
                self._retry_batch(buffer, batch, answer, action)

    def _retry_soon(self, buffer: PartitionBuffer, batch: Batch, answer: ProducedPartition) -> None:
        batch.retried_soon += 1
        self._note_response(batch, answer)
        buffer.soon = max(buffer.soon, soon_delay(batch.retried_soon))
        self._fail_buffer(buffer, batch)

    def _note_response(self, batch: Batch, answer: ProducedPartition) -> None:
        text = f"the broker's last response: {format_error_code(answer.error_code)}"
        self._last_errors.partitions[batch.topic, batch.partition] = text

    def _retry_batch(
        self, buffer: PartitionBuffer, batch: Batch, answer: ProducedPartition, action: Action
    ) -> None:
        if action is Action.RETRY:
            batch.retries_used += 1
            if batch.level >= _REFRESH_FROM_LEVEL:
                self._metadata.leader_rejected(batch.topic, batch.partition)
        elif action is Action.REFRESH_AND_RETRY:
            self._metadata.leader_rejected(batch.topic, batch.partition)
        elif action in (Action.BUMP_EPOCH, Action.RESET_PRODUCER_ID):
            buffer.invalidate_sequences(id_too=action is Action.RESET_PRODUCER_ID)
            # The response does not reveal what happened to the partition's log in the meantime.
            for part in batch.parts:
                part.mark_ambiguous()
        self._note_response(batch, answer)
        self._fail_buffer(
            buffer, batch, needs_backoff=not _may_retry_at_once(action, batch, answer)
        )

    def _split(self, buffer: PartitionBuffer, batch: Batch) -> None:
        if batch.sequenced:
            buffer.invalidate_sequences()
        batch.split()
        self._fail_buffer(buffer, batch)

    def _split_in_place(self, buffer: PartitionBuffer, batch: Batch) -> None:
        """Seal *batch* again as two batches over its numbers, and have these sent in its place.

        The broker has not appended it, and those behind it are out of order until they are.
        """
        try:
            halves = self._sealer.split(batch)
        except _NOT_SEALED:
            halves = None
        if halves is None:
            # It cannot be encoded now: it is refused again, and split. Or one of its rows has
            # failed, so its number is missing, and the coordinator is about to fail the others with
            # the transaction. They are not too large, and must not get the error of this answer.
            self._fail_buffer(buffer, batch, needs_backoff=True)
        else:
            self._fail_buffer(buffer, *halves)

    # Failures ------------------------------------------------------------------------------------

    def _reject(
        self,
        buffer: PartitionBuffer,
        batch: Batch,
        answer: ProducedPartition,
        verdict: Verdict,
        retries_used: int | None = None,
    ) -> Failure:
        make_error = self._rejection(batch, answer, answer.error_message, retries_used)
        if verdict.not_authorized:
            self._last_errors.rejected(batch.topic, make_error(Status.NOT_PERSISTED))
        for part in batch.parts:
            part.unclaim()
        if batch.sequenced:
            if not batch.possibly_persisted:
                buffer.sequencer.missing(*batch.numbered)
            buffer.invalidate_sequences()
            self._fail_buffer(buffer)
        return Failure(batch.parts, make_error)

    def _reject_in_transaction(
        self,
        coordinator: Coordinator,
        batch: Batch,
        answer: ProducedPartition,
        verdict: Verdict,
    ) -> Failure:
        """Reject *batch*. The transaction must be aborted, so no sequence number is corrected."""
        if answer.error_code == ErrorCode.UNSUPPORTED_VERSION:
            coordinator.leader_lacks_tv2()
        advice = ADVICE_IN_TRANSACTIONS.get(answer.error_code)
        make_error = self._rejection(batch, answer, answer.error_message, advice=advice)
        report: Callable[[], None] | None = None
        if verdict.fatal and (batch.producer_id, batch.producer_epoch) == coordinator.current:
            report = functools.partial(
                coordinator.row_failed,
                make_error(Status.POSSIBLY_PERSISTED),
                coordinator.view.serial,
                answer.error_code,
                fatal=True,
                fenced=verdict.fenced,
            )
        for part in batch.parts:
            part.unclaim()
        return Failure(batch.parts, make_error, report)

    def _fail_rejected_records(
        self, buffer: PartitionBuffer, batch: Batch, answer: ProducedPartition
    ) -> bool:
        """Fail only the messages that made the broker reject the batch, if it names them.

        The other messages are sealed again without them (KIP-467). Return whether that was done.
        """
        texts = {n: text for n, text in answer.record_errors if 0 <= n < batch.count}
        if not 0 < len(texts) < batch.count:
            return False
        for text, parts in batch.rejected_slices(texts).items():
            for part in parts:
                part.unclaim()
            self._settler.fail(parts, self._rejection(batch, answer, text or answer.error_message))
        if batch.sequenced:
            buffer.invalidate_sequences()
        self._fail_buffer(buffer, batch)
        return True

    def _rejection(
        self,
        batch: Batch,
        answer: ProducedPartition,
        detail: str | None,
        retries_used: int | None = None,
        advice: str | None = None,
    ) -> MakeError:
        code = answer.error_code
        advice = advice or advice_for_batch(
            code,
            compression=self._config.compression_type,
            count=batch.count,
            plain=batch.payload.plain_size,
            sealed=len(batch.payload),
        )
        return lambda status: delivery_error_for(
            code,
            topic=batch.topic,
            partition=batch.partition,
            status=status,
            detail=detail,
            retries_used=retries_used,
            advice=advice,
        )

    def _mark_ambiguous(self, batch: Batch) -> None:
        """Record in *batch*, and permanently in its rows, that it may have been appended."""
        batch.possibly_persisted = True
        for part in batch.parts:
            part.mark_ambiguous()

    def fail_unsealed(self, buffer: PartitionBuffer, code: int) -> None:
        """Fail the pending messages of *buffer* that are not sealed, with error *code*.

        They cannot be sealed: the broker refuses a producer id.
        """
        self._settler.fail(
            list(buffer.unsealed()),
            lambda status: delivery_error_for(
                code,
                topic=buffer.topic,
                partition=buffer.partition,
                status=status,
                detail="the cluster assigns no producer id to this client",
            ),
        )
        buffer.sweep()

    def fail_uncompressed(self, buffer: PartitionBuffer, error: CompressionError) -> None:
        """Fail the messages of a batch of *buffer* for which the codec raised *error*."""
        self._settler.fail(
            error.parts,
            lambda status: DeliveryError(
                f"{format_partition(buffer.topic, buffer.partition)}: compression with "
                f"{self._config.compression_type} failed: {error}",
                status=status,
                topic=buffer.topic,
                partition=buffer.partition,
                cause=error.__cause__,
            ),
        )

    def fail_ambiguous(self, batch: Batch) -> None:
        """Fail *batch* instead of retrying it: a retry could duplicate or reorder its records."""
        where = format_partition(batch.topic, batch.partition)
        if batch.possibly_persisted:
            text = (
                f"{where}: the batch's sequence numbers became invalid while it was in flight; not "
                f"retried, because a retry could write its messages twice"
            )
        else:
            text = (
                f"{where}: the batch was rejected, but later messages of the partition were "
                f"accepted; not retried, as a retry would change the order"
            )
        self._settler.fail(
            batch.parts,
            lambda status: DeliveryError(
                text, status=status, topic=batch.topic, partition=batch.partition
            ),
        )

    def _fail_buffer(
        self, buffer: PartitionBuffer, *items: Batch, needs_backoff: bool = False
    ) -> None:
        buffer.fail(*items, needs_backoff=needs_backoff)
        self._buffer_changed(buffer)

    def _forward_leader_hints(self, answer: ProduceAnswer) -> None:
        """Pass the new leaders that the response names to the metadata stage (KIP-951)."""
        if not answer.node_endpoints:
            return
        addresses = {broker.node_id: broker for broker in answer.node_endpoints}
        hints: list[LeaderHint] = []
        for partition in answer.partitions:
            if partition.current_leader is not None:
                broker_id, epoch = partition.current_leader
                leader = addresses.get(broker_id)
                if leader is not None:
                    hint = LeaderHint(partition.topic, partition.partition, epoch, leader)
                    hints.append(hint)
        if hints:
            self._metadata.hint(hints)


def _may_retry_at_once(action: Action, batch: Batch, answer: ProducedPartition) -> bool:
    """Return whether *batch* can be retried without backoff."""
    if action is Action.RETRY_AFTER_OLDER:
        return True  # the retry of the older batch decides whether to back off
    # The response names the new leader. Skip the backoff only once: two brokers that each name the
    # other as the leader must not cause a tight loop.
    moved = action is Action.REFRESH_AND_RETRY and answer.current_leader is not None
    return moved and batch.level == 0
