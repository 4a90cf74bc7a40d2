"""Transactions while connections are cut, the coordinator restarts, or nothing is reachable."""

from __future__ import annotations

import threading
import time

import pytest

from pykaproducer import Producer
from pykaproducer.errors import CommitOutcome, TransactionStateError, TransactionTimeoutError
from pykaproducer.testing import Cut, FaultProxy
from tests.transactions.helper import PATIENCE, Kafka, transactional

#: The numbers of requests in Kafka's protocol.
PRODUCE, FIND_COORDINATOR, INIT_PRODUCER_ID, ADD_PARTITIONS_TO_TXN, END_TXN = 0, 10, 22, 24, 26


@pytest.mark.parametrize("where", Cut)
@pytest.mark.parametrize("api_key", [PRODUCE, FIND_COORDINATOR, INIT_PRODUCER_ID, END_TXN])
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


@pytest.mark.parametrize("where", Cut)
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_a_partition_is_added_twice(kafka: Kafka, topic: str, commit: bool, where: Cut) -> None:
    """With the second protocol no such request is sent, so that nothing is cut."""
    kafka.proxy.cut(where, api_key=ADD_PARTITIONS_TO_TXN)
    with kafka.producer(proxied=True) as producer:
        with producer.transaction() as transaction:
            producer.send(topic, b"first", partition=0).result(PATIENCE)
            if not commit:
                transaction.abort()
        with producer.transaction():
            producer.send(topic, b"second", partition=0)
    assert kafka.committed(topic) == [*[b"first"][: int(commit)], b"second"]


def assert_lasted(began: float) -> None:
    assert time.monotonic() - began < PATIENCE / 2


def test_init_transactions_while_nothing_is_reachable(kafka: Kafka, topic: str) -> None:
    broker = kafka.cluster.brokers[0]
    with FaultProxy((broker.host, broker.port)) as proxy:
        proxy.refuse()
        producer = transactional(proxy.address, max_block_ms=300)
        began = time.monotonic()
        for timeout in (0.1, None):
            with pytest.raises(TransactionTimeoutError) as raised:
                producer.init_transactions(timeout)
            assert "init_transactions() has not ended within its timeout" in str(raised.value)
            assert raised.value.retriable
            assert raised.value.outcome is None
        with pytest.raises(
            TransactionStateError,
            match=r"begin_transaction\(\): init_transactions\(\) is under way",
        ):
            producer.begin_transaction()
        with pytest.raises(TransactionTimeoutError), producer.transaction():
            raise AssertionError("there is no transaction")
        assert_lasted(began)
        proxy.restore()
        producer.init_transactions(PATIENCE)
        with producer:
            producer.begin_transaction()
            producer.send(topic, b"value")
            producer.commit_transaction(PATIENCE)
    assert kafka.committed(topic) == [b"value"]


def test_a_commit_that_has_timed_out_before_it_was_sent_goes_on(kafka: Kafka, topic: str) -> None:
    """close() waits for it, so the error must not say that the messages can be sent again."""
    with kafka.producer(proxied=True) as producer:
        producer.init_transactions(PATIENCE)
        producer.begin_transaction()
        kafka.proxy.black_hole()
        producer.send(topic, b"value", partition=0)
        with pytest.raises(TransactionTimeoutError, match="may still commit") as raised:
            producer.commit_transaction(0.1)
        assert raised.value.outcome is CommitOutcome.NOT_COMMITTED
        kafka.proxy.restore()
        kafka.proxy.cut_all()
    assert kafka.committed(topic) == [b"value"]


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_the_end_of_a_transaction_while_nothing_is_reachable(
    kafka: Kafka, topic: str, commit: bool
) -> None:
    with kafka.producer(proxied=True, max_block_ms=300) as producer:
        producer.init_transactions(PATIENCE)
        producer.begin_transaction()
        producer.send(topic, b"value", partition=0).result(PATIENCE)
        end = producer.commit_transaction if commit else producer.abort_transaction
        kafka.proxy.black_hole()
        kafka.proxy.cut_all()
        try:
            began = time.monotonic()
            for timeout in (0.1, None):
                with pytest.raises(TransactionTimeoutError) as raised:
                    end(timeout)
                assert f"{end.__name__}() has not ended within its timeout" in str(raised.value)
                assert raised.value.outcome is not CommitOutcome.COMMITTED
            with pytest.raises(TransactionStateError, match=rf"{end.__name__}\(\) is under way"):
                producer.begin_transaction()
            with pytest.raises(TransactionStateError, match="the transaction is being"):
                producer.send(topic, b"refused")
            assert_lasted(began)
        finally:
            kafka.proxy.restore()
        end(PATIENCE)
        producer.begin_transaction()
        producer.send(topic, b"next", partition=0)
        producer.commit_transaction(PATIENCE)
    assert kafka.committed(topic) == [*[b"value"][: int(commit)], b"next"]


def test_a_commit_whose_outcome_is_not_known(kafka: Kafka, topic: str) -> None:
    """The coordinator has the request, and its answer does not come."""
    with kafka.producer(proxied=True) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"value", partition=0).result(PATIENCE)
        kafka.proxy.black_hole()
        try:
            outcome = None
            while outcome is not CommitOutcome.POSSIBLY_COMMITTED:  # once the request is sent
                with pytest.raises(TransactionTimeoutError) as reported:
                    producer.commit_transaction(0.3)
                outcome = reported.value.outcome
            assert "it may have been committed" in str(reported.value)
        finally:
            kafka.proxy.restore()
        producer.commit_transaction()
    assert kafka.committed(topic) == [b"value"]


def in_thread(producer: Producer, ended: list[bool]) -> threading.Thread:
    def commit() -> None:
        producer.commit_transaction(PATIENCE)
        ended.append(True)

    thread = threading.Thread(target=commit)
    thread.start()
    return thread


def test_the_coordinator_restarts(own_kafka: Kafka, topic: str) -> None:
    """In a transaction, and while one is committed."""
    ended: list[bool] = []
    with own_kafka.producer() as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"before", partition=0).result(PATIENCE)
        own_kafka.cluster.restart(0)
        producer.send(topic, b"behind", partition=0)
        producer.send(topic, b"other", partition=1)
        producer.commit_transaction(PATIENCE)
        producer.begin_transaction()
        producer.send(topic, b"next", partition=0).result(PATIENCE)
        own_kafka.cluster.kill(0)
        committing = in_thread(producer, ended)
        own_kafka.cluster.restart(0)
        committing.join(PATIENCE)
        assert ended == [True]
        with producer.transaction():
            producer.send(topic, b"last", partition=0)
    assert own_kafka.committed(topic) == [b"before", b"behind", b"next", b"last", b"other"]
