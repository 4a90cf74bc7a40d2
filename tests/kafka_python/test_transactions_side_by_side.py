"""The same transactions with kafka-python and with the drop-in, on the same broker.

Where kafka-python raises, the drop-in raises an instance of the same class, so that ``except``
clauses of a program continue to catch it. What differs is listed in
``docs/migration-kafka-python.rst``. ``tests/transactions/test_table.py`` has the calls that do not
fit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

import kafka
import kafka.structs
import pytest

import pykaproducer
from pykaproducer import TransactionAbortableError
from pykaproducer.testing import KafkaCluster
from tests._support.peers import needs_kafka_python_3

pytestmark = needs_kafka_python_3

#: Makes producers of a library, and calls by their names.
Scenario = Callable[[Callable[..., Any]], dict[str, Callable[[], object]]]


def errors_of(
    kind: type[Any], cluster: KafkaCluster, topic: str, scenario: Scenario
) -> dict[str, Exception | None]:
    """Return what each call raises; all producers have the same id."""
    found: dict[str, Exception | None] = {}
    with contextlib.ExitStack() as stack:

        def make(**settings: Any) -> Any:
            name = f"{topic}-{kind.__module__}"
            made = kind(
                bootstrap_servers=cluster.bootstrap_servers, transactional_id=name, **settings
            )
            stack.callback(made.close, timeout=1)
            return made

        for name, call in scenario(make).items():
            found[name] = None
            try:
                call()
            except Exception as error:
                found[name] = error
    return found


def compare(
    cluster: KafkaCluster, topic: str, scenario: Scenario, abortable: Iterable[str] = ()
) -> None:
    """Compare what both raise; *abortable* are calls that the drop-in lets a program repeat."""
    cluster.create_topic(topic)
    kinds = (kafka.KafkaProducer, pykaproducer.KafkaProducer)
    theirs, ours = (errors_of(kind, cluster, topic, scenario) for kind in kinds)
    for name, error in theirs.items():
        expected = TransactionAbortableError if name in abortable else type(error)
        assert isinstance(ours[name], expected), (name, error, ours[name])


def begun(make: Callable[..., Any]) -> Any:
    producer = make()
    producer.init_transactions()
    producer.begin_transaction()
    return producer


def offsets_of(topic: str) -> dict[Any, Any]:
    return {kafka.TopicPartition(topic, 0): kafka.structs.OffsetAndMetadata(1, "", -1)}


@pytest.mark.parametrize("first", ["commit", "abort", "offsets"])
def test_another_producer_with_the_id(cluster: KafkaCluster, topic: str, first: str) -> None:
    def scenario(make: Callable[..., Any]) -> dict[str, Callable[[], object]]:
        older = begun(make)
        older.send(topic, b"value").get(timeout=30)
        make().init_transactions()
        calls = {
            "offsets": lambda: older.send_offsets_to_transaction(offsets_of(topic), "group"),
            "commit": older.commit_transaction,
            "abort": older.abort_transaction,
        }
        more = {"begin": older.begin_transaction, "send": lambda: older.send(topic, b"value")}
        return {"first": calls[first], **calls, **more}

    # The same code may also mean that the brokers have timed out the transaction. The abort finds
    # out, and then all calls raise ProducerFencedError.
    compare(cluster, topic, scenario, ["first", "offsets", "commit"] * (first == "offsets"))


def test_offsets_of_a_stranger(cluster: KafkaCluster, topic: str) -> None:
    def scenario(make: Callable[..., Any]) -> dict[str, Callable[[], object]]:
        producer, offsets = begun(make), offsets_of(topic)
        stranger = kafka.structs.ConsumerGroupMetadata("group", 3, "member", None)
        return {
            "offsets": lambda: producer.send_offsets_to_transaction(offsets, stranger),
            "commit": producer.commit_transaction,
            "abort": producer.abort_transaction,
            "begin": producer.begin_transaction,
            "send": lambda: producer.send(topic, b"value"),
            "the next commit": producer.commit_transaction,
        }

    compare(cluster, topic, scenario)


def test_groups_that_are_none(cluster: KafkaCluster, topic: str) -> None:
    def scenario(make: Callable[..., Any]) -> dict[str, Callable[[], object]]:
        send_offsets, offsets = begun(make).send_offsets_to_transaction, offsets_of(topic)
        incoherent = kafka.structs.ConsumerGroupMetadata("group", 3, "", None)
        return {
            "None": lambda: send_offsets(offsets, None),
            "a number": lambda: send_offsets(offsets, 5),
            "incoherent": lambda: send_offsets(offsets, incoherent),
        }

    compare(cluster, topic, scenario)


def test_a_timeout_that_the_brokers_refuse(cluster: KafkaCluster, topic: str) -> None:
    def scenario(make: Callable[..., Any]) -> dict[str, Callable[[], object]]:
        producer = make(transaction_timeout_ms=2**31 - 1)
        return {"init": producer.init_transactions, "begin": producer.begin_transaction}

    compare(cluster, topic, scenario)
