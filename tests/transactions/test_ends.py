"""What readers see of transactions that were committed and aborted."""

from __future__ import annotations

import threading

import pyarrow
import pytest

from pykaproducer import Producer, Status
from pykaproducer.errors import TransactionAbortedError
from tests.transactions.helper import PATIENCE, Kafka


class Mishap(Exception):
    """An error of the program."""


def fail_in_a_block(producer: Producer, topic: str) -> None:
    with producer.transaction():
        producer.send(topic, b"two", partition=0).result(PATIENCE)
        raise Mishap


def test_the_protocol_is_that_of_the_cluster(kafka: Kafka) -> None:
    with kafka.producer() as producer:
        producer.init_transactions()
        assert producer._pipeline is not None
        assert producer._pipeline.coordinator is not None
        assert f"TV{producer._pipeline.coordinator.machine.protocol}" == kafka.protocol


def test_commit_and_abort(kafka: Kafka, topic: str) -> None:
    with kafka.producer() as producer:
        producer.init_transactions()
        producer.begin_transaction()
        kept = [producer.send(topic, b"kept-%d" % i, partition=i) for i in range(3)]
        producer.commit_transaction()
        assert all(delivery.result(0).offset >= 0 for delivery in kept)
        producer.begin_transaction()
        written = producer.send(topic, b"dropped", partition=0)
        written.result(PATIENCE)
        producer.abort_transaction()
        assert written.exception(0) is None  # what was written stays delivered, and is not readable
    assert kafka.committed(topic) == [b"kept-0", b"kept-1", b"kept-2"]
    assert kafka.written(topic) == [b"kept-0", b"dropped", b"kept-1", b"kept-2"]


def test_messages_without_an_outcome_fail_when_they_are_aborted(kafka: Kafka, topic: str) -> None:
    with kafka.producer(linger_ms=60_000) as producer, producer.transaction() as transaction:
        delivery = producer.send(topic, b"lingers")
        transaction.abort()
    error = delivery.exception(0)
    assert isinstance(error, TransactionAbortedError)
    assert error.status is Status.NOT_PERSISTED
    assert "its transaction was aborted" in str(error)
    assert kafka.written(topic) == []


def test_a_block(kafka: Kafka, topic: str) -> None:
    with kafka.producer() as producer:
        with producer.transaction():
            producer.send(topic, b"one", partition=0)
        with pytest.raises(Mishap) as raised:
            fail_in_a_block(producer, topic)
        assert not hasattr(raised.value, "__notes__")
        with producer.transaction() as transaction:
            producer.send(topic, b"three", partition=0).result(PATIENCE)
            transaction.abort()
        with producer.transaction():
            producer.send(topic, b"four", partition=0)
    assert kafka.committed(topic) == [b"one", b"four"]
    assert kafka.written(topic) == [b"one", b"two", b"three", b"four"]


def test_many_transactions_in_a_row(kafka: Kafka, topic: str) -> None:
    expected: dict[int, list[bytes]] = {partition: [] for partition in range(3)}
    with kafka.producer() as producer:
        producer.init_transactions()
        for n in range(60):
            producer.begin_transaction()
            values = [b"%d-%d" % (n, i) for i in range(n % 7)]
            for i, value in enumerate(values):
                producer.send(topic, value, partition=(n + i) % 3)
            if n % 5 == 3:
                producer.flush()
            if n % 3 == 1:
                producer.abort_transaction()
                continue
            producer.commit_transaction()
            for i, value in enumerate(values):
                expected[(n + i) % 3].append(value)
    assert kafka.committed(topic) == [value for values in expected.values() for value in values]


def test_threads_that_send_in_one_transaction(kafka: Kafka, topic: str) -> None:
    with kafka.producer() as producer:
        producer.init_transactions()
        for n in range(5):
            producer.begin_transaction()

            def send(name: int, n: int = n) -> None:
                for i in range(200):
                    producer.send(topic, b"%d-%d-%d" % (n, name, i), partition=i % 3)

            threads = [threading.Thread(target=send, args=(name,)) for name in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            if n % 2:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
    values = kafka.committed(topic)
    assert sorted(values) == sorted(
        b"%d-%d-%d" % (n, name, i) for n in (0, 2, 4) for name in range(4) for i in range(200)
    )


def test_empty_transactions(kafka: Kafka, topic: str) -> None:
    with kafka.producer() as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.commit_transaction()
        producer.begin_transaction()
        producer.abort_transaction()
        with producer.transaction():
            pass
        with producer.transaction() as transaction:
            transaction.abort()
        with producer.transaction():
            producer.send(topic, b"not empty")
    assert kafka.committed(topic) == [b"not empty"]


def test_blocks_of_messages(kafka: Kafka, topic: str) -> None:
    rows = pyarrow.record_batch(
        {"value": [b"a", b"b"], "partition": pyarrow.array([0, 1], "int32")}
    )
    with kafka.producer() as producer:
        with producer.transaction():
            producer.send_many(topic, [b"c", b"d"], partitions=[0, 2])
            producer.send_arrow(rows, topic)
        with producer.transaction() as transaction:
            producer.send_many(topic, [b"e", b"f"], partitions=[0, 1])
            producer.flush()
            transaction.abort()
    assert sorted(kafka.committed(topic)) == [b"a", b"b", b"c", b"d"]
    assert sorted(kafka.written(topic)) == [b"a", b"b", b"c", b"d", b"e", b"f"]


def test_flush_does_not_end_a_transaction(kafka: Kafka, topic: str) -> None:
    with kafka.producer(linger_ms=60_000) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        first = producer.send(topic, b"first", partition=0)
        producer.flush()
        assert first.exception(0) is None
        producer.send(topic, b"second", partition=0)
        producer.commit_transaction()  # it does not linger
    assert kafka.committed(topic) == [b"first", b"second"]


def test_large_transactions(kafka: Kafka, topic: str) -> None:
    with kafka.producer(batch_size=2_000, compression_type="lz4") as producer:
        for n in range(3):
            with producer.transaction() as transaction:
                for i in range(3_000):
                    producer.send(topic, b"%d-%d" % (n, i), partition=i % 3)
                if n == 1:
                    transaction.abort()
    expected = [b"%d-%d" % (n, i) for p in range(3) for n in (0, 2) for i in range(p, 3_000, 3)]
    assert kafka.committed(topic) == expected


def test_init_transactions_again_has_no_effect(kafka: Kafka, topic: str) -> None:
    with kafka.producer() as producer:
        producer.init_transactions()
        producer.init_transactions()
        with producer.transaction():
            producer.send(topic, b"one")
        producer.init_transactions()
        with producer.transaction():
            producer.send(topic, b"two")
    assert sorted(kafka.committed(topic)) == [b"one", b"two"]


def test_the_next_producer_ends_what_the_last_one_left(kafka: Kafka, topic: str) -> None:
    with kafka.producer(transactional_id=f"left-{topic}") as first:
        first.init_transactions()
        first.begin_transaction()
        first.send(topic, b"left", partition=0).result(PATIENCE)
        first.abort()
    with kafka.producer(transactional_id=f"left-{topic}") as second, second.transaction():
        second.send(topic, b"next", partition=0)
    assert kafka.committed(topic) == [b"next"]
    assert kafka.written(topic) == [b"left", b"next"]
