"""The partition of a message: by name, by a user's function, and beside a slow broker."""

from __future__ import annotations

import itertools
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.partitioner import DefaultPartitioner, murmur2

from pykaproducer import (
    ConfigurationError,
    Delivery,
    PartitionerError,
    Producer,
    Status,
    partitioners,
)
from pykaproducer._kernel import CRC32, FNV1A, MURMUR2, partition_for
from pykaproducer.testing import ScriptedCluster
from tests._support.peers import KAFKA_PYTHON
from tests.kernel.helper import TOPIC, Door
from tests.pipeline.helper import Held, frozen, offsets, send

SOON = 30


class Placing:
    """A partitioner by name, and the partitions that it chooses."""

    def __init__(self, name: str, sticky_bytes: int = 1 << 20) -> None:
        self.partitioner = partitioners.named(name, sticky_bytes=sticky_bytes)

    def __call__(
        self,
        *keys: bytes | None,
        of: int = 1000,
        available: Sequence[int] | None = None,
        size: int = 0,
    ) -> list[int]:
        """Return the partitions, out of *of*, of messages with these keys."""
        door = Door()
        for key in keys:
            door.send(TOPIC, bytes(size), key)
        chunk = door.chunk()
        writable = range(of) if available is None else available
        chunk.split(self.partitioner, of, struct.pack(f"{len(writable)}i", *writable))
        return [chunk.partition_of(row) for row in range(len(keys))]


def spread(places: Sequence[int]) -> str:
    """Return how messages without differences were distributed among 1000 partitions."""
    if len(set(places)) == 1:
        return "one"
    in_turn = all(b == (a + 1) % 1000 for a, b in itertools.pairwise(places))
    return "in turn" if in_turn else "spread"


# By name ----------------------------------------------------------------------------------------


class KafkaPythonsCluster:
    """The metadata that kafka-python's partitioner uses: one topic, all of it available."""

    def __init__(self, partitions: int) -> None:
        self.numbers = set(range(partitions))

    def topics(self) -> set[str]:
        return {TOPIC}

    def partitions_for_topic(self, topic: str) -> set[int]:
        return self.numbers

    def available_partitions_for_topic(self, topic: str) -> set[int]:
        return self.numbers


@pytest.mark.parametrize("name", ["murmur2", "murmur2_random", "default"])
@settings(deadline=None)
@given(keys=st.lists(st.binary(max_size=40), min_size=1, max_size=20), of=st.integers(1, 200))
def test_a_key_goes_where_kafka_python_sends_it(name: str, keys: list[bytes], of: int) -> None:
    theirs, cluster = DefaultPartitioner(), KafkaPythonsCluster(of)
    if KAFKA_PYTHON < (3, 0):
        expected = [theirs(key, range(of), range(of)) for key in keys]
    else:
        expected = [theirs.partition(TOPIC, key, key, None, None, cluster) for key in keys]
    assert Placing(name)(*keys, of=of) == expected


#: name -> hash of a key, treatment of a message without a key, and of one with an empty key
TABLE = {
    "murmur2": (MURMUR2, "one", "key"),
    "murmur2_random": (MURMUR2, "spread", "key"),
    "consistent_random": (CRC32, "one", "none"),
    "consistent": (CRC32, "key", "key"),
    "murmur2_consistent": (MURMUR2, "key", "key"),
    "fnv1a_consistent": (FNV1A, "key", "key"),
    "fnv1a": (FNV1A, "spread", "key"),
    "round_robin": (None, "in turn", "none"),
    "sticky": (None, "one", "none"),
    "random": (None, "spread", "none"),
    # Aliases.
    "default": (MURMUR2, "one", "key"),
    "crc32": (CRC32, "one", "none"),
    "roundrobin": (None, "in turn", "none"),
}


def test_every_name_is_in_the_table() -> None:
    assert set(partitioners.NAMES) == set(TABLE)
    for name in partitioners.NAMES:
        with Producer(partitioner=name) as producer:
            assert producer.config.partitioner == name


@pytest.mark.parametrize("name", TABLE)
def test_messages_with_a_key(name: str) -> None:
    hashing, keyless, _ = TABLE[name]
    keys = [b"%d" % number for number in range(50)]
    places = Placing(name)(*keys)
    if hashing is None:
        assert spread(places) == keyless
    else:
        assert places == [partition_for(hashing, key, 1000) for key in keys]


