"""RetryHandler: returns items to the dispatcher for a retry, after a backoff. One per producer.

In Sarama: ``retryHandler``. Owns: everything that is waiting for its backoff to end.

Guarantees: items of one partition leave in the order in which they came, each not before its
time. Partitions do not delay each other. The handler never blocks: its inbox is unbounded and it
never waits for another stage, so the loop that it closes in the pipeline cannot deadlock.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from pykaproducer._machines.backlog import Backlog
from pykaproducer._machines.batch import Batch, Chaser
from pykaproducer._pipeline.worker import StageContext, Worker
from pykaproducer._util.deques import copied_items

Item = Backlog | Batch | Chaser


class RetryItems(NamedTuple):
    """Items of one partition to be retried, in order, not before a point in time."""

    items: list[Item]
    #: Monotonic seconds.
    not_before: float


class GiveUpWaiting:
    """All rows have been failed: pass on at once what waits, so that nothing later waits for it."""


class RetryHandler(Worker[RetryItems | GiveUpWaiting]):
    """Holds the items of each partition until their backoff ends.

    *dispatch* puts an item into the dispatcher's inbox.
    """

    def __init__(self, context: StageContext, dispatch: Callable[[Item], None]) -> None:
        super().__init__("retry-handler", context)
        self._dispatch = dispatch
        self._partitions: dict[tuple[str, int], deque[RetryItems]] = {}
        #: When the first of each partition is due.
        self._due: list[tuple[float, tuple[str, int]]] = []

    def handle(self, item: RetryItems | GiveUpWaiting) -> None:
        if isinstance(item, GiveUpWaiting):
            self._end_backoffs()
            return
        place = (item.items[0].topic, item.items[0].partition)
        waiting = self._partitions.get(place)
        if waiting is None:
            waiting = self._partitions[place] = deque()
            heapq.heappush(self._due, (item.not_before, place))
        if waiting or item.not_before > self.clock.monotonic():
            for each in item.items:
                if not isinstance(each, Chaser):
                    each.detach_payload()
        if not waiting or not _join(waiting[-1], item):
            waiting.append(item)

    def _end_backoffs(self) -> None:
        now = self.clock.monotonic()
        for place, waiting in self._partitions.items():
            self._partitions[place] = deque(item._replace(not_before=now) for item in waiting)
        self._due = [(now, place) for place in self._partitions]

    def held_items(self) -> Iterable[object]:
        return [each for line in list(self._partitions.values()) for each in copied_items(line)]

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
                    self._dispatch(item)
            if waiting:
                heapq.heappush(self._due, (waiting[0].not_before, place))
            else:
                del self._partitions[place]


def _join(last: RetryItems, item: RetryItems) -> bool:
    """Append the backlog in *item* to that in *last*, unless it is due later.

    Items that are still added to a failed buffer are returned one by one; this joins them. Return
    whether it was appended.
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
