"""When a batch of a broker's worker is due, and which rows it takes.

A lane's batch is due when it is full in bytes or in messages, has lingered long enough, is needed
by a flush, or is a retry.
"""

from __future__ import annotations

import heapq
import itertools
from collections import OrderedDict
from collections.abc import Iterator

from pykaproducer._kernel import RECORD_ALLOWANCE, Slice
from pykaproducer._machines.backlog import Backlog
from pykaproducer._machines.lane import Batch, Lane
from pykaproducer._machines.sequencing import REMEMBERED

#: How many lanes Batcher.holds_little() adds up.
_FEW_LANES = 16


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
        #: Those of them that may send a batch now; the one whose turn it is comes first.
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
        """Return whether waiting would not make the next request larger.

        That is so if a batch is full or already sealed, or if a request of *size* bytes is full.
        """
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
        """Return whether the next batch of *lane* is too far from the oldest unanswered one.

        A broker recognises a retried batch by the last ``REMEMBERED`` batches that it has
        appended. How many are unanswered at a time does not bound how many it appends:

        1. Batches 1 and 2 are sent. 1 is appended, but the answer is an error, or is lost; 2 is
           appended, and confirmed.
        2. 1 is retried, and 3 is sent after it. The same happens: 3 is confirmed, 1 is not.
        3. The same happens with 4, 5 and 6. The broker now remembers 2 to 6.
        4. 1 is retried once more. It is out of order, and whether it is in the log cannot be known:
           it would have to fail, although it was delivered.

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
        """Yield the lanes of the next request, each once; none if none is due.

        When one is due, all go that have anything: one request for all partitions of a broker
        costs the broker less than one each. The lanes take turns: a yielded lane moves behind all
        others, so a caller that stops because the request is full continues from there with the
        next request. If a lane kept its place as long as it has messages, a few busy ones would
        fill every request.
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
        """Keep *lane* first: it did not fit into this request, and goes into the next."""
        if lane in self._open:
            self._open.move_to_end(lane, last=False)

    def put_back(self, batch: Batch) -> None:
        """Put back *batch*, just sealed: it did not fit, and goes first into the next request."""
        batch.in_lane.put_back(batch)
        self.look(batch.in_lane)
        self.stays_first(batch.in_lane)

    def size_of_next(self, lane: Lane) -> int:
        """Estimate the size of the next batch of *lane*, before compression."""
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
