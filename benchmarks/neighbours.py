"""How busy the machine was with other work during a run (on Linux; unknown elsewhere).

A figure measured beside other work is not wrong, but it is not the program's own either: the report
states how much of the machine was used by others.
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
    """A counter, from its creation on, of the cores used by neither client nor broker."""

    def __init__(self, brokers: Iterable[int]) -> None:
        self._brokers = list(brokers)
        self._start = time.perf_counter()
        self._busy = _busy()
        self._ours = self._used()

    def other_cores(self) -> float | None:
        """Return the average number of cores used by others; call it after the client has ended."""
        busy = _busy()
        if busy is None or self._busy is None:
            return None
        spent = (busy - self._busy) - (self._used() - self._ours)
        return max(0.0, spent / (time.perf_counter() - self._start))

    def _used(self) -> float:
        """Return the processor seconds of this process, its ended children and the brokers."""
        total = sum(cpu_of_process(pid) or 0.0 for pid in self._brokers)
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
            used = resource.getrusage(who)
            total += used.ru_utime + used.ru_stime
        return total


def _tick() -> float:
    return 1.0 / os.sysconf("SC_CLK_TCK")


def _busy() -> float | None:
    """Return the busy seconds of all processors, including stolen time."""
    if not _STAT.exists():
        return None
    with _STAT.open() as lines:
        user, nice, system, _idle, _iowait, *rest = map(int, next(lines).split()[1:9])
    return (user + nice + system + sum(rest)) * _tick()
