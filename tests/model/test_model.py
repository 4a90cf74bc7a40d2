"""Every promise, under any sequence of events."""

from __future__ import annotations

import functools
from typing import Any, ClassVar

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


@pytest.mark.parametrize("stage_threads", ["shared", "own"])
@pytest.mark.parametrize("in_flight", [1, 2, 5])
def test_the_promises_are_kept_at_each_depth_in_each_mode(
    in_flight: int, stage_threads: str
) -> None:
    class Fixed(Model):
        fixed: ClassVar[dict[str, Any]] = {
            "max_in_flight_requests_per_connection": in_flight,
            "stage_threads": stage_threads,
        }

    asked = chosen()
    run_state_machine_as_test(
        Fixed, settings=settings(asked, max_examples=max(10, asked.max_examples // 6))
    )
