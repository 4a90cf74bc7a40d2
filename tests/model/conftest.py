"""The profile of the long run; it must be registered before any test is collected."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, settings

from pykaproducer._util.randomness import system_random

# At least 100,000 steps for each test that uses it; every run searches with a new seed.
settings.register_profile(
    "nightly",
    max_examples=1_500,
    stateful_step_count=100,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.fixture(autouse=True)
def chance_that_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the module's generator, which hypothesis seeds, so that it can replay what it finds."""
    monkeypatch.setattr(system_random, "random", random.random)
    monkeypatch.setattr(system_random, "shuffle", random.shuffle)
