"""Ordering of one partition's messages through retries: retry levels, high-watermark, chaser.

The algorithm is that of the page "Producer implementation" in Sarama's wiki, with one machine per
partition. Every item (a slice of messages, a backlog of slices, or a sealed batch) has a *level*:
the number of failed attempts of it, or of the items that a failed buffer returned before it. The
partition's *high-watermark* is the highest level in progress.

========================  =============================================================
event                     effects
========================  =============================================================
item, level == watermark  pass it on
item, level >  watermark  watermark = level; send a chaser down the old path and release
                          the path; find the leader; pass it on down the new path
item, level <  watermark  keep it in that level's buffer
chaser, level < watermark that level expects no chaser any more
chaser, level = watermark descend: watermark = next lower level, pass its buffer on; repeat
                          until a level still expects its chaser, or 0 is reached
path found                pass on the items that have waited for it
========================  =============================================================

A *path* is one attachment to one broker's worker, through a
:class:`~pykaproducer._machines.partition_buffer.PartitionBuffer`. Once a path has failed, it
returns everything that is still added to it, and never works again. The next path is another
partition buffer, even to the same broker. So there is no flag to clear, no message to clear it
("syn" in Sarama), and a late error of an old worker cannot be mistaken for one of its successor's.
A partition buffer returns its items only when none of its batches is in flight, followed by the
chaser. So when the chaser has returned, everything older has returned too.

Levels are a sparse table that grows as needed. The watermark may rise by more than one. A level
that was skipped expects no chaser and has an empty buffer; descending passes through it.

All items that a partition buffer returns at once get one level: the highest level among them plus
one. No item elsewhere belongs between these items:

1. Items of levels 5, 3 and 0 are in one partition buffer. So the chasers of 5 and of 3 have
   returned, or the watermark would not have descended to 0. Everything older than the items of
   level 0 is therefore in this partition buffer.
2. The partition buffer fails, and returns them with level 6.
3. Items added to it after that return later, each one level higher than it was: these levels are at
   most 6, and the items are younger.

So a backlog remains one item, regardless of how often it is retried.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from pykaproducer._kernel import Slice
from pykaproducer._machines.backlog import Backlog
from pykaproducer._machines.batch import Batch
from pykaproducer._util.deques import copied_items

#: An item that travels through the pipeline; each has a level.
Item = Slice | Batch | Backlog


class Forward(NamedTuple):
    """Put *item* into the path."""

    item: Item


class SendChaser(NamedTuple):
    """Send the chaser of *level* down the path, then let the path go."""

    level: int


class FindPath:
    """Find the leader and report the path with :meth:`Ordering.path_found`."""


Effect = Forward | SendChaser | FindPath


class Transition(StrEnum):
    """The rows of the table above, some divided by their outcome."""

    PASS_ON = "pass on"
    PASS_ON_WITHOUT_PATH = "pass on: wait for a path"
    RISE = "rise by one level"
    RISE_BY_SEVERAL = "rise by several levels"
    BUFFER = "buffer"
    CHASER_BELOW = "chaser below the watermark"
    DESCEND = "descend by one level"
    DESCEND_BY_SEVERAL = "descend over several levels"
    DESCEND_TO_WAIT = "descend to a level that expects its chaser"
    PATH_FOUND = "path found"


#: Counts how often each transition was taken.
Transitions = Counter[Transition]


class IllegalEventError(AssertionError):
    """An event that is impossible in this state, which indicates a bug. The state is unchanged."""


class _Buffer:
    """Items that a partition holds back, oldest first: sealed batches and backlogs."""

    __slots__ = ("items", "nbytes")

    def __init__(self) -> None:
        self.items: deque[Item] = deque()
        #: Bytes of the messages.
        self.nbytes = 0

    def __bool__(self) -> bool:
        return bool(self.items)

    def append(self, item: Item) -> None:
        """Add *item* as the youngest. Adjacent slices of the same level are joined to a backlog."""
        self.nbytes += item.nbytes
        last = self.items[-1] if self.items else None
        joins = isinstance(last, Backlog) and last.level == item.level
        if isinstance(item, Slice):
            if not joins:
                last = Backlog(item.topic, item.partition, item.level)
                self.items.append(last)
            assert isinstance(last, Backlog)
            last.append(item)
        elif isinstance(item, Backlog) and joins:
            assert isinstance(last, Backlog)
            last.extend(item)
        else:
            self.items.append(item)

    def sweep(self) -> None:
        """Remove the slices whose rows all have an outcome."""
        for item in self.items:
            if isinstance(item, Backlog):
                before = item.nbytes
                item.sweep()
                self.nbytes += item.nbytes - before
        if any(isinstance(item, Backlog) and not item for item in self.items):
            self.items = deque(i for i in self.items if not isinstance(i, Backlog) or i)

    def take_all(self) -> Iterable[Item]:
        """Remove and return everything."""
        taken, self.items, self.nbytes = self.items, deque(), 0
        return taken


@dataclass(eq=False, slots=True)
class _Level:
    buffer: _Buffer = field(default_factory=_Buffer)
    expects_chaser: bool = False


class Ordering:
    """State machine of one partition: each event returns the effects to perform, in order."""

    def __init__(self) -> None:
        #: For inspection: the transitions taken so far, except of the slices that a TopicWorker
        #: passes on itself (``_kernel_parts/route.pxi``).
        self.taken: Transitions = Counter()
        self.high_watermark = 0
        self.has_path = False
        self._finding = False
        # The highest level of the items that were forwarded to the path.
        self._level_of_path = 0
        self._levels: dict[int, _Level] = {}
        # Items that have passed the watermark and wait for a path.
        self._waiting = _Buffer()
        #: Bytes of the messages held here, waiting for a path or for the watermark to descend.
        self.held = 0

    def held_items(self) -> list[Item]:
        """Return the items held here, waiting for a path or for the watermark to descend."""
        buffers = [level.buffer for level in list(self._levels.values())]
        return [item for buffer in (self._waiting, *buffers) for item in copied_items(buffer.items)]

    def sweep(self) -> None:
        """Remove settled slices, after rows have expired."""
        self._waiting.sweep()
        for level in self._levels.values():
            level.buffer.sweep()
        self.held = self._waiting.nbytes + sum(
            level.buffer.nbytes for level in self._levels.values()
        )

    def item(self, item: Item) -> list[Effect]:
        """Handle *item*, which is new or is being retried."""
        effects: list[Effect] = []
        if item.level < self.high_watermark:
            self.taken[Transition.BUFFER] += 1
            self.held += item.nbytes
            self._level(item.level).buffer.append(item)
            return effects
        if item.level > self.high_watermark:
            self._rise(item.level, effects)
        self._pass_on(item, effects)
        return effects

    def chaser(self, level: int) -> list[Effect]:
        """Handle the return of the chaser of *level*: everything older has returned too."""
        effects: list[Effect] = []
        self._level(level).expects_chaser = False
        if level < self.high_watermark:
            self.taken[Transition.CHASER_BELOW] += 1
            return effects
        self._descend(effects)
        return effects

    @property
    def wants_path(self) -> bool:
        """Whether it waits for :meth:`path_found`."""
        return self._finding

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing of the partition is held here or in progress."""
        busy = any(level.buffer or level.expects_chaser for level in self._levels.values())
        finds = self.has_path or self._finding
        return not (self.high_watermark or finds or self._waiting or busy)

    def rest(self) -> list[Effect]:
        """Release the path of a partition that has long been unused, if nothing is in progress.

        This acts as if the path had failed: a new item now waits for the chaser. When the chaser
        has returned, everything older has returned too, and the partition :attr:`is_at_rest` unless
        it is in use again.

        The watermark rises to the level at which the path returns the items that are still in it:

        1. Two batches are in flight. The older one is rejected, the younger one is delivered.
        2. The older one is retried with level 1, and expires while its broker is down. It stays in
           the path, because a younger batch of the same epoch may be in the log.
        3. The partition rests, and the path returns the batch with level 2. If the watermark were
           1, there would be no path from which the batch can come.
        """
        effects: list[Effect] = []
        if self.high_watermark == 0 and self.has_path:
            self._rise(1 + self._level_of_path, effects)
        return effects

    def give_up(self) -> None:
        """Drop the items that wait for a path, all settled, if nothing else is in progress."""
        if self.high_watermark == 0 and not self.has_path:
            self.held -= self._waiting.nbytes
            self._waiting.take_all()
            self._finding = False

    def path_found(self) -> list[Effect]:
        """Forward the waiting items: the partition now has a path to the leader."""
        self.taken[Transition.PATH_FOUND] += 1
        self.has_path = True
        self._finding = False
        self.held -= self._waiting.nbytes
        self._level_of_path = 0
        return [self._forward(item) for item in self._waiting.take_all()]

    # Steps ---------------------------------------------------------------------------------------

    def _rise(self, level: int, effects: list[Effect]) -> None:
        if not self.has_path:
            # An item above the watermark must come from a path that was found since the watermark
            # last rose. Without a chaser the level would never end.
            raise IllegalEventError(f"an item of level {level}, and no path that it can come from")
        by_one = level == self.high_watermark + 1
        self.taken[Transition.RISE if by_one else Transition.RISE_BY_SEVERAL] += 1
        self.high_watermark = level
        self._level(level).expects_chaser = True
        self.has_path = False
        effects.append(SendChaser(level))

    def _descend(self, effects: list[Effect]) -> None:
        steps = 0
        while self.high_watermark > 0:
            if self._levels[self.high_watermark].expects_chaser:
                self.taken[Transition.DESCEND_TO_WAIT] += 1
                break
            del self._levels[self.high_watermark]
            steps += 1
            self.high_watermark = max(self._levels, default=0)
            buffered = self._levels.get(self.high_watermark)
            if buffered is not None:
                self.held -= buffered.buffer.nbytes
                for item in buffered.buffer.take_all():
                    self._pass_on(item, effects)
        if steps:
            which = Transition.DESCEND if steps == 1 else Transition.DESCEND_BY_SEVERAL
            self.taken[which] += 1

    def _pass_on(self, item: Item, effects: list[Effect]) -> None:
        if self.has_path:
            self.taken[Transition.PASS_ON] += 1
            effects.append(self._forward(item))
            return
        self.taken[Transition.PASS_ON_WITHOUT_PATH] += 1
        self.held += item.nbytes
        self._waiting.append(item)
        if not self._finding:
            self._finding = True
            effects.append(FindPath())

    def _forward(self, item: Item) -> Forward:
        self._level_of_path = max(self._level_of_path, item.level)
        return Forward(item)

    def _level(self, level: int) -> _Level:
        return self._levels.setdefault(level, _Level())
