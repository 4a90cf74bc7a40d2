"""Programs for a type checker: checked by ``tox -e lint``, never run.

A line with ``type: ignore`` must be an error: mypy reports ignores that it does not need.
"""

from __future__ import annotations

from typing import Any, assert_type

from pykaproducer import (
    Delivery,
    DeliveryError,
    Ended,
    KafkaProducer,
    PreparedTransaction,
    Producer,
    RecordMetadata,
    TopicPartition,
    TransactionControl,
)
from pykaproducer._pipeline.broker import BrokerWorker
from pykaproducer._pipeline.broker_events import Shutdown
from pykaproducer._pipeline.metadata import Metadata
from pykaproducer._pipeline.metadata_events import RefreshRequest, ViewChanged
from pykaproducer._pipeline.worker import AnyWorker, Worker
from pykaproducer.config import read_settings
from pykaproducer.settings import ProducerSettings
from pykaproducer.testing import MockKafkaProducer, MockProducer, SentRecord
from pykaproducer.transaction_control import CommittedOffset, ListedTransaction

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

producer.init_transactions(timeout=5, transactional_id="orders-0")
producer.init_transactions("orders-0")  # type: ignore[arg-type]
prepared = producer.prepare_transaction()
assert_type(prepared, PreparedTransaction)
with TransactionControl(bootstrap_servers="127.0.0.1:9092") as control:
    assert_type(control.complete(prepared, commit=True), Ended)
    assert_type(control.complete_all([prepared], commit=False, timeout=5), list[Ended])
    control.complete("orders-0", commit=True)  # type: ignore[arg-type]
    assert_type(control.initialize("driver", 60_000), PreparedTransaction)
    assert_type(control.fence(["orders-0"]), tuple[str, ...])
    assert_type(control.list("orders-", ["Ongoing"]), tuple[ListedTransaction, ...])
    assert_type(control.offsets(["readers"]), dict[str, dict[TopicPartition, CommittedOffset]])


def stages(broker: BrokerWorker, metadata: Metadata) -> None:
    """Each inbox takes the items of its stage only."""
    broker.put(Shutdown())
    broker.put(RefreshRequest())  # type: ignore[arg-type]
    metadata.put(RefreshRequest(waiter=broker))
    metadata.put(RefreshRequest(waiter=metadata))  # type: ignore[arg-type]
    subscriber: Worker[ViewChanged] = broker
    subscriber.put(Shutdown())  # type: ignore[arg-type]
    any_stage: AnyWorker = metadata
    any_stage.put(RefreshRequest())  # type: ignore[arg-type]
