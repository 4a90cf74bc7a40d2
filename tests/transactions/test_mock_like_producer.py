"""Programs with transactions do the same with ``MockProducer`` as with real Kafka."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from pykaproducer import Producer
from pykaproducer.delivery import TopicPartition
from pykaproducer.testing import MockProducer
from pykaproducer.testing._processes import tick
from tests.transactions.helper import PATIENCE, Kafka

#: A partition that no topic has here.
NOWHERE = 99


def state_of(producer: Producer) -> Any:
    return producer.stats()["transactions"]["state"]


@dataclass
class Scene:
    """A producer, what it has said, and how another one takes its id over."""

    producer: Producer
    topic: str
    fence: Callable[[], object]
    said: list[str] = field(default_factory=list)

    def try_each(self, *calls: str) -> None:
        """Make calls of methods without arguments, and note what they return or raise."""
        for name in calls:
            self.do(name, getattr(self.producer, name))

    def do(self, name: str, call: Callable[[], Any]) -> None:
        try:
            found = call()
        except Exception as error:
            bases = type(error).__mro__  # errors with a code have a separate class
            kind = next((k for k in bases if k.__module__ == "pykaproducer.errors"), type(error))
            cause = type(error.__cause__).__name__
            outcome = getattr(error, "outcome", None) or getattr(error, "status", None)
            found = f"{kind.__name__}({error}) because of {cause}, {outcome and outcome.name}"
        self.said.append(f"{name}: {found}")
        transactions = self.producer.stats()["transactions"]
        self.said.append(
            "{state} {serial}: {committed} committed, {aborted} aborted".format_map(transactions)
        )

    def send(self, value: bytes, partition: int = 0) -> None:
        reported = threading.Event()

        def report(error: Any, _delivery: Any) -> None:
            failed = None if error is None else f"{type(error).__name__}({error})"
            self.said.append(f"callback of {value!r}: {failed}")
            reported.set()

        def call() -> None:
            self.producer.send(self.topic, value, partition=partition, on_delivery=report)
            assert reported.wait(PATIENCE)
            while partition == NOWHERE and state_of(self.producer) == "open":
                tick()  # the coordinator's stage is informed of the failure at the same time

        self.do(f"send {value!r}", call)


Scenario = Callable[[Scene], None]


def commits_and_aborts(scene: Scene) -> None:
    scene.try_each("init_transactions")
    for end in ("commit_transaction", "abort_transaction") * 2:
        scene.try_each("begin_transaction", end)  # without a message
        scene.try_each("begin_transaction")
        scene.send(end.encode())
        scene.try_each("flush", end)


def a_message_without_a_partition(scene: Scene) -> None:
    scene.try_each("init_transactions", "begin_transaction")
    scene.send(b"in time")
    scene.producer.send(scene.topic, b"nowhere", partition=NOWHERE)
    while state_of(scene.producer) == "open":
        tick()
    # The stage of the coordinator answers it after it has refused further messages.
    scene.try_each("commit_transaction")
    scene.send(b"refused")
    scene.try_each("begin_transaction", "init_transactions", "commit_transaction")
    scene.try_each("abort_transaction", "flush", "begin_transaction")
    scene.send(b"kept")
    scene.try_each("commit_transaction")


def blocks_of_messages(scene: Scene) -> None:
    producer, topic = scene.producer, scene.topic
    producer.init_transactions()
    for partitions in ([0, 1, 0], [2, NOWHERE, 2], [1, 1, 1]):
        producer.begin_transaction()
        block = producer.send_many(topic, [b"1", b"2", b"3"], partitions=partitions)
        # The rows before and after the one that fails may be delivered, or not.
        failed = block.outcome(PATIENCE).failed
        scene.said += [str(error) for row, error in failed if partitions[row] == NOWHERE]
        scene.try_each("commit_transaction")
        if NOWHERE in partitions:
            scene.try_each("abort_transaction")


def blocks_of_code(scene: Scene) -> None:
    producer = scene.producer

    def commit() -> None:
        with producer.transaction():
            scene.send(b"kept")

    def abort() -> None:
        with producer.transaction() as transaction:
            transaction.abort()
            scene.send(b"dropped")

    def fail() -> None:
        with producer.transaction():
            scene.send(b"dropped")
            raise ProgramError("mishap")

    def send_nowhere() -> None:
        with producer.transaction():
            scene.send(b"nowhere", partition=NOWHERE)

    for call in (commit, abort, fail, send_nowhere, commit):
        scene.do(call.__name__, call)


class ProgramError(Exception):
    """An error of the program."""


def messages_that_are_refused(scene: Scene) -> None:
    scene.try_each("init_transactions", "begin_transaction")
    scene.do("too large", lambda: scene.producer.send(scene.topic, bytes(2_000)))
    scene.do("no bytes", lambda: scene.producer.send(scene.topic, 7))
    scene.send(b"kept")
    scene.try_each("commit_transaction")


def an_id_that_is_taken_over(scene: Scene) -> None:
    scene.try_each("init_transactions", "begin_transaction")
    scene.send(b"dropped")
    scene.fence()
    scene.try_each("commit_transaction")
    scene.try_each("abort_transaction", "begin_transaction", "init_transactions", "flush")
    scene.send(b"refused")


def offsets_of_a_group(scene: Scene) -> None:
    place = TopicPartition(scene.topic, 0)

    def send(offsets: Any, group: Any = scene.topic) -> None:
        call = lambda: scene.producer.send_offsets_to_transaction(offsets, group)  # noqa: E731
        scene.do(f"offsets {offsets}", call)

    send({place: 1})
    scene.try_each("init_transactions")
    send({place: 1})
    scene.try_each("begin_transaction")
    for offsets in ({place: 1}, {}, {place: -1}, {place: "1"}, 7):
        send(offsets)
    send({place: 2}, group="")
    scene.try_each("commit_transaction")


def the_end(scene: Scene) -> None:
    scene.try_each("init_transactions", "begin_transaction")
    scene.send(b"dropped")
    scene.try_each("close", "close", "commit_transaction", "begin_transaction")
    scene.send(b"refused")


SCENARIOS: list[Scenario] = [
    commits_and_aborts,
    a_message_without_a_partition,
    blocks_of_messages,
    blocks_of_code,
    messages_that_are_refused,
    an_id_that_is_taken_over,
    offsets_of_a_group,
    the_end,
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.__name__)
def test_a_mock_does_the_same(kafka: Kafka, topic: str, scenario: Scenario) -> None:
    settings: dict[str, Any] = {"transactional_id": topic, "max_request_size": 1_000}

    def take_over() -> None:
        with kafka.producer(**settings) as other:
            other.init_transactions()

    mock = MockProducer(partitions=3, **settings)
    with kafka.producer(**settings) as producer, mock:
        real = Scene(producer, topic, take_over)
        mocked = Scene(mock, topic, mock.fence_producer)
        for scene in (real, mocked):
            scenario(scene)
    assert mocked.said == real.said
    history = [record.value for p in range(3) for record in mock.history() if record.partition == p]
    assert history == kafka.committed(topic)
