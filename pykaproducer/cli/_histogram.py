"""Latencies, counted in buckets that grow with them: small, and off by less than one percent."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

#: Bits of a latency that are kept; the buckets of a power of two are half as many as these say.
_BITS = 8
_HALF = _BITS - 1


class Histogram:
    """How often each latency came, to the microsecond up to 255 of them, then to 8 bits.

    Filled by one thread, and read by others: they may miss what is being written.
    """

    __slots__ = ("_counts", "most", "total")

    def __init__(self) -> None:
        self._counts: dict[int, int] = defaultdict(int)
        #: The sum and the longest of all (seconds).
        self.total = 0.0
        self.most = 0.0

    def add(self, seconds: float) -> None:
        """One latency."""
        micros = int(seconds * 1e6)
        shift = micros.bit_length() - _BITS
        self._counts[micros if shift <= 0 else (shift << _HALF) + (micros >> shift)] += 1
        self.total += seconds
        if seconds > self.most:
            self.most = seconds

    def add_all(self, latencies: Sequence[float]) -> None:
        """Many at once, which costs a third."""
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
        """How many latencies."""
        return sum(self._counts.copy().values())

    @property
    def mean(self) -> float:
        """Their mean (seconds); 0 without any."""
        return self.total / (self.count or 1)

    def percentiles(self, *shares: float) -> list[float]:
        """The latencies (seconds) that such shares of all, from 0 to 1, do not exceed."""
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
        """(latency, share of all that do not exceed it) of each bucket, in order."""
        counts = self._counts.copy()
        seen, all_of_them = 0, sum(counts.values())
        found = []
        for index in sorted(counts):
            seen += counts[index]
            found.append((min(_middle(index), self.most), seen / all_of_them))
        return found

    @classmethod
    def of(cls, parts: Iterable[Histogram]) -> Histogram:
        """All *parts* in one."""
        whole = cls()
        for part in parts:
            for index, count in part._counts.copy().items():
                whole._counts[index] += count
            whole.total += part.total
            whole.most = max(whole.most, part.most)
        return whole


def _middle(index: int) -> float:
    """The latency in the middle of a bucket (seconds)."""
    if index < 1 << _BITS:
        return (index + 0.5) / 1e6
    shift = (index >> _HALF) - 1
    return ((index - (shift << _HALF)) + 0.5) * (1 << shift) / 1e6
