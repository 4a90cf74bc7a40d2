"""No silent losses: failures that neither a callback nor a read outcome has reported."""

from __future__ import annotations

import contextlib
import gc
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pykaproducer import Delivery, DeliveryFailures, KafkaProducer, Producer, ProducerClosedError
from pykaproducer._errors.codes import ErrorCode
from pykaproducer._pipeline.unreported import (
    GATHER,
    INTERVAL,
    PATIENCE,
    Failures,
    Taken,
    UnreportedFailures,
)
from pykaproducer._process.closing import ROUNDS, Handover
from pykaproducer._process.lifecycle import live_producers
from pykaproducer.testing import FakeClock, ScriptedCluster
from pykaproducer.testing.scripted import Refuse
from tests._support.threads import Call

from .helper import (
    FAST,
    LINGERING,
    SOON,
    ended,
    error_of,
    frozen,
    log,
    numbers,
    outcome,
    pipeline_of,
    running,
    send,
    until,
    waits_for,
)


class Errors(logging.Handler):
    """The ERROR lines of the library, each of which a test can wait for."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self._came = threading.Condition()
        self._lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        with self._came:
            self._lines.append(record.getMessage())
            self._came.notify_all()

    def all(self, count: int) -> list[str]:
        """Wait until there are *count* lines, and return all of them."""
        with self._came:
            assert self._came.wait_for(lambda: len(self._lines) >= count, SOON), self._lines
            return list(self._lines)


@pytest.fixture
def errors() -> Iterator[Errors]:
    handler = Errors()
    logging.getLogger("pykaproducer").addHandler(handler)
    yield handler
    logging.getLogger("pykaproducer").removeHandler(handler)


@contextmanager
def refusing(*topics: str) -> Iterator[tuple[ScriptedCluster, FakeClock, Producer]]:
    """Yield a producer whose brokers reject every batch, and whose clock stands still."""
    clock = FakeClock()
    with ScriptedCluster(topics=dict.fromkeys(topics or ("t",), 1)) as cluster:
        cluster.next("produce", *[Refuse(ErrorCode.INVALID_RECORD)] * 1000)
        with ended(cluster.producer(clock=clock, linger_ms=0)) as producer:
            yield cluster, clock, producer


def fail(producer: Producer, count: int, topic: str = "t") -> None:
    """Make *count* messages fail that have neither callback nor handle."""
    reported = threading.Event()
    for _ in range(count):
        producer.send(topic, b"value", partition=0)
    # A later message whose outcome is read: it is reported after theirs.
    last = producer.send(topic, b"last", partition=0)
    last.add_done_callback(lambda _: reported.set())
    assert reported.wait(SOON)
    assert last.exception(0) is not None


def logged(clock: FakeClock, errors: Errors) -> str:
    """Let the time pass in which failures are gathered, and return the only line."""
    waits_for(clock, GATHER)
    clock.jump(GATHER)
    (line,) = errors.all(1)
    return line


# While the producer runs


def test_rejected_messages_are_logged_while_the_producer_runs(errors: Errors) -> None:
    with refusing() as (_, clock, producer):
        fail(producer, 3)
        line = logged(clock, errors)
        assert line.startswith("3 messages failed, and no callback or read outcome has reported it")
        assert "; topic 't'; first: " in line
        assert "INVALID_RECORD" in line


def test_a_failure_while_another_callback_runs_is_logged(errors: Errors) -> None:
    """The stage that logs it is not woken a second time for it."""
    entered, go = threading.Event(), threading.Event()

    def blocks(error: BaseException | None, delivery: Delivery) -> None:
        entered.set()
        assert go.wait(SOON)

    with running(topics={"t": 1, "u": 1}) as (cluster, producer):
        send(producer, [b"1"])[0].result(SOON)
        outcome(producer.send("u", b"1"))
        producer.send("t", b"2", on_delivery=blocks)
        assert entered.wait(SOON)
        cluster.next("produce", Refuse(ErrorCode.INVALID_RECORD))
        producer.send("u", b"lost")
        until(lambda: pipeline_of(producer).unreported.due is not None)
        producer.send("t", b"3", on_delivery=lambda error, delivery: None)
        until(lambda: bool(pipeline_of(producer).reports.inbox()))
        go.set()
        assert errors.all(1)[0].startswith("1 message failed")
        with pytest.raises(DeliveryFailures):
            producer.flush(SOON)


def test_messages_that_expire_are_logged_while_the_producer_runs(errors: Errors) -> None:
    with frozen(delivery_timeout_ms=5_000) as (cluster, clock, producer):
        cluster.stop(0)
        for value in numbers(500):
            producer.send("t", value)
        last = producer.send("t", b"last")
        clock.jump(5.1)
        assert outcome(last)
        del last
        line = logged(clock, errors)
        assert line.startswith("500 messages failed")
        assert "DeliveryTimeoutError" in line


def test_there_is_a_line_in_30_seconds_and_each_failure_is_in_one(errors: Errors) -> None:
    with refusing("a", "b") as (_, clock, producer):
        fail(producer, 1, "a")
        assert logged(clock, errors).startswith("1 message failed")
        fail(producer, 2, "a")
        waits_for(clock, INTERVAL)
        clock.jump(INTERVAL - 1)
        fail(producer, 3, "b")
        waits_for(clock, 1)
        clock.jump(1)
        _, second = errors.all(2)
        assert second.startswith("5 messages failed")
        # In the order in which the stages let go of the messages.
        assert "; topics 'a', 'b'; " in second or "; topics 'b', 'a'; " in second
        # Without new failures there is nothing to wait for.
        fail(producer, 0, "a")
        assert len(errors.all(2)) == 2


def test_what_a_callback_is_given_is_not_logged(errors: Errors) -> None:
    called = threading.Event()
    with refusing() as (_, clock, producer):
        producer.send("t", b"value", partition=0, on_delivery=lambda e, d: called.set())
        assert called.wait(SOON)
        fail(producer, 1)
        assert logged(clock, errors).startswith("1 message failed")


def test_a_handle_that_is_kept_may_be_read_for_a_minute(errors: Errors) -> None:
    with refusing() as (_, clock, producer):
        kept = send(producer, numbers(3))
        fail(producer, 0)
        waits_for(clock, GATHER)
        clock.jump(GATHER)
        waits_for(clock, PATIENCE - GATHER)
        assert error_of(kept[0])
        clock.jump(PATIENCE - GATHER)
        assert errors.all(1)[0].startswith("2 messages failed")
        # They were logged and are raised all the same, without the outcome read in the meantime.
        assert kept[1].exception(0) is not None
        with pytest.raises(DeliveryFailures) as caught:
            producer.flush()
        assert caught.value.count == 1


def test_a_handle_that_is_dropped_in_the_first_second_is_not_waited_for(errors: Errors) -> None:
    with refusing() as (_, clock, producer):
        handle = producer.send("t", b"value", partition=0)
        fail(producer, 0)
        waits_for(clock, GATHER)
        del handle
        clock.jump(GATHER)
        assert errors.all(1)[0].startswith("1 message failed")


def test_outcomes_that_are_read_leave_no_line_and_nothing_behind(errors: Errors) -> None:
    with refusing() as (_, clock, producer):
        for delivery in send(producer, numbers(3)):
            assert error_of(delivery)
        fail(producer, 1)
        assert logged(clock, errors).startswith("1 message failed")


def test_rows_of_a_block_that_found_no_space_are_logged(errors: Errors) -> None:
    """They were not accepted, but the call has not raised."""
    with frozen(buffer_memory=10_000, max_block_ms=0) as (cluster, clock, producer):
        cluster.stop(0)
        values = [bytes(1000)] * 50
        block = producer.send_many("t", values)
        missing = len(block) - block.accepted
        assert missing
        del block
        clock.jump(GATHER)
        assert errors.all(1)[0].startswith(f"{missing} messages failed")
        assert "BufferFullError" in errors.all(1)[0]


# flush() and close()


def test_flush_raises_what_the_log_has_named_and_the_log_names_it_once(errors: Errors) -> None:
    with refusing() as (_, clock, producer):
        fail(producer, 3)
        logged(clock, errors)
        fail(producer, 2)
        with pytest.raises(DeliveryFailures) as caught:
            producer.flush()
        assert caught.value.count == 5
        fail(producer, 1)
        waits_for(clock, INTERVAL)
        clock.jump(INTERVAL)
        # Failures that flush() has raised are not logged.
        assert errors.all(2)[1].startswith("1 message failed")
        producer.close(0)
        assert len(errors.all(2)) == 2


def test_close_logs_what_no_line_has_named(errors: Errors) -> None:
    with refusing() as (_, clock, producer):
        fail(producer, 3)
        logged(clock, errors)
        fail(producer, 2)
        producer.close()
        assert errors.all(2)[1].startswith("close(): 2 messages were not delivered")


# The end of a `with` block


def lose_in_a_block(
    cluster: ScriptedCluster, producer: Producer, end: BaseException | None = None
) -> None:
    """Lose 5 messages in a block that ends with *end*."""
    with producer:
        cluster.next("produce", *[Refuse(ErrorCode.INVALID_RECORD)] * 5)  # of one batch or several
        for value in numbers(5):
            producer.send("t", value)
        if end is not None:
            raise end


def test_a_block_that_has_lost_messages_raises(errors: Errors) -> None:
    with ScriptedCluster(topics={"t": 1}) as cluster:
        producer = cluster.producer(linger_ms=60_000, **FAST)
        with pytest.raises(DeliveryFailures, match="INVALID_RECORD") as caught:
            lose_in_a_block(cluster, producer)
    assert caught.value.count == 5
    assert not errors.all(0)


def test_a_block_raises_what_the_log_has_named(errors: Errors) -> None:
    def block() -> None:
        with producer:
            fail(producer, 3)
            logged(clock, errors)

    with refusing() as (_, clock, producer), pytest.raises(DeliveryFailures) as caught:
        block()
    assert caught.value.count == 3
    assert len(errors.all(1)) == 1


def test_another_exception_is_not_hidden(errors: Errors) -> None:
    with ScriptedCluster(topics={"t": 1}) as cluster:
        producer = cluster.producer(linger_ms=60_000, **FAST)
        with pytest.raises(LookupError, match="mine"):
            lose_in_a_block(cluster, producer, LookupError("mine"))
    (line,) = errors.all(1)
    assert line.startswith("close(): 5 messages were not delivered")


def test_what_close_has_logged_a_block_does_not_raise(errors: Errors) -> None:
    with running(linger_ms=60_000, **FAST) as (cluster, producer):
        cluster.next("produce", Refuse(ErrorCode.INVALID_RECORD))
        producer.send("t", b"value")
        producer.close()
    assert len(errors.all(1)) == 1


def test_what_abort_has_failed_a_block_does_not_raise(
    errors: Errors, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even if the producer still stops when the block ends: a callback has not returned."""
    monkeypatch.setattr("pykaproducer.producer._END_TIME", 0)
    is_called = threading.Event()

    def block(error: BaseException | None, delivery: Delivery) -> None:
        is_called.set()
        errors.all(1)

    with ScriptedCluster(topics={"t": 1}) as cluster:
        with cluster.producer(**LINGERING) as producer:
            producer.send("t", b"value", on_delivery=block)
            producer.send("t", b"value")
            producer.abort()
            assert is_called.wait(SOON)
        (line,) = errors.all(1)
    assert line.startswith("close(): 1 message was not delivered")


