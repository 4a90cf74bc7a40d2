"""Several requests in flight: how many, when another is sent, and what must keep its order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pykaproducer import DeliveryTimeoutError, Producer
from pykaproducer._errors.codes import ErrorCode
from pykaproducer._machines.window import PAUSE
from pykaproducer._pipeline.broker import BrokerWorker
from pykaproducer.testing.scripted import Drop, Exchange

from .helper import (
    FAST,
    LINGERING,
    Held,
    RefuseIf,
    attempts,
    error_of,
    frozen,
    hold,
    let_pass,
    log,
    numbers,
    offsets,
    outcome,
    pipeline_of,
    running,
    send,
    sent,
    under_way,
    until,
    warm_up,
)

#: One batch in flight, and time for what a test sends to come together.
LINGERING_ALONE: dict[str, Any] = {"enable_idempotence": False, "linger_ms": 200}


def worker_of(producer: Producer, broker_id: int) -> BrokerWorker:
    (found,) = (
        worker for worker in pipeline_of(producer).brokers.all() if worker.broker_id == broker_id
    )
    return found


def depth(in_flight: int) -> dict[str, Any]:
    return {"max_in_flight_requests_per_connection": in_flight}


# The number of requests ---------------------------------------------------------------------------


@pytest.mark.parametrize("in_flight", [1, 2, 3, 5])
def test_full_batches_go_as_far_as_the_setting_allows(in_flight: int) -> None:
    """All of one partition, while the broker answers nothing."""
    held = Held()
    with frozen(batch_max_messages=1, **depth(in_flight)) as (cluster, _, producer):
        warm_up(producer)
        cluster.next("produce", held)
        producer.send_many("t", numbers(20), partitions=[0] * 20)
        held.wait_until_held()
        under_way(producer, in_flight)
        held.release()
        until(lambda: log(cluster) == [b"first", *numbers(20)])


@pytest.mark.parametrize("in_flight", [1, 2, 5, 7])
def test_without_idempotence_so_many_requests_of_different_partitions_go(in_flight: int) -> None:
    held = Held()
    # With "own", two messages of a partition may come first. One is then sealed ahead.
    with frozen(
        topics={"t": 9},
        enable_idempotence=False,
        batch_size=10_000,
        max_request_size=10_000,
        stage_threads="shared",
        **depth(in_flight),
    ) as (cluster, _, producer):
        warm_up(producer, partitions=9)
        cluster.next("produce", held)
        partitions = [partition for partition in range(9) for _ in range(3)]
        producer.send_many("t", [bytes(9_900)] * 27, partitions=partitions)
        held.wait_until_held()
        under_way(producer, in_flight)
        held.release()
        until(lambda: all(len(log(cluster, partition=each)) == 4 for each in range(9)))


def test_two_small_requests_go_and_a_third_a_while_later() -> None:
    """Messages that arrive in the meantime are sent together."""
    with frozen() as (cluster, clock, producer):
        warm_up(producer)
        before = attempts(cluster)
        held, deliveries = hold(cluster, producer, [b"1"])
        deliveries += send(producer, [b"2"])
        under_way(producer, 2)
        deliveries += send(producer, [b"3", b"4"])
        clock.jump(PAUSE * 0.8)
        deliveries += send(producer, [b"5"])
        under_way(producer, 2)
        clock.jump(PAUSE * 0.4)
        under_way(producer, 3)
        held.release()
        assert offsets(deliveries) == [1, 2, 3, 4, 5]
        values = [batch.values for batch in sent(cluster)[before:]]
        assert values == [(b"1",), (b"2",), (b"3", b"4", b"5")]


def test_messages_stay_in_the_open_chunk_while_no_broker_can_be_sent_more() -> None:
    """They are taken together when the window opens."""
    with frozen(**depth(1)) as (cluster, _, producer):
        warm_up(producer)
        before = attempts(cluster)
        held, deliveries = hold(cluster, producer, [b"1"])
        dispatcher = pipeline_of(producer).dispatcher
        for value in numbers(9, first=2):
            deliveries += send(producer, [value])
            until(lambda: bool(dispatcher.held))
        assert not list(worker_of(producer, 0).held_items())
        held.release()
        offsets(deliveries)
        assert [batch.values for batch in sent(cluster)[before:]] == [
            (b"1",),
            tuple(numbers(9, first=2)),
        ]
        assert not dispatcher.held


def test_messages_in_the_open_chunk_wait_for_a_connection_and_go_with_it() -> None:
    with frozen() as (cluster, clock, producer):
        warm_up(producer)
        cluster.stop(0)
        dispatcher = pipeline_of(producer).dispatcher
        worker = worker_of(producer, 0)
        until(lambda: not worker._up)
        deliveries = send(producer, [b"1"])
        until(lambda: bool(worker.batcher.waiting))
        deliveries += send(producer, [b"2"])
        until(lambda: bool(dispatcher.held))
        cluster.start(0)
        let_pass(clock, deliveries)
        offsets(deliveries)
        assert log(cluster) == [b"first", b"1", b"2"]


def test_a_silent_broker_delays_no_message_for_another() -> None:
    with frozen(2, topics={"t": 1, "other": 1}, **depth(1)) as (cluster, _, producer):
        cluster.move_leader("t", 0, 0)
        cluster.move_leader("other", 0, 1)
        warm_up(producer)
        _, _ = hold(cluster, producer, [b"in flight"], broker=0)
        # The other broker has no stage before the first message, and may be sent more after it.
        for _ in range(3):
            warm_up(producer, topic="other")


def test_a_flush_waits_for_the_window_too_and_ends() -> None:
    with running(batch_max_messages=1, **LINGERING, **depth(2)) as (cluster, producer):
        warm_up(producer)
        held, _ = hold(cluster, producer, numbers(10))
        held.release()
        producer.flush(30)
        assert log(cluster) == [b"first", *numbers(10)]


# Order --------------------------------------------------------------------------------------------


class Together:
    """Several answers in one piece: the first is malformed, the second is a rejection."""

    def __init__(self) -> None:
        self.first: Exchange | None = None

    def __call__(self, exchange: Exchange) -> None:
        if self.first is None:
            self.first = exchange
            return
        nonsense = self.first.encoded(self.first.apply())
        refusal = exchange.encoded(exchange.refusal(ErrorCode.NOT_ENOUGH_REPLICAS))
        exchange.send(nonsense[:8] + b"\xff" * (len(nonsense) - 8) + refusal)


@pytest.mark.parametrize("in_flight", [4, 5])
def test_what_comes_behind_an_answer_without_sense_keeps_its_place(in_flight: int) -> None:
    """1 and 2 are answered in one piece while 3 is in flight: 2 is retried before 3."""
    first, third = Held(), Held(then=Drop())
    with running(batch_max_messages=1, **FAST, **depth(in_flight)) as (cluster, producer):
        warm_up(producer)
        together = Together()
        cluster.next("produce", first, together, together, third)
        deliveries = send(producer, numbers(1))
        first.wait_until_held()
        deliveries += send(producer, numbers(in_flight - 1, 1))
        under_way(producer, in_flight)
        first.release()
        third.wait_until_held()
        third.release()
        assert offsets(deliveries) == list(range(1, in_flight + 1))
        assert log(cluster) == [b"first", *numbers(in_flight)]


@pytest.mark.parametrize("in_flight", [2, 5])
def test_a_batch_is_recognised_however_often_it_is_refused_behind_its_append(
    in_flight: int,
) -> None:
    """A broker remembers five batches: later ones must not push it out."""
    with running(batch_max_messages=1, **FAST, **depth(in_flight)) as (cluster, producer):
        warm_up(producer)
        refused = RefuseIf(ErrorCode.NOT_ENOUGH_REPLICAS, lambda values: values == (b"0",))
        cluster.next("produce", Drop(appended=True), *[refused] * 40)
        assert offsets(send(producer, numbers(60))) == list(range(1, 61))
        assert log(cluster) == [b"first", *numbers(60)]


def test_a_partition_that_is_only_sealed_ahead_follows_its_leader() -> None:
    """It does not wait for the response of a request in which it is not.

    1. Partition 0 has a batch in flight; partitions 0 and 1 have one sealed ahead.
    2. Both get another leader; the broker does not answer. Partition 1 moves.
    3. The broker dies. Now partition 0 moves.
    """
    with running(2, topics={"t": 2}, acks=1, **LINGERING_ALONE, **FAST) as (cluster, producer):
        for partition in (0, 1):
            cluster.move_leader("t", partition, 0)
        warm_up(producer, partitions=2)
        _, deliveries = hold(cluster, producer, [b"in flight"], broker=0)
        deliveries += send(producer, [b"sealed", b"ahead"])
        ahead = send(producer, numbers(2), partition=1)
        old = worker_of(producer, 0)
        until(lambda: {batch.partition for batch in old._ahead.batches()} == {0, 1})
        for partition in (0, 1):
            cluster.move_leader("t", partition, 1)
        pipeline_of(producer).metadata.want()
        assert offsets(ahead) == [1, 2]
        assert [delivery.done() for delivery in deliveries] == [False] * 3
        cluster.stop(0)
        assert offsets(deliveries) == [1, 2, 3]
        assert log(cluster, "t", 1) == [b"first", *numbers(2)]


def test_a_batch_sealed_ahead_keeps_its_sequence_numbers_at_the_next_leader() -> None:
    settings = {"batch_max_messages": 2, "linger_ms": 200, **depth(1), **FAST}
    with running(2, topics={"t": 2}, **settings) as (cluster, producer):
        for partition in (0, 1):
            cluster.move_leader("t", partition, 0)
        warm_up(producer, partitions=2)
        held, blocked = hold(cluster, producer, [b"in", b"flight"], broker=0)
        deliveries = send(producer, numbers(2), partition=1)
        old = worker_of(producer, 0)
        until(lambda: [batch.partition for batch in old._ahead.batches()] == [1])
        deliveries += send(producer, numbers(2, 2), partition=1)
        cluster.move_leader("t", 1, 1)
        pipeline_of(producer).metadata.want()
        assert offsets(deliveries) == [1, 2, 3, 4]
        assert log(cluster, "t", 1) == [b"first", *numbers(4)]
        batches = [batch for batch in sent(cluster) if batch.partition == 1]
        assert [(batch.broker, batch.first_sequence) for batch in batches] == [
            (0, 0),
            (1, 1),
            (1, 3),
        ]
        assert len({batch.producer for batch in batches}) == 1
        held.release()
        offsets(blocked)


class HeldAfterAppend(Held):
    """Appends the batches, and holds the response."""

    def __call__(self, exchange: Exchange) -> None:
        answer = exchange.apply()
        self._arrived.set()
        if exchange.wait(self._released):
            exchange.answer(answer)


def test_after_the_last_response_what_is_sealed_ahead_goes_to_the_next_leader() -> None:
    """It is not sent to a broker that is known to reject it."""
    held = HeldAfterAppend()
    with running(2, **LINGERING_ALONE, **FAST) as (cluster, producer):
        warm_up(producer)
        cluster.next("produce", held, broker=0)
        deliveries = send(producer, [b"in flight"])
        held.wait_until_held()
        deliveries += send(producer, [b"ahead"])
        old = worker_of(producer, 0)
        until(lambda: bool(old._ahead.requests))
        cluster.move_leader("t", 0, 1)
        pipeline_of(producer).metadata.want()
        until(lambda: bool(old._buffers.moved))
        held.release()
        assert offsets(deliveries) == [1, 2]
        assert [batch.broker for batch in sent(cluster)] == [0, 0, 1]


def test_a_topic_may_rest_while_its_expired_messages_are_being_written() -> None:
    """With acks=0 the last written byte returns the chaser, as a response does otherwise."""
    held = Held()
    settings: dict[str, Any] = {"acks": 0, "linger_ms": 100, "metadata_max_idle_ms": 5_000}
    settings |= {"request_timeout_ms": 600_000, "delivery_timeout_ms": 900_000}
    settings |= {"max_request_size": 4_000_000, "batch_size": 4_000_000}
    settings |= {"batch_max_messages": 100}  # so that all lingering is done by the BrokerWorker

    def jump_until(found: Callable[[], bool]) -> None:
        left = 5.0  # on a slow machine, the messages would expire otherwise

        def jumped() -> bool:
            nonlocal left
            if left > 0:
                clock.jump(0.05)
                left -= 0.05
            return found()

        until(jumped)

    with frozen(topics={"t": 1, "u": 1, "v": 1}, send_buffer_bytes=1 << 16, **settings) as (
        cluster,
        clock,
        producer,
    ):
        first = [send(producer, [b"first"], topic=topic)[0] for topic in ("t", "u", "v")]
        jump_until(lambda: all(delivery.done() for delivery in first))
        cluster.next("produce", held)
        (last,) = send(producer, [b"the broker reads nothing after this"], topic="v")
        jump_until(last.done)
        held.wait_until_held()
        rests = producer.send("t", bytes(800_000), delivery_timeout_ms=120_000)
        stays = producer.send("u", bytes(3_000_000))
        (worker,) = pipeline_of(producer).brokers.all()
        jump_until(lambda: worker.requests == 1)
        buffers = {buffer.topic: buffer for buffer in worker._buffers.all()}
        assert [len(buffers[topic].unanswered) for topic in ("t", "u")] == [1, 1]
        clock.jump(120)
        assert isinstance(error_of(rests), DeliveryTimeoutError)
        jump_until(lambda: buffers["t"].chaser is not None)
        held.release()
        assert outcome(stays) is None
        (later,) = send(producer, [b"later"])
        jump_until(later.done)
        assert outcome(later) is None
