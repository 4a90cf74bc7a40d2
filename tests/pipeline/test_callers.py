"""A caller that waits for its message sends it itself. The outcomes are those of the stages."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from pykaproducer import (
    AbortedError,
    Delivery,
    DeliveryFailures,
    DeliveryTimeoutError,
    FlushTimeoutError,
    ForkedProducerError,
    OutcomeTimeoutError,
    Producer,
    RecordMetadata,
    Status,
)
from pykaproducer._kernel import limit_next_write, refuse_memory
from pykaproducer._pipeline.trace import Recorder
from pykaproducer._util import compression
from pykaproducer.testing import ScriptedCluster
from pykaproducer.testing.scripted import (
    Action,
    Disconnect,
    Drop,
    Exchange,
    Hold,
    Mangle,
    Omit,
    Refuse,
    cut_short,
    garbage,
    huge_length,
    negative_length,
    proceed,
    truncated,
    twice,
    wrong_correlation_id,
)
from tests._support.callers import needs_callers
from tests._support.pairs import partly
from tests._support.programs import run

from .helper import FAST, SOON, Amend, log, numbers, pipeline_of, running, until

pytestmark = needs_callers

BOTH = pytest.mark.parametrize("idempotent", [True, False], ids=["idempotent", "plain"])

#: Messages that are sent until a caller has sent one.
TRIES = 20_000


def last_caller(producer: Producer) -> float:
    """Return when a caller had a response last."""
    brokers = pipeline_of(producer).brokers.all()
    return max((broker.bridge.caller_link.used_at for broker in brokers), default=0.0)


def warm(producer: Producer, *, topic: str = "t", partition: int = 0) -> int:
    """Send until a caller sends; return the offset of the next message."""
    producer.send(topic, b"warm", partition=partition).result(SOON)
    found = sent_by_caller(producer, lambda: producer.send(topic, b"warm", partition=partition))
    return found.offset + 1


def sent_by_caller(producer: Producer, send: Callable[[], Delivery]) -> RecordMetadata:
    """Send and wait until a caller was faster than the stages; return its result."""
    for _ in range(TRIES):
        before = last_caller(producer)
        found = send().result(SOON)
        if last_caller(producer) > before:
            return found
    raise AssertionError("no caller has sent its message")


def is_waiting(producer: Producer) -> bool:
    """Return whether a thread waits for the response to its own request."""
    brokers = pipeline_of(producer).brokers.all()
    return any(broker.bridge.caller_link.has_reader for broker in brokers)


def hand_overs(producer: Producer) -> float:
    """Return a number that changes when a caller's request is handed over to the stages."""
    return sum(broker._callers._not_before for broker in pipeline_of(producer).brokers.all())


@contextmanager
def waiting_caller(
    cluster: ScriptedCluster, producer: Producer, then: Action = proceed, **timeout: float
) -> Iterator[tuple[Hold, Delivery, Future[Any]]]:
    """Have a thread wait for a message that the broker holds; yield the hold and the thread's."""
    hold = Hold(then)
    cluster.next("produce", hold)
    with ThreadPoolExecutor(1) as pool:
        made: Future[Delivery] = Future()

        def wait() -> Any:
            made.set_result(producer.send("t", b"held", partition=0))
            return made.result().result(timeout.get("timeout", SOON))

        future = pool.submit(wait)
        hold.wait_until_held()
        try:
            yield hold, made.result(SOON), future
        finally:
            hold.release()


def taken_over(producer: Producer) -> bool:
    """Return whether the stages know of the only message in flight."""
    return bool(pipeline_of(producer).incomplete.chunks())


ANSWERS: dict[str, Action] = {
    "not leader": Refuse(6),
    "unknown partition": Refuse(3),
    "not enough replicas": Refuse(19),
    "too large": Refuse(10),
    "not authorized": Refuse(29),
    "invalid record": Refuse(87),
    "stored, and an error": Refuse(7, appended=True),
    "garbage": Mangle(garbage),
    "truncated": Mangle(truncated),
    "cut short": Mangle(cut_short, disconnect=True),
    "another response": Mangle(wrong_correlation_id),
    "huge length": Mangle(huge_length),
    "negative length": Mangle(negative_length),
    "dropped": Drop(),
    "stored and dropped": Drop(appended=True),
    "without the partition": Omit("t", 0),
    "throttled": Amend(lambda answer: setattr(answer, "throttle_time_ms", 1)),
}


