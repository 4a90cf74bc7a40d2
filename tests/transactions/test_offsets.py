"""Offsets of consumers that are committed together with the messages of a transaction."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from typing import Any

import confluent_kafka
import pytest
from kafka import KafkaConsumer, TopicPartition

import pykaproducer.confluent as drop_in
from pykaproducer import KafkaProducer, Producer
from pykaproducer.errors import TransactionAbortableError, TransactionStateError
from pykaproducer.testing import FaultProxy
from tests._support.consumer import close_member
from tests._support.peers import needs_kafka_python_3
from tests.transactions.helper import BOTH, PATIENCE, Kafka


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex[:8]}"


@contextlib.contextmanager
def consumer_of(kafka: Kafka, group: str, *topics: str) -> Iterator[Any]:
    consumer = KafkaConsumer(
        *topics,
        bootstrap_servers=kafka.cluster.bootstrap_servers,
        group_id=group,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    )
    try:
        yield consumer
    finally:
        close_member(consumer)


def committed(kafka: Kafka, group: str, topic: str) -> list[int | None]:
    with consumer_of(kafka, group) as consumer:
        return [consumer.committed(TopicPartition(topic, partition)) for partition in range(3)]


@BOTH
def test_a_commit_has_both_and_an_abort_none(kafka: Kafka, topic: str, group: str) -> None:
    with kafka.producer() as producer:
        producer.init_transactions()
        for number, keep in enumerate((True, False, True), 1):
            producer.begin_transaction()
            producer.send(topic, b"%d" % number, partition=0)
            producer.send_offsets_to_transaction({TopicPartition(topic, 1): number}, group)
            producer.send_offsets_to_transaction({}, group)
            if keep:
                producer.commit_transaction()
            else:
                producer.abort_transaction()
            assert committed(kafka, group, topic) == [None, number if keep else 1, None]
    assert kafka.committed(topic) == [b"1", b"3"]


def test_offsets_alone_and_of_two_groups(kafka: Kafka, topic: str, group: str) -> None:
    with kafka.producer() as producer, producer.transaction():
        producer.send_offsets_to_transaction({TopicPartition(topic, 0): 5}, group)
        producer.send_offsets_to_transaction({TopicPartition(topic, 2): 7}, f"{group}-2")
    assert committed(kafka, group, topic) == [5, None, None]
    assert committed(kafka, f"{group}-2", topic) == [None, None, 7]


class Stranger:
    """The group metadata of a consumer that is no member any more."""

    generation_id = 3
    member_id = "somebody"
    group_instance_id = None

    def __init__(self, group: str) -> None:
        self.group_id = group


def test_offsets_whose_answer_is_not_waited_for(kafka: Kafka, topic: str, group: str) -> None:
    with kafka.begun(proxied=True) as producer:
        with kafka.silent():
            for number in (1, 2, 2, 3):
                producer.send_offsets_to_transaction(
                    {TopicPartition(topic, 0): number}, group, wait=False
                )
        producer.commit_transaction(PATIENCE)
        with producer.transaction() as transaction:
            transaction.send_offsets({TopicPartition(topic, 1): 5}, group)
        with producer.transaction() as transaction:
            transaction.send_offsets({TopicPartition(topic, 1): 6}, group)
            transaction.abort()
    assert committed(kafka, group, topic) == [3, 5, None]


def test_offsets_that_are_refused_after_the_call(kafka: Kafka, topic: str, group: str) -> None:
    with kafka.begun() as producer:
        producer.send(topic, b"dropped", partition=0)
        offsets = {TopicPartition(topic, 0): 1}
        producer.send_offsets_to_transaction(offsets, Stranger(group), wait=False)
        with pytest.raises(TransactionAbortableError, match="may have lost its partitions"):
            producer.commit_transaction(PATIENCE)
        producer.abort_transaction(PATIENCE)
        with producer.transaction():
            producer.send(topic, b"kept", partition=0)
    assert kafka.committed(topic) == [b"kept"]
    assert committed(kafka, group, topic) == [None, None, None]


def test_outside_of_a_transaction(kafka: Kafka, topic: str, group: str) -> None:
    with kafka.producer() as producer:
        producer.init_transactions()
        for wait in (True, False):
            with pytest.raises(TransactionStateError, match=r"call begin_transaction\(\)"):
                producer.send_offsets_to_transaction(
                    {TopicPartition(topic, 0): 1}, group, wait=wait
                )


def test_a_cut_connection_does_not_lose_offsets(kafka: Kafka, topic: str, group: str) -> None:
    proxy: FaultProxy = kafka.proxy
    with kafka.producer(proxied=True) as producer:
        producer.init_transactions()
        for number in range(1, 4):
            producer.begin_transaction()
            producer.send_offsets_to_transaction({TopicPartition(topic, 0): number}, group)
            proxy.cut_all()
            producer.commit_transaction(PATIENCE)
    assert committed(kafka, group, topic) == [3, None, None]


@needs_kafka_python_3
def test_with_kafka_producer(kafka: Kafka, topic: str, group: str) -> None:
    producer = KafkaProducer(
        bootstrap_servers=kafka.cluster.bootstrap_servers, transactional_id=f"id-{group}"
    )
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(topic, b"value", partition=0)
    producer.send_offsets_to_transaction({TopicPartition(topic, 0): 9}, group_metadata=group)
    producer.commit_transaction()
    producer.close()
    assert committed(kafka, group, topic) == [9, None, None]


def test_with_the_drop_in_for_confluent_kafka(kafka: Kafka, topic: str, group: str) -> None:
    servers = kafka.cluster.bootstrap_servers
    with Producer(bootstrap_servers=servers) as source:
        source.send(topic, b"in", partition=0).result(PATIENCE)
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    producer = drop_in.Producer({"bootstrap.servers": servers, "transactional.id": f"id-{group}"})
    try:
        consumer.subscribe([topic])
        message = consumer.poll(PATIENCE)
        assert message is not None
        assert message.value() == b"in"
        producer.init_transactions()
        producer.begin_transaction()
        producer.produce(topic, b"out", partition=1)
        producer.send_offsets_to_transaction(
            consumer.position(consumer.assignment()), consumer.consumer_group_metadata()
        )
        producer.commit_transaction()
    finally:
        close_member(consumer)
        producer.close()
    assert committed(kafka, group, topic) == [1, None, None]
    assert kafka.committed(topic) == [b"in", b"out"]
