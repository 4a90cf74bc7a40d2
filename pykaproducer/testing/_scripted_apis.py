"""The scripted cluster's state, and the requests that its brokers answer.

Supported: ApiVersions 0-4, Metadata 0-13, InitProducerId 0-5, Produce 3-12, and the requests of
:mod:`._scripted_transactions`. Deviations from Apache Kafka 4.3 that may be relevant for tests:

* A stopped broker is removed from the metadata immediately. Its partitions have no leader until
  ``move_leader`` or ``start``: there is no leader election.
* All brokers are in-sync replicas of all partitions; ``acks`` has no effect except for 0.
* ``allow_auto_topic_creation`` has an effect if the cluster was created with ``auto_create``. The
  new topic, with leaders, is included in the same answer.
* Produce performs the checks listed in :mod:`._scripted_log`. There is no throttling.
* Authorized operations and topic ids are omitted.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from pykaproducer._errors.codes import ErrorCode
from pykaproducer.testing._messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    MetadataRequest,
    MetadataResponse,
    ProduceRequest,
    ProduceResponse,
)
from pykaproducer.testing._scripted_coordinator import Coordinators, Placed, TransactionalBatch
from pykaproducer.testing._scripted_log import AppendError, PartitionLog
from pykaproducer.testing._scripted_transactions import (
    TRANSACTION_NAMES,
    TRANSACTION_VERSIONS,
    TransactionApis,
    refused,
)

#: Supported versions: request class -> (first, last).
VERSIONS: dict[Any, tuple[int, int]] = {
    ProduceRequest: (3, 12),
    MetadataRequest: (0, 13),
    ApiVersionsRequest: (0, 4),
    InitProducerIdRequest: (0, 5),
    **TRANSACTION_VERSIONS,
}

#: Names of the requests in tests and scripts.
NAMES: dict[str, Any] = {
    "produce": ProduceRequest,
    "metadata": MetadataRequest,
    "api_versions": ApiVersionsRequest,
    "init_producer_id": InitProducerIdRequest,
    **TRANSACTION_NAMES,
}


#: The feature that turns the protocol of KIP-890 part 2 on, from level 2.
TRANSACTION_VERSION = "transaction.version"


@dataclass(slots=True)
class Partition:
    """One partition."""

    leader: int
    leader_epoch: int = 0
    log: PartitionLog = field(default_factory=PartitionLog)


@dataclass(slots=True)
class BrokerState:
    """One broker."""

    host: str
    port: int
    running: bool = True
    #: Whether it answers at all; if false, the host silently drops everything.
    reachable: bool = True


_cluster_numbers = itertools.count(1)


class ClusterState:
    """Brokers, topics and logs. Guarded by the cluster's lock."""

    def __init__(self, brokers: int, versions: dict[str, tuple[int, int]], auto_create: bool):
        self.brokers = {i: BrokerState(f"broker-{i}.scripted", 9092 + i) for i in range(brokers)}
        self.topics: dict[str, list[Partition]] = {}
        self.versions = VERSIONS | {NAMES[name]: range_ for name, range_ in versions.items()}
        self._auto_create = auto_create
        self._features_epoch = 1
        self._producer_ids = itertools.count(1000)
        self.coordinators = Coordinators(self._producer_ids, lambda place: self._at(place).log)
        self.transactions = TransactionApis(self.coordinators, self._exists, self._address)
        self.cluster_id = f"scripted-{next(_cluster_numbers)}"

    def add_topic(self, name: str, partitions: int) -> None:
        """Add a topic whose partitions are led by the brokers in turn."""
        if name in self.topics:
            raise ValueError(f"topic {name!r} already exists")
        ids = itertools.cycle(self.brokers)
        self.topics[name] = [Partition(next(ids)) for _ in range(partitions)]

    def leader(self, partition: Partition) -> int:
        """Return the leader of *partition*, or -1 if there is none."""
        return partition.leader if self.brokers[partition.leader].running else -1

    def _at(self, place: Placed) -> Partition:
        return self.topics[place[0]][place[1]]

    def _exists(self, place: Placed) -> bool:
        return 0 <= place[1] < len(self.topics.get(place[0], ()))

    def _address(self, broker: int) -> tuple[str, int] | None:
        state = self.brokers[broker]
        return (state.host, state.port) if state.running else None

    # Answering -------------------------------------------------------------------------------

    def perform(self, broker: int, request: Any, skip: Collection[tuple[str, int]]) -> Any:
        """Execute *request* and return the answer."""
        match request:
            case ProduceRequest():
                return self._produce(broker, request, skip)
            case MetadataRequest():
                return self._metadata(request)
            case ApiVersionsRequest():
                return self._api_versions(0)
            case InitProducerIdRequest():
                return self._init_producer_id(broker, request)
        return self.transactions.perform(broker, request, skip)

    def refuse(self, request: Any, code: int) -> Any:
        """Return the answer that rejects all of *request* with *code*."""
        match request:
            case ProduceRequest():
                return _produce_answer(
                    [
                        (topic.name, [_produced(part.index, code) for part in topic.partition_data])
                        for topic in request.topic_data
                    ]
                )
            case MetadataRequest():
                topics = [_topic(t.name, code, []) for t in request.topics or []]
                return self._metadata_answer(topics)
            case ApiVersionsRequest():
                return self._api_versions(code)
            case InitProducerIdRequest():
                return InitProducerIdResponse(
                    throttle_time_ms=0, error_code=code, producer_id=-1, producer_epoch=-1
                )
        return refused(request, code)

    def _api_versions(self, code: int) -> Any:
        kind, level = ApiVersionsResponse.ApiVersion, self.coordinators.level
        return ApiVersionsResponse(
            error_code=code,
            api_keys=[
                kind(api_key=request.API_KEY, min_version=first, max_version=last)
                for request, (first, last) in self.versions.items()
            ],
            throttle_time_ms=0,
            supported_features=[
                ApiVersionsResponse.SupportedFeatureKey(
                    name=TRANSACTION_VERSION, min_version=0, max_version=2
                )
            ],
            finalized_features_epoch=self._features_epoch,
            # A level of 0 is the same as none.
            finalized_features=[
                ApiVersionsResponse.FinalizedFeatureKey(
                    name=TRANSACTION_VERSION, max_version_level=level, min_version_level=level
                )
            ]
            if level
            else [],
        )

    def set_level(self, level: int) -> None:
        """Change the level of ``transaction.version``."""
        self.coordinators.level = level
        self._features_epoch += 1

    # Producer ids ----------------------------------------------------------------------------

    def _init_producer_id(self, broker: int, request: Any) -> Any:
        name = request.transactional_id
        if name is None:
            code, producer_id, epoch = 0, next(self._producer_ids), 0
        elif self.transactions.is_coordinator(broker, "transaction", name):
            expected = request.producer_id, request.producer_epoch
            code, producer_id, epoch = self.coordinators.initialize(
                name, request.transaction_timeout_ms, expected
            )
        else:
            code, producer_id, epoch = ErrorCode.NOT_COORDINATOR, -1, -1
        if code == ErrorCode.PRODUCER_FENCED and request.API_VERSION < 4:
            code = ErrorCode.INVALID_PRODUCER_EPOCH
        return InitProducerIdResponse(
            throttle_time_ms=0, error_code=code, producer_id=producer_id, producer_epoch=epoch
        )

    # Metadata --------------------------------------------------------------------------------

    def _metadata(self, request: Any) -> Any:
        everything = request.topics is None or (request.API_VERSION == 0 and not request.topics)
        names = list(self.topics) if everything else [topic.name for topic in request.topics]
        may_create = request.API_VERSION < 4 or request.allow_auto_topic_creation
        for name in names:
            if may_create and self._auto_create and name not in self.topics and _may_be(name):
                self.add_topic(name, 1)
        return self._metadata_answer([self._described(name) for name in names])

    def _described(self, name: str) -> Any:
        partitions = self.topics.get(name)
        if not _may_be(name):
            return _topic(name, ErrorCode.INVALID_TOPIC_EXCEPTION, [])
        if partitions is None:
            return _topic(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, [])
        return _topic(name, 0, [self._described_partition(*each) for each in enumerate(partitions)])

    def _described_partition(self, index: int, partition: Partition) -> Any:
        leader = self.leader(partition)
        everybody = list(self.brokers)
        return MetadataResponse.MetadataResponseTopic.MetadataResponsePartition(
            error_code=0 if leader >= 0 else ErrorCode.LEADER_NOT_AVAILABLE,
            partition_index=index,
            leader_id=leader,
            leader_epoch=partition.leader_epoch,
            replica_nodes=everybody,
            isr_nodes=[i for i in everybody if self.brokers[i].running],
            offline_replicas=[i for i in everybody if not self.brokers[i].running],
        )

    def _metadata_answer(self, topics: list[Any]) -> Any:
        running = {i: broker for i, broker in self.brokers.items() if broker.running}
        return MetadataResponse(
            throttle_time_ms=0,
            brokers=[
                MetadataResponse.MetadataResponseBroker(
                    node_id=i, host=broker.host, port=broker.port, rack=None
                )
                for i, broker in running.items()
            ],
            cluster_id=self.cluster_id,
            controller_id=min(running, default=-1),
            topics=topics,
        )

    # Produce ---------------------------------------------------------------------------------

    def _produce(self, broker: int, request: Any, skip: Collection[tuple[str, int]]) -> Any:
        if request.acks not in (-1, 0, 1):
            return self.refuse(request, ErrorCode.INVALID_REQUIRED_ACKS)
        leaders: set[int] = set()
        topics = [
            (
                topic.name,
                [
                    self._append(broker, request, topic.name, part, leaders)
                    if (topic.name, part.index) not in skip
                    else _produced(part.index, 0)
                    for part in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]
        endpoint = ProduceResponse.NodeEndpoint
        return _produce_answer(
            topics,
            [
                endpoint(node_id=i, host=state.host, port=state.port, rack=None)
                for i, state in self.brokers.items()
                if i in leaders
            ],
        )

    def _append(self, broker: int, request: Any, topic: str, data: Any, leaders: set[int]) -> Any:
        version = request.API_VERSION
        partitions = self.topics.get(topic, [])
        if not 0 <= data.index < len(partitions):
            return _produced(data.index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        partition = partitions[data.index]
        leader = self.leader(partition)
        if leader != broker:
            answer = _produced(data.index, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            if leader >= 0:
                leaders.add(leader)
                answer.current_leader = _leader(leader, partition.leader_epoch)
            return answer
        try:
            base_offset = partition.log.append(
                bytes(data.records),
                zstd_allowed=version >= 7,
                check=lambda producer_id, epoch: self.coordinators.may_write(
                    TransactionalBatch(
                        request.transactional_id, producer_id, epoch, (topic, data.index)
                    ),
                    version,
                ),
            )
        except AppendError as error:
            answer = _produced(data.index, error.code)
            answer.error_message = error.text
            return answer
        return _produced(data.index, 0, base_offset)


def _may_be(name: str) -> bool:
    """Return whether a topic may have this name."""
    return re.fullmatch(r"[a-zA-Z0-9._-]{1,249}", name) is not None and name not in (".", "..")


def _topic(name: str, code: int, partitions: list[Any]) -> Any:
    return MetadataResponse.MetadataResponseTopic(
        error_code=code, name=name, is_internal=False, partitions=partitions
    )


def _produced(index: int, code: int, base_offset: int = -1) -> Any:
    return ProduceResponse.TopicProduceResponse.PartitionProduceResponse(
        index=index,
        error_code=code,
        base_offset=base_offset,
        log_append_time_ms=-1,
        log_start_offset=0 if code == 0 else -1,
        record_errors=[],
        error_message=None,
    )


def _leader(broker: int, epoch: int) -> Any:
    kind = ProduceResponse.TopicProduceResponse.PartitionProduceResponse.LeaderIdAndEpoch
    return kind(leader_id=broker, leader_epoch=epoch)


def _produce_answer(topics: list[tuple[str, list[Any]]], endpoints: Collection[Any] = ()) -> Any:
    answer = ProduceResponse(
        responses=[
            ProduceResponse.TopicProduceResponse(name=name, partition_responses=partitions)
            for name, partitions in topics
        ],
        throttle_time_ms=0,
    )
    if endpoints:
        answer.node_endpoints = list(endpoints)
    return answer
