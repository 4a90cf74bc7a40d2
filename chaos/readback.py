"""The log as another client sees it: kafka-python's consumer, bypassing the proxies."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from kafka import KafkaConsumer, TopicPartition

from chaos.audit import Record
from chaos.ledger import read_value
from chaos.stage import Stage

#: How long the log may return nothing new before its end (seconds).
PATIENCE = 60.0


class LogUnreadable(Exception):
    """The end of the log was not reached in time."""


def read(stage: Stage) -> dict[int, list[Record]]:
    """Return every record of every partition, from the first to the last."""
    logs: dict[int, list[Record]] = {partition: [] for partition in range(stage.partitions)}
    consumer = consumer_of(stage)
    try:
        ends = consumer.end_offsets(places(stage))
    finally:
        consumer.close()
    consume(
        stage,
        ends,
        lambda partition, each: logs[partition].append(
            Record(each.offset, *read_value(each.value))
        ),
    )
    return logs


def places(stage: Stage) -> list[TopicPartition]:
    return [TopicPartition(stage.topic, partition) for partition in range(stage.partitions)]


def consumer_of(stage: Stage, isolation_level: str = "read_uncommitted") -> Any:
    return KafkaConsumer(
        bootstrap_servers=stage.cluster.bootstrap_servers,
        group_id=None,
        enable_auto_commit=False,
        check_crcs=True,
        isolation_level=isolation_level,
        max_partition_fetch_bytes=4 * 1024 * 1024,
        max_poll_records=5000,
    )


def consume(
    stage: Stage,
    ends: Mapping[TopicPartition, int],
    found: Callable[[int, Any], object],
    isolation_level: str = "read_uncommitted",
) -> None:
    """Read each partition up to its end; call *found* with each partition and record."""
    consumer = consumer_of(stage, isolation_level)
    try:
        consumer.assign([*ends])
        consumer.seek_to_beginning(*ends)
        deadline = time.monotonic() + PATIENCE
        while any(consumer.position(place) < end for place, end in ends.items()):
            for place, records in consumer.poll(1000).items():
                for record in records:
                    found(place.partition, record)
                deadline = time.monotonic() + PATIENCE
            if time.monotonic() > deadline:
                raise LogUnreadable(f"the end of the log was not reached: {ends}")
    finally:
        consumer.close()
