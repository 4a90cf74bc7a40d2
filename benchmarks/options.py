"""Command line options that several benchmarks share, and what becomes of them."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from uuid import uuid4

from benchmarks.clients import Settings

if TYPE_CHECKING:
    from pykaproducer.testing import KafkaCluster

KIB, MIB = 1024, 1024 * 1024


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {number}")
    return number


def add_producer_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("settings, the same for all clients")
    group.add_argument("--acks", choices=("0", "1", "all"), help="default: 1")
    group.add_argument("--idempotence", action="store_true", help="needs --acks all")
    group.add_argument(
        "--compression", choices=("none", "gzip", "snappy", "lz4", "zstd"), help="default: none"
    )
    group.add_argument("--linger-ms", type=float, help="default: 5")
    group.add_argument("--batch-size", type=positive, help="bytes; default: 1000000")
    group.add_argument(
        "--buffer-memory", type=positive, metavar="MIB", help="bound of what waits; default: 256"
    )
    group.add_argument(
        "--defaults",
        action="store_true",
        help="leave each client its own defaults, but for the settings given here",
    )


def settings(arguments: argparse.Namespace, cluster: KafkaCluster) -> Settings:
    """The producer options as settings; standard values stand in unless ``--defaults``."""
    buffer = arguments.buffer_memory
    chosen = {
        "acks": arguments.acks,
        "compression": arguments.compression,
        "linger_ms": arguments.linger_ms,
        "batch_size": arguments.batch_size,
        "buffer_memory": None if buffer is None else buffer * MIB,
        "idempotence": True if arguments.idempotence else None,
    }
    standard = {
        "acks": "1",
        "compression": "none",
        "linger_ms": 5,
        "batch_size": 1_000_000,
        "buffer_memory": 256 * MIB,
        "idempotence": False,
    }
    for name, value in chosen.items():
        if value is None and not arguments.defaults:
            chosen[name] = standard[name]
    return Settings(cluster.bootstrap_servers, **chosen, poll_every=arguments.poll_every)


@contextmanager
def fresh_topic(cluster: KafkaCluster, partitions: int) -> Iterator[str]:
    """A topic of its own for one run, deleted afterwards with its data."""
    name = f"benchmark-{uuid4().hex[:12]}"
    cluster.create_topic(name, partitions, config={"file.delete.delay.ms": "0"})
    try:
        yield name
    finally:
        cluster.delete_topic(name)