def outcome_of(
    action: Action, caplog: pytest.LogCaptureFixture, *, by_caller: bool, **settings: Any
) -> tuple[Any, ...]:
    """Return what a user sees of a message that is answered by *action*.

    A stage may be faster than the caller. If so, it is tried again.
    """
    for _ in range(100):
        found, sent_by_caller = one_outcome(action, caplog, by_caller=by_caller, **settings)
        if sent_by_caller == by_caller:
            return found
    raise AssertionError("no caller has sent its message")


def one_outcome(
    action: Action, caplog: pytest.LogCaptureFixture, *, by_caller: bool, **settings: Any
) -> tuple[tuple[Any, ...], bool]:
    caplog.clear()
    settings |= FAST
    if not by_caller:
        settings["partitioner"] = lambda key, everything, available: 0
    with ScriptedCluster(topics={"t": 1}) as cluster, cluster.producer(**settings) as p:
        count = warm(p) if by_caller else 1 + p.send("t", b"warm").result(SOON).offset
        cluster.next("produce", action)
        before = hand_overs(p)
        delivery = p.send("t", b"it")
        error = delivery.exception(SOON)
        sent_by_caller = hand_overs(p) != before
        found = log(cluster)
        assert found[:count] == [b"warm"] * count
        p.send("t", b"after").result(SOON)
        lines = {r.getMessage() for r in caplog.records if r.levelno >= logging.INFO}
        seen = (
            type(error),
            str(error),
            getattr(error, "status", None),
            delivery.offset is not None and delivery.offset - count,
            found[count:],
            log(cluster)[-1],
            # Callers count their requests separately.
            sorted(re.sub(r"when \d+ was due", "when another was due", line) for line in lines),
        )
        return seen, sent_by_caller


