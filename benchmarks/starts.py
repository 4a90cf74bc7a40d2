"""The start of a ``KafkaCluster``, with and without the archive of the broker's classes.

Each round starts each kind of cluster and measures the time until it is ready, and the processor
time that its brokers have used by then.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks import options
from benchmarks.process import cpu_of_process

HELP = "the time until a test cluster is ready, with and without an archive of its classes"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--brokers", type=options.positive, nargs="+", default=[1, 3], metavar="N")
    parser.add_argument("--rounds", type=options.positive, default=10, help="default: 10")


def check(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    del parser, arguments


def run(arguments: argparse.Namespace, words: Sequence[str]) -> int:
    """Start all clusters, print a line for each kind, and return the exit status."""
    del words
    kinds = [(brokers, archived) for brokers in arguments.brokers for archived in (False, True)]
    figures: dict[tuple[int, bool], list[tuple[float, float]]] = {kind: [] for kind in kinds}
    with _without_archives() as empty_cache:
        # The first start makes the archive if there is none.
        _start(1)
        for number in range(arguments.rounds):
            for brokers, archived in kinds:
                measured = _start(brokers, None if archived else empty_cache)
                figures[brokers, archived].append(measured)
            print(f"round {number + 1}, load {os.getloadavg()[0]:.1f}", file=sys.stderr)
    print("brokers  archive  ready, s  (range)         CPU, s")
    for (brokers, archived), pairs in figures.items():
        wall, cpu = zip(*pairs, strict=True)
        print(
            f"{brokers:7}  {'yes' if archived else 'no':7}  {statistics.median(wall):8.2f}  "
            f"({min(wall):5.2f} - {max(wall):5.2f})  {statistics.median(cpu):6.2f}"
        )
    return 0


@contextmanager
def _without_archives() -> Iterator[str]:
    """Yield a cache directory that has Kafka, but no archive, and in which none can be made."""
    from pykaproducer.testing import _jars

    _jars.kafka_jars()
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory, "pykaproducer")
        (copy / "archive.lock").mkdir(parents=True)
        for listing in _jars.cache_directory().glob("*.json"):
            shutil.copy(listing, copy)
        yield directory


def _start(brokers: int, cache: str | None = None) -> tuple[float, float]:
    """Return the seconds until a cluster was ready, and those of the processors."""
    from pykaproducer.testing import KafkaCluster

    before = os.environ.get("XDG_CACHE_HOME")
    if cache is not None:
        os.environ["XDG_CACHE_HOME"] = cache
    try:
        began = time.perf_counter()
        with KafkaCluster(brokers) as cluster:
            wall = time.perf_counter() - began
            used = [cpu_of_process(broker.pid) or 0.0 for broker in cluster.brokers]
    finally:
        if before is not None:
            os.environ["XDG_CACHE_HOME"] = before
        elif cache is not None:
            del os.environ["XDG_CACHE_HOME"]
    return wall, sum(used)
