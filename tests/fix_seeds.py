"""Reproducible randomness: every test starts from a seed, and a failure reports it.

``PYKAPRODUCER_SEED=N`` repeats a run's random numbers. The library's own generator
(``_util/randomness.py``, for backoffs) is seeded too; the order in which threads use it still
depends on the machine.
"""

from __future__ import annotations

import os
import random
import time

import pytest

from pykaproducer._util.randomness import system_random

SEED = int(os.environ.get("PYKAPRODUCER_SEED") or time.time_ns() % 1_000_000)


def pytest_report_header() -> str:
    """Return the seed for the header of a run."""
    return f"seed: {SEED} (PYKAPRODUCER_SEED={SEED} repeats it)"


@pytest.fixture(autouse=True)
def chance_from_a_seed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test its own random numbers, independent of the tests that run before it."""
    random.seed(f"{SEED} {request.node.nodeid}")
    own = random.Random(f"{SEED} {request.node.nodeid}, the library")
    for name in ("random", "shuffle"):
        monkeypatch.setattr(system_random, name, getattr(own, name))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> object:
    """Report the seed when a test fails."""
    report = yield
    if report.failed:
        report.sections.append(("seed", f"PYKAPRODUCER_SEED={SEED} pytest {item.nodeid!r}"))
    return report
