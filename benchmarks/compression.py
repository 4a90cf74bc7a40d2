"""Compression: the send loop with each codec, on pieces of English text.

Each client compresses at its own default level for the codec, unless ``--level`` sets one.
"""

from __future__ import annotations

import argparse

from benchmarks import options, peers, send
from benchmarks.report import Column
from benchmarks.runner import Session

PEERS = peers.NAMES[1:]

HELP = "throughput and processor time of a send loop with each codec"

COLUMNS = (
    Column("messages_per_s", "M messages/s", unit=1e6),
    Column("cpu_us", "CPU us/message"),
    Column("log_bytes", "bytes/message in the log", ".1f"),
    Column("peak_rss", "peak RSS, MiB", ".0f", unit=2**20),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--codecs",
        nargs="+",
        default=[*options.CODECS],
        choices=("none", *options.CODECS),
        metavar="CODEC",
        help="default: all",
    )
    send.add_load_options(parser, partitions=(12,))
    options.add_producer_options(parser, compression=False)
    parser.set_defaults(outcome="callback")


def run(arguments: argparse.Namespace, session: Session) -> None:
    cases = [
        _case(codec, partitions, arguments.level)
        for partitions in arguments.partitions
        for codec in arguments.codecs
    ]
    send.run_cases(arguments, session, cases)


def _case(codec: str, partitions: int, level: int | None) -> send.Case:
    if codec not in options.WITH_LEVELS:
        level = None
    named = codec if level is None else f"{codec} level {level}"
    return send.Case(
        f"{named}, {send.named(partitions)}",
        partitions,
        settings={"compression": codec, "compression_level": level},
        weighed=True,
    )
