"""The log of a partition as kept by a scripted broker: in memory, and decoded by kafka-python.

The checks of a broker before appending (Kafka 4.3: LogValidator, ProducerAppendInfo) are performed
in the same order. Intentional deviations:

* Nothing expires, neither records nor producer states.
* There are no limits on sizes (``max.message.bytes``) and timestamps.
* Markers of transactions take an offset, and are not among the records.
"""

from __future__ import annotations

import struct
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kafka.errors import CorruptRecordError
from kafka.record.memory_records import MemoryRecords

from pykaproducer._errors.codes import ErrorCode

#: Number of batches that a broker remembers per producer id, to detect duplicates.
_REMEMBERED = 5
_LAST_SEQUENCE = 2**31 - 1

#: Errors of the decompressors.
_NOT_DECOMPRESSED: tuple[type[Exception], ...] = (
    EOFError,
    OSError,
    RuntimeError,
    ValueError,
    struct.error,
    zlib.error,
)
try:
    from snappy import UncompressError
except ImportError:
    pass  # then kafka-python cannot decompress snappy either
else:
    _NOT_DECOMPRESSED += (UncompressError,)
try:
    from zstandard import ZstdError
except ImportError:
    pass  # then kafka-python cannot decompress zstd either
else:
    _NOT_DECOMPRESSED += (ZstdError,)


@dataclass(frozen=True, slots=True)
class LoggedRecord:
    """A record in the log."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    #: Milliseconds since the epoch.
    timestamp: int
    #: Index of its batch in the log, from 0.
    batch: int


@dataclass(frozen=True, slots=True)
class LoggedBatch:
    """Properties of a batch in the log."""

    base_offset: int
    count: int
    #: As in the attributes: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.
    compression: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    transactional: bool = False


@dataclass(slots=True)
class _ProducerState:
    epoch: int
    #: (first sequence, last sequence, base offset) of the last batches
    batches: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))


class AppendError(Exception):
    """A batch was rejected; ``code`` is the broker's error code."""

    def __init__(self, code: int, text: str | None = None) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text


