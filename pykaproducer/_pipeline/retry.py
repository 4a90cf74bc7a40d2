"""RetryHandler: one per producer. Takes what must go again back to the dispatcher.

In Sarama: ``retryHandler``. Owns: everything that waits out its backoff.

Guarantees: items of one partition leave in the order in which they came, each not before its
time; partitions do not hold up each other. Never blocks: its inbox is unbounded and nothing that
it does waits, so the loop that it closes in the pipeline cannot lock up.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from pykaproducer._machines.backlog import Backlog
from pykaproducer._machines.lane import Batch, Chaser
from pykaproducer._pipeline.worker import Worker

Item = Backlog | Batch | Chaser


@dataclass(frozen=True, slots=True)
class Again:
    """*items* of one partition, in order, go round again, not before a point in time."""

    items: list[Item]
    not_before: float


class RetryHandler(Worker):
    """The way back."""

    # Set by wiring, before the first item.
    dispatch: Callable[[Item], None]

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._partitions: dict[tuple[str, int], deque[Again]] = {}
        #: When the first of each partition is due.
        self._due: list[tuple[float, tuple[str, int]]] = []

    def step(self, item: Again) -> None:
        place = (item.items[0].topic, item.items[0].partition)
        waiting = self._partitions.get(place)
        if waiting is None:
            waiting = self._partitions[place] = deque()
            heapq.heappush(self._due, (item.not_before, place))
        if waiting or item.not_before > self.clock.monotonic():
            for each in item.items:
                if not isinstance(each, Chaser):
                    each.take_along()
        if not waiting or not _join(waiting[-1], item):
            waiting.append(item)

    def held(self) -> Iterable[object]:
        return [again for waiting in list(self._partitions.values()) for again in list(waiting)]

    def deadline(self) -> float | None:
        return self._due[0][0] if self._due else None

    def on_time(self, now: float) -> None:
        while self._due and self._due[0][0] <= now:
            place = heapq.heappop(self._due)[1]
            waiting = self._partitions[place]
            while waiting and waiting[0].not_before <= now:
                for item in waiting.popleft().items:
                    if isinstance(item, Backlog):
                        item.sweep()
                        if not item:
                            continue
                    self.dispatch(item)
            if waiting:
                heapq.heappush(self._due, (waiting[0].not_before, place))
            else:
                del self._partitions[place]


def _join(last: Again, item: Again) -> bool:
    """Append the backlog in *item* to that in *last*, unless it is due later; return whether.

    A lane that has failed hands back one by one what is still put into it.
    """
    older, younger = last.items[-1], item.items[0]
    if (
        not isinstance(older, Backlog)
        or not isinstance(younger, Backlog)
        or older.level != younger.level
        or item.not_before > last.not_before
    ):
        return False
    older.extend(younger)
    last.items.extend(item.items[1:])
    return True
