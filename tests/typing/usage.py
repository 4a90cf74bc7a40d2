"""Programs for a type checker: checked by ``tox -e types``, never run.

A line with ``type: ignore`` must be an error: mypy reports ignores that it does not need.
"""

from __future__ import annotations

from typing import Any, assert_type

from pykaproducer import Delivery, DeliveryError, KafkaProducer, Producer, RecordMetadata
from pykaproducer.config import read_settings
from pykaproducer.settings import ProducerSettings
from pykaproducer.testing import MockKafkaProducer, MockProducer, SentRecord

producer = Producer(bootstrap_servers="127.0.0.1:9092", linger_ms=5, acks="all")
Producer(linger="5")  # type: ignore[call-arg]
Producer(linger_ms="abc")  # type: ignore[arg-type]
Producer(**read_settings("client.properties"))

settings: ProducerSettings = {"linger_ms": 5, "compression_type": "lz4"}
Producer(**settings)
dotted: dict[str, Any] = {"bootstrap.servers": "127.0.0.1:9092", "linger.ms": "5"}
Producer(**dotted)


def report(error: DeliveryError | None, delivery: Delivery) -> None:
    """The README's callback."""
    if error is None:
        print("delivered:", delivery.partition, delivery.offset)
    else:
        print(error, error.status, delivery.value)


delivery = producer.send("events", b"value", key=b"key", on_delivery=report)
assert_type(delivery, Delivery)
assert_type(delivery.result(timeout=10), RecordMetadata)
producer.send(5)  # type: ignore[arg-type]


async def wait() -> int:
    """An outcome that is awaited has the same type."""
    return assert_type(await producer.send("events", b"value"), RecordMetadata).offset


drop_in = KafkaProducer(bootstrap_servers=["127.0.0.1:9092"])
assert_type(drop_in.send("events", b"value").get(timeout=10), RecordMetadata)


def application(producer: Producer) -> None:
    """A program that is tested with a mock."""


def older_application(producer: KafkaProducer) -> None:
    """As above, written for kafka-python."""


mock = MockProducer(auto_complete=False, partitions={"events": 3}, linger_ms=5)
MockProducer(linger="5")  # type: ignore[call-arg]
MockProducer(auto_complete="no")  # type: ignore[arg-type]
application(mock)
application(MockKafkaProducer())
older_application(MockKafkaProducer())
older_application(mock)  # type: ignore[arg-type]
assert_type(mock.send("events", b"value"), Delivery)
assert_type(mock.history(), list[SentRecord])
assert_type(mock.fail_next(29), bool)
mock.raise_next("sned", OSError())  # type: ignore[arg-type]
assert_type(MockKafkaProducer().send("events", b"value").get(), RecordMetadata)
