"""Waiting of user threads for the view of the cluster. Part of Metadata."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from pykaproducer._util import threads
from pykaproducer._util.clock import Clock, discard, held_lock, wake_all


class ViewWaiters:
    """The user threads in ``partitions_for()`` and ``wait_for_brokers()``."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._process = os.getpid()
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

        *check_open* raises if it is pointless to wait any longer. Returns 0 in the child of a fork,
        as the stage is the parent's. No view is missed: this thread (1) adds its lock, (2) reads
        the view; the stage (1) replaces the view, (2) releases every lock.
        """
        while True:
            if self._process != os.getpid():
                return 0
            lock = held_lock()
            try:  # not before: an interrupt in between would leave the lock there
                self._locks.append(lock)
                check_open()
                if found := count():
                    return found
                ask()
                if not threads.acquire_or_fork(self._clock, lock, deadline) and (
                    self._clock.monotonic() >= deadline
                ):
                    return 0
            finally:
                discard(self._locks, lock)
