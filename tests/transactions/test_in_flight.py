"""Transactions that end while batches are in flight, are lost, or wait for a retry."""

from __future__ import annotations

import functools
import threading
from typing import Any

import pytest

from pykaproducer import Producer
from pykaproducer.testing import Cut
from pykaproducer.testing._processes import tick
from tests._support.threads import run_together
from tests.transactions.helper import BOTH, PATIENCE, Kafka

PRODUCE = 0


def send(producer: Producer, topic: str, name: str, count: int) -> list[list[bytes]]:
    """Send messages to each partition in turn; return those of each partition."""
    sent: list[list[bytes]] = [[], [], []]
    for i in range(count):
        sent[i % 3].append(f"{name} {i}".encode())
        producer.send(topic, sent[i % 3][-1], partition=i % 3)
    return sent


def joined(transactions: list[list[list[bytes]]]) -> list[bytes]:
    """Return the messages of the *transactions*, partition by partition."""
    return [value for p in range(3) for sent in transactions for value in sent[p]]


@BOTH
@pytest.mark.parametrize("where", [*Cut, None], ids=lambda each: each and each.name)
def test_many_batches_of_which_some_are_lost_or_slow(
    kafka: Kafka, topic: str, where: Cut | None
) -> None:
    kept = []
    with kafka.producer(proxied=True, batch_size=500, compression_type="lz4") as producer:
        producer.init_transactions()
        for n in range(6):
            if where is None:
                kafka.proxy.delay(0.01)
            else:
                kafka.proxy.cut(where, 2, api_key=PRODUCE)
            producer.begin_transaction()
            sent = send(producer, topic, f"{n}", 1_000 if where else 300)
            if n % 2:
                producer.abort_transaction()
            else:
                kept.append(sent)
                producer.commit_transaction()
    assert kafka.committed(topic) == joined(kept)


@BOTH
def test_aborts_while_batches_are_in_flight(kafka: Kafka, topic: str) -> None:
    kept = []
    with kafka.producer(batch_size=500, linger_ms=0) as producer:
        producer.init_transactions()
        for n in range(40):
            producer.begin_transaction()
            first = producer.send(topic, b"first", partition=n % 3)
            send(producer, topic, "aborted", 10 * n)
            if n % 4 == 0:
                first.result(PATIENCE)
            producer.abort_transaction()
            with producer.transaction():
                kept.append(send(producer, topic, f"{n}", n))
    assert kafka.committed(topic) == joined(kept)


def test_connections_that_were_closed_because_they_were_idle(kafka: Kafka, topic: str) -> None:
    with kafka.producer(proxied=True, connections_max_idle_ms=200) as producer:
        for n in range(3):
            with producer.transaction():
                producer.send(topic, b"%d" % n, partition=0)
            while kafka.proxy.connections:
                tick()
    assert kafka.committed(topic) == [b"0", b"1", b"2"]


def test_a_topic_that_is_created_by_the_first_message(kafka: Kafka, topic: str) -> None:
    with kafka.producer() as producer:
        for n in range(2):
            with producer.transaction() as transaction:
                producer.send(topic, b"%d" % n, partition=0)
                producer.send(f"{topic}-new-{n}", b"%d" % n).result(PATIENCE)
                if n:
                    transaction.abort()
    assert kafka.committed(topic) == [b"0"]


def test_several_producers_at_once(kafka: Kafka, topic: str) -> None:
    def work(name: int) -> None:
        with kafka.producer() as producer:
            for n in range(10):
                with producer.transaction() as transaction:
                    for i in range(n):
                        producer.send(topic, f"{name} {n} {i}".encode(), partition=i % 3)
                    if n % 3 == 2:
                        transaction.abort()

    run_together(*(functools.partial(work, name) for name in range(4)))
    assert sorted(kafka.committed(topic)) == sorted(
        f"{name} {n} {i}".encode()
        for name in range(4)
        for n in range(10)
        if n % 3 != 2
        for i in range(n)
    )


def test_a_callback_sends_in_the_same_transaction(kafka: Kafka, topic: str) -> None:
    again = threading.Event()

    def on_delivery(_error: Any, _delivery: Any) -> None:
        producer.send(topic, b"again", partition=0)
        again.set()

    with kafka.producer() as producer, producer.transaction():
        producer.send(topic, b"first", partition=0, on_delivery=on_delivery)
        assert again.wait(PATIENCE)
    assert kafka.committed(topic) == [b"first", b"again"]
