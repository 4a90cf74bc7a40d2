"""Transactions over several leaders, some of which are killed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest

from pykaproducer import EndState, Producer, TransactionControl
from pykaproducer.testing import KafkaCluster
from tests._support.fixtures.cluster import FEATURES, PROPERTIES
from tests.transactions.helper import PATIENCE, read, transactional

PARTITIONS = range(6)


@pytest.fixture(scope="module", params=[pytest.param("TV1", marks=pytest.mark.full), "TV2"])
def brokers(request: pytest.FixtureRequest) -> Iterator[KafkaCluster]:
    with KafkaCluster(3, properties=PROPERTIES, features=FEATURES[request.param]) as cluster:
        yield cluster


def send(producer: Producer, topic: str, name: str) -> None:
    for partition in PARTITIONS:
        producer.send(topic, b"%s-%d" % (name.encode(), partition), partition=partition)


def assert_committed(brokers: KafkaCluster, topic: str, names: Iterable[str]) -> None:
    values = read(brokers.bootstrap_servers, topic, "read_committed", PARTITIONS)
    assert values == [b"%s-%d" % (name.encode(), p) for p in PARTITIONS for name in names]


def test_each_leader_in_turn_is_killed_or_steps_down(brokers: KafkaCluster) -> None:
    """One of them is the coordinator, too. A partition that moves goes on with its numbers."""
    topic = "killed"
    brokers.create_topic(topic, partitions=len(PARTITIONS))
    names = []
    with transactional(brokers.bootstrap_servers, request_timeout_ms=5_000) as producer:
        producer.init_transactions(PATIENCE)
        for victim, end in enumerate((brokers.kill, brokers.kill, brokers.terminate)):
            producer.begin_transaction()
            for step in ("first", "second", "third"):
                send(producer, topic, f"{victim} {step}")
                names.append(f"{victim} {step}")
                if step == "first":
                    producer.flush()
                    end(victim)
                elif step == "second" and victim % 2:
                    producer.flush()
            producer.commit_transaction(PATIENCE)
            producer.begin_transaction()
            send(producer, topic, f"{victim} aborted")
            if victim % 2:
                producer.flush()
            producer.abort_transaction(PATIENCE)
            brokers.restart(victim)
    assert_committed(brokers, topic, names)


@pytest.mark.full
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
    assert_committed(brokers, topic, names)
