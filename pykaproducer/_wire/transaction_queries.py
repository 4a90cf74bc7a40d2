"""Requests that inspect: committed offsets (OffsetFetch), DescribeTransactions, ListTransactions.

With ``require_stable``, OffsetFetch returns UNSTABLE_OFFSET_COMMIT for each partition for which an
open transaction has an offset (KIP-447). DescribeTransactions goes to the coordinators of the
transactional ids, ListTransactions to every broker (KIP-664).
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pykaproducer._wire import WireError
from pykaproducer._wire.messages import ApiKey
from pykaproducer._wire.reader import Reader
from pykaproducer._wire.writer import RequestWriter

if TYPE_CHECKING:
    from typing_extensions import Buffer


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """The offset of a group in one partition."""

    #: -1: the group has committed none.
    offset: int
    #: -1: unknown.
    leader_epoch: int
    metadata: str
    error_code: int = 0


@dataclass(frozen=True, slots=True)
class GroupOffsetsAnswer:
    """The offsets of one group, or an error code."""

    error_code: int
    #: (topic, partition) -> offset
    offsets: dict[tuple[str, int], CommittedOffset]


@dataclass(frozen=True, slots=True)
class OffsetFetchAnswer:
    """The offsets of each requested group."""

    groups: dict[str, GroupOffsetsAnswer]
    throttle_ms: int = 0


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """The state of a transactional id, or an error code."""

    error_code: int
    transactional_id: str
    #: Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit, CompleteAbort, Dead, or
    #: PrepareEpochFence.
    state: str
    timeout_ms: int
    #: When the transaction began (milliseconds since 1970). -1: none is open.
    start_ms: int
    producer_id: int
    producer_epoch: int
    #: (topic, partition), sorted.
    partitions: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class DescribeTransactionsAnswer:
    """The states of the requested transactional ids."""

    transactions: tuple[TransactionDescription, ...]
    throttle_ms: int = 0


@dataclass(frozen=True, slots=True)
class ListedTransaction:
    """A transactional id that a coordinator knows."""

    transactional_id: str
    producer_id: int
    #: As in :class:`TransactionDescription`.
    state: str


@dataclass(frozen=True, slots=True)
class ListTransactionsAnswer:
    """The transactional ids that one broker coordinates, or an error code."""

    error_code: int
    transactions: tuple[ListedTransaction, ...]
    #: The requested states that the broker does not know.
    unknown_states: tuple[str, ...] = ()
    throttle_ms: int = 0


# OffsetFetch --------------------------------------------------------------------------------


def offset_fetch_request(
    version: int,
    correlation_id: int,
    client_id: str | None,
    groups: Mapping[str, Collection[tuple[str, int]] | None],
    *,
    require_stable: bool = True,
) -> bytes:
    """Encode a framed OffsetFetch request.

    *groups*: group -> the (topic, partition) whose offsets to return, None for all. Raises
    ValueError for several groups in a version before 8 (KIP-709).
    """
    out = RequestWriter(ApiKey.OFFSET_FETCH, version, correlation_id, client_id, flexible=True)
    if version >= 8:
        out.array(len(groups))
    else:
        _check_one_group(len(groups), version)
    for group, partitions in groups.items():
        out.string(group)
        if version >= 9:
            out.string(None)  # no member,
            out.int32(-1)  # and therefore no epoch (KIP-848)
        if partitions is None:
            out.array(-1)
        else:
            out.partitions(partitions)
        if version >= 8:
            out.no_tags()
    out.int8(require_stable)
    out.no_tags()
    return out.frame()


def _check_one_group(count: int, version: int) -> None:
    if count != 1:
        raise ValueError(f"OffsetFetch version {version} is for one group, not {count}")


def decode_offset_fetch(
    version: int, payload: Buffer, groups: Collection[str]
) -> OffsetFetchAnswer:
    """Decode the OffsetFetch response to a request for *groups*."""
    reader = Reader(payload, flexible=True)
    reader.skip_tags()  # the header's
    throttle_ms = reader.int32()
    found: dict[str, GroupOffsetsAnswer] = {}
    if version >= 8:
        for _ in range(reader.array()):
            name = reader.required_string()
            found[name] = _read_group(reader)
            reader.skip_tags()
    else:
        _check_one_group(len(groups), version)
        found = {name: _read_group(reader) for name in groups}
    reader.skip_tags()
    for name in groups:
        if name not in found:
            raise WireError(f"an OffsetFetch response lacks the group {name}")
    return OffsetFetchAnswer({name: found[name] for name in groups}, throttle_ms)


def _read_group(reader: Reader) -> GroupOffsetsAnswer:
    offsets: dict[tuple[str, int], CommittedOffset] = {}
    for _ in range(reader.array()):
        topic = reader.required_string()
        for _ in range(reader.array()):
            partition, offset, leader_epoch = reader.fields(_committed)
            metadata = reader.string() or ""
            (error_code,) = reader.fields(_int16)
            reader.skip_tags()
            offsets[topic, partition] = CommittedOffset(offset, leader_epoch, metadata, error_code)
        reader.skip_tags()
    (error_code,) = reader.fields(_int16)
    return GroupOffsetsAnswer(error_code, offsets)


# DescribeTransactions -----------------------------------------------------------------------


def describe_transactions_request(
    version: int, correlation_id: int, client_id: str | None, transactional_ids: Collection[str]
) -> bytes:
    """Encode a framed DescribeTransactions request."""
    out = RequestWriter(
        ApiKey.DESCRIBE_TRANSACTIONS, version, correlation_id, client_id, flexible=True
    )
    out.array(len(transactional_ids))
    for each in transactional_ids:
        out.string(each)
    out.no_tags()
    return out.frame()


def decode_describe_transactions(version: int, payload: Buffer) -> DescribeTransactionsAnswer:
    """Decode a DescribeTransactions response."""
    reader = Reader(payload, flexible=True)
    reader.skip_tags()  # the header's
    throttle_ms = reader.int32()
    transactions = tuple(_read_description(reader) for _ in range(reader.array()))
    reader.skip_tags()
    return DescribeTransactionsAnswer(transactions, throttle_ms)


def _read_description(reader: Reader) -> TransactionDescription:
    (error_code,) = reader.fields(_int16)
    transactional_id = reader.required_string()
    state = reader.required_string()
    timeout_ms, start_ms, producer_id, epoch = reader.fields(_described)
    partitions: list[tuple[str, int]] = []
    for _ in range(reader.array()):
        topic = reader.required_string()
        partitions += [(topic, reader.int32()) for _ in range(reader.array())]
        reader.skip_tags()
    reader.skip_tags()
    return TransactionDescription(
        error_code,
        transactional_id,
        state,
        timeout_ms,
        start_ms,
        producer_id,
        epoch,
        tuple(sorted(partitions)),
    )


# ListTransactions ---------------------------------------------------------------------------


def list_transactions_request(
    version: int,
    correlation_id: int,
    client_id: str | None,
    *,
    states: Collection[str] = (),
    producer_ids: Collection[int] = (),
    longer_than_ms: int = -1,
    pattern: str | None = None,
) -> bytes:
    """Encode a framed ListTransactions request. By default it lists all transactional ids.

    *states*, *producer_ids*: only these; *longer_than_ms*: only what is open for longer (KIP-994);
    *pattern*: only ids that match this regular expression of RE2 (KIP-1152).

    Raises ValueError for a filter that *version* does not have.
    """
    if version < 1 and longer_than_ms >= 0:
        raise ValueError("ListTransactions version 0 has no filter by duration")
    if version < 2 and pattern is not None:
        raise ValueError(f"ListTransactions version {version} has no pattern")
    out = RequestWriter(ApiKey.LIST_TRANSACTIONS, version, correlation_id, client_id, flexible=True)
    out.array(len(states))
    for state in states:
        out.string(state)
    out.array(len(producer_ids))
    for producer_id in producer_ids:
        out.int64(producer_id)
    if version >= 1:
        out.int64(longer_than_ms)
    if version >= 2:
        out.string(pattern)
    out.no_tags()
    return out.frame()


def decode_list_transactions(version: int, payload: Buffer) -> ListTransactionsAnswer:
    """Decode a ListTransactions response."""
    reader = Reader(payload, flexible=True)
    reader.skip_tags()  # the header's
    throttle_ms = reader.int32()
    (error_code,) = reader.fields(_int16)
    unknown = tuple(reader.required_string() for _ in range(reader.array()))
    transactions = tuple(_read_listed(reader) for _ in range(reader.array()))
    reader.skip_tags()
    return ListTransactionsAnswer(error_code, transactions, unknown, throttle_ms)


def _read_listed(reader: Reader) -> ListedTransaction:
    transactional_id = reader.required_string()
    (producer_id,) = reader.fields(_int64)
    state = reader.required_string()
    reader.skip_tags()
    return ListedTransaction(transactional_id, producer_id, state)


_int16 = struct.Struct(">h")
_int64 = struct.Struct(">q")
_committed = struct.Struct(">iqi")
_described = struct.Struct(">iqqh")
