"""A test fails if a thread, a socket or a child process outlives it."""

from __future__ import annotations

import gc
import os
import pathlib
import threading
from collections.abc import Iterator

import pytest

#: How long a thread that is ending may take (seconds): the test waits for it, not for the clock.
_PATIENCE = 5.0


def _sockets() -> set[str]:
    found = set()
    for entry in pathlib.Path("/proc/self/fd").iterdir():
        try:
            target = os.readlink(entry)
        except OSError:
            continue  # the descriptor of this very look
        if target.startswith("socket:"):
            found.add(target)
    return found


def _children() -> set[str]:
    found: set[str] = set()
    for task in pathlib.Path("/proc/self/task").iterdir():
        try:
            found.update((task / "children").read_text().split())
        except OSError:
            continue  # a thread that ended while we looked
    return found


@pytest.fixture(autouse=True)
def nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Compare threads, sockets and children before and after each test."""
    if "spark" in request.fixturenames:
        # The session keeps threads and connections to its JVM as it likes. Producers live in
        # Spark's own processes there, which tests/spark looks at.
        yield
        return
    # What a cluster needs outlives the test that started it: it is there before we count.
    for name in ("cluster", "cluster3"):
        if name in request.fixturenames:
            request.getfixturevalue(name)
    threads, sockets, children = set(threading.enumerate()), _sockets(), _children()
    yield
    for thread in set(threading.enumerate()) - threads:
        if thread.ident is not None:  # else it is only about to start
            thread.join(_PATIENCE)
    left = [thread.name for thread in set(threading.enumerate()) - threads]
    assert not left, f"threads outlive the test: {left}"
    if _sockets() - sockets:
        gc.collect()
    assert not _sockets() - sockets, "a socket outlives the test"
    assert not _children() - children, "a child process outlives the test"
