"""Every promise, under any sequence of events."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from pykaproducer._machines.ordering import Transition, Transitions

from .machine import Model, ModelWithoutIdempotence

#: Deterministic, unless a larger profile (``nightly``) is selected, which is then used.
NORMAL = settings(
    max_examples=60,
    stateful_step_count=80,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def chosen() -> settings:
    nightly = settings.get_profile("nightly")
    asked = settings.default
    assert asked is not None
    return asked if asked.max_examples >= nightly.max_examples else NORMAL


@pytest.mark.parametrize("model", [Model, ModelWithoutIdempotence])
def test_any_interleaving_keeps_the_promises(model: type[Model]) -> None:
    transitions = Transitions()
    # A factory is accepted in place of a class.
    make: Any = functools.partial(model, transitions)
    run_state_machine_as_test(make, settings=chosen())
    never = set(Transition) - set(transitions)
    assert not never, f"never taken: {never}"
