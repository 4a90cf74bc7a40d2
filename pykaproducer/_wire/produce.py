"""The Produce request and response, implemented here because their cost is incurred per batch.

``_kernel_parts/produce_request.pxi`` frames a request, and reads a response that confirms it. This
module has the head of the frame, and the decoder of any other response, which checks every length
against the bytes received. Tests compare both with kafka-python's classes, byte for byte.

Supports versions 3 (record batches, message format v2) to 12 (the last that identifies topics by
name). Version 7 is the first that may carry zstd, 9 has compact strings and tagged fields, and 10
includes the new leader with NOT_LEADER_OR_FOLLOWER (KIP-951).
"""

from __future__ import annotations

import functools
import struct
from typing import TYPE_CHECKING, NamedTuple

from pykaproducer._kernel import ProduceRequest
from pykaproducer._wire import WireError
from pykaproducer._wire.messages import VERSIONS, ApiKey, BrokerAddress, read_broker
from pykaproducer._wire.reader import Reader
from pykaproducer._wire.writer import RequestWriter

if TYPE_CHECKING:
    from typing_extensions import Buffer

_OLDEST, _NEWEST = VERSIONS[ApiKey.PRODUCE]
#: The first version with compact strings and tagged fields.
_FLEXIBLE = 9
#: Bytes of the length that precedes a request.
_LENGTH = 4


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


class ProduceAnswer(NamedTuple):
    """A complete Produce response."""

    throttle_ms: int
    partitions: list[ProducedPartition]
    #: Addresses of the leaders that :attr:`ProducedPartition.current_leader` names.
    node_endpoints: tuple[BrokerAddress, ...] = ()


def results_of(request: ProduceRequest, answer: ProduceAnswer | None) -> list[ProducedPartition]:
    """Return the result of each batch of *request*, in their order; *answer* None: confirmed."""
    if answer is None:
        return [
            ProducedPartition(batch.topic, batch.partition, 0, *request.result(place))
            for place, batch in enumerate(request.batches)
        ]
    found = {(each.topic, each.partition): each for each in answer.partitions}
    return [found[batch.topic, batch.partition] for batch in request.batches]


# The request --------------------------------------------------------------------------------


def produce_head(
    version: int, client_id: str | None, acks: int, transactional_id: str | None = None
) -> bytes:
    """Return the part of a Produce request between its length and the topics.

    The correlation id and the timeout are 0: ``_kernel.produce_frame()`` replaces them. Raises
    ValueError for an unsupported *version*.
    """
    if not _OLDEST <= version <= _NEWEST:
        raise ValueError(f"Produce version {version} is not supported")
    return _head(version, client_id, acks, transactional_id)


@functools.lru_cache(maxsize=64)
def _head(version: int, client_id: str | None, acks: int, transactional_id: str | None) -> bytes:
    head = RequestWriter(ApiKey.PRODUCE, version, 0, client_id, flexible=version >= _FLEXIBLE)
    head.string(transactional_id)
    return head.frame()[_LENGTH:] + acks.to_bytes(2, "big", signed=True) + bytes(4)


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
    error_message = reader.text()
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
    index, text = reader.int32(), reader.text()
    reader.skip_tags()
    return index, text
