"""Waiting for space in ``buffer_memory``, the only thing for which ``send()`` waits."""

from __future__ import annotations

from collections.abc import Callable

from pykaproducer._kernel import Account, Budget, Turn
from pykaproducer._util import threads
from pykaproducer._util.clock import Clock
from pykaproducer.errors import BufferFullError, MessageTooLargeError

#: The buffer does not count as full if this fraction of it (1/4) is free, for any request.
_ENOUGH = 4
#: How often a waiting thread looks whether a topic has stalled (seconds).
_LOOKS_AGAIN = 0.25
#: How long nothing lingers then, if the thread is held back (seconds).
_PULSE = 0.02


def _do_nothing() -> None:
    """Do nothing: there is no pipeline yet."""


class BufferSpaceWaiters:
    """The threads that wait for bytes of one producer's ``Budget``, which has the queue."""

    def __init__(self, budget: Budget, clock: Clock, max_block_ms: float) -> None:
        self._budget = budget
        self._clock = clock
        self._max_block_ms = max_block_ms
        #: Called after :attr:`wanted` has become true, to end the lingering of batches.
        self.on_full: Callable[[], None] = _do_nothing
        # Until when nothing lingers, for threads that are held back (monotonic seconds).
        self._pulse_ends = 0.0

    @property
    def waiting(self) -> int:
        """The number of waiting threads."""
        return self._budget.waiting

    @property
    def wanted(self) -> bool:
        """Whether a thread waits for bytes, or found too few and could not wait.

        A thread that is held back waits for messages of its own topic, of which some may linger. It
        ends lingering for a moment from time to time, or that of other topics would never resume.

        The order matters. This property (1) may record that the buffer is no longer full,
        (2) checks for waiting threads. A thread (1) begins to wait, (2) calls :attr:`on_full`
        unless the buffer is recorded as full. So a thread that begins to wait in between is seen.
        """
        if self._is_full() or self._budget.ahead > 0:
            return True
        return self._pulse_ends > 0 and self._clock.monotonic() < self._pulse_ends

    def _is_full(self) -> bool:
        budget = self._budget
        if budget.lacking and budget.fits(budget.lacking):
            budget.lacking = 0
        return budget.lacking > 0

    def lacks(self, amount: int) -> None:
        """End lingering until there is room for *amount* bytes."""
        known = self._is_full()
        # Limited, so that a large rejected block does not end lingering until the buffer is empty.
        budget = self._budget
        budget.lacking = max(budget.lacking, min(amount, budget.limit // _ENOUGH))
        if not known:
            self.on_full()

    def check_can_ever_fit(self, amount: int) -> None:
        """Raise MessageTooLargeError if *amount* exceeds the whole of ``buffer_memory``."""
        if amount > self._budget.limit:
            raise MessageTooLargeError(
                f"the message needs {amount} bytes, more than buffer_memory "
                f"({self._budget.limit}); send a smaller message, or raise buffer_memory"
            )

    def wait(
        self, turn: Turn, is_open: Callable[[], bool], reason: Callable[[str], str | None]
    ) -> None:
        """Wait until *turn* has its bytes or admission is closed, for at most ``max_block_ms``.

        *reason* returns why messages of a topic are not delivered, if that is known.

        Raises:
            BufferFullError: there was no space within that time.
        """
        deadline = self._clock.monotonic() + self._max_block_ms / 1000
        if not turn.granted:
            self.lacks(turn.amount)
        # The lock is released (1) after the conditions checked here have changed, so (2) if a check
        # finds them unchanged, the following wait will end. The loop is needed because the wait is
        # divided, and wake_all() may be called more than once.
        while not turn.granted and is_open():
            until = min(deadline, self._clock.monotonic() + _LOOKS_AGAIN)
            if not threads.acquire_or_fork(self._clock, turn.lock, until):
                self._budget.serve()
                if self._budget.is_held_back(turn.account, turn.amount):
                    self._pulse_ends = self._clock.monotonic() + _PULSE
                    self.on_full()
                if turn.granted or self._clock.monotonic() < deadline:
                    continue
                topic = None if turn.account is None else turn.account.topic
                waits = turn.account is not None and turn.account.held
                found = reason(topic) if topic is not None and waits else None
                raise BufferFullError(
                    f"{self.why_full(turn.amount, turn.account)} for max_block_ms "
                    f"({self._max_block_ms} ms): messages are sent faster than the cluster accepts "
                    f"them, or it accepts none"
                    + (f"; those of topic {topic!r} wait: {found}" if found else ""),
                    topic=topic,
                )

    def why_full(self, amount: int, account: Account | None) -> str:
        """Return a text on the space that *amount* bytes for *account* have not got."""
        budget = self._budget
        if account is None or not budget.is_held_back(account, amount):
            return f"buffer_memory ({budget.limit} bytes) was full"
        return (
            f"topic {account.topic!r} was held back, with {account.held} bytes of buffer_memory "
            f"({budget.limit} bytes): none of its messages is delivered, those of other topics are"
        )

    def wake_all(self) -> None:
        """Wake all waiting threads, because admission is closed."""
        self._budget.wake_all()
