"""Interleavings that were found by reading: each is made to happen, step by step."""

from __future__ import annotations

import logging
import socket
import threading
import time
from typing import Any

import pytest

from pykaproducer import DeliveryFailures, Producer, ProducerBrokenError, ProducerClosedError
from pykaproducer._net.wakeup import Wakeup
from pykaproducer._pipeline.bridge import Bridge
from pykaproducer._pipeline.broker import BrokerWorker
from pykaproducer._pipeline.dispatcher import Dispatcher
from pykaproducer._pipeline.inflight import InFlight
from pykaproducer._pipeline.topic import TopicWorker
from pykaproducer._pipeline.wiring import Pipeline
from pykaproducer.testing import ScriptedCluster

from .helper import SOON
from .test_shutdown import BugError, threads_of


def test_what_a_flush_hurries_are_the_brokers_in_use() -> None:
    """One that leads nothing any more has ended, and gets nothing put into its inbox."""
    with ScriptedCluster(2, topics={"t": 2}) as cluster:
        for partition in (0, 1):
            cluster.move_leader("t", partition, partition)
        with cluster.producer() as producer:
            for partition in (0, 1):
                producer.send("t", b"value", partition=partition).result(SOON)
            pipeline = producer._pipeline
            assert pipeline is not None
            both = pipeline.brokers.all()
            assert len(both) == 2
            cluster.move_leader("t", 0, 1)
            producer.send("t", b"value", partition=0).result(SOON)
            end = time.monotonic() + SOON
            while len(pipeline.brokers.all()) > 1:
                assert time.monotonic() < end, "flush() goes on with a broker that has ended"
                producer.flush()
            assert [worker.broker_id for worker in pipeline.brokers.all()] == [1]


def test_a_broker_that_is_met_while_the_producer_ends_starts_no_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """1. A stage makes a BrokerWorker. 2. close() ends all that it knows. 3. The stage goes on."""
    making, go_on = threading.Event(), threading.Event()
    make = Pipeline._bridge

    def make_slowly(self: Pipeline, broker_id: int, worker: BrokerWorker) -> Bridge:
        bridge = make(self, broker_id, worker)
        making.set()
        go_on.wait(SOON)
        return bridge

    monkeypatch.setattr(Pipeline, "_bridge", make_slowly)
    with ScriptedCluster(topics={"t": 1}) as cluster:
        # A partitioner of one's own is asked by the topic's own thread.
        producer = cluster.producer(partitioner=lambda key, partitions, available: 0)
        delivery = producer.send("t", b"value")
        assert making.wait(SOON)
        end = Pipeline.fail_everything

        def end_and_go_on(self: Pipeline, make_error: Any) -> list[Any]:
            go_on.set()
            return end(self, make_error)

        monkeypatch.setattr(Pipeline, "fail_everything", end_and_go_on)
        producer.close(0)
        assert delivery.exception(0) is not None
        producer.close()
        assert wait_until_gone(producer)


def wait_until_gone(producer: Producer) -> bool:
    """Whether every thread of *producer* ends."""
    for thread in threading.enumerate():
        if thread.name.startswith(f"{producer._name}-"):
            thread.join(SOON)
    return threads_of(producer) == []


def test_a_closed_producer_that_never_sent_starts_no_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """1. A first send() makes the pipeline. 2. close() finds none. 3. The send() goes on."""
    with ScriptedCluster(topics={"t": 1}) as cluster:
        producer = cluster.producer()
        make = Pipeline.__init__

        def close_and_make(self: Pipeline, *args: Any) -> None:
            producer.close()
            make(self, *args)

        monkeypatch.setattr(Pipeline, "__init__", close_and_make)
        with pytest.raises(ProducerClosedError):
            producer.send("t", b"value")
        producer.flush()
        assert threads_of(producer) == []


