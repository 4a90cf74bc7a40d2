"""Room in ``buffer_memory``: the one thing that ``send()`` waits for."""

from __future__ import annotations

from collections.abc import Callable

from pykaproducer import _threads as threads
from pykaproducer._clock import Clock
from pykaproducer._kernel import Budget, Turn
from pykaproducer.errors import BufferFullError, MessageTooLargeError

#: The buffer does not count as full if one part in this many is free, whatever was requested.
_ENOUGH = 4


def _do_nothing() -> None:
    """Do nothing: there is no pipeline yet."""


class Space:
    """How the threads wait for bytes of one producer's ``Budget``, which keeps their queue."""

    def __init__(self, budget: Budget, clock: Clock, max_block_ms: float) -> None:
        self._budget = budget
        self._clock = clock
        self._max_block_ms = max_block_ms
        #: Called when the budget is full, after :attr:`wanted` is true: batches may hold its bytes.
        self.on_full: Callable[[], None] = _do_nothing
        # How many bytes have to be free before batches linger again; 0: they do.
        self._lacking = 0

    @property
    def waiting(self) -> int:
        """How many threads wait."""
        return self._budget.waiting

    @property
    def wanted(self) -> bool:
        """Return whether a thread waits for bytes, or one that could not wait found too few.

        The order matters. This (1) may note that the buffer is no longer full, (2) looks whether a
        thread waits. A thread (1) begins to wait, (2) calls :attr:`on_full` unless it is noted that
        the buffer is full. So a thread that comes in between is seen.
        """
        return self._is_full() or self._budget.waiting > 0

    def _is_full(self) -> bool:
        if self._lacking and self._budget.fits(self._lacking):
            self._lacking = 0
        return self._lacking > 0

    def lacks(self, amount: int) -> None:
        """End lingering until there is room for *amount* bytes."""
        known = self._is_full()
        # A large block that was refused does not end lingering until the buffer is empty.
        self._lacking = max(self._lacking, min(amount, self._budget.limit // _ENOUGH))
        if not known:
            self.on_full()

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
        if not turn.granted:
            self.lacks(turn.amount)
        # The lock is released (1) after what is looked at here has changed, so (2) a look that
        # finds nothing is followed by a wait that ends. The loop is needed because a wait longer
        # than the platform's longest is cut in pieces, and came() may run more than once.
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
        """Wake all waiting threads: nothing is admitted any more."""
        self._budget.wake_all()
