"""The system refuses threads or file descriptors for a while, and the producer recovers."""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from pykaproducer import AbortedError, BufferFullError, Delivery, DeliveryTimeoutError
from pykaproducer._errors.codes import ErrorCode
from pykaproducer._net import wakeup
from pykaproducer._util import threads
from pykaproducer.testing import FakeClock
from pykaproducer.testing.scripted import Refuse
from tests._support import programs

from .helper import (
    FAST,
    SOON,
    Told,
    backs_off,
    came,
    error_of,
    frozen,
    let_pass,
    log,
    offsets,
    outcome,
    running,
    send,
    warm_up,
)


class Threads:
    """A thread limit that refuses threads of a producer with a matching name."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._lock = threading.Lock()
        self._such = ""
        self._times = 0
        self.refused: list[str] = []
        start = threading.Thread.start

        def limited(thread: threading.Thread) -> None:
            if thread.name.startswith("pykaproducer") and self._refuses(thread.name):
                raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", limited)

    def refuse(self, times: int, such: str = "") -> None:
        """Refuse the next *times* threads whose name contains *such*."""
        with self._lock:
            self._times, self._such = times, such

    def _refuses(self, name: str) -> bool:
        with self._lock:
            if not self._times or self._such not in name:
                return False
            self._times -= 1
            self.refused.append(name)
            return True


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> Iterator[Threads]:
    limit = Threads(monkeypatch)
    yield limit
    limit.refuse(0)
    assert not threads.any_missing(), "a thread is missing after the test"


ALWAYS = 1 << 30


def callback() -> tuple[threading.Event, Any]:
    """Return an event and a callback that sets it, for tests that call no other method."""
    called = threading.Event()

    def report(error: BaseException | None, delivery: Delivery) -> None:
        if error is None:
            called.set()

    return called, report


def to_the_first(key: bytes | None, everything: list[int], available: list[int]) -> int:
    """Choose partition 0; a custom partitioner runs only on its own stage's thread."""
    return 0


# Threads


@pytest.mark.parametrize(
    "stage", ["dispatcher", "metadata", "topic", "broker", "bridge", "reports", "retry"]
)
def test_each_stage_gets_its_thread_later(limit: Threads, stage: str) -> None:
    """Only a callback waits for the message: the other stages start the missing thread."""
    called, report = callback()
    with running(partitioner=to_the_first, **FAST) as (cluster, producer):
        cluster.next("produce", Refuse(ErrorCode.NOT_ENOUGH_REPLICAS))
        limit.refuse(3, f"-{stage}")
        producer.send("t", b"value" * 10_000, on_delivery=report)
        # the very first thread: no other stage exists that could start it
        if stage == "dispatcher":
            producer.flush(SOON)
        assert called.wait(SOON)
        assert len(limit.refused) == 3
        assert offsets(send(producer, [b"next"])) == [1]


def test_a_message_is_delivered_if_only_the_metadata_thread_could_be_started(
    limit: Threads,
) -> None:
    called, report = callback()
    with running(**FAST) as (_, producer):
        producer.connect()
        limit.refuse(5, "-dispatcher")
        producer.send("t", b"value", on_delivery=report)
        assert called.wait(SOON)


@pytest.mark.parametrize("waits", ["result", "flush", "send", "partitions_for", "close"])
def test_without_any_thread_the_next_call_starts_them(limit: Threads, waits: str) -> None:
    with running(**FAST) as (cluster, producer):
        limit.refuse(ALWAYS)
        first = [producer.send("t", b"%d" % number) for number in range(3)]
        assert all(name.endswith("-dispatcher") for name in limit.refused)
        assert not any(delivery.done() for delivery in first)
        limit.refuse(2)
        if waits == "result":
            assert first[0].result(SOON).offset == 0
        elif waits == "flush":
            producer.flush(SOON)
        elif waits == "send":
            first += [producer.send("t", b"%d" % number) for number in range(3, 6)]
        elif waits == "partitions_for":
            assert producer.partitions_for("t") == {0}
        else:
            producer.close(SOON)
        assert offsets(first) == list(range(len(first)))
        assert log(cluster) == [b"%d" % number for number in range(len(first))]


