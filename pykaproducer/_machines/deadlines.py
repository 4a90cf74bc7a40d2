"""The deadlines of everything that is accepted: one timer structure, wherever a row waits.

Expiry settles a row in place: whichever stage holds it finds it settled when it touches it next.
So expiry depends on the clock alone, never on a producer id, a connection or another message
(P3), and no stage has to look for its own rows' deadlines.
"""

from __future__ import annotations

import heapq

from pykaproducer._kernel import Chunk

#: Deadlines are looked at no more often than this (seconds): rows that expire close together are
#: expired together, and at most this much late.
GRAIN = 0.01


#: Later than any deadline on the monotonic clock (seconds).
_NEVER = 9e9


def has_expired(chunk: Chunk) -> bool:
    """Return whether every row of *chunk* is known to have its outcome, without a look at each.

    That is so if all are reported, or if the last one has expired.
    """
    return not chunk.unsettled or chunk.next_deadline > _NEVER


class Deadlines:
    """A heap of chunks by the earliest deadline of their rows."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Chunk]] = []
        # How long the heap may get before finished chunks are looked for in it.
        self._sweep_at = 256

    def watch(self, chunk: Chunk) -> None:
        """From now on *chunk* is in the care of this timer."""
        heapq.heappush(self._heap, (chunk.next_deadline, chunk.serial, chunk))
        if len(self._heap) >= self._sweep_at:
            # One chunk that stays long at the head must not keep the finished ones behind it.
            self._heap = [entry for entry in self._heap if not has_expired(entry[2])]
            heapq.heapify(self._heap)
            self._sweep_at = max(256, 2 * len(self._heap))

    def next(self) -> float | None:
        """When to call :meth:`expired`; None if nothing is watched."""
        self._drop_finished()
        return self._heap[0][0] + GRAIN if self._heap else None

    def expired(self, now: float) -> list[Chunk]:
        """Chunks with a row whose deadline has come; watch those again that have rows left."""
        due: list[Chunk] = []
        while self._heap and self._heap[0][0] <= now:
            chunk = heapq.heappop(self._heap)[2]
            if chunk.unsettled:
                due.append(chunk)
        return due

    def _drop_finished(self) -> None:
        while self._heap and not self._heap[0][2].unsettled:
            heapq.heappop(self._heap)
