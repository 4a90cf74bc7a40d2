"""The report of a load: its summary, and the result of reading everything back."""

from __future__ import annotations

import bisect
from collections.abc import Iterator

from pykaproducer._load.checksum import row_checksum
from pykaproducer._load.summary import Summary
from pykaproducer.cli._readback import read_back
from pykaproducer.cli.common import human_bytes
from pykaproducer.config import Config

#: Time without a message after which reading back ends (seconds).
_READING = 30.0


def summary_lines(
    summary: Summary, topic: str | None, servers: str, seconds: float
) -> Iterator[str]:
    """Yield the lines of the summary."""
    rows, rate = summary.rows, summary.rows / seconds if seconds else 0.0
    yield (
        f"{rows:,} of {rows + summary.refused:,} rows delivered to {topic or 'their topics'} at "
        f"{servers}; {human_bytes(summary.size)} of keys and values, {seconds:.2f} s, "
        f"{rate:,.0f} rows/s"
    )
    for line in summary.lines():
        yield f"  {line}"
    for text, count in sorted(summary.reasons.values(), key=lambda reason: -reason[1]):
        yield f"  {count:,} not delivered; the first: {text}"
    if summary.reasons:
        yield "  (rows are numbered from 0; the header line of a CSV file is not a row)"
    for file in summary.files:
        yield f"  these rows are in {file}"


def verified(summary: Summary, config: Config) -> tuple[bool, str]:
    """Read back the delivered rows. Return whether all are in the log, and a sentence about it."""
    known = sum(len(each) for ranges in summary.ranges.values() for each in ranges)
    without = summary.rows - known
    if without:
        return False, (
            f"NOT VERIFIED: the offsets of {without:,} rows are unknown (acks=0, or a retry that "
            f"the broker recognized as a duplicate)"
        )
    found, checksum = 0, 0
    for topic in sorted({place.topic for place in summary.ranges}):
        ranges = _sorted_ranges(summary, topic)
        ends = {number: (each[0].start, each[-1].stop - 1) for number, each in ranges.items()}
        for record in read_back(config, topic, ends, _READING):
            if _is_in(record.offset, ranges[record.partition]):
                found += 1
                checksum += row_checksum(record.key, record.value, record.headers)
    if not summary.rows:
        return True, "nothing to verify: no row was delivered"
    if found == summary.rows and checksum % 2**64 == summary.checksum:
        return True, f"verified: {found:,} rows read back, count and checksum match"
    what = "the checksums differ" if found == summary.rows else f"{found:,} rows were read back"
    return False, f"NOT VERIFIED: {summary.rows:,} rows were delivered, but {what}"


def _sorted_ranges(summary: Summary, topic: str) -> dict[int, list[range]]:
    return {
        place.partition: sorted(summary.ranges[place], key=lambda each: each.start)
        for place in summary.ranges
        if place.topic == topic
    }


def _is_in(offset: int, ranges: list[range]) -> bool:
    """Return whether *offset* is in one of *ranges*, which are sorted."""
    place = bisect.bisect_right(ranges, offset, key=lambda each: each.start) - 1
    return place >= 0 and offset in ranges[place]
