"""Waiting of user threads for the view of the cluster. Part of Metadata."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pykaproducer._util import threads
from pykaproducer._util.clock import Clock, held_lock, wake_all


class ViewWaiters:
    """The user threads in ``partitions_for()`` and ``wait_for_brokers()``."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._locks: list[Any] = []

    def __len__(self) -> int:
        return len(self._locks)

    def wake_all(self) -> None:
        """Wake the threads, which then check again what they wait for."""
        wake_all(self._locks)

    def wait(
        self,
        count: Callable[[], int],
        ask: Callable[[], object],
        deadline: float,
        check_open: Callable[[], object],
    ) -> int:
        """Call *ask* until *count* is not 0; return the count, or 0 at *deadline*.

        *check_open* raises if it is pointless to wait any longer. No view is missed: this thread
        (1) adds its lock, (2) reads the view; the stage (1) replaces the view, (2) releases every
        lock.
        """
        while True:
            lock = held_lock()
            self._locks.append(lock)
            try:
                check_open()
                if found := count():
                    return found
                ask()
                if not threads.acquire(self._clock, lock, deadline) and (
                    self._clock.monotonic() >= deadline
                ):
                    return 0
            finally:
                self._locks.remove(lock)
