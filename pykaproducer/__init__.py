"""A Kafka producer made of threads that each do one thing.

>>> from pykaproducer import Producer
>>> with Producer(bootstrap_servers="127.0.0.1:9092") as producer:
...     delivery = producer.send("events", b"value", key=b"key")
...     metadata = delivery.result(timeout=10)
"""

from __future__ import annotations

try:
    from pykaproducer import _kernel
except ImportError as error:
    raise ImportError(
        "pykaproducer's kernel is not compiled here. In a directory with the sources Python finds "
        "those before the installed package: run it from another directory, or build them in "
        "place with `pip install -e .`"
    ) from error
from pykaproducer._version import VERSION
from pykaproducer.block import BlockDelivery, BlockFailures, BlockMetadata
from pykaproducer.delivery import Delivery, RecordMetadata, Status, TopicPartition
from pykaproducer.errors import (
    AbortedError,
    BrokerRejectedError,
    BufferFullError,
    CallbackThreadError,
    ConfigurationError,
    DeliveryError,
    DeliveryFailures,
    DeliveryTimeoutError,
    FlushTimeoutError,
    ForkedProducerError,
    MessageTooLargeError,
    MetadataTimeoutError,
    OutcomeTimeoutError,
    PartitionerError,
    ProducerBrokenError,
    ProducerClosedError,
    PykaproducerError,
    RetriesExhaustedError,
    UnsupportedFeatureError,
)
from pykaproducer.kafka_producer import KafkaProducer
from pykaproducer.producer import Producer

del _kernel

__version__ = VERSION

__all__ = [
    "AbortedError",
    "BlockDelivery",
    "BlockFailures",
    "BlockMetadata",
    "BrokerRejectedError",
    "BufferFullError",
    "CallbackThreadError",
    "ConfigurationError",
    "Delivery",
    "DeliveryError",
    "DeliveryFailures",
    "DeliveryTimeoutError",
    "FlushTimeoutError",
    "ForkedProducerError",
    "KafkaProducer",
    "MessageTooLargeError",
    "MetadataTimeoutError",
    "OutcomeTimeoutError",
    "PartitionerError",
    "Producer",
    "ProducerBrokenError",
    "ProducerClosedError",
    "PykaproducerError",
    "RecordMetadata",
    "RetriesExhaustedError",
    "Status",
    "TopicPartition",
    "UnsupportedFeatureError",
]