def test_a_crash_while_the_dispatcher_takes_a_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """1. The dispatcher has taken a chunk. 2. Another stage dies, and everything known fails.
    3. The dispatcher enters the chunk."""
    dying, taken, failed = threading.Event(), threading.Event(), threading.Event()
    enter, fail = InFlight.enter, Pipeline.fail_everything
    slowly = False

    def enter_slowly(self: InFlight, chunk: Any) -> None:
        if slowly and threading.current_thread().name.endswith("dispatcher"):
            taken.set()
            assert failed.wait(SOON)
        enter(self, chunk)

    def fail_and_tell(self: Pipeline, make_error: Any) -> list[Any]:
        chunks = fail(self, make_error)
        failed.set()
        return chunks

    def die(*_: Any) -> None:
        dying.set()
        assert taken.wait(SOON)
        raise BugError("a bug")

    with ScriptedCluster(topics={"t": 1, "u": 1}) as cluster:
        producer = cluster.producer(partitioner=lambda key, partitions, available: 0)
        producer.send("t", b"value").result(SOON)
        monkeypatch.setattr(InFlight, "enter", enter_slowly)
        monkeypatch.setattr(Pipeline, "fail_everything", fail_and_tell)
        monkeypatch.setattr(TopicWorker, "step", die)
        first = producer.send("t", b"value")
        assert dying.wait(SOON)
        slowly = True
        second = producer.send("u", b"value")
        for delivery in (first, second):
            assert isinstance(delivery.exception(SOON), ProducerBrokenError)
        producer.close()


def test_a_flush_beside_a_crash_tells_what_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """1. The dispatcher dies, and the log is slow. 2. flush() must not think that all is well."""
    logging_now, go_on = threading.Event(), threading.Event()

    class Slow(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "broken" in record.getMessage():
                logging_now.set()
                go_on.wait(SOON)

    def die(*_: Any) -> None:
        raise BugError("a bug")

    handler = Slow()
    logging.getLogger("pykaproducer").addHandler(handler)
    try:
        with ScriptedCluster(topics={"t": 1}) as cluster:
            producer = cluster.producer()
            monkeypatch.setattr(Dispatcher, "step", die)
            producer.send("t", b"value")
            assert logging_now.wait(SOON)
            threading.Timer(0.05, go_on.set).start()
            with pytest.raises(DeliveryFailures):
                producer.flush()
            producer.close()
    finally:
        logging.getLogger("pykaproducer").removeHandler(handler)


def test_without_a_thread_to_end_it_a_producer_ends_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with ScriptedCluster(topics={"t": 1}) as cluster:
        producer = cluster.producer(linger_ms=60_000)
        delivery = producer.send("t", b"value")
        producer.flush()
        monkeypatch.setattr(threading.Thread, "start", refuse)
        producer.close()
        monkeypatch.undo()
        assert delivery.result(0).offset == 0
        assert wait_until_gone(producer)


def test_who_waits_is_waked_before_anything_of_the_users_is_called() -> None:
    """1. A partitioner raises: the row's outcome is there. 2. It is called for the next row, and
    waits for the thread that waits for the first row's outcome."""
    both_are_there, seen = threading.Event(), threading.Event()

    def partitioner(key: bytes | None, everything: Any, available: Any) -> int:
        if key == b"first":
            raise ValueError("not this one")
        (both_are_there if key == b"before" else seen).wait(SOON)
        return 0

    with (
        ScriptedCluster(topics={"t": 1}) as cluster,
        cluster.producer(partitioner=partitioner) as producer,
    ):
        before = producer.send("t", b"value", b"before")
        first, second = (producer.send("t", b"value", key) for key in (b"first", b"second"))

        def wait() -> None:
            first.exception(SOON)
            seen.set()

        thread = threading.Thread(target=wait)
        thread.start()
        both_are_there.set()
        begun = time.monotonic()
        assert second.exception(SOON) is None
        assert time.monotonic() - begun < SOON
        assert before.exception(SOON) is None
        assert isinstance(first.error, Exception)
        thread.join()


def test_who_waits_is_waked_before_the_connection_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """1. The answer is judged. 2. What the bridge does next may log, and wait for a lock of a
    logging handler, which the thread that waits for the outcome holds."""
    on_answer = Bridge.on_answer
    returned = threading.Event()
    waked: list[bool] = []

    def answer_and_wait(self: Bridge, event: Any) -> None:
        on_answer(self, event)
        waked.append(returned.wait(SOON))

    monkeypatch.setattr(Bridge, "on_answer", answer_and_wait)
    with ScriptedCluster(topics={"t": 1}) as cluster, cluster.producer() as producer:
        producer.send("t", b"value").result(SOON)
        returned.set()
        producer.flush()
    assert waked == [True]


def test_a_poke_that_comes_late_does_not_reach_another_socket() -> None:
    """1. A thread is about to poke. 2. close() closes the socket. 3. A new one gets its number."""
    wakeup = Wakeup()
    wakeup.close()
    ends = [end for _ in range(8) for end in socket.socketpair()]
    wakeup.poke(surely=True)
    for end in ends:
        end.setblocking(False)
        with pytest.raises(BlockingIOError):
            end.recv(1)
    for end in ends:
        end.close()
