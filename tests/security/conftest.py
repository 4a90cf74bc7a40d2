"""One secured broker for all these tests, with a listener for each success or failure."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pykaproducer.testing import ClusterError, KafkaCluster
from pykaproducer.testing._jars import java, kafka_jars

from .listeners import SECURITY


@pytest.fixture(scope="package")
def secured() -> Iterator[KafkaCluster]:
    """Yield the broker, shared by all tests of this directory."""
    try:
        java()
        kafka_jars()
    except ClusterError as error:
        pytest.skip(f"no Kafka to test with: {error}")
    pytest.importorskip("trustme")
    with KafkaCluster(security=SECURITY, fast_start=True) as cluster:
        yield cluster


@pytest.fixture
def secured_topic(secured: KafkaCluster, topic: str) -> str:
    """Return a topic that no other test uses and that exists."""
    name = f"secured-{topic}"
    secured.create_topic(name)
    return name