@pytest.mark.parametrize("name", ANSWERS)
@BOTH
def test_whatever_the_broker_answers_the_outcome_is_the_same(
    name: str, idempotent: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    settings: dict[str, Any] = {"enable_idempotence": idempotent, "retries": 3}
    by_caller = outcome_of(ANSWERS[name], caplog, by_caller=True, **settings)
    by_stages = outcome_of(ANSWERS[name], caplog, by_caller=False, **settings)
    assert by_caller == by_stages


@pytest.mark.parametrize("setting", ["batch_size", "batch_max_messages"])
def test_each_message_in_its_own_batch(setting: str) -> None:
    limit = {"batch_size": 0, "batch_max_messages": 1}[setting]
    with running(topics={"t": 1}, **{setting: limit}) as (cluster, p):
        count = warm(p)
        for each in [p.send("t", value) for value in numbers(20)]:
            each.result(SOON)
        assert log(cluster)[count:] == numbers(20)
        assert len(cluster.batches("t")) == count + 20


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
@BOTH
def test_every_codec(codec: str, idempotent: bool) -> None:
    settings = {"compression_type": codec, "enable_idempotence": idempotent}
    with running(topics={"t": 1}, **settings) as (cluster, p):
        count = warm(p)
        values = numbers(20)
        for value in values:
            sent_by_caller(p, lambda value=value: p.send("t", value))
        assert set(log(cluster)[count:]) == set(values)


def test_an_exception_of_a_signal_handler_in_a_codec_is_raised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is not taken for an error of the codec, and the message is sent."""

    class Interrupted(compression.Gzip):
        def compress(self, records: Any) -> bytes:
            if threading.current_thread() is threading.main_thread():
                signal.raise_signal(signal.SIGUSR1)
            return super().compress(records)

    def handler(*_: object) -> None:
        raise TimeoutError("too slow")

    def send_many(p: Producer) -> None:
        for _ in range(TRIES):
            p.send("t", b"v").result(SOON)

    monkeypatch.setattr(compression, "compressor", lambda kind, level: Interrupted())
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with running(topics={"t": 1}, compression_type="gzip") as (cluster, p):
            with pytest.raises(TimeoutError, match="too slow"):
                send_many(p)
            until(lambda: len(log(cluster)) == p.accepted)
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("version", [3, 5, 7, 8, 9, 11, 12])
def test_every_version_of_the_request(version: int) -> None:
    settings = {"client_id": "c"}
    with running(topics={"t": 2}, versions={"produce": (3, version)}, **settings) as (cluster, p):
        count = warm(p, partition=1)
        found = sent_by_caller(
            p, lambda: p.send("t", b"value", b"key", [("h", b"1")], 1, 1_700_000_000_000)
        )
        assert (found.topic, found.partition) == ("t", 1)
        assert found.offset == len(cluster.log("t", 1)) - 1 >= count
        record = cluster.log("t", 1)[-1]
        assert (record.key, record.value, record.timestamp) == (b"key", b"value", 1_700_000_000_000)
        assert list(record.headers) == [("h", b"1")]
        assert {r.version for r in cluster.received("produce")} == {version}
        assert {r.client_id for r in cluster.received("produce")} == {"c"}


@BOTH
def test_callers_and_stages_number_the_batches_together(idempotent: bool) -> None:
    with running(enable_idempotence=idempotent) as (cluster, p):
        count = warm(p)
        errors: list[Any] = []
        for number in range(20):
            delivery = p.send("t", b"%d" % number)
            if number % 5 == 4:
                p.send("t", b"and", on_delivery=lambda error, _: errors.append(error))
            delivery.result(SOON)
        p.flush(SOON)
        assert errors == [None] * 4
        values = [value for value in log(cluster)[count:] if value != b"and"]
        assert values == numbers(20)
        firsts = [batch.base_sequence for batch in cluster.batches("t")]
        assert firsts == sorted(set(firsts)) if idempotent else set(firsts) == {-1}


def test_an_answer_that_comes_twice() -> None:
    with ScriptedCluster(topics={"t": 1}) as cluster, cluster.producer(**FAST) as p:
        count = warm(p)
        cluster.next("produce", Mangle(twice))
        assert p.send("t", b"it").result(SOON).offset == count
        assert p.send("t", b"after").result(SOON).offset == count + 1
        assert log(cluster)[count:] == [b"it", b"after"]


def test_a_message_that_nobody_waits_for_is_sent_all_the_same() -> None:
    with ScriptedCluster(topics={"t": 1}) as cluster, cluster.producer() as p:
        for _ in range(20):
            count = warm(p)
            p.send("t", b"it")
            until(lambda: log(cluster)[count:] == [b"it"])  # noqa: B023


def flushed_by_caller(producer: Producer) -> bool:
    """Send a message and flush; return whether this thread has sent it."""
    before = last_caller(producer)
    delivery = producer.send("t", b"it")
    producer.flush(SOON)
    assert delivery.succeeded()
    return last_caller(producer) > before


def test_a_thread_that_flushes_sends_the_message_itself() -> None:
    with ScriptedCluster(topics={"t": 1}) as cluster, cluster.producer() as p:
        count = warm(p)
        tries = 1
        while not flushed_by_caller(p):
            tries += 1
            assert tries < TRIES
        assert log(cluster)[count:] == [b"it"] * tries
        assert p._budget.used == 0


def test_a_flush_reports_the_failure_of_a_message_that_it_has_sent() -> None:
    with ScriptedCluster(topics={"t": 1}) as cluster, cluster.producer() as p:
        warm(p)
        cluster.next("produce", Refuse(10))
        p.send("t", b"it")
        with pytest.raises(DeliveryFailures, match="MESSAGE_SIZE_TOO_LARGE"):
            p.flush(SOON)
        p.flush(SOON)


def test_a_flush_with_two_topics_and_with_none() -> None:
    with ScriptedCluster(topics={"t": 1, "u": 1}) as cluster, cluster.producer() as p:
        warm(p)
        warm(p, topic="u")
        p.flush(SOON)
        both = [p.send("t", b"it"), p.send("u", b"it")]
        p.flush(SOON)
        assert all(delivery.succeeded() for delivery in both)
        assert log(cluster, "t")[-1] == log(cluster, "u")[-1] == b"it"


@pytest.mark.parametrize("timeout", [1, 30, 10**30, 2.5, None, True], ids=str)
def test_any_timeout_that_a_wait_accepts(timeout: float | None) -> None:
    with ScriptedCluster(topics={"t": 1}) as cluster, cluster.producer() as p:
        for _ in range(5):
            p.send("t", b"it").result(timeout)
        assert log(cluster) == [b"it"] * 5


def test_a_response_in_pieces() -> None:
    def in_pieces(exchange: Exchange) -> None:
        framed = exchange.encoded(exchange.apply())
        for part in (framed[:2], framed[2:9], framed[9:-1], framed[-1:]):
            exchange.send(part)

    with ScriptedCluster(topics={"t": 1}) as cluster, cluster.producer() as p:
        count = warm(p)

        def send() -> Delivery:
            cluster.next("produce", in_pieces)
            return p.send("t", b"it")

        assert sent_by_caller(p, send).offset >= count


@BOTH
def test_half_a_response_before_the_request_is_handed_over(idempotent: bool) -> None:
    half, rest = threading.Event(), threading.Event()

    def in_halves(exchange: Exchange) -> None:
        framed = exchange.encoded(exchange.apply())
        exchange.send(framed[:20])
        half.set()
        assert rest.wait(SOON)
        exchange.send(framed[20:])

    with running(enable_idempotence=idempotent) as (cluster, p), ThreadPoolExecutor(1) as pool:
        count = warm(p)
        cluster.next("produce", in_halves)
        first = pool.submit(lambda: p.send("t", b"it").result(SOON))
        assert half.wait(SOON)
        second = p.send("t", b"next")
        until(lambda: taken_over(p))
        rest.set()
        assert first.result(SOON).offset == count
        assert second.result(SOON).offset == count + 1
        assert log(cluster)[count:] == [b"it", b"next"]


@BOTH
def test_later_messages_of_the_partition_follow_in_order(idempotent: bool) -> None:
    with running(enable_idempotence=idempotent) as (cluster, p):
        count = warm(p)
        with waiting_caller(cluster, p) as (hold, held, _):
            later = [p.send("t", value) for value in numbers(10)]
            until(lambda: taken_over(p))
            hold.release()
            assert held.result(SOON).offset == count
            assert [each.result(SOON).offset for each in later] == list(
                range(count + 1, count + 11)
            )
        assert log(cluster)[count:] == [b"held", *numbers(10)]
        until(lambda: p._budget.used == 0)


def test_another_partition_needs_the_connection() -> None:
    with ScriptedCluster(topics={"t": 2}) as cluster, cluster.producer() as p:
        warm(p)
        with waiting_caller(cluster, p) as (hold, held, _):
            other = p.send("t", b"other", partition=1)
            until(lambda: taken_over(p))
            hold.release()
            assert other.result(SOON).partition == 1
            held.result(SOON)
        assert log(cluster, partition=1) == [b"other"]


@pytest.mark.parametrize(
    "then", [proceed, Refuse(6), Drop(appended=True)], ids=["answers", "refuses", "drops"]
)
def test_a_flush_waits_for_the_message_of_a_caller(then: Action) -> None:
    with ScriptedCluster(topics={"t": 1}) as cluster, cluster.producer(**FAST) as p:
        count = warm(p)
        with waiting_caller(cluster, p, then) as (hold, held, _):
            with pytest.raises(FlushTimeoutError) as caught:
                p.flush(0.05)
            assert caught.value.pending == 1
            hold.release()
            p.flush(SOON)
            assert held.settled()
        assert log(cluster)[count:] == [b"held"]


def test_close_aborts_the_message_of_a_caller() -> None:
    with ScriptedCluster(topics={"t": 1}) as cluster, cluster.producer() as p:
        warm(p)
        with waiting_caller(cluster, p) as (_, held, future):
            p.close(0)
            with pytest.raises(AbortedError) as caught:
                future.result(SOON)
            assert caught.value.status is Status.POSSIBLY_PERSISTED
            assert held.failed()


def test_close_waits_for_the_message_of_a_caller() -> None:
    with ScriptedCluster(topics={"t": 1}) as cluster, cluster.producer() as p:
        count = warm(p)
        with waiting_caller(cluster, p) as (hold, _, future), ThreadPoolExecutor(1) as pool:
            closed = pool.submit(p.close)
            until(lambda: taken_over(p))
            hold.release()
            closed.result(SOON)
            assert future.result(SOON).offset == count


def test_a_caller_waits_no_longer_than_asked() -> None:
    with ScriptedCluster(topics={"t": 1}) as cluster, cluster.producer() as p:
        count = warm(p)
        with waiting_caller(cluster, p, timeout=0.3) as (hold, held, future):
            with pytest.raises(OutcomeTimeoutError):
                future.result(SOON)
            assert not held.settled()
            hold.release()
            assert held.result(SOON).offset == count


def test_the_stages_take_over_from_a_slow_broker() -> None:
    with ScriptedCluster(topics={"t": 1}) as cluster, cluster.producer() as p:
        count = warm(p)
        with waiting_caller(cluster, p) as (hold, _, future):
            until(lambda: taken_over(p))
            hold.release()
            assert future.result(SOON).offset == count
        assert log(cluster)[count:] == [b"held"]


@BOTH
def test_the_broker_goes_away(idempotent: bool) -> None:
    with running(enable_idempotence=idempotent, **FAST) as (cluster, p):
        count = warm(p)
        with waiting_caller(cluster, p) as (_, held, _):
            cluster.stop(0)
            until(lambda: taken_over(p))
            cluster.start(0)
            held.result(SOON)
        assert log(cluster)[count:] in ([b"held"], [b"held", b"held"] if not idempotent else [])


def test_an_idle_connection_that_the_broker_closes_is_replaced() -> None:
    with ScriptedCluster(topics={"t": 1}) as cluster, cluster.producer(**FAST) as p:
        count = warm(p)
        cluster.stop(0)
        cluster.start(0)
        assert p.send("t", b"it").result(SOON).offset == count
        assert log(cluster)[count:] == [b"it"]


@pytest.mark.parametrize("taken", [0, 1, 70, 300])
def test_a_socket_that_takes_only_a_part_of_the_request(taken: int) -> None:
    value = os.urandom(4_000)
    with ScriptedCluster(topics={"t": 1}) as cluster, cluster.producer() as p:
        for _ in range(TRIES):
            count = warm(p)
            before = hand_overs(p)
            limit_next_write(taken)
            assert p.send("t", value).result(SOON).offset == count
            assert [record.value for record in cluster.log("t")][count:] == [value]
            if hand_overs(p) != before:
                return
        raise AssertionError("no caller has sent its message")


# Signals and forks --------------------------------------------------------------------------------


@contextmanager
def signalled(number: int, handler: Callable[[int, Any], None] | None = None) -> Iterator[None]:
    before = signal.signal(number, signal.default_int_handler if handler is None else handler)
    try:
        yield
    finally:
        signal.signal(number, before)


def test_ctrl_c_ends_the_wait_and_not_the_message() -> None:
    with ScriptedCluster(topics={"t": 1}) as cluster, cluster.producer() as p:
        count = warm(p)
        hold = Hold()
        cluster.next("produce", hold)

        def interrupt() -> None:
            hold.wait_until_held()
            # The main thread waits as a caller, or for the stages.
            until(lambda: is_waiting(p) or delivery.chunk.has_waiters)
            os.kill(os.getpid(), signal.SIGINT)

        with signalled(signal.SIGINT):
            delivery = p.send("t", b"it")
            thread = threading.Thread(target=interrupt)
            thread.start()
            with pytest.raises(KeyboardInterrupt):
                delivery.result(SOON)
        thread.join(SOON)
        assert not delivery.settled()
        hold.release()
        assert delivery.result(SOON).offset == count
        assert log(cluster)[count:] == [b"it"]


@pytest.mark.parametrize("action", ["send", "flush", "close"])
def test_a_signal_handler_uses_the_producer_while_its_thread_waits(action: str) -> None:
    hold, called = Hold(), threading.Event()
    with ScriptedCluster(topics={"t": 1}) as cluster, cluster.producer() as p:
        count = warm(p)
        cluster.next("produce", hold)

        def handler(number: int, frame: Any) -> None:
            called.set()
            if action == "send":
                p.send("t", b"from the handler").result(SOON)
            elif action == "flush":
                p.flush(SOON)
            else:
                p.close(SOON)

        def interrupt() -> None:
            hold.wait_until_held()
            os.kill(os.getpid(), signal.SIGUSR1)
            called.wait(SOON)
            hold.release()

        thread = threading.Thread(target=interrupt)
        with signalled(signal.SIGUSR1, handler):
            delivery = p.send("t", b"it")
            thread.start()
            assert delivery.result(SOON).offset == count
            thread.join(SOON)
        expected = [b"it", b"from the handler"] if action == "send" else [b"it"]
        assert log(cluster)[count:] == expected


def assert_only_the_parents(delivery: Delivery) -> None:
    """Check that a forked child gets no outcome of *delivery*."""
    child = os.fork()
    if child == 0:
        try:
            delivery.result(0.1)
        except ForkedProducerError:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


@pytest.mark.scripted
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_while_a_caller_waits() -> None:
    with ScriptedCluster(topics={"t": 1}) as cluster, cluster.producer() as p:
        count = warm(p)
        with waiting_caller(cluster, p) as (hold, held, future):
            assert_only_the_parents(held)
            hold.release()
            assert future.result(SOON).offset == count
        p.send("t", b"after").result(SOON)
        assert log(cluster)[count:] == [b"held", b"after"]


@pytest.mark.scripted
@pytest.mark.parametrize("end", ["", "os._exit(0)", "sys.exit(0)"], ids=["end", "_exit", "exit"])
def test_the_interpreter_ends_while_a_caller_waits(end: str) -> None:
    script = f"""
        import os, sys, threading
        from pykaproducer.testing import ScriptedCluster
        from pykaproducer.testing.scripted import Hold
        cluster = ScriptedCluster(topics={{"t": 1}})
        producer = cluster.producer(delivery_timeout_ms=30_000)
        for _ in range(200):
            producer.send("t", b"warm").result(10)
        hold = Hold()
        cluster.next("produce", hold)
        wait = lambda: producer.send("t", b"held").result(10)
        threading.Thread(target=wait, daemon=True).start()
        hold.wait_until_held()
        threading.Timer(0.2, hold.release).start()
        print("ends", flush=True)
        {end}
    """
    assert run(script) == "ends\n"


# Several threads ----------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("partitions", [1, 3])
def test_threads_that_wait_and_threads_that_do_not(idempotent: bool, partitions: int) -> None:
    count, threads = 150, 4

    def waits(number: int) -> None:
        for i in range(count):
            p.send("t", b"%d %d" % (number, i), b"%d" % number).result(SOON)

    def does_not_wait(number: int) -> None:
        for i in range(count):
            p.send("t", b"%d %d" % (number, i), b"%d" % number)

    with (
        running(topics={"t": partitions}, enable_idempotence=idempotent) as (cluster, p),
        ThreadPoolExecutor(threads) as pool,
    ):
        work = [pool.submit(does_not_wait if n == 3 else waits, n) for n in range(threads)]
        for each in work:
            each.result(SOON * 4)
        p.flush(SOON)
        found = [log(cluster, partition=number) for number in range(partitions)]
        for number in range(threads):
            sent = [b"%d %d" % (number, i) for i in range(count)]
            ours = [[v for v in values if v is not None and v in set(sent)] for values in found]
            assert sorted(ours)[-1] == sent, "in order, each once"
        assert sum(map(len, found)) == threads * count
        assert p._budget.used == 0


def test_threads_with_a_partition_each_share_the_connection() -> None:
    def waits(number: int) -> None:
        for i in range(200):
            p.send("t", b"%d" % i, partition=number).result(SOON)

    with running(topics={"t": 3}) as (cluster, p), ThreadPoolExecutor(3) as pool:
        for each in [pool.submit(waits, number) for number in range(3)]:
            each.result(SOON * 4)
        for number in range(3):
            assert log(cluster, partition=number) == numbers(200)


# Python code that runs in between: finalizers, event loops --------------------------------------


class _Finalized:
    """Garbage in a cycle, whose finalizer calls a function."""

    def __init__(self, function: Callable[[], None]) -> None:
        self.function, self.itself = function, self

    def __del__(self) -> None:
        self.function()


@contextmanager
def collected_often() -> Iterator[None]:
    """Have garbage collected at each opportunity. Before Python 3.12 that is any allocation."""
    before = gc.get_threshold()
    gc.collect()
    gc.set_threshold(1)
    try:
        yield
    finally:
        gc.set_threshold(*before)


@pytest.mark.parametrize(
    "partition", partly([None, 2], [None]), ids=["any partition", "another partition"]
)
def test_a_finalizer_sends_while_the_caller_prepares_its_request(partition: int | None) -> None:
    with ScriptedCluster(topics={"t": 3}) as cluster, cluster.producer() as p:
        count = [warm(p, partition=number) for number in range(3)]
        later: list[Delivery] = []

        def send_more() -> None:
            later.extend(p.send("t", b"later", partition=partition) for _ in range(100))

        for _ in range(8):
            first = [p.send("t", b"first", partition=number) for number in range(2)]
            gc.disable()
            with collected_often():
                _Finalized(send_more)  # after collected_often(), which collects once itself
                kept = [[] for _ in range(1000)]  # type: ignore[var-annotated]
                gc.enable()
                first[1].result(SOON)
            del kept
        assert later
        p.flush(SOON)
        for delivery in later:
            found = delivery.result(SOON)
            assert partition is None or found.partition == partition
            assert cluster.log("t", found.partition)[found.offset].value == b"later"
        for number in range(2):
            assert log(cluster, partition=number)[count[number] :].count(b"first") == 8


def test_a_finalizer_sends_to_new_topics_while_a_flush_looks_for_callers() -> None:
    topics = {f"new{number}": 1 for number in range(200)}
    names = iter(topics)

    def send_to_another() -> None:
        if (name := next(names, None)) is not None:
            later.append(p.send(name, b"it"))
            _Finalized(send_to_another)

    later: list[Delivery] = []
    with ScriptedCluster(topics={"t": 1, **topics}) as cluster, cluster.producer() as p:
        warm(p)
        with collected_often():
            _Finalized(send_to_another)
            for _ in range(20):
                p.send("t", b"it")
                p.flush(SOON)
        assert later
        for delivery in later:
            delivery.result(SOON)


def test_every_thread_that_waits_for_a_row_of_the_caller_is_woken() -> None:
    """One waits in an event loop, whose wake-up is Python code that a signal may interrupt."""
    with running() as (_, p), ThreadPoolExecutor(2) as pool:
        for _ in range(TRIES):
            count = warm(p)
            before = last_caller(p)
            deliveries = [p.send("t", b"%d" % number) for number in range(3)]

            async def wait(delivery: Delivery) -> int:
                return (await delivery).offset

            in_loop = pool.submit(asyncio.run, wait(deliveries[0]))
            in_thread = pool.submit(deliveries[1].result, SOON)
            assert deliveries[2].result(SOON).offset == count + 2
            assert in_loop.result(SOON) == count
            assert in_thread.result(SOON).offset == count + 1
            if last_caller(p) > before:
                break
        else:
            raise AssertionError("no caller has sent its messages")
        until(lambda: p._budget.used == 0)


def test_a_released_waiter_that_raises_keeps_no_other_waiting() -> None:
    class Raises:
        tries = 0

        def release(self) -> None:
            if threading.current_thread() is threading.main_thread():
                self.tries += 1
                raise KeyboardInterrupt

    with ScriptedCluster(topics={"t": 1}) as cluster, cluster.producer() as p:
        for _ in range(TRIES):
            before = last_caller(p) if p.accepted else 0.0
            delivery, interrupted, lock = p.send("t", b"it"), Raises(), threading.Lock()
            lock.acquire()
            if not (delivery.watch(interrupted) and delivery.watch(lock)):
                continue
            try:
                delivery.result(SOON)
            except KeyboardInterrupt:
                assert interrupted.tries == 2, "the interrupt may have come before the effect"
                assert lock.acquire(timeout=SOON)
                assert last_caller(p) > before
                break
            finally:
                delivery.unwatch(interrupted)
        else:
            raise AssertionError("no caller has sent its message")
        p.send("t", b"after").result(SOON)
        until(lambda: p._budget.used == 0)


# Time ---------------------------------------------------------------------------------------------


def test_the_time_as_a_caller_is_a_part_of_the_timeout() -> None:
    """The rest of the wait is what is left, not the whole timeout again."""
    with ScriptedCluster(topics={"t": 1}) as cluster, cluster.producer() as p:
        warm(p)
        hold = Hold()
        cluster.next("produce", hold)
        clock = p._clock
        asked: list[float] = []
        acquire = clock.acquire

        def noted(lock: Any, deadline: float | None) -> bool:
            assert deadline is not None
            asked.append(deadline)
            return acquire(lock, deadline)

        delivery = p.send("t", b"it")
        start = clock.monotonic()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(clock, "acquire", noted)
            with pytest.raises(OutcomeTimeoutError, match=r"within 0\.3 s"):
                delivery.result(0.3)
        assert all(deadline < start + 0.45 for deadline in asked)
        hold.release()
        delivery.result(SOON)


def test_a_silent_broker_blocks_the_partition_no_longer_than_without_a_caller() -> None:
    with running(enable_idempotence=False) as (cluster, p):
        warm(p)
        hold = Hold()
        cluster.next("produce", hold)
        first = p.send("t", b"first", delivery_timeout_ms=1000)
        assert isinstance(first.exception(SOON), DeliveryTimeoutError)
        second = p.send("t", b"second", delivery_timeout_ms=15_000)
        second.result(SOON)
        hold.release()


@pytest.mark.parametrize("step", range(8))
def test_without_memory_a_message_is_sent_by_the_stages(step: int) -> None:
    with ScriptedCluster(topics={"t": 1}) as cluster, cluster.producer(**FAST) as p:
        count = warm(p)
        try:
            refuse_memory(step, 1)
            try:
                delivery = p.send("t", b"it")
            except MemoryError:
                delivery = p.send("t", b"it")
            found = delivery.result(SOON)
        finally:
            refuse_memory(0, 0)
        assert found.offset == count
        p.flush(SOON)
        assert p._budget.used == 0


def test_a_topic_that_only_callers_use_is_in_use() -> None:
    with ScriptedCluster(topics={"t": 1}) as cluster, cluster.producer() as p:
        warm(p)
        dispatcher = pipeline_of(p).dispatcher
        used = dispatcher._used["t"]
        before = last_caller(p)
        until(lambda: p.send("t", b"it").result(SOON) and last_caller(p) > before)
        # The last message of the stages was too long ago, and that of a caller was not.
        now = dispatcher._topics["t"].used_at + dispatcher._max_idle
        assert now > used + dispatcher._max_idle
        dispatcher._let_idle_rest(now - 1e-6)
        assert not dispatcher._resting


def test_a_flush_waits_for_a_request_that_is_handed_over() -> None:
    """1. a BrokerWorker takes the partition back; 2. a flush begins; 3. the Bridge adopts it."""
    with running() as (cluster, p):
        warm(p)
        hold = Hold()
        cluster.next("produce", hold)
        delivery = p.send("t", b"it")
        hold.wait_until_held()
        (broker,) = pipeline_of(p).brokers.all()
        with broker.bridge._running:
            with broker._running:
                broker._callers.take_all_back()
            with pytest.raises(FlushTimeoutError):
                p.flush(0.3)
        hold.release()
        p.flush(SOON)
        assert delivery.done()


# What is left to the stages -----------------------------------------------------------------------


def test_callbacks_run_in_the_reports_thread() -> None:
    threads: list[str] = []

    def called(*_: object) -> None:
        threads.append(threading.current_thread().name)

    with ScriptedCluster(topics={"t": 1}) as cluster, cluster.producer() as p:
        warm(p)
        p.send("t", b"1", on_delivery=called).result(SOON)
        delivery = p.send("t", b"2")
        delivery.add_done_callback(called)
        delivery.result(SOON)
        p.flush(SOON)
        assert len(threads) == 2
        assert all("reports" in name for name in threads)


def test_without_acknowledgements_the_stages_send() -> None:
    with ScriptedCluster(topics={"t": 1}) as cluster, cluster.producer(acks=0) as p:
        for value in numbers(20):
            p.send("t", value).result(SOON)
        assert not last_caller(p)
        until(lambda: log(cluster) == numbers(20))  # later than the outcome


def test_a_partitioner_in_python_is_called_by_the_stages() -> None:
    threads: set[str] = set()

    def last(key: bytes | None, everything: list[int], available: list[int]) -> int:
        threads.add(threading.current_thread().name)
        return everything[-1]

    with running(topics={"t": 3}, partitioner=last) as (cluster, p):
        for value in numbers(20):
            p.send("t", value).result(SOON)
        assert log(cluster, partition=2) == numbers(20)
        assert not last_caller(p)
        assert threading.current_thread().name not in threads


def test_a_callers_messages_are_counted_like_others() -> None:
    def totals(*, by_caller: bool) -> dict[str, Any]:
        with ScriptedCluster(topics={"t": 1}) as cluster, cluster.producer() as p:
            for _ in range(30):
                callback = None if by_caller else lambda error, delivery: None
                p.send("t", b"value", b"key", on_delivery=callback).result(SOON)
            p.flush(SOON)
            if by_caller and not last_caller(p):
                return totals(by_caller=True)  # the stages were faster each time
            metrics, topic = p._metrics, p._metrics.topics["t"]
            link = p._metrics.links[0]
            stats = {
                "delivery": metrics.delivery,
                "request": metrics.request,
                "queue": metrics.queue,
                "requests": metrics.requests,
                "largest": metrics.largest,
                "records": topic.records,
                "batches": topic.batches,
                "compression": topic.compression,
                "outgoing": link.outgoing,
                "incoming": link.incoming,
                "latency": link.latency,
                "throttle": link.throttle,
                "partition": metrics.partitions["t", 0],
            }
            times = {"delivery", "request", "queue", "latency"}
            return {
                name: (stat.count, None if name in times else stat.sum)
                for name, stat in stats.items()
            }

    assert totals(by_caller=True) == totals(by_caller=False)


def test_a_disconnect_before_the_request_is_read() -> None:
    def disconnect(exchange: Exchange) -> None:
        raise Disconnect

    with ScriptedCluster(topics={"t": 1}) as cluster, cluster.producer(**FAST) as p:
        count = warm(p)
        cluster.next("produce", disconnect, disconnect)
        assert p.send("t", b"it").result(SOON).offset == count
        assert log(cluster)[count:] == [b"it"]


def test_an_error_of_a_trace_as_a_response_is_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """For example of a Ctrl-C. Others that wait for the message wake up all the same."""
    confirmed, main = Recorder.confirmed, threading.current_thread()

    def interrupted(recorder: Recorder, *args: Any) -> None:
        if threading.current_thread() is main and len(others) == 1:
            raise KeyboardInterrupt
        confirmed(recorder, *args)

    settings = {"stage_threads": "shared", **FAST}
    with running(**settings) as (cluster, p), ThreadPoolExecutor(2) as pool:
        others: list[Future[RecordMetadata]] = []
        monkeypatch.setattr(Recorder, "confirmed", interrupted)
        warm(p)
        with p.traced():
            hold = Hold()
            cluster.next("produce", hold)
            delivery = p.send("t", b"held", partition=0)

            def wait_too() -> None:
                until(lambda: is_waiting(p))
                others.append(pool.submit(delivery.result))
                until(lambda: delivery.chunk.has_waiters)
                hold.release()

            released = pool.submit(wait_too)
            with pytest.raises(KeyboardInterrupt):
                delivery.result(SOON)
            released.result(SOON)
            assert others[0].result(SOON).topic == "t"
