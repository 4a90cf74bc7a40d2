"""The core on real Kafka of every age, read back by kafka-python and from the broker's files.

What a release cannot do is expected here as well.
"""

from __future__ import annotations

import subprocess
import sys
import uuid
from typing import Any

import pytest
from kafka.errors import InvalidConfigurationError

from pykaproducer import (
    BrokerRejectedError,
    Delivery,
    DeliveryFailures,
    DeliveryTimeoutError,
    MessageTooLargeError,
    ProducerClosedError,
    Status,
    TopicPartition,
    TransactionControl,
    UnsupportedFeatureError,
)
from pykaproducer.testing import Cut

from .kafka import PATIENCE, Kafka, committed_offset, wait_until

#: Kafka's numbers of the codecs.
CODECS = {None: 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
#: Messages of each test that needs many.
COUNT = 600


def offsets(deliveries: list[Delivery]) -> list[int]:
    return [delivery.result(PATIENCE).offset for delivery in deliveries]


# Messages -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS)
def test_each_codec_with_all_acks(kafka: Kafka, topic: str, codec: str | None) -> None:
    kafka.create_topic(topic, partitions=2)
    values = [b"message %d, which repeats itself\n" % number * 5 for number in range(200)]
    if codec == "zstd" and not kafka.has("zstd"):
        for acks in (0, 1, "all"):
            with kafka.producer(acks=acks, compression_type=codec, enable_idempotence=False) as it:
                error = it.send(topic, values[0], partition=0).exception(PATIENCE)
            assert error is not None
            assert "zstd" in str(error)
            assert error.status is Status.NOT_PERSISTED
        return
    # The last, because it does not wait until the broker is ready to lead the partition.
    for acks in ("all", 1, 0):
        with kafka.producer(
            acks=acks,
            enable_idempotence=acks == "all",
            compression_type=codec,
            batch_max_messages=25,
        ) as producer:
            sent = [producer.send(topic, value, partition=n % 2) for n, value in enumerate(values)]
            producer.flush(PATIENCE)
            expected = [-1] * 200 if acks == 0 else [n // 2 for n in range(200)]
            first = {"all": 0, 1: 100, 0: 0}[acks]
            assert offsets(sent) == [first + offset for offset in expected]
    assert kafka.values(topic, 2, count=600) == [values[0::2] * 3, values[1::2] * 3]
    batches = kafka.batches(topic)
    assert {batch.compression_type for batch in batches} == {CODECS[codec]}
    # Only acks=all is idempotent here.
    ids = [batch.producer_id for batch in batches]
    assert min(ids[:4]) >= 0
    assert {*ids[4:]} == {-1}


def test_keys_values_headers_and_timestamps(kafka: Kafka, topic: str) -> None:
    kafka.create_topic(topic)
    cases: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], int]] = [
        (None, b"", [], 0),
        (b"", None, [], 1),
        (b"key", bytes(range(256)), [("h", b"1"), ("h", b"2"), ("none", None), ("", b"")], 10**12),
        (b"k" * 50_000, b"v" * 800_000, [("Größe ☃", bytes(range(256)))], 1_600_000_000_000),
    ]
    with kafka.producer() as producer:
        deliveries = [
            producer.send(topic, value, key=key, headers=headers, timestamp_ms=stamp)
            for key, value, headers, stamp in cases
        ]
        found = [delivery.result(PATIENCE) for delivery in deliveries]
    assert [(each.offset, each.timestamp) for each in found] == [
        (offset, case[3]) for offset, case in enumerate(cases)
    ]
    (records,) = kafka.records(topic)
    assert [(r.key, r.value, [*map(tuple, r.headers)], r.timestamp) for r in records] == cases


def test_log_append_time(kafka: Kafka, topic: str) -> None:
    kafka.create_topic(topic, message_timestamp_type="LogAppendTime")
    with kafka.producer() as producer:
        metadata = producer.send(topic, b"value", timestamp_ms=5).result(PATIENCE)
    ((record,),) = kafka.records(topic)
    assert record.timestamp == metadata.timestamp > 1_600_000_000_000


def test_keys_choose_javas_partitions(kafka: Kafka, topic: str) -> None:
    kafka.create_topic(topic, partitions=12)
    with kafka.producer() as producer:
        assert producer.partitions_for(topic) == {*range(12)}
        for number in range(200):
            producer.send(topic, b"%d" % number, key=b"key %d" % (number % 40))
        # Java's murmur2("foobar") is -790332482; without its sign bit, modulo 12: 6.
        assert producer.send(topic, b"", key=b"foobar").result(PATIENCE).partition == 6
    places: dict[bytes, list[int]] = {}
    for partition, records in enumerate(kafka.records(topic, 12, count=201)):
        for record in records:
            places.setdefault(record.key, []).append(partition)
    assert len(places) == 41
    assert all(len({*found}) == 1 for found in places.values())


