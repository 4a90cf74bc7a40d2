"""The pytest plugin: fixtures for programs that send messages to Kafka.

pytest imports this module in every run in an environment with pykaproducer. So it imports nothing
of the package until a test requests a fixture, and changes nothing for other tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pykaproducer.testing import KafkaCluster, MockProducer, ScriptedCluster

#: The option of pytest's configuration file for the number of brokers.
_BROKERS = "kafka_brokers"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option ``kafka_brokers`` to pytest's configuration file."""
    parser.addini(
        _BROKERS, "number of brokers of the fixture kafka_cluster (pykaproducer)", default="1"
    )


@pytest.fixture(scope="session")
def kafka_cluster(pytestconfig: pytest.Config) -> Iterator[KafkaCluster]:
    """A real Kafka cluster (:class:`pykaproducer.testing.KafkaCluster`), shared by all tests.

    It is started by the first test that requests it; with pytest-xdist, each worker process has its
    own. Tests that request it are skipped where the extra ``testing`` is not installed.
    """
    from pykaproducer.testing import KafkaCluster, NotInstalledError

    brokers = _brokers(pytestconfig)
    try:
        cluster = KafkaCluster(brokers, fast_start=True).start()
    except NotInstalledError as error:
        pytest.skip(f"no Kafka for kafka_cluster: {error}")
    with cluster:
        yield cluster


@pytest.fixture
def scripted_cluster() -> Iterator[ScriptedCluster]:
    """A cluster in this process with scripted responses, which creates topics automatically.

    See :class:`pykaproducer.testing.ScriptedCluster`.
    """
    from pykaproducer.testing import ScriptedCluster

    with ScriptedCluster(auto_create=True) as cluster:
        yield cluster


@pytest.fixture
def mock_producer() -> Iterator[MockProducer]:
    """A producer without a cluster (:class:`pykaproducer.testing.MockProducer`)."""
    from pykaproducer.testing import MockProducer

    producer = MockProducer()
    yield producer
    producer.clear()
    producer.abort()


def _brokers(config: pytest.Config) -> int:
    """Return the option ``kafka_brokers``."""
    given = str(config.getini(_BROKERS))
    if not given.isdecimal() or not int(given):
        raise pytest.UsageError(
            f"{_BROKERS} in pytest's configuration file: {given!r} is not a number of brokers from "
            f"1 on"
        )
    return int(given)
