"""The threads of a producer, and those of a test."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

#: Far longer than a stopped thread needs to end (seconds).
_SOON = 60.0


def threads_of(client_id: str) -> list[str]:
    """Return the names of the live threads of the producer with this *client_id*."""
    return [each.name for each in threading.enumerate() if each.name.startswith(f"{client_id}-")]


def threads_left(client_id: str) -> list[str]:
    """Return the names of the threads that do not end. ``close()`` waits for them for 0.5 s."""
    for thread in threading.enumerate():
        if thread.name.startswith(f"{client_id}-"):
            thread.join(_SOON)
    return threads_of(client_id)


class Task(threading.Thread):
    """A thread that makes a call, from now on."""

    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__()
        self._call = call
        self.start()

    def run(self) -> None:
        try:
            self._outcome = self._call()
        except Exception as error:  # the test checks it
            self._outcome = error

    def outcome(self) -> Any:
        """Return the result of the call, or the exception that it has raised."""
        self.join(_SOON)
        assert not self.is_alive(), "the call does not return"
        return self._outcome


def run_together(*functions: Callable[[], None]) -> None:
    """Run each in a separate thread, all started at the same moment; none may raise."""
    failures: list[BaseException] = []
    start = threading.Barrier(len(functions))

    def run(function: Callable[[], None]) -> None:
        start.wait()
        try:
            function()
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=run, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
