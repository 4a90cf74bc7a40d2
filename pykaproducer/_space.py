"""Room in ``buffer_memory``: the one thing that ``send()`` waits for."""

from __future__ import annotations

from collections.abc import Callable

from pykaproducer import _threads as threads
from pykaproducer._clock import Clock
from pykaproducer._kernel import Budget, Turn
from pykaproducer.errors import BufferFullError, MessageTooLargeError


class Space:
    """How the threads wait for bytes of one producer's ``Budget``, which keeps their queue."""

    def __init__(self, budget: Budget, clock: Clock, max_block_ms: float) -> None:
        self._budget = budget
        self._clock = clock
        self._max_block_ms = max_block_ms

    @property
    def waiting(self) -> int:
        """How many threads wait."""
        return self._budget.waiting

    def check_can_ever_fit(self, amount: int) -> None:
        """Raise MessageTooLargeError if all of the memory were not enough."""
        if amount > self._budget.limit:
            raise MessageTooLargeError(
                f"the message takes {amount} bytes of buffer_memory, which is {self._budget.limit}"
            )

    def wait(self, turn: Turn, is_open: Callable[[], bool]) -> None:
        """Wait until *turn* has its bytes, at most ``max_block_ms``, or nothing is admitted.

        Raises:
            BufferFullError: there was no room all the time.
        """
        deadline = self._clock.monotonic() + self._max_block_ms / 1000
        # The lock is released (1) behind what is looked at here, so (2) a look that finds nothing
        # is followed by a wait that ends. A wait longer than the platform's longest is cut in
        # pieces, and came() may strike more than once: hence the loop.
        while not turn.granted and is_open():
            if not threads.acquire(self._clock, turn.lock, deadline):
                if turn.granted or self._clock.monotonic() < deadline:
                    continue
                raise BufferFullError(
                    f"buffer_memory ({self._budget.limit} bytes) was full for max_block_ms "
                    f"({self._max_block_ms} ms): messages come faster than the cluster takes "
                    f"them, or it takes none"
                )

    def came(self) -> None:
        """Nothing is admitted any more: all who wait look."""
        self._budget.wake_all()
