"""Lanes and the batches they hold: what one partition has at one broker's worker.

A :class:`Lane` is one partition's attachment to one broker's worker. Slices wait in it until the
:class:`~pykaproducer._machines.batching.Batcher` finds that a batch is due. A :class:`Batch` is
what has been sealed: encoded bytes and the slices that they hold. A lane that has failed hands
back everything it holds, and its :class:`Chaser` last.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pykaproducer._kernel import RecordBatch, Slice
from pykaproducer._machines.backlog import Backlog
from pykaproducer._machines.sequencing import Sequencer

#: Lanes with so few items are not searched for settled ones behind the first live one.
_FEW_ITEMS = 64
#: A backlog stands at the front of a lane, behind a few sealed batches and a slice at most.
_FRONT = 8


@dataclass(slots=True, eq=False)
class Batch:
    """A sealed record batch and the slices that it holds, in the order of its records."""

    topic: str
    partition: int
    payload: RecordBatch
    parts: list[Slice]
    count: int
    level: int
    #: How many temporary errors a broker has answered; ``retries`` bounds it.
    retries_used: int = 0
    #: An attempt may have been appended: any later failure is POSSIBLY_PERSISTED.
    possibly_persisted: bool = False
    producer_id: int = -1
    producer_epoch: int = -1
    first_sequence: int = -1
    #: As the how many-th of its partition it was sealed; 0 without sequence numbers.
    number: int = 0
    #: Sealed anew, most messages of a batch; 0: as many as fit.
    most: int = 0
    #: Where it was sealed, or sent from last.
    lane: Lane | None = None

    @property
    def in_lane(self) -> Lane:
        """Where it is under way."""
        assert self.lane is not None, "a batch under way has a lane"
        return self.lane

    @property
    def numbered(self) -> tuple[int, int, int]:
        """Its number in the partition, and the producer id and epoch it was sealed under."""
        return self.number, self.producer_id, self.producer_epoch

    @property
    def sequenced(self) -> bool:
        """Whether it must go again as it is: the broker knows it by its sequence numbers."""
        return self.first_sequence >= 0

    @property
    def nbytes(self) -> int:
        """Size of its encoded messages in bytes."""
        return len(self.payload)

    @property
    def is_settled(self) -> bool:
        """Return whether every row has its outcome."""
        return all(part.is_settled for part in self.parts)

    def unseal(self) -> list[Slice]:
        """Its slices, to be sealed anew. (With its sequence numbers a batch goes sealed: by them
        the broker recognises it.)"""
        for part in self.parts:
            part.level = self.level
            part.retries_used = self.retries_used
            part.unclaim()
            if self.most:
                part.most = self.most
        return self.parts

    def split(self) -> None:
        """Have it sealed anew in batches of half as many messages at most."""
        self.most = max(1, self.count // 2)

    def refused(self, texts: Mapping[int, str | None]) -> dict[str | None, list[Slice]]:
        """Return slices of the refused messages, grouped by the broker's text.

        *texts* has the text of each refused record, by its number in the batch. Each record is
        visited once, and each text gets at most one slice of a chunk.
        """
        found: dict[str | None, list[Slice]] = {}
        first = 0
        for part in self.parts:
            rows: dict[str | None, list[int]] = {}
            for number, row in enumerate(part.row_numbers(), first):
                if number in texts:
                    rows.setdefault(texts[number], []).append(row)
            first += part.count
            for text, refused in rows.items():
                found.setdefault(text, []).append(part.chunk.pick(refused, self.partition))
        return found

    def take_along(self) -> None:
        """It has to wait: see Slice.take_along."""
        for part in self.parts:
            part.take_along()

    def has_until(self, time: float) -> bool:
        """Whether no row of its chunks has failed, or expires before *time*.

        One look at each chunk; :meth:`next_deadline` looks at each row.
        """
        chunks = [part.chunk for part in self.parts]
        return all(not chunk.errors and chunk.next_deadline >= time for chunk in chunks)

    def next_deadline(self) -> float | None:
        """Earliest deadline of the rows without outcome; None if every row has one."""
        found = (part.oldest_deadline() for part in self.parts)
        return min((deadline for deadline in found if deadline is not None), default=None)


@dataclass(frozen=True, slots=True)
class Chaser:
    """The last thing that a partition's worker puts into a lane; it comes back with *level*."""

    topic: str
    partition: int
    level: int


