"""``KafkaProducer``: transactions as code written for kafka-python uses them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import kafka
import kafka.errors
import pytest

from pykaproducer import (
    KafkaProducer,
    TransactionAbortableError,
    TransactionTimeoutError,
)
from pykaproducer.testing import KafkaCluster
from tests._support.consumer import read_through

NOWHERE = "127.0.0.1:1"
#: kafka-python 2 has no such class.
ABORTED = getattr(kafka.errors, "TransactionAbortedError", kafka.errors.KafkaError)
CALLS = ("init_transactions", "begin_transaction", "commit_transaction", "abort_transaction")


@pytest.fixture
def make(cluster: KafkaCluster, topic: str) -> Iterator[Callable[..., KafkaProducer]]:
    """Yield a function that makes producers, with the topic's name as their id."""
    cluster.create_topic(topic)
    made: list[KafkaProducer] = []

    def make_one(**settings: Any) -> KafkaProducer:
        given = {"transactional_id": topic, "linger_ms": 60_000, **settings}
        made.append(KafkaProducer(bootstrap_servers=cluster.bootstrap_servers, **given))
        return made[-1]

    yield make_one
    for producer in made:
        producer.close(timeout=1)


def test_readers_see_what_is_committed(
    cluster: KafkaCluster, topic: str, make: Callable[..., KafkaProducer]
) -> None:
    producer = make()
    producer.init_transactions()
    producer.begin_transaction()
    lingering = producer.send(topic, b"lingering", partition=0)
    producer.abort_transaction()
    assert isinstance(lingering.exception, ABORTED)
    producer.begin_transaction()
    kept = producer.send(topic, b"kept", partition=0)
    producer.commit_transaction()
    assert kept.get(timeout=1).offset == 0
    producer.begin_transaction()
    sent = producer.send(topic, b"sent", partition=0)
    producer.flush()
    assert sent.succeeded()
    producer.abort_transaction()
    producer.begin_transaction()
    producer.send(topic, b"last", partition=0)
    producer.commit_transaction()
    servers = cluster.bootstrap_servers
    assert read_through(servers, topic, committed=True) == [b"kept", b"last"]
    assert read_through(servers, topic, committed=False) == [b"kept", b"sent", b"last"]


def test_what_does_not_send_needs_no_transaction(
    topic: str, make: Callable[..., KafkaProducer]
) -> None:
    producer = make()
    assert producer.bootstrap_connected()
    assert producer.partitions_for(topic) == {0}
    producer.flush(timeout=1)
    assert producer.metrics()


def test_a_call_that_does_not_fit_is_an_illegal_state(
    topic: str, make: Callable[..., KafkaProducer]
) -> None:
    producer = make()
    for call in (
        producer.begin_transaction,
        producer.commit_transaction,
        producer.abort_transaction,
        lambda: producer.send(topic, b"no"),
    ):
        with pytest.raises(kafka.errors.IllegalStateError, match=r"call init_transactions\(\)"):
            call()
    producer.init_transactions()
    for call in (
        producer.commit_transaction,
        producer.abort_transaction,
        lambda: producer.send(topic, b"no"),
    ):
        with pytest.raises(kafka.errors.IllegalStateError, match=r"call begin_transaction\(\)"):
            call()


def test_without_an_id_the_calls_are_an_illegal_state() -> None:
    producer = KafkaProducer(bootstrap_servers=NOWHERE)
    for name in CALLS:
        with pytest.raises(kafka.errors.IllegalStateError, match="set transactional_id"):
            getattr(producer, name)()
    with pytest.raises(kafka.errors.IllegalStateError, match="set transactional_id"):
        producer.send_offsets_to_transaction({kafka.TopicPartition("a", 0): 1}, group_metadata="g")
    producer.close()


def test_a_cluster_that_does_not_respond_is_a_kafka_timeout() -> None:
    producer = KafkaProducer(bootstrap_servers=NOWHERE, transactional_id="a", max_block_ms=200)
    with pytest.raises(kafka.errors.KafkaTimeoutError, match=r"init_transactions\(\)") as raised:
        producer.init_transactions()
    assert isinstance(raised.value, TransactionTimeoutError)
    with pytest.raises(kafka.errors.KafkaTimeoutError):
        producer.init_transactions()  # waits on
    with pytest.raises(kafka.errors.IllegalStateError, match=r"init_transactions\(\) is under way"):
        producer.begin_transaction()
    producer.close(timeout=0)


def test_a_failed_message_makes_an_abort_necessary(
    cluster: KafkaCluster, topic: str, make: Callable[..., KafkaProducer]
) -> None:
    producer = make()
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(topic, b"fine", partition=0)
    failed = producer.send(topic, b"nowhere", partition=99)
    with pytest.raises(kafka.errors.KafkaError, match="partition 99") as raised:
        producer.commit_transaction()
    assert isinstance(raised.value, TransactionAbortableError)
    assert failed.failed()
    with pytest.raises(TransactionAbortableError):
        producer.send(topic, b"no")
    producer.abort_transaction()
    producer.begin_transaction()
    producer.send(topic, b"again", partition=0)
    producer.commit_transaction()
    assert read_through(cluster.bootstrap_servers, topic, committed=True) == [b"again"]


def test_the_older_of_two_producers_is_fenced(
    cluster: KafkaCluster, topic: str, make: Callable[..., KafkaProducer]
) -> None:
    older, newer = make(), make()
    older.init_transactions()
    older.begin_transaction()
    older.send(topic, b"old", partition=0)
    older.flush()
    newer.init_transactions()
    with pytest.raises(kafka.errors.ProducerFencedError):
        older.commit_transaction()
    for call in (
        older.begin_transaction,
        older.commit_transaction,
        older.abort_transaction,
        lambda: older.send(topic, b"no"),
    ):
        with pytest.raises(kafka.errors.ProducerFencedError):
            call()
    newer.begin_transaction()
    newer.send(topic, b"new", partition=0)
    newer.commit_transaction()
    assert read_through(cluster.bootstrap_servers, topic, committed=True) == [b"new"]


def test_a_timeout_above_the_brokers_is_kafka_python_s_class(
    make: Callable[..., KafkaProducer],
) -> None:
    producer = make(transaction_timeout_ms=2**31 - 1)
    with pytest.raises(
        kafka.errors.InvalidTransactionTimeoutError, match=r"transaction\.max\.timeout\.ms"
    ):
        producer.init_transactions()
