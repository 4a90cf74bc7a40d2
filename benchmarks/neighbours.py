"""How busy the machine was with other things while a run went on (Linux; elsewhere unknown).

A figure measured beside somebody else's work is not false, but it is not this program's either:
the report says how much of the machine others took.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterable
from pathlib import Path

from benchmarks.process import cpu_of_process

_STAT = Path("/proc/stat")


class Watch:
    """Counts from its making on: processors used by everybody but the client and the broker."""

    def __init__(self, brokers: Iterable[int]) -> None:
        self._brokers = list(brokers)
        self._start = time.perf_counter()
        self._busy = _busy()
        self._ours = self._used()

    def other_cores(self) -> float | None:
        """Cores that others kept busy, on average; call it when the client's process has ended."""
        busy = _busy()
        if busy is None or self._busy is None:
            return None
        spent = (busy - self._busy) - (self._used() - self._ours)
        return max(0.0, spent / (time.perf_counter() - self._start))

    def _used(self) -> float:
        """Processor seconds of this process, its ended children and the brokers."""
        total = sum(cpu_of_process(pid) or 0.0 for pid in self._brokers)
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
            used = resource.getrusage(who)
            total += used.ru_utime + used.ru_stime
        return total


def _tick() -> float:
    return 1.0 / os.sysconf("SC_CLK_TCK")


def _busy() -> float | None:
    """Processor seconds that all processors together have worked, or were kept from us."""
    if not _STAT.exists():
        return None
    with _STAT.open() as lines:
        user, nice, system, _idle, _iowait, *rest = map(int, next(lines).split()[1:9])
    return (user + nice + system + sum(rest)) * _tick()
