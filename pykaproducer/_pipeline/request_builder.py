"""RequestBuilder: seals the batches of the next Produce request. Part of BrokerWorker.

Guarantees: a batch gets its sequence numbers in the order of its partition's buffer, and only under
a producer id that the partition may use. A buffer without a producer id waits for one, and the
other buffers do not wait for it.

Batches of new messages under a valid producer id are sealed by one compiled call for all buffers
(``_kernel_parts/seal_request.pxi``). This module handles the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from pykaproducer._errors.formatting import format_partition
from pykaproducer._kernel import (
    BATCH_OVERHEAD,
    Batcher,
    CompressionError,
    ProduceRequest,
    RequestSealer,
)
from pykaproducer._machines.batch import Batch
from pykaproducer._machines.coordination import TV1
from pykaproducer._machines.introduction_turn import IntroductionTurn
from pykaproducer._machines.partition_buffer import PartitionBuffer
from pykaproducer._machines.window import Window
from pykaproducer._pipeline.broker_events import TransactionChanged
from pykaproducer._pipeline.last_errors import LastErrors
from pykaproducer._pipeline.metadata import Metadata
from pykaproducer._pipeline.producer_id import NoProducerId, ProducerIdCame
from pykaproducer._pipeline.responses import ProduceResponseHandler
from pykaproducer._pipeline.worker import Worker
from pykaproducer._util.checksum import crc32c_function
from pykaproducer._util.compression import Compressor
from pykaproducer._util.guarded_log import GuardedLogger
from pykaproducer._util.memory import NO_MEMORY
from pykaproducer.config import Config

if TYPE_CHECKING:
    from pykaproducer._machines.transaction_record import Touch, TransactionView
    from pykaproducer._pipeline.coordinator import Coordinator

log = GuardedLogger("pykaproducer.broker")


def new_sealer(
    worker: Worker[Any], config: Config, batcher: Batcher, compressor: Compressor | None
) -> RequestSealer:
    """Return what seals batches for the BrokerWorker *worker*."""
    return RequestSealer(
        batcher,
        Batch,
        crc32c_function(),
        compressor,
        worker.metrics,
        worker=worker,
        idempotent=config.idempotent,
        transactional=config.transactional_id is not None,
    )


class RequestBuilder:
    """Seals batches for one broker. Used by its BrokerWorker, the *worker*, only."""

    def __init__(
        self,
        worker: Worker[ProducerIdCame | NoProducerId | TransactionChanged],
        *,
        config: Config,
        batcher: Batcher,
        window: Window,
        sealer: RequestSealer,
        responses: ProduceResponseHandler,
        metadata: Metadata,
        last_errors: LastErrors,
        coordinator: Coordinator | None,
    ) -> None:
        self._worker = worker
        self._clock = worker.clock
        self._metrics = worker.metrics
        self._shortage = worker.shortage
        self._idempotent = config.idempotent
        self._batcher = batcher
        self._window = window
        self._sealer = sealer
        self._coordinator = coordinator
        # The transaction to which new batches belong.
        self._view: TransactionView | None = None
        # The touch of the transaction, if this worker will send its first Produce.
        self._first_of: Touch | None = None
        # The turn that was taken for the next request; when to try again to take it.
        self._turn: IntroductionTurn | None = None
        self.turn_at: float | None = None
        self._responses = responses
        self._metadata = metadata
        self._last_errors = last_errors
        # Buffers that wait for a producer id.
        self._without_id: dict[PartitionBuffer, None] = {}

    def seal(self, now: float, *, flushing: bool) -> list[Batch]:
        """Seal one batch of each buffer that may send, as far as they fit into one request.

        Return the batches, none if none is due. *flushing*: the buffers need not linger.
        """
        batches: list[Batch] = []
        if not self._batcher.begin_round(now, flushing=flushing):
            return batches
        sealer = self._sealer
        sealer.begin(self._window.most)
        while True:
            try:
                found = sealer.seal(batches, now)
            except NO_MEMORY as error:
                self._no_memory(cast("PartitionBuffer | None", sealer.buffer), error)
                return batches
            except CompressionError as error:
                self._cannot_compress(cast("PartitionBuffer", sealer.buffer), error)
                continue
            if found is None or not self._seal_next(cast("PartitionBuffer", found), batches, now):
                return batches

    def _seal_next(self, buffer: PartitionBuffer, batches: list[Batch], now: float) -> bool:
        """Add the next batch of *buffer* to *batches*, whatever its state; seal it if needed.

        Return whether there may be room for more batches.
        """
        if self._coordinator is not None and not self._is_in_transaction(buffer, now):
            return True
        if isinstance(buffer.pending[0], Batch) and buffer.drop_unneeded():
            self._batcher.reschedule(buffer)
            return True  # its numbers may be stale now, and it may have to wait
        if self._coordinator is None and self._idempotent and not self._has_producer_id(buffer):
            return True
        if not self._sealer.fits(buffer, batches):
            return False
        if isinstance(buffer.pending[0], Batch):
            return self._send_sealed(buffer, batches, now)
        try:
            return self._sealer.seal_next(buffer, batches, now)
        except NO_MEMORY as error:
            self._no_memory(buffer, error)
            return False
        except CompressionError as error:
            self._cannot_compress(buffer, error)
            return True

    def _send_sealed(self, buffer: PartitionBuffer, batches: list[Batch], now: float) -> bool:
        """Add a batch of *buffer* that was sealed before; return as :meth:`_seal_next`."""
        taken = self._batcher.take(buffer)
        assert isinstance(taken, Batch), "the first item is a batch"
        batch = self._sealed_before(buffer, taken)
        if batch is not None:
            buffer.sent(batch)
            if batches and len(batch.payload) > self._sealer.room:
                self._batcher.put_back(batch)
                return False
            self._metrics.batch_sealed(batch, now, self._metrics.topic(batch.topic))
            batches.append(batch)
            self._sealer.room -= len(batch.payload) + BATCH_OVERHEAD
        self._batcher.reschedule(buffer)
        return True

    def request(self, batches: list[Batch]) -> ProduceRequest:
        """Return the request for *batches*, to be sent now."""
        now = self._clock.monotonic()
        deadline = self._window.request_deadline(batches, now)
        request = ProduceRequest(batches, now=now, deadline=deadline)
        if self._view is not None:
            request.protocol = self._view.protocol
            request.transactional_id = self._view.transactional_id
            request.first_of, self._first_of = self._first_of, None
            if self._turn is not None:
                self._turn.sent(self._worker)
                request.turn, self._turn = self._turn, None
        return request

    def _no_memory(self, buffer: PartitionBuffer | None, error: Exception) -> None:
        """Pause sealing for all buffers, as there is no memory for a batch of *buffer*.

        None: there was none to find the first buffer.
        """
        self._shortage.begin("a batch")
        if buffer is not None:
            reason = str(error) or "no memory for a batch"
            self._last_errors.partitions[buffer.topic, buffer.partition] = reason
            self._batcher.reschedule(buffer)

    def _cannot_compress(self, buffer: PartitionBuffer, error: CompressionError) -> None:
        """Fail the messages of a batch that the codec has rejected."""
        self._responses.fail_uncompressed(buffer, error)
        self._batcher.reschedule(buffer)

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
            self._responses.fail_ambiguous(batch)
        else:
            buffer.requeue_front(slices)
        return None

    # Transactions --------------------------------------------------------------------------------

    def look(self) -> None:
        """Seal the batches of the transaction that is open now; none if none is open.

        Called before each attempt to seal. Buffers that wait are tried again when the view has
        changed, for example because the next transaction has begun, and when the turn of another
        broker has ended.
        """
        if self._coordinator is None:
            return
        if self._coordinator.view is self._view:
            if self.turn_at is not None and self._clock.monotonic() >= self.turn_at:
                self.producer_id_came()
            return
        view = self._view = self._coordinator.view
        self._first_of = self._turn = None
        # The object, not its value, tells the partitions of this transaction from those of the last
        # one, which may have had the same id and epoch. It is the same one for all brokers: a
        # partition may move.
        self._sealer.transaction = view.producer if view.is_open else None
        self.producer_id_came()

    @property
    def not_before(self) -> float:
        """When the first batch may be sealed (monotonic seconds): see ``IntroductionHold``."""
        view = self._view
        return 0.0 if view is None or not view.is_open else view.not_before

    def _is_in_transaction(self, buffer: PartitionBuffer, now: float) -> bool:
        """Return whether batches of *buffer* may be sealed and sent in the open transaction.

        No batch is written after its transaction has ended without EndTxn: this method (1) sets
        ``touch``, (2) looks at the view again, before anything is sealed; the coordinator (1)
        replaces the view, (2) reads ``touch``.
        """
        view, producer, sequencer = self._view, self._sealer.transaction, buffer.sequencer
        assert view is not None
        assert self._coordinator is not None
        if producer is not None and sequencer.producer is producer and not sequencer.stale:
            return True
        place = buffer.topic, buffer.partition
        if producer is None or buffer.unanswered or sequencer.producer is producer:
            self._wait(buffer)
            return False
        # Its batches are those of a transaction that has ended; their rows have failed.
        buffer.drop_batches()
        if not buffer.pending:
            self._batcher.reschedule(buffer)
        elif view.protocol == TV1 and place not in view.added:
            self._coordinator.want_partition(view.serial, *place)
            self._wait(buffer)
        elif view.protocol != TV1 and not self._takes_turn(view.turn, now):
            self._wait(buffer)
        else:
            if view.touch.claim_produce():
                self._first_of = view.touch
            view.touch.set(now)
            if self._coordinator.view.serial != view.serial or not self._coordinator.view.is_open:
                self._wait(buffer)
                return False
            sequencer.adopt_transaction(producer)
            sequencer.producer = producer
            return True
        return False

    def _takes_turn(self, turn: IntroductionTurn, now: float) -> bool:
        """Return whether the next request may add partitions to the transaction."""
        try_at = turn.take(self._worker, now)
        if try_at is None:
            # Another buffer may still wait, so turn_at stays.
            self._turn = turn
            return True
        self.turn_at = try_at
        return False

    def reported(self, request: ProduceRequest) -> None:
        """Handle the report of *request*: it was answered, or lost.

        Buffers try again that waited for the answer to a batch of another epoch, and the workers
        that waited for the turn of this one.
        """
        if self._coordinator is None:
            return
        if request.turn is not None:
            worker: Worker[TransactionChanged]
            for worker in request.turn.reported(self._worker):
                worker.put(TransactionChanged())
        if self._without_id:
            self.producer_id_came()

    def _wait(self, buffer: PartitionBuffer) -> None:
        self._without_id[buffer] = None
        buffer.waits_for_id = True
        self._batcher.reschedule(buffer)

    # The producer id -----------------------------------------------------------------------------

    def producer_id_came(self) -> None:
        """Let the buffers that waited for a producer id try again."""
        # A buffer that cannot use this id requests another one.
        self.turn_at = None
        buffers, self._without_id = self._without_id, {}
        for buffer in buffers:
            buffer.waits_for_id = False
            self._batcher.reschedule(buffer)

    def no_producer_id(self, code: int) -> None:
        """Fail the messages that waited for a producer id, with the error *code* of its refusal."""
        for buffer in self._without_id:
            self._responses.fail_unsealed(buffer, code)
        self.producer_id_came()

    def forget(self, buffer: PartitionBuffer) -> None:
        """Forget *buffer*, which has ended."""
        self._without_id.pop(buffer, None)

    def _has_producer_id(self, buffer: PartitionBuffer) -> bool:
        if isinstance(buffer.pending[0], Batch):
            return True  # it was sealed with a producer id
        if buffer.sequencer.renew():
            log.info(
                "%s: the producer epoch was bumped",
                format_partition(buffer.topic, buffer.partition),
            )
        if buffer.sequencer.adopt(self._metadata.producer_id):
            return True
        spent = buffer.sequencer.spent_id
        if not self._without_id or spent is not None:
            self._metadata.want_producer_id(self._worker, instead_of=spent)
        self._without_id[buffer] = None
        buffer.waits_for_id = True
        self._batcher.reschedule(buffer)
        return False
