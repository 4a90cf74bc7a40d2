"""Fixtures and gates for all tests: see the plugins named here."""

from __future__ import annotations

pytest_plugins = ["tests.fix_cluster", "tests.fix_leaks", "tests.fix_servers", "tests.fix_skips"]
