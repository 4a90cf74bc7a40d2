"""Many partitions: the send loop at 1 to 5,000 partitions, and at 1,000 topics in turn.

Each client's partitioner assigns messages without a key, to few partitions at a time; ``--keyed``
spreads them over all. ``own-threads`` has ``stage_threads="own"``.
"""

from __future__ import annotations

import argparse

from benchmarks import options, peers, send
from benchmarks.report import Column
from benchmarks.runner import Session

PEERS = (*peers.NAMES[1:], "own-threads")

HELP = "throughput, memory and threads at many partitions, and at many topics"

COLUMNS = (
    Column("messages_per_s", "M messages/s", unit=1e6),
    Column("cpu_us", "CPU us/message"),
    Column("peak_rss", "peak RSS, MiB", ".0f", unit=2**20),
    Column("rss", "RSS when flushed, MiB", ".0f", unit=2**20),
    Column("threads", "threads", ".0f", compared=False),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    send.add_load_options(parser, partitions=(1, 10, 100, 1000, 5000))
    parser.add_argument(
        "--topics",
        type=int,
        nargs="*",
        default=[1000],
        metavar="N",
        help="topics of one partition each; without a number: none; default: 1000",
    )
    options.add_producer_options(parser)
    parser.set_defaults(outcome="callback")


def run(arguments: argparse.Namespace, session: Session) -> None:
    cases = [
        # With twice as many keys as partitions, nearly all of them are reached.
        send.Case(send.named(n), n, warm_up=max(send.WARM_UP, 2 * n))
        for n in arguments.partitions
    ]
    cases += [
        send.Case(f"{n:,} topics of 1 partition", 1, n, warm_up=max(send.WARM_UP, n))
        for n in arguments.topics
    ]
    send.run_cases(arguments, session, cases)
