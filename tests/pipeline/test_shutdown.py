"""The end of a producer: flush, close, abort, callbacks that call them, and dead stages."""

from __future__ import annotations

import logging
import threading
import types
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from pykaproducer import (
    AbortedError,
    CallbackThreadError,
    Delivery,
    DeliveryFailures,
    Producer,
    ProducerBrokenError,
    ProducerClosedError,
    Status,
)
from pykaproducer._errors.codes import ErrorCode
from pykaproducer._pipeline.bridge import Bridge
from pykaproducer._pipeline.broker import BrokerWorker
from pykaproducer._pipeline.dispatcher import Dispatcher
from pykaproducer._pipeline.metadata import Metadata
from pykaproducer._pipeline.partition import PartitionWorker
from pykaproducer._pipeline.reports import Reports
from pykaproducer._pipeline.retry import RetryHandler
from pykaproducer._pipeline.topic import TopicWorker
from pykaproducer.testing import ScriptedCluster
from pykaproducer.testing.scripted import Drop, Refuse
from tests._support.threads import Call, threads_left

from .helper import (
    FAST,
    SOON,
    Held,
    backs_off,
    came,
    error_of,
    frozen,
    hold,
    let_pass,
    log,
    numbers,
    offsets,
    pipeline_of,
    running,
    send,
    until,
    waits_for,
    warm_up,
)


def joined(tasks: Iterable[Call]) -> None:
    for task in tasks:
        assert task.outcome() is None


# flush()


def test_flush_does_not_linger() -> None:
    """Time stands still, so no batch is sent because its linger time has passed."""
    with frozen(topics={"t": 3}, linger_ms=60_000) as (_, clock, producer):
        deliveries = [send(producer, [b"value"], partition=i)[0] for i in range(3)]
        # The BrokerWorker has some of them, and would wait.
        waits_for(clock, 60)
        producer.flush()
        assert all(delivery.done() for delivery in deliveries)
        assert offsets(deliveries) == [0, 0, 0]


def test_what_lingers_behind_a_flush_lingers_again() -> None:
    with frozen(linger_ms=60_000) as (cluster, _, producer):
        send(producer, [b"before"])
        producer.flush()
        (after,) = send(producer, [b"after"])
        # It was sent after the flush, which does not cover it.
        producer.partitions_for("t")
        assert not after.done()
        assert log(cluster) == [b"before"]


def test_flush_waits_for_what_goes_round_again() -> None:
    with running(linger_ms=60_000, **FAST) as (cluster, producer):
        cluster.next("produce", Refuse(ErrorCode.NOT_ENOUGH_REPLICAS), Drop(), Refuse(6))
        deliveries = send(producer, numbers(10))
        producer.flush(SOON)
        assert all(delivery.done() for delivery in deliveries)
        assert log(cluster) == numbers(10)


def test_flush_is_not_extended_by_what_is_sent_later() -> None:
    before, later = Held(), Held()
    with frozen(2, topics={"t": 2}) as (cluster, clock, producer):
        cluster.next("produce", before, broker=0)
        cluster.next("produce", later, broker=1)
        first = send(producer, [b"first"])
        before.wait_until_held()
        thread = Call(lambda: producer.flush(17))
        waits_for(clock, 17)
        second = send(producer, [b"second"], partition=1)
        later.wait_until_held()
        before.release()
        joined([thread])
        assert offsets(first) == [0]
        assert not second[0].done()
        later.release()
        assert offsets(second) == [0]


def test_flush_ends_with_the_last_deadline() -> None:
    with frozen(delivery_timeout_ms=5_000) as (cluster, clock, producer):
        cluster.stop(0)
        # No handles are held: flush() reports the failures.
        for value in numbers(3):
            producer.send("t", value)
        flush = Call(producer.flush)
        backs_off(clock)
        clock.jump(5.1)
        assert isinstance(flush.outcome(), DeliveryFailures)
        assert "3 messages" in str(flush.outcome())


# close()


def test_close_delivers_what_lingers_and_leaves_nothing_running() -> None:
    settings = {"linger_ms": 60_000, "batch_max_messages": 1000}
    with running(2, topics={"t": 4}, **settings, **FAST) as (cluster, producer):
        deliveries = [send(producer, [b"value"], partition=i)[0] for i in range(4)]
        producer.close()
        assert all(delivery.done() for delivery in deliveries)
        assert offsets(deliveries) == [0] * 4
        assert threads_left(producer.config.client_id) == []
        cluster.join_connections()


