"""The requests of a transactional producer, as the brokers of the simulated cluster answer them.

They are decoded and encoded by the schemas of :mod:`pykaproducer.testing`, which share no code with
the product's.
"""

from __future__ import annotations

import functools
from typing import Any

from pykaproducer._errors.codes import ErrorCode
from pykaproducer._machines.coordination import TV1
from pykaproducer._wire.messages import ApiKey
from pykaproducer.testing._messages import InitProducerIdRequest, InitProducerIdResponse
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
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from tests.kernel.helper import TOPIC

from .cluster import Fate, Kind
from .coordinator import State
from .transactional_log import TransactionalCluster

#: From this version on EndTxn bumps the epoch (KIP-890).
BUMPS = 5
_PORT = 9092


def answer_lookup(cluster: TransactionalCluster, version: int, data: bytes) -> bytes:
    """Answer FindCoordinator; every key has the same coordinator."""
    request = FindCoordinatorRequest.decode(data, version, framed=True)
    kind = FindCoordinatorResponse.Coordinator
    broker, code = cluster.named, 0
    if broker < 0:
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE
    coordinators = [
        kind(
            key=key,
            node_id=broker,
            host="" if code else "h",
            port=-1 if code else _PORT + broker,
            error_code=code,
        )
        for key in request.coordinator_keys
    ]
    return _encoded(FindCoordinatorResponse(version=version, coordinators=coordinators))


def answer_call(
    cluster: TransactionalCluster, broker: int, api_key: int, version: int, data: bytes, fate: Fate
) -> bytes:
    """Handle a request to the coordinator on *broker*, and return the response."""
    kind, handle = _HANDLERS[api_key]
    request = kind.decode(data, version, framed=True)
    code = fate.code
    if code == ErrorCode.TRANSACTION_ABORTABLE and api_key == ApiKey.END_TXN:
        if request.committed:
            cluster.has_refused_a_commit = True
        else:
            # An abort that is refused so twice makes the producer unusable. No broker does that.
            fate = Fate(Kind.REFUSE, code := ErrorCode.CONCURRENT_TRANSACTIONS)
    if broker != cluster.coordinating:
        fate = Fate(Kind.REFUSE, code := ErrorCode.NOT_COORDINATOR)
    found = (code, -1, -1)
    if fate.kind is not Kind.REFUSE:
        found = handle(cluster, request)
        if fate.kind is Kind.TAKE_AND_COMPLAIN and not found[0]:
            found = (code, -1, -1)
    return _encoded(_RESPONSES[api_key](request, *found))


def _init(cluster: TransactionalCluster, request: Any) -> tuple[int, int, int]:
    return cluster.init(request.producer_id, request.producer_epoch)


def _add_partitions(cluster: TransactionalCluster, request: Any) -> tuple[int, int, int]:
    places = [p for topic in request.v3_and_below_topics for p in topic.partitions]
    pid, epoch = request.v3_and_below_producer_id, request.v3_and_below_producer_epoch
    cluster.check_protocol(pid, epoch, TV1)
    return cluster.coordinator.add(pid, epoch, places)


def _add_offsets(cluster: TransactionalCluster, request: Any) -> tuple[int, int, int]:
    cluster.check_protocol(request.producer_id, request.producer_epoch, TV1)
    return cluster.coordinator.add(request.producer_id, request.producer_epoch, [request.group_id])


def _end(cluster: TransactionalCluster, request: Any) -> tuple[int, int, int]:
    pid, epoch, bumps = request.producer_id, request.producer_epoch, request.API_VERSION >= BUMPS
    return cluster.end(pid, epoch, commits=request.committed, bumps=bumps)


def _commit_offsets(cluster: TransactionalCluster, request: Any) -> tuple[int, int, int]:
    offsets = {
        each.partition_index: each.committed_offset
        for topic in request.topics
        for each in topic.partitions
    }
    code = cluster.commit_offsets(
        request.group_id, request.producer_id, request.producer_epoch, offsets, request.API_VERSION
    )
    return code, -1, -1


def _describe(cluster: TransactionalCluster, request: Any) -> tuple[int, int, int]:
    return 0, cluster.coordinator.state.value, -1


_HANDLERS: dict[int, tuple[Any, Any]] = {
    ApiKey.INIT_PRODUCER_ID: (InitProducerIdRequest, _init),
    ApiKey.ADD_PARTITIONS_TO_TXN: (AddPartitionsToTxnRequest, _add_partitions),
    ApiKey.ADD_OFFSETS_TO_TXN: (AddOffsetsToTxnRequest, _add_offsets),
    ApiKey.END_TXN: (EndTxnRequest, _end),
    ApiKey.TXN_OFFSET_COMMIT: (TxnOffsetCommitRequest, _commit_offsets),
    ApiKey.DESCRIBE_TRANSACTIONS: (DescribeTransactionsRequest, _describe),
}


def _producer_answer(kind: Any, request: Any, code: int, producer_id: int, epoch: int) -> Any:
    return kind(
        version=request.API_VERSION, error_code=code, producer_id=producer_id, producer_epoch=epoch
    )


def _partitions_answer(request: Any, code: int, *_: int) -> Any:
    topic = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
    result = topic.AddPartitionsToTxnPartitionResult
    results = [
        topic(
            name=each.name,
            results_by_partition=[
                result(partition_index=partition, partition_error_code=code)
                for partition in each.partitions
            ],
        )
        for each in request.v3_and_below_topics
    ]
    return AddPartitionsToTxnResponse(
        version=request.API_VERSION, results_by_topic_v3_and_below=results
    )


def _code_answer(request: Any, code: int, *_: int) -> Any:
    return AddOffsetsToTxnResponse(version=request.API_VERSION, error_code=code)


def _offsets_answer(request: Any, code: int, *_: int) -> Any:
    topic = TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
    result = topic.TxnOffsetCommitResponsePartition
    partitions = [
        result(partition_index=each.partition_index, error_code=code)
        for each in request.topics[0].partitions
    ]
    return TxnOffsetCommitResponse(
        version=request.API_VERSION, topics=[topic(name=TOPIC, partitions=partitions)]
    )


def _description(request: Any, code: int, state: int, *_: int) -> Any:
    (name,) = request.transactional_ids
    found = DescribeTransactionsResponse.TransactionState(
        error_code=code,
        transactional_id=name,
        transaction_state="" if code else State(state).name.title().replace("_", ""),
        transaction_timeout_ms=0,
        transaction_start_time_ms=-1,
        producer_id=-1,
        producer_epoch=-1,
        topics=[],
    )
    return DescribeTransactionsResponse(version=request.API_VERSION, transaction_states=[found])


_RESPONSES: dict[int, Any] = {
    ApiKey.INIT_PRODUCER_ID: functools.partial(_producer_answer, InitProducerIdResponse),
    ApiKey.ADD_PARTITIONS_TO_TXN: _partitions_answer,
    ApiKey.ADD_OFFSETS_TO_TXN: _code_answer,
    ApiKey.END_TXN: functools.partial(_producer_answer, EndTxnResponse),
    ApiKey.TXN_OFFSET_COMMIT: _offsets_answer,
    ApiKey.DESCRIBE_TRANSACTIONS: _description,
}


def _encoded(response: Any) -> bytes:
    """Return *response* without the correlation id."""
    response.with_header()
    return bytes(response.encode()[4:])
