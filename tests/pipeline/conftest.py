"""The number of requests in flight, and the threads of the stages: they reorder things."""

from __future__ import annotations

from typing import Any

import pytest

from pykaproducer import Producer
from pykaproducer.testing import ScriptedCluster
from tests._support.effort import NIGHTLY

#: The modules that run in both modes of ``stage_threads`` each time; at night all of them do.
IN_BOTH_MODES = {
    "test_callers",
    "test_depth",
    "test_epochs",
    "test_failure_table",
    "test_sarama_scenarios",
    "test_shutdown",
    "test_transactions",
    "test_waiting",
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    name = metafunc.module.__name__.rpartition(".")[2]
    modes = ["shared", "own"] if NIGHTLY or name in IN_BOTH_MODES else ["shared"]
    metafunc.parametrize("_stage_threads", modes, indirect=True)


@pytest.fixture(autouse=True)
def _stage_threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set stage_threads for producers whose test does not set it."""
    _set_default(monkeypatch, "stage_threads", request.param)


@pytest.fixture(params=[1, 2, 5], ids=lambda depth: f"in_flight={depth}")
def at_any_depth(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Set max_in_flight_requests_per_connection for producers whose test does not set it."""
    depth: int = request.param
    _set_default(monkeypatch, "max_in_flight_requests_per_connection", depth)
    return depth


def _set_default(monkeypatch: pytest.MonkeyPatch, name: str, value: object) -> None:
    make = ScriptedCluster.producer

    def producer(self: ScriptedCluster, **settings: Any) -> Producer:
        return make(self, **{name: value, **settings})

    monkeypatch.setattr(ScriptedCluster, "producer", producer)