@dataclass(slots=True, eq=False)
class Lane:
    """One partition at one broker's worker, which alone touches it once it has been attached."""

    topic: str
    partition: int
    sequencer: Sequencer
    #: What is to be sealed or sent. The first item is never a backlog: see :meth:`_unpack`.
    pending: deque[Slice | Batch | Backlog] = field(default_factory=deque)
    #: Bytes and rows of the slices in ``pending``.
    nbytes: int = 0
    rows: int = 0
    #: When each item in ``pending`` came (monotonic seconds).
    came: deque[float] = field(default_factory=deque)
    #: The latest time in the batcher's heap for this lane.
    timer: float | None = None
    #: The batcher's request in which it last had its turn.
    round: int = 0
    #: The part of ``nbytes`` that the batcher's sum includes.
    counted: int = 0
    unanswered: list[Batch] = field(default_factory=list)
    #: Batches that must go round again, oldest first.
    failed: list[Slice | Batch] = field(default_factory=list)
    #: The lane has failed: all that is in it, and all that still comes, goes round again.
    failing: bool = False
    chaser: Chaser | None = None
    #: Nothing can be sealed before a producer id comes.
    waits_for_id: bool = False
    #: It failed for what only time may mend: what goes round again waits for its backoff.
    pause: bool = False
    #: A batch with sequence numbers will be missing in the log: those of what failed from here on
    #: (a place in ``failed``), and of all that is pending, are void.
    void_from: int | None = None
    # When ``pending`` has this many items, its middle is searched for settled ones.
    _search_at: int = _FEW_ITEMS

    def add(self, item: Slice | Batch | Backlog, now: float) -> None:
        """One more item for the broker."""
        self.pending.append(item)
        self.came.append(now)
        if not isinstance(item, Batch):
            self.nbytes += item.nbytes
            self.rows += item.count
        if len(self.pending) == 1:
            self._unpack()

    def _unpack(self) -> None:
        """Put the first slice of a backlog before it, if a backlog has come to the front."""
        pending, came = self.pending, self.came
        while pending and isinstance(backlog := pending[0], Backlog):
            if not backlog:
                pending.popleft()
                came.popleft()
                continue
            part = backlog.popleft()
            if backlog:
                came.appendleft(came[0])
            else:
                pending.popleft()
            pending.appendleft(part)

    def unsealed(self) -> list[Slice]:
        """Return the pending slices that no batch holds, oldest first."""
        parts: list[Slice] = []
        for item in self.pending:
            if isinstance(item, Backlog):
                parts += item.slices()
            elif isinstance(item, Slice):
                parts.append(item)
        return parts

    def sweep(self) -> None:
        """Remove settled slices and needless batches, after rows have expired."""
        self.drop_needless()
        while self.pending and isinstance(head := self.pending[0], Slice) and head.is_settled:
            self.nbytes -= head.nbytes
            self.rows -= head.count
            self.drop_head()
        for item in itertools.islice(self.pending, _FRONT):
            if isinstance(item, Backlog):
                nbytes, rows = item.nbytes, item.count
                item.sweep()
                self.nbytes -= nbytes - item.nbytes
                self.rows -= rows - item.count
        if len(self.pending) < self._search_at:
            return
        kept = [(i, c) for i, c in self._in_order() if not _is_over(i)]
        self.pending.clear()
        self.came.clear()
        self.nbytes = self.rows = 0
        for item, came in kept:
            self.add(item, came)
        self._search_at = max(_FEW_ITEMS, 2 * len(kept))

    def put_back(self, batch: Batch) -> None:
        """Put *batch*, which was sealed and not sent, before what is pending."""
        self.unanswered.remove(batch)
        self.pending.appendleft(batch)
        self.came.appendleft(0.0)

    def outdated(self, batch: Batch) -> list[Slice] | None:
        """*batch*, just taken, was sealed under an epoch that the partition has left meanwhile.

        1. Batches 1 and 2 go round again; 2 waits behind 1.
        2. 1 is refused, takes a new epoch, and is appended.
        3. 2 comes with the old epoch: the broker would refuse it, and append 3 before it.

        Returns its slices, to be sealed anew in its place; None if they must not be.
        """
        if batch.possibly_persisted or self._is_overtaken(batch):
            return None
        return batch.unseal()

    def put_first(self, slices: list[Slice]) -> None:
        """*slices* go before what is pending."""
        self.pending.extendleft(reversed(slices))
        self.came.extendleft(0.0 for _ in slices)
        self.nbytes += sum(part.nbytes for part in slices)
        self.rows += sum(part.count for part in slices)

    def drop_head(self) -> None:
        """The first item has been taken."""
        self.pending.popleft()
        self.came.popleft()
        self._unpack()

    def sent(self, batch: Batch) -> None:
        """*batch* is under way, or sealed ahead to be it next."""
        batch.lane = self
        self.unanswered.append(batch)

    def answered(self, batch: Batch) -> bool:
        """The fate of *batch* is known, or will not be; whether an older one has no outcome yet."""
        older = bool(self.failed) or self.void_from is not None or self.unanswered[0] is not batch
        self.unanswered.remove(batch)
        return older

    def fail(self, *items: Slice | Batch, pause: bool = False) -> None:
        """Everything in the lane goes round again; *items* (just answered) before the rest.

        *pause*: for what only time may mend.
        """
        self.failing = True
        self.failed.extend(items)
        self.pause |= pause

    def end(self, chaser: Chaser) -> None:
        """The partition lets it go: the *chaser* goes back behind everything."""
        self.chaser = chaser
        self.failing = True

    def spoil(self, *, id_too: bool = False) -> None:
        """The numbers of a batch just answered will be missing in the log, or are refused.

        What failed before it keeps its numbers: it may be in the log, and the broker knows it by
        them.
        """
        if self.void_from is None:
            self.void_from = len(self.failed)
        self.sequencer.spoil(id_too=id_too)

    def hand_back(self) -> tuple[list[Batch | Backlog | Chaser], list[Batch]]:
        """Return ``(again, doubtful)``: what is retried, and what must not be.

        *again*: oldest first, all of one level, higher than before, the chaser last. *doubtful*:
        batches with void sequence numbers. The fate of some is unknown, and a retry might write
        them twice. Others were overtaken by a younger batch (a broker that has forgotten the
        producer accepts any number), and a retry would change their order.
        Both are empty while a batch is unanswered: its answer decides whether it goes before the
        rest.
        """
        if not self.failing or self.unanswered:
            return [], []
        items, doubtful = self._sorted_out()
        again = self._together(items)
        self.failed.clear()
        self.pending.clear()
        self.came.clear()
        self.nbytes = self.rows = 0
        self._search_at = _FEW_ITEMS
        self.void_from = None
        self.pause = False  # what still comes has to wait for these, and no longer
        chaser, self.chaser = self.chaser, None
        return [*again, *([] if chaser is None else [chaser])], doubtful

    def _sorted_out(self) -> tuple[list[Slice | Batch | Backlog], list[Batch]]:
        """Return what is retried and the doubtful batches, each oldest first.

        The youngest is examined first: its fate decides whether an older batch that is settled is
        still needed.
        """
        again: list[Slice | Batch | Backlog] = []
        doubtful: list[Batch] = []
        items = [*self.failed, *self.pending]
        for position in reversed(range(len(items))):
            item = items[position]
            valid = self.void_from is None or position < self.void_from
            if not isinstance(item, Batch):
                again.append(item)
            elif item.sequenced and valid:
                if not self._drop_if_needless(item):
                    again.append(item)
            elif item.sequenced and (item.possibly_persisted or self._is_overtaken(item)):
                doubtful.append(item)
            else:
                if item.sequenced:
                    self.sequencer.missing(*item.numbered)
                again.extend(reversed(item.unseal()))
        return again[::-1], doubtful[::-1]

    def drop_needless(self) -> bool:
        """Drop the settled batches at the front that no younger batch needs.

        Return whether there were any: the partition's sequence numbers are stale then.
        """
        front = itertools.takewhile(lambda item: isinstance(item[0], Batch), self._in_order())
        batches = list(front)
        kept = [
            (batch, came)
            for batch, came in reversed(batches)  # the youngest first
            if not (isinstance(batch, Batch) and self._drop_if_needless(batch))
        ]
        if len(kept) == len(batches):
            return False
        for _ in batches:
            self.pending.popleft()
            self.came.popleft()
        self._unpack()
        for batch, came in kept:
            self.pending.appendleft(batch)
            self.came.appendleft(came)
        return True

    def _in_order(self) -> Iterable[tuple[Slice | Batch | Backlog, float]]:
        return zip(self.pending, self.came, strict=True)

    def drop_ahead(self, batch: Batch) -> bool:
        """Drop *batch*, sealed ahead and not written, if it is needless; return whether it was."""
        if not self._drop_if_needless(batch):
            return False
        self.unanswered.remove(batch)
        return True

    def _drop_if_needless(self, batch: Batch) -> bool:
        if not batch.is_settled:
            return False
        if batch.sequenced:
            if self.sequencer.is_needed(*batch.numbered):
                return False
            self.sequencer.drop(*batch.numbered)
        return True

    def _together(self, items: list[Slice | Batch | Backlog]) -> list[Batch | Backlog]:
        """Raise *items* to one level; join adjacent slices to backlogs, without settled ones."""
        level = 1 + max((item.level for item in items), default=0)
        found: list[Batch | Backlog] = []
        backlog: Backlog | None = None
        for item in items:
            item.level = level
            if isinstance(item, Batch):
                found.append(item)
                backlog = None
            elif backlog is None:
                backlog = (
                    item
                    if isinstance(item, Backlog)
                    else Backlog(self.topic, self.partition, level, [item])
                )
                found.append(backlog)
            elif isinstance(item, Slice):
                backlog.append(item)
            else:
                backlog.extend(item)
        for each in found:
            if isinstance(each, Backlog):
                each.sweep()
        return [each for each in found if isinstance(each, Batch) or each]

    def _is_overtaken(self, batch: Batch) -> bool:
        return batch.number < self.sequencer.youngest_delivered


def _is_over(item: Slice | Batch | Backlog) -> bool:
    """Return whether *item* is settled. A sealed batch counts as still needed."""
    if isinstance(item, Backlog):
        item.sweep()
        return not item
    return isinstance(item, Slice) and item.is_settled
