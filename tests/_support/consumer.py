"""Reading a topic with kafka-python's consumer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from kafka import KafkaConsumer, TopicPartition


def consume(servers: str, topic: str, count: int, partitions: Sequence[int] = (0,)) -> list[Any]:
    """Return the first *count* messages of a topic; fail if they do not arrive."""
    return list(_records(servers, topic, count, partitions))


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