class PartitionLog:
    """Records and producer states of one partition. Guarded by the cluster's lock."""

    def __init__(self) -> None:
        self.records: list[LoggedRecord] = []
        self.batches: list[LoggedBatch] = []
        #: The offset of the next record or marker.
        self.end = 0
        # Producer id -> base offset of its open transaction.
        self._open: dict[int, int] = {}
        # Indexes of the batches of aborted transactions.
        self._aborted: set[int] = set()
        self._producers: dict[int, _ProducerState] = {}

    def append(
        self, data: bytes, *, zstd_allowed: bool = True, check: Callable[[int, int], int]
    ) -> int:
        """Append the batch in *data* and return its base offset.

        *check*: returns an error code for a transactional batch, from its producer id and epoch.

        Raises:
            AppendError: the batch is rejected.
        """
        batch, records = read_batch(data)
        if batch.compression_type == batch.CODEC_ZSTD and not zstd_allowed:
            raise AppendError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
        if batch.is_control_batch:
            raise AppendError(ErrorCode.INVALID_RECORD, "a client cannot write markers")
        if batch.is_transactional and (code := check(batch.producer_id, batch.producer_epoch)):
            raise AppendError(code)
        base_offset = self.end
        if batch.has_producer_id():
            known = self._check_sequence(batch)
            if known is not None:
                return known  # a duplicate, for which the original offset is returned
            state = self._producers[batch.producer_id]
            state.batches.append((batch.base_sequence, batch.last_sequence, base_offset))
        for number, record in enumerate(records):
            self.records.append(
                LoggedRecord(
                    base_offset + number,
                    record.key,
                    record.value,
                    tuple(record.headers),
                    record.timestamp,
                    len(self.batches),
                )
            )
        self.batches.append(
            LoggedBatch(
                base_offset,
                len(records),
                batch.compression_type,
                batch.producer_id,
                batch.producer_epoch,
                batch.base_sequence,
                batch.is_transactional,
            )
        )
        self.end += len(records)
        if batch.is_transactional:
            self._open.setdefault(batch.producer_id, base_offset)
        return base_offset

    def end_transaction(self, producer_id: int, epoch: int, *, commit: bool) -> None:
        """Append the marker of a transaction, whose producer has *epoch* from now on."""
        first = self._open.pop(producer_id, self.end)
        if not commit:
            self._aborted |= {
                index
                for index, batch in enumerate(self.batches)
                if batch.transactional
                and batch.producer_id == producer_id
                and batch.base_offset >= first
            }
        self.end += 1
        state = self._producers.get(producer_id)
        if state is None or epoch > state.epoch:
            self._producers[producer_id] = _ProducerState(epoch)

    def committed(self) -> list[LoggedRecord]:
        """Return what a consumer with ``read_committed`` reads."""
        stable = min(self._open.values(), default=self.end)
        return [
            record
            for record in self.records
            if record.offset < stable and record.batch not in self._aborted
        ]

    def _check_sequence(self, batch: Any) -> int | None:
        """Return the base offset of a duplicate batch, or None if the batch is the next one."""
        epoch, first, last = batch.producer_epoch, batch.base_sequence, batch.last_sequence
        state = self._producers.get(batch.producer_id)
        if state is None:
            # A broker accepts any sequence from an unknown producer id (KIP-360).
            self._producers[batch.producer_id] = _ProducerState(epoch)
            return None
        if epoch == state.epoch:
            for known_first, known_last, base_offset in state.batches:
                if (known_first, known_last) == (first, last):
                    return base_offset
        if epoch < state.epoch:
            raise AppendError(ErrorCode.INVALID_PRODUCER_EPOCH)
        if epoch > state.epoch:
            if first != 0:
                raise AppendError(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
            self._producers[batch.producer_id] = _ProducerState(epoch)
            return None
        # After a marker with a new epoch there is none.
        last_known = state.batches[-1][1] if state.batches else -1
        expected = 0 if last_known == _LAST_SEQUENCE else last_known + 1
        if first != expected:
            raise AppendError(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
        return None


def read_batch(data: bytes) -> tuple[Any, list[Any]]:
    """Decode *data*, which must be a single batch. Return it and its records.

    Raises:
        AppendError: it is not a valid batch.
    """
    try:
        found = list(MemoryRecords(data))
    except CorruptRecordError as error:
        raise AppendError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
    if len(found) != 1 or sum(batch.size_in_bytes for batch in found) != len(data):
        raise AppendError(
            ErrorCode.INVALID_RECORD, f"{len(found)} batches in {len(data)} bytes instead of one"
        )
    batch: Any = found[0]
    if batch.magic != 2:
        raise AppendError(ErrorCode.INVALID_RECORD, f"unsupported message format {batch.magic}")
    if not batch.validate_crc():
        raise AppendError(ErrorCode.CORRUPT_MESSAGE, "wrong checksum")
    return batch, _records(batch)


def _records(batch: Any) -> list[Any]:
    """Return the records of *batch*; their numbers must match its header."""
    try:
        records = list(batch)
    except CorruptRecordError as error:
        raise AppendError(ErrorCode.INVALID_RECORD, str(error)) from error
    except _NOT_DECOMPRESSED as error:
        raise AppendError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error)) from error
    if not records or batch.records_count != len(records):
        raise AppendError(ErrorCode.INVALID_RECORD, f"{len(records)} records")
    if batch.last_offset_delta != len(records) - 1:
        raise AppendError(ErrorCode.INVALID_RECORD, f"last offset delta {batch.last_offset_delta}")
    numbers = [record.offset - batch.base_offset for record in records]
    if numbers != list(range(len(records))):
        raise AppendError(ErrorCode.INVALID_RECORD, "offset deltas are not 0, 1, 2 ...")
    return records
