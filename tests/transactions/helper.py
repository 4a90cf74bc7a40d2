"""Producers with a transactional id, and readers that see what is committed, or everything."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from kafka import KafkaConsumer, TopicPartition

from pykaproducer import Producer
from pykaproducer._machines.transaction_calls import ControlCalls
from pykaproducer._machines.transactions import TransactionMachine
from pykaproducer.testing import FaultProxy, KafkaCluster
from pykaproducer.testing._processes import tick
from tests._support.consumer import read_through
from tests._support.fixtures.cluster import FEATURES, PROCESS, PROPERTIES
from tests.pipeline.helper import pipeline_of

#: How long a test waits for what must happen (seconds); only a hang takes as long.
PATIENCE = 60.0
#: The timeout of transactions that must exceed it (milliseconds). Until then a message has to be
#: delivered on a busy machine.
SHORT_MS = 4_000
#: For tests of what the protocols do in different ways. Others run with the second one alone,
#: unless everything is tested.
BOTH = pytest.mark.parametrize("kafka", sorted(FEATURES), indirect=True)

_numbers = itertools.count(1)


@dataclass(frozen=True)
class Kafka:
    """A broker and the proxy before it."""

    cluster: KafkaCluster
    proxy: FaultProxy
    protocol: str

    def producer(self, *, proxied: bool = False, **settings: Any) -> Producer:
        """Return a producer with a separate transactional id, unless one is given."""
        cluster = self.cluster
        return transactional(
            cluster.proxied_servers if proxied else cluster.bootstrap_servers, **settings
        )

    def begun(self, **settings: Any) -> Producer:
        """Return a producer in a transaction."""
        return begun(self.producer(**settings))

    def restore(self) -> None:
        """Let the proxy pass everything, and wait until its side of all connections is closed."""
        self.proxy.restore()
        deadline = time.monotonic() + PATIENCE
        while self.proxy.connections:
            assert time.monotonic() < deadline
            tick()

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Let nothing pass the proxy."""
        self.proxy.black_hole()
        try:
            yield
        finally:
            self.proxy.restore()

    def committed(self, topic: str) -> list[bytes]:
        """Return what a reader of committed messages sees, once no transaction is open."""
        return read(self.cluster.bootstrap_servers, topic, "read_committed")

    def written(self, topic: str) -> list[bytes]:
        """Return all messages, once no transaction is open."""
        return read(self.cluster.bootstrap_servers, topic, "read_uncommitted")


@contextmanager
def own_broker(protocol: str, properties: Mapping[str, str] = PROPERTIES) -> Iterator[Kafka]:
    """Start a broker of this process behind a proxy."""
    features = FEATURES[protocol]
    with (
        FaultProxy() as proxy,
        KafkaCluster(
            properties=properties, features=features, proxies=[proxy], fast_start=True
        ) as cluster,
    ):
        yield Kafka(cluster, proxy, protocol)


def begun(producer: Producer) -> Producer:
    """Begin a transaction."""
    producer.init_transactions(PATIENCE)
    producer.begin_transaction()
    return producer


def calls_of(producer: Producer) -> ControlCalls:
    """Return the calls that the coordinator's stage has, of a producer that has started."""
    return _machine_of(producer)._calls


def has_answer(producer: Producer) -> bool:
    """Return whether the call under way has been answered with an error that passes."""
    return bool(_machine_of(producer)._times)


def _machine_of(producer: Producer) -> TransactionMachine:
    coordinator = pipeline_of(producer).coordinator
    assert coordinator is not None
    return coordinator.machine


def transactional(servers: str, **settings: Any) -> Producer:
    """Return a producer with a separate transactional id, unless one is given."""
    given = {
        "transactional_id": f"id-{PROCESS}-{next(_numbers)}",
        "retry_backoff_ms": 20,
    } | settings
    return Producer(bootstrap_servers=servers, **given)


def read(servers: str, topic: str, isolation: str, partitions: Sequence[int] = (0, 1, 2)) -> Any:
    """Return the values in *topic*, partition by partition, once no transaction is open."""
    places = [TopicPartition(topic, partition) for partition in partitions]
    wait_until_ended(servers, places, time.monotonic() + PATIENCE)
    return read_through(servers, topic, partitions, committed=isolation == "read_committed")


def wait_until_ended(servers: str, places: list[Any], deadline: float) -> None:
    """Wait until no transaction is open in *places*: readers of committed messages see the end."""
    everything, stable = (
        KafkaConsumer(bootstrap_servers=servers, isolation_level=level, enable_auto_commit=False)
        for level in ("read_uncommitted", "read_committed")
    )
    try:
        ends = everything.end_offsets(places)
        while any(end < ends[place] for place, end in stable.end_offsets(places).items()):
            assert time.monotonic() < deadline, f"a transaction is open in {places}"
            tick()
    finally:
        everything.close()
        stable.close()
