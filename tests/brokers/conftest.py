"""Old and other brokers; only ``tox -e brokers`` runs these tests."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from pykaproducer.testing import FaultProxy
from pykaproducer.testing._processes import GuardedProcesses

from .kafka import Kafka
from .releases import RELEASES, MissingError

ENABLED = "PYKAPRODUCER_BROKERS" in os.environ
collect_ignore_glob = [] if ENABLED else ["test_*.py"]

_EXPLANATION = (
    "the tests of other brokers are run by tox -e brokers, or with PYKAPRODUCER_BROKERS set to a "
    "directory for what they download (350 MB)"
)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Explain why nothing is collected, if the command line asks for this folder."""
    if not ENABLED and any("tests/brokers" in each for each in terminalreporter.config.args):
        terminalreporter.write_line(_EXPLANATION)


@pytest.fixture(scope="session", autouse=True)
def enabled() -> None:
    """Fail the tests of a file that the command line names."""
    if not ENABLED:
        pytest.fail(_EXPLANATION, pytrace=False)


@pytest.fixture(scope="session", params=RELEASES, ids=str)
def kafka(request: pytest.FixtureRequest) -> Iterator[Kafka]:
    """Yield a broker of each release; one runs at a time."""
    with FaultProxy() as proxy, GuardedProcesses() as processes:
        try:
            made = Kafka(request.param, processes, proxy)
            made.start()
        except MissingError as error:
            pytest.skip(str(error))
        yield made
