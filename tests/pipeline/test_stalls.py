"""Stages that stall, clocks that jump, full disks: only their dependents are affected."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from pykaproducer import DeliveryTimeoutError
from pykaproducer._errors.codes import ErrorCode
from pykaproducer.testing import FakeClock, ScriptedCluster
from pykaproducer.testing.scripted import Refuse
from tests._support import programs

from .helper import (
    SOON,
    Held,
    Told,
    backs_off,
    ended,
    error_of,
    frozen,
    let_pass,
    log,
    offsets,
    send,
    until,
    warm_up,
)


class Stall:
    """A gate that blocks its callers until it is released."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self._over = threading.Event()

    def __call__(self) -> None:
        self.reached.set()
        assert self._over.wait(SOON)

    def __enter__(self) -> Stall:
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()


def test_a_stalled_partitioner_holds_up_its_topic_only() -> None:
    def partitioner(key: bytes | None, everything: list[int], available: list[int]) -> int:
        if key == b"stall":
            stall()
        return 0

    settings: dict[str, Any] = {"partitioner": partitioner, "delivery_timeout_ms": 5_000}
    topics = {"t": 1, "slow": 1}
    with Stall() as stall, frozen(topics=topics, **settings) as (_, clock, producer):
        offsets([producer.send("t", b"1"), producer.send("slow", b"1")])
        stuck = [producer.send("slow", b"2", key=b"stall")]
        assert stall.reached.wait(SOON)
        stuck.append(producer.send("slow", b"3"))
        assert offsets([producer.send("t", b"2")]) == [1]
        clock.jump(5.1)
        assert all(isinstance(error_of(each), DeliveryTimeoutError) for each in stuck)
        assert offsets([producer.send("t", b"3")]) == [2]
        with stall:
            pass
        assert offsets([producer.send("slow", b"4")]) == [1]


def test_a_stalled_resolver_holds_up_its_broker_only(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    with Stall() as stall, ScriptedCluster(2, topics={"t": 2}) as cluster:
        resolve = cluster.network.resolve

        def slowly(host: str, port: int) -> Any:
            if threading.current_thread().name.endswith("bridge-1"):
                stall()
            return resolve(host, port)

        monkeypatch.setattr(cluster.network, "resolve", slowly)
        with ended(cluster.producer(clock=clock, delivery_timeout_ms=5_000)) as producer:
            stuck = send(producer, [b"1"], partition=1)
            assert stall.reached.wait(SOON)
            assert offsets(send(producer, [b"1"])) == [0]
            clock.jump(5.1)
            assert isinstance(error_of(stuck[0]), DeliveryTimeoutError)
            assert offsets(send(producer, [b"2"])) == [1]
            with stall:
                pass
            assert offsets(send(producer, [b"2"], partition=1)) == [0]


def test_a_stalled_callback_holds_up_no_outcome() -> None:
    with Stall() as stall, frozen(delivery_timeout_ms=5_000) as (_, clock, producer):
        producer.send("t", b"1", on_delivery=lambda *_: stall())
        assert stall.reached.wait(SOON)
        deliveries = [producer.send("t", b"2"), producer.send("nowhere", b"3")]
        assert deliveries[0].result(SOON).offset == 1
        clock.jump(5.1)
        assert isinstance(deliveries[1].exception(SOON), DeliveryTimeoutError)
        with stall:
            pass


# Time


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_jump_of_an_hour_ends_nothing_but_what_is_late(idempotent: bool) -> None:
    """As after a SIGSTOP, or a suspended machine: every timeout has passed at once."""
    told, held = Told(), Held()
    with frozen(topics={"t": 2}, enable_idempotence=idempotent) as (cluster, clock, producer):
        warm_up(producer, partitions=2)
        cluster.next("produce", held, Refuse(ErrorCode.NOT_ENOUGH_REPLICAS))
        in_flight = producer.send("t", b"in flight", partition=0, on_delivery=told)
        held.wait_until_held()
        backing_off = producer.send("t", b"backs off", partition=1, on_delivery=told)
        unknown = producer.send("nowhere", b"waits for metadata", on_delivery=told)
        backs_off(clock)
        clock.jump(3_600)
        for late in (in_flight, backing_off, unknown):
            assert isinstance(error_of(late), DeliveryTimeoutError)
        held.release()
        until(lambda: log(cluster, "t", 0)[-1] == b"in flight")  # too late for its outcome
        after = [producer.send("t", b"after", partition=n, on_delivery=told) for n in range(2)]
        let_pass(clock, after)
        offsets(after)
        assert log(cluster, "t", 0)[-1] == log(cluster, "t", 1)[-1] == b"after"
        producer.close(SOON)
        assert len(told.values) == 5
        assert len(told.errors) == 3


@pytest.mark.parametrize("seconds", [-10_000_000.0, 10_000_000.0])
def test_a_jump_of_the_wall_clock_changes_nothing_but_timestamps(seconds: float) -> None:
    with frozen(linger_ms=100) as (cluster, clock, producer):
        offsets_after_linger(clock, producer, b"first")
        clock._epoch += seconds
        before = cluster.log("t")[0].timestamp
        offsets_after_linger(clock, producer, b"second")
        assert cluster.log("t")[1].timestamp - before == pytest.approx(seconds * 1000, abs=10_000)


def offsets_after_linger(clock: FakeClock, producer: Any, value: bytes) -> None:
    delivery = producer.send("t", value)
    let_pass(clock, [delivery])
    offsets([delivery])


# Disks


@pytest.mark.scripted
def test_a_full_disk_for_the_log_harms_no_message() -> None:
    printed = programs.run("""
        import logging, sys
        from pykaproducer.testing import ScriptedCluster

        logging.basicConfig(filename="/dev/full", level=logging.DEBUG)
        sys.stderr = open("/dev/null", "w")     # where logging complains
        with ScriptedCluster(topics={"t": 1}) as cluster:
            with cluster.producer() as producer:
                def fails(error, delivery):
                    raise OSError(28, "No space left on device")
                for number in range(100):
                    producer.send("t", b"%d" % number, on_delivery=fails)
            print(len(cluster.log("t")), producer.stats()["state"])
        """)
    assert printed.split() == ["100", "closed"]
