"""A cluster that is elsewhere now: every broker at a new address, or REBOOTSTRAP_REQUIRED."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pykaproducer import Producer
from pykaproducer._errors.codes import ErrorCode
from pykaproducer._net.transport import ConnectionFailed, Endpoint
from pykaproducer.errors import DeliveryError, Status
from pykaproducer.testing import FakeClock, ScriptedCluster
from pykaproducer.testing.scripted import ScriptedNetwork

from .helper import Amend, ended, hold, let_pass, log, numbers, offsets, pipeline_of, send, until

PARTITIONS = 3


class Named(ScriptedNetwork):
    """The name "bootstrap" stands for the address of one broker, and of another later."""

    def __init__(self, cluster: ScriptedCluster) -> None:
        super().__init__(cluster)
        self.stands_for = 0

    def resolve(self, host: str, port: int) -> list[Endpoint]:
        if host == "bootstrap":
            broker = self._cluster._state.brokers[self.stands_for]
            host, port = broker.host, broker.port
        return super().resolve(host, port)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with ScriptedCluster(3, topics={"t": PARTITIONS}) as made:
        made.network = Named(made)
        yield made


def connect(cluster: ScriptedCluster, clock: FakeClock, **settings: Any) -> Producer:
    # let_pass() advances the time while a connection is being made, too.
    settings = {"delivery_timeout_ms": 86_400_000, **settings}
    return cluster.producer(clock=clock, bootstrap_servers="bootstrap:9092", **settings)


def to_each(producer: Producer, value: bytes) -> list[Any]:
    return [send(producer, [value], partition=each)[0] for each in range(PARTITIONS)]


def rebootstrap(answer: Any) -> None:
    answer.error_code = ErrorCode.REBOOTSTRAP_REQUIRED
    answer.brokers, answer.topics = [], []


def lose_the_cluster(cluster: ScriptedCluster, producer: Producer, clock: FakeClock) -> None:
    """Have the next request for metadata answered with REBOOTSTRAP_REQUIRED, and send it now."""
    metadata = pipeline_of(producer).metadata
    until(lambda: not metadata._refresh.under_way)
    cluster.next("metadata", Amend(rebootstrap))
    clock.jump(1.5)
    metadata.want()
    until(lambda: not metadata.view.brokers)
    # From here on no message is written to a broker that was known before.
    until(lambda: not any(worker._up for worker in pipeline_of(producer).brokers.all()))


def connections(cluster: ScriptedCluster, api: str, since: int = 0) -> dict[int, set[int]]:
    """Return the connections on which requests have come, by broker."""
    found: dict[int, set[int]] = {}
    for each in cluster.received(api)[since:]:
        found.setdefault(each.broker, set()).add(each.connection)
    return found


def test_every_connection_is_closed_and_the_servers_are_resolved_again(
    cluster: ScriptedCluster, clock: FakeClock
) -> None:
    """KIP-1102. The name of the only server stands for another broker by then."""
    with ended(connect(cluster, clock)) as producer:
        assert offsets(to_each(producer, b"before")) == [0, 0, 0]
        before = connections(cluster, "produce")
        asked = cluster.received("metadata")
        cluster.network.stands_for = 2  # type: ignore[attr-defined]
        lose_the_cluster(cluster, producer, clock)
        later = to_each(producer, b"after")
        assert offsets(later, clock) == [1, 1, 1]
        news = cluster.received("metadata")[len(asked) :]
        assert news[0].connection == asked[-1].connection
        assert news[1].broker == 2
        after = connections(cluster, "produce", since=PARTITIONS)
        assert after.keys() == before.keys() == {0, 1, 2}
        assert all(max(before[broker]) < min(after[broker]) for broker in after)


def test_a_server_that_always_requires_it_is_asked_with_backoff(
    cluster: ScriptedCluster, clock: FakeClock
) -> None:
    with ended(connect(cluster, clock)) as producer:
        offsets(to_each(producer, b"before"))
        asked, began = len(cluster.received("metadata")), clock.monotonic()
        cluster.next("metadata", *[Amend(rebootstrap)] * 9)
        lose_the_cluster(cluster, producer, clock)

        def came_back() -> bool:
            clock.jump(0.05)
            return bool(pipeline_of(producer).metadata.view.brokers)

        until(came_back)
        assert len(cluster.received("metadata")) - asked == 11
        assert clock.monotonic() - began > 4
        later = to_each(producer, b"after")
        assert offsets(later, clock) == [1, 1, 1]


@pytest.mark.parametrize("warm", [False, True])
def test_the_error_of_a_message_names_the_cause(
    cluster: ScriptedCluster, clock: FakeClock, warm: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with ended(connect(cluster, clock)) as producer:
        if warm:
            offsets(to_each(producer, b"before"))
            cluster.next("metadata", *[Amend(rebootstrap)] * 999)
            lose_the_cluster(cluster, producer, clock)
        else:
            cluster.next("metadata", *[Amend(rebootstrap)] * 999)
        delivery = producer.send("t", b"after", partition=0, delivery_timeout_ms=3_000)
        let_pass(clock, [delivery])
        error = delivery.exception(0)
    assert isinstance(error, DeliveryError)
    assert "bootstrap:9092 requires a rebootstrap (REBOOTSTRAP_REQUIRED)" in str(error)
    assert error.status is Status.NOT_PERSISTED
    assert len([text for text in caplog.messages if "(REBOOTSTRAP_REQUIRED); do" in text]) == 1


def test_a_request_in_flight_is_retried_and_not_written_twice(
    cluster: ScriptedCluster, clock: FakeClock
) -> None:
    with ended(connect(cluster, clock)) as producer:
        offsets(to_each(producer, b"before"))
        held, deliveries = hold(cluster, producer, numbers(3), partition=1, broker=1)
        lose_the_cluster(cluster, producer, clock)
        until(lambda: producer.stats()["requests"]["lost"] == 1)
        held.release()
        assert offsets(deliveries, clock) == [1, 2, 3]
        assert log(cluster, partition=1) == [b"before", *numbers(3)]


def test_a_topic_of_the_other_cluster_may_have_older_epochs_and_fewer_partitions(
    cluster: ScriptedCluster, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(7):
        cluster.move_leader("t", 0, 1)
    with ended(connect(cluster, clock)) as producer:
        offsets(to_each(producer, b"before"))
        lose_the_cluster(cluster, producer, clock)
        with cluster._changed:
            cluster._state.topics.clear()
            cluster.add_topic("t", 1)
        deliveries = send(producer, numbers(2))
        assert offsets(deliveries, clock) == [0, 1]
        assert log(cluster) == numbers(2)
        assert producer.partitions_for("t") == {0}
    assert "older than the known one" not in caplog.text


class Either(Named):
    """Connects to another cluster from some time on."""

    def __init__(self, cluster: ScriptedCluster) -> None:
        super().__init__(cluster)
        self.now = cluster

    def connect(self, endpoint: Endpoint) -> Any:
        return self.now._connect(endpoint)


@pytest.fixture
def other() -> Iterator[ScriptedCluster]:
    with ScriptedCluster(3, topics={"t": PARTITIONS}) as made:
        yield made


def switch(
    cluster: ScriptedCluster, other: ScriptedCluster, producer: Producer, clock: FakeClock
) -> None:
    """Have the addresses of *cluster* stand for *other*, as the next response tells."""
    cluster.network.now = other  # type: ignore[attr-defined]
    lose_the_cluster(cluster, producer, clock)


def test_another_producer_of_the_other_cluster_may_have_the_same_id(
    cluster: ScriptedCluster, other: ScriptedCluster, clock: FakeClock
) -> None:
    """With its id and numbers, a message would be taken for a duplicate of the other's."""
    cluster.network = Either(cluster)
    with (
        ended(connect(cluster, clock)) as producer,
        ended(other.producer(clock=FakeClock())) as stranger,
    ):
        for value in numbers(3):
            offsets(to_each(producer, value))
            offsets(to_each(stranger, b"stranger's"))
        same = {batch.producer_id for batch in cluster.batches("t")}
        assert same == {batch.producer_id for batch in other.batches("t")}
        switch(cluster, other, producer, clock)
        for offset in (3, 4):
            later = to_each(producer, b"moved")
            assert offsets(later, clock) == [offset] * PARTITIONS
        for partition in range(PARTITIONS):
            expected = [b"stranger's"] * 3 + [b"moved"] * 2
            assert log(other, partition=partition) == expected
        assert offsets(to_each(stranger, b"stranger's")) == [5] * PARTITIONS


