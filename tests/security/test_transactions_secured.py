"""Transactions on secured listeners: missing rights, TLS, and sessions that expire."""

from __future__ import annotations

import itertools
import time
from typing import Any, NamedTuple

import pytest
from kafka import TopicPartition

from pykaproducer import Producer
from pykaproducer.errors import (
    CommitOutcome,
    TransactionAbortableError,
    TransactionError,
    TransactionFatalError,
)
from pykaproducer.testing import KafkaCluster
from tests._support.logs import told_by_log
from tests.cluster.stream import PATIENCE
from tests.security.test_delivery import AGAIN, debug_log
from tests.transactions.helper import read

from .listeners import On

_numbers = itertools.count()
USER = "transactor"


class Right(NamedTuple):
    """A right that a transactional producer needs."""

    kind: str
    operation: str


#: The rights of a program that reads, computes and writes. Write and Read imply Describe.
ID, TOPIC = Right("transactional_id", "WRITE"), Right("topic", "WRITE")
GROUP, SOURCE = Right("group", "READ"), Right("source", "READ")
ALL = [ID, TOPIC, GROUP, SOURCE]


class Names(NamedTuple):
    """Names that no other test uses, by the kind of right."""

    transactional_id: str
    topic: str
    group: str
    source: str


@pytest.fixture
def names(secured: KafkaCluster, topic: str) -> Names:
    made = Names(*(f"{each}-{topic}-{next(_numbers)}" for each in Names._fields))
    for name in (made.topic, made.source):
        secured.create_topic(name)
    return made


def allow(secured: KafkaCluster, names: Names, *rights: Right) -> None:
    for right in rights:
        kind = "topic" if right.kind == "source" else right.kind
        secured.allow(USER, getattr(names, right.kind), right.operation, kind=kind)


def producer_of(secured: KafkaCluster, names: Names, **more: Any) -> Producer:
    settings = secured.settings(USER, listener=On.RIGHTS)
    return Producer(**settings, transactional_id=names.transactional_id, **more)


def work(producer: Producer, names: Names) -> None:
    """Commit a message and an offset."""
    with producer.transaction():
        producer.send(names.topic, b"value")
        offsets = {TopicPartition(names.source, 0): 1}
        producer.send_offsets_to_transaction(offsets, names.group)


def committed(secured: KafkaCluster, names: Names) -> Any:
    broker = secured.brokers[0]  # its plain listener
    return read(f"{broker.host}:{broker.port}", names.topic, "read_committed", [0])


def test_with_all_rights_and_no_other(secured: KafkaCluster, names: Names) -> None:
    """In particular, IdempotentWrite on the cluster is not needed."""
    allow(secured, names, *ALL)
    with producer_of(secured, names) as producer:
        work(producer, names)
    assert committed(secured, names) == [b"value"]


@pytest.mark.parametrize(
    ("granted", "request_", "permission"),
    [
        ((), "FIND_COORDINATOR", "Describe and Write"),
        ((Right("transactional_id", "DESCRIBE"),), "INIT_PRODUCER_ID", "Write"),
    ],
    ids=["describe", "write"],
)
def test_without_a_right_on_the_transactional_id(
    secured: KafkaCluster, names: Names, granted: tuple[Right, ...], request_: str, permission: str
) -> None:
    allow(secured, names, TOPIC, GROUP, SOURCE, *granted)
    with producer_of(secured, names) as producer:
        for _ in range(2):
            with pytest.raises(TransactionError) as raised:
                producer.init_transactions()
            error = raised.value
            assert not error.fatal
            assert error.code == 53
            assert str(error) == (
                f"transactional id {names.transactional_id!r}: init_transactions() failed: "
                f"{request_} returned TRANSACTIONAL_ID_AUTHORIZATION_FAILED (53); "
                f"grant this client {permission} on the transactional id"
            )
        allow(secured, names, ID)
        work(producer, names)  # the same producer can be used once the right is there
    assert committed(secured, names) == [b"value"]


