"""The profile of the long run; it must be known before any test is collected."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, settings

from pykaproducer._chance import chance

# At least 100,000 steps for each of the tests that ask for it: the search is random each time.
settings.register_profile(
    "nightly",
    max_examples=1_500,
    stateful_step_count=100,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.fixture(autouse=True)
def chance_that_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """What hypothesis has found it must be able to repeat: it seeds the module's generator."""
    monkeypatch.setattr(chance, "random", random.random)
    monkeypatch.setattr(chance, "shuffle", random.shuffle)
