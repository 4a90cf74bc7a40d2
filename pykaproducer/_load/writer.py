"""Sending of Arrow batches through a producer, with an outcome for each row.

Blocks are sent one after the other without waiting, within the limit of ``buffer_memory``. Their
outcomes are collected in the order of sending or, if many blocks are kept, as they complete. Thus
completed rows do not stay in memory, and a failed row can end the write before most of its rows are
sent.
"""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from pykaproducer._kernel import ROW_COST
from pykaproducer._load.checksum import checksum_of
from pykaproducer._load.refused import RefusedRow, RefusedRowHandler
from pykaproducer._load.summary import Summary
from pykaproducer.block import BlockDelivery
from pykaproducer.errors import BufferFullError, OutcomeTimeoutError
from pykaproducer.producer import Producer

#: Each block takes at most this fraction of buffer_memory, so that one can be filled while others
#: are in flight.
_SHARE = 4
#: Number of rows to send at once after a rejected row.
_CAREFUL = 1_000
#: Maximum wait for an outcome between calls of ``look`` (seconds).
_LOOK = 0.02


class Interrupted(Exception):
    """Raised by ``look`` to end the writer."""


class _SentBlock(NamedTuple):
    """A block whose outcome is pending."""

    block: BlockDelivery
    #: Number of its rows that were accepted; the others are sent again.
    accepted: int
    #: The index of its first row among all rows, and in its batch.
    first: int
    place: int
    #: The rows sent, and their origin; None if not needed.
    rows: Any
    origin: Any
    #: Memory kept for it (bytes).
    size: int


