"""A broker on which confluent-kafka and the drop-in play the same scenarios."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests._support.fixtures.cluster import PROPERTIES
from tests.transactions.helper import Kafka, own_broker

from .play import Stage


@pytest.fixture(scope="module")
def kafka() -> Iterator[Kafka]:
    """Yield a broker behind a proxy."""
    with own_broker("TV2", {**PROPERTIES, "auto.create.topics.enable": "false"}) as started:
        # A coordinator that still loads is what librdkafka reports of its next init_transactions().
        with started.begun() as producer:
            producer.abort_transaction()
        yield started


@pytest.fixture
def stage(kafka: Kafka, topic: str) -> Stage:
    return Stage(kafka, topic)
