"""The sender of ``produce``: reads lines, sends them in blocks and records their outcomes.

Every line that is read is either delivered or counted as a failure. A failed line is appended to
the rejects file, if there is one, exactly as it was read, in the order of the input.

The input is kept, in order, until its outcome is known (``_Held``), and reading pauses while it
takes twice ``buffer_memory``. So memory is bounded, however long a line is and however long a
partition is unavailable. Everything here runs on the main thread.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import fcntl
import itertools
import operator
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from pykaproducer._errors.formatting import format_partition_numbers
from pykaproducer._kernel import ROW_COST, LineFormat, Lines
from pykaproducer.block import BlockDelivery, BlockMetadata
from pykaproducer.cli._pace import GRACE, LOOK, settle
from pykaproducer.cli._progress import Progress
from pykaproducer.cli._rejects import FailureCounts, RejectsFile
from pykaproducer.cli._signals import Signals
from pykaproducer.cli.common import UserError, notify
from pykaproducer.errors import (
    BufferFullError,
    MetadataTimeoutError,
    OutcomeTimeoutError,
    PykaproducerError,
)
from pykaproducer.producer import Producer

#: Maximum size of a read (bytes).
_PIECE = 1 << 20
#: The size of a pipe, unless it is changed (bytes).
_PIPE = 1 << 16
#: Part of ``buffer_memory`` that the lines of one block may take.
_BLOCKS = 4
#: The parts of a line other than key and value are shorter (bytes).
_OTHER_PARTS = 4096
#: Time for the last outcomes after the producer is closed (seconds).
_REPORTING = 30.0


@dataclass(frozen=True)
class Envelope:
    """Properties shared by all messages, and the format of a line (see ``LineFormat``)."""

    topic: str
    partition: int | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    timestamp_ms: int | None = None
    #: Ends a line; empty if each input is one message.
    delimiter: bytes = b"\n"
    timestamp_separator: bytes | None = None
    headers_separator: bytes | None = None
    key_separator: bytes | None = None
    null: bytes | None = None


class _Place(NamedTuple):
    """A place in the input."""

    name: str = "-"
    #: The number of lines before it; None if the input is one message.
    line: int | None = 0

    def after(self, lines: int) -> _Place:
        """Return the place so many lines later."""
        return self if self.line is None else self._replace(line=self.line + lines)

    def __str__(self) -> str:
        if self.line is None:
            return "standard input" if self.name == "-" else self.name
        line = f"line {self.line + 1:,}"
        return line if self.name == "-" else f"{line} of {self.name}"


class _Held(NamedTuple):
    """A part of the input that is not settled, or that precedes one."""

    #: None if the input is not sent.
    block: BlockDelivery | None
    #: For the rejects: the lines of the block, or bytes to append to them.
    kept: Lines | bytes
    #: Memory that it takes (bytes).
    size: int
    #: Where it begins.
    place: _Place
    #: Whether it continues a line.
    continued: bool = False


class Sender:
    """Sender of lines that records their outcomes."""

    def __init__(
        self,
        envelope: Envelope,
        settings: dict[str, Any],
        signals: Signals,
        rejects: RejectsFile | None,
    ) -> None:
        self.lines = self.size = 0
        self.failures = FailureCounts()
        #: Delivered lines by partition.
        self.partitions: dict[int, int] = collections.defaultdict(int)
        self.topic = envelope.topic
        #: The things that are counted.
        self.unit = "lines" if envelope.delimiter else "files"
        self._envelope = envelope
        self._signals = signals
        self._rejects = rejects
        self._held: collections.deque[_Held] = collections.deque()
        self._held_size = 0
        #: The first line that is neither sent nor refused.
        self._place = _Place()
        self._broken: PykaproducerError | None = None
        # send_many() blocks briefly, so that signals are noticed. Without max_block_ms the wait is
        # unlimited: the messages that fill the buffer have a delivery timeout.
        self._patience_ms: float = settings.get("max_block_ms", float("inf"))
        self._block_ms = min(self._patience_ms, LOOK * 1000)
        self.producer = Producer(**{**settings, "max_block_ms": self._block_ms})
        config = self.producer.config
        self._piece = min(_PIECE, config.buffer_memory // _BLOCKS + 1)
        self._longest = config.max_request_size + _OTHER_PARTS
        # More than the buffer, which is full first unless a partition is slower than the others.
        self._most_held = 2 * config.buffer_memory
        #: In the rejects, what represents a message that is a whole file.
        self._whole: bytes | None = None
        #: Inside a line that is too long.
        self._inside = False
        self._format = LineFormat(
            envelope.delimiter,
            timestamp_separator=envelope.timestamp_separator,
            headers_separator=envelope.headers_separator,
            key_separator=envelope.key_separator,
            null=envelope.null,
            headers=envelope.headers,
            partition=envelope.partition,
            timestamp_ms=envelope.timestamp_ms,
            max_request_size=config.max_request_size,
            buffer_memory=config.buffer_memory,
            room=config.buffer_memory // _BLOCKS,
        )

    @property
    def delivered(self) -> int:
        """Number of delivered lines."""
        return sum(self.partitions.values())

    @property
    def unaccounted(self) -> int:
        """Number of lines without an outcome."""
        return self.lines - self.delivered - self.failures.total

    @property
    def stopped(self) -> bool:
        """Whether sending must stop."""
        # If rejects cannot be written, every further line might be lost.
        full = self._rejects is not None and self._rejects.error is not None
        return self._signals.count > 0 or self._broken is not None or full

    def check_topic(self) -> None:
        """Raise for an invalid topic or partition before any input is read."""
        topic, partition = self._envelope.topic, self._envelope.partition
        try:
            there = self.producer.partitions_for(topic)
        except MetadataTimeoutError:
            return  # the cluster may start, or create the topic, while the messages wait
        except ValueError as error:
            raise UserError(str(error)) from None
        if partition is not None and partition not in there:
            raise UserError(
                f"--partition {partition}: topic {topic!r} has "
                f"{format_partition_numbers(max(there) + 1)}"
            )

    # Reading --------------------------------------------------------------------------------------

    def send_from(self, fd: int, name: str, shown: Progress, expected: int | None = None) -> None:
        """Send every line of *fd*, or all of it as one message, to be kept by its *name*.

        *expected*: the size of a regular file, which may have become shorter since.
        """
        end = self._envelope.delimiter[-1:]
        self._whole = None if end else os.fsencode(name) + b"\n"
        self._inside = False
        self._place = _Place(name, 0 if end else None)
        parts: list[bytes] = []
        size = 0
        for piece in self._pieces(fd, shown, expected or 0):
            parts.append(piece)
            size += len(piece)
            # Joined only if a line may end in this piece, or is too long.
            if size > self._longest or (end and end in piece):
                parts = [self._send(b"".join(parts))]
                size = len(parts[0])
                if self._inside and not end:
                    return
        if parts or not end:
            self._send(b"".join(parts), last=True)

    def unread(self, name: str, why: str, *, begun: bool) -> str:
        """Return a text on an input that cannot be read to its end. Keep its name, if it is kept.

        *begun*: it was opened.
        """
        if self._envelope.delimiter:
            return f"{why}: only a part of it was read" if begun else why
        self._whole, self._place = os.fsencode(name) + b"\n", _Place(name, None)
        self._refuse(why, b"")
        return why

    def _pieces(self, fd: int, shown: Progress, size: int) -> Iterator[bytes]:
        """Yield data as it arrives, until the end of *fd* or until sending must stop.

        *size*: of a regular file, which had that size before. Raises OSError if it has less now. (A
        file of the system may have less than its size.)
        """
        while not self.stopped:
            if self._held_size > self._most_held:
                self._wait()
            elif not self._signals.readable(fd, LOOK if self._held else None):
                self._record()
            elif piece := os.read(fd, self._piece):
                if len(piece) == _PIPE:
                    _enlarge(fd, self._piece)
                self.size += len(piece)
                shown.advance(len(piece))
                yield piece
            elif os.fstat(fd).st_size < size:  # the last line may be cut
                raise OSError(errno.ENODATA, "became shorter while it was read")
            else:
                return

    def _send(self, data: bytes, *, last: bool = False) -> bytes:
        """Send the lines of *data*, and return the beginning of one that is not complete."""
        start = self._pass_over(data, 0, last) if self._inside else 0
        while not self._inside:
            lines = self._format.split(data, start, last)
            if not self._admit(lines):
                self._keep_unsent(data[start:])
                return b""
            start = lines.resume
            if lines.error is not None:
                self._refuse(lines.error, data[lines.end : start])
            if start == len(data) or (not lines and lines.error is None):
                break
        if len(data) - start > self._longest:
            self._refuse(self._format.too_long, b"")
            self._inside = True
            start = self._pass_over(data, start, last)
        return data[start:]

    def _pass_over(self, data: bytes, start: int, last: bool) -> int:
        """Keep a line that is too long, which continues at *start*. Return where it ends."""
        delimiter = self._envelope.delimiter
        end = data.find(delimiter, start) if delimiter else -1
        self._inside = end < 0
        if end >= 0:
            end += len(delimiter)
        else:  # the delimiter may have begun
            end = len(data) if last else max(start, len(data) - max(len(delimiter) - 1, 0))
        if self._whole is None:
            self._hold(None, data[start:end], continued=True)
        return end

    def _admit(self, lines: Lines) -> bool:
        """Send *lines*. Return false if sending must stop and they were not sent."""
        if not lines:
            return not self.stopped
        block, waited = None, 0.0
        while not self.stopped:
            try:
                block = self.producer.send_many(self.topic, lines.columns)
            except BufferFullError as error:
                waited += self._block_ms
                self._record()
                if waited < self._patience_ms:
                    continue
                self.failures.add(error, len(lines), str(self._place))
            except PykaproducerError as error:
                self._broken = error
                return False
            self.lines += len(lines)
            lines.columns = None  # not needed any more
            kept = lines if block is not None else lines.raw(0, len(lines))
            size = lines.end - lines.start + len(lines) * ROW_COST
            self._hold(block, self._whole or kept, size)
            self._place = self._place.after(len(lines))
            self._record()
            return True
        return False

    # Outcomes -------------------------------------------------------------------------------------

    def _hold(
        self,
        block: BlockDelivery | None,
        kept: Lines | bytes,
        size: int = 0,
        *,
        continued: bool = False,
    ) -> None:
        """Append a part of the input to those whose outcomes are awaited."""
        if self._rejects is None:
            kept = b""
        if block is not None or kept:
            size = size or len(kept) + ROW_COST
            self._held.append(_Held(block, kept, size, self._place, continued))
            self._held_size += size

    def _refuse(self, why: str, data: bytes) -> None:
        """Count a line that cannot be sent, and keep it."""
        self.lines += 1
        self.failures.add(why, first=str(self._place))
        self._hold(None, self._whole or data)
        self._place = self._place.after(1)

    def _keep_unsent(self, data: bytes) -> None:
        """Count and keep lines that were read but are not sent, because sending has stopped."""
        if not data:
            return
        count = 1
        if self._whole is None:
            lines = data.split(self._envelope.delimiter)
            count = len(lines) - (not lines[-1])
        self.lines += count
        self.failures.add(str(self._broken or "read, but not sent"), count, str(self._place))
        self._hold(None, self._whole or data)

    def _wait(self) -> None:
        """Wait briefly for the oldest outcomes."""
        self._record()
        if self._held:
            block = self._held[0].block
            assert block is not None, "otherwise it has been recorded"
            with contextlib.suppress(OutcomeTimeoutError):
                block.outcome(LOOK)
            self._record()

    def _record(self) -> None:
        """Record the outcomes that are known, up to the first one that is not."""
        while self._held:
            block, kept, size, place, continued = self._held[0]
            if block is None:
                assert self._rejects is not None, "it keeps nothing else"
                assert isinstance(kept, bytes), "lines belong to a block"
                self._rejects.write(kept, continued=continued)
            elif not block.done():
                return
            else:
                self._count(block.outcome(0), kept, place)
            self._held.popleft()
            self._held_size -= size

    def _count(self, outcome: BlockMetadata, kept: Lines | bytes, place: _Place) -> None:
        """Count the outcomes of a block that begins at *place*, and keep its failed lines."""
        for partition, delivered in outcome.delivered.items():
            self.partitions[partition.partition] += delivered.rows
        for error, failed in itertools.groupby(outcome.failed, operator.itemgetter(1)):
            rows = [row for row, _ in failed]
            self.failures.add(error, len(rows), str(place.after(rows[0])))
            if self._rejects is not None:
                for row in rows:
                    self._rejects.write(kept if isinstance(kept, bytes) else kept.raw(row, row + 1))

    # Completion -----------------------------------------------------------------------------------

    def settle(self, shown: Progress) -> None:
        """Wait for all outcomes, or for a few seconds after a signal."""

        def poll() -> None:
            self._record()
            shown.waiting(self.unaccounted)

        # Failures are raised when there are no more outcomes to wait for.
        settle(self.producer, self._signals, self._announce_end, poll)
        self._record()

    def _announce_end(self) -> None:
        notify(
            f"stopping: waiting up to {GRACE:.0f} s for {self.unaccounted:,} pending {self.unit}; "
            f"interrupt again to abandon them"
        )

    def close(self) -> None:
        """Abandon pending messages, and write the remaining rejects."""
        self.producer.close(timeout=0)
        end = time.monotonic() + _REPORTING
        while self._held and time.monotonic() < end:
            self._wait()
        if self._rejects is not None:
            self._rejects.close()


def _enlarge(pipe: int, size: int) -> None:
    """Let a pipe that was full hold as much as is read at a time, where that is possible."""
    with contextlib.suppress(AttributeError, OSError):
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, size)
