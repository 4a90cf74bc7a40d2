"""The requests of a transactional producer to the coordinators of its transaction and its groups.

AddPartitionsToTxn and AddOffsetsToTxn add partitions and groups to a transaction before anything is
written to them. With KIP-890 the brokers do this themselves when they receive Produce from version
12 on, and TxnOffsetCommit from version 5 on. EndTxn version 5 responds with the producer id and
epoch of the next transaction.

InitProducerId is in ``messages``; requests that only inspect transactions are in
``transaction_queries``.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pykaproducer._errors.formatting import format_partition
from pykaproducer._util.group_offsets import GroupMetadata, GroupOffset
from pykaproducer._wire import WireError
from pykaproducer._wire.messages import ApiKey, BrokerAddress
from pykaproducer._wire.reader import Reader
from pykaproducer._wire.writer import RequestWriter

if TYPE_CHECKING:
    from typing_extensions import Buffer


class CoordinatorKind(enum.IntEnum):
    """The two kinds of coordinators."""

    GROUP = 0
    TRANSACTION = 1


@dataclass(frozen=True, slots=True)
class FoundCoordinator:
    """The coordinator of a consumer group or of a transactional id, or an error code."""

    #: The group or the transactional id.
    key: str
    error_code: int
    #: With an error: ``BrokerAddress(-1, "", -1)``.
    address: BrokerAddress
    error_message: str | None = None


@dataclass(frozen=True, slots=True)
class FindCoordinatorAnswer:
    """The coordinator of each requested key, in the same order."""

    coordinators: tuple[FoundCoordinator, ...]
    throttle_ms: int = 0


@dataclass(frozen=True, slots=True)
class PartitionErrorsAnswer:
    """The error code of each partition: of AddPartitionsToTxn and of TxnOffsetCommit."""

    #: (topic, partition) -> error code, 0 for none.
    errors: dict[tuple[str, int], int]
    throttle_ms: int = 0

    def of(self, offsets: Iterable[GroupOffset]) -> dict[tuple[str, int], int]:
        """Return the errors of the partitions of *offsets*. Raises WireError if one is missing."""
        found = {}
        for each in offsets:
            place = each.topic, each.partition
            if place not in self.errors:
                raise WireError(f"a response lacks {format_partition(*place)}")
            found[place] = self.errors[place]
        return found


@dataclass(frozen=True, slots=True)
class AddOffsetsAnswer:
    """The error code of AddOffsetsToTxn, 0 for none."""

    error_code: int
    throttle_ms: int = 0


@dataclass(frozen=True, slots=True)
class EndTxnAnswer:
    """The error code of EndTxn, 0 for none, and the producer id and epoch from then on."""

    error_code: int
    #: For the next transaction. -1: there was an error, or the version is before 5.
    producer_id: int = -1
    producer_epoch: int = -1
    throttle_ms: int = 0


# Common to these requests -------------------------------------------------------------------

#: The first version of each of them that is flexible (KIP-482).
_FLEXIBLE = 3


def _writer(key: ApiKey, version: int, correlation_id: int, client_id: str | None) -> RequestWriter:
    return RequestWriter(key, version, correlation_id, client_id, flexible=version >= _FLEXIBLE)


def _write_producer(
    out: RequestWriter,
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
    group_id: str | None = None,
) -> None:
    """Append the fields that identify the transaction. In TxnOffsetCommit a group is in them."""
    out.string(transactional_id)
    if group_id is not None:
        out.string(group_id)
    out.int64(producer_id)
    out.int16(producer_epoch)


def _reader(version: int, payload: Buffer) -> Reader:
    reader = Reader(payload, flexible=version >= _FLEXIBLE)
    reader.skip_tags()  # the header's
    return reader


# FindCoordinator ----------------------------------------------------------------------------


def find_coordinator_request(
    version: int,
    correlation_id: int,
    client_id: str | None,
    kind: CoordinatorKind,
    keys: Sequence[str],
) -> bytes:
    """Encode a framed FindCoordinator request for groups or transactional ids.

    Raises ValueError for several *keys* in a version before 4 (KIP-699).
    """
    out = _writer(ApiKey.FIND_COORDINATOR, version, correlation_id, client_id)
    if version < 4:
        out.string(_only(keys, version))
    out.int8(kind)
    if version >= 4:
        out.array(len(keys))
        for key in keys:
            out.string(key)
    out.no_tags()
    return out.frame()


def decode_find_coordinator(
    version: int, payload: Buffer, keys: Sequence[str]
) -> FindCoordinatorAnswer:
    """Decode the FindCoordinator response to a request for *keys*.

    Before version 4 it does not repeat the key.
    """
    reader = _reader(version, payload)
    throttle_ms = reader.int32()
    if version < 4:
        (error_code,) = reader.fields(_int16)
        message = reader.text()
        address = _read_address(reader)
        reader.skip_tags()
        found = FoundCoordinator(_only(keys, version), error_code, address, message)
        return FindCoordinatorAnswer((found,), throttle_ms)
    coordinators = [_read_coordinator(reader) for _ in range(reader.array())]
    reader.skip_tags()
    by_key = {each.key: each for each in coordinators}
    for key in keys:
        if key not in by_key:
            raise WireError(f"a FindCoordinator response lacks the coordinator of {key}")
    return FindCoordinatorAnswer(tuple(by_key[key] for key in keys), throttle_ms)


def _read_coordinator(reader: Reader) -> FoundCoordinator:
    key = reader.required_string()
    address = _read_address(reader)
    (error_code,) = reader.fields(_int16)
    message = reader.text()
    reader.skip_tags()
    return FoundCoordinator(key, error_code, address, message)


def _read_address(reader: Reader) -> BrokerAddress:
    return BrokerAddress(reader.int32(), reader.host(), reader.int32())


def _only(keys: Sequence[str], version: int) -> str:
    if len(keys) != 1:
        raise ValueError(f"FindCoordinator version {version} is for one key, not {len(keys)}")
    return keys[0]


# AddPartitionsToTxn -------------------------------------------------------------------------


def add_partitions_to_txn_request(
    version: int,
    correlation_id: int,
    client_id: str | None,
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
    partitions: Iterable[tuple[str, int]],
) -> bytes:
    """Encode a framed AddPartitionsToTxn request. *partitions* are (topic, partition)."""
    out = _writer(ApiKey.ADD_PARTITIONS_TO_TXN, version, correlation_id, client_id)
    _write_producer(out, transactional_id, producer_id, producer_epoch)
    out.partitions(partitions)
    out.no_tags()
    return out.frame()


def decode_add_partitions_to_txn(version: int, payload: Buffer) -> PartitionErrorsAnswer:
    """Decode an AddPartitionsToTxn response."""
    return _decode_partition_errors(version, payload)


def _decode_partition_errors(version: int, payload: Buffer) -> PartitionErrorsAnswer:
    reader = _reader(version, payload)
    throttle_ms = reader.int32()
    errors: dict[tuple[str, int], int] = {}
    for _ in range(reader.array()):
        topic = reader.required_string()
        for _ in range(reader.array()):
            partition, error_code = reader.fields(_partition_error)
            reader.skip_tags()
            errors[topic, partition] = error_code
        reader.skip_tags()
    reader.skip_tags()
    return PartitionErrorsAnswer(errors, throttle_ms)


# AddOffsetsToTxn ----------------------------------------------------------------------------


def add_offsets_to_txn_request(
    version: int,
    correlation_id: int,
    client_id: str | None,
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
    group_id: str,
) -> bytes:
    """Encode a framed AddOffsetsToTxn request."""
    out = _writer(ApiKey.ADD_OFFSETS_TO_TXN, version, correlation_id, client_id)
    _write_producer(out, transactional_id, producer_id, producer_epoch)
    out.string(group_id)
    out.no_tags()
    return out.frame()


def decode_add_offsets_to_txn(version: int, payload: Buffer) -> AddOffsetsAnswer:
    """Decode an AddOffsetsToTxn response."""
    reader = _reader(version, payload)
    throttle_ms, error_code = reader.fields(_throttle_and_error)
    reader.skip_tags()
    return AddOffsetsAnswer(error_code, throttle_ms)


# EndTxn -------------------------------------------------------------------------------------


def end_txn_request(
    version: int,
    correlation_id: int,
    client_id: str | None,
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
    *,
    commit: bool,
) -> bytes:
    """Encode a framed EndTxn request, which commits or aborts."""
    out = _writer(ApiKey.END_TXN, version, correlation_id, client_id)
    _write_producer(out, transactional_id, producer_id, producer_epoch)
    out.int8(commit)
    out.no_tags()
    return out.frame()


def decode_end_txn(version: int, payload: Buffer) -> EndTxnAnswer:
    """Decode an EndTxn response."""
    reader = _reader(version, payload)
    throttle_ms, error_code = reader.fields(_throttle_and_error)
    producer_id, epoch = reader.fields(_producer) if version >= 5 else (-1, -1)
    reader.skip_tags()
    return EndTxnAnswer(error_code, producer_id, epoch, throttle_ms)


# TxnOffsetCommit ----------------------------------------------------------------------------


def txn_offset_commit_request(
    version: int,
    correlation_id: int,
    client_id: str | None,
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
    group: GroupMetadata,
    offsets: Iterable[GroupOffset],
) -> bytes:
    """Encode a framed TxnOffsetCommit request.

    Versions before 3 have no member, generation and instance, with which the coordinator rejects
    members that have lost their partitions (KIP-447).
    """
    out = _writer(ApiKey.TXN_OFFSET_COMMIT, version, correlation_id, client_id)
    _write_producer(out, transactional_id, producer_id, producer_epoch, group.group_id)
    if version >= 3:
        out.int32(group.generation)
        out.string(group.member_id)
        out.string(group.instance_id)
    topics: dict[str, list[GroupOffset]] = {}
    for each in offsets:
        topics.setdefault(each.topic, []).append(each)
    out.array(len(topics))
    for topic, partitions in topics.items():
        out.string(topic)
        out.array(len(partitions))
        for each in partitions:
            out.int32(each.partition)
            out.int64(each.offset)
            if version >= 2:
                out.int32(each.leader_epoch)
            out.string(each.metadata)
            out.no_tags()
        out.no_tags()
    out.no_tags()
    return out.frame()


def decode_txn_offset_commit(version: int, payload: Buffer) -> PartitionErrorsAnswer:
    """Decode a TxnOffsetCommit response."""
    return _decode_partition_errors(version, payload)


_int16 = struct.Struct(">h")
_throttle_and_error = struct.Struct(">ih")
_producer = struct.Struct(">qh")
_partition_error = struct.Struct(">ih")
