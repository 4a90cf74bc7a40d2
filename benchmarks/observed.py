"""What it costs to be observed: the send loop with metrics, without, and watched by ``top``.

``metrics-off`` has ``metrics_enabled=False``, ``watched`` a stats socket that ``pykaproducer top``
asks once a second. The ratios are ours divided by theirs: CPU / metrics-off is what metrics cost,
CPU / watched below 1 what being watched costs.
"""

from __future__ import annotations

import argparse

from benchmarks import options, peers, send
from benchmarks.runner import Session

PEERS = tuple(peers.VARIANTS)

HELP = "what metrics cost, and being watched by top"

COLUMNS = send.COLUMNS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    send.add_load_options(parser, partitions=(1, 12), messages=4_000_000)
    options.add_producer_options(parser)
    parser.set_defaults(outcome="callback")


def run(arguments: argparse.Namespace, session: Session) -> None:
    send.run(arguments, session)
