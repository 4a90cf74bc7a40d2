"""Backlogs: unsealed slices of a partition that travel together, and the queue that holds them.

A :class:`Backlog` holds the unsealed slices of one partition that have the same level, oldest
first. It travels as one item, regardless of the number of its slices. So each retry of a partition
sends one item through the pipeline, not one for each slice of its backlog.

Settled slices are removed. Rows expire in place, and the Dispatcher reports the expiry to the
partitions with a :class:`Sweep`. A sweep removes the settled slices at the front, where the oldest
ones expire first if timeouts are equal. Settled slices after one that lives longer are searched for
when the queue has doubled since the last search. So the work is constant for each slice that was
added, and the number of settled slices that remain is at most the number of live ones (or
``_FEW``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, NamedTuple, TypeVar

from pykaproducer._kernel import Slice

#: Shorter queues are not searched for settled slices after the first live one.
_FEW = 64

T = TypeVar("T")


class Sweep(NamedTuple):
    """Rows of a partition have expired, so its stages remove settled slices."""

    topic: str
    partition: int


class Line(Generic[T]):
    """A queue, oldest item first. :meth:`sweep` removes items for which *is_over* is true."""

    __slots__ = ("_is_over", "_search_at", "items")

    def __init__(self, is_over: Callable[[T], bool], items: Iterable[T] = ()) -> None:
        self.items: deque[T] = deque(items)
        self._is_over = is_over
        self._search_at = _FEW

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[T]:
        return iter(self.items)

    def append(self, item: T) -> None:
        """Add *item* as the youngest."""
        self.items.append(item)

    def sweep(self) -> list[T]:
        """Remove and return the items that are over."""
        items, is_over = self.items, self._is_over
        gone: list[T] = []
        while items and is_over(items[0]):
            gone.append(items.popleft())
        if len(items) >= self._search_at:
            kept: list[T] = []
            for item in items:
                (gone if is_over(item) else kept).append(item)
            items.clear()
            items.extend(kept)
            self._search_at = max(_FEW, 2 * len(kept))
        return gone


class Backlog:
    """Slices of one partition and one level, oldest first. The stage that holds it owns it."""

    __slots__ = ("_line", "_shared", "count", "level", "nbytes", "partition", "topic")

    def __init__(self, topic: str, partition: int, level: int, slices: Iterable[Slice] = ()):
        self.topic = topic
        self.partition = partition
        self.level = level
        self._line: Line[Slice] = Line(_is_settled)
        # Number of the youngest slices whose memory may be shared with rows of others.
        self._shared = 0
        #: Rows and bytes of the slices.
        self.count = 0
        self.nbytes = 0
        for part in slices:
            self.append(part)

    def __len__(self) -> int:
        return len(self._line.items)

    def slices(self) -> list[Slice]:
        """Return its slices that have rows, oldest first."""
        return [part for part in self._line.items if part.count]

    def youngest_first(self) -> Iterator[Slice]:
        """Iterate over its slices. No slice may be added or removed in the meantime."""
        return reversed(self._line.items)

    def append(self, part: Slice) -> None:
        """Add *part* as the youngest."""
        self._line.items.append(part)
        self._shared += 1
        self.count += part.count
        self.nbytes += part.nbytes

    def extend(self, younger: Backlog) -> None:
        """Add the slices of *younger*, which must not be used afterwards."""
        mine, theirs = self._line, younger._line
        if len(theirs) > len(mine):
            self.detach_payload()  # so that the shared ones are the youngest again
            theirs.items.extendleft(reversed(mine.items))
            self._line, self._shared = theirs, younger._shared
        else:
            mine.items.extend(theirs.items)
            self._shared = len(theirs) + self._shared if self._shared else younger._shared
        self.count += younger.count
        self.nbytes += younger.nbytes

    def popleft(self) -> Slice:
        """Remove and return the oldest slice, with its level set."""
        part = self._line.items.popleft()
        part.level = self.level
        self.count -= part.count
        self.nbytes -= part.nbytes
        return part

    def sweep(self) -> None:
        """Remove the slices whose rows all have an outcome."""
        for part in self._line.sweep():
            self.count -= part.count
            self.nbytes -= part.nbytes

    @property
    def opened(self) -> float | None:
        """When the oldest chunk was opened, None if empty. May be read from any thread."""
        try:
            return self._line.items[0].chunk.opened
        except IndexError:
            return None

    def detach_payload(self) -> None:
        """Copy the payloads out before a long wait; see Slice.detach_payload. Once per slice."""
        shared = min(self._shared, len(self._line))
        self._shared = 0
        for part, _ in zip(reversed(self._line.items), range(shared), strict=False):
            part.detach_payload()


def _is_settled(part: Slice) -> bool:
    return part.is_settled
