"""Kafka's coordinators answer what ``conversations`` says, with both transaction protocols.

A later version of Kafka that answers otherwise is noticed here.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from kafka import TopicPartition

from pykaproducer._net.transport import Network
from pykaproducer._wire.messages import VERSIONS, ApiKey
from pykaproducer.testing._messages import ApiVersionsRequest
from pykaproducer.testing._transaction_messages import EndTxnRequest
from tests.net.helper import Settings
from tests.testing.helper import RawClient, produce_request
from tests.transactions.conversations import CONVERSATIONS, PATIENCE, Conversation, World
from tests.transactions.helper import BOTH, Kafka, wait_until_ended
from tests.wire.helper import record_batch


def connect(kafka: Kafka) -> RawClient:
    broker = kafka.cluster.brokers[0]
    return RawClient(Network(Settings()), broker.host, broker.port)


@pytest.fixture
def client(kafka: Kafka) -> Iterator[RawClient]:
    with connect(kafka) as made:
        yield made


def world_of(kafka: Kafka, client: RawClient, topic: str, protocol: int | None = None) -> World:
    server = int(kafka.protocol[-1])
    used = protocol or server
    world = World(
        client,
        topic,
        f"{topic}-{used}",
        server,
        used,
        expire=lambda world: world.wait_for("CompleteAbort"),
        connect=lambda: connect(kafka),
    )
    world.find()
    return world


@pytest.mark.parametrize(
    ("kafka", "protocol"),
    [("TV1", 1), ("TV2", 2), pytest.param("TV2", 1, marks=pytest.mark.full)],
    indirect=["kafka"],
)
@pytest.mark.parametrize("conversation", CONVERSATIONS, ids=lambda each: each.__name__)
def test_what_a_coordinator_answers(
    kafka: Kafka,
    client: RawClient,
    topic: str,
    conversation: Conversation,
    protocol: int,
) -> None:
    expected = CONVERSATIONS[conversation][int(kafka.protocol[-1]), protocol]
    assert conversation(world_of(kafka, client, topic, protocol)) == expected


#: What Kafka 4.3.1 offers, whatever the level of the feature is.
OFFERED = {
    ApiKey.PRODUCE: (0, 13),
    ApiKey.FIND_COORDINATOR: (0, 6),
    ApiKey.INIT_PRODUCER_ID: (0, 5),  # not 6, with two-phase commit (KIP-939)
    ApiKey.ADD_PARTITIONS_TO_TXN: (0, 5),
    ApiKey.ADD_OFFSETS_TO_TXN: (0, 4),
    ApiKey.END_TXN: (0, 5),
    ApiKey.TXN_OFFSET_COMMIT: (0, 5),
    ApiKey.OFFSET_FETCH: (1, 10),
    ApiKey.DESCRIBE_TRANSACTIONS: (0, 0),
    ApiKey.LIST_TRANSACTIONS: (0, 2),
}


@BOTH
def test_the_versions_that_are_offered(client: RawClient) -> None:
    answer = client.ask(ApiVersionsRequest(version=0))
    found = {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}
    assert {key: found[key] for key in OFFERED} == OFFERED
    assert all(VERSIONS[key][1] <= last for key, (_, last) in OFFERED.items())


@BOTH
def test_offsets_in_an_internal_topic(kafka: Kafka, client: RawClient, topic: str) -> None:
    """A group may keep any state in such offsets: nothing has to be written there."""
    world = world_of(kafka, client, topic)
    producer = world.begin()
    if world.protocol == 1:
        assert world.add_group(producer, topic) == "0"
    for internal in ("__consumer_offsets", "__transaction_state"):
        assert world.commit_offset(producer, topic, topic=internal) == "0"
    assert world.end(producer, commit=True).error_code == 0


@pytest.mark.parametrize("kafka", ["TV2"], indirect=True)
def test_batches_beside_an_abort(kafka: Kafka, client: RawClient, topic: str) -> None:
    """The new epoch fences batches in flight, so that an abort need not wait for them (KIP-890)."""
    world = world_of(kafka, client, topic)
    producer = world.begin()
    world.write(producer)
    producer = world.after(producer, world.end(producer, commit=False))
    found = set()
    with connect(kafka) as beside:
        for number in range(100):
            batch = record_batch(
                b"%d" % number,
                producer_id=producer[0],
                epoch=producer[1],
                sequence=0,
                transactional=True,
            )
            produce = produce_request([(topic, 0, batch)], transactional_id=world.name)
            end = EndTxnRequest(
                version=5,
                transactional_id=world.name,
                producer_id=producer[0],
                producer_epoch=producer[1],
                committed=False,
            )
            beside.send(produce)
            client.send(end)
            first = client.answer(end)
            (written,) = beside.answer(produce).responses[0].partition_responses
            found.add((first.error_code, written.error_code))
            producer = world.after(
                producer, first if first.error_code == 0 else world.end(producer, commit=False)
            )
    # The batch comes first, or second; or the coordinator is busy with adding its partition, or
    # with the markers of the last transaction.
    assert found <= {(0, 0), (0, 47), (51, 0), (51, 47), (51, 51)}, found
    deadline = time.monotonic() + PATIENCE
    wait_until_ended(kafka.cluster.bootstrap_servers, [TopicPartition(topic, 0)], deadline)


#: The last epoch of a producer id that a coordinator gives to a producer.
LAST_EPOCH = 2**15 - 2


@BOTH
@pytest.mark.full  # ``test_silent_coordinators`` has it in short
def test_epochs_that_are_used_up(kafka: Kafka, client: RawClient, topic: str) -> None:
    """The coordinator gives another producer id, and the producer continues with it."""
    world = world_of(kafka, client, topic)
    producer = world.begin()
    while producer[1] < LAST_EPOCH - 5:
        if world.protocol == 2:
            producer = world.after(producer, world.end(producer, commit=False))
        else:
            producer = world.begin(expected=producer)
    ids = set()
    # With the first protocol only another producer gets another epoch.
    producers, transactions = (12, 1) if world.protocol == 1 else (1, 12)
    for number in range(producers):
        with kafka.producer(transactional_id=world.name) as made:
            for each in range(transactions):
                with made.transaction():
                    made.send(topic, b"%d" % (number + each), partition=0)
                ids.add(made.stats()["transactions"]["producer_id"])
    assert kafka.committed(topic) == [b"%d" % number for number in range(12)]
    assert len(ids) == 2
