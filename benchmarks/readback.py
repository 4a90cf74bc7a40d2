"""The contents of the broker's log, read with another client: kafka-python's consumer."""

from __future__ import annotations

import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.child import RunFailed

if TYPE_CHECKING:
    from pykaproducer.testing import KafkaCluster

#: The broker makes directories and files for thousands of partitions.
_TIMEOUT_MS = 120_000

#: The seconds in which the markers of committed transactions reach all partitions.
_MARKERS = 20.0
#: A record batch up to its records: length, attributes, producer id, number of records.
_BATCH = struct.Struct(">8xi9xh20xq6xi")
_PREFIX = 12  # not part of the length
_TRANSACTIONAL, _CONTROL = 0x10, 0x20
#: The key of a control record, which follows five bytes of the record: its version and its type.
_MARKER = struct.Struct(">5xhh")
_COMMIT = 1


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


def check_committed(cluster: KafkaCluster, topic: str, expected: int) -> None:
    """Raise RunFailed unless the log holds this many messages, all committed.

    Messages outside of transactions count as committed.
    """
    deadline = time.monotonic() + _MARKERS
    while True:
        # A broker answers before it has written the markers of the end.
        found = _committed(cluster, topic)
        if found == (expected, 0):
            return
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    committed, other = found
    raise RunFailed(
        f"{expected} messages were sent, but the log holds {committed} that are committed, and "
        f"{other} that are not"
    )


def check_offset(cluster: KafkaCluster, group: str, topic: str, expected: int) -> None:
    """Raise RunFailed unless the group's committed offset of partition 0 is *expected*."""
    from kafka import KafkaAdminClient, TopicPartition

    place = TopicPartition(topic, 0)
    deadline = time.monotonic() + _MARKERS
    admin = KafkaAdminClient(bootstrap_servers=_servers(cluster))
    try:
        while True:
            found = admin.list_group_offsets({group: [place]})[group][place].offset
            if found == expected:
                return
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)
    finally:
        admin.close()
    raise RunFailed(f"the committed offset of the group is {found}, not {expected}")


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
    consumer = KafkaConsumer(bootstrap_servers=_servers(cluster))
    try:
        yield lambda: sum(consumer.end_offsets(places, timeout_ms=_TIMEOUT_MS).values())
    finally:
        consumer.close()


def _servers(cluster: KafkaCluster) -> str:
    """Return the addresses of the listeners that need no credentials, which every broker has."""
    return ",".join(f"{broker.host}:{broker.port}" for broker in cluster.brokers)


def log_bytes(cluster: KafkaCluster, topics: Sequence[str], partitions: int) -> int:
    """Return the size of the topics' log in bytes."""
    from kafka import KafkaAdminClient

    admin = KafkaAdminClient(bootstrap_servers=_servers(cluster))
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


def _committed(cluster: KafkaCluster, topic: str) -> tuple[int, int]:
    """Count the messages in committed transactions, and all others, from the brokers' files.

    A consumer would take longer than the run: here only the heads of the batches are read.
    """
    committed = other = 0
    for directory in log_directories(cluster, topic):
        open_: Counter[int] = Counter()
        for attributes, producer_id, count, kind in _batches(directory):
            if not attributes & _TRANSACTIONAL:
                committed += count
            elif not attributes & _CONTROL:
                open_[producer_id] += count
            elif kind == _COMMIT:
                committed += open_.pop(producer_id, 0)
            else:
                other += open_.pop(producer_id, 0)
        other += open_.total()
    return committed, other


def log_directories(cluster: KafkaCluster, topic: str) -> list[Path]:
    """Return the directory of each partition, on one of the brokers that have it."""
    from kafka import KafkaAdminClient

    admin = KafkaAdminClient(bootstrap_servers=_servers(cluster))
    try:
        found = admin.describe_log_dirs()
    finally:
        admin.close()
    directories = {
        f"{each['name']}-{partition['partition_index']}": Path(directory["log_dir"])
        for broker in found
        for directory in broker["log_dirs"]
        for each in directory["topics"]
        if each["name"] == topic
        for partition in each["partitions"]
    }
    return [path / name for name, path in directories.items()]


def count_batches(directories: Sequence[Path]) -> int:
    """Return how many batches, control batches included, the log in *directories* has."""
    return sum(1 for directory in directories for _ in _batches(directory))


def _batches(directory: Path) -> Iterator[tuple[int, int, int, int | None]]:
    """Yield attributes, producer id, number of records, and the type of a control record."""
    for path in sorted(directory.glob("*.log")):
        with path.open("rb") as log:
            end = 0
            while len(head := log.read(_BATCH.size)) == _BATCH.size:
                length, attributes, producer_id, count = _BATCH.unpack(head)
                kind = None
                if attributes & _CONTROL:
                    _, kind = _MARKER.unpack(log.read(_MARKER.size))
                yield attributes, producer_id, count, kind
                end += _PREFIX + length
                log.seek(end)
