"""The deadlines of all accepted messages, in one timer structure.

Expiry settles a row in place, and the stage that holds it finds it settled when it next uses it. So
expiry depends on the clock alone, never on a producer id, a connection or another message (P3), and
no stage has to check the deadlines of its rows.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from pykaproducer._kernel import Chunk

#: Minimum interval at which deadlines are checked (seconds). Rows that expire within it are expired
#: together, and late by this at most.
GRAIN = 0.01

#: Later than any deadline on the monotonic clock (seconds).
_NEVER = 9e9


def has_expired(chunk: Chunk) -> bool:
    """Return whether every row of *chunk* is known to have an outcome, without checking each row.

    That is the case if all rows are settled and reported, or if the last one has expired.
    """
    return not chunk.unsettled or chunk.next_deadline > _NEVER


class Deadlines:
    """A heap of chunks by the earliest deadline of their rows."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Chunk]] = []
        # Size of the heap at which it is searched for finished chunks.
        self._sweep_at = 256

    def watch(self, chunk: Chunk) -> None:
        """Add *chunk*."""
        heapq.heappush(self._heap, (chunk.next_deadline, chunk.serial, chunk))
        if len(self._heap) >= self._sweep_at:
            # A chunk that stays at the head for long must not keep finished ones in the heap.
            self._heap = [entry for entry in self._heap if not has_expired(entry[2])]
            heapq.heapify(self._heap)
            self._sweep_at = max(256, 2 * len(self._heap))

    def next(self) -> float | None:
        """Return when to call :meth:`expired`, None if there are no chunks."""
        self._drop_finished()
        return self._heap[0][0] + GRAIN if self._heap else None

    def expired(self, now: float) -> Iterator[Chunk]:
        """Yield the chunks with a row whose deadline has passed, for these rows to be settled.

        A chunk leaves, or moves to its next deadline, when the next one is asked for: if there is
        no memory for it, it stays.
        """
        while self._heap and self._heap[0][0] <= now:
            chunk = self._heap[0][2]
            if chunk.unsettled:
                yield chunk
            assert self._heap[0][2] is chunk, "nothing is watched in the meantime"
            if has_expired(chunk):
                heapq.heappop(self._heap)
            elif chunk.next_deadline <= now:
                return  # the caller did not settle them, or *now* is too early by a rounding
            else:
                heapq.heapreplace(self._heap, (chunk.next_deadline, chunk.serial, chunk))

    def _drop_finished(self) -> None:
        while self._heap and not self._heap[0][2].unsettled:
            heapq.heappop(self._heap)
