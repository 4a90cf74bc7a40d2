"""The adapter to kafka-python's protocol classes; the only module in here that imports them.

The small requests around producing: ApiVersions, Metadata, InitProducerId. kafka-python encodes
them, for every version. Their answers are read by our own :class:`Reader`, which checks each
length (kafka-python's generated code takes a string that is cut short for a shorter string, and
has no bound on the size of a number), straight into the frozen objects that the rest of the
package knows.

A payload is what follows the correlation id in a response. Whatever does not make sense in one is
a :class:`WireError`.
"""

from __future__ import annotations

import enum
import functools
import struct
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from importlib import metadata as installed
from typing import TYPE_CHECKING, Any

from kafka.protocol.metadata import ApiVersionsRequest, MetadataRequest
from kafka.protocol.producer import InitProducerIdRequest

from pykaproducer._wire import WireError
from pykaproducer._wire.error_codes import ErrorCode
from pykaproducer._wire.reader import Reader

if TYPE_CHECKING:
    from typing_extensions import Buffer


class ApiKey(enum.IntEnum):
    """The numbers that requests are told apart by."""

    PRODUCE = 0
    METADATA = 3
    API_VERSIONS = 18
    INIT_PRODUCER_ID = 22


#: The versions that this package speaks: (first, last). Produce before 3 has no record batches,
#: from 13 on it names topics by id; InitProducerId 6 adds two-phase commit.
VERSIONS: dict[int, tuple[int, int]] = {
    ApiKey.PRODUCE: (3, 12),
    ApiKey.METADATA: (0, 13),
    ApiKey.INIT_PRODUCER_ID: (0, 5),
}

#: ApiVersions is asked for with the first of these that the broker answers sensibly.
API_VERSIONS_LADDER = (4, 3, 0)


