"""Real Kafka for the tests that need it: started once, when the first of them asks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from pykaproducer.testing import ClusterError, KafkaCluster
from pykaproducer.testing._jars import java, kafka_jars

_numbers = itertools.count(1)


def _cluster(brokers: int, disks: int = 1) -> Iterator[KafkaCluster]:
    try:
        java()
        kafka_jars()
    except ClusterError as error:
        pytest.skip(f"no Kafka to test with: {error}")
    with KafkaCluster(brokers, disks=disks) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def cluster() -> Iterator[KafkaCluster]:
    """One broker, for the whole run. Whoever pauses or kills it puts it right again."""
    yield from _cluster(1)


@pytest.fixture(scope="module")
def cluster3() -> Iterator[KafkaCluster]:
    """Three brokers with two disks each, for one module."""
    yield from _cluster(3, disks=2)


@pytest.fixture
def topic() -> str:
    """The name of a topic that nobody else uses."""
    return f"topic-{next(_numbers)}"
