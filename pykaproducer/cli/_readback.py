"""Reading a topic back with an independent consumer: kafka-python's."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Mapping

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python's own, at import
    from kafka import KafkaConsumer
    from kafka.structs import TopicPartition


def read_back(
    servers: str, topic: str, ends: Mapping[int, int], timeout: float
) -> Iterator[tuple[int, bytes | None, bytes | None]]:
    """(partition, key, value) of every message below *ends*, in order within a partition.

    Stops when all are there, or at *timeout* seconds.
    """
    deadline = time.monotonic() + timeout
    consumer = KafkaConsumer(bootstrap_servers=servers, max_partition_fetch_bytes=8 << 20)
    try:
        left = {TopicPartition(topic, partition): end for partition, end in ends.items() if end}
        consumer.assign(list(left))
        consumer.seek_to_beginning()
        while left and time.monotonic() < deadline:
            for place, records in consumer.poll(timeout_ms=500, max_records=20_000).items():
                for record in records:
                    yield record.partition, record.key, record.value
                if place in left and records[-1].offset + 1 >= left[place]:
                    del left[place]
    finally:
        consumer.close()
