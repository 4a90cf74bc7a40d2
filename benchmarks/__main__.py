"""``python -m benchmarks BENCHMARK [--vs PEER ...]``: measure and print. See ``README.rst``."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import (
    arrow,
    bulk,
    compression,
    distant,
    everyday,
    faults,
    hops,
    idle,
    kernel,
    load,
    machine,
    memory,
    observed,
    options,
    overlap,
    partitions,
    peers,
    plot,
    produce,
    report,
    restart,
    send,
    sizes,
    spark,
    spark_kills,
    spark_memory,
    starts,
    startup,
    sync,
    threads,
    topics,
    transactions,
)
from benchmarks.runner import Session
from pykaproducer.testing import KafkaCluster

#: Benchmarks that compare clients, run by run. Each has ``PEERS``, ``HELP``, ``COLUMNS``,
#: ``add_arguments(parser)`` and ``run(arguments, session)``; optional are ``REFUSED`` (why a peer
#: is not supported), ``missing()`` (the missing requirement, if any), ``refused(arguments)`` (why
#: they cannot be), and ``peer(name)``, in place of :data:`peers.TABLE`.
BENCHMARKS: dict[str, Any] = {
    "send": send,
    "bulk": bulk,
    "arrow": arrow,
    "sync": sync,
    "hops": hops,
    "overlap": overlap,
    "partitions": partitions,
    "distant": distant,
    "everyday": everyday,
    "compression": compression,
    "sizes": sizes,
    "memory": memory,
    "idle": idle,
    "startup": startup,
    "topics": topics,
    "transactions": transactions,
    "observed": observed,
    "faults": faults,
    "restart": restart,
}

#: Commands that do not use the table of peers. Each has ``HELP``, ``add_arguments(parser)``,
#: ``check(parser, arguments)`` and ``run(arguments, words)``, which returns the exit status.
OTHERS: dict[str, Any] = {
    "spark": spark,
    "spark-kills": spark_kills,
    "spark-memory": spark_memory,
    "starts": starts,
    "produce": produce,
    "load": load,
    "kernel": kernel,
    "threads": threads,
    "plot": plot,
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(dest="benchmark", required=True)
    for name, benchmark in BENCHMARKS.items():
        command = commands.add_parser(name, help=benchmark.HELP, description=benchmark.__doc__)
        taken = benchmark.PEERS
        command.add_argument(
            "--vs",
            nargs="+",
            default=[],
            choices=[*peers.NAMES[1:], *peers.VARIANTS],
            metavar="PEER",
            help=f"compare with {', '.join(taken)}" if taken else argparse.SUPPRESS,
        )
        command.add_argument(
            "--rounds",
            type=options.positive,
            default=5 if name == "send" else 3,
            help="default: %(default)s",
        )
        command.add_argument(
            "--json", type=Path, metavar="FILE", help="write all figures to this file"
        )
        benchmark.add_arguments(command)
    for name, other in OTHERS.items():
        other.add_arguments(commands.add_parser(name, help=other.HELP, description=other.__doc__))
    return parser


def _check(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """Reject arguments that argparse cannot check, and commands that cannot run here."""
    name = arguments.benchmark
    if name in OTHERS:
        OTHERS[name].check(parser, arguments)
        return
    benchmark = BENCHMARKS[name]
    for peer in arguments.vs:
        if not benchmark.PEERS:
            parser.error(f"{name} measures pykaproducer alone")
        if peer not in benchmark.PEERS:
            why = getattr(benchmark, "REFUSED", {}).get(peer)
            parser.error(
                why or f"{name} does not support {peer}, only {', '.join(benchmark.PEERS)}"
            )
        for feature in sorted(options.needs(arguments) & peers.TABLE[peer].lacks, key=str):
            parser.error(f"{peer} does not support {feature.value}, which this command needs")
    wrong = options.contradiction(arguments)
    if wrong is None and hasattr(benchmark, "missing"):
        wrong = benchmark.missing()
    if wrong is None and hasattr(benchmark, "refused"):
        wrong = benchmark.refused(arguments)
    if wrong is not None:
        parser.error(wrong)
    for peer in arguments.vs:
        try:
            getattr(benchmark, "peer", peers.TABLE.__getitem__)(peer).prepare()
        except peers.Unavailable as error:
            parser.error(str(error))


def main(argv: Sequence[str] | None = None, cluster: KafkaCluster | None = None) -> int:
    """Run a command line on *cluster*, or on a new one, and return the exit status."""
    words = sys.argv[1:] if argv is None else list(argv)
    parser = _parser()
    arguments = parser.parse_args(words)
    _check(parser, arguments)
    if arguments.benchmark in OTHERS:
        lent = {} if cluster is None else {"cluster": cluster}
        status: int = OTHERS[arguments.benchmark].run(arguments, words, **lent)
        return status
    benchmark = BENCHMARKS[arguments.benchmark]
    names = [peers.NAMES[0], *arguments.vs]
    description = {
        "benchmark": arguments.benchmark,
        "title": f"{arguments.benchmark}: {benchmark.HELP}",
        **machine.describe(["python", "-m", "benchmarks", *words], names),
    }
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
