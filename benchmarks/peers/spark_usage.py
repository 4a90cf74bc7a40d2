"""The resources used by a Spark application: its JVM, its Python workers, and other descendants.

They are read from Linux's ``/proc``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

#: The last argument of the command line of a PySpark daemon and of the processes that it forks.
WORKERS, _PLANNERS = "pyspark.worker", "pyspark.sql.worker."


@dataclass(frozen=True)
class Process:
    """A line of the process table."""

    pid: int
    parent: int
    command: tuple[str, ...]
    #: Processor seconds so far.
    cpu: float


@dataclass(frozen=True)
class Used:
    """Processor seconds used in a period."""

    jvm: float
    #: The Python processes of the executors, and the daemon that forks them. None if one of them
    #: has ended: no process waited for it, so its usage is lost.
    workers: float | None
    #: The Python processes of the driver: they plan and commit a write, and see no rows.
    planners: float


def used(jvm: int, before: Iterable[Process], after: Iterable[Process]) -> Used:
    """Return what the application of this JVM has used between two snapshots of the table."""
    then = {process.pid: process for process in below(jvm, before)}
    now = {process.pid: process for process in below(jvm, after)}

    def of(purpose: str) -> float:
        found = (process for process in now.values() if process.command[-1].startswith(purpose))
        return sum(_since(process, then) for process in found)

    gone = any(then[pid].command[-1] == WORKERS for pid in then.keys() - now.keys())
    own = _since(now[jvm], then) if jvm in now else 0.0
    return Used(own, None if gone else of(WORKERS), of(_PLANNERS))


def _since(process: Process, then: Mapping[int, Process]) -> float:
    return process.cpu - (then[process.pid].cpu if process.pid in then else 0.0)


def below(root: int, processes: Iterable[Process]) -> Iterator[Process]:
    """Yield a process and all its descendants."""
    found = {process.pid: process for process in processes}
    children: dict[int, list[Process]] = {}
    for process in found.values():
        children.setdefault(process.parent, []).append(process)
    todo = [found[root]] if root in found else []
    while todo:
        process = todo.pop()
        yield process
        todo += children.get(process.pid, [])


def running() -> list[Process]:
    """Return all visible processes of this machine."""
    tick = os.sysconf("SC_CLK_TCK")
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            text = (directory / "stat").read_text()
            command = (directory / "cmdline").read_bytes()
        except OSError:
            # It has ended in the meantime.
            continue
        # After the name, which may contain anything: state, parent, ... as proc(5) counts from 3.
        fields = text.rpartition(")")[2].split()
        words = tuple(word.decode(errors="replace") for word in command.split(b"\0") if word)
        cpu = (int(fields[11]) + int(fields[12])) / tick
        # Kernel threads and zombies have no arguments.
        found.append(Process(int(directory.name), int(fields[1]), words or ("",), cpu))
    return found
