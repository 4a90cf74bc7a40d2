"""The infrequent requests: ApiVersions, Metadata and InitProducerId. The keys of all requests.

A :class:`RequestWriter` encodes the requests, field by field as in Kafka's protocol document
(https://kafka.apache.org/protocol), for every version. A :class:`Reader`, which checks each length,
decodes the responses directly into the objects that the rest of the package uses.

A payload is the part of a response after the correlation id. A malformed payload raises a
:class:`WireError`.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from pykaproducer._errors.codes import ErrorCode
from pykaproducer._version import VERSION
from pykaproducer._wire import WireError
from pykaproducer._wire.reader import Reader
from pykaproducer._wire.writer import RequestWriter

if TYPE_CHECKING:
    from typing_extensions import Buffer


class ApiKey(enum.IntEnum):
    """The API keys of the requests used here."""

    PRODUCE = 0
    METADATA = 3
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66


#: Versions supported by this package: (first, last). Produce before 3 has no record batches, and
#: from 13 on it identifies topics by id. InitProducerId 6 adds two-phase commit. Only brokers send
#: AddPartitionsToTxn from 4 on. OffsetFetch before 7 ignores open transactions, and from 10 on it
#: identifies topics by id. A request may have narrower bounds (``Request.at_least``, ``at_most``).
VERSIONS: dict[int, tuple[int, int]] = {
    ApiKey.PRODUCE: (3, 12),
    ApiKey.METADATA: (0, 13),
    ApiKey.INIT_PRODUCER_ID: (0, 5),
    ApiKey.CREATE_TOPICS: (2, 7),
    ApiKey.FIND_COORDINATOR: (1, 5),
    ApiKey.ADD_PARTITIONS_TO_TXN: (0, 3),
    ApiKey.ADD_OFFSETS_TO_TXN: (0, 4),
    ApiKey.END_TXN: (0, 5),
    ApiKey.TXN_OFFSET_COMMIT: (0, 5),
    ApiKey.OFFSET_FETCH: (7, 9),
    ApiKey.DESCRIBE_TRANSACTIONS: (0, 0),
    ApiKey.LIST_TRANSACTIONS: (0, 2),
}

#: The most requests, and the most features, that a broker may list. Kafka has fewer than 100.
_MOST_LISTED = 1000

#: Versions of ApiVersions, tried in turn until the broker gives a valid response.
API_VERSIONS_LADDER = (4, 3, 0)


class ApiVersionsAnswer(NamedTuple):
    """The versions of each request that a broker supports, and the features of its cluster."""

    error_code: int
    #: api key -> (first, last) version
    ranges: dict[int, tuple[int, int]]
    #: Name -> the finalized level (KIP-584). Empty if the broker does not know them (yet).
    features: Mapping[str, int] = MappingProxyType({})
    #: Grows with each change of the features. -1: the broker does not know them.
    finalized_features_epoch: int = -1


class BrokerAddress(NamedTuple):
    """A broker's id and address."""

    node_id: int
    host: str
    port: int


@dataclass(slots=True)
class PartitionAnswer:
    """One partition in a Metadata response. (Not frozen, as ten thousand are created at once.)"""

    index: int
    error_code: int
    #: -1 if there is no leader.
    leader_id: int
    #: -1 if the broker does not send it.
    leader_epoch: int


class TopicAnswer(NamedTuple):
    """One topic in a Metadata response."""

    name: str
    error_code: int
    partitions: tuple[PartitionAnswer, ...]
    #: Distinguishes it from a recreated topic of the same name. Empty if the broker sends none.
    topic_id: bytes = b""


class MetadataAnswer(NamedTuple):
    """The cluster, as described by one broker."""

    brokers: tuple[BrokerAddress, ...]
    topics: tuple[TopicAnswer, ...]
    throttle_ms: int = 0
    #: Error code of the whole response, 0 for none.
    error_code: int = 0
    #: None: the broker is too old to name it.
    cluster_id: str | None = None

    def only(self, topics: Collection[str]) -> MetadataAnswer:
        """Return a copy limited to *topics*."""
        if all(topic.name in topics for topic in self.topics):
            return self
        kept = tuple(topic for topic in self.topics if topic.name in topics)
        return self._replace(topics=kept)


