"""The order of one topic-partition through retries: retry levels, high-watermark, chaser.

The algorithm is the one of the document "Producer implementation" of Sarama's wiki, one machine
per partition. Every item (a slice of messages, a backlog of them, or a sealed batch) carries its
*level*: how many attempts of it, or of what a lane handed back before it, have failed. The
partition's *high-watermark* is the highest level in progress.

========================  =============================================================
event                     effects
========================  =============================================================
item, level == watermark  pass it on
item, level >  watermark  watermark = level; send a chaser down the old path and let the
                          path go; find the leader; pass it on down the new path
item, level <  watermark  keep it in that level's buffer
chaser, level < watermark that level expects no chaser any more
chaser, level = watermark descend: watermark = next lower level, pass its buffer on; again,
                          until a level still expects its chaser, or 0 is reached
path found                pass on what has waited for it
========================  =============================================================

A *path* is one attachment to one broker's worker: a lane (``lane.Lane``). A path that has
failed once hands back everything that is still put into it, and never works again; the next path
is another lane, even to the same broker. So there is no flag to clear, no message ("syn" in
Sarama) to clear it, and no late error of an old worker that could be taken for one of its
successor's. A lane hands back its items only when none of its batches is unanswered, and the
chaser behind them: so when the chaser is back, everything older is back.

Levels are a sparse table that grows as needed. A level that was jumped over (the watermark may
rise by more than one) expects no chaser and has an empty buffer; descending passes through it.

Everything that a lane hands back at once gets one level, that of its oldest item plus one. No item
that is elsewhere belongs between these:

1. Items of levels 5, 3 and 0 are in one lane. Then the chasers of 5 and of 3 are back, or the
   watermark would not have come down to 0: what was older than the items of level 0 is in this
   lane.
2. The lane fails, and hands them back as level 6.
3. What is put into the lane after that comes back later, each item one level higher than it was:
   at most 6, and younger.

So a backlog stays one item, whatever the number of its retries.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from pykaproducer._kernel import Slice
from pykaproducer._machines.backlog import Backlog
from pykaproducer._machines.lane import Batch

#: What travels; it knows its level.
Item = Slice | Batch | Backlog


@dataclass(frozen=True, slots=True)
class Forward:
    """Put *item* into the path."""

    item: Item


@dataclass(frozen=True, slots=True)
class SendChaser:
    """Send the chaser of *level* down the path, then let the path go."""

    level: int


@dataclass(frozen=True, slots=True)
class FindPath:
    """Find the leader and report the path with :meth:`Ordering.path_found`."""


Effect = Forward | SendChaser | FindPath


class Transition(StrEnum):
    """The rows of the table above, and the ways in which one can go."""

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


#: How often each has been taken.
Transitions = Counter[Transition]


class IllegalEventError(AssertionError):
    """An event that cannot happen in this state: a bug. The state is unchanged."""


class _Buffer:
    """What a partition holds back, oldest first: sealed batches, and backlogs between them."""

    __slots__ = ("items", "nbytes")

    def __init__(self) -> None:
        self.items: deque[Item] = deque()
        #: Bytes of the messages in it.
        self.nbytes = 0

    def __bool__(self) -> bool:
        return bool(self.items)

    def append(self, item: Item) -> None:
        """Add *item* as the youngest. Slices of the same level join into a backlog."""
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
        """Remove the slices whose rows all have their outcome."""
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


@dataclass(slots=True)
class _Level:
    buffer: _Buffer = field(default_factory=_Buffer)
    expects_chaser: bool = False


class Ordering:
    """State and transitions of one partition. Events in, effects out, in order."""

    def __init__(self) -> None:
        #: For a look from outside: what has happened so far.
        self.taken: Transitions = Counter()
        self.high_watermark = 0
        self.has_path = False
        self._finding = False
        # The highest level of what has gone down the path.
        self._level_of_path = 0
        self._levels: dict[int, _Level] = {}
        # What has passed the watermark and waits for a path.
        self._waiting = _Buffer()
        #: Bytes of messages that wait here: for a path, or for a lower level's turn.
        self.held = 0

    def held_items(self) -> list[Item]:
        """What waits here: for a path, or for a lower level's turn."""
        buffers = [level.buffer for level in list(self._levels.values())]
        return [item for buffer in (self._waiting, *buffers) for item in list(buffer.items)]

    def sweep(self) -> None:
        """Remove settled slices, after rows have expired."""
        self._waiting.sweep()
        for level in self._levels.values():
            level.buffer.sweep()
        self.held = self._waiting.nbytes + sum(
            level.buffer.nbytes for level in self._levels.values()
        )

    def item(self, item: Item) -> list[Effect]:
        """A fresh item, or one that comes round again."""
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
        """The chaser of *level* has come back: everything older than it has, too."""
        effects: list[Effect] = []
        self._level(level).expects_chaser = False
        if level < self.high_watermark:
            self.taken[Transition.CHASER_BELOW] += 1
            return effects
        self._descend(effects)
        return effects

    @property
    def wants_path(self) -> bool:
        """Return whether it waits for :meth:`path_found`."""
        return self._finding

    @property
    def is_at_rest(self) -> bool:
        """Return whether nothing of the partition is held here or under way."""
        busy = any(level.buffer or level.expects_chaser for level in self._levels.values())
        finds = self.has_path or self._finding
        return not (self.high_watermark or finds or self._waiting or busy)

    def rest(self) -> list[Effect]:
        """Release the path of a long unused partition, if nothing is in progress.

        This acts as if the path had failed: a fresh item now waits for the chaser. When the chaser
        is back everything older is back too, and the partition :attr:`is_at_rest`, or in use.

        The watermark rises to the level at which the path hands back what is still in it:

        1. Two batches are under way. The older one is refused, the younger one is delivered.
        2. The older one is retried with level 1, and expires while its broker is down. It stays in
           the path, because a younger one under the same numbers may be in the log.
        3. The partition rests, and the path hands the batch back with level 2. With the watermark
           at 1 there would be no path that it can come from.
        """
        effects: list[Effect] = []
        if self.high_watermark == 0 and self.has_path:
            self._rise(1 + self._level_of_path, effects)
        return effects

    def give_up(self) -> None:
        """Drop what waits for a path, all of it settled, if nothing else is in progress."""
        if self.high_watermark == 0 and not self.has_path:
            self.held -= self._waiting.nbytes
            self._waiting.take_all()
            self._finding = False

    def path_found(self) -> list[Effect]:
        """A lane to the leader is there."""
        self.taken[Transition.PATH_FOUND] += 1
        self.has_path = True
        self._finding = False
        self.held -= self._waiting.nbytes
        self._level_of_path = 0
        return [self._forward(item) for item in self._waiting.take_all()]

    # The steps -----------------------------------------------------------------------------

    def _rise(self, level: int, effects: list[Effect]) -> None:
        if not self.has_path:
            # What has failed more often than anything else came from the path, so there was one
            # since the watermark rose last. Without a chaser the level would never end.
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
