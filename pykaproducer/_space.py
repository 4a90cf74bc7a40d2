"""Room in ``buffer_memory``: the one thing that ``send()`` waits for."""

from __future__ import annotations

import _thread
from collections.abc import Callable

from pykaproducer import _threads as threads
from pykaproducer._clock import Clock
from pykaproducer._kernel import Budget
from pykaproducer._pipeline.worker import wake_all
from pykaproducer.errors import BufferFullError, MessageTooLargeError


class Space:
    """The threads that wait for bytes of one producer's ``Budget``.

    Guarantees: no wake-up is lost. (1) Who waits enters a lock of its own into the list, (2) looks
    at the budget; a releaser (1) gives bytes back, (2) looks at the list.
    Relies on: the list's operations, which the interpreter does not divide. A lock around them a
    signal handler could find held by its own thread.
    """

    def __init__(self, budget: Budget, clock: Clock, max_block_ms: float) -> None:
        self._budget = budget
        self._clock = clock
        self._max_block_ms = max_block_ms
        self._waiters: list[_thread.LockType] = []
        budget.on_release = self.came

    @property
    def waiting(self) -> int:
        """How many threads wait."""
        return len(self._waiters)

    def check_can_ever_fit(self, amount: int) -> None:
        """Raise MessageTooLargeError if all of the memory were not enough."""
        if amount > self._budget.limit:
            raise MessageTooLargeError(
                f"the message takes {amount} bytes of buffer_memory, which is {self._budget.limit}"
            )

    def wait(self, amount: int, until: float | None, is_open: Callable[[], bool]) -> float:
        """Wait until *amount* bytes are free, at most ``max_block_ms``, or nothing is admitted.

        *until*: the end of this time, if it runs already: somebody else may have taken the space
        that we waited for. Returns it.

        Raises:
            BufferFullError: there was no room all the time.
        """
        deadline = until
        if deadline is None:
            deadline = self._clock.monotonic() + self._max_block_ms / 1000
        lock = _thread.allocate_lock()
        while True:
            lock.acquire(blocking=False)
            self._waiters.append(lock)
            self._budget.wanted = True
            try:
                if self._budget.fits(amount) or not is_open():
                    return deadline
                threads.acquire(self._clock, lock, deadline)
                if self._budget.fits(amount) or not is_open():
                    return deadline
            finally:
                if lock in self._waiters:
                    self._waiters.remove(lock)
            if self._clock.monotonic() >= deadline:
                raise BufferFullError(
                    f"buffer_memory ({self._budget.limit} bytes) was full for max_block_ms "
                    f"({self._max_block_ms} ms): messages come faster than the cluster takes "
                    f"them, or it takes none"
                )

    def came(self) -> None:
        """Bytes have been given back, or nothing is admitted any more: all who wait look again."""
        self._budget.wanted = False  # those who wait say so again
        wake_all(self._waiters)
