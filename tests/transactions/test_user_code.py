"""User code that the producer calls may not begin or end a transaction itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import methodcaller
from typing import Any

import pytest

from pykaproducer import Producer
from pykaproducer.delivery import TopicPartition
from pykaproducer.errors import CallbackThreadError, MessageTooLargeError
from pykaproducer.interceptors import Interceptor
from pykaproducer.testing import MockProducer
from tests.transactions.helper import PATIENCE, Kafka

OFFSETS = {TopicPartition("input", 0): 1}
CALLS: dict[str, Callable[[Producer], object]] = {
    "init_transactions": Producer.init_transactions,
    "init_transactions, another id": methodcaller("init_transactions", transactional_id="other"),
    "transaction": lambda producer: producer.transaction().__enter__(),
    "begin_transaction": Producer.begin_transaction,
    "send_offsets_to_transaction": methodcaller("send_offsets_to_transaction", OFFSETS, "group"),
    "commit_transaction": Producer.commit_transaction,
    "prepare_transaction": Producer.prepare_transaction,
    "abort_transaction": Producer.abort_transaction,
}


class Attempts:
    """Makes each call from user code of the producer, and checks that it is refused at once."""

    def __init__(self) -> None:
        self.producer: Producer | None = None
        self.refused = 0

    def make(self, *_arguments: object) -> None:
        if self.producer is None:
            return
        for name, call in CALLS.items():
            with pytest.raises(CallbackThreadError) as raised:
                call(self.producer)
            method, _, text = str(raised.value).partition("()")
            assert text == (
                " was called from a callback, partitioner, serializer or interceptor; the "
                "transaction of a message must not change while they handle it; make the call "
                "elsewhere, after send() has returned"
            )
            assert name.partition(",")[0] in (method, "transaction")  # a block begins one
        self.refused += 1

    def serialize(self, value: bytes) -> bytes:
        self.make()
        return value

    def partition(self, _key: Any, _everything: list[int], _available: list[int]) -> int:
        self.make()
        return 0


class Intercepting(Interceptor):
    def __init__(self, attempts: Attempts) -> None:
        self.on_send = self.on_acknowledgement = attempts.make  # type: ignore[assignment]


#: What the settings are, and how often a message with it makes an attempt.
USERS: dict[str, tuple[Callable[[Attempts], dict[str, Any]], int]] = {
    "callback": (lambda attempts: {}, 1),
    "value_serializer": (lambda attempts: {"value_serializer": attempts.serialize}, 1),
    "key_serializer": (lambda attempts: {"key_serializer": attempts.serialize}, 1),
    "partitioner": (lambda attempts: {"partitioner": attempts.partition}, 1),
    "interceptor": (lambda attempts: {"interceptors": [Intercepting(attempts)]}, 2),
}


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize(
    "bulk",
    [False, pytest.param(True, marks=pytest.mark.full)],  # test_a_mock_refuses_it_too
    ids=["send", "send_many"],
)
def test_each_call_is_refused(kafka: Kafka, topic: str, user: str, bulk: bool) -> None:
    check_a_transaction(kafka.producer, topic, user, bulk)
    assert kafka.committed(topic) == [b"value"]


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("bulk", [False, True], ids=["send", "send_many"])
def test_a_mock_refuses_it_too(user: str, bulk: bool) -> None:
    mock = check_a_transaction(partial(MockProducer, transactional_id="mine"), "t", user, bulk)
    assert [record.value for record in mock.history()] == [b"value"]


def check_a_transaction(make: Callable[..., Any], topic: str, user: str, bulk: bool) -> Any:
    """Send a message whose *user* makes the calls; return the producer."""
    attempts = Attempts()
    settings, times = USERS[user]
    on_delivery = attempts.make if user == "callback" else None
    with make(**settings(attempts)) as producer:
        attempts.producer = producer
        with producer.transaction():
            if bulk:
                producer.send_many(topic, [b"value"], [b"key"], on_delivery=on_delivery)
            else:
                producer.send(topic, b"value", b"key", on_delivery=on_delivery)
    assert attempts.refused == times
    return producer


def test_an_interceptor_that_is_told_of_a_refused_message(kafka: Kafka, topic: str) -> None:
    """On the thread of ``send()``."""
    attempts = Attempts()
    settings = USERS["interceptor"][0](attempts)
    with kafka.producer(max_request_size=1_000, **settings) as producer, producer.transaction():
        attempts.producer = producer
        with pytest.raises(MessageTooLargeError):
            producer.send(topic, bytes(2_000))
        assert attempts.refused == 2
        attempts.producer = None
        producer.send(topic, b"value")
    assert kafka.committed(topic) == [b"value"]


def test_the_callback_of_a_block_that_is_not_accepted_as_a_whole(kafka: Kafka, topic: str) -> None:
    """If its last rows are refused after the others are settled, it runs within the call."""
    attempts = Attempts()
    with kafka.producer() as producer, producer.transaction():
        attempts.producer = producer
        producer.send_many(topic, [], on_delivery=attempts.make)
        assert attempts.refused == 1
        producer.send(topic, b"value")
    assert kafka.committed(topic) == [b"value"]


def test_another_producer_may_be_used(kafka: Kafka, topic: str) -> None:
    """A serializer or a callback of one producer may begin and end transactions of another."""

    def write(value: bytes) -> None:
        with other.transaction():
            other.send(topic, value, partition=1)

    def serialize(value: bytes) -> bytes:
        write(b"serializer")
        return value

    def on_delivery(_error: Any, _delivery: Any) -> None:
        write(b"callback")

    with (
        kafka.producer() as other,
        kafka.producer(value_serializer=serialize) as producer,
        producer.transaction(),
    ):
        producer.send(topic, b"value", partition=0, on_delivery=on_delivery).result(PATIENCE)
    assert kafka.committed(topic) == [b"value", b"serializer", b"callback"]
