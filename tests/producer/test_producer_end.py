"""Without a broker: a full buffer, ``flush()``, callbacks that would wait, and the end."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
from kafka.errors import KafkaError, KafkaTimeoutError

from pykaproducer import (
    AbortedError,
    BufferFullError,
    CallbackThreadError,
    Delivery,
    DeliveryFailures,
    DeliveryTimeoutError,
    FlushTimeoutError,
    KafkaProducer,
    MessageTooLargeError,
    Producer,
    ProducerClosedError,
    Status,
)
from pykaproducer.testing import ScriptedCluster
from tests._support.logs import told_by_log
from tests._support.threads import Call, threads_left
from tests.producer.test_producer import SOON, StillProducer

# buffer_memory


def fill(producer: Producer) -> tuple[float, BufferFullError]:
    """Send until the buffer is full; return the time of that send() (seconds), and its error."""
    while True:
        started = time.monotonic()
        try:
            producer.send("events", bytes(1000))
        except BufferFullError as refusal:
            return time.monotonic() - started, refusal


def test_a_full_buffer_refuses_after_max_block_ms(refusing: str) -> None:
    producer = Producer(bootstrap_servers=refusing, buffer_memory=10_000, max_block_ms=100)
    took, refusal = fill(producer)
    assert took >= 0.1
    assert "max_block_ms (100 ms)" in str(refusal)
    assert isinstance(refusal, KafkaTimeoutError)
    assert refusal.status is Status.NOT_PERSISTED
    # Each message costs its bytes and some overhead.
    assert producer.accepted == 9
    # A smaller one may still fit.
    producer.send("events", b"x")
    producer.close(0)


def test_max_block_ms_0_does_not_wait_at_all(refusing: str) -> None:
    producer = StillProducer(bootstrap_servers=refusing, buffer_memory=2000, max_block_ms=0)
    producer.send("events", bytes(1500))
    with pytest.raises(BufferFullError):
        producer.send("events", bytes(1500))
    producer.close(0)


def test_a_message_that_can_never_fit_is_refused_at_once(refusing: str) -> None:
    producer = Producer(bootstrap_servers=refusing, buffer_memory=2000)
    with pytest.raises(MessageTooLargeError, match="buffer_memory"):
        producer.send("events", bytes(3000))
    producer.close(0)


def test_messages_that_expire_make_room(refusing: str) -> None:
    producer = Producer(
        bootstrap_servers=refusing,
        buffer_memory=20_000,
        delivery_timeout_ms=50,
        max_block_ms=SOON * 1000,
    )
    for _ in range(50):
        producer.send("events", bytes(1000))
    producer.close()


def test_handles_that_are_kept_do_not_keep_the_buffer(refusing: str) -> None:
    with Producer(
        bootstrap_servers=refusing, delivery_timeout_ms=50, buffer_memory=200_000, max_block_ms=0
    ) as producer:
        kept = [producer.send("events", bytes(1000)) for _ in range(100)]
        assert all(delivery.exception(SOON) is not None for delivery in kept)
        producer.flush(SOON)
        # All of it is free again.
        assert producer.send("events", bytes(199_900)).exception(SOON) is not None
        assert kept[-1].value == bytes(1000)


# flush()


def test_flush_reports_what_failed_and_nobody_was_told_of(refusing: str) -> None:
    with (
        Producer(bootstrap_servers=refusing, delivery_timeout_ms=50) as producer,
        told_by_log(refusing) as told,
    ):
        # Until the reason of the failures is known; a read outcome counts as reported.
        while not told.is_set():
            producer.send("events", b"value").exception(SOON)
        for _ in range(20):
            producer.send("events", b"value")
        with pytest.raises(DeliveryFailures) as caught:
            producer.flush(SOON)
        assert caught.value.count == 20
        assert refusing in str(caught.value)
        assert isinstance(caught.value.__cause__, DeliveryTimeoutError)
        producer.flush(SOON)


def test_flush_tells_of_each_failure_once(refusing: str) -> None:
    """Failures passed to a callback, or read from a handle, are not raised."""
    told: list[BaseException | None] = []
    with Producer(bootstrap_servers=refusing, delivery_timeout_ms=1) as producer:
        kept: list[Delivery] = []
        for number in range(400):
            kept.append(producer.send(f"read-{number}", b"value"))
            producer.send(f"dropped-{number}", b"value")
            producer.send(f"called-{number}", b"value", on_delivery=lambda e, d: told.append(e))
        unread = kept[::4]
        for delivery in kept:
            if delivery not in unread:
                assert isinstance(delivery.exception(SOON), DeliveryTimeoutError)
        del kept, delivery
        with pytest.raises(DeliveryFailures) as caught:
            producer.flush(SOON)
        assert caught.value.count == 400 + len(unread)
        assert len(told) == 400
        producer.flush(SOON)


def test_flush_times_out(refusing: str) -> None:
    producer = Producer(bootstrap_servers=refusing)
    for _ in range(20):
        producer.send("events", b"value")
    for timeout in (0, 0.01):
        with pytest.raises(FlushTimeoutError, match="20 messages") as caught:
            producer.flush(timeout)
        assert caught.value.pending == 20
        assert isinstance(caught.value, KafkaTimeoutError)
    producer.close(0)


# Callbacks that would wait for their own thread


def test_a_callback_that_would_wait_for_itself_is_told_so(refusing: str) -> None:
    outcomes: dict[str, BaseException] = {}
    called = threading.Event()

    def report(error: BaseException | None, delivery: Delivery) -> None:
        outcomes["reported"] = error or LookupError("there should be one")
        pending = producer.send("events", b"another")
        waits: dict[str, Callable[[], object]] = {
            "flush": producer.flush,
            "result": pending.result,
            "exception": pending.exception,
            "get": pending.get,
            "partitions_for": lambda: producer.partitions_for("events"),
            "await": lambda: asyncio.run(wait_for(pending)),
        }
        for name, wait in waits.items():
            try:
                wait()
            except KafkaError as problem:
                outcomes[name] = problem
        try:
            while True:
                producer.send("events", bytes(10_000))
        except BufferFullError as problem:
            outcomes["send"] = problem
        # A settled message can be read.
        outcomes["own"] = delivery.exception() or LookupError("there should be one")
        called.set()

    async def wait_for(delivery: Delivery) -> Any:
        return await delivery

    producer = Producer(bootstrap_servers=refusing, buffer_memory=100_000, client_id="callbacks")
    producer.send("events", b"value", on_delivery=report, delivery_timeout_ms=1)
    assert called.wait(SOON)
    producer.close(0)
    assert isinstance(outcomes.pop("reported"), DeliveryTimeoutError)
    assert isinstance(outcomes.pop("own"), DeliveryTimeoutError)
    assert "callback" in str(outcomes["send"])
    assert isinstance(outcomes.pop("send"), BufferFullError)
    assert {name: type(error) for name, error in outcomes.items()} == dict.fromkeys(
        ["flush", "result", "exception", "get", "partitions_for", "await"], CallbackThreadError
    )


def test_a_partitioner_that_would_wait_for_its_own_thread_is_told_so(refusing: str) -> None:
    outcomes: list[BaseException] = []

    def partitioner(key: bytes | None, everything: list[int], available: list[int]) -> int:
        for wait in (producer.flush, pending.result, lambda: producer.partitions_for("other")):
            try:
                wait()
            except KafkaError as problem:
                outcomes.append(problem)
        try:
            while True:
                producer.send("other", bytes(10_000))
        except BufferFullError as problem:
            outcomes.append(problem)
        return 0

    with ScriptedCluster(topics={"events": 1}) as cluster:
        producer = cluster.producer(partitioner=partitioner, buffer_memory=100_000)
        pending = producer.send("other", b"value")
        producer.send("events", b"value").result(SOON)
        producer.close(0)
    assert [type(error) for error in outcomes] == [*[CallbackThreadError] * 3, BufferFullError]


# close()


def test_who_waits_for_metadata_learns_that_the_producer_is_closed(refusing: str) -> None:
    producer = Producer(bootstrap_servers=refusing)
    asking = Call(lambda: producer.partitions_for("events"))
    while producer._pipeline is None or not producer._pipeline.metadata.waiting_threads:
        assert asking.is_alive()
    producer.close()
    assert isinstance(asking.outcome(), ProducerClosedError)


def test_a_closed_producer_accepts_nothing_and_can_be_closed_again(refusing: str) -> None:
    producer = Producer(bootstrap_servers=refusing)
    producer.close()
    producer.close(0)
    producer.abort()
    for call in (lambda: producer.send("events", b""), lambda: producer.partitions_for("events")):
        with pytest.raises(ProducerClosedError, match="closed"):
            call()
    producer.flush(0)


@pytest.mark.parametrize("server", ["refusing", "silent"])
def test_abort_fails_everything_at_once(server: str, request: pytest.FixtureRequest) -> None:
    told: list[BaseException | None] = []
    # Nothing in it waits for time to pass, which would take forever.
    producer = StillProducer(
        bootstrap_servers=request.getfixturevalue(server), client_id="aborting"
    )
    deliveries = [producer.send(f"topic-{i % 10}", b"value") for i in range(1000)]
    producer.send("topic-0", b"value", on_delivery=lambda error, _: told.append(error))
    producer.abort()
    assert threads_left("aborting") == []
    errors = [delivery.exception(0) for delivery in deliveries]
    assert {type(error) for error in (*errors, *told)} == {AbortedError}
    assert {getattr(error, "status", None) for error in errors} == {Status.NOT_PERSISTED}
    assert "abort()" in str(errors[0])
    assert len(told) == 1


def test_close_ends_what_waits_for_a_result(refusing: str) -> None:
    producer = Producer(bootstrap_servers=refusing)
    delivery = producer.send("events", b"value")
    waiting = threading.Event()
    waits = Call(lambda: waiting.set() or delivery.exception(SOON))
    assert waiting.wait(SOON)
    producer.close(0.05)
    assert isinstance(waits.outcome(), AbortedError)
    assert "0.05 s" in str(waits.outcome())


def test_a_callback_that_does_not_return_is_named(caplog: pytest.LogCaptureFixture) -> None:
    never, entered = threading.Event(), threading.Event()

    def blocks(*told: object) -> None:
        entered.set()
        never.wait()

    with ScriptedCluster(topics={"t": 1}) as cluster:
        producer = cluster.producer(delivery_timeout_ms=500, request_timeout_ms=500)
        producer.send("t", b"v", on_delivery=blocks)
        assert entered.wait(SOON)
        named = r"1 message's callback has not returned \(\S*blocks\)"
        with pytest.raises(FlushTimeoutError, match=named):
            producer.flush(0.01)
        producer.close()
        never.set()
        assert re.search(named, caplog.text)
        assert "without an outcome" not in caplog.text
    assert not threads_left(producer._name)


class Seconds:
    """A number of a units library: it can be converted, not formatted."""

    def __float__(self) -> float:
        return 0.01


@pytest.mark.parametrize("timeout", [Seconds(), Fraction(1, 100)], ids=["own type", "fraction"])
def test_a_timeout_is_a_number_of_any_type(refusing: str, timeout: Any) -> None:
    for kind in (Producer, KafkaProducer):
        producer = kind(bootstrap_servers=refusing, client_id="odd-timeout")
        delivery = producer.send("t", b"v")
        block = producer.send_many("t", [b"v"])
        for call in (delivery.get, block.result, producer.flush):
            with pytest.raises(KafkaTimeoutError):
                call(timeout)
        producer.close(timeout)
        assert threads_left("odd-timeout") == []


def test_close_that_fails_leaves_no_thread(refusing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    producer = Producer(bootstrap_servers=refusing, client_id="fails")
    delivery = producer.send("t", b"v")

    def fails(*arguments: object) -> None:
        raise LookupError("a bug")

    monkeypatch.setattr("pykaproducer._process.closing.finish", fails)
    with pytest.raises(LookupError):
        producer.close()
    assert isinstance(delivery.exception(0), AbortedError)
    assert threads_left("fails") == []


def test_with_closes_also_after_an_error(refusing: str) -> None:
    with pytest.raises(LookupError), Producer(bootstrap_servers=refusing) as producer:
        raise LookupError
    with pytest.raises(ProducerClosedError):
        producer.send("events", b"value")


def test_an_exit_is_bounded_by_exit_flush_timeout_ms(refusing: str) -> None:
    script = f"""
        from pykaproducer import Producer
        producer = Producer(bootstrap_servers="{refusing}", exit_flush_timeout_ms=100)
        producer.send("events", b"value")
        """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], timeout=SOON, check=True
    )
    assert ended.returncode == 0


def test_a_producer_without_a_cluster_leaves_others_their_time_at_exit(refusing: str) -> None:
    script = f"""
        import atexit
        atexit.register(lambda: print(len(cluster.log("t", 0))))  # runs last
        from pykaproducer import Producer
        from pykaproducer.testing import ScriptedCluster

        cluster = ScriptedCluster(topics={{"t": 1}}).__enter__()
        settings = {{"linger_ms": 60_000, "exit_flush_timeout_ms": 1000}}
        dead = [Producer(bootstrap_servers="{refusing}", **settings) for _ in range(3)]
        for producer in (*dead[1:], cluster.producer(**settings), dead[0]):
            producer.send("t", b"value")
        """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        timeout=SOON,
        check=True,
        capture_output=True,
        text=True,
    )
    assert ended.stdout == "1\n"


def test_other_threads_make_producers_while_the_process_ends() -> None:
    script = textwrap.dedent("""
        import sys, threading
        from pykaproducer import Producer
        from pykaproducer._process import lifecycle

        sys.setswitchinterval(1e-6)
        kept = [Producer(bootstrap_servers="127.0.0.1:1") for _ in range(200)]
        ended = threading.Event()

        def make():
            while not ended.is_set():
                Producer(bootstrap_servers="127.0.0.1:1")

        thread = threading.Thread(target=make)
        thread.start()
        try:
            for _ in range(2_000):
                assert len(lifecycle.live_producers()) >= len(kept)
        finally:
            ended.set()
            thread.join()
    """)
    subprocess.run([sys.executable, "-c", script], check=True, timeout=SOON)
