"""Brokers for each transaction protocol, and queries on them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from pykaproducer.testing import KafkaCluster
from tests._support.fixtures.cluster import FEATURES, PROCESS, service
from tests._support.pairs import partly
from tests._support.services import attached
from tests.exactly_once.helper import Query

_numbers = itertools.count(1)


@pytest.fixture(scope="session", params=partly(sorted(FEATURES), ["TV2"]))
def protocol(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="session")
def sink_cluster(pytestconfig: pytest.Config, protocol: str) -> KafkaCluster:
    """Return a broker that the run shares; each protocol has one."""
    return attached(service(pytestconfig, protocol))


@pytest.fixture(scope="session")
def new_query(sink_cluster: KafkaCluster) -> Callable[..., Query]:
    """Return a function that makes queries, each with another topic and another prefix."""

    def make(**options: Any) -> Query:
        topic = f"rows-{PROCESS}-{next(_numbers)}"
        sink_cluster.create_topic(topic, partitions=3)
        return Query(sink_cluster.bootstrap_servers, topic, **options)

    return make


@pytest.fixture
def query(new_query: Callable[..., Query]) -> Iterator[Callable[..., Query]]:
    """Yield a function that makes queries, and close them at the end."""
    with ExitStack() as made:
        yield lambda **options: made.enter_context(new_query(**options))
