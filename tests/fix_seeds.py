"""Chance in tests is reproducible: every test starts from a seed, and a failure names it.

``PYKAPRODUCER_SEED=N`` repeats a run's numbers. The library's own chance (``_chance.py``, for
backoffs) is seeded too; which thread asks first is still left to the machine.
"""

from __future__ import annotations

import os
import random
import time

import pytest

from pykaproducer._chance import chance

SEED = int(os.environ.get("PYKAPRODUCER_SEED") or time.time_ns() % 1_000_000)


def pytest_report_header() -> str:
    """The seed, at the beginning of a run."""
    return f"seed: {SEED} (PYKAPRODUCER_SEED={SEED} repeats it)"


@pytest.fixture(autouse=True)
def chance_from_a_seed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test its own random numbers, whichever tests run before it."""
    random.seed(f"{SEED} {request.node.nodeid}")
    own = random.Random(f"{SEED} {request.node.nodeid}, the library")
    for name in ("random", "shuffle"):
        monkeypatch.setattr(chance, name, getattr(own, name))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> object:
    """Name the seed where a test has failed."""
    report = yield
    if report.failed:
        report.sections.append(("seed", f"PYKAPRODUCER_SEED={SEED} pytest {item.nodeid!r}"))
    return report
