"""The errors that a new user meets first say what to do."""

from __future__ import annotations

from typing import Any

import pytest

from pykaproducer import ConfigurationError, MessageTooLargeError, Producer
from pykaproducer.confluent import KafkaException
from pykaproducer.confluent import Producer as ConfluentProducer
from pykaproducer.errors import DeliveryTimeoutError, Status, reasons


def test_a_message_that_is_too_large_names_the_setting() -> None:
    producer = Producer(bootstrap_servers="127.0.0.1:9", max_request_size=1000)
    with pytest.raises(MessageTooLargeError) as error:
        producer.send("events", bytes(2000))
    text = str(error.value)
    assert "but max_request_size allows 1000; send a smaller message, or raise max_req" in text
    assert error.value.status is Status.NOT_PERSISTED
    producer.abort()
    producer = Producer(bootstrap_servers="127.0.0.1:9", buffer_memory=5000)
    with pytest.raises(
        MessageTooLargeError, match=r"buffer_memory \(5000\); .* or raise buffer_memory$"
    ):
        producer.send("events", bytes(20_000))
    producer.abort()


def test_confluents_producer_names_the_setting_as_its_user_does() -> None:
    producer = ConfluentProducer({"bootstrap.servers": "127.0.0.1:9", "message.max.bytes": 2000})
    with pytest.raises(KafkaException) as error:
        producer.produce("events", bytes(3000))
    text = str(error.value)
    assert "message.max.bytes allows 2000; send a smaller message, or raise message.max" in text
    assert "max_request_size" not in text


@pytest.mark.parametrize("value", [b"abc", bytearray(b"abc"), memoryview(b"abc"), "abc"])
@pytest.mark.parametrize("name", ["values", "keys"])
def test_one_value_in_place_of_a_list(name: str, value: Any) -> None:
    columns: dict[str, Any] = {"values": [b"a", b"b", b"c"], name: value}
    producer = Producer(bootstrap_servers="127.0.0.1:9", value_serializer=bytes)
    kind = type(value).__name__
    text = f"{name} must be a sequence with one item for each message, not a single {kind}"
    with pytest.raises(TypeError, match=text):
        producer.send_many("events", **columns)
    producer.abort()


def test_a_reason_is_named_once() -> None:
    errors = [
        DeliveryTimeoutError(
            topic=topic, waited=waited, reason="no leader", status=Status.NOT_PERSISTED
        )
        for topic, waited in (("t", 0.313), ("t", 0.315), ("t", 2), ("u", 2))
    ]
    assert reasons(errors) == (
        "; first: DeliveryTimeoutError: topic 't': not delivered within 0.313 s: no leader (the "
        "message was not written); DeliveryTimeoutError: topic 'u': not delivered within 2 s: no "
        "leader (the message was not written)"
    )


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (
            {"compression_level": 3},
            "3 was given, but compression_type None has no levels; remove compression_level",
        ),
        (
            {"compression_level": 3, "compression_type": "snappy"},
            "3 was given, but compression_type 'snappy' has no levels",
        ),
        (
            {"compression_level": 15, "compression_type": "gzip"},
            "15 was given; allowed with compression_type 'gzip': an integer from 1 to 9",
        ),
        (
            {"compression_level": 30, "compression_type": "gzip"},
            "30 was given; allowed: an integer: gzip 1 to 9, lz4 1 to 12, zstd -131072 to 22",
        ),
    ],
)
def test_a_compression_level_that_does_not_exist(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError, match="compression_level") as error:
        Producer(bootstrap_servers="127.0.0.1:9", **settings)
    assert text in str(error.value)