@pytest.mark.parametrize("name", TABLE)
def test_messages_without_a_key(name: str) -> None:
    hashing, keyless, _ = TABLE[name]
    places = Placing(name)(*[None] * 50)
    if keyless == "key":
        assert hashing is not None
        assert set(places) == {partition_for(hashing, b"", 1000)}
    else:
        assert spread(places) == keyless


@pytest.mark.parametrize("name", TABLE)
def test_messages_with_an_empty_key(name: str) -> None:
    hashing, keyless, empty = TABLE[name]
    placing = Placing(name, sticky_bytes=100)
    if empty == "key":
        assert hashing is not None
        assert set(placing(*[b""] * 50, size=100)) == {partition_for(hashing, b"", 1000)}
    else:  # sticky: it leaves a partition that is full
        expected = "in turn" if keyless == "in turn" else "spread"
        assert spread(placing(*[b""] * 50, size=100)) == expected


@pytest.mark.parametrize("name", TABLE)
def test_a_key_means_the_same_partition_whoever_leads_it(name: str) -> None:
    hashing, keyless, _ = TABLE[name]
    keys = [b"%d" % number for number in range(50)]
    placing = Placing(name)
    if hashing is not None:
        assert placing(*keys, available=[3]) == Placing(name)(*keys)
    if keyless != "key":
        assert set(placing(*[None] * 50, available=[3])) == {3}


@pytest.mark.parametrize("name", ["sticky", "murmur2", "consistent_random"])
def test_sticky_fills_a_batch_before_it_takes_another_partition(name: str) -> None:
    placing = Placing(name, sticky_bytes=5000)
    places = placing(*[None] * 100, size=500)
    assert [len(list(run)) for _, run in itertools.groupby(places)] == [10] * 10


@pytest.mark.parametrize("name", ["random", "sticky"])
def test_each_partitioner_has_a_chance_of_its_own(name: str) -> None:
    """Otherwise all producers that start together would fill the same partitions together."""
    every = {tuple(Placing(name, sticky_bytes=1)(*[None] * 20, size=10)) for _ in range(5)}
    assert len(every) == 5


@pytest.mark.parametrize("wrong", ["modulo", "", "MURMUR2", 3])
def test_another_name_is_refused_with_the_names_there_are(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="partitioner") as caught:
        Producer(partitioner=wrong)
    assert all(name in str(caught.value) for name in ("murmur2", "round_robin"))


# A user's function ------------------------------------------------------------------------------


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with ScriptedCluster(2, {"events": 4}) as made:
        yield made


def murmur(key: bytes | None, all_partitions: Sequence[int], available: Sequence[int]) -> int:
    """Choose a partition as kafka-python's murmur2 partitioner does, written as user code."""
    if key is None:
        return available[0]
    return all_partitions[(murmur2(key) & 0x7FFF_FFFF) % len(all_partitions)]


def test_a_function_places_as_the_same_one_by_name(cluster: ScriptedCluster) -> None:
    keys = [b"key %d" % number for number in range(30)]
    placed = []
    for partitioner in (murmur, "murmur2"):
        with cluster.producer(partitioner=partitioner) as producer:
            deliveries = [producer.send("events", b"value", key) for key in keys]
            placed.append([delivery.result(SOON).partition for delivery in deliveries])
    assert placed[0] == placed[1]
    assert len(set(placed[0])) > 1


def test_what_a_function_is_asked(cluster: ScriptedCluster) -> None:
    asked: list[tuple[bytes | None, list[int], list[int]]] = []

    def partitioner(key: bytes | None, everything: Any, available: Any) -> int:
        asked.append((key, list(everything), list(available)))
        return 2

    cluster.stop(1)  # it leads partitions 1 and 3
    with cluster.producer(
        partitioner=partitioner, key_serializer=lambda key: key and key.encode()
    ) as producer:
        sent = [
            producer.send("events", b"value", "key"),
            producer.send("events", b"value"),
            producer.send("events", b"value", "key", partition=0),  # needs no partitioner
        ]
        assert [delivery.result(SOON).partition for delivery in sent] == [2, 2, 0]
    assert asked == [(b"key", [0, 1, 2, 3], [0, 2]), (None, [0, 1, 2, 3], [0, 2])]


