"""confluent-kafka's ``Producer``, for programs written for it: change the import.

>>> from pykaproducer.confluent import Producer
>>> producer = Producer({"bootstrap.servers": "127.0.0.1:9092"})
>>> producer.produce("events", "value", key="key", on_delivery=print)
>>> producer.flush()
0

The exceptions are separate classes: code that catches ``KafkaException`` must import it from here,
too. ``docs/migration-confluent.rst`` describes each setting, and the differences.
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
