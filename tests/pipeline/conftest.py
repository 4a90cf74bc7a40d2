"""The number of requests in flight: different depths reorder different things."""

from __future__ import annotations

from typing import Any

import pytest

from pykaproducer import Producer
from pykaproducer.testing import ScriptedCluster


@pytest.fixture(params=[1, 2, 5], ids=lambda depth: f"in_flight={depth}")
def at_any_depth(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Set max_in_flight_requests_per_connection for producers whose test does not set it."""
    depth: int = request.param
    make = ScriptedCluster.producer

    def producer(self: ScriptedCluster, **settings: Any) -> Producer:
        return make(self, **{"max_in_flight_requests_per_connection": depth, **settings})

    monkeypatch.setattr(ScriptedCluster, "producer", producer)
    return depth
