"""The threads of a producer, and those of a test."""

from __future__ import annotations

import faulthandler
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
            thread._started.wait(_SOON)  # type: ignore[attr-defined]  # join() would raise
            thread.join(_SOON)
    return threads_of(client_id)


class Call(threading.Thread):
    """A thread that makes one call, from now on."""

    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._call = call
        self._error: BaseException | None = None
        self.result: Any = None
        self.start()

    def run(self) -> None:
        try:
            self.result = self._call()
        except BaseException as error:
            self._error = error

    def error(self) -> Any:
        """Wait for the end of the call, and return the error that it has raised."""
        self.join(_SOON)
        if self.is_alive():
            faulthandler.dump_traceback(all_threads=True)
        assert not self.is_alive(), "the call hangs"
        return self._error

    def outcome(self) -> Any:
        """Wait for the end of the call, and return its result or the error that it has raised."""
        error = self.error()
        return self.result if error is None else error


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
