"""Fails a test if a thread, a socket or a child process outlives it."""

from __future__ import annotations

import gc
import os
import pathlib
import threading
from collections.abc import Iterator

import pytest

#: How long a thread may take to end (seconds). The test waits for the thread, not for the clock.
_PATIENCE = 5.0


def _sockets() -> set[str]:
    found = set()
    for entry in pathlib.Path("/proc/self/fd").iterdir():
        try:
            target = os.readlink(entry)
        except OSError:
            continue  # the descriptor that lists this directory
        if target.startswith("socket:"):
            found.add(target)
    return found


def _children() -> set[str]:
    found: set[str] = set()
    for task in pathlib.Path("/proc/self/task").iterdir():
        try:
            found.update((task / "children").read_text().split())
        except OSError:
            continue  # a thread that ended in the meantime
    return found


@pytest.fixture(autouse=True)
def nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Compare threads, sockets and children before and after each test."""
    if "spark" in request.fixturenames:
        # The session manages the threads and connections of its JVM. Producers live in Spark's own
        # processes there, which tests/spark checks.
        yield
        return
    # A cluster outlives the test that starts it, so it must be running before the first count.
    for name in ("cluster", "cluster3"):
        if name in request.fixturenames:
            request.getfixturevalue(name)
    threads, sockets, children = set(threading.enumerate()), _sockets(), _children()
    yield
    for thread in set(threading.enumerate()) - threads:
        if thread.ident is not None:  # otherwise it has not started yet
            thread.join(_PATIENCE)
    left = [thread.name for thread in set(threading.enumerate()) - threads]
    assert not left, f"threads outlive the test: {left}"
    if _sockets() - sockets:
        gc.collect()
    assert not _sockets() - sockets, "a socket outlives the test"
    assert not _children() - children, "a child process outlives the test"
