"""A broker that throttles gets no requests (KIP-219), and no message is lost."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from kafka import TopicPartition

from pykaproducer import DeliveryTimeoutError
from pykaproducer._pipeline.last_errors import LastErrors
from pykaproducer._pipeline.throttle import Throttle
from pykaproducer._util.clock import Clock
from pykaproducer.testing import FakeClock, ScriptedCluster

from .helper import (
    SOON,
    Amend,
    attempts,
    ended,
    error_of,
    frozen,
    let_pass,
    log,
    offsets,
    pipeline_of,
    send,
    transactional,
    until,
    waits_for,
    warm_up,
)

#: The requests of transactions, the last two only of TV1.
KINDS = ["find_coordinator", "init_producer_id", "txn_offset_commit", "end_txn"]
KINDS += ["add_partitions_to_txn", "add_offsets_to_txn"]


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


@pytest.mark.parametrize("level", [0, 2], ids=["TV1", "TV2"])
def test_what_is_wanted_while_any_server_throttles_is_sent_after_it(level: int) -> None:
    """Whatever the request was. Nothing else wakes the stages for five minutes."""
    features = {"transaction.version": level}
    with ScriptedCluster(2, {"t": 1, "u": 1}, features=features) as cluster:
        for api in (*KINDS, "metadata", "produce"):
            cluster.always(api, throttled(200))
        with ended(cluster.producer()) as producer:
            offsets(send(producer, [b"1"]))
            offsets(send(producer, [b"1"], topic="u"))
            pipeline_of(producer).metadata._ids.current = None
            offsets(send(producer, [b"2"]))
        with transactional(cluster, Clock(), begun=False, max_block_ms=1000 * SOON) as producer:
            for number in range(2):
                with producer.transaction() as transaction:
                    producer.send("tu"[number], b"3", partition=0)
                    transaction.send_offsets({TopicPartition("t", 0): number}, "g")
                    cluster.move_coordinator("group", "g", number)
                    cluster.move_coordinator("transaction", "id", number)
        assert log(cluster, "u") == [b"1", b"3"]
        assert {kind for kind in KINDS if cluster.received(kind)} >= set(
            KINDS[: -2 if level else 6]
        )
