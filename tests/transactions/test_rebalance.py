"""A member of a consumer group loses its partitions while its transaction is open (KIP-447).

The group's coordinator then refuses the offsets of that member, so that the transaction can only be
aborted. The member that has got the partitions reads the same messages again, and the results of
each are committed once.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Protocol

import confluent_kafka
import pytest
from kafka import KafkaConsumer, TopicPartition

from pykaproducer import Producer, TransactionAbortableError
from tests._support.consumer import close_member
from tests._support.peers import needs_kafka_python_3
from tests.transactions.helper import PATIENCE, Kafka

pytestmark = needs_kafka_python_3  # earlier versions have no group metadata

MESSAGES = 30
ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID = 22, 25
#: After this time without a poll the first member has left its group (seconds).
PAUSE = 6.0
#: The same for the others. A group that has lost one of its members waits for it for as long.
LONG_PAUSE = 20.0


class Read(NamedTuple):
    """A message that a consumer has read."""

    partition: int
    offset: int
    value: bytes


class Member(Protocol):
    """A consumer of another library that is a member of a group."""

    consumer: Any

    def poll(self) -> list[Read]: ...
    def assigned(self) -> set[int]: ...
    def metadata(self) -> Any: ...
    def offsets(self, batch: list[Read]) -> Any: ...
    def go_back(self, batch: list[Read]) -> None: ...
    def close(self) -> None: ...


class KafkaPythonMember:
    def __init__(self, servers: str, group: str, topic: str, pause_ms: int) -> None:
        self._topic = topic
        self.consumer = KafkaConsumer(
            bootstrap_servers=servers,
            group_id=group,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            max_poll_records=5,
            max_poll_interval_ms=pause_ms,
            session_timeout_ms=pause_ms,
            heartbeat_interval_ms=200,
            metadata_max_age_ms=1_000,
        )
        # A member that joins before it has the topic's metadata may never get partitions.
        until(lambda: self.consumer.partitions_for_topic(topic))
        self.consumer.subscribe([topic])
        self.metadata = self.consumer.group_metadata

    def close(self) -> None:
        close_member(self.consumer)

    def poll(self) -> list[Read]:
        found = self.consumer.poll(200)
        return [
            Read(place.partition, each.offset, each.value)
            for place, records in found.items()
            for each in records
        ]

    def assigned(self) -> set[int]:
        return {each.partition for each in self.consumer.assignment()}

    def offsets(self, batch: list[Read]) -> Any:
        return {TopicPartition(self._topic, each.partition): each.offset + 1 for each in batch}

    def go_back(self, batch: list[Read]) -> None:
        for each in reversed(batch):
            self.consumer.seek(TopicPartition(self._topic, each.partition), each.offset)


class ConfluentMember:
    def __init__(self, servers: str, group: str, topic: str, pause_ms: int) -> None:
        self._topic = topic
        self.consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "max.poll.interval.ms": pause_ms,
                "session.timeout.ms": pause_ms,
                "heartbeat.interval.ms": 200,
            }
        )
        self.consumer.subscribe([topic])
        self.metadata = self.consumer.consumer_group_metadata
        self.close = self.consumer.close

    def poll(self) -> list[Read]:
        return [
            Read(each.partition(), each.offset(), each.value())
            for each in self.consumer.consume(5, 0.2)
            if each.error() is None
        ]

    def assigned(self) -> set[int]:
        return {each.partition for each in self.consumer.assignment()}

    def offsets(self, batch: list[Read]) -> Any:
        return [
            confluent_kafka.TopicPartition(self._topic, each.partition, each.offset + 1)
            for each in batch
        ]

    def go_back(self, batch: list[Read]) -> None:
        for each in reversed(batch):
            place = confluent_kafka.TopicPartition(self._topic, each.partition, each.offset)
            self.consumer.seek(place)


@pytest.fixture
def join(
    request: pytest.FixtureRequest, kafka: Kafka, source: str
) -> Iterator[Callable[[float], Member]]:
    """Yield a function that adds a member, which may pause for some seconds, to one group."""
    group, made = f"group-{uuid.uuid4().hex[:8]}", []

    def make(pause: float) -> Member:
        servers, pause_ms = kafka.cluster.bootstrap_servers, int(pause * 1000)
        made.append(request.param(servers, group, source, pause_ms))
        return made[-1]

    yield make
    for member in made:
        member.close()


@pytest.fixture
def source(kafka: Kafka, topic: str) -> str:
    """Return the name of a topic with messages in three partitions."""
    name = f"{topic}-in"
    kafka.cluster.create_topic(name, partitions=3)
    send_numbers(kafka, name, range(MESSAGES))
    return name


def send_numbers(kafka: Kafka, topic: str, numbers: Iterable[int]) -> None:
    with Producer(bootstrap_servers=kafka.cluster.bootstrap_servers) as producer:
        for number in numbers:
            producer.send(topic, b"%d" % number, partition=number % 3)


def send(producer: Producer, topic: str, batch: list[Read]) -> None:
    for each in batch:
        producer.send(topic, each.value + b"!", partition=each.partition)


class Worker:
    """A member and its producer, with the loop of the guide."""

    def __init__(self, member: Member, producer: Producer, topic: str) -> None:
        self._member, self._producer, self._topic = member, producer, topic
        self.done: list[bytes] = []

    def step(self) -> None:
        """Process the next messages, if there are any."""
        batch = self._member.poll()
        if not batch:
            return
        try:
            with self._producer.transaction() as transaction:
                send(self._producer, self._topic, batch)
                transaction.send_offsets(self._member.offsets(batch), self._member.consumer)
        except TransactionAbortableError:
            self._member.go_back(batch)
        else:
            self.done += [each.value for each in batch]


def until(condition: Callable[[], object], *steps: Callable[[], object]) -> None:
    """Take the steps in turn until *condition*."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        for step in steps:
            step()


