"""Brokers for each transaction protocol, and queries on them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from pykaproducer.testing import KafkaCluster
from tests._support.fixtures.cluster import FEATURES, PROCESS, service
from tests._support.services import attached
from tests.exactly_once.helper import Query

_numbers = itertools.count(1)


@pytest.fixture(scope="session", params=sorted(FEATURES))
def sink_cluster(request: pytest.FixtureRequest) -> KafkaCluster:
    """Return a broker that the run shares; each protocol has one."""
    return attached(service(request.config, request.param))


@pytest.fixture
def query(sink_cluster: KafkaCluster) -> Iterator[Callable[..., Query]]:
    """Yield a function that makes queries, each with another topic and another prefix."""
    with ExitStack() as made:

        def make(**options: Any) -> Query:
            topic = f"rows-{PROCESS}-{next(_numbers)}"
            sink_cluster.create_topic(topic, partitions=3)
            return made.enter_context(Query(sink_cluster.bootstrap_servers, topic, **options))

        yield make
