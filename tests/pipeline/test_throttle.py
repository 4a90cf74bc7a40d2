"""A broker that throttles gets no requests (KIP-219), and no message is lost."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from pykaproducer import DeliveryTimeoutError
from pykaproducer._pipeline.last_errors import LastErrors
from pykaproducer._pipeline.throttle import Throttle
from pykaproducer.testing import FakeClock

from .helper import (
    Amend,
    attempts,
    error_of,
    frozen,
    let_pass,
    log,
    offsets,
    send,
    until,
    waits_for,
    warm_up,
)


def throttled(milliseconds: int) -> Amend:
    def change(answer: Any) -> None:
        answer.throttle_time_ms = milliseconds

    return Amend(change)


def test_nothing_is_sent_before_the_time_is_over(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pykaproducer")
    with frozen() as (cluster, clock, producer):
        warm_up(producer)
        cluster.next("produce", throttled(5_000), throttled(5_000))
        offsets(send(producer, [b"1"]))
        later = send(producer, [b"2", b"3"])
        waits_for(clock, 5.0)
        clock.jump(4.9)
        assert attempts(cluster) == 2
        assert not any(delivery.done() for delivery in later)
        clock.jump(0.2)
        offsets(later)
        # Throttled again at once: the log has reported it already.
        again = send(producer, [b"4"])
        waits_for(clock, 5.0)
        clock.jump(5.1)
        offsets(again)
        assert log(cluster) == [b"first", b"1", b"2", b"3", b"4"]
        assert producer.stats()["requests"]["throttle_ms"] == 10_000
    told = [record.getMessage() for record in caplog.records if "throttle" in record.getMessage()]
    assert [text.split(":")[0] for text in told] == ["broker 0", "broker 0"]
    assert "throttles this client by 5 s" in told[0]
    assert "not throttle this client any more" in told[1]


def test_messages_expire_meanwhile_and_say_why() -> None:
    with frozen(delivery_timeout_ms=2_000) as (cluster, clock, producer):
        warm_up(producer)
        cluster.next("produce", throttled(60_000))
        offsets(send(producer, [b"1"]))
        (late,) = send(producer, [b"2"])
        waits_for(clock, 60.0)
        clock.jump(2.1)
        error = error_of(late)
        assert isinstance(error, DeliveryTimeoutError)
        assert "throttles this client" in str(error)


def test_the_throttle_ends_while_the_connection_is_closed_for_being_idle() -> None:
    """The broker's worker sleeps then: there is nothing left to send early."""
    with frozen(connections_max_idle_ms=5_000) as (cluster, clock, producer):
        warm_up(producer)
        cluster.next("produce", throttled(60_000))
        offsets(send(producer, [b"1"]))
        waits_for(clock, 60.0)
        assert producer._pipeline is not None
        (worker,) = producer._pipeline.brokers.all()
        clock.jump(5.1)
        until(lambda: not worker._up)
        clock.jump(60)
        until(lambda: (due := worker.deadline()) is None or due > clock.monotonic())
        offsets(send(producer, [b"2"]))
        assert log(cluster) == [b"first", b"1", b"2"]


def test_another_broker_is_not_held_up() -> None:
    with frozen(2, topics={"t": 2}) as (cluster, clock, producer):
        warm_up(producer, partitions=2)
        cluster.next("produce", throttled(60_000), broker=0)
        offsets(send(producer, [b"1"], partition=0))
        waits = send(producer, [b"2"], partition=0)
        waits_for(clock, 60.0)
        offsets(send(producer, [b"3"], partition=1))
        assert not waits[0].done()


def test_an_old_broker_has_waited_itself() -> None:
    """Before version 6 of Produce the broker sent its answer after the throttle time."""
    with frozen(versions={"produce": (3, 5)}) as (cluster, _, producer):
        warm_up(producer)
        cluster.next("produce", throttled(60_000))
        offsets(send(producer, [b"1"]))
        offsets(send(producer, [b"2"]))
        assert producer.stats()["requests"]["throttle_ms"] == 60_000


def test_a_lost_connection_ends_it() -> None:
    with frozen() as (cluster, clock, producer):
        warm_up(producer)
        cluster.next("produce", throttled(60_000))
        offsets(send(producer, [b"1"]))
        waits = send(producer, [b"2"])
        waits_for(clock, 60.0)
        cluster.stop(0)
        cluster.start(0)
        assert sum(let_pass(clock, waits)) < 30
        offsets(waits)


def test_it_is_not_told_of_any_more_once_the_broker_has_another_worker() -> None:
    clock, last_errors = FakeClock(), LastErrors()
    before = Throttle(0, clock, last_errors)
    before.answered(5.0)
    assert last_errors.throttled
    before.forget()
    assert not last_errors.throttled
    before.answered(5.0)
    Throttle(0, clock, last_errors).answered(0.0)
    assert not last_errors.throttled
