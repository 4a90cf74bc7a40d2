"""Reading a topic back with an independent consumer: kafka-python's."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Iterator, Mapping
from typing import NamedTuple

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python's own, at import
    from kafka import KafkaConsumer
    from kafka.errors import KafkaError
    from kafka.structs import TopicPartition

from pykaproducer.cli.common import CommandError

# Its warnings belong to whoever configures logging, not on the terminal.
logging.getLogger("kafka").addHandler(logging.NullHandler())


class Record(NamedTuple):
    """One message as it stands in the log."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


def read_back(
    servers: str, topic: str, ranges: Mapping[int, tuple[int, int]], timeout: float
) -> Iterator[Record]:
    """Every message of *topic* between the first and the last offset of each partition's range.

    In order within a partition. Stops when all are there, or when none has come for *timeout*
    seconds.
    """
    deadline = time.monotonic() + timeout
    try:
        consumer = KafkaConsumer(bootstrap_servers=servers.split(","), check_crcs=True)
        try:
            left = {TopicPartition(topic, number): last for number, (_, last) in ranges.items()}
            consumer.assign(list(left))
            for number, (first, _) in ranges.items():
                consumer.seek(TopicPartition(topic, number), first)
            while left and time.monotonic() < deadline:
                for place, records in consumer.poll(timeout_ms=500, max_records=20_000).items():
                    for record in records:
                        if record.offset <= ranges[place.partition][1]:
                            yield Record(*(getattr(record, name) for name in Record._fields))
                    deadline = time.monotonic() + timeout
                    if consumer.position(place) > left.get(place, -1):
                        left.pop(place, None)
        finally:
            consumer.close()
    except KafkaError as error:
        raise CommandError(f"topic {topic!r} could not be read back: {error}") from None
