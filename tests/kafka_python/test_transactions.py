"""``KafkaProducer``: transactions as code written for kafka-python uses them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import kafka
import kafka.errors
import pytest

from pykaproducer import (
    KafkaProducer,
    TransactionTimeoutError,
)
from pykaproducer.testing import KafkaCluster

NOWHERE = "127.0.0.1:1"
#: kafka-python 2 has no such class.
ABORTED = getattr(kafka.errors, "TransactionAbortedError", kafka.errors.KafkaError)


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


def test_an_abort_fails_what_lingers(topic: str, make: Callable[..., KafkaProducer]) -> None:
    producer = make()
    producer.init_transactions()
    producer.begin_transaction()
    sent = producer.send(topic, b"sent", partition=0)
    producer.flush()
    lingering = producer.send(topic, b"lingering", partition=0)
    producer.abort_transaction()
    assert sent.succeeded()
    assert isinstance(lingering.exception, ABORTED)


def test_what_does_not_send_needs_no_transaction(
    topic: str, make: Callable[..., KafkaProducer]
) -> None:
    producer = make()
    assert producer.bootstrap_connected()
    assert producer.partitions_for(topic) == {0}
    producer.flush(timeout=1)
    assert producer.metrics()


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
