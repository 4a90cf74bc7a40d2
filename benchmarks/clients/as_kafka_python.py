"""pykaproducer's replacement of kafka-python, in the same loops."""

from __future__ import annotations

from benchmarks.clients import kafka_python
from pykaproducer import KafkaProducer


class Client(kafka_python.Client):
    producer_class = KafkaProducer
