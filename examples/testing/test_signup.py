"""Tests of ``signup.py``: without a broker, against a scripted one, against a real one.

Run them with ``pytest``. The fixtures come with pykaproducer.
"""

from __future__ import annotations

import json

import pytest
from kafka import KafkaConsumer
from signup import SignUps

from pykaproducer import BufferFullError, Producer, Status
from pykaproducer.testing import KafkaCluster, MockProducer, ScriptedCluster
from pykaproducer.testing.scripted import Drop, Refuse

# With mock_producer: which messages are sent, and how outcomes are handled ---------------------


def test_an_event_is_sent(mock_producer: MockProducer) -> None:
    SignUps(mock_producer).sign_up("alice", "NO")
    (record,) = mock_producer.history()
    assert (record.topic, record.key) == ("users", b"alice")
    assert json.loads(record.value or b"") == {"user": "alice", "country": "NO"}
    assert record.headers == (("type", b"signed-up"),)


def test_a_lost_event_is_counted(mock_producer: MockProducer) -> None:
    sign_ups = SignUps(mock_producer)
    mock_producer.fail_next(29)  # TOPIC_AUTHORIZATION_FAILED
    sign_ups.sign_up("alice", "NO")
    sign_ups.sign_up("bob", "IT")
    assert (sign_ups.lost, sign_ups.unknown) == (1, [])


def test_an_event_that_may_have_arrived_is_not_counted_as_lost(
    mock_producer: MockProducer,
) -> None:
    sign_ups = SignUps(mock_producer)
    mock_producer.fail_next(status=Status.POSSIBLY_PERSISTED)
    sign_ups.sign_up("alice", "NO")
    assert (sign_ups.lost, sign_ups.unknown) == (0, ["alice"])


def test_a_full_buffer_does_not_end_the_sign_up(mock_producer: MockProducer) -> None:
    sign_ups = SignUps(mock_producer)
    mock_producer.raise_next("send", BufferFullError("the buffer is full"))
    sign_ups.sign_up("alice", "NO")
    assert sign_ups.lost == 1


def test_nothing_is_lost_while_an_event_is_pending() -> None:
    producer = MockProducer(auto_complete=False, partitions={"users": 6})
    sign_ups = SignUps(producer)
    sign_ups.sign_up("alice", "NO")
    sign_ups.sign_up("bob", "IT")
    producer.complete_next()
    assert (sign_ups.lost, producer.pending) == (0, 1)
    producer.fail_next()
    assert sign_ups.lost == 1


# With scripted_cluster: the whole producer, and a broker that misbehaves ------------------------


def test_a_broker_that_hangs_up_loses_nothing(scripted_cluster: ScriptedCluster) -> None:
    scripted_cluster.next("produce", Drop(appended=True))  # it has appended, but does not say so
    with scripted_cluster.producer() as producer:
        sign_ups = SignUps(producer)
        sign_ups.sign_up("alice", "NO")
    assert (sign_ups.lost, sign_ups.unknown) == (0, [])
    assert [record.key for record in scripted_cluster.log("users")] == [b"alice"]


def test_a_broker_that_refuses(scripted_cluster: ScriptedCluster) -> None:
    scripted_cluster.next("produce", Refuse(29))
    with scripted_cluster.producer() as producer:
        sign_ups = SignUps(producer)
        sign_ups.sign_up("alice", "NO")
    assert sign_ups.lost == 1


# With kafka_cluster: real Kafka. The extra "testing" brings Java and Kafka ----------------------


@pytest.mark.parametrize("compression", [None, "lz4"])
def test_real_kafka_has_the_event(kafka_cluster: KafkaCluster, compression: str | None) -> None:
    servers = kafka_cluster.bootstrap_servers
    with Producer(bootstrap_servers=servers, compression_type=compression) as producer:
        SignUps(producer).sign_up("alice", "NO")
    consumer = KafkaConsumer(
        "users",
        bootstrap_servers=servers,
        auto_offset_reset="earliest",
        consumer_timeout_ms=10_000,
    )
    try:
        assert next(consumer).key == b"alice"
    finally:
        consumer.close()