@dataclass(frozen=True, slots=True)
class ApiVersionsAnswer:
    """Which requests a broker takes."""

    error_code: int
    #: api key -> (first, last) version
    ranges: dict[int, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """Where a broker listens."""

    node_id: int
    host: str
    port: int


@dataclass(slots=True)
class PartitionAnswer:
    """One partition in a Metadata answer. (Not frozen: ten thousand of them are made at once.)"""

    index: int
    error_code: int
    #: -1 if there is no leader.
    leader_id: int
    #: -1 if the broker does not tell.
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class TopicAnswer:
    """One topic in a Metadata answer."""

    name: str
    error_code: int
    partitions: tuple[PartitionAnswer, ...]
    #: Distinguishes it from another topic of the same name; empty if the broker sends none.
    topic_id: bytes = b""


@dataclass(frozen=True, slots=True)
class MetadataAnswer:
    """The cluster, as one broker sees it."""

    brokers: tuple[BrokerAddress, ...]
    topics: tuple[TopicAnswer, ...]
    throttle_ms: int = 0
    #: Of the answer as a whole, 0 for none.
    error_code: int = 0

    def only(self, topics: Collection[str]) -> MetadataAnswer:
        """Return the answer without topics other than *topics*."""
        if all(topic.name in topics for topic in self.topics):
            return self
        kept = tuple(topic for topic in self.topics if topic.name in topics)
        return replace(self, topics=kept)


@dataclass(frozen=True, slots=True)
class ProducerIdAnswer:
    """A producer id, or why there is none."""

    error_code: int
    producer_id: int
    producer_epoch: int
    throttle_ms: int = 0


# ApiVersions --------------------------------------------------------------------------------


def api_versions_request(version: int, correlation_id: int, client_id: str | None) -> bytes:
    """A framed ApiVersions request."""
    request = ApiVersionsRequest(
        version=version,
        client_software_name="pykaproducer",
        client_software_version=_software_version(),
    )
    return _framed(request, correlation_id, client_id)


@functools.cache
def _software_version() -> str:
    try:
        return installed.version("pykaproducer")
    except installed.PackageNotFoundError:
        return "0"  # used from a source tree


def decode_api_versions(version: int, payload: Buffer) -> ApiVersionsAnswer:
    """Decode an ApiVersions answer.

    Its header has no tagged fields in any version, and a broker that does not know the version
    answers as in version 0. With any other error the ranges are of no use and not read.
    """
    (error_code,) = Reader(payload, flexible=False).fields(_int16)
    if error_code not in (ErrorCode.NONE, ErrorCode.UNSUPPORTED_VERSION):
        return ApiVersionsAnswer(error_code, {})
    reader = Reader(payload, flexible=version >= 3 and error_code == ErrorCode.NONE)
    reader.fields(_int16)
    ranges: dict[int, tuple[int, int]] = {}
    for _ in range(reader.array()):
        key, first, last = reader.fields(_api_range)
        reader.skip_tags()
        ranges[key] = (first, last)
    return ApiVersionsAnswer(error_code, ranges)


def common_versions(ranges: dict[int, tuple[int, int]]) -> dict[int, int]:
    """api key -> the last version that both sides speak; without the keys that have none."""
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
    """A framed Metadata request for *topics*; for the brokers alone if there are none; for all
    topics if it is None.

    Before version 1 no topics means all of them, and before version 4 topics are created as the
    broker likes.
    """
    if topics is None and version == 0:
        topics = []
    # Fields that a version does not have are left out by kafka-python.
    request = MetadataRequest(
        version=version,
        topics=None
        if topics is None
        else [
            MetadataRequest.MetadataRequestTopic(name=topic, version=version) for topic in topics
        ],
        allow_auto_topic_creation=allow_auto_create,
    )
    return _framed(request, correlation_id, client_id)


def decode_metadata(version: int, payload: Buffer) -> MetadataAnswer:
    """Decode a Metadata answer. Topics without name (which nobody asks for) are left out."""
    flexible = version >= 9
    reader = Reader(payload, flexible=flexible)
    reader.skip_tags()  # the header's
    throttle_ms = reader.int32() if version >= 3 else 0
    brokers = tuple(read_broker(reader, has_rack=version >= 1) for _ in range(reader.array()))
    if version >= 2:
        reader.string()  # cluster id
    if version >= 1:
        reader.int32()  # controller
    topics = [_read_topic(reader, version) for _ in range(reader.array())]
    if 8 <= version <= 10:
        reader.int32()  # authorized operations
    error_code = reader.fields(_int16)[0] if version >= 13 else 0
    reader.skip_tags()
    named = tuple(topic for topic in topics if topic is not None)
    return MetadataAnswer(brokers, named, throttle_ms, error_code)


def read_broker(reader: Reader, *, has_rack: bool = True) -> BrokerAddress:
    """A broker's id, host, port and rack, as several answers have them."""
    node_id, host, port = reader.int32(), reader.string(), reader.int32()
    if has_rack:
        reader.string()
    reader.skip_tags()
    if host is None:
        raise WireError("a broker without host name")
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
    # Replicas, those in sync, those offline.
    reader.skip_numbers(3 if version >= 5 else 2)
    reader.skip_tags()
    if index < 0:
        raise WireError(f"a partition with number {index}")
    return PartitionAnswer(index, error_code, leader_id, leader_epoch)


# InitProducerId -----------------------------------------------------------------------------


def init_producer_id_request(version: int, correlation_id: int, client_id: str | None) -> bytes:
    """A framed InitProducerId request, for an idempotent producer without transactions."""
    request = InitProducerIdRequest(
        version=version, transactional_id=None, transaction_timeout_ms=2**31 - 1
    )
    return _framed(request, correlation_id, client_id)


def decode_init_producer_id(version: int, payload: Buffer) -> ProducerIdAnswer:
    """Decode an InitProducerId answer."""
    reader = Reader(payload, flexible=version >= 2)
    reader.skip_tags()  # the header's
    throttle_ms, error_code, producer_id, epoch = reader.fields(_producer_id)
    return ProducerIdAnswer(error_code, producer_id, epoch, throttle_ms)


_int8 = struct.Struct(">b")
_int16 = struct.Struct(">h")
_api_range = struct.Struct(">hhh")
_topic_id = struct.Struct(">16s")
_NO_TOPIC_ID = bytes(16)
_partition = struct.Struct(">hii")
_partition_with_epoch = struct.Struct(">hiii")
_producer_id = struct.Struct(">ihqh")


def _framed(request: Any, correlation_id: int, client_id: str | None) -> bytes:
    """What kafka-python makes of *request*, with header and length."""
    request.with_header(correlation_id=correlation_id, client_id=client_id)
    return bytes(request.encode(header=True, framed=True))
