"""The size of requests, the partitions in them, and their timeouts."""

from __future__ import annotations

import random
from typing import Any

import pytest

from pykaproducer import Delivery, Producer
from pykaproducer._machines.batch import Batch
from pykaproducer._machines.partition_buffer import PartitionBuffer
from pykaproducer.testing import ScriptedCluster
from pykaproducer.testing.scripted import Drop, Exchange

from .helper import (
    LINGERING,
    SOON,
    Held,
    attempts,
    frozen,
    hold,
    let_pass,
    log,
    numbers,
    offsets,
    outcomes,
    pipeline_of,
    running,
    send,
    sent,
    under_way,
    until,
    warm_up,
)

BOTH = pytest.mark.parametrize("idempotent", [True, False], ids=["idempotent", "plain"])


def sizes(cluster: ScriptedCluster) -> list[list[int]]:
    """Return the bytes of each batch, request by request."""
    return [
        [
            len(part.records)
            for topic in received.request.topic_data
            for part in topic.partition_data
        ]
        for received in cluster.received("produce")
    ]


class DropOneAbove:
    """Closes the connection at the first request above *limit* bytes, and performs the others."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.size = 0

    def __call__(self, exchange: Exchange) -> None:
        size = sum(
            len(part.records)
            for topic in exchange.request.topic_data
            for part in topic.partition_data
        )
        if size > self.limit and not self.size:
            self.size = size
            Drop()(exchange)
        else:
            exchange.answer(exchange.apply())


def incompressible(count: int, size: int) -> list[bytes]:
    source = random.Random(1)
    return [source.randbytes(size) for _ in range(count)]


def rows_at_brokers(producer: Producer) -> int:
    """Return how many rows the BrokerWorkers have."""
    stages = producer.stats()["stages"]
    return sum(each["rows"] for each in stages if each["stage"] == "BrokerWorker")


# Size ---------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("compression", [None, "gzip"])
def test_a_request_holds_max_request_size_at_most(
    idempotent: bool, compression: str | None
) -> None:
    """A backlog for nine partitions, as after an outage of the broker."""
    with frozen(
        topics={"t": 9},
        enable_idempotence=idempotent,
        compression_type=compression,
        max_request_size=50_000,
        batch_size=20_000,
    ) as (cluster, _, producer):
        held, deliveries = hold(cluster, producer, [b"first"])
        for partition in range(9):
            deliveries += send(producer, incompressible(40, 2_000), partition=partition)
        held.release()
        offsets(deliveries)
        assert max(sum(batches) for batches in sizes(cluster)) <= 50_000
        # The requests are as full as that allows.
        assert len(sizes(cluster)) < 30


def test_a_batch_that_is_larger_goes_alone() -> None:
    """Larger by the overhead of a batch, which batch_size does not count."""
    settings = {"max_request_size": 10_000, "batch_size": 10_000}
    with running(topics={"t": 3}, **settings, **LINGERING) as (cluster, producer):
        for partition in range(3):
            send(producer, [bytes(3_317)] * 3, partition=partition)
        until(lambda: rows_at_brokers(producer) == 9)  # flush() sends what has arrived at once
        producer.flush(SOON)
        (size,) = {sum(batches) for batches in sizes(cluster)}
        assert 10_000 < size < 10_100
        assert [len(batches) for batches in sizes(cluster)] == [1, 1, 1]


# Fairness -----------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("busy", [1, 9])
def test_a_quiet_partition_has_its_turn_beside_busy_ones(idempotent: bool, busy: int) -> None:
    """Each batch of a busy one fills a request."""
    with frozen(
        topics={"t": busy + 1},
        enable_idempotence=idempotent,
        max_request_size=10_000,
        batch_size=10_000,
        max_in_flight_requests_per_connection=1,
    ) as (cluster, _, producer):
        warm_up(producer, partitions=busy + 1)
        before = attempts(cluster)
        held, deliveries = hold(cluster, producer, [bytes(4_000)])
        for partition in range(busy):
            deliveries += send(producer, [bytes(4_000)] * 20, partition=partition)
        quiet = send(producer, [b"quiet"], partition=busy)
        pipeline = pipeline_of(producer)
        (worker,) = pipeline.brokers.all()

        def arrived() -> bool:
            under_way = [
                batch for request in worker.bridge.held_items() for batch in request.batches
            ]
            items = [*worker.held_items(), *under_way]
            return bool(pipeline.dispatcher.held) or any(i.partition == busy for i in items)

        until(arrived)
        held.release()
        offsets([*deliveries, *quiet])
        order = [batch.partition for batch in sent(cluster)[before:]]
        # The held request, at most two that were ready by then, and one of each busy partition.
        assert order.index(busy) <= 3 + busy


# Timeouts -----------------------------------------------------------------------------------------


@BOTH
def test_a_request_has_its_time_from_the_answer_before_it(idempotent: bool) -> None:
    """A broker or line that needs 20 s for each request; request_timeout_ms is 30 s."""
    held = [Held() for _ in range(2)]
    with frozen(topics={"t": 2}, enable_idempotence=idempotent) as (cluster, clock, producer):
        warm_up(producer, partitions=2)
        cluster.next("produce", *held)
        deliveries = []
        for partition in range(2):
            deliveries += send(producer, [b"value"], partition=partition)
            under_way(producer, partition + 1)
        for each in held:
            each.wait_until_held()
            clock.jump(20)
            each.release()
        offsets(deliveries)
        assert [len(log(cluster, "t", partition)) for partition in range(2)] == [2, 2]
        assert producer.stats()["requests"]["lost"] == 0


def test_a_silent_broker_loses_its_connection_after_request_timeout_ms() -> None:
    """However many requests are in flight, nothing restarts their timeout."""
    held = Held()
    with frozen(topics={"t": 2}) as (cluster, clock, producer):
        warm_up(producer, partitions=2)
        cluster.next("produce", held, *[Held()] * 9)
        deliveries = send(producer, [b"1"])
        held.wait_until_held()
        clock.jump(29)
        deliveries += send(producer, [b"2"], partition=1)
        under_way(producer, 2)
        assert producer.stats()["requests"]["lost"] == 0
        cluster._script["produce"].clear()
        clock.jump(1)
        let_pass(clock, deliveries)
        offsets(deliveries)
        assert producer.stats()["requests"]["lost"] >= 1
        held.release()


@BOTH
def test_after_a_large_request_was_lost_the_next_ones_are_smaller(idempotent: bool) -> None:
    settings: dict[str, Any] = {"max_request_size": 200_000, "batch_size": 50_000}
    held = Held()
    with frozen(topics={"t": 8}, enable_idempotence=idempotent, **settings) as (
        cluster,
        clock,
        producer,
    ):
        warm_up(producer, partitions=8)
        before = attempts(cluster)
        # The first requests are as small as the stages are fast.
        lost = DropOneAbove(100_000)
        cluster.next("produce", held, *[lost] * 160)
        deliveries = send(producer, [b"first"])
        held.wait_until_held()
        for partition in range(8):
            deliveries += send(producer, [bytes(10_000)] * 20, partition=partition)
        held.release()
        let_pass(clock, deliveries)
        offsets(deliveries)
        cluster._script["produce"].clear()
        assert [len(log(cluster, "t", partition)) for partition in range(1, 8)] == [21] * 7
        found = [sum(batches) for batches in sizes(cluster)[before:]]
        large = found.index(lost.size)
        assert 100_000 < found[large] <= 200_000
        assert 0 < found[large + 1] <= 100_000
        # Requests that are answered soon restore it.
        before = attempts(cluster)
        held = Held()
        cluster.next("produce", held)
        deliveries = send(producer, [b"second"])
        held.wait_until_held()
        for partition in range(8):
            deliveries += send(producer, numbers(1), partition=partition)
            deliveries += send(producer, [bytes(10_000)] * 20, partition=partition)
        held.release()
        offsets(deliveries)
        assert max(sum(batches) for batches in sizes(cluster)[before:]) > 100_000


def test_a_sealed_batch_that_waits_costs_nothing_for_each_message_that_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sealed ahead, a thousand batches may wait for a response while messages keep coming."""
    partitions, rounds = 40, 20
    looks: list[Batch] = []
    drop_ahead = PartitionBuffer.drop_ahead

    def counted(buffer: PartitionBuffer, batch: Batch) -> bool:
        looks.append(batch)
        return drop_ahead(buffer, batch)

    monkeypatch.setattr(PartitionBuffer, "drop_ahead", counted)
    held = Held()
    settings: dict[str, Any] = {"enable_idempotence": False, "linger_ms": 200}
    with running(topics={"t": partitions}, **settings) as (cluster, producer):
        warm_up(producer)
        cluster.next("produce", held)

        def send_to_all() -> list[Delivery]:
            return [
                delivery
                for partition in range(partitions)
                for delivery in send(producer, [b"value"], partition=partition)
            ]

        deliveries = send_to_all()
        held.wait_until_held()
        pipeline = producer._pipeline
        assert pipeline is not None
        (broker,) = pipeline.brokers.all()
        deliveries += send_to_all()
        until(
            lambda: bool(broker._ahead.requests)
        )  # the same partitions: they wait for the response
        for _ in range(rounds):
            deliveries += send_to_all()
        held.release()
        assert outcomes(deliveries) == [None] * len(deliveries)
        batches = sum(len(cluster.batches("t", partition)) for partition in range(partitions))
        assert len(looks) <= 2 * batches
