"""Command line options that several benchmarks share, and the settings made from them."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from benchmarks.clients import Settings
from benchmarks.peers import Feature

if TYPE_CHECKING:
    from pykaproducer.testing import KafkaCluster

MIB = 1024 * 1024

#: As ``pykaproducer._util.compression.CODECS``. Not imported: the process of a peer must not
#: contain this package, whose memory would count as the peer's.
CODECS = ("gzip", "snappy", "lz4", "zstd")
WITH_LEVELS = {"gzip", "lz4", "zstd"}


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {number}")
    return number


def at_least_100(text: str) -> int:
    """Parse a number; a 99th percentile needs at least 100 messages."""
    number = positive(text)
    if number < 100:
        raise argparse.ArgumentTypeError(f"must be at least 100, not {number}")
    return number


#: The clients' settings unless an option or ``--defaults`` changes them.
STANDARD: dict[str, Any] = {
    "acks": "1",
    "idempotence": False,
    "compression": "none",
    "linger_ms": 5,
    "batch_size": 1_000_000,
    "buffer_memory": 256 * MIB,
    "in_flight": 5,
}


def add_producer_options(
    parser: argparse.ArgumentParser, *, compression: bool = True, **standard: object
) -> None:
    """Add options for the settings; *standard* overrides :data:`STANDARD` in this benchmark.

    *compression*: whether it is an option here.
    """
    usual = {**STANDARD, **standard}
    parser.set_defaults(standard=usual, compression=None)
    group = parser.add_argument_group("settings, the same for all clients")
    group.add_argument("--acks", choices=("0", "1", "all"), help=f"default: {usual['acks']}")
    group.add_argument("--idempotence", action="store_true", help="needs --acks all")
    if compression:
        group.add_argument(
            "--compression", choices=("none", *CODECS), help=f"default: {usual['compression']}"
        )
    group.add_argument(
        "--level",
        type=int,
        help="compression level; default: each client's own level for the codec",
    )
    group.add_argument("--linger-ms", type=float, help=f"default: {usual['linger_ms']:g}")
    group.add_argument("--batch-size", type=positive, help=f"bytes; default: {usual['batch_size']}")
    group.add_argument(
        "--buffer-memory",
        type=positive,
        metavar="MIB",
        help="limit of buffered messages; default: 256",
    )
    group.add_argument(
        "--defaults",
        action="store_true",
        help="keep each client's own defaults, except for the settings given here",
    )
    group.add_argument(
        "--poll-every",
        type=positive,
        default=1000,
        help="confluent-kafka: messages between calls of poll(0)",
    )


def settings(arguments: argparse.Namespace, cluster: KafkaCluster) -> Settings:
    """Return the producer options as settings; standard values apply unless ``--defaults``."""
    buffer = arguments.buffer_memory
    chosen = {
        "acks": arguments.acks,
        "compression": arguments.compression,
        "linger_ms": arguments.linger_ms,
        "batch_size": arguments.batch_size,
        "buffer_memory": None if buffer is None else buffer * MIB,
        "idempotence": True if arguments.idempotence else None,
    }
    given = {name: value for name, value in chosen.items() if value is not None}
    return Settings(
        cluster.bootstrap_servers,
        **({} if arguments.defaults else arguments.standard) | given,
        compression_level=arguments.level,
        poll_every=arguments.poll_every,
    )


def contradiction(arguments: argparse.Namespace) -> str | None:
    """Return the conflict between the producer options, if any."""
    if getattr(arguments, "idempotence", False) and arguments.acks != "all":
        return "--idempotence needs --acks all"
    codecs = getattr(arguments, "codecs", [getattr(arguments, "compression", None)])
    if getattr(arguments, "level", None) is not None and not set(codecs) & WITH_LEVELS:
        return f"--level needs one of the codecs {', '.join(sorted(WITH_LEVELS))}"
    return None


def needs(arguments: argparse.Namespace) -> set[Feature]:
    """Return the features that a client must have for this command."""
    asked = {
        Feature.KEYS: getattr(arguments, "keyed", False),
        Feature.LEVELS: getattr(arguments, "level", None) is not None,
        Feature.TOPICS: bool(getattr(arguments, "topics", None)),
        Feature.OFFSETS: getattr(arguments, "offsets", False),
    }
    return {feature for feature, wanted in asked.items() if wanted}


@contextmanager
def fresh_topic(
    cluster: KafkaCluster, partitions: int, config: Mapping[str, str] | None = None
) -> Iterator[str]:
    """Yield a separate topic for one run; it is deleted afterwards with its data."""
    name = _topic_name()
    cluster.create_topic(name, partitions, config={**_config(partitions), **(config or {})})
    try:
        yield name
    finally:
        cluster.delete_topic(name)


@contextmanager
def fresh_topics(
    cluster: KafkaCluster, count: int, partitions: int, config: Mapping[str, str] | None = None
) -> Iterator[list[str]]:
    """Yield separate topics for one run; they are deleted afterwards with their data."""
    if count == 1:
        with fresh_topic(cluster, partitions, config) as topic:
            yield [topic]
        return
    from kafka import KafkaAdminClient

    # All in one request: one by one takes 50 ms each.
    prefix = _topic_name()
    names = [f"{prefix}-{i}" for i in range(count)]
    each = {
        "num_partitions": partitions,
        "replication_factor": 1,
        "configs": {**_config(count * partitions), **(config or {})},
    }
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)
    try:
        admin.create_topics(dict.fromkeys(names, each))
        try:
            admin.wait_for_topics(names, timeout_ms=60_000)
            yield names
        finally:
            admin.delete_topics(names)
    finally:
        admin.close()


#: From this many partitions on, work that the broker would do for all of them at once is disabled.
_MANY = 100


def _config(partitions: int) -> dict[str, str]:
    # Files are deleted with their topic, not a minute later during the next run.
    config = {"file.delete.delay.ms": "0"}
    if partitions >= _MANY:
        # When a partition has its first 4 KiB the broker writes the first entry of its index, a new
        # page of a file. If all of them reach that at the same moment, every client waits for the
        # broker's disk, for seconds.
        config["index.interval.bytes"] = "1000000000"
    return config


def _topic_name() -> str:
    return f"benchmark-{uuid4().hex[:12]}"
