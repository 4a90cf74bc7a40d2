"""Arrow batches through a producer, and what became of each row.

Blocks are sent one after the other without waiting, as far as ``buffer_memory`` goes, and looked at
in the order in which they were sent. So little is kept of rows that are through, and the first
row that fails ends the write while most of its rows have not been sent.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator
from typing import Any

from pykaproducer._load.refused import Refused, RefusedRow
from pykaproducer._load.summary import Summary
from pykaproducer.block import BlockDelivery
from pykaproducer.errors import BufferFullError
from pykaproducer.producer import Producer

#: Parts of buffer_memory that a block may take: several fit, so that one is filled while others
#: travel.
_SHARE = 4
#: What a row takes beside its payload.
_ROW_COST = 64


class Writer:
    """Sends batches and counts what became of their rows; for one thread."""

    def __init__(
        self, producer: Producer, topic: str | None, refused: Refused, *, ranges: bool = False
    ) -> None:
        self.summary = Summary()
        #: How many rows it was given.
        self.rows = 0
        self._producer = producer
        self._topic = topic
        self._refused = refused
        self._ranges = ranges
        self._room = producer.config.buffer_memory // _SHARE
        # (the block, the number of its first row, its batch if somebody wants it), oldest first
        self._sent: collections.deque[tuple[BlockDelivery, int, Any]] = collections.deque()

    def write(self, batch: Any) -> None:
        """Send the rows of a ``pyarrow.RecordBatch`` with the columns of ``send_arrow()``.

        Raises what *refused* raises for rows that failed, of this batch or of one before.
        """
        for piece in self._pieces(batch):
            self._settle(wait=False)
            self._send(piece, self.rows)
            self.rows += piece.num_rows

    def finish(self) -> Summary:
        """Wait until every row has its outcome; what became of them."""
        self._settle(wait=True)
        self.summary.refused = self._refused.finish()
        return self.summary

    def _pieces(self, batch: Any) -> Iterator[Any]:
        """*batch* in slices that leave room for others."""
        cost = batch.nbytes + batch.num_rows * _ROW_COST
        rows = max(1, batch.num_rows // (cost // self._room + 1))
        for start in range(0, batch.num_rows, rows):
            yield batch.slice(start, rows)

    def _send(self, rows: Any, first: int) -> None:
        """Send *rows*, of which the first has the number *first*.

        The producer takes all of them, or none and names one that can never be right. Then those
        before it go, and it is refused, and we try again behind it. (Those before it may hold
        another: the producer looks at one column after the other. It has four to look at.)
        """
        while rows.num_rows:
            error = self._try(rows, first)
            if error is None:
                return
            bad = error.row
            self._send(rows.slice(0, bad), first)
            self._refused.take(rows, [RefusedRow(first + bad, bad, error)])
            rows, first = rows.slice(bad + 1), first + bad + 1

    def _try(self, rows: Any, first: int) -> Any:
        """Send *rows*, or none of them; the error of one that can never be right, or None."""
        while True:
            try:
                block = self._producer.send_arrow(rows, self._topic)
            except BufferFullError:
                # Not for max_block_ms. What fills the buffer has a deadline, and may be ours.
                if not self._sent:
                    raise
                self._settle_one()
            except (ValueError, TypeError) as error:
                if getattr(error, "row", None) is None:
                    raise
                return error
            else:
                kept = rows if self._refused.wants_rows else None
                self._sent.append((block, first, kept))
                return None

    def _settle(self, *, wait: bool) -> None:
        """Look at the blocks that have their outcome; with *wait*, at all."""
        while self._sent and (wait or self._sent[0][0].done()):
            self._settle_one()

    def _settle_one(self) -> None:
        block, first, batch = self._sent.popleft()
        found = block.outcome()
        self.summary.add_block(found, ranges=self._ranges)
        if found.failed:
            rows = [RefusedRow(first + number, number, error) for number, error in found.failed]
            self._refused.take(batch, rows)
