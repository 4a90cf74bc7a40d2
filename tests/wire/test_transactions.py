"""The requests of transactions and their answers, against an independent codec."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykaproducer._util.group_offsets import GroupMetadata, GroupOffset
from pykaproducer._wire import WireError
from pykaproducer._wire.messages import ApiKey, BrokerAddress
from pykaproducer._wire.transaction_queries import (
    CommittedOffset,
    DescribeTransactionsAnswer,
    GroupOffsetsAnswer,
    ListedTransaction,
    ListTransactionsAnswer,
    OffsetFetchAnswer,
    TransactionDescription,
    decode_describe_transactions,
    decode_list_transactions,
    decode_offset_fetch,
    describe_transactions_request,
    list_transactions_request,
    offset_fetch_request,
)
from pykaproducer._wire.transactions import (
    AddOffsetsAnswer,
    CoordinatorKind,
    EndTxnAnswer,
    FindCoordinatorAnswer,
    FoundCoordinator,
    PartitionErrorsAnswer,
    add_offsets_to_txn_request,
    add_partitions_to_txn_request,
    decode_add_offsets_to_txn,
    decode_add_partitions_to_txn,
    decode_end_txn,
    decode_find_coordinator,
    decode_txn_offset_commit,
    end_txn_request,
    find_coordinator_request,
    txn_offset_commit_request,
)
from pykaproducer.testing import _transaction_messages as theirs
from tests.wire.helper import (
    check_answer,
    client_ids,
    hosts,
    int16,
    int32,
    int64,
    names,
    payload,
    read_request,
    texts,
    versions,
)

numbers = st.integers(0, 2**31 - 1)
places = st.lists(st.tuples(names, numbers), max_size=6, unique=True)
#: The transactional id, the producer id and the epoch.
producers = st.tuples(names, int64, int16)
offsets = st.builds(GroupOffset, names, numbers, int64, int32, names)
groups = st.builds(GroupMetadata, names, int32, names, st.none() | names)


def grouped(partitions: list[tuple[str, int]]) -> list[tuple[str, list[int]]]:
    """Return the partitions of each topic, in the order in which the topics appear."""
    return [
        (topic, [number for name, number in partitions if name == topic])
        for topic in dict.fromkeys(name for name, _ in partitions)
    ]


def named(topics: Any) -> list[tuple[str, list[int]]]:
    return [(each.name, each.partitions) for each in topics]


def producer_of(request: Any, prefix: str = "") -> tuple[Any, ...]:
    """Return the fields that say whose transaction it is."""
    fields = ("transactional_id", "producer_id", "producer_epoch")
    return tuple(getattr(request, prefix + field) for field in fields)


# Requests -----------------------------------------------------------------------------------


@given(versions(ApiKey.FIND_COORDINATOR), client_ids, st.sampled_from(CoordinatorKind), names)
def test_find_one_coordinator(
    version: int, client_id: str | None, kind: CoordinatorKind, key: str
) -> None:
    framed = find_coordinator_request(version, 7, client_id, kind, [key])
    request = read_request(theirs.FindCoordinatorRequest, version, framed)
    assert request.key_type == {"GROUP": 0, "TRANSACTION": 1}[kind.name]
    assert (request.coordinator_keys if version >= 4 else [request.key]) == [key]
    assert request.header.client_id == client_id


@given(st.sampled_from([4, 5]), st.lists(names, max_size=5))
def test_find_several_coordinators(version: int, keys: list[str]) -> None:
    framed = find_coordinator_request(version, 7, "c", CoordinatorKind.TRANSACTION, keys)
    assert read_request(theirs.FindCoordinatorRequest, version, framed).coordinator_keys == keys


@given(versions(ApiKey.ADD_PARTITIONS_TO_TXN), client_ids, producers, places)
def test_add_partitions_to_txn_request(
    version: int,
    client_id: str | None,
    producer: tuple[str, int, int],
    partitions: list[tuple[str, int]],
) -> None:
    framed = add_partitions_to_txn_request(version, 7, client_id, *producer, partitions)
    request = read_request(theirs.AddPartitionsToTxnRequest, version, framed)
    assert producer_of(request, "v3_and_below_") == producer
    assert named(request.v3_and_below_topics) == grouped(partitions)


@given(versions(ApiKey.ADD_OFFSETS_TO_TXN), client_ids, producers, names)
def test_add_offsets_to_txn_request(
    version: int, client_id: str | None, producer: tuple[str, int, int], group: str
) -> None:
    framed = add_offsets_to_txn_request(version, 7, client_id, *producer, group)
    request = read_request(theirs.AddOffsetsToTxnRequest, version, framed)
    assert (producer_of(request), request.group_id) == (producer, group)


@given(versions(ApiKey.END_TXN), client_ids, producers, st.booleans())
def test_end_txn_request(
    version: int, client_id: str | None, producer: tuple[str, int, int], commit: bool
) -> None:
    framed = end_txn_request(version, 7, client_id, *producer, commit=commit)
    request = read_request(theirs.EndTxnRequest, version, framed)
    assert (producer_of(request), request.committed) == (producer, commit)


@given(
    versions(ApiKey.TXN_OFFSET_COMMIT),
    client_ids,
    producers,
    groups,
    st.lists(offsets, max_size=6, unique_by=lambda each: (each.topic, each.partition)),
)
def test_txn_offset_commit_request(
    version: int,
    client_id: str | None,
    producer: tuple[str, int, int],
    group: GroupMetadata,
    offsets: list[GroupOffset],
) -> None:
    framed = txn_offset_commit_request(version, 7, client_id, *producer, group, offsets)
    request = read_request(theirs.TxnOffsetCommitRequest, version, framed)
    assert (producer_of(request), request.group_id) == (producer, group.group_id)
    if version >= 3:
        member = request.generation_id, request.member_id, request.group_instance_id
        assert member == (group.generation, group.member_id, group.instance_id)
    assert {
        (
            topic.name,
            each.partition_index,
            each.committed_offset,
            each.committed_leader_epoch,
            each.committed_metadata,
        )
        for topic in request.topics
        for each in topic.partitions
    } == {
        (
            each.topic,
            each.partition,
            each.offset,
            each.leader_epoch if version >= 2 else -1,
            each.metadata,
        )
        for each in offsets
    }
    assert len({topic.name for topic in request.topics}) == len(request.topics)


asked = st.none() | places


@given(versions(ApiKey.OFFSET_FETCH), client_ids, names, asked, st.booleans())
def test_offsets_of_one_group(
    version: int,
    client_id: str | None,
    group: str,
    partitions: list[tuple[str, int]] | None,
    stable: bool,
) -> None:
    framed = offset_fetch_request(version, 7, client_id, {group: partitions}, require_stable=stable)
    request = read_request(theirs.OffsetFetchRequest, version, framed)
    (only,) = request.groups if version >= 8 else [request]
    assert (only.group_id, request.require_stable) == (group, stable)
    topics = only.topics and [(each.name, each.partition_indexes) for each in only.topics]
    assert topics == (None if partitions is None else grouped(partitions))
    if version >= 9:
        assert (only.member_id, only.member_epoch) == (None, -1)


@given(st.sampled_from([8, 9]), st.dictionaries(names, asked, max_size=4))
def test_offsets_of_several_groups(
    version: int, groups: dict[str, list[tuple[str, int]] | None]
) -> None:
    framed = offset_fetch_request(version, 7, "c", groups)
    request = read_request(theirs.OffsetFetchRequest, version, framed)
    assert request.require_stable
    assert {each.group_id: each.topics is None for each in request.groups} == {
        group: partitions is None for group, partitions in groups.items()
    }


@given(client_ids, st.lists(names, max_size=5))
def test_describe_transactions_request(client_id: str | None, ids: list[str]) -> None:
    framed = describe_transactions_request(0, 7, client_id, ids)
    assert read_request(theirs.DescribeTransactionsRequest, 0, framed).transactional_ids == ids


@given(
    versions(ApiKey.LIST_TRANSACTIONS),
    st.lists(names, max_size=3),
    st.lists(int64, max_size=3),
    st.integers(0, 2**63 - 1),
    names,
)
def test_list_transactions_request(
    version: int, states: list[str], ids: list[int], duration: int, pattern: str
) -> None:
    more: dict[str, Any] = {}
    if version >= 1:
        more["longer_than_ms"] = duration
    if version >= 2:
        more["pattern"] = pattern
    framed = list_transactions_request(version, 7, "c", states=states, producer_ids=ids, **more)
    request = read_request(theirs.ListTransactionsRequest, version, framed)
    assert (request.state_filters, request.producer_id_filters) == (states, ids)
    assert request.duration_filter == (duration if version >= 1 else -1)
    assert request.transactional_id_pattern == (pattern if version >= 2 else None)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_by_default_all_transactions_are_listed(version: int) -> None:
    request = read_request(
        theirs.ListTransactionsRequest, version, list_transactions_request(version, 7, "c")
    )
    assert (request.state_filters, request.producer_id_filters) == ([], [])
    assert (request.duration_filter, request.transactional_id_pattern) == (-1, None)


@pytest.mark.parametrize(
    ("encode", "text"),
    [
        (
            lambda: find_coordinator_request(3, 7, "c", CoordinatorKind.GROUP, ["a", "b"]),
            "FindCoordinator version 3 is for one key, not 2",
        ),
        (lambda: offset_fetch_request(7, 7, "c", {}), "version 7 is for one group, not 0"),
        (
            lambda: offset_fetch_request(7, 7, "c", {"a": None, "b": None}),
            "version 7 is for one group, not 2",
        ),
        (lambda: list_transactions_request(0, 7, "c", longer_than_ms=0), "no filter by duration"),
        (lambda: list_transactions_request(1, 7, "c", pattern=""), "version 1 has no pattern"),
        (lambda: decode_find_coordinator(2, bytes(20), []), "is for one key, not 0"),
        (lambda: decode_offset_fetch(7, bytes(20), ["a", "b"]), "is for one group, not 2"),
    ],
)
def test_what_a_version_cannot_say_is_an_error(encode: Callable[[], object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        encode()


# Answers ------------------------------------------------------------------------------------


coordinators = st.builds(
    FoundCoordinator, names, int16, st.builds(BrokerAddress, int32, hosts, int32), st.none() | texts
)


@given(st.sampled_from([1, 2, 3]), int32, coordinators)
def test_one_coordinator(version: int, throttle_ms: int, found: FoundCoordinator) -> None:
    answer = theirs.FindCoordinatorResponse(
        version=version,
        throttle_time_ms=throttle_ms,
        error_code=found.error_code,
        error_message=found.error_message,
        node_id=found.address.node_id,
        host=found.address.host,
        port=found.address.port,
    )
    check_answer(
        decode_find_coordinator, answer, FindCoordinatorAnswer((found,), throttle_ms), [found.key]
    )


def their_coordinators(version: int, throttle_ms: int, found: list[FoundCoordinator]) -> Any:
    return theirs.FindCoordinatorResponse(
        version=version,
        throttle_time_ms=throttle_ms,
        coordinators=[
            theirs.FindCoordinatorResponse.Coordinator(
                key=each.key,
                node_id=each.address.node_id,
                host=each.address.host,
                port=each.address.port,
                error_code=each.error_code,
                error_message=each.error_message,
            )
            for each in found
        ],
    )


@given(
    st.sampled_from([4, 5]),
    int32,
    st.lists(coordinators, max_size=3, unique_by=lambda each: each.key),
)
def test_several_coordinators_in_the_order_asked_for(
    version: int, throttle_ms: int, found: list[FoundCoordinator]
) -> None:
    keys = [each.key for each in reversed(found)]
    check_answer(
        decode_find_coordinator,
        their_coordinators(version, throttle_ms, found),
        FindCoordinatorAnswer(tuple(reversed(found)), throttle_ms),
        keys,
    )


def test_a_coordinator_that_is_missing_is_an_error() -> None:
    found = [FoundCoordinator("a", 0, BrokerAddress(1, "h", 9092))]
    sent = payload(their_coordinators(4, 0, found))
    with pytest.raises(WireError, match="lacks the coordinator of b"):
        decode_find_coordinator(4, sent, ["a", "b"])


def by_topic(
    kind: Any, field: str, found: dict[tuple[str, int], Any], part: Callable[[int, Any], Any]
) -> list[Any]:
    """Return a *kind* for each topic, in whose *field* are its partitions, as *part* makes them."""
    return [
        kind(name=name, **{field: [part(number, found[name, number]) for number in partitions]})
        for name, partitions in grouped(list(found))
    ]


errors = st.dictionaries(st.tuples(names, numbers), int16, max_size=5)


@given(versions(ApiKey.ADD_PARTITIONS_TO_TXN), int32, errors)
def test_add_partitions_to_txn_answer(
    version: int, throttle_ms: int, errors: dict[tuple[str, int], int]
) -> None:
    kind = theirs.AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult

    def part(number: int, code: int) -> Any:
        return kind.AddPartitionsToTxnPartitionResult(
            partition_index=number, partition_error_code=code
        )

    answer = theirs.AddPartitionsToTxnResponse(
        version=version,
        throttle_time_ms=throttle_ms,
        results_by_topic_v3_and_below=by_topic(kind, "results_by_partition", errors, part),
    )
    expected = PartitionErrorsAnswer(errors, throttle_ms)
    check_answer(decode_add_partitions_to_txn, answer, expected)


@given(versions(ApiKey.TXN_OFFSET_COMMIT), int32, errors)
def test_txn_offset_commit_answer(
    version: int, throttle_ms: int, errors: dict[tuple[str, int], int]
) -> None:
    kind = theirs.TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic

    def part(number: int, code: int) -> Any:
        return kind.TxnOffsetCommitResponsePartition(partition_index=number, error_code=code)

    answer = theirs.TxnOffsetCommitResponse(
        version=version,
        throttle_time_ms=throttle_ms,
        topics=by_topic(kind, "partitions", errors, part),
    )
    check_answer(decode_txn_offset_commit, answer, PartitionErrorsAnswer(errors, throttle_ms))


@given(versions(ApiKey.ADD_OFFSETS_TO_TXN), int32, int16)
def test_add_offsets_to_txn_answer(version: int, throttle_ms: int, code: int) -> None:
    answer = theirs.AddOffsetsToTxnResponse(
        version=version, throttle_time_ms=throttle_ms, error_code=code
    )
    check_answer(decode_add_offsets_to_txn, answer, AddOffsetsAnswer(code, throttle_ms))


@given(versions(ApiKey.END_TXN), int32, int16, int64, int16)
def test_end_txn_answer(
    version: int, throttle_ms: int, code: int, producer_id: int, epoch: int
) -> None:
    answer = theirs.EndTxnResponse(
        version=version,
        throttle_time_ms=throttle_ms,
        error_code=code,
        producer_id=producer_id,
        producer_epoch=epoch,
    )
    next_one = (producer_id, epoch) if version >= 5 else (-1, -1)
    check_answer(decode_end_txn, answer, EndTxnAnswer(code, *next_one, throttle_ms))


committed = st.builds(
    GroupOffsetsAnswer,
    int16,
    st.dictionaries(
        st.tuples(names, numbers),
        st.builds(CommittedOffset, int64, int32, names, int16),
        max_size=3,
    ),
)


def their_topics(kind: Any, partition_kind: Any, group: GroupOffsetsAnswer) -> list[Any]:
    def part(number: int, committed: CommittedOffset) -> Any:
        return partition_kind(
            partition_index=number,
            committed_offset=committed.offset,
            committed_leader_epoch=committed.leader_epoch,
            metadata=committed.metadata,
            error_code=committed.error_code,
        )

    return by_topic(kind, "partitions", group.offsets, part)


@given(int32, names, committed)
def test_committed_offsets_of_one_group(
    throttle_ms: int, name: str, group: GroupOffsetsAnswer
) -> None:
    kind = theirs.OffsetFetchResponse.OffsetFetchResponseTopic
    answer = theirs.OffsetFetchResponse(
        version=7,
        throttle_time_ms=throttle_ms,
        topics=their_topics(kind, kind.OffsetFetchResponsePartition, group),
        error_code=group.error_code,
    )
    check_answer(decode_offset_fetch, answer, OffsetFetchAnswer({name: group}, throttle_ms), [name])


def their_groups(version: int, throttle_ms: int, groups: dict[str, GroupOffsetsAnswer]) -> Any:
    group_kind = theirs.OffsetFetchResponse.OffsetFetchResponseGroup
    kind = group_kind.OffsetFetchResponseTopics
    return theirs.OffsetFetchResponse(
        version=version,
        throttle_time_ms=throttle_ms,
        groups=[
            group_kind(
                group_id=name,
                topics=their_topics(kind, kind.OffsetFetchResponsePartitions, group),
                error_code=group.error_code,
            )
            for name, group in groups.items()
        ],
    )


@given(st.sampled_from([8, 9]), int32, st.dictionaries(names, committed, max_size=2))
def test_committed_offsets_of_several_groups(
    version: int, throttle_ms: int, groups: dict[str, GroupOffsetsAnswer]
) -> None:
    check_answer(
        decode_offset_fetch,
        their_groups(version, throttle_ms, groups),
        OffsetFetchAnswer(groups, throttle_ms),
        list(groups),
    )


def test_a_group_that_is_missing_is_an_error() -> None:
    sent = payload(their_groups(8, 0, {"a": GroupOffsetsAnswer(0, {})}))
    with pytest.raises(WireError, match="lacks the group b"):
        decode_offset_fetch(8, sent, ["a", "b"])


def test_null_metadata_are_none() -> None:
    kind = theirs.OffsetFetchResponse.OffsetFetchResponseTopic
    partition = kind.OffsetFetchResponsePartition(
        partition_index=1, committed_offset=2, metadata=None
    )
    answer = theirs.OffsetFetchResponse(version=7, topics=[kind(name="t", partitions=[partition])])
    found = decode_offset_fetch(7, payload(answer), ["g"])
    assert found.groups["g"].offsets == {("t", 1): CommittedOffset(2, -1, "")}


descriptions = st.builds(
    TransactionDescription,
    int16,
    names,
    names,
    int32,
    int64,
    int64,
    int16,
    places.map(lambda found: tuple(sorted(found))),
)


@given(int32, st.lists(descriptions, max_size=2))
def test_describe_transactions_answer(
    throttle_ms: int, found: list[TransactionDescription]
) -> None:
    kind = theirs.DescribeTransactionsResponse.TransactionState
    answer = theirs.DescribeTransactionsResponse(
        version=0,
        throttle_time_ms=throttle_ms,
        transaction_states=[
            kind(
                error_code=each.error_code,
                transactional_id=each.transactional_id,
                transaction_state=each.state,
                transaction_timeout_ms=each.timeout_ms,
                transaction_start_time_ms=each.start_ms,
                producer_id=each.producer_id,
                producer_epoch=each.producer_epoch,
                topics=[
                    kind.TopicData(topic=name, partitions=partitions)
                    for name, partitions in grouped(list(each.partitions))
                ],
            )
            for each in found
        ],
    )
    check_answer(
        decode_describe_transactions, answer, DescribeTransactionsAnswer(tuple(found), throttle_ms)
    )


listed = st.builds(ListedTransaction, names, int64, names)


@given(
    versions(ApiKey.LIST_TRANSACTIONS),
    int32,
    int16,
    st.lists(names, max_size=2),
    st.lists(listed, max_size=3),
)
def test_list_transactions_answer(
    version: int, throttle_ms: int, code: int, unknown: list[str], found: list[ListedTransaction]
) -> None:
    answer = theirs.ListTransactionsResponse(
        version=version,
        throttle_time_ms=throttle_ms,
        error_code=code,
        unknown_state_filters=unknown,
        transaction_states=[
            theirs.ListTransactionsResponse.TransactionState(
                transactional_id=each.transactional_id,
                producer_id=each.producer_id,
                transaction_state=each.state,
            )
            for each in found
        ],
    )
    check_answer(
        decode_list_transactions,
        answer,
        ListTransactionsAnswer(code, tuple(found), tuple(unknown), throttle_ms),
    )


# Malformed answers ----------------------------------------------------------------------------

#: API key -> how to decode its response.
DECODERS: dict[ApiKey, Callable[[int, bytes], object]] = {
    ApiKey.FIND_COORDINATOR: lambda version, data: decode_find_coordinator(version, data, ["k"]),
    ApiKey.ADD_PARTITIONS_TO_TXN: decode_add_partitions_to_txn,
    ApiKey.ADD_OFFSETS_TO_TXN: decode_add_offsets_to_txn,
    ApiKey.END_TXN: decode_end_txn,
    ApiKey.TXN_OFFSET_COMMIT: decode_txn_offset_commit,
    ApiKey.OFFSET_FETCH: lambda version, data: decode_offset_fetch(version, data, ["g"]),
    ApiKey.DESCRIBE_TRANSACTIONS: decode_describe_transactions,
    ApiKey.LIST_TRANSACTIONS: decode_list_transactions,
}


@pytest.mark.parametrize("key", DECODERS, ids=lambda key: key.name)
@given(st.data(), st.binary(max_size=200))
def test_garbage_is_an_error_or_an_answer_and_nothing_else(
    key: ApiKey, data: st.DataObject, garbage: bytes
) -> None:
    try:
        DECODERS[key](data.draw(versions(key)), garbage)
    except WireError as error:
        assert str(error)  # noqa: PT017 - other garbage makes sense


def test_a_topic_without_a_name_is_an_error() -> None:
    answer = theirs.TxnOffsetCommitResponse(
        version=3,
        topics=[
            theirs.TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic(name=None, partitions=[])
        ],
    )
    with pytest.raises(WireError, match="required is null"):
        decode_txn_offset_commit(3, payload(answer))
