"""The Produce request and response, implemented here because their cost is incurred per batch.

The encoder returns a list of buffers for ``sendmsg`` and never copies the records. kafka-python's
classes copy them twice and take ten times as long. The decoder checks every length against the
bytes received. Tests compare both with kafka-python's classes, byte for byte.

Supports versions 3 (record batches, message format v2) to 12 (the last that identifies topics by
name). Version 7 is the first that may carry zstd, 9 has compact strings and tagged fields, and 10
includes the new leader with NOT_LEADER_OR_FOLLOWER (KIP-951).
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from pykaproducer._wire import WireError
from pykaproducer._wire.messages import VERSIONS, ApiKey, BrokerAddress, read_broker
from pykaproducer._wire.reader import Reader

if TYPE_CHECKING:
    from typing_extensions import Buffer

_OLDEST, _NEWEST = VERSIONS[ApiKey.PRODUCE]
#: The first version with compact strings and tagged fields.
_FLEXIBLE = 9


class ProducedPartition(NamedTuple):
    """The response for the batch of one partition."""

    topic: str
    partition: int
    #: Kafka's error code, 0 for none.
    error_code: int
    #: Offset of the batch's first record, -1 if the broker sends none.
    base_offset: int
    #: The broker's timestamp, -1 if the topic keeps the producer's (CreateTime).
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    error_message: str | None = None
    #: (index of the record within the batch, error message or None)
    record_errors: tuple[tuple[int, str | None], ...] = ()
    #: (broker id, leader epoch) if the broker knows another leader.
    current_leader: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class ProduceAnswer:
    """A complete Produce response."""

    throttle_ms: int
    partitions: list[ProducedPartition]
    #: Addresses of the leaders that :attr:`ProducedPartition.current_leader` names.
    node_endpoints: tuple[BrokerAddress, ...] = ()


# The request --------------------------------------------------------------------------------


def produce_request(
    version: int,
    correlation_id: int,
    client_id: str | None,
    acks: int,
    timeout_ms: int,
    batches: Sequence[tuple[str, int, Buffer]],
) -> list[Buffer]:
    """Encode a framed Produce request as buffers to be sent one after the other.

    *batches* are (topic, partition, record batch). They are grouped by topic, in the order in which
    the topics first appear. Raises ValueError for an unsupported *version*.
    """
    if not _OLDEST <= version <= _NEWEST:
        raise ValueError(f"Produce version {version} is not supported")
    topics: dict[str, list[tuple[int, Buffer]]] = {}
    for topic, partition, records in batches:
        topics.setdefault(topic, []).append((partition, records))
    body = _flexible_body if version >= _FLEXIBLE else _plain_body
    # The header is added to the first piece at the end, because it contains the total length.
    buffers, length = body(topics)
    head = _head(version, client_id) % (
        correlation_id.to_bytes(4, "big", signed=True),
        acks.to_bytes(2, "big", signed=True),
        timeout_ms.to_bytes(4, "big", signed=True),
    )
    first = head + buffers[0]
    buffers[0] = (length + len(head)).to_bytes(4, "big") + first
    return buffers


def one_batch_frame(
    version: int, client_id: str | None, acks: int, timeout_ms: int, topic: str, partition: int
) -> tuple[bytes, bytes]:
    """Return the bytes before and after the batch of a request for one partition.

    The first piece ends before the batch's length. The length of the request, at 0, and the
    correlation id, at 8, are to be replaced.
    """
    empty = produce_request(version, 0, client_id, acks, timeout_ms, [(topic, partition, b"")])
    head, *rest = (bytes(piece) for piece in empty)
    length = 1 if version >= _FLEXIBLE else 4
    return head[:-length], b"".join(rest)


@functools.lru_cache(maxsize=64)
def _head(version: int, client_id: str | None) -> bytes:
    """Return a template of the part before the topics, for correlation id, acks and timeout."""
    name = b"" if client_id is None else client_id.encode().replace(b"%", b"%%")
    size = -1 if client_id is None else len(client_id.encode())
    tagged = version >= _FLEXIBLE
    return b"%b%%b%b%b%b%%b%%b" % (
        struct.pack(">hh", ApiKey.PRODUCE, version),
        struct.pack(">h", size) + name,
        b"\0" if tagged else b"",  # the header's tagged fields: none
        b"\0" if tagged else b"\xff\xff",  # no transactional id
    )


def _plain_body(topics: dict[str, list[tuple[int, Buffer]]]) -> tuple[list[Buffer], int]:
    """Encode topics and partitions for versions 3 to 8. Return the buffers and their length."""
    buffers: list[Buffer] = []
    total = 0
    piece = len(topics).to_bytes(4, "big")
    for topic, partitions in topics.items():
        name = topic.encode()
        piece += b"%b%b%b" % (
            len(name).to_bytes(2, "big"),
            name,
            len(partitions).to_bytes(4, "big"),
        )
        for partition, records in partitions:
            size = memoryview(records).nbytes
            piece += partition.to_bytes(4, "big") + size.to_bytes(4, "big")
            buffers += (piece, records)
            total += len(piece) + size
            piece = b""
    if piece:
        buffers.append(piece)
    return buffers, total + len(piece)


def _flexible_body(topics: dict[str, list[tuple[int, Buffer]]]) -> tuple[list[Buffer], int]:
    """Encode topics and partitions for versions 9 and later, as :func:`_plain_body`."""
    buffers: list[Buffer] = []
    total = 0
    piece = _uvarint(len(topics) + 1)
    for topic, partitions in topics.items():
        name = topic.encode()
        piece += b"%b%b%b" % (
            _uvarint(len(name) + 1),
            name,
            _uvarint(len(partitions) + 1),
        )
        for partition, records in partitions:
            size = memoryview(records).nbytes
            piece += partition.to_bytes(4, "big") + _uvarint(size + 1)
            buffers += (piece, records)
            total += len(piece) + size
            piece = b"\0"  # the partition's tagged fields: none
        piece += b"\0"  # the topic's
    piece += b"\0"  # the request's
    buffers.append(piece)
    return buffers, total + len(piece)


def _uvarint(value: int) -> bytes:
    if value < 0x80:
        return value.to_bytes(1, "big")
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


# The response -------------------------------------------------------------------------------


def decode_produce(version: int, payload: Buffer) -> ProduceAnswer:
    """Decode a Produce response.

    *payload*: the part after the correlation id. Raises :class:`WireError` if it is malformed.
    """
    if not _OLDEST <= version <= _NEWEST:
        raise ValueError(f"Produce version {version} is not supported")
    reader = Reader(payload, flexible=version >= _FLEXIBLE)
    reader.skip_tags()  # the header's
    partitions: list[ProducedPartition] = []
    for _ in range(reader.array()):
        topic = reader.string()
        if topic is None:
            raise WireError("a Produce response has a topic without a name")
        for _ in range(reader.array()):
            partitions.append(_partition(reader, version, topic))
        reader.skip_tags()
    throttle_ms = reader.int32()
    endpoints: tuple[BrokerAddress, ...] = ()
    for tag, field in reader.tags():
        if tag == 0 and version >= 10:
            endpoints = tuple(read_broker(field) for _ in range(field.array()))
    return ProduceAnswer(throttle_ms, partitions, endpoints)


#: No record errors, no message and no tagged fields, in a flexible version.
_NO_DETAILS = b"\x01\x00\x00"
_with_log_start = struct.Struct(">ihqqq")
_without_log_start = struct.Struct(">ihqq")


def _partition(reader: Reader, version: int, topic: str) -> ProducedPartition:
    if version < 5:
        index, error_code, base_offset, append_time = reader.fields(_without_log_start)
        return ProducedPartition(topic, index, error_code, base_offset, append_time)
    index, error_code, base_offset, append_time, log_start = reader.fields(_with_log_start)
    if version < 8 or (version >= _FLEXIBLE and reader.skip_if_next(_NO_DETAILS)):
        return ProducedPartition(topic, index, error_code, base_offset, append_time, log_start)
    record_errors = tuple(_record_error(reader) for _ in range(reader.array()))
    error_message = reader.string()
    leader: tuple[int, int] | None = None
    for tag, field in reader.tags():
        if tag == 0 and version >= 10:
            leader = field.int32(), field.int32()
    return ProducedPartition(
        topic,
        index,
        error_code,
        base_offset,
        append_time,
        log_start,
        error_message,
        record_errors,
        leader if leader is not None and leader[0] >= 0 else None,
    )


def _record_error(reader: Reader) -> tuple[int, str | None]:
    index, text = reader.int32(), reader.string()
    reader.skip_tags()
    return index, text
