"""Sealing: encode slices of a partition buffer as a record batch, with sequence numbers.

Used by every BrokerWorker, each in its own thread. The sealer has no state.
"""

from __future__ import annotations

import crc32c

import pykaproducer._kernel as _kernel
from pykaproducer._kernel import Slice
from pykaproducer._machines.batch import Batch
from pykaproducer._machines.partition_buffer import PartitionBuffer
from pykaproducer._util.compression import Compressor


class Sealer:
    """Encodes batches with a producer's compression, and with sequence numbers if idempotent."""

    def __init__(self, compressor: Compressor | None, *, idempotent: bool) -> None:
        self._compressor = compressor
        self._idempotent = idempotent

    @property
    def compresses(self) -> bool:
        """Whether batches are compressed, and so may be smaller than their slices."""
        return self._compressor is not None

    def seal(self, buffer: PartitionBuffer, parts: list[Slice]) -> Batch | None:
        """Seal a batch of *parts*, claimed slices of *buffer*; return None if there are none.

        Raises:
            MemoryError: there is no memory for the batch. *parts* are pending again, unclaimed,
                and no sequence number was used.
        """
        if not parts:
            return None
        producer_id = epoch = first = -1
        if self._idempotent:
            producer = buffer.sequencer.producer
            assert producer is not None, "sealing requires a producer id"
            producer_id, epoch = producer.producer_id, producer.epoch
            first = buffer.sequencer.next_sequence
        compressor = self._compressor
        try:
            payload, count = _kernel.encode_batch(
                parts,
                crc32c.crc32c,
                compress=None if compressor is None else compressor.compress,
                attributes=0 if compressor is None else compressor.attribute,
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=first,
            )
        except MemoryError:
            for part in parts:
                part.unclaim()
            buffer.requeue_front(parts)
            raise
        if self._idempotent:
            buffer.sequencer.take(count)
        return Batch(
            buffer.topic,
            buffer.partition,
            payload,
            parts,
            count,
            level=max([part.level for part in parts]),
            retries_used=max([part.retries_used for part in parts]),
            producer_id=producer_id,
            producer_epoch=epoch,
            first_sequence=first,
            number=buffer.sequencer.sealed if self._idempotent else 0,
        )
