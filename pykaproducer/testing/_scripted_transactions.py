"""The requests of transactions that scripted brokers answer.

Supported: FindCoordinator 1-6, AddPartitionsToTxn 0-3, AddOffsetsToTxn 0-4, EndTxn 0-5,
TxnOffsetCommit 0-5, OffsetFetch 7-9, DescribeTransactions 0, ListTransactions 0-2. InitProducerId
is in :mod:`._scripted_apis`. Besides the deviations of :mod:`._scripted_coordinator`:

* Broker 0 is the coordinator of everything until ``move_coordinator``, also while it is stopped.
* Any version is accepted whatever the level of ``transaction.version`` is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from pykaproducer._errors.codes import ErrorCode
from pykaproducer.testing._scripted_coordinator import Coordinators, Placed, StoredOffset
from pykaproducer.testing._transaction_messages import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)

#: Supported versions: request class -> (first, last).
TRANSACTION_VERSIONS: dict[Any, tuple[int, int]] = {
    FindCoordinatorRequest: (1, 6),
    AddPartitionsToTxnRequest: (0, 3),
    AddOffsetsToTxnRequest: (0, 4),
    EndTxnRequest: (0, 5),
    TxnOffsetCommitRequest: (0, 5),
    OffsetFetchRequest: (7, 9),
    DescribeTransactionsRequest: (0, 0),
    ListTransactionsRequest: (0, 2),
}

#: Names of the requests in tests and scripts.
TRANSACTION_NAMES: dict[str, Any] = {
    "find_coordinator": FindCoordinatorRequest,
    "add_partitions_to_txn": AddPartitionsToTxnRequest,
    "add_offsets_to_txn": AddOffsetsToTxnRequest,
    "end_txn": EndTxnRequest,
    "txn_offset_commit": TxnOffsetCommitRequest,
    "offset_fetch": OffsetFetchRequest,
    "describe_transactions": DescribeTransactionsRequest,
    "list_transactions": ListTransactionsRequest,
}

#: The kinds of coordinators, by Kafka's number.
KINDS = ("group", "transaction")
_STATES = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "Dead",
    "PrepareEpochFence",
)


#: In place of an offset that was not committed.
_NOTHING = StoredOffset(-1, -1, "")


class TransactionApis:
    """Answers requests of transactions. Guarded by the cluster's lock."""

    def __init__(
        self,
        coordinators: Coordinators,
        exists: Callable[[Placed], bool],
        address: Callable[[int], tuple[str, int] | None],
    ) -> None:
        """*exists*: whether a partition exists. *address*: of a broker, None if it is stopped."""
        self._coordinators = coordinators
        self._exists, self._address = exists, address
        #: (kind, key) -> the broker that coordinates it, if not broker 0.
        self.placed: dict[tuple[str, str], int] = {}

    def is_coordinator(self, broker: int, kind: str, key: str) -> bool:
        """Return whether *broker* coordinates the group or the transactional id."""
        return self.placed.get((kind, key), 0) == broker

    def perform(self, broker: int, request: Any, skip: Collection[Placed]) -> Any:
        """Execute *request* and return the answer. Partitions in *skip* are not executed."""
        match request:
            case FindCoordinatorRequest():
                return _found(request, self._find)
            case AddPartitionsToTxnRequest():
                return self._add_partitions(broker, request, skip)
            case AddOffsetsToTxnRequest():
                return self._add_offsets(broker, request)
            case EndTxnRequest():
                return self._end(broker, request)
            case TxnOffsetCommitRequest():
                return self._commit_offsets(broker, request, skip)
            case OffsetFetchRequest():
                return _fetched(request, lambda group, place: self._fetch(broker, group, place))
            case DescribeTransactionsRequest():
                names = request.transactional_ids
                return _described([self._describe(broker, name) for name in names])
            case ListTransactionsRequest():
                return self._list(broker, request)
        raise AssertionError(f"no answer for {request.name}")

    def _moved(self, broker: int, kind: str, key: str) -> int:
        return 0 if self.is_coordinator(broker, kind, key) else ErrorCode.NOT_COORDINATOR

    def _find(self, kind: int, key: str) -> tuple[int, int, str, int]:
        if not 0 <= kind < len(KINDS):
            return ErrorCode.INVALID_REQUEST, -1, "", -1
        broker = self.placed.get((KINDS[kind], key), 0)
        address = self._address(broker)
        if address is None:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, -1, "", -1
        return (0, broker, *address)

    def _add_partitions(self, broker: int, request: Any, skip: Collection[Placed]) -> Any:
        name = request.v3_and_below_transactional_id
        code = self._moved(broker, "transaction", name) or self._coordinators.check(
            name, request.v3_and_below_producer_id, request.v3_and_below_producer_epoch
        )
        places = list(_places(request.v3_and_below_topics, "partitions"))
        unknown = [place for place in places if not self._exists(place)]
        codes = dict.fromkeys(places, _before(2, request, code))
        if unknown:
            codes = dict.fromkeys(places, int(ErrorCode.OPERATION_NOT_ATTEMPTED))
            codes |= dict.fromkeys(unknown, int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        elif not code:
            self._coordinators.add(name, [place for place in places if place not in skip])
        return _added(codes)

    def _add_offsets(self, broker: int, request: Any) -> Any:
        name = request.transactional_id
        code = self._moved(broker, "transaction", name) or self._coordinators.check(
            name, request.producer_id, request.producer_epoch
        )
        if not code:
            self._coordinators.add(name, (), [request.group_id])
        return AddOffsetsToTxnResponse(error_code=_before(2, request, code))

    def _end(self, broker: int, request: Any) -> Any:
        name = request.transactional_id
        code, producer_id, epoch = self._moved(broker, "transaction", name), -1, -1
        if not code:
            code, producer_id, epoch = self._coordinators.end(
                request.API_VERSION,
                name,
                request.producer_id,
                request.producer_epoch,
                commit=request.committed,
            )
        return EndTxnResponse(
            error_code=_before(2, request, code), producer_id=producer_id, producer_epoch=epoch
        )

    def _commit_offsets(self, broker: int, request: Any, skip: Collection[Placed]) -> Any:
        group = request.group_id
        codes: dict[Placed, int] = {}
        known = {
            (topic.name, part.partition_index): StoredOffset(
                part.committed_offset, part.committed_leader_epoch, part.committed_metadata or ""
            )
            for topic in request.topics
            for part in topic.partitions
        }
        unknown = [place for place in known if not self._exists(place)]
        code = self._moved(broker, "group", group)
        if not code and len(unknown) < len(known):
            code = self._coordinators.may_commit_offsets(
                request.API_VERSION,
                request.transactional_id,
                request.producer_id,
                request.producer_epoch,
                group,
            )
        for place, offset in known.items():
            codes[place] = code
            if place in unknown:
                codes[place] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif not code and place not in skip:
                codes[place] = self._coordinators.commit_offset(
                    group, request.producer_id, request.generation_id, place, offset
                )
        return _offsets_committed(codes)

    def _fetch(
        self, broker: int, group: str, place: Placed | None
    ) -> tuple[int, dict[Placed, tuple[StoredOffset, bool]]]:
        """Return an error code, and the offset of *place* (None: all) and whether it may change."""
        if code := self._moved(broker, "group", group):
            return code, {}
        stored, unstable = self._coordinators.stored(group), self._coordinators.unstable(group)
        wanted = {*stored, *unstable} if place is None else {place}
        return 0, {each: (stored.get(each, _NOTHING), each in unstable) for each in sorted(wanted)}

    def _describe(self, broker: int, name: str) -> Any:
        found = self._coordinators.ids.get(name)
        kind = DescribeTransactionsResponse.TransactionState
        if code := self._moved(broker, "transaction", name):
            return kind(error_code=code, transactional_id=name)
        if found is None:
            return kind(error_code=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, transactional_id=name)
        topics: dict[str, list[int]] = {}
        for topic, partition in sorted(found.places):
            topics.setdefault(topic, []).append(partition)
        if found.groups:
            topics["__consumer_offsets"] = [0]
        return kind(
            transactional_id=name,
            transaction_state=found.state,
            transaction_timeout_ms=found.timeout_ms,
            transaction_start_time_ms=found.start_ms,
            producer_id=found.producer_id,
            producer_epoch=found.epoch,
            topics=[kind.TopicData(topic=name, partitions=each) for name, each in topics.items()],
        )

    def _list(self, broker: int, request: Any) -> Any:
        try:
            pattern = re.compile(request.transactional_id_pattern or "(?s).*")
        except re.error:
            return ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
        kind = ListTransactionsResponse.TransactionState
        states, ids = request.state_filters, request.producer_id_filters
        found = [
            kind(
                transactional_id=name,
                producer_id=each.producer_id,
                transaction_state=each.state,
            )
            for name, each in self._coordinators.ids.items()
            if self.is_coordinator(broker, "transaction", name)
            and (not states or each.state in states)
            and (not ids or each.producer_id in ids)
            and pattern.fullmatch(name)
        ]
        return ListTransactionsResponse(
            unknown_state_filters=[state for state in states if state not in _STATES],
            transaction_states=found,
        )


def refused(request: Any, code: int) -> Any:
    """Return the answer that rejects all of *request* with *code*."""
    match request:
        case FindCoordinatorRequest():
            return _found(request, lambda kind, key: (code, -1, "", -1))
        case AddPartitionsToTxnRequest():
            return _added(dict.fromkeys(_places(request.v3_and_below_topics, "partitions"), code))
        case AddOffsetsToTxnRequest():
            return AddOffsetsToTxnResponse(error_code=code)
        case EndTxnRequest():
            return EndTxnResponse(error_code=code)
        case TxnOffsetCommitRequest():
            places = [(t.name, p.partition_index) for t in request.topics for p in t.partitions]
            return _offsets_committed(dict.fromkeys(places, code))
        case OffsetFetchRequest():
            return _fetched(request, lambda group, place: (code, {}))
        case DescribeTransactionsRequest():
            kind = DescribeTransactionsResponse.TransactionState
            names = request.transactional_ids
            return _described([kind(error_code=code, transactional_id=name) for name in names])
        case ListTransactionsRequest():
            return ListTransactionsResponse(error_code=code)
    raise AssertionError(f"no answer for {request.name}")


def _before(version: int, request: Any, code: int) -> int:
    """Return *code*, or what older clients know in place of PRODUCER_FENCED (KIP-588)."""
    if code == ErrorCode.PRODUCER_FENCED and version > request.API_VERSION:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code


def _places(topics: Iterable[Any], partitions: str) -> Iterator[Placed]:
    for topic in topics:
        for number in getattr(topic, partitions):
            yield topic.name, number


def _by_topic(codes: dict[Placed, int]) -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = {}
    for (topic, partition), code in codes.items():
        found.setdefault(topic, {})[partition] = code
    return found


def _found(request: Any, find: Callable[[int, str], tuple[int, int, str, int]]) -> Any:
    if request.API_VERSION < 4:
        code, broker, host, port = find(request.key_type, request.key)
        return FindCoordinatorResponse(error_code=code, node_id=broker, host=host, port=port)
    coordinators = []
    for key in request.coordinator_keys:
        code, broker, host, port = find(request.key_type, key)
        coordinators.append(
            FindCoordinatorResponse.Coordinator(
                key=key, error_code=code, node_id=broker, host=host, port=port
            )
        )
    return FindCoordinatorResponse(coordinators=coordinators)


def _added(codes: dict[Placed, int]) -> Any:
    kind = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
    one = kind.AddPartitionsToTxnPartitionResult
    return AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=[
            kind(
                name=name,
                results_by_partition=[
                    one(partition_index=number, partition_error_code=code)
                    for number, code in partitions.items()
                ],
            )
            for name, partitions in _by_topic(codes).items()
        ]
    )