def test_topics_are_created_if_that_is_wanted(kafka: Kafka, topic: str) -> None:
    with kafka.producer() as producer:
        assert producer.send(topic, b"value", partition=2).result(PATIENCE).offset == 0
        assert producer.partitions_for(topic) == {0, 1, 2}
    assert kafka.values(topic, 3) == [[], [], [b"value"]]
    with kafka.producer(allow_auto_create_topics=False, delivery_timeout_ms=3000) as producer:
        error = producer.send(f"{topic}-not", b"value").exception(PATIENCE)
    assert isinstance(error, DeliveryTimeoutError)
    assert error.status is Status.NOT_PERSISTED
    assert "UNKNOWN_TOPIC_OR_PARTITION" in str(error)


def test_a_batch_too_large_is_split_and_a_message_too_large_fails(kafka: Kafka, topic: str) -> None:
    kafka.create_topic(topic, max_message_bytes=2000)
    with kafka.producer(linger_ms=60_000) as producer:
        deliveries = [producer.send(topic, b"%0100d" % number) for number in range(COUNT)]
        large = producer.send(topic, bytes(3000))
        last = producer.send(topic, b"last")
        with pytest.raises(DeliveryFailures):
            producer.flush(PATIENCE)
        assert offsets([*deliveries, last]) == [*range(COUNT + 1)]
        error = large.exception(0)
    assert isinstance(error, BrokerRejectedError)
    assert "max.message.bytes" in str(error)
    assert error.status is Status.NOT_PERSISTED
    assert kafka.values(topic) == [[b"%0100d" % number for number in range(COUNT)] + [b"last"]]


def test_flush_and_close(kafka: Kafka, topic: str) -> None:
    kafka.create_topic(topic)
    producer = kafka.producer(linger_ms=60_000)
    first = producer.send(topic, b"0")
    producer.flush(PATIENCE)
    assert first.result(0).offset == 0
    second = producer.send(topic, b"1")
    producer.close(PATIENCE)
    assert second.result(0).offset == 1
    with pytest.raises(ProducerClosedError):
        producer.send(topic, b"2")
    with pytest.raises(MessageTooLargeError), kafka.producer() as producer:
        producer.send(topic, bytes(2_000_000))
    assert kafka.values(topic) == [[b"0", b"1"]]