def test_the_drop_in_logs_where_the_producer_raises(errors: Errors) -> None:
    with ScriptedCluster(topics={"t": 1}) as cluster:

        class Scripted(KafkaProducer):
            _network_type = staticmethod(lambda config: cluster.network)

        with Scripted(bootstrap_servers=cluster.bootstrap_servers, linger_ms=60_000) as producer:
            cluster.next("produce", *[Refuse(ErrorCode.INVALID_RECORD)] * 2)
            producer.send("t", b"one")
            producer.flush()
            producer.send("t", b"two")
        first, second = errors.all(2)
    assert first.startswith("flush(): 1 message was not delivered")
    assert second.startswith("close(): 1 message was not delivered")


NOTHING = Failures(0, (), ())
SOME = Taken(Failures(1, (ValueError("why"),), ("t",)), NOTHING)


def test_what_nobody_waits_for_any_more_is_not_handed_over() -> None:
    handover = Handover()
    assert handover.take() is None
    assert not handover.give(SOME)


def test_what_is_handed_over_has_one_taker() -> None:
    """1b before 2a, and 2a between 1a and 1b: either the waiting call takes it or the other one."""
    handover = Handover()
    assert handover.give(SOME)
    assert handover.take() is SOME
    handover = Handover()
    handover._given.append(SOME)
    handover._waiting = False
    assert handover._pop() is SOME
    assert handover.take() is None


