"""The partition of a message."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from kafka.partitioner.default import murmur2

from pykaproducer import PartitionerError, Producer, Status
from pykaproducer.testing import KafkaCluster

from .readback import read_values

SOON = 30
PARTITIONS = 6


@pytest.fixture
def wide(cluster: KafkaCluster, topic: str) -> str:
    """Return a topic with several partitions."""
    cluster.create_topic(topic, partitions=PARTITIONS)
    return topic


#: From the Java client's own tests of murmur2.
JAVA = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


def test_a_key_goes_where_java_and_kafka_python_put_it(cluster: KafkaCluster, wide: str) -> None:
    keys = [*JAVA, b"", *(b"key-%d" % i for i in range(300))]
    with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        deliveries = [producer.send(wide, b"value", key=key) for key in keys]
        found = {key: d.result(SOON).partition for key, d in zip(keys, deliveries, strict=True)}
    for key, java in JAVA.items():
        assert found[key] == (java & 0x7FFFFFFF) % PARTITIONS
    for key in keys:
        assert found[key] == (murmur2(key) & 0x7FFFFFFF) % PARTITIONS


def test_without_a_key_one_partition_is_filled_before_the_next(
    cluster: KafkaCluster, wide: str
) -> None:
    with Producer(
        bootstrap_servers=cluster.bootstrap_servers, batch_size=1000, linger_ms=60_000
    ) as producer:
        deliveries = [producer.send(wide, bytes(100)) for _ in range(2000)]
    partitions = [delivery.result(0).partition for delivery in deliveries]
    assert set(partitions) == set(range(PARTITIONS))
    changes = sum(a != b for a, b in itertools.pairwise(partitions))
    assert changes < 2000 / 5


def test_round_robin_takes_each_in_turn(cluster: KafkaCluster, wide: str) -> None:
    with Producer(
        bootstrap_servers=cluster.bootstrap_servers, partitioner="round_robin"
    ) as producer:
        deliveries = [producer.send(wide, b"value", key=b"same") for _ in range(60)]
        partitions = [delivery.result(SOON).partition for delivery in deliveries]
    assert sorted(partitions[:PARTITIONS]) == list(range(PARTITIONS))
    assert partitions == partitions[:PARTITIONS] * 10


def test_an_explicit_partition_overrules_the_key(cluster: KafkaCluster, wide: str) -> None:
    with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        for partition in range(PARTITIONS):
            producer.send(wide, b"%d" % partition, key=b"same", partition=partition)
    assert read_values(cluster, wide, PARTITIONS) == [[b"%d" % p] for p in range(PARTITIONS)]


def test_a_partition_that_does_not_exist_fails_its_message_alone(
    cluster: KafkaCluster, wide: str
) -> None:
    with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        before = producer.send(wide, b"before", partition=0)
        wrong = producer.send(wide, b"wrong", partition=PARTITIONS)
        after = producer.send(wide, b"after", partition=0)
        error = wrong.exception(SOON)
        assert isinstance(error, PartitionerError)
        assert error.status is wrong.status is Status.NOT_PERSISTED
        assert error.topic == wide
        assert "no partition 6; the topic has partitions 0 to 5" in str(error)
        assert [before.result(SOON).offset, after.result(SOON).offset] == [0, 1]
        # The caller may want to send it again: a failed message keeps its payload.
        assert wrong.value == b"wrong"


# A user's partitioner


def by_first_byte(key: bytes | None, everything: Sequence[int], available: Sequence[int]) -> int:
    """Choose a partition by the key; some keys make it misbehave."""
    assert list(everything) == list(available) == list(range(PARTITIONS))
    if key == b"raise":
        raise LookupError("no such customer")
    if key == b"far":
        return PARTITIONS
    if key == b"none":
        return None  # type: ignore[return-value]
    return everything[0] if key is None else key[0] % PARTITIONS


def test_a_callable_decides(cluster: KafkaCluster, wide: str) -> None:
    keys = [None, *(bytes([i]) for i in range(30))]
    with Producer(
        bootstrap_servers=cluster.bootstrap_servers, partitioner=by_first_byte
    ) as producer:
        deliveries = [producer.send(wide, b"value", key=key) for key in keys]
        # It is not called if the caller has chosen the partition.
        fixed = producer.send(wide, b"value", key=b"raise", partition=4)
        assert fixed.result(SOON).partition == 4
        assert [delivery.result(SOON).partition for delivery in deliveries] == [
            0 if key is None else key[0] % PARTITIONS for key in keys
        ]


def test_a_callable_that_fails_harms_its_own_messages_only(
    cluster: KafkaCluster, wide: str
) -> None:
    keys = [b"a", b"raise", b"a", b"far", b"none", b"a"]
    with Producer(
        bootstrap_servers=cluster.bootstrap_servers, partitioner=by_first_byte, linger_ms=20
    ) as producer:
        deliveries = [producer.send(wide, b"%d" % i, key=key) for i, key in enumerate(keys)]
        errors = [delivery.exception(SOON) for delivery in deliveries]
    assert [error is None for error in errors] == [key == b"a" for key in keys]
    raised, far, none = errors[1], errors[3], errors[4]
    assert isinstance(raised, PartitionerError)
    assert isinstance(raised.__cause__, LookupError)
    assert "no such customer" in str(raised)
    assert isinstance(far, PartitionerError)
    assert "returned 6" in str(far)
    assert isinstance(none, PartitionerError)
    assert "returned None" in str(none)
    assert read_values(cluster, wide, PARTITIONS)[ord("a") % PARTITIONS] == [b"0", b"2", b"5"]


def test_partitions_for_waits_for_the_metadata(cluster: KafkaCluster, wide: str) -> None:
    with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        assert not producer.bootstrap_connected()
        assert producer.partitions_for(wide) == set(range(PARTITIONS))
        assert producer.bootstrap_connected()