class Writer:
    """Sender of batches that collects the outcomes of their rows. For a single thread."""

    def __init__(
        self,
        producer: Producer,
        topic: str | None,
        refused: RefusedRowHandler,
        *,
        verifiable: bool = False,
        look: Callable[[], None] | None = None,
    ) -> None:
        """Initialize a writer.

        Args:
            producer (Producer): the producer to send with.
            topic (str): topic of all rows; None if column ``topic`` contains it.
            refused (RefusedRowHandler): handler of rows that are not delivered.
            verifiable (bool): record offset ranges and a checksum of delivered rows.
            look: called many times a second during waits; an exception ends the wait.
        """
        self.summary = Summary()
        #: Number of rows passed to :meth:`write`.
        self.rows = 0
        self.look = look
        self._producer = producer
        self._topic = topic
        self._refused = refused
        self._verifiable = verifiable
        self._room = producer.config.buffer_memory // _SHARE
        self._sent: collections.deque[_SentBlock] = collections.deque()
        #: Memory kept for blocks, and its limit, above which the oldest is awaited (bytes).
        self._kept = 0
        self._most_kept = producer.config.buffer_memory

    def write(self, batch: Any, origin: Any = None) -> None:
        """Send the rows of a ``pyarrow.RecordBatch`` with the columns of ``send_arrow()``.

        *origin* is passed to ``refused.take()`` with indices of rows in *batch*; by default it is
        *batch* itself. Exceptions that *refused* raises, for this or a previous batch, propagate.
        """
        start = self.rows
        self.rows += batch.num_rows
        for place, piece in self._pieces(batch):
            if self._refused.ends_the_load:
                return
            self._settle()
            while self._kept > self._most_kept:
                self._wait_a_moment()
            self._send(piece, start, place, batch if origin is None else origin)
        if batch.nbytes > 2 * self._room:
            # The caller reads the next one while it holds this one: not a third in the buffer.
            while self._sent:
                self._wait_a_moment()

    def finish(self) -> Summary:
        """Wait for all outcomes and return the summary."""
        while self._sent:
            self._wait_a_moment()
        self._refused.finish(self.summary)
        return self.summary

    def _pieces(self, batch: Any) -> Iterator[tuple[int, Any]]:
        """Yield slices of *batch* that leave room in the buffer, each with its index."""
        cost = batch.nbytes + batch.num_rows * ROW_COST
        rows = max(1, batch.num_rows // (cost // self._room + 1))
        for place in range(0, batch.num_rows, rows):
            yield place, batch.slice(place, rows)

    def _send(self, rows: Any, start: int, place: int, origin: Any) -> None:
        """Send *rows*, which begin at *place* of a batch that begins at row *start*.

        The producer accepts all of them, or raises an error for one invalid row. In that case the
        rows before it are sent, the row is rejected, and sending continues after it. (The rows
        before it may contain another invalid one, because the producer checks one column after the
        other. There are four columns to check.)
        """
        while rows.num_rows:
            error = self._try(rows, start, place, origin)
            if error is None:
                return
            bad = error.row
            self._send(rows.slice(0, bad), start, place, origin)
            place += bad
            if self._refused.ends_the_load:
                return
            self._refused.take(origin, [RefusedRow(start + place, place, error)])
            if self._refused.ends_the_load:
                return
            rows, place = rows.slice(bad + 1), place + 1
            if rows.num_rows > _CAREFUL:
                # More rows may be invalid, and each makes the producer check all rows after it.
                for skip in range(0, rows.num_rows, _CAREFUL):
                    if self._refused.ends_the_load:
                        return
                    self._send(rows.slice(skip, _CAREFUL), start, place + skip, origin)
                return

    def _try(self, rows: Any, start: int, place: int, origin: Any) -> Any:
        """Send *rows* or none of them. Return the error of an invalid row, or None."""
        while rows.num_rows:
            if self.look is not None:
                self.look()
            try:
                block = self._producer.send_arrow(rows, self._topic)
            except BufferFullError:
                # Wait beyond max_block_ms: the messages in the buffer have a delivery timeout. If
                # none of them are ours, give up.
                if not self._sent:
                    raise
                self._wait_a_moment()
            except (ValueError, TypeError) as error:
                if getattr(error, "row", None) is None:
                    raise
                return error
            else:
                self._add(block, rows, start, place, origin)
                # There was no room for the rest, as for blocks that are larger than the buffer.
                rows, place = rows.slice(block.accepted), place + block.accepted
        return None

    def _add(self, block: BlockDelivery, rows: Any, start: int, place: int, origin: Any) -> None:
        kept = rows if self._verifiable else None
        wanted = origin if self._refused.wants_rows else None
        size = block.accepted * ROW_COST
        if kept is not None or wanted is not None:
            size += rows.nbytes
        self._kept += size
        self._sent.append(
            _SentBlock(block, block.accepted, start + place, place, kept, wanted, size)
        )

    def _settle(self) -> None:
        """Collect the outcomes of completed blocks.

        Do not check only the oldest: its broker may be unresponsive, while other brokers complete
        thousands of later blocks.
        """
        while self._sent and self._sent[0].block.done():
            self._settled(self._sent.popleft())
        if self._kept > self._most_kept // 2:
            self._settle_all_done()

    def _settle_all_done(self) -> None:
        sent, self._sent = self._sent, collections.deque()
        while sent:
            each = sent.popleft()
            if each.block.done():
                self._settled(each)
            else:
                self._sent.append(each)

    def _wait_a_moment(self) -> None:
        """Wait briefly for the oldest block, then collect all completed ones."""
        if self.look is not None:
            self.look()
        with contextlib.suppress(OutcomeTimeoutError):
            self._sent[0].block.outcome(_LOOK)
        self._settle_all_done()

    def _settled(self, sent: _SentBlock) -> None:
        """Record the outcome of a block."""
        self._kept -= sent.size
        found = sent.block.outcome(0)
        failed = [(row, error) for row, error in found.failed if row < sent.accepted]
        self.summary.add_block(found, ranges=self._verifiable)
        if self._verifiable:
            rows = sent.rows.slice(0, sent.accepted)
            self.summary.add_checksum(checksum_of(rows, {row for row, _ in failed}))
        if failed:
            self._refused.take(
                sent.origin,
                [RefusedRow(sent.first + row, sent.place + row, error) for row, error in failed],
            )