def test_a_full_buffer_waits_for_the_thread_that_empties_it(limit: Threads) -> None:
    with running(buffer_memory=1000, max_block_ms=1000 * SOON, **FAST) as (_, producer):
        limit.refuse(4)
        first = producer.send("t", bytes(800))
        second = producer.send("t", bytes(800))
        assert offsets([first, second]) == [0, 1]


def test_a_full_buffer_beside_missing_threads_is_reported_in_time(limit: Threads) -> None:
    with running(buffer_memory=1000, max_block_ms=250, **FAST) as (_, producer):
        limit.refuse(ALWAYS)
        producer.send("t", bytes(800))
        with pytest.raises(BufferFullError, match="those of topic 't' wait: ") as caught:
            producer.send("t", bytes(800))
        assert caught.value.topic == "t"
        limit.refuse(0)


def test_messages_expire_while_threads_are_refused(limit: Threads) -> None:
    """The dispatcher cannot be started until after the deadline: nothing waits forever."""
    with frozen(delivery_timeout_ms=5_000) as (cluster, clock, producer):
        limit.refuse(ALWAYS)
        delivery = producer.send("t", b"value")
        clock.jump(6)
        limit.refuse(0)
        producer.partitions_for("t")  # any blocking call
        assert isinstance(error_of(delivery), DeliveryTimeoutError)
        assert log(cluster) == []


def test_many_messages_beside_a_refused_thread_are_announced_once(limit: Threads) -> None:
    """The inbox of a stage without a thread does not grow with each message."""
    with running(**FAST) as (_, producer):
        limit.refuse(ALWAYS)
        deliveries = [producer.send("t", b"%d" % number) for number in range(100)]
        pipeline: Any = producer._pipeline
        assert len(pipeline.dispatcher.inbox()) == 1
        limit.refuse(0)
        deliveries[0].result(SOON)
        assert offsets(deliveries) == list(range(100))


def test_a_producer_closes_without_a_single_thread(limit: Threads) -> None:
    """Every message gets its outcome, every callback runs, and close() returns."""
    told = Told()
    with running(**FAST) as (_, producer):
        limit.refuse(ALWAYS)
        deliveries = [producer.send("t", b"%d" % n, on_delivery=told) for n in range(3)]
        producer.close(0.2)
        assert all(isinstance(error_of(delivery), AbortedError) for delivery in deliveries)
        assert len(told.errors) == 3


@pytest.mark.parametrize("stage", ["broker", "bridge", "reports", "retry", "end"])
def test_a_producer_closes_while_a_thread_is_refused(limit: Threads, stage: str) -> None:
    told = Told()
    with running(**FAST) as (cluster, producer):
        warm_up(producer)
        cluster.next("produce", *[Refuse(ErrorCode.NOT_ENOUGH_REPLICAS)] * 1000)
        limit.refuse(ALWAYS, f"-{stage}")
        delivery = producer.send("t", b"value" * 10_000, on_delivery=told)
        came(cluster, "produce", 2)
        producer.close(0)
        assert isinstance(error_of(delivery), AbortedError)
        assert len(told.errors) == 1


def test_close_in_a_callback_gets_its_thread_later(limit: Threads) -> None:
    with running(**FAST) as (_, producer):
        failed: list[BaseException] = []
        called = threading.Event()

        def report(error: BaseException | None, delivery: Delivery) -> None:
            try:
                producer.close()
            except BaseException as problem:
                failed.append(problem)
            called.set()

        limit.refuse(2, "-close")
        producer.send("t", b"value", on_delivery=report)
        assert called.wait(SOON)
        assert not failed
        while producer.stats()["state"] != "closed":
            producer.close()


