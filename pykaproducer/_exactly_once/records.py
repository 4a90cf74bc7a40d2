"""The state that a write keeps in Kafka: its last decision, and a marker for each task.

A **marker** is committed in the transaction of the task, so it exists if and only if the task's
rows are committed. It is a line of text::

    1 <batch> <task> <rows> <checksum> <producer id> <producer epoch> <query>

A batch may be written several times, and a reader of the marker must know for which of them it
stands. The producer id and its epoch name one transaction.

The **decision** lists the transactions of a batch that are to be committed. It is committed before
the first of them, in a transaction of the driver. It is binary, encoded in base64, and cut into
pieces of at most 4,096 characters (the brokers' default of ``offset.metadata.max.bytes``)::

    version         1 byte
    size            4 bytes: of the rest, after the CRC
    CRC-32          4 bytes: of the rest
    query           its length, and UTF-8
    batch, partitions of the state topic, tasks, the greatest number of tasks and the greatest
    attempt so far, rows
    checksum        8 bytes
    the tokens: their number; and of each, its task minus the previous token's, attempt, producer
    id, epoch, protocol

Numbers without a size are unsigned varints (LEB128), like those of Kafka's records, but not
zigzag.
"""

from __future__ import annotations

import base64
import struct
import zlib
from dataclasses import dataclass
from typing import NamedTuple

_VERSION = 1
#: Version, size, CRC.
_HEAD = struct.Struct(">BII")
#: Characters of a piece. A multiple of four: each piece can be decoded by itself.
PIECE = 4096
#: The longest query id (bytes): the first piece must say where the others are.
LONGEST_QUERY = 1024


class StateError(Exception):
    """A record is damaged, or of a newer version."""


class TaskToken(NamedTuple):
    """A prepared transaction of a task. Its transactional id results from task and attempt."""

    task: int
    attempt: int
    producer_id: int
    producer_epoch: int
    #: 2 with KIP-890 part 2, else 1.
    protocol: int


class BatchKey(NamedTuple):
    """A batch of a query. Equal keys have the same rows."""

    query: str
    batch: int


@dataclass(frozen=True)
class Decision:
    """The list of the transactions of a batch that are to be committed."""

    key: BatchKey
    #: The number of partitions of the state topic, when the tasks wrote their markers.
    partitions: int
    #: Number of tasks, including those without rows, which have no token.
    tasks: int
    #: The greatest number of tasks, and the greatest attempt, of this and all earlier batches.
    most_tasks: int
    most_attempts: int
    #: Rows of all tasks, and the sum of their checksums, modulo 2**64.
    rows: int
    checksum: int
    #: In the order of their tasks.
    tokens: tuple[TaskToken, ...]

    def pieces(self) -> list[str]:
        """Return the decision as text, in pieces of at most ``PIECE`` characters."""
        body = bytearray()
        query = self.key.query.encode()
        _add(body, len(query))
        body += query
        for number in (
            self.key.batch,
            self.partitions,
            self.tasks,
            self.most_tasks,
            self.most_attempts,
            self.rows,
        ):
            _add(body, number)
        body += self.checksum.to_bytes(8, "big")
        _add(body, len(self.tokens))
        previous = 0
        for task, attempt, producer_id, epoch, protocol in self.tokens:
            for number in (task - previous, attempt, producer_id, epoch, protocol):
                _add(body, number)
            previous = task
        head = _HEAD.pack(_VERSION, len(body), zlib.crc32(body))
        text = base64.b64encode(head + body).decode()
        return [text[start : start + PIECE] for start in range(0, len(text), PIECE)]

    @classmethod
    def of(cls, pieces: list[str]) -> Decision:
        """Return the decision that was written as *pieces*.

        Raises:
            StateError: they are damaged, or of a newer version.
        """
        size, crc, body = _parts("".join(pieces))
        if len(body) != size or zlib.crc32(body) != crc:
            raise StateError("the decision is damaged")
        try:
            return cls._decoded(body)
        except ValueError:  # it ends too early
            raise StateError("the decision is damaged") from None

    @classmethod
    def _decoded(cls, body: bytes) -> Decision:
        found = _Body(body)
        query = found.take(found.number()).decode()
        batch, partitions, tasks, most_tasks, most_attempts, rows = found.numbers(6)
        checksum = int.from_bytes(found.take(8), "big")
        tokens, task = [], 0
        for _ in range(found.number()):
            step, *rest = found.numbers(5)
            task += step
            tokens.append(TaskToken(task, *rest))
        return cls(
            BatchKey(query, batch),
            partitions,
            tasks,
            most_tasks,
            most_attempts,
            rows,
            checksum,
            tuple(tokens),
        )


