"""Messages left in the open chunk: when they are taken, and by which thread."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pykaproducer import Delivery, Producer
from pykaproducer._errors.codes import ErrorCode
from pykaproducer._pipeline.broker import BrokerWorker
from pykaproducer._pipeline.broker_events import EnqueueNew
from pykaproducer._pipeline.held_puller import HeldPuller
from pykaproducer._pipeline.worker import Worker
from pykaproducer.testing import FakeClock, ScriptedCluster
from pykaproducer.testing.scripted import Refuse

from .helper import (
    Held,
    backs_off,
    ended,
    frozen,
    hold,
    let_pass,
    offsets,
    pipeline_of,
    send,
    sent,
    stage_context,
    under_way,
    until,
    warm_up,
)

ONE: dict[str, Any] = {"max_in_flight_requests_per_connection": 1}


def quiet(broker: BrokerWorker) -> None:
    """Wait until *broker* has handled everything in its inbox."""
    until(lambda: not broker.inbox() and not broker._running.locked())


@contextmanager
def left_for_time(clock: FakeClock) -> Iterator[tuple[Producer, list[Held], list[Delivery]]]:
    """Leave a message in the open chunk that may be sent 1 ms after a response.

    1. Three requests are in flight, as many as allowed: a message is left in the open chunk.
    2. Once the first one is answered, another may be sent 1 ms after the last one. Nothing
       announces it.
    """
    held = [Held() for _ in range(3)]
    with (
        ScriptedCluster(topics={"t": 1}) as cluster,
        ended(cluster.producer(clock=clock, max_in_flight_requests_per_connection=3)) as producer,
    ):
        warm_up(producer)
        dispatcher = pipeline_of(producer).dispatcher
        (broker,) = pipeline_of(producer).brokers.all()
        cluster.next("produce", *held)
        deliveries = []
        for number in range(3):
            deliveries += send(producer, [b"%d" % number])
            if number == 0:
                held[0].wait_until_held()
            if number == 2:
                until(lambda: bool(dispatcher.held))
                clock.jump(0.006)
            under_way(producer, number + 1)
            quiet(broker)
        deliveries += send(producer, [b"3"])
        until(lambda: bool(dispatcher.held))
        yield producer, held, deliveries


def test_a_window_that_opens_by_time_has_them_taken() -> None:
    clock = FakeClock()
    with left_for_time(clock) as (producer, held, deliveries):
        (broker,) = pipeline_of(producer).brokers.all()
        held[0].release()
        offsets(deliveries[:1])
        quiet(broker)
        assert pipeline_of(producer).dispatcher.held
        due = broker.deadline()
        assert due is not None
        assert due - clock.monotonic() <= 0.005
        clock.jump(0.005)
        under_way(producer, 3)
        for each in held:
            each.release()
        assert offsets(deliveries) == [1, 2, 3, 4]


def test_a_window_that_opens_after_the_last_look_has_them_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It opens after the stage has looked at it, and before it decides when to wake up."""
    clock = FakeClock()
    opens_later = HeldPuller.opens_later
    opened: list[float] = []

    def opens_first(puller: HeldPuller, now: float) -> float | None:
        if not opened and opens_later(puller, now) is not None:
            clock.jump(0.005)
            opened.append(clock.monotonic())
        return opens_later(puller, clock.monotonic())

    with left_for_time(clock) as (producer, held, deliveries):
        monkeypatch.setattr(HeldPuller, "opens_later", opens_first)
        held[0].release()
        offsets(deliveries[:1])
        under_way(producer, 3)
        assert opened
        for each in held:
            each.release()
        assert offsets(deliveries) == [1, 2, 3, 4]


def test_they_are_not_taken_for_a_request_that_is_full_without_them() -> None:
    """Taking them costs a slice for each partition. All are sent, although no time passes.

    A request has room for 7 messages; 17 partitions or more count as many.
    """
    held = [Held() for _ in range(7)]
    with frozen(
        topics={"t": 30},
        batch_size=1_000,
        max_request_size=5_000,
        max_in_flight_requests_per_connection=2,
    ) as (cluster, _, producer):
        warm_up(producer, partitions=30)
        dispatcher = pipeline_of(producer).dispatcher
        (broker,) = pipeline_of(producer).brokers.all()
        cluster.next("produce", *held)
        deliveries = send(producer, [b"in flight"], partition=0)
        held[0].wait_until_held()
        deliveries += send(producer, [b"in flight"], partition=1)
        under_way(producer, 2)
        for partition in range(30):
            deliveries += send(producer, [bytes(600)], partition=partition)
        until(lambda: bool(dispatcher.held))
        held[0].release()
        until(lambda: not dispatcher.held)
        quiet(broker)
        assert len(broker.batcher.waiting) == 23  # the next request has 7 of 30 messages
        late = send(producer, [b"late"], partition=29)
        until(lambda: bool(dispatcher.held))
        held[1].release()
        until(lambda: len(broker.batcher.waiting) < 23)
        quiet(broker)
        assert dispatcher.held  # it would not have been in the request that was just sent
        held[2].release()
        until(lambda: not dispatcher.held)  # 16 partitions are few: it may be in the next request
        for each in held[3:]:
            each.release()
        offsets(deliveries)
        assert offsets(late) == [2]