def test_close_waits_for_retries_and_accepts_nothing_meanwhile() -> None:
    """Once closing has begun send() raises; the ten before it are retried and delivered."""
    held = Held(then=Refuse(ErrorCode.NOT_LEADER_OR_FOLLOWER))
    with running(**FAST) as (cluster, producer):
        cluster.next("produce", held, Drop(), Refuse(ErrorCode.NOT_ENOUGH_REPLICAS))
        deliveries = send(producer, numbers(10))
        held.wait_until_held()
        thread = Call(producer.close)
        refused = None
        while refused is None:
            try:
                deliveries += send(producer, [b"late"])
            except ProducerClosedError as error:
                refused = error
        held.release()
        joined([thread])
        assert "closed" in str(refused)
        assert offsets(deliveries) == list(range(len(deliveries)))
        assert log(cluster)[:10] == numbers(10)
        assert threads_left(producer.config.client_id) == []


@pytest.mark.parametrize("how", ["abort", "close(0)"])
def test_abort_fails_what_has_no_outcome_at_once(how: str) -> None:
    held = Held()
    with running(topics={"t": 2}, **FAST) as (cluster, producer):
        warm_up(producer)
        cluster.next("produce", held)
        under_way = send(producer, [b"under way"])[0]
        held.wait_until_held()
        waiting = producer.send("unknown", b"value")
        if how == "abort":
            producer.abort()
        else:
            producer.close(0)
        assert threads_left(producer.config.client_id) == []
        for delivery, status in [
            (under_way, Status.POSSIBLY_PERSISTED),
            (waiting, Status.NOT_PERSISTED),
        ]:
            assert delivery.done()
            error = delivery.exception(0)
            assert isinstance(error, AbortedError)
            assert error.status is delivery.status is status
            assert "abort() was called, or close(0)" in str(error)


#: Where messages can be when the timeout ends: none of these cases leaves a thread.
STUCK: dict[str, Callable[[ScriptedCluster], None]] = {
    "no answer to a message": lambda cluster: cluster.next("produce", *[Held()] * 9),
    "no answer to metadata": lambda cluster: cluster.next("metadata", *[Held()] * 9),
    "no answer to the handshake": lambda cluster: cluster.next("api_versions", *[Held()] * 9),
    "no producer id": lambda cluster: cluster.next("init_producer_id", *[Held()] * 9),
    "backing off": lambda cluster: cluster.next("produce", *[Refuse(19)] * 9),
    "no broker": lambda cluster: cluster.stop(0),
    "a silent broker": lambda cluster: cluster.stop(0, silently=True),
    "no such topic": lambda cluster: cluster.next("metadata", *[Refuse(3)] * 9),
}


