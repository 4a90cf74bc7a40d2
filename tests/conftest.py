"""Fixtures and gates for all tests: see the plugins named here.

Generated tests take the time they take: a slow machine is no failure.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings

pytest_plugins = [
    "tests.fix_cluster",
    "tests.fix_leaks",
    "tests.fix_servers",
    "tests.fix_skips",
    "tests.fix_spark",
]

settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")
