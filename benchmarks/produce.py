"""The command ``produce`` and kcat: lines of a file, and of a pipe that ``cat`` fills.

Each round runs each program in each case, and alone for a single line: that time, in which a
program starts and ends, is subtracted. The clusters, the lines and the settings are the same; kcat
has its defaults, without idempotence.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import options, readback

if TYPE_CHECKING:
    from pykaproducer.testing import KafkaCluster

HELP = "lines per second of the command produce, and of kcat if it is installed"

_CASES = ("file", "pipe", "keyed file")


@dataclass(frozen=True)
class _Figures:
    #: Seconds of wall-clock time, and of processor time.
    wall: float
    cpu: float
    #: Peak resident memory (bytes).
    peak: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--lines", type=options.positive, default=2_000_000, help="%(default)s")
    parser.add_argument(
        "--size", type=options.positive, default=100, help="bytes of a line; default: %(default)s"
    )
    parser.add_argument("--partitions", type=options.positive, default=1, help="%(default)s")
    parser.add_argument("--rounds", type=options.positive, default=5, help="default: 5")
    parser.add_argument("--cases", nargs="+", choices=_CASES, default=list(_CASES), metavar="CASE")


def check(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    if arguments.size < 10:
        parser.error("--size: a line has at least 10 bytes")


def run(
    arguments: argparse.Namespace, words: Sequence[str], cluster: KafkaCluster | None = None
) -> int:
    """Measure, print a line for each case and program, and return the exit status."""
    from pykaproducer.testing import KafkaCluster

    del words
    found: dict[tuple[str, str], list[tuple[_Figures, _Figures]]] = {}
    with tempfile.TemporaryDirectory() as directory, cluster or KafkaCluster() as running:
        one, many = Path(directory, "one"), Path(directory, "many")
        _write(one, 1, arguments.size)
        _write(many, arguments.lines, arguments.size)
        for number in range(arguments.rounds):
            for case in arguments.cases:
                topic = f"produce-{number}-{case.replace(' ', '-')}"
                running.create_topic(topic, arguments.partitions)
                programs = _programs(running.bootstrap_servers, topic, keyed="keyed" in case)
                names = list(programs) if number % 2 else list(reversed(programs))
                for name in names:
                    measured = [
                        _measure(programs[name], source, through_pipe=case == "pipe")
                        for source in (one, many)
                    ]
                    found.setdefault((case, name), []).append((measured[0], measured[1]))
                sent = len(names) * (arguments.lines + 1)
                readback.check_log(running, [topic], arguments.partitions, sent)
            print(f"round {number + 1}, load {os.getloadavg()[0]:.1f}", file=sys.stderr)
    _print(found, arguments.lines)
    return 0


def _print(
    found: Mapping[tuple[str, str], Sequence[tuple[_Figures, _Figures]]], lines: int
) -> None:
    print("case        program       k lines/s  (range)        s for a line  CPU us/line  peak, MB")
    for (case, name), pairs in found.items():
        rates = [lines / max(many.wall - one.wall, 1e-9) / 1000 for one, many in pairs]
        cpu = [(many.cpu - one.cpu) / lines * 1e6 for one, many in pairs]
        alone = [one.wall for one, _ in pairs]
        print(
            f"{case:11} {name:13} {statistics.median(rates):9,.0f}  "
            f"({min(rates):,.0f} - {max(rates):,.0f})  {statistics.median(alone):10.2f}  "
            f"{statistics.median(cpu):11.2f}  {max(many.peak for _, many in pairs) / 1e6:8.0f}"
        )


def _write(path: Path, lines: int, size: int) -> None:
    rng = random.Random(lines)
    with path.open("wb") as file:
        for number in range(lines):
            line = b"key-%d:" % (number % 1000) + rng.randbytes((size + 1) // 2).hex().encode()
            file.write(line[: size - 1] + b"\n")


def _programs(servers: str, topic: str, *, keyed: bool) -> dict[str, list[str]]:
    """Return the command of each program; it reads the file that is added, or standard input."""
    ours = [sys.executable, "-P", "-m", "pykaproducer", "produce", "-b", servers, "-t", topic]
    programs = {"pykaproducer": [*ours, *(["--key-separator", ":"] if keyed else [])]}
    if kcat := shutil.which("kcat") or shutil.which("kafkacat"):
        programs["kcat"] = [kcat, "-P", "-b", servers, "-t", topic, *(["-K:"] if keyed else [])]
    return programs


def _measure(command: Sequence[str], source: Path, *, through_pipe: bool) -> _Figures:
    """Run *command* on the lines of *source*."""
    # As an argument, kcat takes a file as a single message unless -l says otherwise.
    by_name = ["-l", str(source)] if "kcat" in Path(command[0]).name else [str(source)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    began = time.perf_counter()
    if through_pipe:
        with subprocess.Popen(["cat", source], stdout=subprocess.PIPE) as cat:
            used = _finish(command, environment, cat.stdout)
    else:
        used = _finish([*command, *by_name], environment, subprocess.DEVNULL)
    return _Figures(
        time.perf_counter() - began, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024
    )


def _finish(
    command: Sequence[str], environment: Mapping[str, str], stdin: object
) -> resource.struct_rusage:
    """Run *command* to its end, and return what it used."""
    process = subprocess.Popen(
        command,
        env=environment,
        stdin=stdin,  # type: ignore[arg-type]
        stderr=subprocess.PIPE,
    )
    assert process.stderr is not None
    with process.stderr:
        said = process.stderr.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{command[0]} ended with status {process.returncode}: {said.decode()}")
    return used
