"""What was written: rows, bytes and offsets by partition; sums of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from pykaproducer.block import BlockMetadata
from pykaproducer.delivery import TopicPartition


class Written(NamedTuple):
    """What was delivered to one partition."""

    #: How many rows.
    rows: int
    #: The bytes of their keys and values.
    size: int
    #: The lowest and the highest offset; None where the broker gave none. Others may have written
    #: in between.
    first: int | None
    last: int | None

    def plus(self, other: Written) -> Written:
        """The sum of both."""
        offsets = [n for n in (*self[2:], *other[2:]) if n is not None]
        return Written(
            self.rows + other.rows,
            self.size + other.size,
            min(offsets, default=None),
            max(offsets, default=None),
        )


_NOTHING = Written(0, 0, None, None)


@dataclass
class Summary:
    """What became of the rows of a write."""

    #: What was delivered, by topic and partition.
    partitions: dict[TopicPartition, Written] = field(default_factory=dict)
    #: How many rows were not, and were put elsewhere: into a dead-letter topic, or into files.
    refused: int = 0
    #: Why, by kind: the first of them with its place, and how many.
    reasons: dict[str, tuple[str, int]] = field(default_factory=dict)
    #: The offsets of each partition, as ranges in no order; only where they were asked for.
    ranges: dict[TopicPartition, list[range]] = field(default_factory=dict)
    #: The sum of the rows' checksums, modulo 2**64; only where it was asked for.
    checksum: int = 0
    #: The files that hold refused rows.
    files: list[str] = field(default_factory=list)
    #: What went wrong besides, as sentences.
    troubles: list[str] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """How many rows were delivered."""
        return sum(written.rows for written in self.partitions.values())

    @property
    def size(self) -> int:
        """The bytes of their keys and values."""
        return sum(written.size for written in self.partitions.values())

    def add_block(self, found: BlockMetadata, *, ranges: bool = False) -> None:
        """Count what became of a block: what of it was delivered."""
        for place, delivered in found.delivered.items():
            offsets = found.offsets.get(place, [])
            self._add(
                place,
                Written(
                    delivered.rows,
                    delivered.size,
                    min((each.start for each in offsets), default=None),
                    max((each.stop - 1 for each in offsets), default=None),
                ),
            )
            if ranges:
                for each in offsets:
                    self._add_range(place, each)

    def add_checksum(self, checksum: int) -> None:
        """Count rows with this sum of checksums."""
        self.checksum = (self.checksum + checksum) % 2**64

    def add_reasons(self, reasons: Mapping[str, tuple[str, int]]) -> None:
        """Count rows that were refused, by kind."""
        for kind, (text, count) in reasons.items():
            known, before = self.reasons.get(kind, (text, 0))
            self.reasons[kind] = (known, before + count)

    def add(self, other: Summary) -> None:
        """Count what *other* has counted."""
        for place, written in other.partitions.items():
            self._add(place, written)
        for place, ranges in other.ranges.items():
            self.ranges.setdefault(place, []).extend(ranges)
        self.refused += other.refused
        self.add_reasons(other.reasons)
        self.add_checksum(other.checksum)
        self.files += other.files
        self.troubles += other.troubles

    @classmethod
    def of(cls, parts: Iterable[Summary]) -> Summary:
        """The sum of *parts*."""
        total = cls()
        for part in parts:
            total.add(part)
        return total

    def _add(self, place: TopicPartition, written: Written) -> None:
        self.partitions[place] = self.partitions.get(place, _NOTHING).plus(written)

    def _add_range(self, place: TopicPartition, offsets: range) -> None:
        known = self.ranges.setdefault(place, [])
        if known and known[-1].stop == offsets.start:
            known[-1] = range(known[-1].start, offsets.stop)
        else:
            known.append(offsets)

    def lines(self, most: int = 24) -> Iterator[str]:
        """A line a partition, in order; *most*: of how many."""
        shown = sorted(self.partitions.items())
        for (topic, partition), written in shown[:most]:
            text = f"{topic}[{partition}]: {written.rows:,} rows, {written.size:,} bytes"
            if written.first is not None:
                text += f", offsets {written.first} to {written.last}"
            yield text
        if len(shown) > most:
            yield f"and {len(shown) - most} more partitions"

    def __str__(self) -> str:
        text = f"{self.rows:,} rows ({self.size:,} bytes) to {len(self.partitions)} partitions"
        return f"{text}, {self.refused:,} refused" if self.refused else text
