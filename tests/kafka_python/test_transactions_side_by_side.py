"""The same transactions with kafka-python and with the drop-in, on the same broker.

Where kafka-python raises, the drop-in raises an instance of the same class, so that ``except``
clauses of a program continue to catch it. What differs is listed in
``docs/migration-kafka-python.rst``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import kafka
import kafka.structs
import pytest

import pykaproducer
from pykaproducer import TransactionAbortableError
from pykaproducer.testing import KafkaCluster
from tests._support.peers import needs_kafka_python_3

pytestmark = needs_kafka_python_3

#: By the name of a step: what it raised, or None.
Steps = dict[str, BaseException | None]


class Play:
    """One library, and what its steps raised."""

    def __init__(self, kind: type[Any], cluster: KafkaCluster, topic: str) -> None:
        self.topic = topic
        self.steps: Steps = {}
        self._kind, self._cluster = kind, cluster
        self._made: list[Any] = []

    def producer(self, **settings: Any) -> Any:
        """Return a producer; those of one play have the same id."""
        given = {"transactional_id": f"{self.topic}-{self._kind.__module__}", **settings}
        self._made.append(self._kind(bootstrap_servers=self._cluster.bootstrap_servers, **given))
        return self._made[-1]

    def step(self, name: str, call: Callable[..., object], *arguments: Any) -> None:
        """Make a call, and record what it raises."""
        assert name not in self.steps
        self.steps[name] = None
        try:
            call(*arguments)
        except Exception as error:
            self.steps[name] = error

    def close(self) -> None:
        for producer in self._made:
            producer.close(timeout=1)


Compare = Callable[..., None]


@pytest.fixture
def compare(cluster: KafkaCluster, topic: str) -> Iterator[Compare]:
    """Yield a function that plays a scenario with both, and compares what they raise."""
    plays: list[Play] = []

    def play_both(
        scenario: Callable[[Play], None], differs: Mapping[str, type[Exception]] | None = None
    ) -> None:
        differs = differs or {}
        cluster.create_topic(topic)
        for kind in (kafka.KafkaProducer, pykaproducer.KafkaProducer):
            plays.append(Play(kind, cluster, topic))
            scenario(plays[-1])
        theirs, ours = (play.steps for play in plays)
        assert theirs.keys() == ours.keys()
        for name, error in theirs.items():
            found = ours[name]
            if error is None:
                assert found is None, name
            elif name in differs:
                assert isinstance(found, differs[name]), (name, error, found)
            else:
                assert isinstance(found, type(error)), (name, error, found)

    yield play_both
    for play in plays:
        play.close()


def offsets_of(topic: str) -> dict[Any, Any]:
    return {kafka.TopicPartition(topic, 0): kafka.structs.OffsetAndMetadata(1, "", -1)}


@pytest.mark.parametrize("first", ["commit_transaction", "abort_transaction", "offsets"])
def test_another_producer_with_the_id(compare: Compare, first: str) -> None:
    def scenario(play: Play) -> None:
        older, newer = play.producer(), play.producer()
        older.init_transactions()
        older.begin_transaction()
        older.send(play.topic, b"value").get(timeout=30)
        newer.init_transactions()

        def offsets() -> None:
            older.send_offsets_to_transaction(offsets_of(play.topic), "group")

        play.step("first", offsets if first == "offsets" else getattr(older, first))
        play.step("offsets", offsets)
        play.step("commit", older.commit_transaction)
        play.step("abort", older.abort_transaction)
        play.step("begin", older.begin_transaction)
        play.step("send", older.send, play.topic, b"value")

    # The same code may also mean that the brokers have timed out the transaction. The abort finds
    # out, and then all calls raise ProducerFencedError.
    unknown = ["first", "offsets", "commit"] if first == "offsets" else []
    compare(scenario, dict.fromkeys(unknown, TransactionAbortableError))


def test_offsets_of_a_stranger(compare: Compare) -> None:
    def scenario(play: Play) -> None:
        producer = play.producer()
        producer.init_transactions()
        producer.begin_transaction()
        stranger = kafka.structs.ConsumerGroupMetadata("group", 3, "member", None)
        offsets = offsets_of(play.topic)
        play.step("offsets", producer.send_offsets_to_transaction, offsets, stranger)
        play.step("commit", producer.commit_transaction)
        play.step("abort", producer.abort_transaction)
        play.step("begin", producer.begin_transaction)
        play.step("send", producer.send, play.topic, b"value")
        play.step("the next commit", producer.commit_transaction)

    compare(scenario)


def test_groups_that_are_none(compare: Compare) -> None:
    def scenario(play: Play) -> None:
        producer = play.producer()
        producer.init_transactions()
        producer.begin_transaction()
        offsets = offsets_of(play.topic)
        incoherent = kafka.structs.ConsumerGroupMetadata("group", 3, "", None)
        for group in (None, 5, incoherent):
            play.step(f"{group!r}", producer.send_offsets_to_transaction, offsets, group)

    compare(scenario)


def test_a_timeout_that_the_brokers_refuse(compare: Compare) -> None:
    def scenario(play: Play) -> None:
        producer = play.producer(transaction_timeout_ms=2**31 - 1)
        play.step("init", producer.init_transactions)
        play.step("begin", producer.begin_transaction)

    compare(scenario)
