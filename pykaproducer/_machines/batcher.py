"""Batching for one broker: when a batch is due, and which rows it takes.

A partition buffer's batch is due when it is full in bytes or in messages, has lingered long enough,
is needed by a flush, or is a retry.
"""

from __future__ import annotations

import heapq
import itertools
from collections import OrderedDict
from collections.abc import Iterator

from pykaproducer._kernel import RECORD_ALLOWANCE, Slice
from pykaproducer._machines.backlog import Backlog
from pykaproducer._machines.batch import Batch
from pykaproducer._machines.partition_buffer import PartitionBuffer
from pykaproducer._machines.sequencing import REMEMBERED
from pykaproducer.config import Config

#: Maximum number of buffers that Batcher.is_small() adds up.
_FEW_BUFFERS = 16
#: With at most this many open buffers, messages that arrive now are soon in turn, and cost little.
_FEW_IN_TURN = 16
#: Number of timers below which outdated ones are not pruned.
_FEW_TIMERS = 64


class Batcher:
    """The partition buffers of one broker, ordered by when their batches are due."""

    def __init__(
        self, *, linger: float, batch_size: int, batch_messages: int, sealed_limit: int
    ) -> None:
        self.linger = linger
        self.batch_size = batch_size
        #: Maximum number of messages of a batch; the argument 0 means no limit.
        self.batch_messages = batch_messages or (1 << 31) - 1
        self.sealed_limit = sealed_limit
        #: Buffers with pending items that have not failed; changed by this class only.
        self.waiting: dict[PartitionBuffer, None] = {}
        #: Waiting buffers that may send a batch now; the next in turn is first.
        self._open: OrderedDict[PartitionBuffer, None] = OrderedDict()
        #: Open buffers that need not linger.
        self._ready: set[PartitionBuffer] = set()
        # Bytes of the slices in the open buffers.
        self._nbytes = 0
        # When the other open buffers have lingered long enough. An entry is valid while its buffer
        # is open and its time matches the buffer's first item.
        self._timers: list[tuple[float, int, PartitionBuffer]] = []
        # Prune when there are more timers than this.
        self._prune_above = _FEW_TIMERS
        self._count = itertools.count()
        self._round = 0

    def fills(self, size: int) -> bool:
        """Return whether the next request is full: waiting would not make it larger.

        That is the case if a batch is full or already sealed, or if *size* bytes are pending.
        """
        return bool(self._ready) or self._nbytes >= size

    def many_fill(self, size: int) -> bool:
        """Return whether many buffers fill the next request of *size* bytes, each with one batch.

        As the buffers take turns, messages that arrive now could not be in it.
        """
        if self._nbytes < size or len(self._open) <= _FEW_IN_TURN:
            return False
        for buffer in self._open:
            size -= self.size_of_next(buffer)
            if size <= 0:
                return True
        return False

    def is_small(self, limit: int) -> bool:
        """Return whether at most *limit* bytes are pending.

        Also False if there are too many buffers to add up cheaply.
        """
        if len(self.waiting) > _FEW_BUFFERS:
            return False
        return sum(buffer.nbytes for buffer in self.waiting) <= limit

    def add(self, buffer: PartitionBuffer, item: Slice | Batch | Backlog, now: float) -> None:
        """Put *item* into *buffer*."""
        buffer.add(item, now)
        if len(buffer.pending) == 1 or buffer not in self.waiting:
            self.reschedule(buffer)
        elif buffer in self._open:
            # Its first item is the same, and so are its turn and its timer.
            self._count_bytes(buffer)
            if buffer not in self._ready and self._is_ready(buffer):
                self._ready.add(buffer)

    def reschedule(self, buffer: PartitionBuffer) -> None:
        """Update the schedule after *buffer* has changed: its items, its batches, or a failure.

        The cost does not depend on the number of buffers.
        """
        if buffer.failing or not buffer.pending:
            self.waiting.pop(buffer, None)
        else:
            self.waiting[buffer] = None
        if buffer not in self.waiting or not self._may_send(buffer):
            self._open.pop(buffer, None)
            self._ready.discard(buffer)
            self._nbytes -= buffer.counted
            buffer.counted = 0
            return
        self._count_bytes(buffer)
        if buffer not in self._open:
            self._open[buffer] = None
        if self._is_ready(buffer):
            self._ready.add(buffer)
            return
        due = buffer.enqueued_at[0] + self.linger
        if buffer.timer != due:
            buffer.timer = due
            heapq.heappush(self._timers, (due, next(self._count), buffer))
            if len(self._timers) > self._prune_above:
                self._prune_timers()

    def _count_bytes(self, buffer: PartitionBuffer) -> None:
        self._nbytes += buffer.nbytes - buffer.counted
        buffer.counted = buffer.nbytes

    def _prune_timers(self) -> None:
        """Remove outdated timers, so that each open buffer has at most one.

        :meth:`next_due` removes those at the head of the heap, but is not called without a
        connection. During an outage, each message that arrives and expires may add one.
        """
        kept: dict[PartitionBuffer, tuple[float, int, PartitionBuffer]] = {}
        for entry in self._timers:
            due, _, buffer = entry
            if buffer.timer != due:
                continue
            if buffer in self._open:
                kept[buffer] = entry
            else:
                buffer.timer = None
        self._timers = list(kept.values())
        heapq.heapify(self._timers)
        self._prune_above = max(_FEW_TIMERS, 2 * len(self._timers))

    def _may_send(self, buffer: PartitionBuffer) -> bool:
        """Return whether *buffer* may have one more batch in flight."""
        if buffer.waits_for_id:
            return False
        unanswered, sequencer = buffer.unanswered, buffer.sequencer
        if unanswered and unanswered[-1].sequenced and not sequencer.known:
            return False
        if unanswered and sequencer.stale and isinstance(buffer.pending[0], Slice):
            return False  # it starts a new epoch, after the responses to batches of the old one
        if unanswered and unanswered[0].sequenced and self._would_be_forgotten(buffer):
            return False
        return len(unanswered) < self.sealed_limit

    def _would_be_forgotten(self, buffer: PartitionBuffer) -> bool:
        """Return whether the next batch of *buffer* is too far from the oldest one in flight.

        A broker recognises a retried batch only among the last ``REMEMBERED`` batches that it
        appended. Limiting the number of batches in flight does not limit how many it appends:

        1. Batches 1 and 2 are sent. 1 is appended, but the response is an error or is lost; 2 is
           appended and confirmed.
        2. 1 is retried, and 3 is sent after it. The same happens: 3 is confirmed, 1 is not.
        3. The same happens with 4, 5 and 6. The broker now remembers 2 to 6.
        4. 1 is retried once more. It is out of order, and whether it is in the log cannot be known.
           It would have to fail, although it was delivered.

        So a batch is sent only while the broker would still remember the oldest one.
        """
        head = buffer.pending[0]
        number = head.number if isinstance(head, Batch) else buffer.sequencer.sealed + 1
        return number - buffer.unanswered[0].number >= REMEMBERED

    def _is_ready(self, buffer: PartitionBuffer) -> bool:
        head = buffer.pending[0]
        return (
            isinstance(head, Batch)
            or head.level > 0
            or buffer.nbytes >= self.batch_size
            or buffer.rows >= self.batch_messages
        )

    def due(self, now: float, *, flushing: bool) -> Iterator[PartitionBuffer]:
        """Yield the buffers of the next request, each once; none if none is due.

        If one is due, all buffers that may send are included: one request for all partitions costs
        the broker less than a request for each.

        The buffers take turns. Each yielded buffer moves to the end, so a caller that stops because
        the request is full continues from there with the next request. Without that, a few busy
        buffers would fill every request.
        """
        due = self.next_due()
        if due is None or not (flushing or due <= now):
            return
        self._round += 1
        while self._open:
            buffer = next(iter(self._open))
            if buffer.round == self._round:
                return  # all have had their turn
            buffer.round = self._round
            self._open.move_to_end(buffer)
            yield buffer

    def stays_first(self, buffer: PartitionBuffer) -> None:
        """Keep *buffer* first for the next request, as it did not fit into this one."""
        if buffer in self._open:
            self._open.move_to_end(buffer, last=False)

    def put_back(self, batch: Batch) -> None:
        """Put back *batch*, just sealed, as the first of the next request: it did not fit."""
        batch.in_buffer.put_back(batch)
        self.reschedule(batch.in_buffer)
        self.stays_first(batch.in_buffer)

    def size_of_next(self, buffer: PartitionBuffer) -> int:
        """Estimate the size of the next batch of *buffer*, before compression."""
        head = buffer.pending[0]
        if isinstance(head, Batch):
            return len(head.payload)
        return min(buffer.nbytes, self.batch_size)

    def next_due(self) -> float | None:
        """Return when the next buffer is due: 0 for at once, None if none may send."""
        if self._ready:
            return 0.0
        while self._timers:
            due, _, buffer = self._timers[0]
            if buffer in self._open and due == buffer.enqueued_at[0] + self.linger:
                return due
            heapq.heappop(self._timers)
            if buffer.timer == due:
                buffer.timer = None
        return None

    def take(self, buffer: PartitionBuffer) -> Batch | list[Slice]:
        """Return the next batch of *buffer*: a sealed one, or claimed slices for a new one.

        The list is empty if the pending items have expired. In each case, the caller calls
        :meth:`reschedule` afterwards.
        """
        head = buffer.pending[0]
        if isinstance(head, Batch):
            buffer.drop_head()
            return head
        parts: list[Slice] = []
        room, most = self.batch_size, self.batch_messages
        while buffer.pending and most > 0:
            head = buffer.pending[0]
            if not isinstance(head, Slice) or (parts and head.most):
                break
            nbytes, rows = head.nbytes, head.count
            try:
                part = head.claim(room, most, not parts)
            except MemoryError:
                if parts:
                    break  # a smaller batch
                raise
            buffer.nbytes -= nbytes - head.nbytes
            buffer.rows -= rows - head.count
            if part is not None:
                parts.append(part)
                room -= part.nbytes + RECORD_ALLOWANCE * part.count
                most -= part.count
            if head.count:
                break  # the batch is full
            buffer.drop_head()
            if head.most:
                break  # slices of a split batch are sealed alone
        self._ready.discard(buffer)
        return parts


def lingers_since(item: Slice | Batch | Backlog, now: float) -> float:
    """Return since when *item* lingers, which arrives now.

    New messages may have waited in the open chunk: since it was opened. A retry does not linger.
    """
    return item.chunk.opened if isinstance(item, Slice) and not item.level else now


def batcher_for(config: Config, batch_size: int) -> Batcher:
    """Return the batcher of a broker with these settings, and batches of *batch_size* bytes."""
    return Batcher(
        linger=config.linger_ms / 1000,
        batch_size=batch_size,
        batch_messages=config.batch_max_messages,
        # Without sequence numbers: one in flight, and one sealed ahead of the response.
        sealed_limit=config.max_in_flight_requests_per_connection if config.idempotent else 2,
    )
