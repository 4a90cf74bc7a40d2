"""A compact latency histogram: bucket widths grow with the latency, errors stay below 1 %."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

#: Significant bits kept of a latency; each power of two has half as many buckets as 8 bits allow.
_BITS = 8
_HALF = _BITS - 1


class Histogram:
    """Counts of latencies: exact to the microsecond up to 255 µs, with 8 significant bits above.

    One thread adds; other threads may read, and may miss values that are being added.
    """

    __slots__ = ("_counts", "most", "total")

    def __init__(self) -> None:
        self._counts: dict[int, int] = defaultdict(int)
        #: Sum and maximum of all latencies (seconds).
        self.total = 0.0
        self.most = 0.0

    def add(self, seconds: float) -> None:
        """Add one latency (seconds)."""
        micros = int(seconds * 1e6)
        shift = micros.bit_length() - _BITS
        self._counts[micros if shift <= 0 else (shift << _HALF) + (micros >> shift)] += 1
        self.total += seconds
        if seconds > self.most:
            self.most = seconds

    def add_all(self, latencies: Sequence[float]) -> None:
        """Add many latencies at once, at a third of the cost of :meth:`add`."""
        if not latencies:
            return
        counts = self._counts
        for seconds in latencies:
            micros = int(seconds * 1e6)
            shift = micros.bit_length() - _BITS
            counts[micros if shift <= 0 else (shift << _HALF) + (micros >> shift)] += 1
        self.total += sum(latencies)
        self.most = max(self.most, max(latencies))

    @property
    def count(self) -> int:
        """Number of latencies."""
        return sum(self._counts.copy().values())

    @property
    def mean(self) -> float:
        """Mean latency (seconds); 0 if there are none."""
        return self.total / (self.count or 1)

    def percentiles(self, *shares: float) -> list[float]:
        """Return the latency (seconds) at each of *shares*, which are fractions from 0 to 1."""
        counts = self._counts.copy()
        left = sorted((share * sum(counts.values()), place) for place, share in enumerate(shares))
        found = [0.0] * len(shares)
        seen = 0
        for index in sorted(counts):
            seen += counts[index]
            while left and seen >= left[0][0]:
                found[left.pop(0)[1]] = min(_middle(index), self.most)
        return found

    def shares(self) -> list[tuple[float, float]]:
        """Return (latency, share of latencies not above it) for each bucket, in order."""
        counts = self._counts.copy()
        seen, all_of_them = 0, sum(counts.values())
        found = []
        for index in sorted(counts):
            seen += counts[index]
            found.append((min(_middle(index), self.most), seen / all_of_them))
        return found

    @classmethod
    def of(cls, parts: Iterable[Histogram]) -> Histogram:
        """Merge *parts* into one histogram."""
        whole = cls()
        for part in parts:
            for index, count in part._counts.copy().items():
                whole._counts[index] += count
            whole.total += part.total
            whole.most = max(whole.most, part.most)
        return whole


def _middle(index: int) -> float:
    """Return the midpoint of a bucket (seconds)."""
    if index < 1 << _BITS:
        return (index + 0.5) / 1e6
    shift = (index >> _HALF) - 1
    return ((index - (shift << _HALF)) + 0.5) * (1 << shift) / 1e6
