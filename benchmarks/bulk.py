"""Bulk: many messages per call, as lists of bytes built before the clock starts.

pykaproducer uses ``send_many``, with a future for each block; confluent-kafka uses
``produce_batch``, with lists of dicts and no callback.
"""

from __future__ import annotations

import argparse

from benchmarks import options, send
from benchmarks.report import Column
from benchmarks.runner import Session

PEERS = ("confluent-kafka", "raw")

HELP = "throughput and processor time of calls that take lists of messages"

COLUMNS = (
    Column("messages_per_s", "M messages/s", unit=1e6),
    Column("cpu_us", "CPU us/message"),
    Column("loop_ns", "calls ns/message", ".0f"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_block_options(parser)
    parser.set_defaults(outcome="bulk")


def add_block_options(parser: argparse.ArgumentParser) -> None:
    send.add_load_options(parser, partitions=(1, 12))
    parser.add_argument(
        "--block", type=options.positive, default=10_000, help="messages per call; default: 10000"
    )
    options.add_producer_options(parser)


def missing() -> str | None:
    """Return what is required and missing, if anything."""
    from pykaproducer import Producer

    return None if hasattr(Producer, "send_many") else "this pykaproducer has no send_many()"


def run(arguments: argparse.Namespace, session: Session) -> None:
    send.run(arguments, session)
