"""The drop-in for confluent-kafka's Producer: transactions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pykaproducer.confluent import KafkaException, Producer
from pykaproducer.errors import TransactionError
from pykaproducer.testing import KafkaCluster

from .helper import SOON

NOWHERE = "127.0.0.1:1"
CALLS = ("init_transactions", "begin_transaction", "commit_transaction", "abort_transaction")


@pytest.fixture
def make(cluster: KafkaCluster, topic: str) -> Iterator[Callable[..., Producer]]:
    """Yield a function that makes producers, with the topic's name as their id."""
    cluster.create_topic(topic)
    made: list[Producer] = []

    def make_one(**settings: Any) -> Producer:
        given = {name.replace("_", "."): value for name, value in settings.items()}
        servers = cluster.bootstrap_servers
        made.append(Producer({"bootstrap.servers": servers, "transactional.id": topic, **given}))
        return made[-1]

    yield make_one
    for producer in made:
        producer.close()


def test_an_abort_logs_no_failures(
    topic: str, make: Callable[..., Producer], caplog: pytest.LogCaptureFixture
) -> None:
    """They are what the program has asked for. A message that was refused is logged."""
    producer = make(linger_ms=60_000)
    producer.init_transactions(SOON)
    producer.begin_transaction()
    producer.produce(topic, b"dropped", partition=0)
    producer.abort_transaction()
    producer.poll(0)
    assert not [each for each in caplog.records if each.levelname in ("WARNING", "ERROR")]
    producer.begin_transaction()
    producer.produce(topic, b"nowhere", partition=99)
    producer.flush(SOON)
    producer.abort_transaction()
    assert [each.message for each in caplog.records if "no partition 99" in each.message]


def test_an_error_has_the_one_of_the_core(topic: str, make: Callable[..., Producer]) -> None:
    producer = make()
    producer.init_transactions(SOON)
    producer.begin_transaction()
    producer.produce(topic, b"nowhere", partition=99)
    with pytest.raises(KafkaException, match="partition 99") as raised:
        producer.commit_transaction(None)
    assert isinstance(raised.value.__cause__, TransactionError)
    assert raised.value.args[0].origin is raised.value.__cause__
    producer.abort_transaction(SOON)


def test_a_timeout_is_a_number() -> None:
    producer = Producer({"bootstrap.servers": NOWHERE, "transactional.id": "a"})
    for call in CALLS[:1] + CALLS[2:]:
        with pytest.raises(TypeError, match="must be real number, not str"):
            getattr(producer, call)("1")
    producer.close()
