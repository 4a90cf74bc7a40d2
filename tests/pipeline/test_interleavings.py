"""Interleavings that were found by reading the code, each reproduced step by step."""

from __future__ import annotations

import logging
import socket
import threading
import time
from typing import Any

import pytest

from pykaproducer import DeliveryFailures, Producer, ProducerBrokenError, ProducerClosedError
from pykaproducer._errors.codes import ErrorCode
from pykaproducer._net.wakeup import Wakeup
from pykaproducer._pipeline.bridge import Bridge
from pykaproducer._pipeline.broker import BrokerWorker
from pykaproducer._pipeline.broker_registry import Brokers
from pykaproducer._pipeline.dispatcher import Dispatcher
from pykaproducer._pipeline.incomplete import IncompleteChunks
from pykaproducer._pipeline.topic import TopicWorker
from pykaproducer._pipeline.wiring import Pipeline
from pykaproducer.testing import ScriptedCluster
from pykaproducer.testing.scripted import Refuse
from tests._support.threads import threads_left, threads_of

from .helper import (
    FAST,
    SOON,
    frozen,
    hold,
    metadata_is_idle,
    offsets,
    outcomes,
    pipeline_of,
    running,
    send,
    until,
    warm_up,
)
from .test_shutdown import BugError, die

pytestmark = pytest.mark.usefixtures("at_any_depth")


def workers(producer: Producer) -> list[int]:
    """Return the brokers that have a worker."""
    assert producer._pipeline is not None
    return [worker.broker_id for worker in producer._pipeline.brokers.all()]


def test_a_window_that_opens_while_the_dispatcher_looks_is_noticed() -> None:
    """No message stays in the open chunk although a broker could take it.

    1. The dispatcher reads the window of the broker, which is closed.
    2. The response arrives and opens it; nothing is pending, and the BrokerWorker goes to sleep.
    3. The dispatcher leaves the message in the open chunk.
    """
    with frozen(max_in_flight_requests_per_connection=1) as (cluster, _, producer):
        warm_up(producer)
        held, first = hold(cluster, producer, [b"1"])
        dispatcher = pipeline_of(producer).dispatcher
        (broker,) = pipeline_of(producer).brokers.all()
        look = dispatcher._hold_time

        def look_and_be_overtaken(leaders: Any) -> float:
            wait = look(leaders)
            held.release()
            until(lambda: not broker.requests and not broker._running.locked())
            return wait

        dispatcher._hold_time = look_and_be_overtaken
        assert offsets([*first, *send(producer, [b"2"])]) == [1, 2]


def test_a_worker_that_nothing_needs_ends_after_the_idle_time() -> None:
    """And flush() notifies only the remaining workers."""
    with frozen(
        2, topics={"t": 2}, metadata_max_age_ms=36_000_000, connections_max_idle_ms=60_000
    ) as (cluster, clock, producer):
        for partition in (0, 1):
            cluster.move_leader("t", partition, partition)
        for partition in (0, 1):
            offsets(send(producer, [b"value"], partition=partition))
        assert workers(producer) == [0, 1]
        until(lambda: metadata_is_idle(producer))
        cluster.move_leader("t", 0, 1)
        (moved,) = send(producer, [b"value"])
        assert outcomes([moved], clock) == [None]
        assert workers(producer) == [0, 1]
        until(lambda: metadata_is_idle(producer))
        clock.jump(59)
        offsets(send(producer, [b"value"], partition=1))
        assert workers(producer) == [0, 1]

        def only_one_is_left() -> bool:
            clock.jump(2)
            return workers(producer) == [1]

        until(only_one_is_left)  # the worker may not have processed the release yet
        producer.flush()
        # It is created again when it is needed.
        cluster.move_leader("t", 0, 0)
        (back,) = send(producer, [b"value"])
        assert outcomes([back], clock) == [None]
        assert sorted(workers(producer)) == [0, 1]


@pytest.mark.parametrize("code", [ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_LEADER_OR_FOLLOWER])
def test_a_failed_attempt_costs_no_connection_and_no_thread(code: int) -> None:
    with running(**FAST) as (cluster, producer):
        warm_up(producer)
        before = threads_of(producer.config.client_id)
        cluster.next("produce", *[Refuse(code)] * 12)
        offsets(send(producer, [b"value"]))
        more = set(threads_of(producer.config.client_id)) - set(before)
        # The thread of the reports may have started after the warm-up's result.
        assert more <= {f"{producer._name}-{name}" for name in ("retry-handler", "log", "reports")}
        assert len({received.connection for received in cluster.received("produce")}) == 1


def test_a_worker_is_acquired_before_it_ends_or_made_anew() -> None:
    """A worker that is about to end is either acquired in time or created again.

    1. A worker asks for its end, being unused.
    2. A PartitionWorker has acquired it since then, or acquires it after that.
    """
    brokers = Brokers(_Idle)  # type: ignore[arg-type]
    first: Any = brokers.acquire(0)
    brokers.release(first)
    assert brokers.acquire(0) is first
    brokers.end_unused(first)
    assert first.stops == 0
    brokers.release(first)
    brokers.end_unused(first)
    brokers.end_unused(first)
    assert first.stops == 1
    assert brokers.acquire(0) is not first


class _Idle:
    """A BrokerWorker that does nothing."""

    thread = None

    def __init__(self, broker_id: int) -> None:
        self.broker_id = broker_id
        self.stops = 0

    def put(self, item: object) -> None:
        pass

    def stop(self) -> None:
        self.stops += 1


