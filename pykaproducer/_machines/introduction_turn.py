"""Which leader may add partitions to a ``TV2`` transaction next."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class IntroductionTurn:
    """Lets one broker at a time add partitions to one transaction.

    The leader that gets the first Produce for a partition adds it to the transaction (KIP-890). The
    coordinator does this for one leader at a time. The others are refused, and repeat it every
    20 ms, which is several times as long as it takes. So while a broker has a turn, the
    BrokerWorkers of the others send no Produce that would add a partition.

    No worker waits forever, as a turn ends in one of these ways:

    1. A takes the turn, and sends a Produce. B finds the turn taken, and waits.
    2. The Produce of A is answered, with success or an error, or lost with its connection.
    3. A gives the turn back, and wakes B.

    Or the request is neither answered nor lost: the broker is silent, or A had no memory for a
    batch and has sent nothing.

    2. 20 ms later B is awake by itself, and takes the turn. If the leader of A has not added its
       partitions by then, that of B is refused, and waits as it would without turns.
    3. The Produce of A is answered. A does not have the turn any more, so nothing changes.

    Or the transaction ends in the meantime: an abort, a timeout, another epoch.

    2. The next transaction has a new object, of which no worker has the turn.
    3. The Produce of A is answered, which changes the old object only.

    Or others are always faster than B.

    2. A gives the turn back, and wakes B and C. C takes it first; and so on.
    3. B has waited for 100 ms, as long as a leader retries, and takes the turn from
       the worker that has it.

    Any worker may call any method, without a lock. Two that take the turn at the same time both go
    on, and their leaders may collide. B misses no end of a turn: it (1) adds itself to those that
    wait, (2) looks whether the turn is taken, while A (1) gives it back, (2) reads who waits. If B
    gets the turn for another partition between these two, A does not wake it. So B keeps the time
    at which the first partition is to be tried again.
    """

    __slots__ = ("_holder", "_unanswered", "_until", "_waiting")

    #: Seconds.
    _LONGEST = 0.02
    _LONGEST_WAIT = 0.1

    def __init__(self) -> None:
        self._holder: Any = None
        self._unanswered = 0
        self._until = 0.0
        #: Since when each one waits.
        self._waiting: dict[Any, float] = {}

    def take(self, worker: Any, now: float) -> float | None:
        """Take the turn, and return None; or return when *worker* has to try again.

        That is the latest time: it is woken before, if the turn is given back.
        """
        try_at = self._waiting.setdefault(worker, now) + self._LONGEST_WAIT
        holder, try_at = self._holder, min(try_at, self._until)
        if holder is not None and holder is not worker and now < try_at:
            return try_at
        self._waiting.pop(worker, None)
        if holder is not worker or now >= self._until:
            self._until = now + self._LONGEST
            self._unanswered = 0
            self._holder = worker
        return None

    def sent(self, worker: Any) -> None:
        """Count a request of *worker* that adds partitions."""
        if self._holder is worker:
            self._unanswered += 1

    def reported(self, worker: Any) -> Iterable[Any]:
        """Handle the answer to such a request, or its loss. Return the workers to be woken."""
        if self._holder is not worker:
            return ()  # the turn has ended by itself
        self._unanswered -= 1
        if self._unanswered > 0:
            return ()
        self._holder = None
        return list(self._waiting)