class ProducerIdAnswer(NamedTuple):
    """A producer id and epoch, or an error code."""

    error_code: int
    producer_id: int
    producer_epoch: int
    throttle_ms: int = 0


# ApiVersions --------------------------------------------------------------------------------


def api_versions_request(version: int, correlation_id: int, client_id: str | None) -> bytes:
    """Encode a framed ApiVersions request."""
    out = RequestWriter(
        ApiKey.API_VERSIONS, version, correlation_id, client_id, flexible=version >= 3
    )
    if version >= 3:
        # Brokers reject other characters than letters, digits, dots and hyphens (KIP-511).
        out.string("pykaproducer")
        out.string(VERSION)
    out.no_tags()
    return out.frame()


def decode_api_versions(version: int, payload: Buffer) -> ApiVersionsAnswer:
    """Decode an ApiVersions response.

    Its header has no tagged fields in any version. A broker that does not know the version responds
    in the format of version 0. With any other error the ranges are not read.
    """
    (error_code,) = Reader(payload, flexible=False).fields(_int16)
    if error_code not in (ErrorCode.NONE, ErrorCode.UNSUPPORTED_VERSION):
        return ApiVersionsAnswer(error_code, {})
    reader = Reader(payload, flexible=version >= 3 and error_code == ErrorCode.NONE)
    reader.fields(_int16)
    ranges: dict[int, tuple[int, int]] = {}
    for _ in range(reader.array(_MOST_LISTED)):
        key, first, last = reader.fields(_api_range)
        reader.skip_tags()
        ranges[key] = (first, last)
    if version == 0 or error_code != ErrorCode.NONE:
        return ApiVersionsAnswer(error_code, ranges)
    reader.int32()  # throttle time
    features, epoch = _read_features(reader)
    return ApiVersionsAnswer(error_code, ranges, features, epoch)


def _read_features(reader: Reader) -> tuple[dict[str, int], int]:
    """Read the finalized features and their epoch, without which they are not valid."""
    features: dict[str, int] = {}
    epoch = -1
    for tag, content in reader.tags():
        if tag == 1:
            (epoch,) = content.fields(_int64)
        elif tag == 2:
            for _ in range(content.array(_MOST_LISTED)):
                name = content.required_string()
                level, _lowest = content.fields(_levels)
                content.skip_tags()
                features[name] = level
    return (features, epoch) if epoch >= 0 else ({}, -1)


def common_versions(ranges: dict[int, tuple[int, int]]) -> dict[int, int]:
    """Return the highest common version by API key, without keys that have none."""
    chosen: dict[int, int] = {}
    for key, (first, last) in VERSIONS.items():
        if key in ranges and max(first, ranges[key][0]) <= min(last, ranges[key][1]):
            chosen[int(key)] = min(last, ranges[key][1])
    return chosen


# Metadata -----------------------------------------------------------------------------------


def metadata_request(
    version: int,
    correlation_id: int,
    client_id: str | None,
    topics: Sequence[str] | None,
    allow_auto_create: bool,
) -> bytes:
    """Encode a framed Metadata request for *topics*, or for all topics if it is None.

    An empty *topics* requests only the brokers. Before version 1 an empty list means all topics,
    and before version 4 the broker's configuration decides whether topics are created.
    """
    if topics is None and version == 0:
        topics = []
    out = RequestWriter(ApiKey.METADATA, version, correlation_id, client_id, flexible=version >= 9)
    out.array(-1 if topics is None else len(topics))
    for topic in topics or ():
        if version >= 10:
            out.raw(_NO_TOPIC_ID)
        out.string(topic)
        out.no_tags()
    if version >= 4:
        out.int8(allow_auto_create)
    if 8 <= version <= 10:
        out.int8(False)  # authorized operations on the cluster
    if version >= 8:
        out.int8(False)  # authorized operations on the topics
    out.no_tags()
    return out.frame()


