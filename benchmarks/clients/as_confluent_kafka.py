"""pykaproducer's replacement of confluent-kafka, in the same loops."""

from __future__ import annotations

from benchmarks.clients import confluent_kafka
from pykaproducer.confluent import Producer


class Client(confluent_kafka.Client):
    producer_class = Producer
