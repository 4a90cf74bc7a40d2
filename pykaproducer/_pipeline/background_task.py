"""A function that runs once in its own thread, even if the system refuses a thread at first."""

from __future__ import annotations

import threading
from collections.abc import Callable

from pykaproducer._pipeline.worker import spawn
from pykaproducer._util import threads


class BackgroundTask:
    """A function to run once in its own thread, as soon as the system allows a thread."""

    def __init__(self, name: str, target: Callable[[], None]) -> None:
        self.name = name
        self._target = target
        # Taken by the first thread that runs it; two may be started, as for a Worker.
        self._claim = threading.Lock()
        self._threads: list[threading.Thread] = []

    def start_thread(self) -> None:
        """Start the thread, unless it has been started. Raises as :func:`spawn`."""
        if not self._threads:
            self._threads.append(spawn(self.name, self._run))

    def _run(self) -> None:
        if self._claim.acquire(blocking=False):
            self._target()

    def join(self, timeout: float) -> None:
        """Wait for the thread to end, if it has been started."""
        for thread in self._threads.copy():
            thread.join(timeout)


def spawn_later(name: str, target: Callable[[], None]) -> BackgroundTask:
    """Run *target* in its own thread, now or as soon as the system allows a thread."""
    task = BackgroundTask(name, target)
    threads.start(task)
    return task
