"""Waiting messages: KIP-286's promises, and deadlines wherever a message is."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from kafka.errors import KafkaTimeoutError

from pykaproducer import BufferFullError, Delivery, DeliveryTimeoutError, Producer, Status
from pykaproducer._errors.codes import ErrorCode
from pykaproducer._machines.batch import Chaser
from pykaproducer._pipeline.buffer_space import BufferSpaceWaiters
from pykaproducer._pipeline.retry import RetryHandler, RetryItems
from pykaproducer.testing import FakeClock, ScriptedCluster
from pykaproducer.testing.scripted import Drop, Hold, Refuse
from tests._support.threads import Call

from .helper import (
    FAST,
    LINGERING,
    SOON,
    Before,
    Frozen,
    Held,
    attempts,
    backs_off,
    came,
    ended,
    error_of,
    frozen,
    hold,
    log,
    metadata_is_idle,
    numbers,
    offsets,
    outcomes,
    pipeline_of,
    running,
    send,
    sent,
    stage_context,
    until,
    warm_up,
)

BOTH = pytest.mark.parametrize("idempotent", [True, False], ids=["idempotent", "plain"])

# KIP-286: send() waits for no metadata


def test_one_send_before_the_metadata_and_none_after_is_delivered() -> None:
    """The case that KIP-286 describes: the first message is sent without another send()."""
    held = Held()
    with running(**FAST) as (cluster, producer):
        cluster.next("metadata", held)
        delivery = producer.send("t", b"value")
        held.wait_until_held()
        assert not delivery.done()
        held.release()
        assert offsets([delivery]) == [0]


def test_one_send_before_the_cluster_is_there_is_delivered() -> None:
    with ScriptedCluster(topics={"t": 1}) as cluster:
        cluster.stop(0)
        with cluster.producer(**FAST) as producer:
            delivery = producer.send("t", b"value")
            cluster.start(0)
            assert offsets([delivery]) == [0]


def test_one_send_before_the_topic_is_there_is_delivered() -> None:
    with running(topics={}, **FAST) as (cluster, producer):
        delivery = producer.send("t", b"value")
        came(cluster, "metadata", 3)
        assert not delivery.done()
        cluster.add_topic("t")
        assert offsets([delivery]) == [0]


def test_what_is_sent_while_the_metadata_is_under_way_keeps_its_order() -> None:
    held = Held()
    with running(**FAST) as (cluster, producer):
        cluster.next("metadata", held)
        early = send(producer, numbers(50))
        held.wait_until_held()
        middle = send(producer, numbers(50, 50))
        held.release()
        late = send(producer, numbers(50, 100))
        assert offsets([*early, *middle, *late]) == list(range(150))
        assert log(cluster) == numbers(150)


def test_send_does_not_wait_while_metadata_does() -> None:
    """A thousand messages for a hundred topics are accepted before any answer has arrived."""
    held = Held()
    with running(topics={f"t-{i}": 1 for i in range(100)}, max_block_ms=0, **FAST) as (
        cluster,
        producer,
    ):
        cluster.next("metadata", held)
        first = producer.send("t-0", b"first")
        held.wait_until_held()
        deliveries = [producer.send(f"t-{i % 100}", b"%d" % i) for i in range(1000)]
        assert not any(delivery.done() for delivery in (first, *deliveries))
        held.release()
        assert None not in offsets([first, *deliveries])
        # They were requested together, not one by one.
        assert len(cluster.received("metadata")) < 10


def test_topics_without_metadata_do_not_hold_up_others() -> None:
    with ScriptedCluster(topics={"t": 1}) as cluster, ended(cluster.producer(**FAST)) as producer:
        unknown = [producer.send(f"unknown-{i}", b"value") for i in range(500)]
        assert offsets(send(producer, numbers(100))) == list(range(100))
        assert not any(delivery.done() for delivery in unknown)
        # None of them has a thread.
        names = [thread.name for thread in threading.enumerate()]
        assert not any("unknown" in name for name in names)


def test_a_partition_without_leader_does_not_hold_up_others() -> None:
    with running(2, topics={"t": 2, "u": 1}, **FAST) as (cluster, producer):
        cluster.stop(1)
        stuck = send(producer, numbers(10), partition=1)
        assert offsets(send(producer, numbers(100))) == list(range(100))
        assert offsets(send(producer, numbers(100), topic="u")) == list(range(100))
        assert not any(delivery.done() for delivery in stuck)
        cluster.move_leader("t", 1, 0)
        assert offsets(stuck) == list(range(10))


def test_a_broker_that_is_silent_does_not_hold_up_others() -> None:
    with running(2, topics={"t": 2}, **FAST) as (cluster, producer):
        held, stuck = hold(cluster, producer, numbers(10), partition=1, broker=1)
        assert offsets(send(producer, numbers(100))) == list(range(100))
        assert not any(delivery.done() for delivery in stuck)
        held.release()
        assert offsets(stuck) == list(range(10))


@BOTH
def test_a_partition_that_is_refused_does_not_hold_up_its_broker_s_others(idempotent: bool) -> None:
    with frozen(topics={"t": 2}, enable_idempotence=idempotent) as (cluster, clock, producer):
        warm_up(producer, partitions=2)
        code = ErrorCode.NOT_ENOUGH_REPLICAS
        cluster.next("produce", *[Refuse(code, only=[("t", 1)])] * 50)
        stuck = send(producer, numbers(3), partition=1)
        backs_off(clock)
        # It waits for its backoff, and time stands still.
        for start in range(0, 40, 10):
            assert offsets(send(producer, numbers(10, start)))[0] == start + 1
        assert not any(delivery.done() for delivery in stuck)
        assert log(cluster, "t", 1) == [b"first"]


def test_partitions_for_is_bounded() -> None:
    with frozen(topics={}, max_block_ms=5_000) as (cluster, clock, producer):
        asking = Call(lambda: producer.partitions_for("t"))
        came(cluster, "metadata", 1)
        backs_off(clock)
        clock.jump(5.1)
        assert isinstance(asking.outcome(), KafkaTimeoutError)
        assert "UNKNOWN_TOPIC_OR_PARTITION" in str(asking.outcome())


# Deadlines: none is missed and none is early, wherever the message waits

Arrange = Callable[[ScriptedCluster, Producer], object]


def endlessly(api: str, action: Any) -> Arrange:
    return lambda cluster, _: cluster.next(api, *[action] * 999)


def behind_what_is_in_flight(cluster: ScriptedCluster, producer: Producer) -> None:
    cluster.next("produce", *[Held()] * 99)
    send(producer, numbers(10))
    came(cluster, "produce", 1)


#: How a message comes to wait there.
PLACES: dict[str, Arrange] = {
    "no metadata": lambda cluster, _: cluster.next("metadata", Held()),
    "no topic": endlessly("metadata", Refuse(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)),
    "no leader": lambda cluster, _: cluster.stop(0),
    "no leader any more": lambda cluster, producer: (warm_up(producer), cluster.stop(0)),
    "broker down": lambda cluster, _: (Frozen(cluster, 999), cluster.stop(0)),
    "broker silent": lambda cluster, _: (Frozen(cluster, 999), cluster.stop(0, silently=True)),
    "lingering": lambda cluster, producer: None,
    "retry handler": endlessly("produce", Refuse(ErrorCode.NOT_ENOUGH_REPLICAS)),
    "moving": endlessly("produce", Refuse(ErrorCode.NOT_LEADER_OR_FOLLOWER)),
    "in flight": endlessly("produce", Held()),
    "behind what is in flight": behind_what_is_in_flight,
    "no producer id": endlessly("init_producer_id", Refuse(ErrorCode.COORDINATOR_NOT_AVAILABLE)),
    "producer id unanswered": endlessly("init_producer_id", Held()),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("jumps", [(8.0,), (0.5,) * 16], ids=["at once", "slowly"])
def test_a_deadline_holds_wherever_a_message_waits(place: str, jumps: tuple[float, ...]) -> None:
    linger = 8_000 if place == "lingering" else 0
    # A batch that is due, because two of its messages have little time left, takes the third along.
    last = 1 if place == "lingering" else 0
    with frozen(2, {"t": 2}, linger_ms=linger) as (cluster, clock, producer):
        PLACES[place](cluster, producer)
        deliveries = [
            producer.send("t", b"value", partition=partition, delivery_timeout_ms=timeout)
            for partition, timeout in ((0, 7_000), (0, 7_900), (last, 12_000))
        ]
        # Nothing expires early.
        for seconds in jumps[:-1]:
            if clock.monotonic() + seconds < 1_007:
                clock.jump(seconds)
                assert not any(delivery.done() for delivery in deliveries)
        clock.jump(1_007.95 - clock.monotonic())
        for delivery in deliveries[:2]:
            error = error_of(delivery)
            assert isinstance(error, DeliveryTimeoutError)
            assert 7 <= error.waited <= 8
        assert not deliveries[2].done()
        clock.jump(4.1)
        assert isinstance(error_of(deliveries[2]), DeliveryTimeoutError)


@BOTH
def test_each_row_of_a_batch_in_flight_has_its_own_deadline(idempotent: bool) -> None:
    """The request carries the time that its oldest row has left; the others are retried."""
    with frozen(
        enable_idempotence=idempotent,
        linger_ms=3_600_000,
        delivery_timeout_ms=7_200_000,
        batch_max_messages=2,
    ) as (cluster, clock, producer):
        offsets(send(producer, [b"first", b"second"]))
        held = Held(then=Drop())
        cluster.next("produce", held)
        short = producer.send("t", b"short", partition=0, delivery_timeout_ms=5_000)
        long = producer.send("t", b"long", partition=0, delivery_timeout_ms=60_000)
        held.wait_until_held()
        assert cluster.received("produce")[1].request.timeout_ms == 5_000
        clock.jump(5.1)
        assert error_of(short).status is Status.POSSIBLY_PERSISTED
        assert not long.done()
        # The connection is considered lost with its oldest row, not after request_timeout_ms.
        assert outcomes([long], clock) == [None]
        # With sequence numbers the same bytes are sent again; without them the expired row is left
        # out.
        again = [b"short", b"long"] if idempotent else [b"long"]
        assert log(cluster) == [b"first", b"second", *again]
        assert sent(cluster)[-1].values == tuple(again)
        held.release()


def test_a_request_waits_no_longer_than_request_timeout_ms() -> None:
    with frozen(request_timeout_ms=10_000) as (cluster, clock, producer):
        warm_up(producer)
        held, (delivery,) = hold(cluster, producer, [b"value"])
        assert cluster.received("produce")[1].request.timeout_ms == 10_000
        clock.jump(9.9)
        assert attempts(cluster) == 2
        clock.jump(0.2)
        assert offsets([delivery], clock) == [1]
        used = [received.connection for received in cluster.received("produce")]
        assert used[1] != used[2]
        held.release()


def test_a_row_that_expires_before_it_is_written_is_not_written() -> None:
    with frozen() as (cluster, clock, producer):
        held = Held()
        cluster.next("metadata", held)
        short = producer.send("t", b"short", delivery_timeout_ms=5_000)
        long = producer.send("t", b"long", delivery_timeout_ms=60_000)
        held.wait_until_held()
        clock.jump(5.1)
        assert error_of(short).status is Status.NOT_PERSISTED
        held.release()
        assert offsets([long]) == [0]
        assert log(cluster) == [b"long"]


def test_an_answer_behind_the_deadline_changes_nothing() -> None:
    """A row is settled once: a late confirmation does not make it delivered."""
    told: list[BaseException | None] = []
    with frozen(delivery_timeout_ms=5_000) as (cluster, clock, producer):
        held = Held()
        cluster.next("produce", held)
        late = producer.send(
            "t", b"late", partition=0, on_delivery=lambda error, _: told.append(error)
        )
        held.wait_until_held()
        clock.jump(5.1)
        error = error_of(late)
        held.release()
        came(cluster, "produce", 1)
        (after,) = send(producer, [b"after"])
        assert outcomes([after], clock) == [None]
        assert late.error == error
        producer.flush(0)
        assert told == [error]


def test_an_expiry_in_one_partition_leaves_the_others_alone() -> None:
    """No other partition is renumbered (the fault that duplicated messages elsewhere)."""
    with frozen(2, topics={"t": 2}) as (cluster, clock, producer):
        warm_up(producer, partitions=2)
        stuck = Held(then=Drop(appended=True))
        cluster.next("produce", stuck, broker=1)
        cluster.next("produce", Held(), broker=0)
        (other,) = send(producer, [b"other"], partition=1)
        stuck.wait_until_held()
        expired = producer.send("t", b"expired", partition=0, delivery_timeout_ms=5_000)
        came(cluster, "produce", 4)
        clock.jump(5.1)
        assert isinstance(error_of(expired), DeliveryTimeoutError)
        # The batch of the other partition is retried with its old numbers.
        stuck.release()
        assert outcomes([other], clock) == [None]
        assert log(cluster, "t", 1) == [b"first", b"other"]
        assert len({batch for batch in sent(cluster) if batch.values == (b"other",)}) == 1


# Backoff


@BOTH
@pytest.mark.parametrize("code", [ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_LEADER_OR_FOLLOWER])
def test_a_partition_backs_off_exponentially_with_jitter(code: ErrorCode, idempotent: bool) -> None:
    """Each wait is twice the one before, up to the longest, plus or minus a fifth."""
    with frozen(
        enable_idempotence=idempotent,
        delivery_timeout_ms=3_600_000,
        retry_backoff_ms=100,
        retry_backoff_max_ms=1_000,
    ) as (cluster, clock, producer):
        warm_up(producer)
        came_at: list[float] = []
        note = Before(lambda: came_at.append(clock.monotonic()), Refuse(code))
        cluster.next("produce", *[note] * 7)
        (delivery,) = send(producer, [b"value"])
        assert outcomes([delivery], clock) == [None]
        waits = [later - earlier for earlier, later in itertools.pairwise(came_at)]
        for wait, about in zip(waits, (0.1, 0.2, 0.4, 0.8, 1.0, 1.0), strict=True):
            # It may be longer: time is moved here while a request is in flight, too.
            assert wait >= 0.79 * about, waits


@BOTH
def test_a_backoff_is_over_when_its_time_has_come(idempotent: bool) -> None:
    with frozen(enable_idempotence=idempotent) as (cluster, clock, producer):
        warm_up(producer)
        cluster.next("produce", Refuse(ErrorCode.NOT_ENOUGH_REPLICAS))
        (delivery,) = send(producer, [b"value"])
        backs_off(clock)
        clock.jump(0.079)
        assert attempts(cluster) == 2
        clock.jump(0.042)
        assert offsets([delivery]) == [1]


def test_in_the_retry_handler_each_waits_for_its_own_time_and_keeps_its_turn() -> None:
    """The stage alone: items of a partition keep their order and do not delay the others."""
    clock = FakeClock()
    gone: list[tuple[int, int]] = []
    moved = threading.Condition()

    def dispatch(item: Any) -> None:
        with moved:
            gone.append((item.partition, item.level))
            moved.notify_all()

    def until(count: int) -> list[tuple[int, int]]:
        with moved:
            assert moved.wait_for(lambda: len(gone) >= count, SOON)
            return list(gone)

    handler = RetryHandler(stage_context(clock), dispatch)
    now = clock.monotonic()
    for partition, level, wait in [(0, 1, 0.4), (0, 2, 0.2), (0, 3, 0.8), (1, 1, 0.1)]:
        handler.put(RetryItems([Chaser("t", partition, level)], now + wait))
    clock.jump(0.3)
    assert until(1) == [(1, 1)]
    clock.jump(0.2)
    assert until(3) == [(1, 1), (0, 1), (0, 2)]
    handler.put(RetryItems([Chaser("t", 2, 1)], now))
    assert until(4)[3] == (2, 1)
    clock.jump(0.4)
    assert until(5)[4] == (0, 3)
    handler.stop()
    assert handler.join(clock.monotonic() + SOON)


def test_metadata_is_asked_for_with_backoff_and_together() -> None:
    """A thousand partitions that look for their leaders cause one request, not a storm."""
    # let_pass() may advance the time while metadata is on its way.
    with frozen(2, topics={"t": 200}, delivery_timeout_ms=86_400_000) as (cluster, clock, producer):
        cluster.stop(1)
        deliveries = [send(producer, [b"value"], partition=i)[0] for i in range(1, 200, 2)]
        for _ in range(5):
            backs_off(clock)
            clock.jump_to_next()
        backs_off(clock)
        assert 3 <= len(cluster.received("metadata")) <= 7
        cluster.start(1)
        assert outcomes(deliveries, clock) == [None] * 100


def test_metadata_is_asked_for_again_by_age() -> None:
    with frozen(
        metadata_max_age_ms=300_000, metadata_max_idle_ms=900_000, delivery_timeout_ms=900_000
    ) as (cluster, clock, producer):
        warm_up(producer)
        until(lambda: metadata_is_idle(producer))  # or a request would be lost with the jump
        before = len(cluster.received("metadata"))
        clock.jump(301)
        came(cluster, "metadata", before + 1)


# Batches sent before linger_ms


@pytest.mark.parametrize(
    ("limit", "payload", "others"),
    [
        ({"batch_max_messages": 10}, b"x", 0),
        ({"batch_size": 10_000}, bytes(1_000), 0),
        ({"batch_size": 10_000, "max_request_size": 10_000}, bytes(1_000), 20),
    ],
    ids=["messages", "bytes", "beside a full request that lingers"],
)
def test_a_full_batch_does_not_linger(limit: dict[str, Any], payload: bytes, others: int) -> None:
    """Only milliseconds pass, so a delivered message has not waited for linger_ms.

    The clock advances only so that the dispatcher takes the messages in the open chunk.
    """
    topics = {"t": 1 + others}
    with frozen(topics=topics, linger_ms=60_000, **limit) as (cluster, clock, producer):
        for partition in range(others):
            send(producer, [payload], partition=1 + partition)
        deliveries = send(producer, [payload] * 25)

        def a_little_later() -> bool:
            clock.jump(0.001)
            return all(delivery.done() for delivery in deliveries[:18])

        until(a_little_later)
        assert offsets(deliveries[:18]) == list(range(18))
        assert not deliveries[-1].done()
        assert max(batch.count for batch in cluster.batches("t")) <= 10
        clock.jump(60.1)
        assert offsets(deliveries) == list(range(25))


def test_batch_max_messages_holds_for_what_goes_round_again() -> None:
    settings = {"enable_idempotence": False, "batch_max_messages": 3, "linger_ms": 60_000}
    with running(**settings, **FAST) as (cluster, producer):
        cluster.next("produce", *[Refuse(ErrorCode.NOT_LEADER_OR_FOLLOWER)] * 3)
        assert offsets(send(producer, numbers(30))) == list(range(30))
        assert max(len(batch.values) for batch in sent(cluster)) == 3


# A full buffer ends lingering


SMALL_BUFFER: dict[str, Any] = {"buffer_memory": 200_000, **LINGERING}


@pytest.mark.parametrize("others", [0, 5])
@pytest.mark.parametrize("block", [False, True], ids=["message", "block"])
def test_a_message_with_a_deadline_of_its_own_is_sent_before_it(block: bool, others: int) -> None:
    with frozen(linger_ms=10_000) as (_, clock, producer):
        warmed = producer.send("t", b"first")
        producer.flush(SOON)
        offsets([warmed])
        before = send(producer, numbers(others), partition=0)
        if block:
            rows = producer.send_many("t", [b"value"] * 3, delivery_timeout_ms=1_000)
        else:
            one = producer.send("t", b"value", partition=0, delivery_timeout_ms=1_000)
        clock.jump(0.85)
        if block:
            assert rows.result(SOON).rows == 3
        else:
            offsets([one])
        offsets(before)


def test_a_message_with_a_short_deadline_goes_with_those_before_it() -> None:
    """Also if they are divided among several batches."""
    metadata = Hold()
    with frozen(linger_ms=10_000, batch_size=16_384) as (cluster, clock, producer):
        cluster.next("metadata", metadata)
        send(producer, [bytes(1_000)] * 15, partition=0)
        metadata.wait_until_held()
        send(producer, [bytes(500)] * 10, partition=0)
        short = producer.send("t", b"short", partition=0, delivery_timeout_ms=3_000)
        metadata.release()
        until(lambda: bool(log(cluster)))
        clock.jump(2.9)
        offsets([short])


def test_nothing_lingers_while_a_send_waits_for_space() -> None:
    """Time stands still, so a lingering batch would linger forever."""
    with frozen(2, topics={"t": 50}, **SMALL_BUFFER) as (_, _, producer):
        partitions = [*range(50)] * 20
        sender = Call(lambda: [producer.send("t", bytes(1_000), partition=n) for n in partitions])
        deliveries = sender.outcome()
        producer.flush(SOON)  # the last ones linger
        offsets(deliveries)


@pytest.mark.parametrize("place", ["open chunk", "broker"])
def test_what_lingers_already_goes_when_a_send_begins_to_wait_for_space(place: str) -> None:
    # With few messages in a batch, they do not linger in the open chunk.
    settings = {**SMALL_BUFFER, "batch_max_messages": 100 if place == "broker" else 0}
    with frozen(**settings) as (_, _, producer):
        warmed = producer.send("t", b"first")
        producer.flush(SOON)
        offsets([warmed])
        lingering = producer.send("t", bytes(1_000))
        pipeline = pipeline_of(producer)
        (broker,) = pipeline.brokers.all()

        def has_it() -> bool:
            # It goes on to the broker if the broker's stage is not done with the first one yet.
            in_chunk = place == "open chunk" and bool(pipeline.dispatcher.held)
            return in_chunk or bool(list(broker.held_items()))

        until(has_it)
        sender = Call(lambda: producer.send("t", bytes(199_500)))
        offsets([lingering])
        assert isinstance(sender.outcome(), Delivery)


def test_nothing_lingers_while_a_send_finds_no_space() -> None:
    """It does not wait for space (max_block_ms=0), and is called until there is some."""
    with frozen(topics={"t": 50}, max_block_ms=0, **SMALL_BUFFER) as (_, _, producer):
        deliveries: list[Delivery] = []
        deadline = time.monotonic() + SOON
        while len(deliveries) < 1000:
            assert time.monotonic() < deadline
            with contextlib.suppress(BufferFullError):
                partition = len(deliveries) % 50
                deliveries.append(producer.send("t", bytes(1_000), partition=partition))
        producer.flush(SOON)
        offsets(deliveries)


def test_nothing_lingers_while_a_callback_finds_no_space() -> None:
    """In a callback send() never waits."""
    deliveries: list[Delivery] = []
    full, go = threading.Event(), threading.Event()

    def report(error: BaseException | None, delivery: Delivery) -> None:
        with contextlib.suppress(BufferFullError):
            for number in range(1000):
                deliveries.append(producer.send("t", bytes(1_000), partition=number % 50))
        full.set()
        assert go.wait(SOON)

    with frozen(topics={"t": 50}, batch_size=5_000, **SMALL_BUFFER) as (_, _, producer):
        producer.send("t", bytes(6_000), on_delivery=report)  # a full batch: it does not linger
        assert full.wait(SOON)
        deadline = time.monotonic() + SOON
        while not any(delivery.done() for delivery in deliveries):
            assert time.monotonic() < deadline
        go.set()


def test_a_topic_that_is_refused_leaves_half_of_the_buffer_to_the_others() -> None:
    with running(topics={"dead": 1, "fine": 1}, buffer_memory=10_000_000, max_block_ms=0) as (
        cluster,
        producer,
    ):
        cluster.always("produce", Refuse(ErrorCode.NOT_ENOUGH_REPLICAS, only=[("dead", 0)]))
        refused = []

        def fill() -> None:
            while True:
                refused.append(producer.send("dead", bytes(5_000)))
                producer.send("fine", b"").result(SOON)

        with pytest.raises(BufferFullError, match="topic 'dead' was held back, with"):
            fill()
        assert len(refused) > 900
        for _ in range(100):
            producer.send("fine", bytes(1_000))  # although "dead" has waited first
        producer.abort()


class Filling:
    """A Budget that another thread fills, and waits for, just after it was read."""

    limit = 100

    def __init__(self) -> None:
        self.ahead = self.lacking = 0
        self.fill: Callable[[], None] | None = None

    def fits(self, amount: int) -> bool:
        if self.fill is None:
            return not self.ahead
        fill, self.fill = self.fill, None
        fill()
        return True


def test_a_buffer_that_is_full_again_at_once_ends_lingering() -> None:
    """A stage notices a waiting thread even if space was available a moment before.

    1. A stage sees that there is space again.
    2. A thread takes it, and another waits.
    3. The stage continues: either it sees the waiting thread, or is notified of it.
    """
    budget = Filling()
    space = BufferSpaceWaiters(budget, FakeClock(), 1_000)  # type: ignore[arg-type]
    told: list[None] = []
    space.lacks(10)
    space.on_full = lambda: told.append(None)

    def fill() -> None:
        budget.ahead = 1
        space.lacks(10)

    budget.fill = fill
    assert space.wanted or told
