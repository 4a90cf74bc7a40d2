"""The Produce request and response, implemented here because their cost is incurred per batch.

The encoder returns a list of buffers for ``sendmsg`` and does not copy large record batches.
kafka-python's classes copy all of them twice and take ten times as long. The decoder checks every
length against the bytes received. Tests compare both with kafka-python's classes, byte for byte.

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

import pykaproducer._kernel as _kernel
from pykaproducer._kernel import BatchState, Confirmation
from pykaproducer._wire import WireError
from pykaproducer._wire.messages import VERSIONS, ApiKey, BrokerAddress, read_broker
from pykaproducer._wire.reader import Reader
from pykaproducer._wire.writer import RequestWriter

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
    #: If it confirms every batch and says nothing else, this is set instead of the other fields.
    confirmation: Confirmation | None = None

    def results(self, batches: Sequence[BatchState]) -> list[ProducedPartition]:
        """Return the result of each of *batches*, all of its request, in their order."""
        if self.confirmation is not None:
            return [
                ProducedPartition(batch.topic, batch.partition, 0, *self.confirmation[place])
                for place, batch in enumerate(batches)
            ]
        found = {(each.topic, each.partition): each for each in self.partitions}
        return [found[batch.topic, batch.partition] for batch in batches]


# The request --------------------------------------------------------------------------------


def produce_request(
    version: int,
    correlation_id: int,
    client_id: str | None,
    acks: int,
    timeout_ms: int,
    batches: Sequence[tuple[str, int, Buffer]],
    transactional_id: str | None = None,
) -> list[Buffer]:
    """Encode a framed Produce request as buffers to be sent one after the other.

    *batches* are (topic, partition, record batch). They are grouped by topic, in the order in which
    the topics first appear. Raises ValueError for an unsupported *version*.
    """
    if not _OLDEST <= version <= _NEWEST:
        raise ValueError(f"Produce version {version} is not supported")
    head = _head(version, client_id, transactional_id) % (
        correlation_id.to_bytes(4, "big", signed=True),
        acks.to_bytes(2, "big", signed=True),
        timeout_ms.to_bytes(4, "big", signed=True),
    )
    return _kernel.produce_frame(head, batches, version >= _FLEXIBLE)


def one_batch_frame(
    version: int, client_id: str | None, acks: int, timeout_ms: int, topic: str, partition: int
) -> tuple[bytes, bytes]:
    """Return the bytes before and after the batch of a request for one partition.

    The first piece ends before the batch's length. The length of the request, at 0, and the
    correlation id, at 8, are to be replaced.
    """
    empty = produce_request(version, 0, client_id, acks, timeout_ms, [(topic, partition, b"")])
    frame = b"".join(bytes(piece) for piece in empty)
    # Both end with 4 bytes: the length, or a shorter length and the numbers of tagged fields.
    return frame[:-4], frame[-3:] if version >= _FLEXIBLE else b""


@functools.lru_cache(maxsize=64)
def _head(version: int, client_id: str | None, transactional_id: str | None) -> bytes:
    """Return a template of the part before the topics, for correlation id, acks and timeout."""
    head = RequestWriter(ApiKey.PRODUCE, version, 0, client_id, flexible=version >= _FLEXIBLE)
    head.string(transactional_id)
    made = head.frame()[4:].replace(b"%", b"%%")
    return made[:4] + b"%b" + made[8:] + b"%b%b"


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