def _offsets_committed(codes: dict[Placed, int]) -> Any:
    kind = TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
    one = kind.TxnOffsetCommitResponsePartition
    return TxnOffsetCommitResponse(
        topics=[
            kind(
                name=name,
                partitions=[
                    one(partition_index=number, error_code=code)
                    for number, code in partitions.items()
                ],
            )
            for name, partitions in _by_topic(codes).items()
        ]
    )


def _fetched(request: Any, fetch: Callable[[str, Placed | None], Any]) -> Any:
    if request.API_VERSION >= 8:
        kind = OffsetFetchResponse.OffsetFetchResponseGroup
        topic_kind = kind.OffsetFetchResponseTopics
        one = topic_kind.OffsetFetchResponsePartitions
        groups = []
        for each in request.groups:
            code, topics = _fetched_of(request, each, fetch, topic_kind, one)
            groups.append(kind(group_id=each.group_id, error_code=code, topics=topics))
        return OffsetFetchResponse(groups=groups)
    topic_kind = OffsetFetchResponse.OffsetFetchResponseTopic
    one = topic_kind.OffsetFetchResponsePartition
    code, topics = _fetched_of(request, request, fetch, topic_kind, one)
    return OffsetFetchResponse(error_code=code, topics=topics)


def _fetched_of(
    request: Any, group: Any, fetch: Callable[[str, Placed | None], Any], kind: Any, one: Any
) -> tuple[int, list[Any]]:
    wanted: list[Placed | None] = [None]
    if group.topics is not None:
        wanted = list(_places(group.topics, "partition_indexes"))
    code = 0
    topics: dict[str, list[Any]] = {}
    for place in wanted:
        code, offsets = fetch(group.group_id, place)
        for (topic, number), (offset, unstable) in offsets.items():
            refused = request.require_stable and unstable
            shown = _NOTHING if refused else offset
            topics.setdefault(topic, []).append(
                one(
                    partition_index=number,
                    committed_offset=shown.offset,
                    committed_leader_epoch=shown.leader_epoch,
                    metadata=shown.metadata,
                    error_code=ErrorCode.UNSTABLE_OFFSET_COMMIT if refused else 0,
                )
            )
    return code, [kind(name=name, partitions=each) for name, each in topics.items()]


def _described(states: list[Any]) -> Any:
    return DescribeTransactionsResponse(transaction_states=states)
