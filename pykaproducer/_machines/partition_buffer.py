"""Partition buffers: the records of one partition in one broker's worker.

A :class:`PartitionBuffer` attaches one partition to one broker's worker. Slices wait in it until
the :class:`~pykaproducer._kernel.Batcher` finds that a batch is due. When a buffer has
failed, everything in it is returned for a retry, its :class:`~pykaproducer._machines.batch.Chaser`
last.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable

from pykaproducer._kernel import BufferState, Slice
from pykaproducer._machines.backlog import Backlog
from pykaproducer._machines.batch import Batch, Chaser
from pykaproducer._machines.sequencing import Sequencer

#: Smaller buffers are not searched for settled items after the first live one.
_FEW_ITEMS = 64
#: A backlog is at the front of a buffer, after a few sealed batches and one slice at most.
_FRONT = 8


class PartitionBuffer(BufferState):
    """Records of one partition in one broker's worker, which alone uses it once attached."""

    __slots__ = ("_search_at", "soon")

    sequencer: Sequencer
    pending: deque[Slice | Batch | Backlog]
    unanswered: list[Batch]
    failed: list[Slice | Batch]
    chaser: Chaser | None

    def __init__(self, topic: str, partition: int, sequencer: Sequencer) -> None:
        super().__init__(topic, partition, sequencer)
        # When ``pending`` has this many items, all of it is searched for settled ones.
        self._search_at = _FEW_ITEMS
        #: How long a retry that needs no backoff has to wait all the same (seconds).
        self.soon = 0.0

    def unpack(self) -> None:
        """If a backlog is at the front, put its first slice before it."""
        pending, enqueued_at = self.pending, self.enqueued_at
        while pending and isinstance(backlog := pending[0], Backlog):
            if not backlog:
                pending.popleft()
                enqueued_at.popleft()
                continue
            part = backlog.popleft()
            if backlog:
                enqueued_at.appendleft(enqueued_at[0])
            else:
                pending.popleft()
            pending.appendleft(part)

    def unsealed(self) -> list[Slice]:
        """Return the pending slices that are not in a batch, oldest first."""
        parts: list[Slice] = []
        for item in self.pending:
            if isinstance(item, Backlog):
                parts += item.slices()
            elif isinstance(item, Slice):
                parts.append(item)
        return parts

    def sweep(self) -> None:
        """Remove settled slices and unneeded batches, after rows have expired."""
        self.drop_unneeded()
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
        self.enqueued_at.clear()
        self.nbytes = self.rows = 0
        for item, enqueued_at in kept:
            self.add(item, enqueued_at)
        self._search_at = max(_FEW_ITEMS, 2 * len(kept))

    def put_back(self, batch: Batch) -> None:
        """Put *batch*, which was sealed but not sent, before the pending items."""
        self.unanswered.remove(batch)
        self.pending.appendleft(batch)
        self.enqueued_at.appendleft(0.0)

    def unseal_stale_epoch(self, batch: Batch) -> list[Slice] | None:
        """Return the slices of *batch*, to be sealed again in its place; None if unsafe.

        *batch* has just been taken, and the partition's epoch was bumped after it was sealed:

        1. Batches 1 and 2 are retried; 2 waits for 1.
        2. 1 is rejected, gets a new epoch, and is appended.
        3. 2 is next, with the old epoch: the broker would reject it, and append 3 before it.
        """
        if batch.possibly_persisted or self._is_overtaken(batch):
            return None
        return batch.unseal()

    def answered(self, batch: Batch) -> bool:
        """Remove *batch*, answered or lost. Return whether an older batch is still unresolved."""
        older = (
            bool(self.failed) or self.invalid_from is not None or self.unanswered[0] is not batch
        )
        self.unanswered.remove(batch)
        return older

    def fail(self, *items: Slice | Batch, needs_backoff: bool = False) -> None:
        """Mark the buffer as failed: everything in it is retried.

        *items*, just answered, are retried before the pending ones. *needs_backoff*: whether the
        retry has to wait.
        """
        self.failing = True
        self.failed.extend(items)
        self.needs_backoff |= needs_backoff

    def end(self, chaser: Chaser) -> None:
        """Detach the partition: everything is returned, and the *chaser* last."""
        self.chaser = chaser
        self.failing = True

    def invalidate_sequences(self, *, id_too: bool = False) -> None:
        """Invalidate the sequence numbers from a batch just answered on: it will not be in the log.

        Batches that failed before it keep their numbers: they may be in the log, and the broker
        recognises them by these numbers. *id_too*: the producer id is invalid as well.
        """
        if self.invalid_from is None:
            self.invalid_from = len(self.failed)
        self.sequencer.invalidate_sequences(id_too=id_too)

    def drain_for_retry(self) -> tuple[list[Batch | Backlog | Chaser], list[Batch]]:
        """Remove all items; return ``(retried, ambiguous)``: those to retry, and those to fail.

        *retried*: oldest first, all of one level, higher than before, the chaser last.
        *ambiguous*: batches with invalid sequence numbers that cannot be sealed again. Some may be
        in the log, and a retry could duplicate them. Others were overtaken by a younger batch (a
        broker that has forgotten the producer accepts any number), and a retry would reorder them.

        Both are empty while a batch is in flight: its response decides whether it is retried
        before the others.
        """
        if not self.failing or self.unanswered:
            return [], []
        items, ambiguous = self._sort_out()
        retried = self._joined(items)
        self.failed.clear()
        self.pending.clear()
        self.enqueued_at.clear()
        self.nbytes = self.rows = 0
        self._search_at = _FEW_ITEMS
        self.invalid_from = None
        # Later items wait for these, and need no backoff themselves.
        self.needs_backoff, self.soon = False, 0.0
        chaser, self.chaser = self.chaser, None
        return [*retried, *([] if chaser is None else [chaser])], ambiguous

    def _sort_out(self) -> tuple[list[Slice | Batch | Backlog], list[Batch]]:
        """Return the items to retry and the ambiguous batches, each oldest first.

        The youngest item is examined first, as older settled batches may be needed only because of
        it.
        """
        retried: list[Slice | Batch | Backlog] = []
        ambiguous: list[Batch] = []
        items = [*self.failed, *self.pending]
        for position in reversed(range(len(items))):
            item = items[position]
            valid = self.invalid_from is None or position < self.invalid_from
            if not isinstance(item, Batch):
                retried.append(item)
            elif item.sequenced and valid:
                if not self._drop_if_unneeded(item):
                    retried.append(item)
            elif item.sequenced and (item.possibly_persisted or self._is_overtaken(item)):
                ambiguous.append(item)
            else:
                if item.sequenced:
                    self.sequencer.missing(*item.numbered)
                retried.extend(reversed(item.unseal()))
        return retried[::-1], ambiguous[::-1]

    def drop_batches(self) -> None:
        """Drop the sealed batches at the front, which belong to a transaction that has ended."""
        while self.pending and isinstance(self.pending[0], Batch):
            self.pending.popleft()
            self.enqueued_at.popleft()
        self.unpack()
        self.sweep()

    def drop_unneeded(self) -> bool:
        """Drop the settled batches at the front that no younger batch needs.

        Return whether there were any. If so, the partition's sequence numbers may be stale.
        """
        front = itertools.takewhile(lambda item: isinstance(item[0], Batch), self._in_order())
        batches = list(front)
        kept = [
            (batch, enqueued_at)
            for batch, enqueued_at in reversed(batches)  # the youngest first
            if not (isinstance(batch, Batch) and self._drop_if_unneeded(batch))
        ]
        if len(kept) == len(batches):
            return False
        for _ in batches:
            self.pending.popleft()
            self.enqueued_at.popleft()
        self.unpack()
        for batch, enqueued_at in kept:
            self.pending.appendleft(batch)
            self.enqueued_at.appendleft(enqueued_at)
        return True

    def _in_order(self) -> Iterable[tuple[Slice | Batch | Backlog, float]]:
        return zip(self.pending, self.enqueued_at, strict=True)

    def drop_ahead(self, batch: Batch) -> bool:
        """Drop *batch*, sealed but not sent, if it is not needed; return whether it was dropped."""
        if not self._drop_if_unneeded(batch):
            return False
        self.unanswered.remove(batch)
        return True

    def _drop_if_unneeded(self, batch: Batch) -> bool:
        if not batch.is_settled:
            return False
        if batch.sequenced:
            if self.sequencer.is_needed(*batch.numbered):
                return False
            self.sequencer.drop(*batch.numbered)
        return True

    def _joined(self, items: list[Slice | Batch | Backlog]) -> list[Batch | Backlog]:
        """Raise *items* to one level; join adjacent slices into backlogs, without settled ones."""
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
    """Return whether *item* is settled. A sealed batch always counts as needed."""
    if isinstance(item, Backlog):
        item.sweep()
        return not item
    return isinstance(item, Slice) and item.is_settled