@pytest.mark.parametrize(
    ("join", "left", "asked"),
    [
        (KafkaPythonMember, True, False),
        (ConfluentMember, True, True),
        (KafkaPythonMember, False, False),
        pytest.param(ConfluentMember, True, False, marks=pytest.mark.full),
        pytest.param(KafkaPythonMember, True, True, marks=pytest.mark.full),
        pytest.param(ConfluentMember, False, False, marks=pytest.mark.full),
    ],
    indirect=["join"],
)
def test_a_member_that_has_lost_its_partitions(
    kafka: Kafka, topic: str, join: Callable[[float], Member], left: bool, asked: bool
) -> None:
    """*asked*: the consumer itself is given, after it has noticed that it has left its group."""
    first = join(PAUSE if left else LONG_PAUSE)
    with kafka.producer() as older, kafka.producer() as newer:
        one = Worker(first, older, topic)
        until(lambda: one.done, one.step)
        lost: list[Read] = []
        until(lambda: lost, lambda: lost.extend(first.poll()))
        metadata = first.metadata()
        older.begin_transaction()
        send(older, topic, lost)
        older.flush()
        second = join(LONG_PAUSE)
        poll_both = [lambda: second.go_back(second.poll()), lambda: first.go_back(first.poll())]
        if left:
            until(lambda: second.assigned() == {0, 1, 2}, *poll_both[:1])
            until(lambda: not asked or first.metadata() != metadata, *poll_both[:1])
        else:
            until(lambda: second.assigned() and len(first.assigned()) < 3, *poll_both)
        for call in (
            lambda: older.send_offsets_to_transaction(
                first.offsets(lost), first.consumer if asked else metadata
            ),
            older.commit_transaction,
        ):
            with pytest.raises(TransactionAbortableError) as raised:
                call()
            assert raised.value.code == (UNKNOWN_MEMBER_ID if left else ILLEGAL_GENERATION)
            assert "the consumer may have lost its partitions" in str(raised.value)
        older.abort_transaction()
        # After a cooperative rebalance a member keeps its position in the partitions that stay.
        first.go_back([each for each in lost if each.partition in first.assigned()])
        # Both go on. A slow machine may lose a membership again.
        two = Worker(second, newer, topic)
        until(lambda: first.assigned() and second.assigned(), one.step, two.step)
        before = len(one.done)
        send_numbers(kafka, f"{topic}-in", range(MESSAGES, 2 * MESSAGES))
        until(lambda: len(one.done) + len(two.done) >= 2 * MESSAGES, one.step, two.step)
    assert len(one.done) > before
    assert two.done
    expected = sorted(b"%d!" % number for number in range(2 * MESSAGES))
    assert sorted(kafka.committed(topic)) == expected
    assert set(kafka.written(topic)) >= {each.value + b"!" for each in lost}
    assert len(kafka.written(topic)) > len(expected), "nothing was aborted"