def test_where_no_partition_has_a_leader_all_count_as_available(cluster: ScriptedCluster) -> None:
    asked: list[list[int]] = []
    called = threading.Event()

    def partitioner(key: bytes | None, everything: Any, available: Any) -> int:
        asked.append(list(available))
        called.set()
        return 1

    cluster.move_leader("events", 0, 1)
    cluster.move_leader("events", 2, 1)
    cluster.stop(1)
    producer = cluster.producer(partitioner=partitioner)
    producer.send("events", b"value")
    assert called.wait(SOON)
    producer.close(0)
    assert asked == [[0, 1, 2, 3]]


class Answer:
    """A partitioner that misbehaves for bad messages, and returns 0 for the others."""

    def __init__(self, bad: Callable[[], Any]) -> None:
        self.bad = bad

    def __call__(self, key: bytes | None, everything: Any, available: Any) -> Any:
        return self.bad() if key == b"bad" else 0


def raising() -> int:
    raise LookupError("no such shard")


def exiting() -> int:
    raise SystemExit(3)


class WithoutTextError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


def without_text() -> int:
    raise WithoutTextError


@pytest.mark.parametrize(
    ("bad", "text", "cause"),
    [
        (raising, "raised LookupError: no such shard", LookupError),
        (exiting, "raised SystemExit: 3", SystemExit),
        (without_text, "raised WithoutTextError", WithoutTextError),
        (lambda: 4, "returned 4; partitions of the topic: 4", None),
        (lambda: -1, "returned -1; partitions of the topic: 4", None),
        (lambda: 2**40, "returned 1099511627776; partitions of the topic", None),
        (lambda: None, "returned None", None),
        (lambda: "0", "returned '0'", None),
        (lambda: 0.0, "returned 0.0", None),
    ],
)
def test_a_function_that_fails_harms_its_own_message_only(
    cluster: ScriptedCluster, bad: Callable[[], Any], text: str, cause: type | None
) -> None:
    told: list[tuple[BaseException | None, Delivery]] = []
    with cluster.producer(partitioner=Answer(bad)) as producer:
        sent = [
            producer.send("events", b"1", b"good"),
            producer.send("events", b"2", b"bad", on_delivery=lambda *what: told.append(what)),
            producer.send("events", b"3", b"good"),
        ]
        error = sent[1].exception(SOON)
        assert [sent[number].result(SOON).partition for number in (0, 2)] == [0, 0]
        producer.flush(SOON)
    assert isinstance(error, PartitionerError)
    assert isinstance(error, ValueError)
    assert "topic 'events'" in str(error)
    assert text in str(error)
    assert (error.status, error.topic, error.partition) == (Status.NOT_PERSISTED, "events", None)
    assert (type(error.__cause__) if cause else error.__cause__) is cause
    assert told == [(error, sent[1])]
    assert [record.value for record in cluster.log("events")] == [b"1", b"3"]


@pytest.mark.parametrize("partitioner", ["murmur2", murmur])
def test_a_partition_that_the_topic_does_not_have(
    cluster: ScriptedCluster, partitioner: Any
) -> None:
    with cluster.producer(partitioner=partitioner) as producer:
        wrong = producer.send("events", b"value", partition=4)
        right = producer.send("events", b"value", partition=3)
        error = wrong.exception(SOON)
        assert right.result(SOON).partition == 3
    assert isinstance(error, PartitionerError)
    assert "there is no partition 4; the topic has partitions 0 to 3" in str(error)
    assert error.status is Status.NOT_PERSISTED


# A broker that is slow for a while (KIP-794) ----------------------------------------------------


@pytest.mark.parametrize("adaptive", [True, False])
def test_a_partition_with_a_long_queue_gets_fewer(adaptive: bool) -> None:
    held, rounds = Held(), 300
    settings = {"partitioner_adaptive_partitioning_enable": adaptive, "batch_size": 1000}
    with frozen(2, {"t": 2}, partitioner="sticky", **settings) as (cluster, clock, producer):
        cluster.next("produce", held, broker=1)
        slow = send(producer, [b"x" * 900] * 50, partition=1)
        held.wait_until_held()
        sent = []
        for _ in range(rounds):
            sent.append(producer.send("t", b"y" * 900))
            # Once this is delivered, the message before it has its partition.
            offsets(send(producer, [b""], partition=0))
            clock.jump(0.02)
        held.release()
        offsets([*slow, *sent])
        to_slow = sum(delivery.partition == 1 for delivery in sent)
        assert to_slow < rounds // 5 if adaptive else to_slow > rounds // 3
