"""Kafka's coordinators answer what ``conversations`` says, with both transaction protocols."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from pykaproducer._net.transport import Network
from pykaproducer.testing._processes import tick
from tests.net.helper import Settings
from tests.testing.helper import RawClient
from tests.transactions.conversations import CONVERSATIONS, PATIENCE, Conversation, World
from tests.transactions.helper import Kafka


@pytest.fixture
def client(kafka: Kafka) -> Iterator[RawClient]:
    broker = kafka.cluster.brokers[0]
    with RawClient(Network(Settings()), broker.host, broker.port) as made:
        yield made


def expire(world: World) -> None:
    """Wait until the coordinator has aborted the transaction."""
    deadline = time.monotonic() + PATIENCE
    while world.describe().transaction_state != "CompleteAbort":
        assert time.monotonic() < deadline
        tick()


@pytest.mark.parametrize("protocol", [1, 2])
@pytest.mark.parametrize("conversation", CONVERSATIONS, ids=lambda each: each.__name__)
def test_what_a_coordinator_answers(
    kafka: Kafka,
    client: RawClient,
    topic: str,
    conversation: Conversation,
    protocol: int,
) -> None:
    server = int(kafka.protocol[-1])
    if server >= protocol:  # a client uses the second protocol only if the brokers offer it
        expected = CONVERSATIONS[conversation][server, protocol]
        world = World(client, topic, f"{topic}-{protocol}", server, protocol, expire)
        world.find()
        assert conversation(world) == expected
