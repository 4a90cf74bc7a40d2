"""The simulated cluster: partitions with one log each, led by one of several brokers.

A log handles a batch as a Kafka broker does (ProducerAppendInfo, KIP-98, KIP-360): it recognises
the last five batches of a producer id, rejects a gap in the sequence numbers, and accepts any first
number from an unknown producer. The producer state follows from the log, so it moves with the
leadership and is truncated with the log.

Simplifications: a record is committed, with everything before it, when the broker has confirmed it
(or would have, had the connection survived). A leader that moves may truncate the rest.
"""

from __future__ import annotations

import enum
import struct
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from pykaproducer._errors.codes import ErrorCode
from pykaproducer._kernel import TRANSACTIONAL
from pykaproducer._machines.batch import Batch

#: The number of batches by which a broker recognises duplicates of a producer id.
_REMEMBERED = 5
_HEADER = struct.Struct(">qiibIhiqqqhii")


class Kind(enum.Enum):
    """How a broker handles a batch."""

    #: It appends and confirms the batch.
    TAKE = enum.auto()
    #: It rejects the batch without appending it.
    REFUSE = enum.auto()
    #: It appends the batch and answers with an error and the offset (Kafka's DelayedProduce).
    TAKE_AND_COMPLAIN = enum.auto()


class Fate(NamedTuple):
    """How a broker handles a batch, and the error code in its answer."""

    kind: Kind
    code: int = 0


class Read(NamedTuple):
    """The contents of a sealed batch, or of a control batch."""

    producer_id: int
    epoch: int
    first_sequence: int
    numbers: list[int]
    transactional: bool = False
    #: A marker at the end of a transaction: whether that is committed. None: this is no marker.
    commits: bool | None = None


class Logged(NamedTuple):
    """A batch in the log."""

    base_offset: int
    batch: Read


@dataclass(slots=True)
class _Producer:
    """The broker's state for a producer id."""

    epoch: int
    #: (first sequence, last sequence, base offset)
    batches: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    #: The offset of the first batch of an open transaction.
    open_since: int | None = None


class Log:
    """The records of one partition, as the numbers of their messages."""

    def __init__(self) -> None:
        self.records: list[int] = []
        self.committed = 0
        #: False simulates a broker before KIP-360: an unknown producer must begin with 0.
        self.strict = False
        self._batches: list[Logged] = []
        self._producers: dict[int, _Producer] = {}
        self._known_from = 0

    def append(self, batch: Read, *, commit: bool = True) -> tuple[int, int]:
        """Append *batch* and return ``(error code, base offset)``."""
        code, offset = 0, -1
        if batch.producer_id >= 0:
            code, offset = self._check(batch)
        if code:
            return code, -1
        if offset < 0:
            offset = len(self.records)
            self._batches.append(Logged(offset, batch))
            self.records += batch.numbers
            self._remember(self._batches[-1])
        if commit:
            self.committed = max(self.committed, offset + len(batch.numbers))
        return 0, offset

    def cut(self) -> None:
        """Drop the uncommitted records, which the new leader does not have."""
        del self.records[self.committed :]
        self._batches = [b for b in self._batches if b.base_offset < self.committed]
        self._producers = {}
        for logged in self._batches:
            if logged.base_offset >= self._known_from:
                self._remember(logged)

    def forget_producers(self, *, strict: bool) -> None:
        """Forget all producers, as after ``producer.id.expiration.ms`` without a batch."""
        self._producers = {}
        self._known_from = len(self.records)
        self.strict = strict

    def _check(self, batch: Read) -> tuple[int, int]:
        """Return the result of append(), or ``(0, -1)`` if *batch* is the next one."""
        known = self._producers.get(batch.producer_id)
        first = batch.first_sequence
        if known is None:
            return (ErrorCode.UNKNOWN_PRODUCER_ID if self.strict and first else 0), -1
        if batch.epoch < known.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH, -1
        if batch.epoch > known.epoch:
            return (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER if first else 0), -1
        last = first + len(batch.numbers) - 1
        for known_first, known_last, offset in known.batches:
            if (known_first, known_last) == (first, last):
                return 0, offset
        if first != (known.batches[-1][1] + 1 if known.batches else 0):
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
        return 0, -1

    def _remember(self, logged: Logged) -> None:
        batch = logged.batch
        known = self._producers.get(batch.producer_id)
        if known is None or known.epoch != batch.epoch:
            known = self._producers[batch.producer_id] = _Producer(batch.epoch)
        last = batch.first_sequence + len(batch.numbers) - 1
        known.batches.append((batch.first_sequence, last, logged.base_offset))


class Cluster:
    """The leaders, the published metadata, and the logs."""

    def __init__(self, brokers: int, leaders: list[int]) -> None:
        self.brokers = brokers
        self.leaders = leaders
        #: The leaders in the metadata, which may be out of date. -1: no leader.
        self.published = list(leaders)
        self.logs = [Log() for _ in leaders]

    def move(self, partition: int, leader: int, *, cut: bool) -> None:
        """Make *leader* the leader; with *cut* it has only the committed records."""
        if cut:
            self.logs[partition].cut()
        self.leaders[partition] = leader

    def produce(self, broker: int, batch: Batch, fate: Fate, version: int) -> tuple[int, int]:
        """Handle *batch* on *broker* and return ``(error code, base offset)``.

        *version*: of the request.
        """
        if self.leaders[batch.partition] != broker:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER, -1
        if fate.kind is Kind.REFUSE:
            return fate.code, -1
        complain = fate.kind is Kind.TAKE_AND_COMPLAIN
        code, offset = self.logs[batch.partition].append(
            read(bytes(batch.payload)), commit=not complain
        )
        return (fate.code, offset) if complain and not code else (code, offset)


def read(payload: bytes) -> Read:
    """Parse the header and records of a sealed batch; each value is its message's number."""
    header = _HEADER.unpack_from(payload)
    position, numbers = _HEADER.size, []
    for _ in range(header[-1]):
        length, position = _varint(payload, position)
        end = position + length
        position += 1  # attributes
        for _ in range(3):  # timestamp, offset, length of the key (null)
            _, position = _varint(payload, position)
        size, position = _varint(payload, position)
        numbers.append(int.from_bytes(payload[position : position + size], "big"))
        position = end
    assert position == len(payload)
    return Read(header[9], header[10], header[11], numbers, bool(header[5] & TRANSACTIONAL))


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value >> 1 ^ -(value & 1), position
        shift += 7
