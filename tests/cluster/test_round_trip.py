"""The log holds exactly what was sent: read back from a real broker, byte for byte."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from kafka import KafkaConsumer

from pykaproducer import MessageTooLargeError, Producer, RecordMetadata, Status, TopicPartition
from pykaproducer.testing import KafkaCluster

from .readback import Record, assert_in_log, read_log

#: How long one message may take on a busy machine (seconds).
SOON = 30


def test_one_keyed_message_end_to_end(cluster: KafkaCluster, topic: str) -> None:
    cluster.create_topic(topic, partitions=3)
    before = int(time.time() * 1000)
    with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        delivery = producer.send(topic, b"value", key=b"foobar")
        metadata = delivery.result(SOON)
        after = int(time.time() * 1000)
        # Java's murmur2("foobar") is -790332482; without its sign bit, modulo 3: 0.
        assert metadata == RecordMetadata(
            topic=topic,
            partition=0,
            topic_partition=TopicPartition(topic, 0),
            offset=0,
            timestamp=metadata.timestamp,
            checksum=None,
            serialized_key_size=6,
            serialized_value_size=5,
            serialized_header_size=-1,
        )
        assert before <= metadata.timestamp <= after
        assert delivery.done()
        assert delivery.exception(0) is None
        assert (delivery.partition, delivery.offset, delivery.error) == (0, 0, None)
        assert delivery.status is Status.PERSISTED
        assert delivery.get(SOON) == metadata
        assert producer.send(topic, b"value", key=b"foobar").result(SOON).offset == 1
    first = read_log(cluster, topic).records[0]
    assert first == Record(0, metadata.timestamp, b"foobar", b"value", [])


def test_kafka_pythons_consumer_gets_what_was_sent(cluster: KafkaCluster, topic: str) -> None:
    cluster.create_topic(topic)
    messages = [(b"k%d" % i, b"v" * i, [("h", b"%d" % i)]) for i in range(100)]
    with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        for key, value, headers in messages:
            producer.send(topic, value, key=key, headers=headers)
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=cluster.bootstrap_servers,
        auto_offset_reset="earliest",
        group_id=None,
        consumer_timeout_ms=SOON * 1000,
    )
    try:
        received = [next(consumer) for _ in messages]
    finally:
        consumer.close()
    assert [(r.key, r.value, [*map(tuple, r.headers)]) for r in received] == messages


CASES: list[tuple[Any, Any, list[tuple[str, bytes | None]], int]] = [
    (None, b"", [], 0),
    (b"", None, [], 1),
    (None, None, [], 1_600_000_000_000),
    (b"", b"", [("", b"")], 4_000_000_000_000),
    (bytes(range(256)), b"\x00\xff\r\n" * 500, [], 2),
    (bytearray(b"key"), memoryview(b"a value")[2:], [], 3),
    (memoryview(b"key"), bytearray(b"value"), [], 4),
    (b"k", b"v", [("a", b"1"), ("a", b"2"), ("none", None), ("empty", b"")], 5),
    (b"k", b"v", [("Größe ☃ 🧊", bytes(range(256)))], 6),
    (b"k" * 100_000, b"v" * 800_000, [("h" * 1000, b"x" * 10_000)], 7),
]


def test_every_field_comes_back_byte_for_byte(cluster: KafkaCluster, topic: str) -> None:
    # By default a broker rejects timestamps more than an hour in the future.
    cluster.create_topic(
        topic, partitions=2, config={"message.timestamp.after.max.ms": str(2**63 - 1)}
    )
    with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        deliveries = [
            producer.send(topic, value, key=key, headers=headers, partition=1, timestamp_ms=stamp)
            for key, value, headers, stamp in CASES
        ]
        metadata = [delivery.result(SOON) for delivery in deliveries]
    expected = [
        Record(
            offset,
            stamp,
            None if key is None else bytes(key),
            None if value is None else bytes(value),
            headers,
        )
        for offset, (key, value, headers, stamp) in enumerate(CASES)
    ]
    assert read_log(cluster, topic, 1).records == expected
    assert read_log(cluster, topic, 0).records == []
    for record, where in zip(expected, metadata, strict=True):
        assert (where.partition, where.offset, where.timestamp) == (
            1,
            record.offset,
            record.timestamp,
        )
        assert where.serialized_key_size == (-1 if record.key is None else len(record.key))
        assert where.serialized_value_size == (-1 if record.value is None else len(record.value))


def test_the_callers_buffer_may_change_as_soon_as_send_returns(
    cluster: KafkaCluster, topic: str
) -> None:
    cluster.create_topic(topic)
    buffer = bytearray(b"first")
    with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        producer.send(topic, buffer)
        buffer[:] = b"other"
        producer.send(topic, buffer)
    assert read_log(cluster, topic).values == [b"first", b"other"]


def test_a_topic_with_log_append_time_gives_the_brokers_timestamp(
    cluster: KafkaCluster, topic: str
) -> None:
    cluster.create_topic(topic, config={"message.timestamp.type": "LogAppendTime"})
    with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        metadata = producer.send(topic, b"value", timestamp_ms=5).result(SOON)
    assert metadata.timestamp > 1_600_000_000_000


def test_the_largest_message_that_send_takes_is_one_that_a_topic_takes(
    cluster: KafkaCluster, topic: str
) -> None:
    cluster.create_topic(topic)
    with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        size = producer.config.max_request_size
        while True:
            try:
                delivery = producer.send(topic, bytes(size))
                break
            except MessageTooLargeError:
                size -= 1
        assert size > producer.config.max_request_size - 200
        assert delivery.result(SOON).serialized_value_size == size


# Compression

COMPRESSIONS = [
    (None, None, 0),
    ("gzip", None, 1),
    ("gzip", 1, 1),
    ("gzip", 9, 1),
    ("snappy", None, 2),
    ("lz4", None, 3),
    ("lz4", 1, 3),
    ("lz4", 12, 3),
    ("zstd", None, 4),
    ("zstd", -5, 4),
    ("zstd", 19, 4),
]


@pytest.mark.parametrize(("kind", "level", "number"), COMPRESSIONS)
def test_every_compression_can_be_read_back(
    cluster: KafkaCluster, topic: str, kind: str | None, level: int | None, number: int
) -> None:
    cluster.create_topic(topic)
    values = [b"a line of a log file that repeats itself, number %d\n" % i * 9 for i in range(500)]
    with Producer(
        bootstrap_servers=cluster.bootstrap_servers,
        compression_type=kind,
        compression_level=level,
        linger_ms=60_000,  # the flush of close() ends lingering: one batch
    ) as producer:
        deliveries = [producer.send(topic, value) for value in values]
    assert_in_log(cluster, deliveries, values)
    log = read_log(cluster, topic)
    assert log.values == values
    assert {batch.compression for batch in log.batches} == {number}
    if kind is not None:
        assert sum(batch.nbytes for batch in log.batches) < sum(map(len, values)) / 2


# Acknowledgements and idempotence


def test_acks_0_settles_without_an_offset(cluster: KafkaCluster, topic: str) -> None:
    cluster.create_topic(topic)
    values = [b"%d" % i for i in range(100)]
    with Producer(
        bootstrap_servers=cluster.bootstrap_servers, acks=0, enable_idempotence=False
    ) as producer:
        deliveries = [producer.send(topic, value) for value in values]
        for delivery in deliveries:
            assert delivery.result(SOON).offset == -1
            assert delivery.status is Status.POSSIBLY_PERSISTED
    assert read_log(cluster, topic, through=99).values == values


@pytest.mark.parametrize(
    ("settings", "numbered"),
    [
        ({}, True),
        ({"acks": "all"}, True),
        ({"acks": -1, "enable_idempotence": True}, True),
        ({"acks": 1}, False),
        ({"enable_idempotence": False}, False),
    ],
    ids=["default", "all", "explicit", "acks=1", "off"],
)
def test_batches_are_numbered_when_idempotence_is_on(
    cluster: KafkaCluster, topic: str, settings: dict[str, Any], numbered: bool
) -> None:
    cluster.create_topic(topic)
    with Producer(
        bootstrap_servers=cluster.bootstrap_servers, batch_max_messages=3, **settings
    ) as producer:
        deliveries = [producer.send(topic, b"%d" % i) for i in range(10)]
        assert [delivery.result(SOON).offset for delivery in deliveries] == list(range(10))
        assert {delivery.status for delivery in deliveries} == {Status.PERSISTED}
    batches = read_log(cluster, topic).batches
    if numbered:
        assert len({batch.producer_id for batch in batches}) == 1
        assert batches[0].producer_id >= 0
        # On a new partition sequence numbers count messages, as offsets do.
        assert [batch.base_sequence for batch in batches] == [b.base_offset for b in batches]
    else:
        assert {(batch.producer_id, batch.base_sequence) for batch in batches} == {(-1, -1)}


# Batches


def test_lingering_makes_one_batch_and_flush_ends_it(cluster: KafkaCluster, topic: str) -> None:
    cluster.create_topic(topic)
    with Producer(bootstrap_servers=cluster.bootstrap_servers, linger_ms=60_000) as producer:
        deliveries = [producer.send(topic, b"%d" % i) for i in range(100)]
        producer.flush(SOON)
        assert all(delivery.done() for delivery in deliveries)
    assert [batch.messages for batch in read_log(cluster, topic).batches] == [100]


@pytest.mark.parametrize(
    ("settings", "most"),
    [({"batch_size": 0}, 1), ({"batch_max_messages": 7}, 7), ({"batch_size": 2000}, 20)],
    ids=["batch_size=0", "batch_max_messages", "batch_size"],
)
def test_batches_are_no_larger_than_allowed(
    cluster: KafkaCluster, topic: str, settings: dict[str, Any], most: int
) -> None:
    cluster.create_topic(topic)
    with Producer(
        bootstrap_servers=cluster.bootstrap_servers, linger_ms=60_000, **settings
    ) as producer:
        for i in range(100):
            producer.send(topic, b"%100d" % i)
    log = read_log(cluster, topic)
    assert log.values == [b"%100d" % i for i in range(100)]
    assert max(batch.messages for batch in log.batches) <= most
    if most > 1:
        assert len(log.batches) < 50


# Serializers


class Tagged:
    """A serializer in kafka-python's style: an object that receives topic and headers."""

    def serialize(self, topic: str, headers: Any, value: str) -> bytes:
        return f"{topic}/{len(headers or ())}/{value}".encode()


def test_serializers_make_the_bytes(cluster: KafkaCluster, topic: str) -> None:
    cluster.create_topic(topic)
    to_bytes: Callable[[str], bytes] = str.encode
    with Producer(
        bootstrap_servers=cluster.bootstrap_servers,
        key_serializer=to_bytes,
        value_serializer=Tagged(),
    ) as producer:
        producer.send(topic, "wert", key="schlüssel", headers=[("h", b"1")])
        with pytest.raises(TypeError):
            producer.send(topic, "value", key=3)
        producer.send(topic, "other", key="")
    log = read_log(cluster, topic)
    assert [(record.key, record.value) for record in log.records] == [
        ("schlüssel".encode(), f"{topic}/1/wert".encode()),
        (b"", f"{topic}/0/other".encode()),
    ]
