"""What a broker's worker holds: lanes, batches, and when a batch is due.

A :class:`Lane` is one partition's attachment to one broker's worker. Slices wait in it until a
batch is due: full in bytes or in messages, lingered long enough, needed by a flush, or a retry.
A :class:`Batch` is what has been sealed: encoded bytes and the slices that they hold.
"""

from __future__ import annotations

import heapq
import itertools
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from pykaproducer._kernel import RECORD_ALLOWANCE, RecordBatch, Slice
from pykaproducer._machines.backlog import Backlog
from pykaproducer._machines.sequencing import REMEMBERED, Sequencer

#: How many lanes Batcher.holds_little() adds up.
_FEW_LANES = 16
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
        """As the how many-th it was sealed, and under which producer id and epoch."""
        return self.number, self.producer_id, self.producer_epoch

    @property
    def sequenced(self) -> bool:
        """Whether it must go again as it is: the broker knows it by its sequence numbers."""
        return self.first_sequence >= 0

    @property
    def nbytes(self) -> int:
        """Bytes of its messages, as they are sent."""
        return len(self.payload)

    @property
    def is_settled(self) -> bool:
        """Whether every row has its outcome."""
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
        """Slices of the messages that are these records of it, counted from 0, by their texts.

        One look at each record, and for each text one slice of a chunk, however many they are.
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
    #: The last of the batcher's requests in which it had its turn.
    round: int = 0
    #: What of ``nbytes`` the batcher counts in its sum.
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
    # With so many items in ``pending`` the settled ones in its middle are looked for.
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
        """Rows have expired: let the slices go that have their outcome, and needless batches."""
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
        """*batch* was sealed and not sent: it goes before what is pending."""
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
        """``(again, doubtful)``: what goes round again, and what cannot.

        *again*: oldest first, all of one level, higher than before, the chaser last. *doubtful*:
        batches with void sequence numbers, of unknown fate: sent again they might be in the log
        twice; or behind which a younger one is in the log already (a broker that has forgotten the
        producer takes any number): sent again they would change places.
        Both empty while a batch is unanswered: its answer decides whether it goes before the rest.
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
        """What goes round again, oldest first, and the doubtful batches.

        The youngest is looked at first: what becomes of it decides whether an older one without a
        row that waits is needed.
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
        """Drop the batches at the front without a row that waits that no younger one needs.

        Whether there were some: the numbers of the partition are stale then.
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
        """Drop *batch*, sealed ahead and not written, if nothing waits for it; whether it did."""
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
        """*items* a level higher, slices side by side as one backlog; settled slices stay out."""
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
    """Whether *item* has nothing in it that has no outcome yet; a sealed batch is needed still."""
    if isinstance(item, Backlog):
        item.sweep()
        return not item
    return isinstance(item, Slice) and item.is_settled


