"""The cost of observation: the send loop with metrics, without, and watched by ``top``.

``metrics-off`` has ``metrics_enabled=False``; ``watched`` has a stats socket that ``pykaproducer
top`` reads once a second. The ratios are ours divided by theirs: CPU / metrics-off is the cost of
metrics, and CPU / watched below 1 the cost of being watched.
"""

from __future__ import annotations

import argparse

from benchmarks import options, send
from benchmarks.runner import Session

PEERS = ("metrics-off", "watched")

HELP = "the cost of metrics, and of being watched by top"

COLUMNS = send.COLUMNS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    send.add_load_options(parser, partitions=(1, 12), messages=4_000_000)
    options.add_producer_options(parser)
    parser.set_defaults(outcome="callback")


def run(arguments: argparse.Namespace, session: Session) -> None:
    send.run(arguments, session)
