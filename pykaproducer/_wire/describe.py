"""Complete decoding of a Metadata response, to inspect a cluster.

The pipeline reads only the fields that a producer needs (``messages.decode_metadata``).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pykaproducer._wire.reader import Reader

if TYPE_CHECKING:
    from typing_extensions import Buffer


@dataclass(frozen=True, slots=True)
class BrokerDescription:
    """A broker."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """A partition, with brokers by their ids."""

    index: int
    error_code: int
    #: -1 if there is no leader.
    leader_id: int
    #: -1 if the broker does not send it.
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    offline: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic, with its partitions ordered by number."""

    name: str
    error_code: int
    is_internal: bool
    partitions: tuple[PartitionDescription, ...]


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """A cluster, as described by one of its brokers."""

    #: None if the broker does not send it.
    cluster_id: str | None
    #: -1 if there is none, or the broker does not send it.
    controller_id: int
    brokers: tuple[BrokerDescription, ...]
    #: Ordered by name.
    topics: tuple[TopicDescription, ...]
    #: The address that was asked.
    answered_by: tuple[str, int] = ("", 0)


def decode_description(
    version: int, payload: Buffer, answered_by: tuple[str, int] = ("", 0)
) -> ClusterDescription:
    """Decode a Metadata response completely. Topics without a name are left out."""
    reader = Reader(payload, flexible=version >= 9)
    reader.skip_tags()  # the header's
    if version >= 3:
        reader.int32()  # throttle time
    brokers = [_read_broker(reader, version) for _ in range(reader.array())]
    cluster_id = reader.string() if version >= 2 else None
    controller_id = reader.int32() if version >= 1 else -1
    topics = [_read_topic(reader, version) for _ in range(reader.array())]
    if 8 <= version <= 10:
        reader.int32()  # authorized operations
    reader.skip_tags()
    return ClusterDescription(
        cluster_id,
        controller_id,
        tuple(sorted(brokers, key=lambda broker: broker.node_id)),
        tuple(sorted((t for t in topics if t is not None), key=lambda topic: topic.name)),
        answered_by,
    )


def _read_broker(reader: Reader, version: int) -> BrokerDescription:
    node_id, host, port = reader.int32(), reader.host(), reader.int32()
    rack = reader.string() if version >= 1 else None
    reader.skip_tags()
    return BrokerDescription(node_id, host, port, rack)


def _read_topic(reader: Reader, version: int) -> TopicDescription | None:
    (error_code,) = reader.fields(_int16)
    name = reader.string()
    if version >= 10:
        reader.fields(_topic_id)
    is_internal = version >= 1 and reader.fields(_int8) != (0,)
    partitions = [_read_partition(reader, version) for _ in range(reader.array())]
    if version >= 8:
        reader.int32()  # authorized operations
    reader.skip_tags()
    if name is None:
        return None
    partitions.sort(key=lambda partition: partition.index)
    return TopicDescription(name, error_code, is_internal, tuple(partitions))


def _read_partition(reader: Reader, version: int) -> PartitionDescription:
    error_code, index, leader_id = reader.fields(_partition)
    leader_epoch = reader.int32() if version >= 7 else -1
    replicas = _read_ids(reader)
    in_sync = _read_ids(reader)
    offline = _read_ids(reader) if version >= 5 else ()
    reader.skip_tags()
    return PartitionDescription(
        index, error_code, leader_id, leader_epoch, replicas, in_sync, offline
    )


def _read_ids(reader: Reader) -> tuple[int, ...]:
    return tuple(reader.int32() for _ in range(reader.array()))


_int8 = struct.Struct(">b")
_int16 = struct.Struct(">h")
_topic_id = struct.Struct(">16s")
_partition = struct.Struct(">hii")
