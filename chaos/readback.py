"""The log as another client sees it: kafka-python's consumer, bypassing the proxies."""

from __future__ import annotations

import time

from kafka import KafkaConsumer, TopicPartition

from chaos.audit import Record
from chaos.ledger import read_value
from chaos.stage import Stage

#: How long the log may return nothing new before its end (seconds).
_PATIENCE = 60.0


class LogUnreadable(Exception):
    """The end of the log was not reached in time."""


def read(stage: Stage) -> dict[int, list[Record]]:
    """Return every record of every partition, from the first to the last."""
    places = [TopicPartition(stage.topic, partition) for partition in range(stage.partitions)]
    logs: dict[int, list[Record]] = {place.partition: [] for place in places}
    consumer = KafkaConsumer(
        bootstrap_servers=stage.cluster.bootstrap_servers,
        group_id=None,
        enable_auto_commit=False,
        check_crcs=True,
        max_partition_fetch_bytes=4 * 1024 * 1024,
        max_poll_records=5000,
    )
    try:
        consumer.assign(places)
        ends = consumer.end_offsets(places)
        consumer.seek_to_beginning(*places)
        deadline = time.monotonic() + _PATIENCE
        while any(consumer.position(place) < ends[place] for place in places):
            for place, records in consumer.poll(1000).items():
                log = logs[place.partition]
                log += (Record(each.offset, *read_value(each.value)) for each in records)
                deadline = time.monotonic() + _PATIENCE
            if time.monotonic() > deadline:
                raise LogUnreadable(f"the end of the log was not reached: {ends}")
    finally:
        consumer.close()
    return logs