# Faults -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("idempotent", [True, False], ids=["idempotent", "plain"])
def test_order_through_dropped_connections(kafka: Kafka, topic: str, idempotent: bool) -> None:
    kafka.create_topic(topic, partitions=2)
    settings: dict[str, Any] = {"enable_idempotence": idempotent, "batch_max_messages": 10}
    deliveries, cuts = [], kafka.proxy.cuts
    with kafka.producer(proxied=True, **settings) as producer:
        for number in range(COUNT):
            if number % 100 == 50:
                kafka.proxy.cut([Cut.BEFORE, Cut.WITHIN, Cut.AFTER][number // 100 % 3])
            deliveries.append(producer.send(topic, b"%d" % number, partition=number % 2))
            if number % 100 == 99:
                producer.flush(PATIENCE)
        assert kafka.proxy.cuts >= cuts + COUNT // 100
    assert all(delivery.exception(0) is None for delivery in deliveries)
    expected = [[b"%d" % number for number in range(start, COUNT, 2)] for start in (0, 1)]
    found = kafka.values(topic, 2)
    if idempotent:
        assert found == expected
    else:
        # A retry may repeat one batch, at once: only one is in flight.
        assert [list(dict.fromkeys(values)) for values in found] == expected


def test_five_lost_responses(kafka: Kafka, topic: str) -> None:
    """All batches in flight are in the log, and no response arrives: all are retried."""
    kafka.create_topic(topic)
    values = [b"%d" % number for number in range(100)]
    with kafka.producer(proxied=True, batch_max_messages=20, linger_ms=60_000) as producer:
        producer.send(topic, b"first")
        producer.flush(PATIENCE)
        try:
            # Time enough to find the last one in the log before the first response arrives.
            kafka.proxy.delay(5)
            deliveries = [producer.send(topic, value) for value in values]

            def all_written() -> bool:
                return 0 < len(kafka.proxy.unanswered) == len(kafka.batches(topic)) - 1

            wait_until(all_written, "the batches in flight are not in the log")
            kafka.proxy.cut_all()
        finally:
            kafka.proxy.restore()
        errors = [delivery.exception(PATIENCE) for delivery in deliveries]
    assert [error for error in errors if error] == []
    assert kafka.values(topic) == [[b"first", *values]]


def test_a_restart_under_load(kafka: Kafka, topic: str) -> None:
    kafka.create_topic(topic, partitions=2)
    settings = {"batch_max_messages": 10, "delivery_timeout_ms": int(PATIENCE * 1000)}
    with kafka.producer(**settings) as producer:
        for number in range(COUNT):
            producer.send(topic, b"%d" % number, partition=number % 2)
        with kafka.down():
            for number in range(COUNT, 2 * COUNT):
                producer.send(topic, b"%d" % number, partition=number % 2)
        producer.flush(PATIENCE)  # it raises if one has failed
    assert kafka.values(topic, 2, count=2 * COUNT) == [
        [b"%d" % number for number in range(start, 2 * COUNT, 2)] for start in (0, 1)
    ]


# Transactions -------------------------------------------------------------------------------------


def test_transactions(kafka: Kafka, topic: str) -> None:
    kafka.create_topic(topic)
    group = f"group-{uuid.uuid4().hex}"
    with kafka.producer(proxied=True, transactional_id=topic) as producer:
        if not kafka.has("transactions"):
            with pytest.raises(UnsupportedFeatureError, match=r"need Kafka 2\.5 or newer"):
                producer.init_transactions(PATIENCE)
            return
        producer.init_transactions(PATIENCE)
        for number, keep in enumerate((True, False, True)):
            producer.begin_transaction()
            # An abort may overtake a message that has not been sent.
            producer.send(topic, b"%d" % number).result(PATIENCE)
            producer.send_offsets_to_transaction({TopicPartition(topic, 0): number}, group)
            if keep:
                kafka.proxy.cut(Cut.AFTER, api_key=26)  # the response of EndTxn is lost
                producer.commit_transaction(PATIENCE)
            else:
                producer.abort_transaction(PATIENCE)
    assert [record.value for record in kafka.records(topic)[0]] == [b"0", b"2"]
    assert committed_offset(kafka.servers, group, topic) == 2
    # Of the second protocol each transaction has its epoch.
    epochs = [each.producer_epoch for each in kafka.batches(topic) if not each.is_control_batch]
    assert len({*epochs}) == (3 if kafka.has("TV2") else 1)


def test_transaction_control(kafka: Kafka, topic: str) -> None:
    with TransactionControl(bootstrap_servers=kafka.servers) as control:
        if not kafka.has("transaction control"):
            with pytest.raises(UnsupportedFeatureError, match=r"needs Kafka 3\.0 or newer"):
                control.list(timeout=PATIENCE)
            return
        with kafka.producer(transactional_id=topic) as producer, producer.transaction():
            producer.send(topic, b"value").result(PATIENCE)
            (found,) = control.list(topic, timeout=PATIENCE)
    assert (found.transactional_id, found.state) == (topic, "Ongoing")


# What a topic rejects -----------------------------------------------------------------------------


def test_a_topic_of_an_older_message_format(kafka: Kafka, topic: str) -> None:
    if kafka.has("no older format"):
        with pytest.raises(InvalidConfigurationError):
            kafka.create_topic(topic, message_format_version="0.10.2")
        return
    kafka.create_topic(topic, message_format_version="0.10.2")
    if not kafka.has("format 2"):
        with kafka.producer() as producer:
            error = producer.send(topic, b"value").exception(PATIENCE)
        assert isinstance(error, BrokerRejectedError)
        assert error.status is Status.NOT_PERSISTED
        assert "UNSUPPORTED_FOR_MESSAGE_FORMAT" in str(error)
        assert "the topic's message format is older than v2" in str(error)
    with kafka.producer(enable_idempotence=kafka.has("format 2")) as producer:
        producer.send(topic, b"value").result(PATIENCE)
    assert kafka.values(topic) == [[b"value"]]


def test_a_compacted_topic_rejects_a_message_without_key(kafka: Kafka, topic: str) -> None:
    kafka.create_topic(topic, cleanup_policy="compact")
    with kafka.producer(delivery_timeout_ms=3000) as producer:
        error = producer.send(topic, b"value").exception(PATIENCE)
    if kafka.has("INVALID_RECORD"):
        assert isinstance(error, BrokerRejectedError)
        assert "a compacted topic, for example, requires keys" in str(error)
        assert error.status is Status.NOT_PERSISTED
    else:
        # The broker reports corruption in transit, which a retry may repair.
        assert isinstance(error, DeliveryTimeoutError)
        assert "CORRUPT_MESSAGE" in str(error)
    assert kafka.values(topic) == [[]]


def test_the_command_creates_a_topic(kafka: Kafka, topic: str) -> None:
    command = ["topics", "create", topic, "--partitions", "6", "-b", kafka.servers]
    done = subprocess.run(
        [sys.executable, "-m", "pykaproducer", *command], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
