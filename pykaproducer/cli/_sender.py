"""The sender of ``produce``: reads lines, sends them and records their outcomes.

Every line that is read is either delivered or counted as a failure. A failed line is appended to
the rejects file, if there is one, exactly as it was read. Rejects are in the order of the input,
except that those of different partitions may be reordered.
"""

from __future__ import annotations

import collections
import functools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from pykaproducer._errors.formatting import format_partition_numbers
from pykaproducer.cli._lines import Fragment, Lines, pieces, split
from pykaproducer.cli._pace import GRACE, LOOK, wait_for_callbacks
from pykaproducer.cli._progress import Progress
from pykaproducer.cli._rejects import FailureCounts, RejectsFile
from pykaproducer.cli._signals import Signals
from pykaproducer.cli.common import UserError, notify
from pykaproducer.delivery import Delivery
from pykaproducer.errors import (
    BufferFullError,
    FlushTimeoutError,
    MessageTooLargeError,
    MetadataTimeoutError,
    PykaproducerError,
)
from pykaproducer.producer import Producer


@dataclass(frozen=True)
class Envelope:
    """Properties shared by all messages."""

    topic: str
    partition: int | None = None
    headers: list[tuple[str, bytes]] | None = None
    #: Separator of key and value; None if the lines contain no keys.
    separator: bytes | None = None


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
        #: Delivered lines by partition. Written by callbacks only.
        self.partitions: dict[int | None, int] = collections.defaultdict(int)
        self.topic = envelope.topic
        self._envelope = envelope
        self._signals = signals
        self._rejects = rejects
        # Lines read but not sent. They follow all sent lines in the rejects file.
        self._unsent: list[bytes] = []
        # A last line without terminator, written last: data after it would become part of it.
        self._unterminated = b""
        self._broken: PykaproducerError | None = None
        # send() blocks briefly, so that signals are noticed. Without max_block_ms the wait is
        # unlimited: the messages that fill the buffer have a delivery timeout.
        self._patience_ms: float = settings.get("max_block_ms", float("inf"))
        self._block_ms = min(self._patience_ms, LOOK * 1000)
        self.producer = Producer(**{**settings, "max_block_ms": self._block_ms})
        self._longest = self.producer.config.max_request_size + len(envelope.separator or b"")

    @property
    def delivered(self) -> int:
        """Number of delivered lines."""
        return sum(list(self.partitions.values()))

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

    def send_from(self, fd: int, shown: Progress, *, last: bool) -> None:
        """Send every line of *fd*; *last* means that no other input follows."""
        for item in split(self._read(fd, shown), self._longest):
            if isinstance(item, Fragment):
                self._keep_fragment(item)
            else:
                self._send(item, last)

    def _read(self, fd: int, shown: Progress) -> Iterator[bytes]:
        for piece in pieces(fd, self._signals):
            self.size += len(piece)
            shown.advance(len(piece))
            yield piece
            if self.stopped:
                return

    def _send(self, item: Lines, last: bool) -> None:
        self.lines += len(item.lines)
        if self.stopped:
            self._keep_unsent(item.lines, b"\n" if item.terminated else b"")
            return
        # The unterminated last line of a file gets a terminator if other files follow.
        end, report = (b"", self._report_last) if last else (b"\n", self._report)
        if item.terminated:
            end, report = b"\n", self._report
        topic, separator, send = self._envelope.topic, self._envelope.separator, self.producer.send
        more = (self._envelope.headers, self._envelope.partition)
        rest = iter(item.lines)
        for line in rest:
            key, value = None, line
            if separator is not None:
                before, found, after = line.partition(separator)
                if found:
                    key, value = before, after
            try:
                send(topic, value, key, *more, on_delivery=report)
            except PykaproducerError as error:
                again = functools.partial(send, topic, value, key, *more, on_delivery=report)
                if not self._insist(again, line + end, error):
                    self._keep_unsent([line, *rest], end)
                    return

    def _insist(self, again: Callable[[], object], line: bytes, error: PykaproducerError) -> bool:
        """Retry a line that was not accepted, as long as a retry may help.

        Return false if sending must stop and this line was not sent.
        """
        waited = 0.0
        while isinstance(error, BufferFullError):
            if self.stopped:
                return False
            waited += self._block_ms
            if waited >= self._patience_ms:
                self._fail(error, line)
                return True
            try:
                again()
                return True
            except PykaproducerError as another:
                error = another
        if not isinstance(error, MessageTooLargeError):
            self._broken = error
            return False
        self.failures.add(error)
        self._keep_in_order(line)
        return True

    # Undelivered lines ----------------------------------------------------------------------------

    def _report(self, error: BaseException | None, delivery: Delivery) -> None:
        if error is None:
            self.partitions[delivery.partition] += 1
        else:
            self._fail(error, self._line_of(delivery) + b"\n")

    def _report_last(self, error: BaseException | None, delivery: Delivery) -> None:
        if error is None:
            self.partitions[delivery.partition] += 1
        else:
            self._unterminated = self._line_of(delivery)
            self.failures.add(error)

    def _line_of(self, delivery: Delivery) -> bytes:
        """Return the line that a message was made of, without its terminator."""
        value = delivery.value or b""
        if delivery.key is None or self._envelope.separator is None:
            return value
        return delivery.key + self._envelope.separator + value

    def _fail(self, error: BaseException, line: bytes) -> None:
        if self._rejects is not None:
            self._rejects.write(line)
        self.failures.add(error)

    def _keep_fragment(self, item: Fragment) -> None:
        if item.first:
            self.lines += 1
            self.failures.add(
                MessageTooLargeError(
                    f"topic {self._envelope.topic!r}: a line is longer than max_request_size, "
                    f"which is {self.producer.config.max_request_size}"
                )
            )
        self._keep_in_order(item.data)

    def _keep_in_order(self, data: bytes) -> None:
        """Append *data* to the rejects, after the rejects among all previous lines."""
        if self._rejects is None:
            return
        if self._settled():
            self._rejects.write(data)
        else:
            self._unsent.append(data)

    def _keep_unsent(self, lines: list[bytes], end: bytes) -> None:
        """Record *lines* that were read but are not sent because sending has stopped."""
        self.failures.add(str(self._broken or "read, but not sent"), len(lines))
        if self._rejects is not None:
            self._unsent.append(b"\n".join(lines) + end)

    # Completion -----------------------------------------------------------------------------------

    def settle(self, shown: Progress) -> None:
        """Wait for all outcomes, or for a few seconds after a signal."""
        if not self._settled(shown):
            self._settle_soon()

    def close(self) -> None:
        """Abandon pending messages, and write the remaining rejects."""
        self.producer.close(timeout=0)
        wait_for_callbacks(lambda: not self.unaccounted)
        if self._rejects is not None:
            for data in (*self._unsent, self._unterminated):
                self._rejects.write(data)
            self._rejects.close()

    def _settled(self, shown: Progress | None = None) -> bool:
        """Wait for all outcomes. Return false if a signal arrives first."""
        while not self._signals.count:
            try:
                self.producer.flush(LOOK)
            except FlushTimeoutError as error:
                if shown is not None:
                    shown.waiting(error.pending)
            else:
                return True
        return False

    def _settle_soon(self) -> None:
        """Wait for all outcomes after a signal, until a timeout or another signal."""
        notify(
            f"stopping: waiting up to {GRACE:.0f} s for {self.unaccounted:,} pending lines; "
            f"interrupt again to abandon them"
        )
        count, deadline = self._signals.count, time.monotonic() + GRACE
        while self._signals.count == count and time.monotonic() < deadline:
            try:
                self.producer.flush(LOOK)
            except FlushTimeoutError:
                continue
            return