def test_a_request_in_flight_is_not_written_to_another_cluster(
    cluster: ScriptedCluster, other: ScriptedCluster, clock: FakeClock
) -> None:
    """It may be in the log of the first one. The messages after it are only in the other log."""
    cluster.network = Either(cluster)
    with ended(connect(cluster, clock)) as producer:
        offsets(to_each(producer, b"before"))
        held, (written,) = hold(cluster, producer, [b"written"], partition=1, broker=1)
        switch(cluster, other, producer, clock)
        later = send(producer, numbers(3), partition=1)
        let_pass(clock, [written, *later])
        held.release()
        error = written.exception(0)
        assert isinstance(error, DeliveryError)
        assert error.status is Status.POSSIBLY_PERSISTED
        assert offsets(later) == [0, 1, 2]
        assert log(other, partition=1) == numbers(3)


# Another cluster at the same addresses, without REBOOTSTRAP_REQUIRED -----------------------------


def replace(cluster: ScriptedCluster, other: ScriptedCluster, producer: Producer) -> None:
    """Have the addresses of *cluster* stand for *other*, and break the connection for metadata."""
    metadata = pipeline_of(producer).metadata
    until(lambda: not metadata._refresh.under_way)
    cluster.network.now = other  # type: ignore[attr-defined]
    (asked,) = {each.connection for each in cluster.received("metadata")}
    with cluster._changed:
        (connection,) = [each for each in cluster._connections if each.number == asked]
    connection.hang_up()
    until(lambda: not metadata.ready)


