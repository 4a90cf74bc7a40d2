"""Sealed batches, and the chaser that follows the last item of a partition buffer.

A :class:`Batch` consists of encoded bytes and the slices from which they were encoded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple, cast

from pykaproducer._kernel import BatchState, Slice

if TYPE_CHECKING:
    from pykaproducer._machines.partition_buffer import PartitionBuffer


class Batch(BatchState):
    """A sealed record batch and its slices, in the order of the records."""

    __slots__ = ()

    @property
    def in_buffer(self) -> PartitionBuffer:
        """The buffer from which it was sent."""
        assert self.buffer is not None, "a batch in flight has a buffer"
        return cast("PartitionBuffer", self.buffer)

    @property
    def numbered(self) -> tuple[int, int, int]:
        """Its number in the partition, and the producer id and epoch it was sealed under."""
        return self.number, self.producer_id, self.producer_epoch

    @property
    def sequenced(self) -> bool:
        """Whether it has sequence numbers: if so, a retry must send the same bytes."""
        return self.first_sequence >= 0

    @property
    def nbytes(self) -> int:
        """Size of its encoded messages in bytes."""
        return len(self.payload)

    @property
    def is_settled(self) -> bool:
        """Return whether every row has its outcome."""
        return all(part.is_settled for part in self.parts)

    def unseal(self) -> list[Slice]:
        """Return its slices, to be sealed again.

        Not for a sequenced batch whose numbers are valid: the broker recognises it by them.
        """
        for part in self.parts:
            part.level = self.level
            part.retries_used = self.retries_used
            part.unclaim()
            if self.most:
                part.most = self.most
        return self.parts

    def split(self) -> None:
        """Limit the batches that are sealed from its slices to half as many messages."""
        self.most = max(1, self.count // 2)

    def rejected_slices(self, texts: Mapping[int, str | None]) -> dict[str | None, list[Slice]]:
        """Return slices of the rejected messages, grouped by the broker's text.

        *texts* maps the number of each rejected record in the batch to its text. Each record is
        visited once, and each text gets at most one slice per chunk.
        """
        found: dict[str | None, list[Slice]] = {}
        first = 0
        for part in self.parts:
            rows: dict[str | None, list[int]] = {}
            for number, row in enumerate(part.row_numbers(), first):
                if number in texts:
                    rows.setdefault(texts[number], []).append(row)
            first += part.count
            for text, rejected in rows.items():
                found.setdefault(text, []).append(part.chunk.pick(rejected, self.partition))
        return found

    def detach_payload(self) -> None:
        """Copy the payloads out, as the batch has to wait. See Slice.detach_payload."""
        for part in self.parts:
            part.detach_payload()

    def next_deadline(self) -> float | None:
        """Return the earliest deadline of the rows without an outcome, None if there are none."""
        found = (part.oldest_deadline() for part in self.parts)
        return min((deadline for deadline in found if deadline is not None), default=None)


class Chaser(NamedTuple):
    """The last item that a partition's worker puts into a buffer; it returns with *level*."""

    topic: str
    partition: int
    level: int