# A callback may send while close() waits


def test_a_callback_retries_while_the_block_waits() -> None:
    with ScriptedCluster(topics={"t": 1}) as cluster:
        cluster.next("produce", *[Refuse(ErrorCode.INVALID_RECORD)] * 3)

        def retry(error: BaseException | None, delivery: Delivery) -> None:
            if error is not None:
                producer.send("t", delivery.value, on_delivery=retry)

        with cluster.producer(linger_ms=60_000, **FAST) as producer:
            producer.send("t", b"value", on_delivery=retry)
        assert log(cluster) == [b"value"]


def test_a_block_of_a_callback_is_taken_too() -> None:
    with ScriptedCluster(topics={"t": 1}) as cluster:

        def more(error: BaseException | None, delivery: Delivery) -> None:
            producer.send_many("t", numbers(2), partitions=[0, 0])

        with cluster.producer(linger_ms=60_000, **FAST) as producer:
            producer.send("t", b"first", on_delivery=more)
        assert log(cluster) == [b"first", *numbers(2)]


def test_other_threads_may_not_send() -> None:
    outcomes: list[object] = []

    def report(error: BaseException | None, delivery: Delivery) -> None:
        outcomes.append(Call(lambda: producer.send("t", b"value")).outcome())

    with ScriptedCluster(topics={"t": 1}) as cluster:
        with cluster.producer(linger_ms=60_000, **FAST) as producer:
            producer.send("t", b"value", on_delivery=report)
        assert [type(outcome) for outcome in outcomes] == [ProducerClosedError]
        assert log(cluster) == [b"value"]


