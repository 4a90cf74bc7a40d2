"""What ``top`` has seen: the last snapshot, and how fast things went since the one before."""

from __future__ import annotations

import collections
from typing import Any

#: How many rates are kept: more than the widest terminal has columns for.
_KEPT = 500


#: What the stages of a kind add up from.
_NO_STAGE = {"count": 0, "threads": 0, "inbox": 0, "rows": 0, "bytes": 0, "oldest_s": None}


class History:
    """Snapshots of one producer, as they come."""

    def __init__(self) -> None:
        self.now: dict[str, Any] = {}
        #: Delivered messages a second, the newest last.
        self.rates: collections.deque[float] = collections.deque(maxlen=_KEPT)
        #: How many snapshots have come.
        self.looks = 0
        #: Seconds for which the process has not answered.
        self.silent = 0.0
        self._before: dict[str, Any] = {}
        self._seconds = 0.0
        self._came = 0.0

    def add(self, snapshot: dict[str, Any], now: float) -> None:
        """*snapshot* came at *now* (monotonic seconds)."""
        self._before, self.now = self.now, snapshot
        self._seconds, self._came = now - self._came, now
        self.silent = 0.0
        self.looks += 1
        if self._before:
            self.rates.append(self.rate("messages", "delivered"))

    def missed(self, now: float) -> None:
        """Nothing came."""
        self.silent = now - self._came

    @property
    def measured(self) -> bool:
        """Whether there are two snapshots, without which there are no rates."""
        return bool(self._before) and self._seconds > 0

    def rate(self, section: str, field: str) -> float:
        """How much a counter of the snapshot grew a second."""
        if not self.measured:
            return 0.0
        # Less than before: another producer has taken the socket over.
        more: float = self.now[section][field] - self._before[section][field]
        return max(0.0, more / self._seconds)

    def partitions(self) -> list[dict[str, Any]]:
        """The partitions with their ``rate``, the busiest first."""
        before = {_place(row): row["delivered"] for row in self._before.get("partitions", ())}
        rows = []
        for row in self.now["partitions"]:
            more = row["delivered"] - before.get(_place(row), 0)
            rate = max(0.0, more / self._seconds) if self.measured else 0.0
            rows.append({**row, "rate": rate})
        return sorted(rows, key=lambda row: (-row["rate"], -row["waiting_rows"], _place(row)))

    def stages(self) -> list[dict[str, Any]]:
        """The stages in a message's order; those of one kind together in one row."""
        found: dict[str, dict[str, Any]] = {}
        for row in self.now["stages"]:
            kind = found.setdefault(row["stage"], {**_NO_STAGE, "stage": row["stage"]})
            kind["count"] += 1
            kind["threads"] += row["alive"]
            for field in ("inbox", "rows", "bytes"):
                kind[field] += row[field]
            ages = [age for age in (kind["oldest_s"], row["oldest_s"]) if age is not None]
            kind["oldest_s"] = max(ages, default=None)
        return sorted(found.values(), key=lambda kind: _rank(kind["stage"]))


#: A message's way.
_ORDER = (
    "Dispatcher",
    "TopicWorker",
    "PartitionWorker",
    "BrokerWorker",
    "Bridge",
    "RetryHandler",
    "Reports",
    "Metadata",
)


def _rank(stage: str) -> int:
    return _ORDER.index(stage) if stage in _ORDER else len(_ORDER)


def _place(row: dict[str, Any]) -> tuple[str, int]:
    return row["topic"], row["partition"]