class Refused:
    """An owner of a thread that is refused while *refused* is set."""

    name = "pykaproducer-refused"
    refused = True

    def start_thread(self) -> None:
        if self.refused:
            raise RuntimeError("can't start new thread")


def test_a_shortage_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    with caplog.at_level("INFO", "pykaproducer"):
        for _ in range(600):  # two minutes at a limit that is hit again and again
            owner = Refused()
            threads.start(owner)
            threads.start_missing(clock)
            clock.jump(0.1)
            owner.refused = False
            threads.start_missing(clock)
            clock.jump(0.1)
    logged = [record.getMessage() for record in caplog.records]
    assert len(logged) == 4
    assert logged[0] == (
        "cannot start the thread pykaproducer-refused: can't start new thread; trying again every "
        "0.1 s"
    )
    assert logged[1] == "threads can be started again"


# File descriptors


class Descriptors:
    """A limit of open files that refuses the socket pair that a stage waits on."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.left = 0
        self.refused = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(socket, name)

    def socketpair(self) -> tuple[socket.socket, socket.socket]:
        with self._changed:
            if self.left:
                self.left -= 1
                self.refused += 1
                self._changed.notify_all()
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return socket.socketpair()

    def wait_for_refusals(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.refused >= count, SOON), self.refused


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> Descriptors:
    files = Descriptors()
    monkeypatch.setattr(wakeup, "socket", files)
    return files


@pytest.mark.parametrize("refusals", [1, 2, 7])
def test_a_producer_waits_for_file_descriptors(files: Descriptors, refusals: int) -> None:
    files.left = refusals
    with running(**FAST) as (_, producer):
        assert offsets(send(producer, [b"one", b"two"])) == [0, 1]
        assert files.refused == refusals


def test_a_new_broker_waits_for_file_descriptors(files: Descriptors) -> None:
    """The leader moves to a broker that was not used before, and the process is at its limit."""
    with running(2, **FAST) as (cluster, producer):
        warm_up(producer)
        files.left = 3
        cluster.move_leader("t", 0, 1)
        assert offsets(send(producer, [b"value"])) == [1]
        assert files.refused == 3


def test_messages_expire_without_file_descriptors(files: Descriptors) -> None:
    with frozen(delivery_timeout_ms=5_000) as (_, clock, producer):
        files.left = ALWAYS
        delivery = producer.send("t", b"value")
        backs_off(clock)
        while not delivery.done():
            clock.jump_to_next()
        assert isinstance(delivery.exception(0), DeliveryTimeoutError)
        assert "too many open files" in str(delivery.exception(0))
        files.left = 0
        after = producer.send("t", b"after")
        let_pass(clock, [after])
        assert outcome(after) is None


def test_a_producer_closes_without_file_descriptors(files: Descriptors) -> None:
    files.left = ALWAYS
    with running(**FAST) as (_, producer):
        delivery = producer.send("t", b"value")
        files.wait_for_refusals(2)
        producer.close(0)
        assert isinstance(error_of(delivery), AbortedError)


@pytest.mark.scripted
def test_a_child_does_not_start_the_parent_s_missing_threads() -> None:
    programs.run("""
        import os, threading
        from pykaproducer import Producer

        def refuse(thread):
            raise RuntimeError("can't start new thread")

        start, threading.Thread.start = threading.Thread.start, refuse
        parents = Producer(bootstrap_servers="127.0.0.1:1", client_id="parent")
        parents.send("t", b"1")
        child = os.fork()
        if child == 0:
            threading.Thread.start = start
            mine = Producer(bootstrap_servers="127.0.0.1:1", client_id="child")
            mine.send("t", b"1")
            mine.abort()
            os._exit(any("parent" in thread.name for thread in threading.enumerate()))
        assert os.waitpid(child, 0)[1] == 0
        threading.Thread.start = start
        parents.abort()
        """)