def test_a_callback_that_always_sends_does_not_hold_close_up() -> None:
    refused: list[BaseException] = []

    def again(error: BaseException | None, delivery: Delivery) -> None:
        try:
            producer.send("t", b"again", on_delivery=again)
        except ProducerClosedError as problem:
            refused.append(problem)

    with ScriptedCluster(topics={"t": 1}) as cluster:
        producer = cluster.producer(linger_ms=60_000, **FAST)
        producer.send("t", b"value", on_delivery=again)
        producer.close()
        assert len(refused) == 1
        # A flush also covers the next message if that is sent in time.
        assert len(log(cluster)) >= ROUNDS


def test_a_callback_that_always_sends_ends_with_closes_time(errors: Errors) -> None:
    """A callback that always sends again cannot extend close() beyond its timeout.

    1. The message expires.
    2. Its callback sends it once more.
    3. close() has no time left.
    """
    clock = FakeClock()
    seen: list[BaseException | None] = []

    def again(error: BaseException | None, delivery: Delivery) -> None:
        seen.append(error)
        producer.send("t", b"again", on_delivery=again)

    with ScriptedCluster(topics={"t": 1}) as cluster:
        producer = cluster.producer(clock=clock, delivery_timeout_ms=5_000)
        cluster.stop(0)
        producer.send("t", b"value", on_delivery=again, delivery_timeout_ms=1_000)
        closing = Call(producer.close)
        waits_for(clock, 2)
        clock.jump(1.1)
        waits_for(clock, 3.9)
        clock.jump(3.9)
        assert closing.outcome() is None
    assert [type(error).__name__ for error in seen] == ["DeliveryTimeoutError", "AbortedError"]
    assert "callbacks continued to send" in str(seen[1])
    # The callback raises because its send() is rejected.
    assert "exception in delivery callback" in errors.all(1)[0]


def test_abort_takes_nothing_of_a_callback() -> None:
    refused: list[BaseException] = []
    done = threading.Event()

    def retry(error: BaseException | None, delivery: Delivery) -> None:
        try:
            producer.send("t", b"value")
        except ProducerClosedError as problem:
            refused.append(problem)
        done.set()

    with ScriptedCluster(topics={"t": 1}) as cluster:
        producer = cluster.producer(linger_ms=60_000, **FAST)
        delivery = producer.send("t", b"value", on_delivery=retry)
        producer.abort()
        assert done.wait(SOON)
        assert outcome(delivery) is not None
    assert len(refused) == 1


# Producers that are garbage-collected


def test_many_forgotten_producers_warn_once(caplog: pytest.LogCaptureFixture) -> None:
    gc.collect()  # those that earlier tests have forgotten are closed in the background
    until(lambda: not any(producer._is_running() for producer in live_producers()))
    with ScriptedCluster(topics={"t": 1}) as cluster:
        producers = [cluster.producer() for _ in range(22)]
        for producer in producers[:19]:
            producer.connect()
        assert not caplog.records
        for producer in producers[19:]:
            producer.connect()
        for producer in producers:
            producer.close()
    (record,) = [each for each in caplog.records if each.levelno >= logging.WARNING]
    assert record.getMessage().startswith("20 producers are open in this process")


class Part:
    """One failure. There is no memory at the call number *refused* of first_error()."""

    topic = "t"

    def __init__(self, refused: int = 0) -> None:
        self.handles = 0  # it is its own holder, too
        self._calls_left = refused

    def unreported_failures(self) -> int:
        return 1

    def first_error(self) -> BaseException:
        self._calls_left -= 1
        if self._calls_left == 0:
            raise MemoryError
        return LookupError("failed")


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("refused", range(1, 6))
def test_a_failure_counts_once_without_memory(refused: int, is_open: bool) -> None:
    unreported, part = UnreportedFailures(FakeClock()), Part(refused)
    part.handles = int(is_open)
    unreported.remember(part, part)
    part.handles = 0
    for _ in range(3):
        other = Part()
        unreported.remember(other, other)
    logged = 0
    for _ in range(2):
        with contextlib.suppress(MemoryError):
            logged += unreported.line(PATIENCE).number
    taken = unreported.take()
    assert taken.failures.number == 4
    assert logged + taken.unlogged.number == 4
