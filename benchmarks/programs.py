"""Programs that send a file, compared as whole processes.

Each round runs each program in each case, and alone for a file with a single row: that time, in
which a program starts and ends, is subtracted. The clusters and the files are the same.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import options, readback
from benchmarks.child import RunFailed

if TYPE_CHECKING:
    from pykaproducer.testing import KafkaCluster

#: Commands, each of which reads what the one before it writes. The first reads no input.
Pipeline = Sequence[Sequence[str]]


@dataclass(frozen=True)
class Figures:
    """What the processes of a pipeline have used together."""

    #: Seconds of wall-clock time, and of processor time.
    wall: float
    cpu: float
    #: Peak resident memory of the largest one (bytes).
    peak: int


@dataclass(frozen=True)
class Case:
    """A file that each program sends."""

    name: str
    #: The same with a single row.
    one: Path
    many: Path
    rows: int
    columns: int = 1


#: Returns the pipeline of each program for a topic and a file.
Programs = Callable[[Case, str, Path], Mapping[str, Pipeline]]


def add_arguments(parser: argparse.ArgumentParser, cases: Sequence[str]) -> None:
    parser.add_argument("--partitions", type=options.positive, default=1, help="%(default)s")
    parser.add_argument("--rounds", type=options.positive, default=5, help="default: 5")
    parser.add_argument("--cases", nargs="+", choices=cases, default=list(cases), metavar="CASE")


def compare(
    cluster: KafkaCluster, arguments: argparse.Namespace, cases: Sequence[Case], programs: Programs
) -> None:
    """Run all programs in turn, round by round, and print a line for each case and program."""
    found: dict[tuple[str, str], list[tuple[Figures, Figures]]] = {}
    for number in range(arguments.rounds):
        for case in cases:
            names = list(programs(case, "", case.one))
            for name in names if number % 2 else reversed(names):
                topic = re.sub(r"\W+", "-", f"{arguments.benchmark}-{case.name}-{number}-{name}")
                cluster.create_topic(topic, arguments.partitions)
                one, many = (programs(case, topic, path)[name] for path in (case.one, case.many))
                found.setdefault((case.name, name), []).append((measure(one), measure(many)))
                _check(cluster, topic, arguments.partitions, case.rows + 1, name)
        print(f"round {number + 1}, load {os.getloadavg()[0]:.1f}", file=sys.stderr)
    print(_table(found, {case.name: case for case in cases}))


def _check(cluster: KafkaCluster, topic: str, partitions: int, rows: int, name: str) -> None:
    try:
        readback.check_log(cluster, [topic], partitions, rows)
    except RunFailed as error:
        if "kcat" not in name:
            raise
        # kcat 1.7 cuts some lines of a pipe in two if they have tens of thousands of bytes.
        print(f"{topic}: {error}", file=sys.stderr)


def measure(pipeline: Pipeline) -> Figures:
    """Run the commands of *pipeline* to their ends."""
    # Each imports exactly what this process would.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    began = time.perf_counter()
    processes: list[subprocess.Popen[bytes]] = []
    for command in pipeline:
        source = processes[-1].stdout if processes else subprocess.DEVNULL
        sink = subprocess.PIPE if len(processes) + 1 < len(pipeline) else subprocess.DEVNULL
        processes.append(
            subprocess.Popen(
                command, env=environment, stdin=source, stdout=sink, stderr=subprocess.PIPE
            )
        )
        if processes[1:] and source is not None and not isinstance(source, int):
            source.close()  # the command before it sees when this one ends
    used = [_finish(process) for process in reversed(processes)]
    return Figures(
        time.perf_counter() - began,
        sum(each.ru_utime + each.ru_stime for each in used),
        max(each.ru_maxrss for each in used) * 1024,
    )


def _finish(process: subprocess.Popen[bytes]) -> resource.struct_rusage:
    """Wait until a process ends, and return what it used."""
    assert process.stderr is not None
    with process.stderr:
        said = process.stderr.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RunFailed(f"{process.args!r} ended with {process.returncode}: {said.decode()}")
    return used


def _table(
    found: Mapping[tuple[str, str], Sequence[tuple[Figures, Figures]]], cases: Mapping[str, Case]
) -> str:
    lines = [
        f"{'case':<16}{'program':<20}{'k rows/s':>9}  {'(range)':<20}{'ns/cell':>8}"
        f"{'s for one':>11}{'CPU us/row':>12}{'peak, MB':>10}"
    ]
    for (name, program), pairs in found.items():
        rows, columns = cases[name].rows, cases[name].columns
        seconds = [max(many.wall - one.wall, 1e-9) for one, many in pairs]
        rates = [rows / each / 1000 for each in seconds]
        cpu = [(many.cpu - one.cpu) / rows * 1e6 for one, many in pairs]
        spread = f"({min(rates):,.1f} - {max(rates):,.1f})"
        lines.append(
            f"{name:<16}{program:<20}{statistics.median(rates):>9,.1f}  {spread:<20}"
            f"{statistics.median(seconds) / rows / columns * 1e9:>8,.0f}"
            f"{statistics.median(one.wall for one, _ in pairs):>11.2f}"
            f"{statistics.median(cpu):>12.2f}{max(many.peak for _, many in pairs) / 1e6:>10.0f}"
        )
    return "\n".join(lines)
