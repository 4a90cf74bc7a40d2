"""The progress of one transactional id, in memory that the processes share."""

from __future__ import annotations

import mmap
from pathlib import Path

_SLOTS = ("process", "begun", "committed", "not_committed", "sent", "settled", "delivered")


class Board:
    """Counters of all instances of an id, for the process that injects faults to watch.

    ``process`` is the identifier of the process whose producer is to work; others are to end when
    theirs is fenced. Set by the process that injects faults.
    """

    process: int
    begun: int
    committed: int
    not_committed: int
    sent: int
    settled: int
    delivered: int

    def __init__(self, path: Path) -> None:
        size = 8 * (len(_SLOTS) + 1)
        if not path.exists():
            path.write_bytes(bytes(size))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), size)
        self._counts = memoryview(self._map)[:-8].cast("Q")
        self._time = memoryview(self._map)[-8:].cast("d")

    @property
    def progress(self) -> float:
        """When the last transaction that was committed had begun (monotonic seconds)."""
        return self._time[0]

    @progress.setter
    def progress(self, begun_at: float) -> None:
        self._time[0] = begun_at

    def close(self) -> None:
        self._counts.release()
        self._time.release()
        self._map.close()


def _slot(i: int) -> property:
    def read(board: Board) -> int:
        return board._counts[i]

    def write(board: Board, value: int) -> None:
        board._counts[i] = value

    return property(read, write)


for _i, _name in enumerate(_SLOTS):
    setattr(Board, _name, _slot(_i))
