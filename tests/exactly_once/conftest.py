"""Brokers for each transaction protocol, and queries on them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from pykaproducer.testing import KafkaCluster
from tests._support.fixtures.cluster import kafka_or_skip
from tests.exactly_once.helper import Query
from tests.transactions.helper import FEATURES, PROPERTIES

_numbers = itertools.count(1)


@pytest.fixture(scope="session", params=sorted(FEATURES))
def sink_cluster(request: pytest.FixtureRequest) -> Iterator[KafkaCluster]:
    """Yield a broker; each protocol has one."""
    kafka_or_skip()
    features = FEATURES[request.param]
    with KafkaCluster(properties=PROPERTIES, features=features, fast_start=True) as cluster:
        yield cluster


@pytest.fixture
def query(sink_cluster: KafkaCluster) -> Iterator[Callable[..., Query]]:
    """Yield a function that makes queries, each with another topic and another prefix."""
    with ExitStack() as made:

        def make(**options: Any) -> Query:
            topic = f"rows-{next(_numbers)}"
            sink_cluster.create_topic(topic, partitions=3)
            return made.enter_context(Query(sink_cluster.bootstrap_servers, topic, **options))

        yield make
