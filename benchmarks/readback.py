"""The contents of the broker's log, read with another client: kafka-python's consumer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from benchmarks.child import RunFailed

if TYPE_CHECKING:
    from pykaproducer.testing import KafkaCluster

#: The broker makes directories and files for thousands of partitions.
_TIMEOUT_MS = 120_000


def check_log(
    cluster: KafkaCluster,
    topics: Sequence[str],
    partitions: int,
    expected: int,
    patience: float = 0.0,
) -> None:
    """Raise RunFailed unless every message is in the log once within *patience* seconds."""
    deadline = time.monotonic() + patience
    with _messages(cluster, topics, partitions) as count:
        found = count()
        while found < expected and time.monotonic() < deadline:
            time.sleep(0.1)
            found = count()
    if found != expected:
        raise RunFailed(f"{expected} messages were sent, but the log holds {found}")


def wait_until_served(cluster: KafkaCluster, topics: Sequence[str], partitions: int) -> None:
    """Wait until the broker serves the partitions that its metadata says it leads."""
    with _messages(cluster, topics, partitions) as count:
        count()


def wait_for_a_message(cluster: KafkaCluster, topic: str, partitions: int, patience: float) -> None:
    """Wait until something is in the log; raise RunFailed on timeout."""
    deadline = time.monotonic() + patience
    with _messages(cluster, [topic], partitions) as count:
        while not count():
            if time.monotonic() > deadline:
                raise RunFailed(f"no message reached the log within {patience:g} s")


@contextmanager
def _messages(
    cluster: KafkaCluster, topics: Sequence[str], partitions: int
) -> Iterator[Callable[[], int]]:
    """Yield a function that counts the messages in the log of all these topics."""
    from kafka import KafkaConsumer, TopicPartition

    places = [TopicPartition(topic, i) for topic in topics for i in range(partitions)]
    consumer = KafkaConsumer(bootstrap_servers=cluster.bootstrap_servers)
    try:
        yield lambda: sum(consumer.end_offsets(places, timeout_ms=_TIMEOUT_MS).values())
    finally:
        consumer.close()


def log_bytes(cluster: KafkaCluster, topics: Sequence[str], partitions: int) -> int:
    """Return the size of the topics' log in bytes."""
    from kafka import KafkaAdminClient

    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)
    try:
        found = admin.describe_log_dirs({topic: list(range(partitions)) for topic in topics})
    finally:
        admin.close()
    return sum(_partition_sizes(found))


def _partition_sizes(found: Any) -> Iterator[int]:
    for broker in found:
        for directory in broker["log_dirs"]:
            for topic in directory["topics"]:
                yield from (partition["partition_size"] for partition in topic["partitions"])
