"""Fixtures and gates for all tests: see the plugins named here.

Generated tests have no deadline: a slow machine is not a failure. Failures can be repeated: the
output contains a ``@reproduce_failure(...)`` to put before the test, and the example is kept in
``.hypothesis/examples`` of the source tree (or where ``PYKAPRODUCER_EXAMPLES`` points), from which
the next run takes it first.
"""

from __future__ import annotations

import os
import pathlib
import re

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.database import DirectoryBasedExampleDatabase

from tests._support.effort import NIGHTLY

pytest_plugins = [
    "tests._support.fixtures.cluster",
    "tests._support.fixtures.collecting",
    "tests._support.fixtures.coverage",
    "tests._support.fixtures.gil",
    "tests._support.fixtures.keeping",
    "tests._support.fixtures.kerberos",
    "tests._support.fixtures.leaks",
    "tests._support.fixtures.log",
    "tests._support.fixtures.seeds",
    "tests._support.fixtures.servers",
    "tests._support.fixtures.skips",
    "tests._support.fixtures.spark",
    "tests._support.fixtures.tiers",
    "tests._support.fixtures.workers",
]

#: Where failing examples are kept, whatever the current directory is.
EXAMPLES = os.environ.get("PYKAPRODUCER_EXAMPLES") or (
    pathlib.Path(__file__).parent.parent / ".hypothesis" / "examples"
)

settings.register_profile(
    "unhurried",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    database=DirectoryBasedExampleDatabase(EXAMPLES),
    print_blob=True,
)
# At least 100,000 steps for each model that uses it; every run searches with a new seed.
settings.register_profile(
    "nightly",
    settings.get_profile("unhurried"),
    max_examples=1_500,
    stateful_step_count=100,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
# A quarter of hypothesis' examples by default, all of them in ``tox -e full``.
settings.register_profile("short", settings.get_profile("unhurried"), max_examples=25)


def pytest_configure(config: pytest.Config) -> None:
    """Let generated tests search as long as the tier allows."""
    full = re.search(r"(?<!not )\bfull\b", config.option.markexpr)
    settings.load_profile("nightly" if NIGHTLY else "unhurried" if full else "short")