def test_the_slices_of_a_chunk_come_to_the_broker_together() -> None:
    """Also that of a partition whose path has failed: the path returns it, after older messages."""
    items: list[Any] = []
    with frozen(topics={"t": 20}, retry_backoff_ms=1_000, **ONE) as (cluster, clock, producer):
        warm_up(producer, partitions=20)
        (broker,) = pipeline_of(producer).brokers.all()
        dispatcher = pipeline_of(producer).dispatcher
        cluster.next("produce", Refuse(ErrorCode.NOT_ENOUGH_REPLICAS))
        retried = send(producer, [b"retried"], partition=7)
        backs_off(clock)
        held, _ = hold(cluster, producer, [b"in flight"])
        messages = []
        for partition in range(20):
            messages += send(producer, [b"value"], partition=partition)
        until(lambda: bool(dispatcher.held))
        put = broker.put

        def note(item: Any) -> None:
            if isinstance(item, EnqueueNew):
                items.append(item)
            put(item)

        broker.put = note  # type: ignore[method-assign]
        held.release()
        let_pass(clock, [*retried, *messages])
        assert offsets(retried) == [1]
        assert offsets(messages) == [2, *[1] * 6, 2, *[1] * 12]
        shared = producer.config.stage_threads == "shared"
        partitions = [[buffer.partition for buffer, _ in item.items] for item in items]
        assert partitions == ([list(range(20))] if shared else [])


def test_a_dispatcher_that_has_ended_takes_nothing() -> None:
    """Nothing would give these messages an outcome.

    1. close() lets the dispatcher end, while a message is in the open chunk.
    2. A response opens the window: the BrokerWorker asks the dispatcher to take the message.
    3. close() takes what is in the open chunks, and fails it.
    """
    with ScriptedCluster(topics={"t": 1}) as cluster:
        with ended(cluster.producer(clock=FakeClock(), **ONE)) as producer:
            warm_up(producer)
            held, first = hold(cluster, producer, [b"1"])
            dispatcher = pipeline_of(producer).dispatcher
            (broker,) = pipeline_of(producer).brokers.all()
            (last,) = send(producer, [b"2"])
            until(lambda: bool(dispatcher.held))
            assert dispatcher.can_stop()  # called after the last item
            held.release()
            assert offsets(first) == [1]
            quiet(broker)
            assert not last.done()
            assert producer._open_rows()[0] == 1
        assert last.done()


def test_a_message_that_soon_expires_is_taken_at_once() -> None:
    """The dispatcher watches the deadlines of what it has taken."""
    with frozen(topics={"t": 1, "u": 1}, **ONE) as (cluster, _, producer):
        warm_up(producer)
        warm_up(producer, topic="u")
        _, _ = hold(cluster, producer, [b"in flight"])
        dispatcher = pipeline_of(producer).dispatcher
        (broker,) = pipeline_of(producer).brokers.all()
        producer.send("t", b"alone", partition=0, delivery_timeout_ms=10)
        until(lambda: len(list(broker.held_items())) == 1)
        send(producer, [b"waits"], topic="u")
        until(lambda: bool(dispatcher.held))
        producer.send("u", b"behind it", partition=0, delivery_timeout_ms=10)
        until(lambda: len(list(broker.held_items())) == 2)
        send(producer, [b"waits"], topic="u")
        until(lambda: bool(dispatcher.held))
        producer.send_many("u", [b"a block"], partitions=[0], delivery_timeout_ms=10)
        until(lambda: not dispatcher.held)


def test_many_of_them_are_sealed_in_the_thread_of_their_broker() -> None:
    """The bridge's thread, which has the response, goes on reading; no waiting thread waits."""
    with frozen(**ONE) as (cluster, _, producer):
        warm_up(producer)
        held, first = hold(cluster, producer, [b"1"])
        (broker,) = pipeline_of(producer).brokers.all()
        more = send(producer, [bytes(1_000)] * 500)
        names: list[str] = []
        seal = broker._builder.seal

        def note(*arguments: Any, **options: Any) -> Any:
            batches = seal(*arguments, **options)
            if batches:
                names.append(threading.current_thread().name)
            return batches

        broker._builder.seal = note  # type: ignore[method-assign]
        held.release()
        offsets([*first, *more])
        assert names
        assert all(name.endswith("-broker-0") for name in names)


def test_a_leader_that_changes_while_they_are_taken_is_noticed() -> None:
    """The batch goes to the new leader at once, instead of being rejected by the old one."""
    with frozen(2, topics={"t": 2}, **ONE) as (cluster, clock, producer):
        cluster.move_leader("t", 0, 0)
        cluster.move_leader("t", 1, 0)
        warm_up(producer)
        pipeline = pipeline_of(producer)
        (broker,) = pipeline.brokers.all()
        held, _ = hold(cluster, producer, [b"1"])
        send(producer, [b"2"], partition=1)
        until(lambda: bool(pipeline.dispatcher.held))
        take = broker._held._take

        def take_and_be_overtaken() -> None:
            take()  # the items are in the inbox
            broker._held._take = take
            cluster.move_leader("t", 1, 1)
            pipeline.metadata.want()
            clock.jump(0.5)
            until(lambda: any("ViewChanged" in type(each).__name__ for each in broker.inbox()))

        broker._held._take = take_and_be_overtaken
        held.release()
        until(lambda: any(each.partition == 1 for each in sent(cluster)))
        assert [each.broker for each in sent(cluster) if each.partition == 1] == [1]


def test_a_stage_that_pulls_keeps_its_rounds_short() -> None:
    """on_inbox_drained() is called after 64 items, even if the inbox never empties."""
    drained: list[int] = []

    class Stage(Worker):
        handled = 0

        def handle(self, item: str) -> None:
            self.handled += 1
            if 1 < self.handled < 1_000:
                self._items.append("of a thread that is as fast as this one")

        def on_inbox_drained(self) -> None:
            drained.append(self.handled)
            if self.handled == 1:
                self.pull(lambda: self._items.append("own"))

    stage = Stage("stage", stage_context(FakeClock()))
    stage._items.append("first")
    while stage.inbox():
        stage._work()
    drained.append(stage.handled)
    assert max(b - a for a, b in itertools.pairwise(drained)) <= 64
