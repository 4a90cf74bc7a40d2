"""The scripted cluster answers as Apache Kafka does: the same requests, sent to both."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any

import crc32c
import pytest

from pykaproducer._net.transport import Network
from pykaproducer.testing import KafkaCluster, ScriptedCluster
from pykaproducer.testing._messages import ApiVersionsRequest, MetadataRequest
from tests.net.helper import Settings
from tests.testing.helper import Closed, RawClient, produce_request
from tests.wire.helper import record_batch

#: A conversation: given a client and a topic (2 partitions), it returns the answers.
Conversation = Callable[[RawClient, str], list[Any]]

_RETRIABLE = (3, 5, 6, 14, 15, 16)


@pytest.fixture
def real(cluster: KafkaCluster, topic: str) -> Iterator[RawClient]:
    """Yield a client of a real broker that leads both partitions and has a record in each."""
    cluster.create_topic(topic, partitions=2)
    broker = cluster.brokers[0]
    with RawClient(Network(Settings()), broker.host, broker.port) as client:
        begin(client, topic)
        yield client


@pytest.fixture
def scripted(topic: str) -> Iterator[RawClient]:
    with (
        ScriptedCluster(topics={topic: 2}) as made,
        RawClient(made.network, "broker-0.scripted", 9092) as client,
    ):
        begin(client, topic)
        yield client


def begin(client: RawClient, topic: str) -> None:
    """Wait until the broker leads; then the next offset is 1 in both partitions."""
    for partition in (0, 1):
        while (answer := client.produce((topic, partition, record_batch()))) != [(0, 0)]:
            assert answer[0][0] in _RETRIABLE, answer


def new_producer_id(client: RawClient) -> int:
    while True:  # the coordinator of a broker that has just started is loading its log
        try:
            return client.producer_id()
        except AssertionError as error:
            assert error.args[0] in _RETRIABLE, error  # noqa: PT017


def send(
    client: RawClient, topic: str, producer_id: int, epoch: int, sequence: int, count: int = 1
) -> tuple[int, int]:
    """Send one batch of *count* records; return (error code, base offset)."""
    values = [b"%d" % number for number in range(count)]
    batch = record_batch(*values, producer_id=producer_id, epoch=epoch, sequence=sequence)
    return client.produce((topic, 0, batch))[0]


def sequences_in_order(client: RawClient, topic: str) -> list[Any]:
    pid = new_producer_id(client)
    return [send(client, topic, pid, 0, sequence, 2) for sequence in (0, 2, 4, 6)]


def batches_that_come_again(client: RawClient, topic: str) -> list[Any]:
    pid = new_producer_id(client)
    first = [send(client, topic, pid, 0, sequence, 2) for sequence in range(0, 14, 2)]
    # The broker remembers the last five and has forgotten the ones before.
    return first + [send(client, topic, pid, 0, sequence, 2) for sequence in range(0, 14, 2)]


def sequences_out_of_order(client: RawClient, topic: str) -> list[Any]:
    pid = new_producer_id(client)
    return [
        send(client, topic, pid, 0, 0),
        send(client, topic, pid, 0, 2),
        send(client, topic, pid, 0, 10),
        send(client, topic, pid, 0, 1),
        send(client, topic, pid, 0, 2),
        # Partial overlaps: the beginning of a known batch, the end of another.
        send(client, topic, pid, 0, 1, 2),
        send(client, topic, pid, 0, 0, 2),
    ]


def a_producer_that_nobody_knows(client: RawClient, topic: str) -> list[Any]:
    pid = new_producer_id(client)
    return [
        send(client, topic, pid, 0, 7),
        send(client, topic, pid, 0, 0),
        send(client, topic, pid, 0, 8),
    ]


def new_epochs(client: RawClient, topic: str) -> list[Any]:
    pid = new_producer_id(client)
    return [
        send(client, topic, pid, 0, 0),
        send(client, topic, pid, 1, 1),
        send(client, topic, pid, 1, 0),
        send(client, topic, pid, 0, 1),
        send(client, topic, pid, 0, 0),
        send(client, topic, pid, 1, 1),
        send(client, topic, pid, 3, 0),
        send(client, topic, pid, 3, 0),
    ]


def sequences_at_their_end(client: RawClient, topic: str) -> list[Any]:
    pid = new_producer_id(client)
    last = 2**31 - 1
    return [
        send(client, topic, pid, 0, last - 1),
        send(client, topic, pid, 0, last),
        send(client, topic, pid, 0, 0),
        send(client, topic, pid, 0, 1),
    ]


def patched(batch: bytes, at: int, layout: str, value: int) -> bytes:
    """Return *batch* with another value in its header and a matching checksum."""
    data = bytearray(batch)
    struct.pack_into(layout, data, at, value)
    struct.pack_into(">I", data, 17, crc32c.crc32c(bytes(data[21:])))
    return bytes(data)


def batches_that_are_none(client: RawClient, topic: str) -> list[Any]:
    good = record_batch(b"one", b"two", b"three")
    offered = [
        good[:-1] + b"\xff",  # wrong checksum
        good + good,
        b"",
        patched(good, 57, ">i", 2),  # fewer records than it contains
        patched(good, 57, ">i", 4),
        patched(good, 23, ">i", 5),  # wrong last offset delta
        good,
    ]
    return [client.produce((topic, 0, data)) for data in offered]


def compressed(client: RawClient, topic: str) -> list[Any]:
    return [
        client.produce((topic, 0, record_batch(b"x" * 1000, codec=codec)), version=version)
        for codec, version in ((1, 3), (2, 3), (3, 3), (4, 7), (4, 6))
    ]


def compressed_records_that_are_none(client: RawClient, topic: str) -> list[Any]:
    said = []
    for codec in (1, 2, 3, 4):
        batch = bytearray(record_batch(b"x" * 1000, codec=codec))
        batch[70:] = bytes(len(batch) - 70)
        said += client.produce((topic, 0, patched(bytes(batch), 57, ">i", 1)))
    return said


def partitions_that_are_not_there(client: RawClient, topic: str) -> list[Any]:
    batch = record_batch()
    return client.produce((topic, 1, batch), (topic, 2, batch), ("no-such-topic", 0, batch))


def acks_that_there_are_not(client: RawClient, topic: str) -> list[Any]:
    return [client.produce((topic, 0, record_batch()), acks=acks) for acks in (2, -2, 1, -1)]


def an_error_without_acks(client: RawClient, topic: str) -> list[Any]:
    client.send(produce_request([(topic, 0, record_batch())], acks=0))
    said = [client.produce((topic, 0, record_batch()))]
    client.send(produce_request([(topic, 7, record_batch())], acks=0))
    with pytest.raises(Closed):
        client.read(1)
    return said


def metadata(client: RawClient, topic: str) -> list[Any]:
    said: list[Any] = []
    for version in (1, 7, 9, 12):
        names = [topic, "no such topic", "x" * 250, "."]
        if version >= 4:  # the broker creates a topic that an older request names
            names.append("no-such-topic")
        answer = client.ask(
            MetadataRequest(
                version=version,
                topics=[MetadataRequest.MetadataRequestTopic(name=name) for name in names],
                allow_auto_topic_creation=False,
            )
        )
        topics = {found.name: found for found in answer.topics}
        said += [(name, found.error_code) for name, found in sorted(topics.items())]
        said += [
            (p.partition_index, p.error_code, p.leader_id, p.leader_epoch)
            for p in sorted(topics[topic].partitions, key=lambda p: p.partition_index)
        ]
    return said


def versions_of_api_versions(client: RawClient, topic: str) -> list[Any]:
    return [client.ask(ApiVersionsRequest(version=v)).error_code for v in (0, 2)]


def a_version_of_produce_that_is_too_old(client: RawClient, topic: str) -> list[Any]:
    client.send(produce_request([(topic, 0, b"")], version=2))
    with pytest.raises(Closed):
        client.read(1)
    return []


CONVERSATIONS: list[Conversation] = [
    sequences_in_order,
    batches_that_come_again,
    sequences_out_of_order,
    a_producer_that_nobody_knows,
    new_epochs,
    sequences_at_their_end,
    batches_that_are_none,
    compressed,
    compressed_records_that_are_none,
    partitions_that_are_not_there,
    acks_that_there_are_not,
    an_error_without_acks,
    metadata,
    versions_of_api_versions,
    a_version_of_produce_that_is_too_old,
]


@pytest.mark.parametrize("conversation", CONVERSATIONS, ids=lambda function: function.__name__)
def test_both_say_the_same(
    conversation: Conversation, real: RawClient, scripted: RawClient, topic: str
) -> None:
    assert conversation(scripted, topic) == conversation(real, topic)
