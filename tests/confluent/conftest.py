"""A broker on which confluent-kafka and the drop-in play the same scenarios."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pykaproducer.testing import FaultProxy, KafkaCluster

from .play import Stage


@pytest.fixture(scope="module")
def kafka() -> Iterator[tuple[KafkaCluster, FaultProxy]]:
    """Yield a broker behind a proxy."""
    properties = {
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
        "auto.create.topics.enable": "false",
    }
    with (
        FaultProxy() as proxy,
        KafkaCluster(properties=properties, proxies=[proxy], fast_start=True) as cluster,
    ):
        yield cluster, proxy


@pytest.fixture
def stage(kafka: tuple[KafkaCluster, FaultProxy], topic: str) -> Stage:
    return Stage(*kafka, topic)