@pytest.mark.parametrize("stuck", STUCK.values(), ids=STUCK)
def test_close_with_a_timeout_returns_when_it_is_over(
    stuck: Callable[[ScriptedCluster], None],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pykaproducer.producer._STOP_TIME", SOON)
    with ScriptedCluster(topics={"t": 1}) as cluster:
        stuck(cluster)
        producer = cluster.producer(retry_backoff_ms=3_600_000, reconnect_backoff_ms=3_600_000)
        deliveries = send(producer, numbers(100))
        producer.close(0.05)
        assert all(delivery.done() for delivery in deliveries)
        for delivery in deliveries:
            error = error_of(delivery)
            assert isinstance(error, AbortedError)
            assert "0.05 s" in str(error)
        assert threads_left(producer.config.client_id) == []
        assert "still running" not in caplog.text


def test_the_error_of_an_aborted_message_says_for_what_it_waited() -> None:
    with running(topics={"t": 2}, retry_backoff_ms=3_600_000) as (cluster, producer):
        cluster.next("produce", Refuse(19))
        delivery = producer.send("t", b"v", partition=1)
        until(lambda: bool(pipeline_of(producer).last_errors.partitions))
        producer.abort()
        error = error_of(delivery)
        assert error.partition == 1
        assert "the broker's last response: NOT_ENOUGH_REPLICAS (19)" in str(error)


@pytest.mark.parametrize("call", ["flush", "close"])
def test_several_threads_flush_or_close(call: str) -> None:
    """Each call returns when it is done; nothing is lost and no call waits forever."""
    with running(linger_ms=60_000, **FAST) as (cluster, producer):
        held = Held()
        cluster.next("produce", held)
        deliveries = send(producer, numbers(10))
        calls = [Call(getattr(producer, call)) for _ in range(5)]
        held.wait_until_held()
        held.release()
        joined(calls)
        assert offsets(deliveries) == list(range(10))
        producer.close()
        assert threads_left(producer.config.client_id) == []


def test_of_several_closes_the_most_impatient_decides() -> None:
    with running(**FAST) as (cluster, producer):
        _, deliveries = hold(cluster, producer, numbers(10))
        patient = [Call(producer.close) for _ in range(3)]
        producer.abort()
        joined(patient)
        assert {type(error_of(delivery)) for delivery in deliveries} == {AbortedError}
        assert threads_left(producer.config.client_id) == []


def test_sends_that_race_a_close_are_refused_or_settled() -> None:
    with ScriptedCluster(topics={"t": 2}) as cluster:
        for _ in range(10):
            producer = cluster.producer(**FAST)
            accepted: list[Delivery] = []
            begun = threading.Barrier(4)

            def work(
                producer: Producer = producer,
                accepted: list[Delivery] = accepted,
                begun: threading.Barrier = begun,
            ) -> None:
                begun.wait(SOON)
                try:
                    for number in range(100_000):
                        accepted.append(producer.send("t", b"%d" % number))
                except ProducerClosedError:
                    pass

            senders = [Call(work) for _ in range(3)]
            begun.wait(SOON)
            producer.close()
            joined(senders)
            assert all(delivery.done() for delivery in accepted)
            # A message accepted while the last thread ended may have failed, and reports it.
            failed = [delivery for delivery in accepted if delivery.error is not None]
            assert {type(delivery.error) for delivery in failed} <= {AbortedError}
            assert threads_left(producer.config.client_id) == []


def test_a_send_that_waits_for_space_learns_that_the_producer_closes() -> None:
    """It raises at once, although the messages that fill the buffer are still in flight."""
    with frozen(buffer_memory=50_000, max_block_ms=60_000) as (cluster, clock, producer):
        held, accepted = hold(cluster, producer, [b"first"])
        while producer._budget.fits(1_200):
            accepted += send(producer, [bytes(1_000)])
        waiting = Call(lambda: producer.send("t", bytes(1_000)))
        waits_for(clock, 0.25)
        closing = Call(producer.close)
        assert isinstance(waiting.outcome(), ProducerClosedError)
        assert not accepted[0].done()
        held.release()
        joined([closing])
        assert offsets(accepted) == list(range(len(accepted)))


# In callbacks


def outcome_of(function: Callable[[], object]) -> object:
    """Return the result or the exception of *function*."""
    try:
        return function()
    except CallbackThreadError as error:
        return error


def test_flush_and_close_in_a_callback() -> None:
    """flush() raises, because it would wait for itself; close() is scheduled and happens."""
    told: list[object] = []
    called = threading.Event()

    def report(error: BaseException | None, delivery: Delivery) -> None:
        told.append(outcome_of(producer.flush))
        told.append(outcome_of(lambda: producer.flush(0)))
        told.append(producer.send("t", b"from the callback", partition=0))
        told.append(outcome_of(producer.close))
        with pytest.raises(ProducerClosedError):
            producer.send("t", b"late")
        called.set()

    with running(**FAST) as (cluster, producer):
        producer.send("t", b"value", partition=0, on_delivery=report)
        assert called.wait(SOON)
        # Another close() returns when that one is done, or does the work.
        producer.close()
        assert [type(each) for each in told[:2]] == [CallbackThreadError] * 2
        assert "callback" in str(told[0])
        assert told[3] is None
        assert offsets([told[2]]) == [1]  # type: ignore[list-item]
        assert log(cluster) == [b"value", b"from the callback"]


def test_close_in_a_callback_ends_the_producer_by_itself() -> None:
    with running(client_id="closing-itself", **FAST) as (cluster, producer):
        producer.send("t", b"value", on_delivery=lambda *_: producer.close())
        came(cluster, "produce", 1)
        cluster.join_connections()
        for thread in threading.enumerate():
            if thread.name.startswith("closing-itself-"):
                thread.join(SOON)
        assert threads_left(producer.config.client_id) == []


def test_abort_in_a_callback() -> None:
    with running(2, topics={"t": 2}, **FAST) as (cluster, producer):
        _, (stuck,) = hold(cluster, producer, [b"stuck"], partition=1, broker=1)
        producer.send("t", b"value", partition=0, on_delivery=lambda *_: producer.abort())
        assert isinstance(error_of(stuck), AbortedError)
        producer.close()
        assert threads_left(producer.config.client_id) == []


def test_callbacks_may_send_as_long_as_they_like() -> None:
    """Each delivery sends the next; flush waits only for the messages sent before it."""
    left = [50]
    done = threading.Event()

    def report(error: BaseException | None, delivery: Delivery) -> None:
        assert error is None
        left[0] -= 1
        if left[0]:
            producer.send("t", b"%d" % left[0], partition=0, on_delivery=report)
        else:
            done.set()

    with running(**FAST) as (cluster, producer):
        producer.send("t", b"50", partition=0, on_delivery=report)
        assert done.wait(SOON)
        assert log(cluster) == [b"%d" % number for number in range(50, 0, -1)]


# A stage dies of a bug (P9)


class BugError(Exception):
    """A bug of the library."""


def die(*_: Any) -> None:
    raise BugError("a bug")


STAGES: list[Any] = [
    Dispatcher,
    TopicWorker,
    PartitionWorker,
    BrokerWorker,
    Bridge,
    RetryHandler,
    Metadata,
]


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.__name__)
@pytest.mark.parametrize("method", ["handle", "on_inbox_drained", "deadline"])
def test_a_stage_that_dies_settles_everything_and_breaks_the_producer(
    stage: Any, method: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, logger="pykaproducer")

    with running(2, topics={"t": 2}, **FAST) as (cluster, producer):
        warm_up(producer)
        cluster.next("produce", *[Refuse(ErrorCode.NOT_ENOUGH_REPLICAS)] * 999)
        held = Held()
        cluster.next("produce", held, broker=1)
        monkeypatch.setattr(stage, method, die)
        deliveries: list[Delivery] = []
        for number in range(200):
            try:
                topic = ("t", "unknown")[number % 2]
                deliveries.append(producer.send(topic, b"value"))
            except ProducerBrokenError:
                break
        errors = [delivery.exception(SOON) for delivery in deliveries]
        assert {type(error) for error in errors} == {ProducerBrokenError}
        assert errors[0] is not None
        assert isinstance(errors[0].__cause__, BugError)
        assert "died of an error in the library" in str(errors[0])
        with pytest.raises(ProducerBrokenError) as caught:
            producer.send("t", b"late")
        assert isinstance(caught.value.__cause__, BugError)
        # No call waits for messages that can no longer arrive.
        with_failures(producer.flush)
        producer.close()
        assert threads_left(producer.config.client_id) == []
    assert "the producer is broken" in caplog.text
    assert "BugError: a bug" in caplog.text


