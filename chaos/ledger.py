"""The records of the process under load, which the process that injects faults reads.

Processes of other clients write them as well, so nothing of pykaproducer is imported.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from chaos.audit import Message, Outcome, Status

_COUNTERS = "counters"
_SENT = "sent"
_SETTLED = "settled"

#: partition, number, time of the call
_SENT_ROW = struct.Struct("<iid")
#: partition, number, time of the outcome, status, offset
_SETTLED_ROW = struct.Struct("<iidiq")


class Counters:
    """Counters in shared memory, three for each partition, for another process to watch.

    They are followed by the process identifier of the process under load.
    """

    def __init__(self, directory: Path, partitions: int) -> None:
        path = directory / _COUNTERS
        size = 8 * (3 * partitions + 1)
        if not path.exists():
            path.write_bytes(bytes(size))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), size)
        self._partitions = partitions
        self._view = memoryview(self._map).cast("Q")

    def close(self) -> None:
        self._view.release()
        self._map.close()

    @property
    def sent(self) -> list[int]:
        """Return the number of messages that send() has accepted, by partition."""
        return self._view[: self._partitions].tolist()

    @property
    def settled(self) -> list[int]:
        """Return the number of outcomes, of any kind."""
        return self._view[self._partitions : 2 * self._partitions].tolist()

    @property
    def delivered(self) -> list[int]:
        return self._view[2 * self._partitions : 3 * self._partitions].tolist()

    @property
    def process(self) -> int:
        """Return the identifier of the process under load; 0 until it has started."""
        return self._view[3 * self._partitions]

    @process.setter
    def process(self, identifier: int) -> None:
        self._view[3 * self._partitions] = identifier

    def count_sent(self, partition: int) -> None:
        self._view[partition] += 1

    def count_settled(self, partition: int, delivered: bool) -> None:
        self._view[self._partitions + partition] += 1
        self._view[2 * self._partitions + partition] += delivered


class Ledger:
    """The writer: one thread records the messages sent; outcomes may come from several threads."""

    def __init__(self, directory: Path, partitions: int) -> None:
        self._lock = threading.Lock()
        self.counters = Counters(directory, partitions)
        self.counters.process = os.getpid()
        self._sent = (directory / _SENT).open("wb")
        self._path = directory / _SETTLED
        self._settled = self._path.open("wb")

    def sent(self, partition: int, number: int, called_at: float) -> None:
        self._sent.write(_SENT_ROW.pack(partition, number, called_at))
        self.counters.count_sent(partition)

    def settled(self, partition: int, number: int, status: Status, offset: int) -> None:
        row = _SETTLED_ROW.pack(partition, number, time.monotonic(), status, offset)
        with self._lock:
            if self._settled.closed:
                # After close(): too late, which the audit will report.
                with self._path.open("ab") as late:
                    late.write(row)
                return
            self._settled.write(row)
            self.counters.count_settled(partition, status is Status.PERSISTED)

    def close(self) -> None:
        """Flush the files; an outcome that arrives later is still recorded."""
        self._sent.close()
        with self._lock:
            self._settled.close()


@contextmanager
def watching(directory: Path, partitions: int) -> Iterator[Counters]:
    """Yield the counters for the reader; they are made before the writer starts."""
    counters = Counters(directory, partitions)
    try:
        yield counters
    finally:
        counters.close()


def messages(directory: Path, stopped: Sequence[tuple[float, float]] = ()) -> list[Message]:
    """Return all messages with their outcomes.

    *stopped*: when the process was stopped, and when it continued. The delay of an outcome excludes
    these periods, because a stopped process cannot report anything.
    """
    outcomes: dict[tuple[int, int], list[tuple[float, Status, int]]] = {}
    for partition, number, at, status, offset in _rows(directory / _SETTLED, _SETTLED_ROW):
        outcomes.setdefault((partition, number), []).append((at, Status(status), offset))
    found = []
    for partition, number, called_at in _rows(directory / _SENT, _SENT_ROW):
        mine = outcomes.get((partition, number), ())
        told = (
            Outcome(status, offset, at - called_at - _overlap(stopped, called_at, at))
            for at, status, offset in mine
        )
        found.append(Message(partition, number, tuple(told)))
    return found


def _overlap(stretches: Sequence[tuple[float, float]], begin: float, end: float) -> float:
    """Return how much of the time from *begin* to *end* lies in *stretches* (seconds)."""
    return sum(max(0.0, min(end, last) - max(begin, first)) for first, last in stretches)


def _rows(path: Path, row: struct.Struct) -> Iterator[tuple[int, ...]]:
    data = path.read_bytes() if path.exists() else b""
    # A process that ended too early may have left half a row.
    return row.iter_unpack(data[: len(data) // row.size * row.size])


def value(partition: int, number: int, size: int) -> bytes:
    """Return the value of a message."""
    return (b"%d:%d:" % (partition, number)).ljust(size, b".")


def read_value(data: bytes | None) -> tuple[int, int]:
    """Return partition and number of a value; -1 and -1 if it is not one of ours."""
    parts = (data or b"").split(b":")
    if len(parts) != 3 or not (parts[0].isdigit() and parts[1].isdigit()):
        return -1, -1
    return int(parts[0]), int(parts[1])


def sockets() -> set[str]:
    """Return the sockets of this process; an empty set on systems without /proc."""
    found = set()
    for entry in _entries("/proc/self/fd"):
        try:
            target = os.readlink(entry)
        except OSError:
            continue  # the descriptor that lists this directory
        if target.startswith("socket:"):
            found.add(target)
    return found


def threads() -> int:
    """Return the number of threads, including those of C libraries; 0 on systems without /proc."""
    return len(_entries("/proc/self/task"))


def _entries(directory: str) -> list[Path]:
    path = Path(directory)
    return list(path.iterdir()) if path.exists() else []
