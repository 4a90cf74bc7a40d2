"""Brokers die, return late, and hand over their partitions while messages are in flight."""

from __future__ import annotations

import time
from typing import NamedTuple

import pytest

from pykaproducer import Delivery, Producer, Status
from pykaproducer.testing import KafkaCluster
from pykaproducer.testing._processes import tick
from tests._support.pairs import partly

from .faults import down, move_leaders
from .readback import read_log
from .stream import PATIENCE, Stream

COUNT = 20_000


@pytest.fixture(scope="module")
def cluster(own_cluster: KafkaCluster) -> KafkaCluster:
    """Return brokers that may be stopped."""
    return own_cluster


@pytest.fixture(scope="module")
def cluster3(own_cluster3: KafkaCluster) -> KafkaCluster:
    """Return brokers that may be stopped."""
    return own_cluster3


# One broker is killed and restarted


class Outage(NamedTuple):
    """Messages that were in flight, or were sent, while the only broker was dead."""

    idempotent: Stream
    unnumbered: Stream
    late: Delivery
    unknown_topic: Delivery
    statuses: list[Status]


@pytest.fixture(scope="module")
def outage(cluster: KafkaCluster) -> Outage:
    """Return one outage for all its tests: a broker takes some seconds to restart."""
    cluster.create_topic("outage-idempotent", partitions=4)
    cluster.create_topic("outage-unnumbered", partitions=4)
    with (
        Stream(cluster, "outage-idempotent", 4, COUNT) as idempotent,
        Stream(cluster, "outage-unnumbered", 4, COUNT, acks=1) as unnumbered,
        Producer(bootstrap_servers=cluster.bootstrap_servers) as newcomer,
    ):
        idempotent.wait_for_more(1000)
        unnumbered.wait_for_more(1000)
        with down(cluster):
            idempotent.go_on()
            unnumbered.go_on()
            # The port refuses connections: this producer has never reached a broker.
            late = newcomer.send("outage-idempotent", b"-1", partition=0)
            unknown_topic = newcomer.send("outage-unknown", b"value")
            statuses = [late.status, unknown_topic.status]
        idempotent.finish()
        unnumbered.finish()
        newcomer.flush(PATIENCE)
    # The producers are closed: one that is open may connect at any time, which looks like a leak.
    return Outage(idempotent, unnumbered, late, unknown_topic, statuses)


def test_a_killed_broker_loses_and_doubles_nothing(outage: Outage) -> None:
    stream = outage.idempotent
    assert stream.errors == []
    numbers = stream.in_log()
    numbers[0].remove(-1)  # sent by the late producer
    assert numbers == stream.expected()


def test_without_idempotence_a_killed_broker_loses_nothing_and_order_holds(outage: Outage) -> None:
    outage.unnumbered.assert_in_order()


def test_reports_come_in_the_order_of_the_log(outage: Outage) -> None:
    for stream in (outage.idempotent, outage.unnumbered):
        for offsets in stream.offsets:
            known = [offset for offset in offsets if offset >= 0]
            assert known == sorted(known)
        assert sum(map(len, stream.offsets)) == stream.sent


def test_what_was_sent_before_the_broker_is_up_is_delivered(
    cluster: KafkaCluster, outage: Outage
) -> None:
    assert outage.statuses == [Status.NOT_PERSISTED] * 2
    assert outage.late.exception(0) is None
    assert outage.unknown_topic.result(0).offset == 0
    assert read_log(cluster, "outage-unknown").values == [b"value"]


# Three brokers


@pytest.mark.parametrize("idempotent", partly([True, False], [True]))
def test_leaders_may_move_while_messages_are_under_way(
    cluster3: KafkaCluster, topic: str, idempotent: bool
) -> None:
    """No broker fails: each answers that it is no longer the leader."""
    cluster3.create_topic(topic, partitions=3)
    with Stream(cluster3, topic, 3, COUNT // 2, enable_idempotence=idempotent) as stream:
        stream.wait_for_more(1000)
        leaders = [{cluster3.leader_of(topic, p)} for p in range(3)]
        for step in range(4):
            move_leaders(cluster3, topic, {p: (p + step) % 3 for p in range(3)})
            for p in range(3):
                leaders[p].add(cluster3.leader_of(topic, p))
            stream.wait_for_more(500)
        stream.finish()
    assert leaders == [{0, 1, 2}] * 3
    if idempotent:
        stream.assert_exactly_once()
    else:
        stream.assert_in_order()


def test_a_disk_failure_loses_and_duplicates_nothing(cluster3: KafkaCluster, topic: str) -> None:
    """The broker keeps running, and rejects the partitions of that disk until it is restarted."""
    cluster3.create_topic(topic, partitions=12, config={"min.insync.replicas": "2"})
    with Stream(cluster3, topic, 12, COUNT // 2) as stream:
        stream.wait_for_more(1000)
        leaders = {p: cluster3.leader_of(topic, p) for p in range(12)}
        hit, leader = next(
            (p, leader) for p, leader in leaders.items() if cluster3.disk_of(leader, topic, p) == 1
        )
        cluster3.fail_disk(leader)
        try:
            deadline = time.monotonic() + PATIENCE
            while cluster3.leader_of(topic, hit) == leader:
                assert time.monotonic() < deadline
                tick()
            stream.finish()
            later = {p: cluster3.leader_of(topic, p) for p in range(12)}
        finally:
            cluster3.restart(leader)
    # A batch may be confirmed after a younger one: its replicas waited for that disk.
    assert stream.errors == [], f"disk of broker {leader}; leaders before {leaders}, after {later}"
    assert stream.in_log() == stream.expected()


def test_a_leader_that_dies_loses_and_doubles_nothing(cluster3: KafkaCluster, topic: str) -> None:
    cluster3.create_topic(topic, partitions=3, config={"min.insync.replicas": "2"})
    with Stream(cluster3, topic, 3, COUNT) as stream:
        stream.wait_for_more(1000)
        leader = cluster3.leader_of(topic, 0)
        cluster3.kill(leader)
        stream.finish()
        assert cluster3.leader_of(topic, 0) != leader
    stream.assert_exactly_once()
