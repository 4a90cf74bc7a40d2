"""What ``verify`` holds against each other: numbered messages as they were sent, told of, found."""

from __future__ import annotations

import itertools
import random
import threading
from array import array
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pykaproducer.cli._ledger import Ledger, Told
from pykaproducer.cli._rejects import Failures
from pykaproducer.delivery import Delivery
from pykaproducer.errors import DeliveryError, Status

if TYPE_CHECKING:
    from pykaproducer.cli._readback import Record

#: The header that marks the messages of a run.
HEADER = "pykaproducer-verify"
#: How many findings of a kind are described; all are counted.
_EXAMPLES = 3
#: A value begins with its message's number, in so many bytes.
_NUMBER = 8

#: Everything that can be wrong, in words.
DEFECTS = {
    "lost": "told delivered, and not in the log",
    "duplicated": "in the log more than once",
    "out_of_order": "in the log behind one that was sent later",
    "corrupted": "in the log with another value or key than was sent",
    "denied": "told not written, and in the log all the same",
    "split_keys": "in another partition than others with the same key",
    "misplaced": "told offsets that are not those in the log",
    "told_twice": "told of more than once",
    "without_outcome": "never told of",
}


class Messages:
    """Numbered messages: key and value follow from the number."""

    def __init__(self, run: str, size: int, keys: int) -> None:
        self.headers = [(HEADER, run.encode())]
        self.keys = keys
        self._size = max(0, size - _NUMBER)
        # A value is a window on this, at a place that follows from the number.
        self._letters = random.Random(run).randbytes(self._size + 4096)

    def key(self, number: int) -> bytes | None:
        """None: there are no keys."""
        return b"%d" % (number % self.keys) if self.keys else None

    def value(self, number: int) -> bytes:
        """The number, and bytes to recognize it by."""
        place = number & 4095
        return number.to_bytes(_NUMBER, "big") + self._letters[place : place + self._size]

    @staticmethod
    def number(value: bytes | None) -> int:
        """The number that a value says; -1: none."""
        return int.from_bytes(value[:_NUMBER], "big") if value and len(value) >= _NUMBER else -1


class Audit:
    """Counts what is wrong; :meth:`report` while messages are sent, :meth:`look` afterwards."""

    def __init__(self, messages: Messages) -> None:
        self.messages = messages
        self.ledger = Ledger()
        self.failures = Failures()
        self.sent = self.found = 0
        #: Messages of others, or of other runs.
        self.foreign = 0
        self.defects: Counter[str] = Counter(dict.fromkeys(DEFECTS, 0))
        self.examples: dict[str, list[str]] = {}
        self.by_partition: Counter[int] = Counter()
        self._header = messages.headers[0]
        # Callbacks tell of messages, and so does whoever sends: of those that were refused.
        self._telling = threading.Lock()
        self._last: dict[int, int] = {}
        # The partition of each key; -1: none yet.
        self._homes = array("i", itertools.repeat(-1, messages.keys))
        # Sums over (number, partition, offset), told and found: equal if the places are.
        self._told_places = self._found_places = 0
        self._without_offset = 0

    @property
    def told(self) -> int:
        """How many messages have an outcome."""
        return sum(self.ledger.counts.values())

    def report(self, error: BaseException | None, delivery: Delivery) -> None:
        """A message that was accepted has its outcome."""
        number = Messages.number(delivery.value)
        if error is not None:
            self.refuse(number, error)
            return
        self._tell(number, Told.DELIVERED)
        if delivery.partition is None or delivery.offset is None or delivery.offset < 0:
            self._without_offset += 1
        else:
            self._told_places += _place(number, delivery.partition, delivery.offset)

    def refuse(self, number: int, error: BaseException) -> None:
        """A message has failed, or was never accepted."""
        status = error.status if isinstance(error, DeliveryError) else Status.NOT_PERSISTED
        self._tell(number, Told.NOT_WRITTEN if status is Status.NOT_PERSISTED else Told.DOUBTFUL)
        self.failures.add(error)

    def _tell(self, number: int, told: Told) -> None:
        with self._telling:
            if not self.ledger.tell(number, told):
                self._count("told_twice", f"message {number}")

    def look(self, record: Record) -> None:
        """One record of the log; those of a partition come in its order."""
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
        told, before = self.ledger.find(number)
        if before:
            self._count("duplicated", f"message {number}: {where}")
            return
        if told is Told.DELIVERED:
            self._found_places += _place(number, partition, offset)
        elif told is Told.NOT_WRITTEN:
            self._count("denied", f"message {number}: {where}")
        last = self._last.get(partition, -1)
        if number < last:
            self._count("out_of_order", f"message {number} behind {last}: {where}")
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
        """All of the log has been looked at."""
        for number in self.ledger.lost():
            self._count("lost", f"message {number}")
        self.defects["without_outcome"] = self.sent - self.told
        # With one of these the places differ by themselves, and it is told of.
        clean = not any(self.defects[each] for each in ("lost", "duplicated", "corrupted"))
        if clean and not self._without_offset and (self._told_places - self._found_places) % 2**64:
            self._count("misplaced", "some")

    def _count(self, defect: str, example: str) -> None:
        self.defects[defect] += 1
        examples = self.examples.setdefault(defect, [])
        if len(examples) < _EXAMPLES:
            examples.append(example)


def _place(*numbers: int) -> int:
    """A number for a message at its place; sums of such are equal if the places are."""
    return hash(numbers)


def defect_lines(audit: Audit) -> Sequence[str]:
    """A line for each kind of defect that was found."""
    return [
        f"{audit.defects[each]:,} {each.replace('_', ' ')} ({text})"
        + (f": {'; '.join(audit.examples[each])}" if each in audit.examples else "")
        for each, text in DEFECTS.items()
        if audit.defects[each]
    ]
