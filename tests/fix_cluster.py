"""Real Kafka for the tests that need it, started once, when the first test requests it."""

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
    """Yield one broker for the whole run; a test that pauses or kills it must restore it."""
    yield from _cluster(1)


@pytest.fixture(scope="module")
def cluster3() -> Iterator[KafkaCluster]:
    """Yield three brokers with two disks each, for one module."""
    yield from _cluster(3, disks=2)


@pytest.fixture
def topic() -> str:
    """Return a topic name that no other test uses."""
    return f"topic-{next(_numbers)}"
