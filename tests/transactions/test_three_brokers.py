"""Transactions over several leaders, some of which are killed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pykaproducer import EndState, Producer, TransactionControl
from pykaproducer.testing import KafkaCluster
from pykaproducer.testing._processes import tick
from tests._support.fixtures.cluster import kafka_or_skip
from tests.transactions.helper import FEATURES, PATIENCE, PROPERTIES, read, transactional

PARTITIONS = range(6)


@pytest.fixture(scope="module", params=sorted(FEATURES))
def brokers(request: pytest.FixtureRequest) -> Iterator[KafkaCluster]:
    kafka_or_skip()
    with KafkaCluster(
        3, properties=PROPERTIES, features=FEATURES[request.param], startup_timeout=180
    ) as cluster:
        yield cluster


def send(producer: Producer, topic: str, name: str) -> None:
    for partition in PARTITIONS:
        producer.send(topic, b"%s-%d" % (name.encode(), partition), partition=partition)


def test_each_leader_in_turn_is_killed(brokers: KafkaCluster) -> None:
    """One of them is the coordinator, too."""
    topic = "killed"
    brokers.create_topic(topic, partitions=len(PARTITIONS))
    names = []
    with transactional(brokers.bootstrap_servers, request_timeout_ms=5_000) as producer:
        producer.init_transactions(PATIENCE)
        for victim in range(3):
            producer.begin_transaction()
            for step in ("first", "second", "third"):
                send(producer, topic, f"{victim} {step}")
                names.append(f"{victim} {step}")
                if step == "first":
                    producer.flush()
                    brokers.kill(victim)
                elif step == "second" and victim % 2:
                    producer.flush()
            producer.commit_transaction(PATIENCE)
            producer.begin_transaction()
            send(producer, topic, f"{victim} aborted")
            if victim % 2:
                producer.flush()
            producer.abort_transaction(PATIENCE)
            brokers.restart(victim)
    values = read(brokers.bootstrap_servers, topic, "read_committed", PARTITIONS)
    assert values == [b"%s-%d" % (name.encode(), p) for p in PARTITIONS for name in names]


def test_a_leader_that_steps_down(brokers: KafkaCluster) -> None:
    """A partition that moves in a transaction continues with its numbers."""
    topic = "moved"
    brokers.create_topic(topic, partitions=len(PARTITIONS))
    with transactional(brokers.bootstrap_servers) as producer:
        producer.init_transactions(PATIENCE)
        producer.begin_transaction()
        send(producer, topic, "before")
        producer.flush()
        leader = brokers.leader_of(topic, 0)
        brokers.terminate(leader)
        send(producer, topic, "after")
        producer.commit_transaction(PATIENCE)
        brokers.restart(leader)
    values = read(brokers.bootstrap_servers, topic, "read_committed", PARTITIONS)
    assert values == [b"%s-%d" % (n, p) for p in PARTITIONS for n in (b"before", b"after")]


def test_batches_in_flight_move_to_another_leader(brokers: KafkaCluster) -> None:
    """They keep their numbers, and are not dropped as those of another transaction are."""
    topic = "in-flight"
    brokers.create_topic(topic, partitions=len(PARTITIONS))
    with transactional(brokers.bootstrap_servers) as producer:
        producer.init_transactions(PATIENCE)
        producer.begin_transaction()
        send(producer, topic, "before")
        producer.flush()
        leader = brokers.leader_of(topic, 0)
        brokers.pause(leader)
        send(producer, topic, "in flight")
        assert producer._pipeline is not None
        worker = producer._pipeline.brokers.find(leader)
        assert worker is not None
        while not worker.requests:
            tick()
        brokers.kill(leader)
        send(producer, topic, "after")
        producer.commit_transaction(PATIENCE)
        brokers.restart(leader)
    values = read(brokers.bootstrap_servers, topic, "read_committed", PARTITIONS)
    names = (b"before", b"in flight", b"after")
    assert values == [b"%s-%d" % (name, p) for p in PARTITIONS for name in names]


def test_transactions_are_ended_while_their_coordinators_move(brokers: KafkaCluster) -> None:
    """Those of a broker that is killed are found at the others; the rest is not held up."""
    topic = "ended"
    brokers.create_topic(topic, partitions=len(PARTITIONS))
    names = [f"{topic}-{number:02d}" for number in range(24)]
    found = []
    with transactional(brokers.bootstrap_servers, transaction_timeout_ms=600_000) as producer:
        for name in names:
            producer.init_transactions(PATIENCE, transactional_id=name)
            producer.begin_transaction()
            send(producer, topic, name)
            found.append(producer.prepare_transaction(PATIENCE))
    with TransactionControl(bootstrap_servers=brokers.bootstrap_servers) as control:
        described = control.describe(names)
        assert {each.state for each in described.values()} == {"Ongoing"}
        assert [each.transactional_id for each in control.list(f"{topic}-")] == names
        victim = brokers.leader_of("__transaction_state", 0)
        brokers.kill(victim)
        try:
            listed = control.list(f"{topic}-", timeout=PATIENCE)  # of the brokers that are left
            assert {each.transactional_id for each in listed} <= set(names)
            ended = control.complete_all(found, commit=True, timeout=PATIENCE)
            assert {each.state for each in ended} == {EndState.COMMITTED}
            assert [each.transactional_id for each in control.list(f"{topic}-")] == names
        finally:
            brokers.restart(victim)
    values = read(brokers.bootstrap_servers, topic, "read_committed", PARTITIONS)
    assert values == [b"%s-%d" % (name.encode(), p) for p in PARTITIONS for name in names]
