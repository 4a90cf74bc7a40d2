"""Arrow batches through a producer, and what became of each row.

Blocks are sent one after the other without waiting, as far as ``buffer_memory`` goes, and looked at
when they have their outcome: in the order in which they were sent, or, once much is kept, as they
come. So little is kept of rows that are through, and a row that fails can end the write while most
of its rows have not been sent.
"""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from pykaproducer._load.checksum import checksum_of
from pykaproducer._load.refused import Refused, RefusedRow
from pykaproducer._load.summary import Summary
from pykaproducer.block import BlockDelivery
from pykaproducer.errors import BufferFullError, OutcomeTimeoutError
from pykaproducer.producer import Producer

#: Parts of buffer_memory that a block may take: several fit, so that one is filled while others
#: travel.
_SHARE = 4
#: What a row takes beside its payload.
_ROW_COST = 64
#: Rows that are sent at once behind one that was refused.
_CAREFUL = 1_000
#: How long to wait for an outcome before somebody is asked whether to go on (seconds).
_LOOK = 0.02


class Interrupted(Exception):
    """The writer is to end now: for ``look`` to raise."""


class _Sent(NamedTuple):
    """A block under way."""

    block: BlockDelivery
    #: How many of its rows were accepted; the others are sent again.
    accepted: int
    #: The number of its first row among all rows, and in its batch.
    first: int
    place: int
    #: What was sent, and what it was made of; None if nobody wants them.
    rows: Any
    origin: Any
    #: What is kept of it, in bytes.
    size: int


class Writer:
    """Sends batches and counts what became of their rows; for one thread."""

    def __init__(
        self,
        producer: Producer,
        topic: str | None,
        refused: Refused,
        *,
        verifiable: bool = False,
        look: Callable[[], None] | None = None,
    ) -> None:
        """A writer.

        Args:
            producer (Producer): whose buffer it may fill.
            topic (str): for all rows; None: column ``topic`` says it.
            refused (Refused): takes the rows that are not delivered.
            verifiable (bool): keep the ranges of offsets and a checksum of what was delivered.
            look: called many times a second while it waits; what it raises ends the wait.
        """
        self.summary = Summary()
        #: How many rows it was given.
        self.rows = 0
        self.look = look
        self._producer = producer
        self._topic = topic
        self._refused = refused
        self._verifiable = verifiable
        self._room = producer.config.buffer_memory // _SHARE
        self._sent: collections.deque[_Sent] = collections.deque()
        #: What they keep, and the most that they may before the oldest is waited for (bytes).
        self._kept = 0
        self._most_kept = producer.config.buffer_memory

    def write(self, batch: Any, origin: Any = None) -> None:
        """Send the rows of a ``pyarrow.RecordBatch`` with the columns of ``send_arrow()``.

        *origin* is handed to ``refused.take()`` with the numbers of rows in *batch*; by default it
        is *batch* itself. Raises what *refused* raises for rows of this batch or of one before.
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

    def finish(self) -> Summary:
        """Wait until every row has its outcome; what became of them."""
        while self._sent:
            self._wait_a_moment()
        self._refused.finish(self.summary)
        return self.summary

    def _pieces(self, batch: Any) -> Iterator[tuple[int, Any]]:
        """*batch* in slices that leave room for others, with the place of each."""
        cost = batch.nbytes + batch.num_rows * _ROW_COST
        rows = max(1, batch.num_rows // (cost // self._room + 1))
        for place in range(0, batch.num_rows, rows):
            yield place, batch.slice(place, rows)

    def _send(self, rows: Any, start: int, place: int, origin: Any) -> None:
        """Send *rows*, which begin at *place* of a batch that begins at row *start*.

        The producer takes all of them, or none and names one that can never be right. Then those
        before it go, and it is refused, and we try again behind it. (Those before it may hold
        another: the producer looks at one column after the other. It has four to look at.)
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
                # Where one is wrong others may be: each would have all behind it looked at again.
                for skip in range(0, rows.num_rows, _CAREFUL):
                    if self._refused.ends_the_load:
                        return
                    self._send(rows.slice(skip, _CAREFUL), start, place + skip, origin)
                return

    def _try(self, rows: Any, start: int, place: int, origin: Any) -> Any:
        """Send *rows*, or none of them; the error of one that can never be right, or None."""
        while rows.num_rows:
            if self.look is not None:
                self.look()
            try:
                block = self._producer.send_arrow(rows, self._topic)
            except BufferFullError:
                # Not for max_block_ms. What fills the buffer has a deadline, and may be ours.
                if not self._sent:
                    raise
                self._wait_a_moment()
            except (ValueError, TypeError) as error:
                if getattr(error, "row", None) is None:
                    raise
                return error
            else:
                self._add(block, rows, start, place, origin)
                # The rest found no room. (A block that the buffer cannot hold goes in by pieces.)
                rows, place = rows.slice(block.accepted), place + block.accepted
        return None

    def _add(self, block: BlockDelivery, rows: Any, start: int, place: int, origin: Any) -> None:
        kept = rows if self._verifiable else None
        wanted = origin if self._refused.wants_rows else None
        size = block.accepted * _ROW_COST
        if kept is not None or wanted is not None:
            size += rows.nbytes
        self._kept += size
        self._sent.append(_Sent(block, block.accepted, start + place, place, kept, wanted, size))

    def _settle(self) -> None:
        """Look at the blocks that have their outcome.

        Not only at the oldest: its broker may be silent, while others bring the outcomes of
        thousands of blocks behind it.
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
        """Wait for the oldest block, but not for long; then look at all."""
        if self.look is not None:
            self.look()
        with contextlib.suppress(OutcomeTimeoutError):
            self._sent[0].block.outcome(_LOOK)
        self._settle_all_done()

    def _settled(self, sent: _Sent) -> None:
        """Count what became of a block."""
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
