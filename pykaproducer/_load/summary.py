"""Summaries of a write: rows, bytes and offsets by partition."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from pykaproducer._errors.formatting import counted
from pykaproducer.block import BlockMetadata
from pykaproducer.delivery import TopicPartition


class Written(NamedTuple):
    """Rows delivered to one partition."""

    #: Number of rows.
    rows: int
    #: Size of their keys and values (bytes).
    size: int
    #: The lowest and the highest offset; None if the broker returned none. Records of other
    #: producers may be in between.
    first: int | None
    last: int | None

    def plus(self, other: Written) -> Written:
        """Return the sum of both."""
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
    """The outcome of a write."""

    #: Delivered rows by topic and partition.
    partitions: dict[TopicPartition, Written] = field(default_factory=dict)
    #: Number of rejected rows, which were sent to a dead-letter topic or written to files.
    refused: int = 0
    #: By kind of error: the first error with its location, and the number of rows.
    reasons: dict[str, tuple[str, int]] = field(default_factory=dict)
    #: Offsets of each partition as unordered ranges; only if requested.
    ranges: dict[TopicPartition, list[range]] = field(default_factory=dict)
    #: The sum of the rows' checksums, modulo 2**64; only if requested.
    checksum: int = 0
    #: The files of rejected rows.
    files: list[str] = field(default_factory=list)
    #: Those that could not be completed, each of them in *troubles*.
    broken_files: list[str] = field(default_factory=list)
    #: Whether nothing was written because a write with this ``writeId``, or this batch, was
    #: committed before.
    repeated: bool = False
    #: Other errors, as sentences.
    troubles: list[str] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """Number of delivered rows."""
        return sum(written.rows for written in self.partitions.values())

    @property
    def size(self) -> int:
        """Size of their keys and values (bytes)."""
        return sum(written.size for written in self.partitions.values())

    def add_block(self, found: BlockMetadata, *, ranges: bool = False) -> None:
        """Add the delivered rows of a block."""
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
        """Add the sum of checksums of some rows."""
        self.checksum = (self.checksum + checksum) % 2**64

    def add_reasons(self, reasons: Mapping[str, tuple[str, int]]) -> None:
        """Add rejected rows, by kind of error."""
        for kind, (text, count) in reasons.items():
            known, before = self.reasons.get(kind, (text, 0))
            self.reasons[kind] = (known, before + count)

    def add(self, other: Summary) -> None:
        """Add the counts of *other*."""
        for place, written in other.partitions.items():
            self._add(place, written)
        for place, ranges in other.ranges.items():
            self.ranges.setdefault(place, []).extend(ranges)
        self.refused += other.refused
        self.add_reasons(other.reasons)
        self.add_checksum(other.checksum)
        self.files += other.files
        self.broken_files += other.broken_files
        self.troubles += other.troubles

    @classmethod
    def of(cls, parts: Iterable[Summary]) -> Summary:
        """Return the sum of *parts*."""
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
        """Yield one line for each of the first *most* partitions, in order."""
        shown = sorted(self.partitions.items())
        for (topic, partition), written in shown[:most]:
            text = f"{topic}[{partition}]: {counted(written.rows, 'row')}, {written.size:,} bytes"
            if written.first is not None:
                text += f", offsets {written.first} to {written.last}"
            yield text
        if len(shown) > most:
            yield f"and {counted(len(shown) - most, 'more partition')}"

    def __str__(self) -> str:
        if self.repeated:
            return "0 rows (repeated: committed before, nothing was written)"
        partitions = counted(len(self.partitions), "partition")
        text = f"{counted(self.rows, 'row')} ({self.size:,} bytes) to {partitions}"
        return f"{text}, {self.refused:,} refused" if self.refused else text
