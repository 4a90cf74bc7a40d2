"""Reading a topic with kafka-python's consumer."""

from __future__ import annotations

import gc
import time
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from kafka import KafkaConsumer, TopicPartition


def consume(servers: str, topic: str, count: int, partitions: Sequence[int] = (0,)) -> list[Any]:
    """Return the first *count* messages of a topic; fail if they do not arrive."""
    return list(_records(servers, topic, count, partitions))


def read_through(
    servers: str, topic: str, partitions: Sequence[int] = (0,), *, committed: bool
) -> list[Any]:
    """Return the values in a topic up to its present end, partition by partition.

    With *committed*, those of aborted transactions are missing, and it waits for open ones.
    """
    places = [TopicPartition(topic, partition) for partition in partitions]
    every = KafkaConsumer(bootstrap_servers=servers, enable_auto_commit=False)
    level = "read_committed" if committed else "read_uncommitted"
    reader = KafkaConsumer(
        bootstrap_servers=servers, enable_auto_commit=False, isolation_level=level
    )
    try:
        ends = every.end_offsets(places)
        reader.partitions_for_topic(topic)  # position() of kafka-python 2 does not look it up
        reader.assign(places)
        reader.seek_to_beginning()
        values: dict[Any, list[Any]] = {place: [] for place in places}
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            for place, records in reader.poll(100).items():
                values[place] += [record.value for record in records]
            if all(reader.position(place) >= ends[place] for place in places):
                return [value for place in places for value in values[place]]
        raise AssertionError("a transaction remains open")
    finally:
        every.close()
        reader.close()


def close_member(consumer: Any) -> None:
    """Close a consumer of kafka-python that is a member of a group.

    It may be connecting to its coordinator. kafka-python 3.0 then leaves the socket to the garbage
    collector.
    """
    consumer.close()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def _records(servers: str, topic: str, count: int, partitions: Sequence[int]) -> Iterator[Any]:
    consumer = KafkaConsumer(
        bootstrap_servers=servers, consumer_timeout_ms=30_000, max_partition_fetch_bytes=8 << 20
    )
    try:
        consumer.assign([TopicPartition(topic, partition) for partition in partitions])
        consumer.seek_to_beginning()
        for number, record in enumerate(consumer, 1):
            yield record
            if number == count:
                return
        raise AssertionError(f"{topic} has no {count} messages")
    finally:
        consumer.close()