def decode_metadata(version: int, payload: Buffer) -> MetadataAnswer:
    """Decode a Metadata response. Topics without a name, which are never requested, are omitted."""
    flexible = version >= 9
    reader = Reader(payload, flexible=flexible)
    reader.skip_tags()  # the header's
    throttle_ms = reader.int32() if version >= 3 else 0
    brokers = tuple(read_broker(reader, has_rack=version >= 1) for _ in range(reader.array()))
    cluster_id = reader.text() if version >= 2 else None
    if version >= 1:
        reader.int32()  # controller
    topics = [_read_topic(reader, version) for _ in range(reader.array())]
    if 8 <= version <= 10:
        reader.int32()  # authorized operations
    error_code = reader.fields(_int16)[0] if version >= 13 else 0
    reader.skip_tags()
    named = tuple(topic for topic in topics if topic is not None)
    return MetadataAnswer(brokers, named, throttle_ms, error_code, cluster_id)


def read_broker(reader: Reader, *, has_rack: bool = True) -> BrokerAddress:
    """Read a broker's id, host, port and rack, a structure that several responses have."""
    node_id, host, port = reader.int32(), reader.host(), reader.int32()
    if has_rack:
        reader.string()
    reader.skip_tags()
    return BrokerAddress(node_id, host, port)


def _read_topic(reader: Reader, version: int) -> TopicAnswer | None:
    (error_code,) = reader.fields(_int16)
    name = reader.string()
    topic_id = _NO_TOPIC_ID
    if version >= 10:
        (topic_id,) = reader.fields(_topic_id)
    if version >= 1:
        reader.fields(_int8)  # is internal
    partitions = tuple(_read_partition(reader, version) for _ in range(reader.array()))
    if version >= 8:
        reader.int32()  # authorized operations
    reader.skip_tags()
    if name is None:
        return None
    return TopicAnswer(
        name, error_code, partitions, b"" if topic_id == _NO_TOPIC_ID else bytes(topic_id)
    )


def _read_partition(reader: Reader, version: int) -> PartitionAnswer:
    if version >= 7:
        error_code, index, leader_id, leader_epoch = reader.fields(_partition_with_epoch)
    else:
        error_code, index, leader_id = reader.fields(_partition)
        leader_epoch = -1
    # Replicas, in-sync replicas, offline replicas.
    reader.skip_numbers(3 if version >= 5 else 2)
    reader.skip_tags()
    if index < 0:
        raise WireError(f"a partition has the number {index}")
    return PartitionAnswer(index, error_code, leader_id, leader_epoch)


# InitProducerId -----------------------------------------------------------------------------


def init_producer_id_request(
    version: int,
    correlation_id: int,
    client_id: str | None,
    transactional_id: str | None = None,
    timeout_ms: int = 2**31 - 1,
    producer_id: int = -1,
    producer_epoch: int = -1,
) -> bytes:
    """Encode a framed InitProducerId request.

    *transactional_id*: None for an idempotent producer, for which *timeout_ms*, after which the
    coordinator aborts a transaction, has no effect. *producer_id*, *producer_epoch*: those of this
    producer, to get its next epoch (KIP-360); -1: none, a new producer.

    Raises ValueError for a producer id in a version before 3.
    """
    if version < 3 and producer_id != -1:
        raise ValueError(f"InitProducerId version {version} has no producer id")
    out = RequestWriter(
        ApiKey.INIT_PRODUCER_ID, version, correlation_id, client_id, flexible=version >= 2
    )
    out.string(transactional_id)
    out.int32(timeout_ms)
    if version >= 3:
        out.int64(producer_id)
        out.int16(producer_epoch)
    out.no_tags()
    return out.frame()


def decode_init_producer_id(version: int, payload: Buffer) -> ProducerIdAnswer:
    """Decode an InitProducerId response."""
    reader = Reader(payload, flexible=version >= 2)
    reader.skip_tags()  # the header's
    throttle_ms, error_code, producer_id, epoch = reader.fields(_producer_id)
    reader.skip_tags()
    return ProducerIdAnswer(error_code, producer_id, epoch, throttle_ms)


_int8 = struct.Struct(">b")
_int16 = struct.Struct(">h")
_int64 = struct.Struct(">q")
_api_range = struct.Struct(">hhh")
_levels = struct.Struct(">hh")
_topic_id = struct.Struct(">16s")
_NO_TOPIC_ID = bytes(16)
_partition = struct.Struct(">hii")
_partition_with_epoch = struct.Struct(">hiii")
_producer_id = struct.Struct(">ihqh")