class _Body:
    """A reader of the body of a decision. Raises ValueError if the body ends too early."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def take(self, size: int) -> bytes:
        self._at += size
        return self._data[self._at - size : self._at]

    def number(self) -> int:
        """Read an unsigned varint."""
        found = shift = 0
        while True:
            (byte,) = self.take(1)
            found |= (byte & 0x7F) << shift
            if byte < 0x80:
                return found
            shift += 7

    def numbers(self, count: int) -> list[int]:
        return [self.number() for _ in range(count)]


def _parts(text: str) -> tuple[int, int, bytes]:
    """Return the size and the CRC that *text* has for the body, and the body or its beginning."""
    try:
        data = base64.b64decode(text, validate=True)
        version, size, crc = _HEAD.unpack_from(data)
    except (ValueError, struct.error):
        raise StateError("the decision is damaged") from None
    if version != _VERSION:
        raise StateError(f"the decision has version {version}; update pykaproducer")
    return size, crc, data[_HEAD.size :]


def _add(body: bytearray, number: int) -> None:
    """Append an unsigned varint."""
    while number >= 0x80:
        body.append(number & 0x7F | 0x80)
        number >>= 7
    body.append(number)


class Extent(NamedTuple):
    """The batch and the size of a decision, and where its pieces are: all from the first piece."""

    #: The batch.
    key: BatchKey
    #: The number of pieces.
    pieces: int
    #: Partitions of the state topic, which say where the other pieces are.
    partitions: int

    @classmethod
    def of(cls, first: str) -> Extent:
        """Return the extent of the decision that begins with the piece *first*.

        Raises:
            StateError: it is not the beginning of a decision, or is of a newer version.
        """
        size, _, body = _parts(first)
        try:
            found = _Body(body)
            query = found.take(found.number()).decode()
            batch, partitions = found.numbers(2)
        except ValueError:  # it ends too early
            raise StateError("the decision is damaged") from None
        characters = (_HEAD.size + size + 2) // 3 * 4
        return cls(BatchKey(query, batch), -(-characters // PIECE), partitions)


@dataclass(frozen=True)
class Marker:
    """Shows that the rows of a task are committed."""

    key: BatchKey
    task: int
    #: The number of its rows, and the sum of their checksums, modulo 2**64.
    rows: int
    checksum: int
    #: Of the transaction.
    producer_id: int
    producer_epoch: int

    def __str__(self) -> str:
        return (
            f"{_VERSION} {self.key.batch} {self.task} {self.rows} {self.checksum:016x} "
            f"{self.producer_id} {self.producer_epoch} {self.key.query}"
        )

    def is_of(self, token: TaskToken) -> bool:
        """Return whether it is part of the transaction of *token*."""
        producer = token.producer_id, token.producer_epoch
        return self.task == token.task and (self.producer_id, self.producer_epoch) == producer

    @classmethod
    def of(cls, text: str) -> Marker:
        """Return the marker that was written as *text*.

        Raises:
            StateError: it is damaged, or of a newer version.
        """
        try:
            version, batch, task, rows, checksum, producer, epoch, query = text.split(" ", 7)
            if int(version) != _VERSION:
                raise StateError(f"the marker {text!r} has a newer version; update pykaproducer")
            key = BatchKey(query, int(batch))
            numbers = int(rows), int(checksum, 16), int(producer), int(epoch)
            return cls(key, int(task), *numbers)
        except ValueError:
            raise StateError(f"the marker {text!r} is damaged") from None
