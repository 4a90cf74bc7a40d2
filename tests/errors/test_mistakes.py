"""Mistakes of a first program, and the errors that explain them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from pykaproducer import (
    BlockDelivery,
    ConfigurationError,
    Delivery,
    KafkaProducer,
    MessageTooLargeError,
    Producer,
    Status,
)

NOWHERE = "127.0.0.1:1"


@pytest.mark.parametrize("kind", [Producer, KafkaProducer])
@pytest.mark.parametrize("name", ["key", "value"])
def test_a_serializer_that_returns_text(kind: type[Producer], name: str) -> None:
    producer = kind(bootstrap_servers=NOWHERE, **{f"{name}_serializer": json.dumps})
    with pytest.raises(TypeError, match=rf"^{name}_serializer returned str; it must return bytes"):
        producer.send("t", **{"key": b"k", "value": b"v", name: {"a": 1}})  # type: ignore[arg-type]
    producer.close()


@pytest.mark.parametrize("name", ["key", "value"])
def test_a_serializer_that_raises_is_named_with_the_topic(name: str) -> None:
    producer = Producer(bootstrap_servers=NOWHERE, **{f"{name}_serializer": json.dumps})
    with pytest.raises(TypeError, match="not JSON serializable") as caught:
        producer.send("t", **{name: object()})  # type: ignore[arg-type]
    assert caught.value.__notes__ == [f"raised by {name}_serializer for a message to topic 't'"]
    producer.close()


def test_without_a_serializer_one_is_recommended() -> None:
    producer = Producer(bootstrap_servers=NOWHERE)
    with pytest.raises(TypeError, match="set value_serializer to send other types"):
        producer.send("t", "text")  # type: ignore[arg-type]
    producer.close()


async def report(error: BaseException | None, delivery: Delivery | BlockDelivery) -> None:
    raise AssertionError("it is never awaited")


class Service:
    async def report(self, error: BaseException | None, delivery: Delivery) -> None:
        raise AssertionError("it is never awaited")


CALLS: list[Callable[[Producer, Any], object]] = [
    lambda producer, callback: producer.send("t", b"v", on_delivery=callback),
    lambda producer, callback: producer.send_many("t", [b"v"], on_delivery=callback),
]


@pytest.mark.parametrize("send", CALLS)
@pytest.mark.parametrize("callback", [report, Service().report])
def test_an_async_callback_is_refused(
    send: Callable[[Producer, Any], object], callback: object
) -> None:
    producer = Producer(bootstrap_servers=NOWHERE)
    with pytest.raises(TypeError, match="on_delivery is an async function"):
        send(producer, callback)
    assert producer.accepted == 0
    producer.close()


@pytest.mark.parametrize("kind", [Producer, KafkaProducer])
@pytest.mark.parametrize("server", ["http://127.0.0.1:9092", "HTTPS://kafka", ["a:1", "http://b"]])
def test_a_web_address_is_no_server(kind: type[Producer], server: object) -> None:
    with pytest.raises(ConfigurationError, match="web address; give host:port of a broker"):
        kind(bootstrap_servers=server)


def test_a_buffer_that_no_message_fits_into() -> None:
    with pytest.raises(ConfigurationError, match="setting buffer_memory: 100 was given"):
        Producer(buffer_memory=100)
    producer = Producer(bootstrap_servers=NOWHERE, buffer_memory=1_000)
    producer.send("t", b"value")
    producer.abort()


def test_a_message_that_is_too_large_has_a_status() -> None:
    producer = Producer(bootstrap_servers=NOWHERE, max_request_size=1_000)
    with pytest.raises(MessageTooLargeError, match="max_request_size") as caught:
        producer.send("t", bytes(2_000))
    assert caught.value.status is Status.NOT_PERSISTED
    producer.close()