def is_of(other: ScriptedCluster, producer: Producer, clock: FakeClock) -> None:
    """Have the producer ask *other* for metadata, and wait for that."""
    metadata = pipeline_of(producer).metadata
    asked, refreshed = len(other.received("metadata")), metadata.refreshed
    metadata.want()

    def came() -> bool:
        clock.jump(0.05)
        return len(other.received("metadata")) > asked and metadata.refreshed != refreshed

    until(came)


def test_a_cluster_that_was_created_again_is_noticed(
    cluster: ScriptedCluster,
    other: ScriptedCluster,
    clock: FakeClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Another producer of the new one has the same id, and its numbers are the next ones here.

    With the old id, a message would be taken for a duplicate, and be reported as delivered.
    """
    cluster.network = Either(cluster)
    with (
        ended(connect(cluster, clock)) as producer,
        ended(other.producer(clock=FakeClock())) as stranger,
    ):
        offsets(to_each(producer, b"before"))
        for value in (b"first", b"second"):
            offsets(to_each(stranger, value))
        same = {batch.producer_id for batch in cluster.batches("t")}
        assert same == {batch.producer_id for batch in other.batches("t")}
        replace(cluster, other, producer)
        is_of(other, producer, clock)
        later = to_each(producer, b"moved")
        assert offsets(later, clock) == [2, 2, 2]
        for partition in range(PARTITIONS):
            assert log(other, partition=partition) == [b"first", b"second", b"moved"]
            assert log(cluster, partition=partition) == [b"before"]
    ids = f"the cluster id is {other._state.cluster_id}, and was {cluster._state.cluster_id} before"
    (told,) = [text for text in caplog.messages if "is of another cluster" in text]
    assert told.endswith(f" is of another cluster: {ids}")


@pytest.mark.parametrize("silently", [False, True])
def test_every_broker_at_a_new_address(
    cluster: ScriptedCluster, clock: FakeClock, silently: bool
) -> None:
    """The old addresses refuse connections, or answer nothing at all."""
    # The silent ones are given up when their time is over.
    with ended(connect(cluster, clock, delivery_timeout_ms=3_600_000)) as producer:
        assert offsets(to_each(producer, b"before")) == [0, 0, 0]
        for broker in range(3):
            cluster.stop(broker, silently=silently)
        waiting = to_each(producer, b"waiting")
        with cluster._changed:
            for number, state in cluster._state.brokers.items():
                state.host, state.port = f"moved-{number}.scripted", 19092 + number
                state.running = state.reachable = True

        def settled() -> bool:
            clock.jump(0.5)
            return all(each.done() for each in waiting)

        until(settled)
        assert offsets(waiting) == [1, 1, 1]
        after = to_each(producer, b"after")
        assert offsets(after, clock) == [2, 2, 2]
        for partition in range(PARTITIONS):
            assert log(cluster, partition=partition) == [b"before", b"waiting", b"after"]
        with pytest.raises(ConnectionFailed):
            cluster.network.resolve("broker-0.scripted", 9092)
