"""Faults of a cluster, which are repaired whatever a test does."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pykaproducer.testing import KafkaCluster, _admin
from pykaproducer.testing._processes import tick
from tests._support.messages import AlterPartitionReassignmentsRequest, ElectLeadersRequest

#: How long the brokers may take to hand over a partition (seconds).
PATIENCE = 30.0


@contextmanager
def paused(cluster: KafkaCluster, broker: int = 0) -> Iterator[None]:
    """Stop a broker for the duration of the block; its sockets stay open and silent."""
    cluster.pause(broker)
    try:
        yield
    finally:
        cluster.resume(broker)


@contextmanager
def down(cluster: KafkaCluster, broker: int = 0) -> Iterator[None]:
    """Kill a broker for the duration of the block, and restart it on the same port."""
    cluster.kill(broker)
    try:
        yield
    finally:
        cluster.restart(broker)


def move_leaders(cluster: KafkaCluster, topic: str, leaders: Mapping[int, int]) -> None:
    """Make the named brokers the leaders of *topic*'s partitions, and wait for the change.

    Every broker has a replica, so nothing is copied.
    """
    _change_preferred_leaders(cluster, topic, leaders)
    deadline = time.monotonic() + PATIENCE
    while wrong := [p for p, leader in leaders.items() if cluster.leader_of(topic, p) != leader]:
        assert time.monotonic() < deadline, f"{topic}: partitions {wrong} did not move"
        _elect(cluster, topic, list(leaders))
        tick()


def _change_preferred_leaders(
    cluster: KafkaCluster, topic: str, leaders: Mapping[int, int]
) -> None:
    entry = AlterPartitionReassignmentsRequest.ReassignableTopic
    ids = [broker.id for broker in cluster.brokers]
    request = AlterPartitionReassignmentsRequest(
        version=0,
        timeout_ms=int(PATIENCE * 1000),
        topics=[
            entry(
                name=topic,
                partitions=[
                    entry.ReassignablePartition(
                        partition_index=partition,
                        replicas=[leader, *(i for i in ids if i != leader)],
                    )
                    for partition, leader in leaders.items()
                ],
            )
        ],
    )
    answer = _ask_controller(cluster, request)
    assert answer.error_code == 0, answer


def _elect(cluster: KafkaCluster, topic: str, partitions: list[int]) -> None:
    request = ElectLeadersRequest(
        version=1,
        election_type=0,  # the preferred leader
        topic_partitions=[ElectLeadersRequest.TopicPartitions(topic=topic, partitions=partitions)],
        timeout_ms=int(PATIENCE * 1000),
    )
    _ask_controller(cluster, request)


def _ask_controller(cluster: KafkaCluster, request: Any) -> Any:
    # Any broker forwards it.
    return _admin.ask(cluster.brokers[0].port, request, PATIENCE)
