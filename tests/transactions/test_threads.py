"""Several threads use one transactional producer."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence

from pykaproducer import Producer
from pykaproducer.errors import TransactionStateError
from pykaproducer.testing._processes import tick
from tests._support.threads import Call
from tests.transactions.helper import BOTH, Kafka

#: Messages that a thread sends before it pauses, few enough to be read back in time.
_BURST = 50


def run_transactions(
    producer: Producer,
    end: Callable[[], None],
    works: Sequence[Callable[[], object]],
    stop: threading.Event,
) -> None:
    """Begin and *end* transactions while threads do the *works*, which return after *stop*."""
    calls = [Call(work) for work in works]
    try:
        for _ in range(20):
            producer.begin_transaction()
            before = producer.accepted
            while producer.accepted < before + 50:
                tick()
            end()
    finally:
        stop.set()
    assert {call.error() for call in calls} == {None}


def test_what_is_accepted_while_one_commits_is_in_one_transaction_or_refused(
    kafka: Kafka, topic: str
) -> None:
    """A transaction has exactly the messages that were accepted before its end."""
    accepted: list[list[bytes]] = [[] for _ in range(4)]
    stop = threading.Event()

    def send(name: int) -> None:
        while not stop.is_set():
            value = b"%d-%d" % (name, len(accepted[name]))
            try:
                producer.send(topic, value, partition=name % 3)
            except TransactionStateError:
                continue  # between two transactions
            accepted[name].append(value)
            if len(accepted[name]) % _BURST == 0:
                tick()

    with kafka.producer() as producer:
        producer.init_transactions()
        works = [functools.partial(send, name) for name in range(4)]
        run_transactions(producer, producer.commit_transaction, works, stop)
    values = kafka.committed(topic)
    assert len(values) == producer.accepted
    for name in range(4):  # in their order
        assert [each for each in values if each.startswith(b"%d-" % name)] == accepted[name]


@BOTH
def test_what_is_accepted_while_one_aborts_is_never_seen(kafka: Kafka, topic: str) -> None:
    stop = threading.Event()

    def send() -> None:
        while not stop.is_set():
            try:
                for _ in range(_BURST):
                    producer.send(topic, b"dropped", partition=0)
                tick()
            except TransactionStateError:
                continue

    with kafka.producer() as producer:
        producer.init_transactions()
        run_transactions(producer, producer.abort_transaction, [send] * 3, stop)
        with producer.transaction():
            producer.send(topic, b"kept", partition=0)
    assert kafka.committed(topic) == [b"kept"]


def test_threads_that_initialize_at_once(kafka: Kafka, topic: str) -> None:
    with kafka.producer() as producer:
        calls = [Call(producer.init_transactions) for _ in range(8)]
        assert {call.error() for call in calls} == {None}
        assert producer.stats()["transactions"]["assignments"] == 1
        with producer.transaction():
            producer.send(topic, b"value", partition=0)
    assert kafka.committed(topic) == [b"value"]


def test_one_of_two_threads_begins(kafka: Kafka, topic: str) -> None:
    with kafka.producer() as producer:
        producer.init_transactions()
        calls = [Call(producer.begin_transaction) for _ in range(2)]
        errors = [call.error() for call in calls]
        assert errors.count(None) == 1
        (refused,) = [error for error in errors if error is not None]
        assert isinstance(refused, TransactionStateError)
        assert "a transaction is open" in str(refused)
        producer.send(topic, b"value", partition=0)
        producer.commit_transaction()
    assert kafka.committed(topic) == [b"value"]
