"""Sealing: the slices of a lane become a record batch, with its sequence numbers.

Used by every BrokerWorker, each in its own thread; keeps nothing itself.
"""

from __future__ import annotations

import crc32c

from pykaproducer import _kernel
from pykaproducer._kernel import Slice
from pykaproducer._machines.lane import Batch, Lane
from pykaproducer._wire.compression import Compressor


class Sealer:
    """How batches are encoded: compressed or not, with sequence numbers or without."""

    def __init__(self, compressor: Compressor | None, *, idempotent: bool) -> None:
        self._compressor = compressor
        self._idempotent = idempotent

    @property
    def compresses(self) -> bool:
        """Return whether batches are compressed, and so may be smaller than their slices."""
        return self._compressor is not None

    def seal(self, lane: Lane, parts: list[Slice]) -> Batch | None:
        """Seal a batch of *parts*, claimed slices of *lane*; return None if there are none.

        Raises:
            MemoryError: there is no memory for it now. *parts* are pending again, unclaimed, and
                no sequence number is used.
        """
        if not parts:
            return None
        producer_id = epoch = first = -1
        if self._idempotent:
            producer = lane.sequencer.producer
            assert producer is not None, "nothing is sealed before the id is there"
            producer_id, epoch = producer.producer_id, producer.epoch
            first = lane.sequencer.next_sequence
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
            lane.put_first(parts)
            raise
        if self._idempotent:
            lane.sequencer.take(count)
        return Batch(
            lane.topic,
            lane.partition,
            payload,
            parts,
            count,
            level=max(part.level for part in parts),
            retries_used=max(part.retries_used for part in parts),
            producer_id=producer_id,
            producer_epoch=epoch,
            first_sequence=first,
            number=lane.sequencer.sealed if self._idempotent else 0,
        )
