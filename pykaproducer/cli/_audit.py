"""The checks of ``verify``: compare messages as sent, as reported and as found in the log."""

from __future__ import annotations

import itertools
import random
import threading
from array import array
from collections import Counter
from collections.abc import Sequence

from pykaproducer.cli._ledger import Ledger, ReportedOutcome
from pykaproducer.cli._readback import Record
from pykaproducer.cli._rejects import FailureCounts
from pykaproducer.delivery import Delivery
from pykaproducer.errors import DeliveryError, Status

#: The header that marks the messages of a run.
HEADER = "pykaproducer-verify"
#: Maximum number of examples listed per defect; all are counted.
_EXAMPLES = 3
#: Length of the message number at the beginning of a value (bytes).
_NUMBER = 8

#: All defects, with their descriptions.
DEFECTS = {
    "lost": "reported as delivered, but not in the log",
    "duplicated": "in the log more than once",
    "out_of_order": "in the log after a message that was sent later",
    "corrupted": "in the log with a different value or key",
    "denied": "reported as not written, but in the log",
    "split_keys": "in a different partition than other messages with the same key",
    "misplaced": "reported with offsets that differ from the log",
    "reported_twice": "reported more than once",
    "without_outcome": "never reported",
}


class Messages:
    """Numbered messages, whose key and value are derived from the number."""

    def __init__(self, run: str, size: int, keys: int) -> None:
        self.headers = [(HEADER, run.encode())]
        self.keys = keys
        self._size = max(0, size - _NUMBER)
        # A value is a window into these bytes, at a position derived from the number.
        self._letters = random.Random(run).randbytes(self._size + 4096)

    def key(self, number: int) -> bytes | None:
        """Return the key of a message, or None if the messages have no keys."""
        return b"%d" % (number % self.keys) if self.keys else None

    def value(self, number: int) -> bytes:
        """Return the value of a message: its number, followed by bytes derived from it."""
        place = number & 4095
        return number.to_bytes(_NUMBER, "big") + self._letters[place : place + self._size]

    @staticmethod
    def number(value: bytes | None) -> int:
        """Return the message number in *value*, or -1 if there is none."""
        return int.from_bytes(value[:_NUMBER], "big") if value and len(value) >= _NUMBER else -1


class Audit:
    """Counter of defects; call :meth:`report` while sending and :meth:`look` while reading."""

    def __init__(self, messages: Messages) -> None:
        self.messages = messages
        self.ledger = Ledger()
        self.failures = FailureCounts()
        self.sent = self.found = 0
        #: Records of other producers, or of other runs.
        self.foreign = 0
        self.defects: Counter[str] = Counter(dict.fromkeys(DEFECTS, 0))
        self.examples: dict[str, list[str]] = {}
        self.by_partition: Counter[int] = Counter()
        self._header = messages.headers[0]
        # Outcomes are recorded by callbacks, and by the sender for messages not accepted.
        self._lock = threading.Lock()
        self._last: dict[int, int] = {}
        # The partition of each key; -1 if not yet known.
        self._homes = array("i", itertools.repeat(-1, messages.keys))
        # Sums of hashes of (number, partition, offset), as reported and as found.
        self._reported_places = self._found_places = 0
        self._without_offset = 0

    @property
    def reported(self) -> int:
        """Number of messages that have an outcome."""
        return sum(self.ledger.counts.values())

    def report(self, error: BaseException | None, delivery: Delivery) -> None:
        """Record the outcome of an accepted message (a delivery callback)."""
        number = Messages.number(delivery.value)
        if error is not None:
            self.refuse(number, error)
            return
        self._record(number, ReportedOutcome.DELIVERED)
        if delivery.partition is None or delivery.offset is None or delivery.offset < 0:
            self._without_offset += 1
        else:
            self._reported_places += _place(number, delivery.partition, delivery.offset)

    def refuse(self, number: int, error: BaseException) -> None:
        """Record that a message failed or was never accepted."""
        status = error.status if isinstance(error, DeliveryError) else Status.NOT_PERSISTED
        self._record(
            number,
            ReportedOutcome.NOT_WRITTEN
            if status is Status.NOT_PERSISTED
            else ReportedOutcome.AMBIGUOUS,
        )
        self.failures.add(error)

    def _record(self, number: int, outcome: ReportedOutcome) -> None:
        with self._lock:
            if not self.ledger.report(number, outcome):
                self._count("reported_twice", f"message {number}")

    def look(self, record: Record) -> None:
        """Check one record of the log. Records of a partition must arrive in log order."""
        if self._header not in record.headers:
            self.foreign += 1
            return
        self.found += 1
        partition, offset = record.partition, record.offset
        self.by_partition[partition] += 1
        number = Messages.number(record.value)
        where = f"partition {partition}, offset {offset}"
        if (
            not 0 <= number < self.sent
            or record.value != self.messages.value(number)
            or record.key != self.messages.key(number)
        ):
            self._count("corrupted", where)
            return
        outcome, before = self.ledger.find(number)
        if before:
            self._count("duplicated", f"message {number}: {where}")
            return
        if outcome is ReportedOutcome.DELIVERED:
            self._found_places += _place(number, partition, offset)
        elif outcome is ReportedOutcome.NOT_WRITTEN:
            self._count("denied", f"message {number}: {where}")
        last = self._last.get(partition, -1)
        if number < last:
            self._count("out_of_order", f"message {number} after {last}: {where}")
        else:
            self._last[partition] = number
        self._check_home(number, partition)

    def _check_home(self, number: int, partition: int) -> None:
        if not self._homes:
            return
        key = number % len(self._homes)
        home = self._homes[key]
        if home < 0:
            self._homes[key] = partition
        elif home != partition:
            self._count(
                "split_keys", f"key {key}: message {number} in {partition}, before in {home}"
            )

    def finish(self) -> None:
        """Count the defects that are known only after the whole log has been read."""
        for number in self.ledger.lost():
            self._count("lost", f"message {number}")
        self.defects["without_outcome"] = self.sent - self.reported
        # These defects make the sums differ as well, and are reported already.
        clean = not any(self.defects[each] for each in ("lost", "duplicated", "corrupted"))
        if (
            clean
            and not self._without_offset
            and (self._reported_places - self._found_places) % 2**64
        ):
            self._count("misplaced", "some")

    def _count(self, defect: str, example: str) -> None:
        self.defects[defect] += 1
        examples = self.examples.setdefault(defect, [])
        if len(examples) < _EXAMPLES:
            examples.append(example)


def _place(*numbers: int) -> int:
    """Hash a message's location; equal sums of these imply equal locations."""
    return hash(numbers)


def defect_lines(audit: Audit) -> Sequence[str]:
    """Describe each kind of defect that was found, one line per kind."""
    return [
        f"{audit.defects[each]:,} {each.replace('_', ' ')} ({text})"
        + (f": {'; '.join(audit.examples[each])}" if each in audit.examples else "")
        for each, text in DEFECTS.items()
        if audit.defects[each]
    ]
