"""Brokers for each transaction protocol: real ones behind a proxy, and scripted ones."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pykaproducer.testing import FakeClock, ScriptedCluster
from tests._support.fixtures.cluster import FEATURES, proxied
from tests.transactions.helper import Kafka, own_broker


@pytest.fixture(scope="session", params=[pytest.param("TV1", marks=pytest.mark.full), "TV2"])
def kafka(request: pytest.FixtureRequest) -> Iterator[Kafka]:
    """Yield a broker that the run shares; a test that changes the proxy must restore it."""
    for cluster, proxy in proxied(request.config, request.param):
        yield Kafka(cluster, proxy, request.param)


@pytest.fixture(scope="module", params=[pytest.param("TV1", marks=pytest.mark.full), "TV2"])
def own_kafka(request: pytest.FixtureRequest) -> Iterator[Kafka]:
    """Yield a broker of this process; a test that stops it must restore it."""
    with own_broker(request.param) as started:
        yield started


@pytest.fixture
def topic(kafka: Kafka, topic: str) -> Iterator[str]:
    """Create a topic with three partitions; yield its name."""
    name = f"{kafka.protocol}-{topic}"
    kafka.cluster.create_topic(name, partitions=3)
    yield name
    kafka.restore()  # a test that failed may have left a cut


@pytest.fixture(params=sorted(FEATURES))
def protocol(request: pytest.FixtureRequest) -> str:
    """Return the name of a protocol, for tests with scripted brokers."""
    return str(request.param)


@pytest.fixture
def scripted(protocol: str) -> Iterator[ScriptedCluster]:
    """Yield a scripted broker with the topic "t" of two partitions."""
    with ScriptedCluster(topics={"t": 2}, features=FEATURES[protocol]) as made:
        yield made


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()