def test_a_broker_that_is_met_while_the_producer_ends_starts_no_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No thread starts for a broker that appears during close().

    1. A stage makes a BrokerWorker.
    2. close() ends all known workers.
    3. The stage continues.
    """
    making, go_on = threading.Event(), threading.Event()
    make = Pipeline._new_broker_worker

    def make_slowly(self: Pipeline, broker_id: int) -> BrokerWorker:
        worker = make(self, broker_id)
        making.set()
        go_on.wait(SOON)
        return worker

    monkeypatch.setattr(Pipeline, "_new_broker_worker", make_slowly)
    with ScriptedCluster(topics={"t": 1}) as cluster:
        # A custom partitioner is called by the topic's own thread.
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
        assert threads_left(producer.config.client_id) == []


def test_a_closed_producer_that_never_sent_starts_no_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No thread starts if close() overtakes the first send().

    1. A first send() makes the pipeline.
    2. close() finds none.
    3. The send() continues.
    """
    with running() as (_, producer):
        make = Pipeline.__init__

        def close_and_make(self: Pipeline, *args: Any) -> None:
            producer.close()
            make(self, *args)

        monkeypatch.setattr(Pipeline, "__init__", close_and_make)
        with pytest.raises(ProducerClosedError):
            producer.send("t", b"value")
        producer.flush()
        assert threads_left(producer.config.client_id) == []


def test_a_crash_while_the_dispatcher_takes_a_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk that the dispatcher is taking during a crash fails like the others.

    1. The dispatcher has taken a chunk.
    2. Another stage dies, and every known message fails.
    3. The dispatcher enters the chunk.
    """
    dying, taken, failed = threading.Event(), threading.Event(), threading.Event()
    enter, fail = IncompleteChunks.enter, Pipeline.fail_everything
    slowly = False

    def enter_slowly(self: IncompleteChunks, chunk: Any) -> None:
        if slowly and threading.current_thread().name.endswith("dispatcher"):
            taken.set()
            assert failed.wait(SOON)
        enter(self, chunk)

    def fail_and_tell(self: Pipeline, make_error: Any) -> list[Any]:
        chunks = fail(self, make_error)
        failed.set()
        return chunks

    def die_slowly(*_: Any) -> None:
        dying.set()
        assert taken.wait(SOON)
        raise BugError("a bug")

    with running(topics={"t": 1, "u": 1}, partitioner=lambda key, partitions, available: 0) as (
        _cluster,
        producer,
    ):
        producer.send("t", b"value").result(SOON)
        monkeypatch.setattr(IncompleteChunks, "enter", enter_slowly)
        monkeypatch.setattr(Pipeline, "fail_everything", fail_and_tell)
        monkeypatch.setattr(TopicWorker, "handle", die_slowly)
        first = producer.send("t", b"value")
        assert dying.wait(SOON)
        slowly = True
        second = producer.send("u", b"value")
        for delivery in (first, second):
            assert isinstance(delivery.exception(SOON), ProducerBrokenError)
        producer.close()


def test_a_flush_beside_a_crash_tells_what_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flush() during a crash must not return successfully.

    1. The dispatcher dies, and the log is slow.
    2. flush() must not conclude that everything was delivered.
    """
    logging_now, go_on = threading.Event(), threading.Event()

    class Slow(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "broken" in record.getMessage():
                logging_now.set()
                go_on.wait(SOON)

    handler = Slow()
    logging.getLogger("pykaproducer").addHandler(handler)
    try:
        with running() as (_, producer):
            monkeypatch.setattr(Dispatcher, "handle", die)
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

    with running(linger_ms=60_000) as (_, producer):
        delivery = producer.send("t", b"value")
        producer.flush()
        monkeypatch.setattr(threading.Thread, "start", refuse)
        producer.close()
        monkeypatch.undo()
        assert delivery.result(0).offset == 0
        assert threads_left(producer.config.client_id) == []


def test_who_waits_is_waked_before_anything_of_the_users_is_called() -> None:
    """A waiting thread is woken before user code is called.

    1. A partitioner raises: the row has its outcome.
    2. It is called for the next row, and waits for the thread that waits for the first outcome.
    """
    both_are_there, seen = threading.Event(), threading.Event()

    def partitioner(key: bytes | None, everything: Any, available: Any) -> int:
        if key == b"first":
            raise ValueError("not this one")
        (both_are_there if key == b"before" else seen).wait(SOON)
        return 0

    with running(partitioner=partitioner) as (_, producer):
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
    """A waiting thread is woken before the connection continues.

    1. The response is handled.
    2. The bridge then may call a token provider, which waits for a lock that is held by the thread
       that waits for the outcome.
    """
    on_answer = Bridge.on_answer
    returned = threading.Event()
    woken: list[bool] = []

    def answer_and_wait(self: Bridge, event: Any) -> None:
        on_answer(self, event)
        woken.append(returned.wait(SOON))

    monkeypatch.setattr(Bridge, "on_answer", answer_and_wait)
    with running() as (_, producer):
        producer.send("t", b"value").result(SOON)
        returned.set()
        producer.flush()
    assert woken == [True]


def test_a_poke_that_comes_late_does_not_reach_another_socket() -> None:
    """A late wake-up does not reach another socket.

    1. A thread is about to wake the stage through its socket.
    2. close() closes the socket.
    3. A new socket gets the same file descriptor.
    """
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
