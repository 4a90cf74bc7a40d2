"""Overlap: the share of messages acknowledged, with their callbacks called, when the loop ends.

A view of ``send``: the same runs, showing how well the client works beside a busy sender.
"""

from __future__ import annotations

import argparse

from benchmarks import options, send
from benchmarks.report import Column
from benchmarks.runner import Session

#: Clients that report deliveries while the loop runs.
PEERS = ("confluent-kafka", "kafka-python", "aiokafka", "franz-go", "sarama")

HELP = "the share of messages acknowledged when the send loop ends"

COLUMNS = (
    Column("overlap", "acked in the loop, %", ".0f", unit=0.01, compared=False),
    Column("loop_ns", "loop ns/message", ".0f"),
    Column("messages_per_s", "M messages/s", unit=1e6),
    Column("peak_rss", "peak RSS, MiB", ".0f", unit=2**20),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    send.add_load_options(parser, partitions=(1, 12))
    options.add_producer_options(parser)
    parser.set_defaults(outcome="callback")


def run(arguments: argparse.Namespace, session: Session) -> None:
    send.run(arguments, session)
