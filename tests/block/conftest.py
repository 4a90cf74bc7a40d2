"""Fixtures of the tests of blocks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pykaproducer import Producer
from pykaproducer.testing import ScriptedCluster


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with ScriptedCluster() as cluster:
        cluster.add_topic("t", 10)
        yield cluster


@pytest.fixture
def producer(cluster: ScriptedCluster) -> Iterator[Producer]:
    with cluster.producer() as producer:
        yield producer
