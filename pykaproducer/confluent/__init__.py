"""confluent-kafka's ``Producer``, for programs that were written for it: change the import.

>>> from pykaproducer.confluent import Producer
>>> producer = Producer({"bootstrap.servers": "127.0.0.1:9092"})
>>> producer.produce("events", "value", key="key", on_delivery=print)
>>> producer.flush()
0

Exceptions are classes of their own: import ``KafkaException`` from here, too, where it is caught.
``docs/migration-confluent.rst`` has the settings one by one, and what differs.
"""

from __future__ import annotations

from pykaproducer.confluent.errors import KafkaError, KafkaException
from pykaproducer.confluent.message import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    OFFSET_STORED,
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    TIMESTAMP_NOT_AVAILABLE,
    Message,
    ThrottleEvent,
    TopicPartition,
)
from pykaproducer.confluent.metadata import (
    BrokerMetadata,
    ClusterMetadata,
    PartitionMetadata,
    TopicMetadata,
)
from pykaproducer.confluent.producer import Producer

__all__ = [
    "OFFSET_BEGINNING",
    "OFFSET_END",
    "OFFSET_INVALID",
    "OFFSET_STORED",
    "TIMESTAMP_CREATE_TIME",
    "TIMESTAMP_LOG_APPEND_TIME",
    "TIMESTAMP_NOT_AVAILABLE",
    "BrokerMetadata",
    "ClusterMetadata",
    "KafkaError",
    "KafkaException",
    "Message",
    "PartitionMetadata",
    "Producer",
    "ThrottleEvent",
    "TopicMetadata",
    "TopicPartition",
]
