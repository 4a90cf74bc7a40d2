"""The cluster, topics and partitions, as returned by ``list_topics()``."""

from __future__ import annotations

from dataclasses import dataclass, field

from pykaproducer._wire.describe import ClusterDescription, PartitionDescription, TopicDescription
from pykaproducer.confluent.errors import KafkaError


@dataclass(eq=False, repr=False)
class BrokerMetadata:
    """A broker."""

    id: int = -1
    host: str | None = None
    port: int = -1

    def __repr__(self) -> str:
        return f"BrokerMetadata({self.id}, {self.host}:{self.port})"

    def __str__(self) -> str:
        return f"{self.host}:{self.port}/{self.id}"


@dataclass(eq=False, repr=False)
class PartitionMetadata:
    """A partition; its brokers are ids, which may be missing in ``ClusterMetadata.brokers``."""

    id: int = -1
    #: -1 if there is none.
    leader: int = -1
    replicas: list[int] = field(default_factory=list)
    isrs: list[int] = field(default_factory=list)
    error: KafkaError | None = None

    def __repr__(self) -> str:
        return f"PartitionMetadata({self.id}{'' if self.error is None else f', {self.error}'})"

    def __str__(self) -> str:
        return str(self.id)


@dataclass(eq=False, repr=False)
class TopicMetadata:
    """A topic."""

    topic: str | None = None
    partitions: dict[int, PartitionMetadata] = field(default_factory=dict)
    error: KafkaError | None = None

    def __repr__(self) -> str:
        error = "" if self.error is None else f", {self.error}"
        return f"TopicMetadata({self.topic}, {len(self.partitions)} partitions{error})"

    def __str__(self) -> str:
        return str(self.topic)


@dataclass(eq=False, repr=False)
class ClusterMetadata:
    """A cluster with its brokers by id and its topics by name."""

    cluster_id: str | None = None
    #: -1 if unknown.
    controller_id: int = -1
    brokers: dict[int, BrokerMetadata] = field(default_factory=dict)
    topics: dict[str, TopicMetadata] = field(default_factory=dict)
    #: The broker that answered.
    orig_broker_id: int = -1
    orig_broker_name: str | None = None

    def __repr__(self) -> str:
        return f"ClusterMetadata({self.cluster_id})"

    def __str__(self) -> str:
        return str(self.cluster_id)


def cluster_metadata(found: ClusterDescription) -> ClusterMetadata:
    """Translate *found* to confluent-kafka's terms."""
    brokers = {b.node_id: BrokerMetadata(b.node_id, b.host, b.port) for b in found.brokers}
    host, port = found.answered_by
    asked = next((b.id for b in brokers.values() if (b.host, b.port) == (host, port)), -1)
    name = f"{host}:{port}/{asked if asked >= 0 else 'bootstrap'}"
    topics = {topic.name: _topic(topic) for topic in found.topics}
    return ClusterMetadata(found.cluster_id, found.controller_id, brokers, topics, asked, name)


def _topic(found: TopicDescription) -> TopicMetadata:
    partitions = {partition.index: _partition(partition) for partition in found.partitions}
    return TopicMetadata(found.name, partitions, _error(found.error_code))


def _partition(found: PartitionDescription) -> PartitionMetadata:
    return PartitionMetadata(
        found.index,
        found.leader_id,
        list(found.replicas),
        list(found.in_sync),
        _error(found.error_code),
    )


def _error(code: int) -> KafkaError | None:
    return KafkaError(code) if code else None