def with_failures(flush: Callable[[], object]) -> None:
    try:
        flush()
    except DeliveryFailures:
        pass


def test_when_what_calls_back_dies_outcomes_stand_and_nobody_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with running(**FAST) as (_, producer):
        warm_up(producer)
        reports = pipeline_of(producer).reports
        monkeypatch.setattr(Reports, "handle", die)
        run_callbacks = lambda *_: die() if reports.inbox() else True  # noqa: E731
        inbox = types.SimpleNamespace(run_callbacks=run_callbacks, is_open=True)
        monkeypatch.setattr(reports, "compiled_inbox", inbox)
        delivery = producer.send("t", b"value", on_delivery=lambda *_: None)
        # It had its outcome before its callback was called.
        assert delivery.exception(SOON) is None
        with_failures(producer.flush)
        with pytest.raises(ProducerBrokenError):
            producer.send("t", b"late")
        producer.close()
        assert threads_left(producer.config.client_id) == []


def test_a_flush_that_waits_when_a_stage_dies_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    with running(**FAST) as (cluster, producer):
        held, (delivery,) = hold(
            cluster, producer, [b"value"], then=Refuse(ErrorCode.NOT_ENOUGH_REPLICAS)
        )
        waiting = [Call(lambda: with_failures(producer.flush)) for _ in range(3)]

        monkeypatch.setattr(RetryHandler, "handle", die)
        held.release()
        joined(waiting)
        assert isinstance(error_of(delivery), ProducerBrokenError)
        producer.close()


def test_the_time_of_a_close_is_counted_by_the_producer_s_clock() -> None:
    with frozen() as (cluster, clock, producer):
        cluster.stop(0)
        (delivery,) = send(producer, [b"value"])
        backs_off(clock)
        thread = Call(lambda: producer.close(0.7))
        waits_for(clock, 0.7)
        clock.jump(0.6)
        assert not delivery.done()
        clock.jump(0.2)
        assert isinstance(error_of(delivery), AbortedError)
        while thread.is_alive():
            # Threads are joined with a timeout that runs on this clock as well.
            clock.jump(0.01)
            thread.join(0.01)
        assert threads_left(producer.config.client_id) == []


def test_closing_while_it_backs_off_and_the_broker_comes_back() -> None:
    with frozen() as (cluster, clock, producer):
        cluster.stop(0)
        deliveries = send(producer, numbers(10))
        backs_off(clock)
        thread = Call(producer.close)
        cluster.start(0)
        let_pass(clock, deliveries)
        joined([thread])
        assert log(cluster) == numbers(10)
