"""``python -m benchmarks BENCHMARK [--vs PEER ...]``: measure and print. See ``README.rst``."""

from __future__ import annotations

import argparse
import importlib.util
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import clients, idle, machine, memory, report, send, startup, topics
from benchmarks.chaos import command as chaos
from benchmarks.options import positive
from benchmarks.runner import Session
from pykaproducer.testing import KafkaCluster

BENCHMARKS = {"send": send, "memory": memory, "idle": idle, "startup": startup, "topics": topics}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(dest="benchmark", required=True)
    for name, benchmark in BENCHMARKS.items():
        command = commands.add_parser(name, help=benchmark.HELP, description=benchmark.__doc__)
        command.add_argument(
            "--vs",
            nargs="+",
            default=[],
            choices=clients.NAMES[1:],
            metavar="PEER",
            help=f"compare with {' or '.join(clients.NAMES[1:])}",
        )
        command.add_argument(
            "--rounds", type=positive, default=5 if name == "send" else 3, help="%(default)s"
        )
        command.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
        benchmark.add_arguments(command)
    # No measurement: it has its own report, and its own cluster.
    chaos.add_arguments(commands.add_parser("chaos", help=chaos.HELP, description=chaos.__doc__))
    return parser


def _check(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """Refuse what argparse cannot see."""
    if arguments.benchmark == "chaos":
        chaos.check(parser, arguments)
        return
    for peer in arguments.vs:
        if importlib.util.find_spec(peer.replace("-", "_").replace("_python", "")) is None:
            parser.error(f"{peer} is not installed: pip install -r benchmarks/requirements.txt")
    if getattr(arguments, "idempotence", False) and arguments.acks != "all":
        parser.error("--idempotence needs --acks all")
    if arguments.benchmark == "topics" and arguments.vs:
        parser.error("topics measures pykaproducer alone")
    if arguments.benchmark == "memory" and "kafka-python" in arguments.vs:
        parser.error("kafka-python bounds nothing: its buffer would never be full")


def main(argv: Sequence[str] | None = None, cluster: KafkaCluster | None = None) -> int:
    """Run a command line; *cluster* is used instead of a new one. The exit status."""
    words = sys.argv[1:] if argv is None else list(argv)
    parser = _parser()
    arguments = parser.parse_args(words)
    _check(parser, arguments)
    if arguments.benchmark == "chaos":
        return chaos.run(arguments, words)
    benchmark = BENCHMARKS[arguments.benchmark]
    names = [clients.NAMES[0], *arguments.vs]
    description = machine.describe(["python", "-m", "benchmarks", *words], names)
    session = Session(names, arguments.rounds, KafkaCluster() if cluster is None else cluster)
    benchmark.run(arguments, session)
    print(machine.headline(description), end="\n\n")
    print(report.tables(session.runs, names, benchmark.COLUMNS))
    print(f"\n{report.quietness(session.runs)}")
    if arguments.json is not None:
        report.write_json(arguments.json, description, session.runs, names, benchmark.COLUMNS)
    return 1 if any(run.failure is not None for run in session.runs) else 0


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR)
    sys.exit(main())
