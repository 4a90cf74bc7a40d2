"""What waits for a partition: slices that travel together, and the line that they wait in.

A :class:`Backlog` holds the unsealed slices of one partition that have the same level, oldest
first. It travels as one item, however many slices it holds: a partition that is refused repeatedly
sends one item around the pipeline on each retry, not one for each slice of its backlog.

Settled slices leave. Rows expire in place, and the Dispatcher reports the expiry to the partitions
with a :class:`Sweep`. A sweep takes the settled slices from the front, where with
equal timeouts the oldest expire first. Settled slices behind one that lives longer are looked for
when the line has doubled since the last such look. So the work is a constant for each slice that
was added, and at most as many settled slices stay as there were live ones (or ``_FEW``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from pykaproducer._kernel import Slice

#: Lines this short are not searched for settled slices behind the first live one.
_FEW = 64

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Sweep:
    """Rows of a partition have expired: its stages remove settled slices from their lists."""

    topic: str
    partition: int


class Line(Generic[T]):
    """Things that wait, oldest first. :meth:`sweep` removes those for which *is_over* is true."""

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
        """Remove and return the things that are over."""
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
        # How many of the youngest may lie in memory that they share with others' rows.
        self._shared = 0
        #: Rows and bytes of the slices.
        self.count = 0
        self.nbytes = 0
        for part in slices:
            self.append(part)

    def __len__(self) -> int:
        return len(self._line.items)

    def slices(self) -> list[Slice]:
        """Return its slices with a row, oldest first."""
        return [part for part in self._line.items if part.count]

    def youngest_first(self) -> Iterator[Slice]:
        """Iterate over its slices. No slice may be added or taken out in the meantime."""
        return reversed(self._line.items)

    def append(self, part: Slice) -> None:
        """Add *part*, which is younger than the rest."""
        self._line.items.append(part)
        self._shared += 1
        self.count += part.count
        self.nbytes += part.nbytes

    def extend(self, younger: Backlog) -> None:
        """Take over the slices of *younger*, which is not used any more."""
        mine, theirs = self._line, younger._line
        if len(theirs) > len(mine):
            self.take_along()  # so that the shared ones are the youngest again
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
        """Remove the slices whose rows all have their outcome."""
        for part in self._line.sweep():
            self.count -= part.count
            self.nbytes -= part.nbytes

    @property
    def opened(self) -> float | None:
        """Return when the oldest chunk was opened, None if empty. May be called by any thread."""
        try:
            return self._line.items[0].chunk.opened
        except IndexError:
            return None

    def take_along(self) -> None:
        """Prepare for a long wait: see Slice.take_along. Each slice is moved once."""
        shared = min(self._shared, len(self._line))
        self._shared = 0
        for part, _ in zip(reversed(self._line.items), range(shared), strict=False):
            part.take_along()


def _is_settled(part: Slice) -> bool:
    return part.is_settled
