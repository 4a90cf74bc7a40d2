"""Reading the log with code that shares nothing with the producer.

Record batches are decoded by kafka-python, requests and answers by the codec of the test cluster.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from kafka.record import MemoryRecords

from pykaproducer import Delivery
from pykaproducer.testing import KafkaCluster, _admin
from tests._support.messages import FetchRequest

#: How long a log may take to reach the expected offset (seconds).
PATIENCE = 30.0


class Record(NamedTuple):
    """A message in the log."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


class RecordBatch(NamedTuple):
    """The header of a record batch."""

    base_offset: int
    messages: int
    #: Kafka's number of the compression type, 0 for none.
    compression: int
    #: -1 without idempotence.
    producer_id: int
    base_sequence: int
    #: The size of the whole batch in the log.
    nbytes: int


class Log(NamedTuple):
    """The contents of a partition, from its beginning to its end."""

    records: list[Record]
    batches: list[RecordBatch]

    @property
    def values(self) -> list[bytes | None]:
        return [record.value for record in self.records]


def read_log(cluster: KafkaCluster, topic: str, partition: int = 0, through: int = -1) -> Log:
    """Return everything in a partition; wait until it reaches the offset *through*."""
    log = Log([], [])
    deadline = time.monotonic() + PATIENCE
    while True:
        position = log.records[-1].offset + 1 if log.records else 0
        answer = _fetch(cluster, topic, partition, position)
        if answer.error_code == 0:
            _decode(answer.records, position, log)
            end = log.records[-1].offset + 1 if log.records else 0
            if end > through and end >= answer.high_watermark:
                return log
        assert time.monotonic() < deadline, (
            f"{topic}[{partition}] ends at {position}, waiting for {through}: "
            f"{_admin.error_name(answer.error_code)}"
        )


def read_values(cluster: KafkaCluster, topic: str, partitions: int) -> list[list[bytes | None]]:
    """Return the values in each partition."""
    return [read_log(cluster, topic, partition).values for partition in range(partitions)]


def assert_in_log(
    cluster: KafkaCluster, deliveries: Sequence[Delivery], values: Sequence[bytes | None]
) -> None:
    """Check that each message is in the log at the offset that its handle reports."""
    logs: dict[tuple[str, int], dict[int, bytes | None]] = {}
    for delivery, value in zip(deliveries, values, strict=True):
        metadata = delivery.result(0)
        place = metadata.topic, metadata.partition
        if place not in logs:
            records = read_log(cluster, *place, through=metadata.offset).records
            logs[place] = {record.offset: record.value for record in records}
        assert logs[place][metadata.offset] == value


def _fetch(cluster: KafkaCluster, topic: str, partition: int, offset: int) -> Any:
    fetch_topic = FetchRequest.FetchTopic
    request = FetchRequest(
        version=4,
        replica_id=-1,
        max_wait_ms=100,
        min_bytes=1,
        max_bytes=32 << 20,
        isolation_level=0,
        topics=[
            fetch_topic(
                topic=topic,
                partitions=[
                    fetch_topic.FetchPartition(
                        partition=partition, fetch_offset=offset, partition_max_bytes=32 << 20
                    )
                ],
            )
        ],
    )
    leader = cluster.brokers[cluster.leader_of(topic, partition)]
    ((answer,),) = (
        entry.partitions for entry in _admin.ask(leader.port, request, PATIENCE).responses
    )
    return answer


def _decode(data: bytes | None, position: int, log: Log) -> None:
    for batch in MemoryRecords(bytes(data or b"")):
        assert batch.magic == 2
        assert batch.validate_crc()
        if batch.next_offset <= position:
            continue
        log.batches.append(
            RecordBatch(
                batch.base_offset,
                batch.records_count,
                batch.compression_type,
                batch.producer_id,
                batch.base_sequence,
                batch.size_in_bytes,
            )
        )
        for record in batch:
            # A fetch starts with the batch that contains the position.
            if record.offset >= position:
                log.records.append(
                    Record(
                        record.offset, record.timestamp, record.key, record.value, record.headers
                    )
                )
