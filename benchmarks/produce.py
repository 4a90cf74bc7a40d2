"""The command ``produce`` and kcat: lines of a file, and of a pipe that ``cat`` fills.

kcat has its defaults, without idempotence. See :mod:`benchmarks.programs` for what is measured.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import options, programs
from benchmarks.programs import Case, Pipeline

if TYPE_CHECKING:
    from pykaproducer.testing import KafkaCluster

HELP = "lines per second of the command produce, and of kcat if it is installed"

_CASES = ("file", "pipe", "keyed file")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--lines", type=options.positive, default=2_000_000, help="%(default)s")
    parser.add_argument(
        "--size", type=options.positive, default=100, help="bytes of a line; default: %(default)s"
    )
    programs.add_arguments(parser, _CASES)


def check(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    if arguments.size < 10:
        parser.error("--size: a line has at least 10 bytes")


def run(
    arguments: argparse.Namespace, words: Sequence[str], cluster: KafkaCluster | None = None
) -> int:
    """Measure, print a line for each case and program, and return the exit status."""
    from pykaproducer.testing import KafkaCluster

    del words
    with tempfile.TemporaryDirectory() as directory, cluster or KafkaCluster() as running:
        one, many = Path(directory, "one"), Path(directory, "many")
        _write(one, 1, arguments.size)
        _write(many, arguments.lines, arguments.size)
        servers = running.bootstrap_servers
        programs.compare(
            running,
            arguments,
            [Case(name, one, many, arguments.lines) for name in arguments.cases],
            lambda case, topic, path: _programs(case.name, servers, topic, str(path)),
        )
    return 0


def _write(path: Path, lines: int, size: int) -> None:
    rng = random.Random(lines)
    with path.open("wb") as file:
        for number in range(lines):
            line = b"key-%d:" % (number % 1000) + rng.randbytes((size + 1) // 2).hex().encode()
            file.write(line[: size - 1] + b"\n")


def _programs(case: str, servers: str, topic: str, path: str) -> dict[str, Pipeline]:
    ours = [sys.executable, "-P", "-m", "pykaproducer", "produce", "-b", servers, "-t", topic]
    found = {"pykaproducer": [*ours, *(["--key-separator", ":"] if "keyed" in case else [])]}
    if kcat := kcat_command(servers, topic):
        found["kcat"] = [*kcat, *(["-K:"] if "keyed" in case else [])]
    if case == "pipe":
        return {name: [["cat", path], command] for name, command in found.items()}
    # As an argument, kcat takes a file as a single message unless -l says otherwise.
    return {
        name: [[*command, *(["-l"] if name == "kcat" else []), path]]
        for name, command in found.items()
    }


def kcat_command(servers: str, topic: str) -> list[str]:
    """Return the beginning of a command that sends lines; empty if kcat is not installed."""
    kcat = shutil.which("kcat") or shutil.which("kafkacat")
    return [kcat, "-P", "-b", servers, "-t", topic] if kcat else []