@pytest.mark.parametrize(
    ("missing", "code", "resource", "advice"),
    [
        (TOPIC, 29, "topic", "grant this client Write on the topic"),
        (GROUP, 30, "group", "grant this client Describe and Read on the group"),
        (SOURCE, 29, "source", "grant this client Read on the topic"),
    ],
    ids=["topic", "group", "source"],
)
def test_without_a_right_on_what_is_written(
    secured: KafkaCluster, names: Names, missing: Right, code: int, resource: str, advice: str
) -> None:
    allow(secured, names, *(right for right in ALL if right is not missing))
    with producer_of(secured, names) as producer:
        with pytest.raises(TransactionAbortableError) as raised:
            work(producer, names)
        error = raised.value
        assert error.outcome is CommitOutcome.NOT_COMMITTED
        assert error.code == code
        assert getattr(names, resource) in str(error)
        assert f"AUTHORIZATION_FAILED ({code})" in str(error)
        assert advice in str(error)
        allow(secured, names, missing)
        work_soon(producer, names)
    assert committed(secured, names) == [b"value"]


def work_soon(producer: Producer, names: Names) -> None:
    """Do the work. What metadata say about the rights on a topic is believed for a moment."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            work(producer, names)
        except TransactionAbortableError:
            assert time.monotonic() < deadline
        else:
            return


def test_a_group_that_can_only_be_described(secured: KafkaCluster, names: Names) -> None:
    allow(secured, names, ID, TOPIC, SOURCE, Right("group", "DESCRIBE"))
    with producer_of(secured, names) as producer:
        with pytest.raises(TransactionAbortableError) as raised:
            work(producer, names)
        assert str(raised.value).endswith(
            f"TXN_OFFSET_COMMIT returned GROUP_AUTHORIZATION_FAILED (30) for group "
            f"{names.group!r}; grant this client Read on the group"
        )


def test_a_right_that_is_revoked_within_a_transaction(secured: KafkaCluster, names: Names) -> None:
    allow(secured, names, *ALL)
    with producer_of(secured, names) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(names.topic, b"lost").result(PATIENCE)
        secured.revoke(USER, names.transactional_id, "WRITE", kind="transactional_id")
        with pytest.raises(TransactionFatalError) as raised:
            producer.commit_transaction()
        assert raised.value.outcome is CommitOutcome.NOT_COMMITTED
        assert "END_TXN returned TRANSACTIONAL_ID_AUTHORIZATION_FAILED (53); grant" in str(
            raised.value
        )
    allow(secured, names, ID)
    with producer_of(secured, names) as successor:
        work(successor, names)
    assert committed(secured, names) == [b"value"]


@pytest.mark.parametrize("listener", [On.TLS, On.CLIENT_CERTIFICATE, On.PLAIN, On.SCRAM_512])
def test_on_every_kind_of_listener(secured: KafkaCluster, names: Names, listener: On) -> None:
    settings = secured.settings(listener=listener)
    with Producer(**settings, transactional_id=names.transactional_id) as producer:
        work(producer, names)
    assert committed(secured, names) == [b"value"]


def test_sessions_that_expire_within_a_transaction(secured: KafkaCluster, names: Names) -> None:
    """The connections to the brokers and to both coordinators authenticate again."""
    settings = secured.settings(listener=On.SHORT_SESSIONS)
    with (
        debug_log(),
        Producer(**settings, transactional_id=names.transactional_id) as producer,
    ):
        producer.init_transactions()
        for number in range(2):
            with (
                told_by_log(f"coordinator: {AGAIN}") as again,
                told_by_log(f"group-0: {AGAIN}") as group_again,
                producer.transaction(),
            ):
                deadline = time.monotonic() + PATIENCE
                offsets = {TopicPartition(names.source, 0): number}
                producer.send(names.topic, b"first")
                producer.send_offsets_to_transaction(offsets, names.group)
                assert again.wait(PATIENCE)
                assert group_again.wait(PATIENCE)
                producer.send(names.topic, b"second").result(PATIENCE)
                producer.send_offsets_to_transaction(offsets, names.group)
                assert time.monotonic() < deadline
    assert committed(secured, names) == [b"first", b"second"] * 2
