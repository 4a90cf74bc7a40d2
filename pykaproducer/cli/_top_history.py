"""The data that ``top`` displays: the last snapshot, and rates since the one before."""

from __future__ import annotations

import collections
from typing import Any

#: Number of rates kept, more than the columns of the widest terminal.
_KEPT = 500


#: Initial values of the totals for all stages of a kind.
_NO_STAGE = {"count": 0, "threads": 0, "inbox": 0, "rows": 0, "bytes": 0, "oldest_s": None}


class History:
    """Successive snapshots of one producer."""

    def __init__(self) -> None:
        self.now: dict[str, Any] = {}
        #: Delivered messages per second, the newest last.
        self.rates: collections.deque[float] = collections.deque(maxlen=_KEPT)
        #: Number of snapshots received.
        self.looks = 0
        #: Time for which the process has not answered (seconds).
        self.silent = 0.0
        self._before: dict[str, Any] = {}
        self._seconds = 0.0
        self._came = 0.0

    def add(self, snapshot: dict[str, Any], now: float) -> None:
        """Add *snapshot*, received at *now* (monotonic seconds)."""
        self._before, self.now = self.now, snapshot
        self._seconds, self._came = now - self._came, now
        self.silent = 0.0
        self.looks += 1
        if self._before:
            self.rates.append(self.rate("messages", "delivered"))

    def missed(self, now: float) -> None:
        """Record that no snapshot was received at *now*."""
        self.silent = now - self._came

    @property
    def measured(self) -> bool:
        """Whether there are two snapshots, as needed for rates."""
        return bool(self._before) and self._seconds > 0

    def rate(self, section: str, field: str) -> float:
        """Return the growth per second of a counter of the snapshot."""
        if not self.measured:
            return 0.0
        # A counter that decreased belongs to another producer, which has taken over the socket.
        before = self._before.get(section) or {}
        more: float = self.now[section][field] - before.get(field, 0)
        return max(0.0, more / self._seconds)

    def partitions(self) -> list[dict[str, Any]]:
        """Return the partitions with their ``rate``, the busiest first."""
        before = {_place(row): row["delivered"] for row in self._before.get("partitions", ())}
        rows = []
        for row in self.now["partitions"]:
            more = row["delivered"] - before.get(_place(row), 0)
            rate = max(0.0, more / self._seconds) if self.measured else 0.0
            rows.append({**row, "rate": rate})
        return sorted(rows, key=lambda row: (-row["rate"], -row["waiting_rows"], _place(row)))

    def stages(self) -> list[dict[str, Any]]:
        """Return one row per kind of stage, in the order in which a message passes them."""
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


#: The order in which a message passes the stages.
_ORDER = (
    "Dispatcher",
    "TopicWorker",
    "PartitionWorker",
    "BrokerWorker",
    "Bridge",
    "RetryHandler",
    "Reports",
    "LogWriter",
    "Metadata",
    "Coordinator",
    "GroupCoordinator",
)


def _rank(stage: str) -> int:
    return _ORDER.index(stage) if stage in _ORDER else len(_ORDER)


def _place(row: dict[str, Any]) -> tuple[str, int]:
    return row["topic"], row["partition"]
