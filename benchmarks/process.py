"""Resources used by a process: processor time, memory, wake-ups."""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

_STATM = Path("/proc/self/statm")
_TASKS = Path("/proc/self/task")

_CALIBRATIONS, _CALIBRATION_STEPS = 8, 200_000


@dataclass(frozen=True)
class Usage:
    """A point in time or (as a difference) a period, with the usage of all threads."""

    #: Wall-clock seconds.
    wall: float
    #: Seconds of processor time, user and system.
    cpu: float
    #: How often a thread blocked voluntarily: each time it was woken up again.
    sleeps: int

    @classmethod
    def now(cls) -> Usage:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return cls(time.perf_counter(), used.ru_utime + used.ru_stime, used.ru_nvcsw)

    def __sub__(self, earlier: Usage) -> Usage:
        return Usage(self.wall - earlier.wall, self.cpu - earlier.cpu, self.sleeps - earlier.sleeps)


def calibrate() -> float:
    """Return the nanoseconds for a step of a fixed loop: the present speed of the machine.

    The best of several: an interruption lengthens one of them, a slower machine all.
    """
    best = float("inf")
    for _ in range(_CALIBRATIONS):
        start = time.perf_counter()
        for _ in range(_CALIBRATION_STEPS):
            pass
        best = min(best, time.perf_counter() - start)
    return best / _CALIBRATION_STEPS * 1e9


def resident() -> int:
    """Return the resident memory in bytes; the peak, where the system does not provide it."""
    if _STATM.exists():
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return peak_resident()


def peak_resident() -> int:
    """Return the peak resident memory of this process, in bytes.

    Linux's ``ru_maxrss`` also includes what the process was before ``exec``, a copy of its parent:
    hence ``/proc`` where it exists.
    """
    found = peak_of_process(os.getpid())
    if found is not None:
        return found
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def peak_of_process(pid: int) -> int | None:
    """Return the peak of another process; None if it has ended or is not provided."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    for line in status.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return None


def threads(pid: int | None = None) -> int | None:
    """Return all threads of a process (None: this one), including those of C libraries.

    None where the system does not provide it.
    """
    try:
        return len(os.listdir(f"/proc/{pid or os.getpid()}/task"))
    except OSError:
        return None


def sleeps_of_threads() -> dict[str, int]:
    """Return how often each thread of this process has blocked voluntarily, by name.

    Threads that Python does not know, those of C libraries, have their system's name; threads with
    one name are added up. Empty where the system does not provide it.
    """
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    found: Counter[str] = Counter()
    for task in _TASKS.glob("*"):
        try:
            status = dict(line.split(":", 1) for line in (task / "status").read_text().splitlines())
        except OSError:  # it has ended
            continue
        name = names.get(int(task.name)) or status["Name"].strip()
        found[name] += int(status["voluntary_ctxt_switches"])
    return dict(found)


def cpu_of_process(pid: int) -> float | None:
    """Return the processor seconds that another process has used; None where unavailable."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
