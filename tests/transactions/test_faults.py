"""Transactions while connections are cut, the coordinator restarts, or nothing is reachable."""

from __future__ import annotations

import itertools

import pytest

from pykaproducer.errors import CommitOutcome, TransactionTimeoutError
from pykaproducer.testing import Cut
from tests._support.fixtures.cluster import FEATURES
from tests._support.pairs import pairwise
from tests._support.threads import Call
from tests.transactions.helper import BOTH, PATIENCE, Kafka

#: The numbers of requests in Kafka's protocol.
PRODUCE, FIND_COORDINATOR, INIT_PRODUCER_ID, ADD_PARTITIONS_TO_TXN, END_TXN = 0, 10, 22, 24, 26


@pytest.mark.parametrize(
    ("kafka", "api_key", "where"),
    pairwise(
        itertools.product(FEATURES, [PRODUCE, FIND_COORDINATOR, INIT_PRODUCER_ID, END_TXN], Cut)
    ),
    indirect=["kafka"],
)
def test_a_request_is_lost(kafka: Kafka, topic: str, api_key: int, where: Cut) -> None:
    kafka.proxy.cut(where, api_key=api_key)
    before = kafka.proxy.cuts
    with kafka.producer(proxied=True) as producer:
        producer.init_transactions()
        for n in range(4):
            producer.begin_transaction()
            producer.send(topic, b"%d" % n, partition=0)
            if n == 2:
                producer.flush()
                producer.abort_transaction()
            else:
                producer.commit_transaction()
    assert kafka.proxy.cuts == before + 1
    assert kafka.committed(topic) == [b"0", b"1", b"3"]


@BOTH
@pytest.mark.parametrize("where", Cut)
def test_the_request_for_an_abort_is_lost(kafka: Kafka, topic: str, where: Cut) -> None:
    with kafka.producer(proxied=True) as producer:
        with producer.transaction() as transaction:
            producer.send(topic, b"dropped", partition=0).result(PATIENCE)
            kafka.proxy.cut(where, api_key=END_TXN)
            transaction.abort()
        with producer.transaction():
            producer.send(topic, b"kept", partition=0)
    assert kafka.committed(topic) == [b"kept"]


@pytest.mark.parametrize("kafka", ["TV1"], indirect=True)  # TV2 has no such request
@pytest.mark.parametrize("where", Cut)
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_a_partition_is_added_twice(kafka: Kafka, topic: str, commit: bool, where: Cut) -> None:
    kafka.proxy.cut(where, api_key=ADD_PARTITIONS_TO_TXN)
    with kafka.producer(proxied=True) as producer:
        with producer.transaction() as transaction:
            producer.send(topic, b"first", partition=0).result(PATIENCE)
            if not commit:
                transaction.abort()
        with producer.transaction():
            producer.send(topic, b"second", partition=0)
    assert kafka.committed(topic) == [*[b"first"][: int(commit)], b"second"]


def test_a_commit_that_has_timed_out_before_it_was_sent_goes_on(kafka: Kafka, topic: str) -> None:
    """close() waits for it, so the error must not say that the messages can be sent again."""
    with kafka.begun(proxied=True) as producer:
        kafka.proxy.black_hole()
        producer.send(topic, b"value", partition=0)
        with pytest.raises(TransactionTimeoutError, match="may still commit") as raised:
            producer.commit_transaction(0.1)
        assert raised.value.outcome is CommitOutcome.NOT_COMMITTED
        kafka.proxy.restore()
        kafka.proxy.cut_all()
    assert kafka.committed(topic) == [b"value"]


def test_the_coordinator_restarts(own_kafka: Kafka) -> None:
    """In a transaction, and while one is committed."""
    topic = "restarted"
    own_kafka.cluster.create_topic(topic, partitions=3)
    with own_kafka.begun() as producer:
        producer.send(topic, b"before", partition=0).result(PATIENCE)
        own_kafka.cluster.restart(0)
        producer.send(topic, b"behind", partition=0)
        producer.send(topic, b"other", partition=1)
        producer.commit_transaction(PATIENCE)
        producer.begin_transaction()
        producer.send(topic, b"next", partition=0).result(PATIENCE)
        own_kafka.cluster.kill(0)
        committing = Call(lambda: producer.commit_transaction(PATIENCE))
        own_kafka.cluster.restart(0)
        assert committing.error() is None
        with producer.transaction():
            producer.send(topic, b"last", partition=0)
    assert own_kafka.committed(topic) == [b"before", b"behind", b"next", b"last", b"other"]