class Batcher:
    """Which lanes of a broker are due, and when the next one will be."""

    def __init__(
        self, *, linger: float, batch_size: int, batch_messages: int, sealed_limit: int
    ) -> None:
        self.linger = linger
        self.batch_size = batch_size
        #: Most messages of a batch; 0: no limit.
        self.batch_messages = batch_messages or (1 << 31) - 1
        self.sealed_limit = sealed_limit
        #: Lanes with something pending that have not failed.
        self._waiting: dict[Lane, None] = {}
        #: Those of them that may send a batch now; whose turn it is stands first.
        self._open: OrderedDict[Lane, None] = OrderedDict()
        #: Those of these that need not linger.
        self._ripe: set[Lane] = set()
        # Bytes of the slices in the open lanes.
        self._nbytes = 0
        # When the others have lingered long enough. An entry counts while its lane is open and
        # its time is that of the lane's first item.
        self._timers: list[tuple[float, int, Lane]] = []
        self._count = itertools.count()
        self._round = 0

    @property
    def waiting(self) -> bool:
        """Whether anything is pending."""
        return bool(self._waiting)

    def fills(self, size: int) -> bool:
        """Whether what may be sent fills a batch, or a request of *size* bytes, or has been sealed
        before: it does not become larger by waiting."""
        return bool(self._ripe) or self._nbytes >= size

    def holds_little(self, limit: int) -> bool:
        """Whether at most *limit* bytes are pending. (False, too, for more lanes than a look at
        each is worth.)"""
        if len(self._waiting) > _FEW_LANES:
            return False
        return sum(lane.nbytes for lane in self._waiting) <= limit

    def add(self, lane: Lane, item: Slice | Batch | Backlog, now: float) -> None:
        """Put an item into its lane."""
        lane.add(item, now)
        self.look(lane)

    def look(self, lane: Lane) -> None:
        """Something about *lane* has changed: what is pending or unanswered, or it failed.

        Costs the same however many lanes there are.
        """
        if lane.failing or not lane.pending:
            self._waiting.pop(lane, None)
        else:
            self._waiting[lane] = None
        if lane not in self._waiting or not self._may_send(lane):
            self._open.pop(lane, None)
            self._ripe.discard(lane)
            self._nbytes -= lane.counted
            lane.counted = 0
            return
        self._nbytes += lane.nbytes - lane.counted
        lane.counted = lane.nbytes
        if lane not in self._open:
            self._open[lane] = None
        if self._is_ripe(lane):
            self._ripe.add(lane)
            return
        due = lane.came[0] + self.linger
        if lane.timer != due:
            lane.timer = due
            heapq.heappush(self._timers, (due, next(self._count), lane))

    def _may_send(self, lane: Lane) -> bool:
        """Whether one batch more of *lane* may be unanswered."""
        if lane.waits_for_id:
            return False
        unanswered, sequencer = lane.unanswered, lane.sequencer
        if unanswered and unanswered[-1].sequenced and not sequencer.known:
            return False
        if unanswered and sequencer.stale and isinstance(lane.pending[0], Slice):
            return False  # it starts a new epoch, which must wait for the old one's answers
        if unanswered and unanswered[0].sequenced and self._would_be_forgotten(lane):
            return False
        return len(unanswered) < self.sealed_limit

    def _would_be_forgotten(self, lane: Lane) -> bool:
        """Whether the next batch of *lane* is too far from the oldest that is unanswered.

        A broker recognises a batch that comes again by the last ``REMEMBERED`` batches that it has
        appended. How many are unanswered at a time does not bound how many it appends:

        1. Batches 1 and 2 are sent. 1 is appended, but the answer is an error, or is lost; 2 is
           appended, and confirmed.
        2. 1 is sent again, and 3 behind it. It happens again: 3 is confirmed, 1 is not.
        3. So it goes with 4, 5 and 6. The broker now remembers 2 to 6.
        4. 1 is sent once more. It is out of order, and whether it is in the log cannot be known: it
           would have to fail, although it was delivered.

        So a batch is sent only while the oldest one would be among the last that are remembered.
        """
        head = lane.pending[0]
        number = head.number if isinstance(head, Batch) else lane.sequencer.sealed + 1
        return number - lane.unanswered[0].number >= REMEMBERED

    def _is_ripe(self, lane: Lane) -> bool:
        head = lane.pending[0]
        return (
            isinstance(head, Batch)
            or head.level > 0
            or lane.nbytes >= self.batch_size
            or lane.rows >= self.batch_messages
        )

    def due(self, now: float, *, flushing: bool) -> Iterator[Lane]:
        """The lanes of the next request, each once; none if none is due.

        When one is due, all go that have anything: one request for all partitions of a broker
        costs the broker less than one each. They take turns: which lane comes out goes behind all
        others, so whoever stops here because the request is full goes on there with the next. If a
        lane kept its place as long as it has messages, a few busy ones would fill every request.
        """
        due = self.next_due()
        if due is None or not (flushing or due <= now):
            return
        self._round += 1
        while self._open:
            lane = next(iter(self._open))
            if lane.round == self._round:
                return  # all have had their turn
            lane.round = self._round
            self._open.move_to_end(lane)
            yield lane

    def stays_first(self, lane: Lane) -> None:
        """*lane* did not fit into the request: its turn is the next one's."""
        if lane in self._open:
            self._open.move_to_end(lane, last=False)

    def put_back(self, batch: Batch) -> None:
        """*batch*, just sealed, did not fit into the request: it is the next one's first."""
        batch.in_lane.put_back(batch)
        self.look(batch.in_lane)
        self.stays_first(batch.in_lane)

    def size_of_next(self, lane: Lane) -> int:
        """How large the next batch of *lane* will be, roughly, before compression."""
        head = lane.pending[0]
        if isinstance(head, Batch):
            return len(head.payload)
        return min(lane.nbytes, self.batch_size)

    def next_due(self) -> float | None:
        """When the next lane is due: 0 for at once, None if none may send."""
        if self._ripe:
            return 0.0
        while self._timers:
            due, _, lane = self._timers[0]
            if lane in self._open and due == lane.came[0] + self.linger:
                return due
            heapq.heappop(self._timers)
            if lane.timer == due:
                lane.timer = None
        return None

    def take(self, lane: Lane) -> Batch | list[Slice]:
        """The next batch of *lane*: one sealed before, or claimed slices for a new one.

        An empty list: what was pending has expired. The caller calls :meth:`look` behind it, in
        each case.
        """
        head = lane.pending[0]
        if isinstance(head, Batch):
            lane.drop_head()
            return head
        parts: list[Slice] = []
        room, most = self.batch_size, self.batch_messages
        while lane.pending and most > 0:
            head = lane.pending[0]
            if not isinstance(head, Slice) or (parts and head.most):
                break
            nbytes, rows = head.nbytes, head.count
            try:
                part = head.claim(room, most, not parts)
            except MemoryError:
                if parts:
                    break  # a smaller batch
                raise
            lane.nbytes -= nbytes - head.nbytes
            lane.rows -= rows - head.count
            if part is not None:
                parts.append(part)
                room -= part.nbytes + RECORD_ALLOWANCE * part.count
                most -= part.count
            if head.count:
                break  # the batch is full
            lane.drop_head()
            if head.most:
                break  # what was split goes alone
        self._ripe.discard(lane)
        return parts
