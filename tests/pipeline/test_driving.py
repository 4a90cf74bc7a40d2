"""A thread that sends writes its message itself, and the Bridge settles it."""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pykaproducer import (
    Delivery,
    DeliveryTimeoutError,
    OutcomeTimeoutError,
    Producer,
    Status,
)
from pykaproducer._kernel import Chunk
from pykaproducer._pipeline.bridge import Bridge, Connect
from pykaproducer._util import compression
from pykaproducer.testing import ScriptedCluster, scripted
from pykaproducer.testing.scripted import Drop, Hold, Mangle, Refuse, ScriptedNetwork, twice
from tests._support.callers import needs_callers
from tests._support.tls_cluster import tls_files, tls_network

from .helper import FAST, SOON, log, numbers, pipeline_of, running, send, until
from .test_callers import (
    BOTH,
    assert_only_the_parents,
    is_waiting,
    last_caller,
    waiting_caller,
    warm,
)

pytestmark = needs_callers


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> type[ScriptedNetwork]:
    return tls_network(*tls_files(tmp_path_factory.mktemp("tls")))


@pytest.fixture(params=["plain", "TLS"], autouse=True)
def connections(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whether the connections to the cluster are encrypted."""
    if request.param == "TLS":
        monkeypatch.setattr(scripted, "ScriptedNetwork", request.getfixturevalue("tls"))
    return str(request.param)


class Outcomes:
    """A callback that keeps the outcomes."""

    def __init__(self) -> None:
        self.found: list[tuple[Any, Delivery]] = []
        self.threads: set[str] = set()

    def __call__(self, error: Any, delivery: Delivery) -> None:
        self.threads.add(threading.current_thread().name)
        self.found.append((error, delivery))

    def wait(self, count: int) -> list[tuple[Any, Delivery]]:
        until(lambda: len(self.found) >= count)
        return self.found


def driven(producer: Producer, value: bytes, on_delivery: Any) -> None:
    """Send *value* until the sending thread has written one, and once more with *on_delivery*."""
    outcomes = Outcomes()
    for _ in range(1000):
        before = last_caller(producer)
        producer.send("t", value, on_delivery=outcomes)
        outcomes.wait(len(outcomes.found) + 1)
        if last_caller(producer) > before:
            break
    else:
        raise AssertionError("no thread has written its message")
    producer.send("t", value, on_delivery=on_delivery)


@BOTH
def test_a_callback_gets_the_outcome_in_the_reports_thread(idempotent: bool) -> None:
    with running(topics={"t": 1}, enable_idempotence=idempotent) as (cluster, p):
        count = warm(p)
        outcomes, before = Outcomes(), last_caller(p)
        for number, value in enumerate(numbers(200), 1):
            p.send("t", value, on_delivery=outcomes)
            outcomes.wait(number)
        assert last_caller(p) > before
        assert [error for error, _ in outcomes.found] == [None] * 200
        assert [d.offset for _, d in outcomes.found] == list(range(count, count + 200))
        assert all("reports" in name for name in outcomes.threads)
        assert log(cluster)[count:] == numbers(200)
        p.flush(SOON)
        assert p._budget.used == 0


@pytest.mark.parametrize("waits", [True, False])
def test_a_trace_shows_what_a_caller_did(waits: bool) -> None:
    with running(topics={"t": 1}) as (_, p):
        warm(p)
        outcomes = Outcomes()
        with p.traced() as trace:
            for number in range(1, 1000):
                delivery = p.send("t", b"value", on_delivery=outcomes)
                if waits:
                    delivery.result(SOON)
                outcomes.wait(number)
                p.flush(SOON)
                events = trace.events(delivery)
                if "dispatched" not in {event["event"] for event in events}:
                    break
        names = [event["event"] for event in events]
        assert names == ["accepted", "sealed", "sent", "answered", "settled", "reported"]
        assert events[2]["broker"] == 0
        assert events[3]["detail"] == f"offset {delivery.offset}"


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_a_large_message(codec: str, waits: bool) -> None:
    with running(topics={"t": 1}, compression_type=codec) as (cluster, p):
        count = warm(p)
        values = [b"%d" % number + os.urandom(100_000) for number in range(20)]
        outcomes = Outcomes()
        for number, value in enumerate(values, 1):
            delivery = p.send("t", value, on_delivery=outcomes)
            if waits:
                delivery.result(SOON)
            outcomes.wait(number)
        assert [error for error, _ in outcomes.found] == [None] * 20
        assert log(cluster)[count:] == values


def test_messages_that_are_sent_while_a_large_one_is_encoded() -> None:
    """They are appended to the chunk that the waiting thread encodes without the GIL."""
    values = [b"%d" % number for number in range(200)]
    with running() as (cluster, producer), ThreadPoolExecutor(1) as other:
        count = warm(producer)
        for turn in range(0, 200, 10):
            large = producer.send("t", bytes(500_000))
            small = other.submit(send, producer, values[turn : turn + 10])
            large.result(SOON)
            small.result(SOON)
        producer.flush(SOON)
        assert [value for value in log(cluster)[count:] if len(value) < 10] == values
        assert len(log(cluster)) == count + 220


def test_a_signal_handler_that_blocks_a_large_message_delays_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The handler runs in the codec, and waits for a message that is behind the large one."""
    compress, handlers = compression.Gzip.compress, []
    outcomes: list[Any] = []

    def interrupted(codec: Any, records: Any) -> Any:
        if handlers and threading.current_thread() is threading.main_thread():
            handlers.pop()()
        return compress(codec, records)

    monkeypatch.setattr(compression.Gzip, "compress", interrupted)
    with running(
        topics={"t": 1, "u": 1},
        compression_type="gzip",
        max_in_flight_requests_per_connection=1,
        delivery_timeout_ms=4000,  # less than after which the connection would be taken back
        request_timeout_ms=2000,
    ) as (cluster, producer):

        def handler() -> None:
            behind = producer.send("u", b"behind")
            hold.release()
            until(behind.done)
            outcomes.append(behind.result(0))

        while not outcomes:  # the Bridge may have encoded the large message before
            for topic in "tutu":
                warm(producer, topic=topic)
            hold = Hold()
            cluster.next("produce", hold)
            producer.send("u", b"in flight", on_delivery=lambda error, delivery: None)
            hold.wait_until_held()
            large = producer.send("t", os.urandom(100_000))
            handlers[:] = [handler]
            threading.Timer(0.01, hold.release).start()
            large.result(SOON)
            handlers.clear()


def test_a_waiting_caller_passes_an_earlier_message_to_reports() -> None:
    with running(topics={"t": 1, "u": 1}) as (_, p):
        for topic in "tutu":
            warm(p, topic=topic)
        outcomes = Outcomes()
        for number in range(1, 200):
            p.send("u", b"%d" % number, on_delivery=outcomes)
            p.send("t", b"it", on_delivery=outcomes).result(SOON)
            outcomes.wait(2 * number)
        assert [error for error, _ in outcomes.found] == [None] * 398
        assert all("reports" in name for name in outcomes.threads)
        p.flush(SOON)
        assert p._budget.used == 0


def test_messages_of_several_topics_linger() -> None:
    topics = [f"topic{number}" for number in range(5)]
    with running(topics=dict.fromkeys(topics, 1), linger_ms=2) as (cluster, p):
        for topic in topics * 2:
            p.send(topic, b"first").result(SOON)
        outcomes = Outcomes()
        for number in range(1, 200):
            for topic in topics:
                p.send(topic, b"%d" % number, on_delivery=outcomes)
            if number % 3:
                outcomes.wait(5 * number)
        outcomes.wait(5 * 199)
        for topic in topics:
            values = [record.value for record in cluster.log(topic)]
            assert values == [b"first"] * 2 + [b"%d" % number for number in range(1, 200)]


def test_lingering_messages_with_little_time_are_sent() -> None:
    with running(topics={"t": 1}, linger_ms=20, delivery_timeout_ms=190) as (_, p):
        outcomes = Outcomes()
        for number in range(1, 10):
            p.send("t", b"it", on_delivery=outcomes)
            outcomes.wait(number)
        # A slow machine may let one expire, but none is forgotten.
        assert len(outcomes.found) == 9


def test_messages_do_not_linger_while_the_buffer_is_full() -> None:
    settings = {"linger_ms": 60_000, "buffer_memory": 40_000, "max_request_size": 35_000}
    with running(topics={"t": 1}, **settings) as (cluster, p):
        for _ in range(5):
            p.send("t", b"first").result(SOON)
        for number in range(9):
            p.send("t", b"%d" % number * 30_000)  # waits for the room of the last one
        p.flush(SOON)
        assert len(log(cluster)) == 14


@BOTH
@pytest.mark.parametrize("partitions", [1, 3])
def test_a_burst_keeps_its_order(idempotent: bool, partitions: int) -> None:
    with running(topics={"t": partitions}, enable_idempotence=idempotent) as (cluster, p):
        for partition in range(partitions):
            warm(p, partition=partition)
        outcomes = Outcomes()
        for size in (1, 2, 5, 140, 3, 1) * 5:
            first = len(outcomes.found)
            for number in range(size):
                p.send(
                    "t",
                    b"%d" % (first + number),
                    partition=number % partitions,
                    on_delivery=outcomes,
                )
            outcomes.wait(first + size)
        assert [error for error, _ in outcomes.found if error] == []
        for partition in range(partitions):
            values = [int(v) for v in log(cluster, "t", partition) if v != b"warm"]
            assert values == sorted(set(values))
        assert p._budget.used == 0


def test_topics_take_turns_on_a_connection() -> None:
    names = [f"t{number}" for number in range(5)]
    with running(topics=dict.fromkeys(names, 1)) as (cluster, p):
        for name in names:
            warm(p, topic=name)
        outcomes = Outcomes()
        for number in range(200):
            p.send(names[number % 5], b"%d" % number, on_delivery=outcomes)
        outcomes.wait(200)
        for place, name in enumerate(names):
            values = [v for v in log(cluster, name) if v != b"warm"]
            assert values == [b"%d" % number for number in range(place, 200, 5)]


def test_an_error_reaches_the_callback() -> None:
    with running(topics={"t": 1}) as (cluster, p):
        warm(p)
        outcomes = Outcomes()
        cluster.next("produce", Refuse(10))
        p.send("t", b"it", on_delivery=outcomes)
        ((error, _),) = outcomes.wait(1)
        assert "MESSAGE_SIZE_TOO_LARGE" in str(error)
        assert p.send("t", b"after").result(SOON)


@BOTH
@pytest.mark.parametrize("appended", [False, True])
def test_a_lost_connection(idempotent: bool, appended: bool) -> None:
    with running(topics={"t": 1}, enable_idempotence=idempotent, **FAST) as (cluster, p):
        count = warm(p)
        outcomes = Outcomes()
        cluster.next("produce", Drop(appended=appended))
        p.send("t", b"it", on_delivery=outcomes)
        p.send("t", b"after", on_delivery=outcomes)
        outcomes.wait(2)
        assert [error for error, _ in outcomes.found] == [None, None]
        found = log(cluster)[count:]
        assert found[-1] == b"after"
        assert found == [b"it", b"after"] or not idempotent


def test_a_message_expires_while_no_thread_waits_for_it() -> None:
    with running(topics={"t": 1}, delivery_timeout_ms=500) as (cluster, p):
        warm(p)
        outcomes, hold = Outcomes(), Hold()
        cluster.next("produce", hold)
        p.send("t", b"it", on_delivery=outcomes)
        ((error, _),) = outcomes.wait(1)
        hold.release()
        assert isinstance(error, DeliveryTimeoutError)
        assert error.status is Status.POSSIBLY_PERSISTED


def test_a_flush_waits_for_the_callback() -> None:
    with running(topics={"t": 1}) as (_, p):
        warm(p)
        gate, flushed = threading.Event(), threading.Event()
        started = threading.Event()

        def slow(error: Any, delivery: Delivery) -> None:
            started.set()
            gate.wait(SOON)

        driven(p, b"it", slow)
        started.wait(SOON)
        thread = threading.Thread(target=lambda: (p.flush(SOON), flushed.set()))
        thread.start()
        assert not flushed.wait(0.05)
        gate.set()
        thread.join(SOON)
        assert flushed.is_set()


@pytest.mark.parametrize("connections", ["plain"], indirect=True)
def test_no_caller_settles_while_the_bridge_takes_the_connection_back() -> None:
    """A flush would miss it, or wait for it forever."""
    with running(topics={"t": 1}) as (cluster, p):
        warm(p)
        (broker,) = pipeline_of(p).brokers.all()
        hooks, before = broker.bridge._callers, len(log(cluster))
        with waiting_caller(cluster, p) as (hold, delivery, result):

            def track(chunk: Chunk) -> None:
                hooks.track(chunk)
                hold.release()
                until(lambda: len(log(cluster)) > before)
                assert not delivery.settled()

            until(lambda: is_waiting(p))
            broker.bridge._callers = hooks._replace(track=track)
            broker.bridge.put(Connect())
            result.result(SOON)
        until(lambda: not pipeline_of(p).incomplete.chunks())


@pytest.mark.parametrize("end", ["close", "abort"])
def test_the_producer_ends_with_a_request_in_flight(end: str) -> None:
    with ScriptedCluster(topics={"t": 1}) as cluster:
        p = cluster.producer()
        count = warm(p)
        outcomes, hold = Outcomes(), Hold()
        cluster.next("produce", hold)
        p.send("t", b"it", on_delivery=outcomes)
        hold.wait_until_held()
        if end == "abort":
            p.abort()
            hold.release()
        else:
            threading.Thread(target=hold.release).start()
            p.close(SOON)
        ((error, delivery),) = outcomes.found
        assert (error is None) == (end == "close")
        assert delivery.status is (
            Status.PERSISTED if end == "close" else Status.POSSIBLY_PERSISTED
        )
        assert log(cluster)[count:] in ([b"it"], [])


@pytest.mark.scripted
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_with_a_request_in_flight() -> None:
    with running(topics={"t": 1}) as (cluster, p):
        count = warm(p)
        hold = Hold()
        cluster.next("produce", hold)
        delivery = p.send("t", b"it")
        hold.wait_until_held()
        assert_only_the_parents(delivery)
        hold.release()
        assert delivery.result(SOON).offset == count
        assert log(cluster)[count:] == [b"it"]


def test_a_request_in_flight_is_in_the_stats() -> None:
    with running(topics={"t": 1}) as (cluster, p):
        warm(p)
        hold = Hold()
        cluster.next("produce", hold)
        delivery = p.send("t", b"it")
        hold.wait_until_held()
        assert sum(stage["rows"] for stage in p.stats()["stages"]) == 1
        hold.release()
        delivery.result(SOON)


def test_with_threads_of_their_own_send_leaves_the_message_to_the_stages() -> None:
    with running(topics={"t": 1}, stage_threads="own") as (_, p):
        warm(p)
        outcomes, before = Outcomes(), last_caller(p)
        for number in range(1, 50):
            p.send("t", b"it", on_delivery=outcomes)
            outcomes.wait(number)
        assert last_caller(p) == before


def held_driven(cluster: ScriptedCluster, producer: Producer, count: int) -> list[Hold]:
    """Hold the responses to the next *count* requests."""
    holds = [Hold() for _ in range(count)]
    for hold in holds:
        cluster.next("produce", hold)
    return holds


def in_flight(producer: Producer) -> int:
    """Return how many requests are in flight that sending threads have written."""
    brokers = pipeline_of(producer).brokers.all()
    return sum(len(broker.bridge.caller_link.requests) for broker in brokers)


@pytest.mark.parametrize("partitions", [1, 2])
def test_two_requests_are_in_flight_and_later_messages_follow_together(partitions: int) -> None:
    settings = {"max_in_flight_requests_per_connection": 2}
    with running(topics={"t": partitions}, **settings) as (cluster, p):
        for partition in [*range(partitions)] * 2:
            warm(p, partition=partition)
        outcomes = Outcomes()
        holds = held_driven(cluster, p, 2)
        before = len(cluster.received("produce"))
        for number in range(7):
            p.send("t", b"%d" % number, partition=number % partitions, on_delivery=outcomes)
            if number == 1:
                assert in_flight(p) == 2
        for hold in holds:
            hold.release()
        outcomes.wait(7)
        assert [error for error, _ in outcomes.found] == [None] * 7
        for partition in range(partitions):
            values = [v for v in log(cluster, "t", partition) if v != b"warm"]
            assert values == [b"%d" % number for number in range(partition, 7, partitions)]
        assert len(cluster.received("produce")) - before == 3
        until(lambda: not in_flight(p))
        assert p._budget.used == 0


def test_a_callback_is_called_although_the_next_response_is_malformed() -> None:
    with running(topics={"t": 1}, **FAST) as (cluster, p):
        warm(p)
        outcomes, hold = Outcomes(), Hold(Mangle(twice))
        driven(p, b"1", outcomes)
        outcomes.wait(1)
        warm(p)
        cluster.next("produce", hold)
        p.send("t", b"2", on_delivery=outcomes)
        hold.wait_until_held()
        delivery = p.send("t", b"3")
        hold.release()
        outcomes.wait(2)
        delivery.result(SOON)
        p.flush(SOON)


def test_an_answer_that_comes_twice() -> None:
    with running(topics={"t": 1}, **FAST) as (cluster, p):
        count = warm(p)
        outcomes = Outcomes()
        cluster.next("produce", Mangle(twice))
        for number, value in enumerate((b"it", b"after"), 1):
            p.send("t", value, on_delivery=outcomes)
            outcomes.wait(number)
        assert log(cluster)[count:] == [b"it", b"after"]


@BOTH
def test_the_second_request_keeps_its_place_if_the_first_is_refused(idempotent: bool) -> None:
    with running(topics={"t": 1}, enable_idempotence=idempotent, **FAST) as (cluster, p):
        count = warm(p)
        outcomes = Outcomes()
        cluster.next("produce", Refuse(6))
        for value in (b"1", b"2", b"3"):
            p.send("t", value, on_delivery=outcomes)
        outcomes.wait(3)
        assert [error for error, _ in outcomes.found] == [None] * 3
        assert log(cluster)[count:] == [b"1", b"2", b"3"]


def test_a_thread_that_waits_and_one_that_does_not() -> None:
    with running(topics={"t": 1}) as (cluster, p):
        count = warm(p)
        outcomes = Outcomes()
        for number in range(0, 200, 2):
            p.send("t", b"%d" % number, on_delivery=outcomes)
            assert p.send("t", b"%d" % (number + 1)).result(SOON).offset == count + number + 1
        outcomes.wait(100)
        assert log(cluster)[count:] == numbers(200)


def test_an_awaited_message() -> None:
    async def send(p: Producer) -> list[int]:
        return [(await p.send("t", value)).offset for value in numbers(50)]

    with running(topics={"t": 1}) as (cluster, p):
        count = warm(p)
        assert asyncio.run(send(p)) == list(range(count, count + 50))
        assert log(cluster)[count:] == numbers(50)


#: Longer than any test waits (ms).
LONG = 600_000
LINGERING: dict[str, Any] = {"linger_ms": LONG, "delivery_timeout_ms": 2 * LONG}


def test_a_thread_that_waits_alone_ends_lingering() -> None:
    with running(topics={"t": 1}, **LINGERING) as (cluster, p):
        for number in range(20):
            p.send("t", b"%d" % number)
            assert p.send("t", b"%d" % number).result(SOON).offset == 2 * number + 1
        assert len(cluster.batches("t")) == 20


def test_it_ends_lingering_of_a_message_that_the_stages_have() -> None:
    with running(topics={"t": 1}, **LINGERING) as (_, p):
        p.send("t", b"1").result(SOON)
        delivery = p.send("t", b"2")
        until(lambda: sum(stage["rows"] for stage in p.stats()["stages"]) == 1)
        assert delivery.result(SOON).offset == 1


def test_lingering_does_not_end_while_another_message_is_waited_for() -> None:
    with running(topics={"t": 1}, **LINGERING) as (cluster, p):
        p.send("t", b"1").result(SOON)
        hold = Hold()
        cluster.next("produce", hold)
        with ThreadPoolExecutor(2) as pool:
            held = pool.submit(lambda: p.send("t", b"2").result(SOON))
            hold.wait_until_held()
            delivery = p.send("t", b"3")
            # This thread waits all the time, so that the other one is never alone.
            lingering = pool.submit(delivery.result, SOON)
            with pytest.raises(OutcomeTimeoutError):
                delivery.result(0.05)
            assert len(cluster.received("produce")) == 2
            hold.release()
            held.result(SOON)
            p.flush(SOON)
            assert lingering.result(SOON).offset == 2


def test_messages_wait_for_the_stages_requests_and_are_then_sent_by_the_bridge() -> None:
    """Otherwise the stages would always have something in flight, and never lend."""
    with running(topics={"t": 1}) as (cluster, p):
        warm(p)
        (broker,) = pipeline_of(p).brokers.all()
        broker._callers.take_all_back()
        holds = held_driven(cluster, p, 2)
        p.send("t", b"1")
        holds[0].wait_until_held()
        p.send("t", b"2")
        until(lambda: broker.requests == 2)
        broker._callers._rest_at = 0.0
        before = last_caller(p)
        holds[0].release()
        until(lambda: broker.requests == 1)
        delivery = p.send("t", b"3")
        holds[1].release()
        delivery.result(SOON)
        assert last_caller(p) > before
        assert [v for v in log(cluster) if v != b"warm"] == [b"1", b"2", b"3"]


def test_messages_that_wait_for_a_lost_connection_have_their_outcome() -> None:
    with running(topics={"t": 1}, delivery_timeout_ms=2000, **FAST) as (cluster, p):
        warm(p)
        (broker,) = pipeline_of(p).brokers.all()
        broker._callers.take_all_back()
        first, second = Hold(), Hold(Drop())
        cluster.next("produce", first, second)
        p.send("t", b"1")
        first.wait_until_held()
        p.send("t", b"2")
        until(lambda: broker.requests == 2)
        broker._callers._rest_at = 0.0
        first.release()
        second.wait_until_held()
        delivery = p.send("t", b"3")
        second.release()
        assert delivery.result(SOON).offset >= 2


def test_messages_that_begin_to_wait_while_their_topic_is_announced() -> None:
    """The Bridge forgets what it announces.

    1. The Bridge announces messages, which cannot be sent now, and the dispatcher takes them.
    2. The stage of the broker lets further messages of their topic wait for the connection.
    3. Such a message is sent, and not announced.
    """
    with running(topics={"t": 1, "u": 1}, **FAST) as (cluster, p):
        warm(p)
        warm(p, topic="u")
        (broker,) = pipeline_of(p).brokers.all()
        slot = p.send("t", b"slot", partition=0).chunk.slot
        p.flush(SOON)
        (buffer,) = (each for each in broker._buffers.all() if each.topic == "t")
        hooks, second = broker.bridge._callers, []

        def rest() -> None:
            broker._callers._rest_at, broker._window.round_trip = 0.0, 10.0
            broker._callers._rest(buffer, slot, broker.clock.monotonic())

        def announce(announced: Any) -> Any:
            found = hooks.announce(announced)
            if announced is slot and not second:
                until(lambda: slot.is_empty)
                for step in (rest, lambda: second.append(p.send("t", b"2", partition=0))):
                    thread = threading.Thread(target=step)
                    thread.start()
                    thread.join()
            return found

        broker.bridge._callers = hooks._replace(announce=announce)
        hold = Hold()
        cluster.next("produce", hold)
        p.send_many("u", [b"stages"])
        hold.wait_until_held()
        rest()
        first = p.send("t", b"1", partition=0)
        broker.bridge.caller_link.end_rest()
        broker.bridge.wake()
        until(lambda: bool(second))
        hold.release()
        first.result(SOON)
        until(second[0].settled)


@pytest.mark.parametrize("way", ["result", "poll", "settled"])
def test_lingering_goes_on_after_a_wait(way: str) -> None:
    with running(topics={"t": 1}, **LINGERING) as (cluster, p):
        delivery = p.send("t", b"1")
        if way == "poll":
            with pytest.raises(OutcomeTimeoutError):
                delivery.result(0)
            p.flush(SOON)
        else:
            delivery.result(SOON)
            assert way == "result" or delivery.result(SOON)
        later = p.send("t", b"2")
        assert not p._budget.ends_lingering
        with pytest.raises(OutcomeTimeoutError):
            later.result(0)
        p.flush(SOON)
        assert len(cluster.received("produce")) == 2


def test_tasks_that_wait_do_not_end_lingering() -> None:
    async def send(p: Producer) -> None:
        task = asyncio.ensure_future(p.send("t", b"1"))
        await asyncio.sleep(0)
        assert not p._budget.ends_lingering
        await asyncio.to_thread(p.flush, SOON)
        await task

    with running(topics={"t": 1}, **LINGERING) as (_, p):
        asyncio.run(send(p))


def test_the_bridge_wakes_a_task_in_its_compiled_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []

    async def send(p: Producer) -> None:
        for value in numbers(100):
            await p.send("t", value)

    with running(topics={"t": 1}) as (_, p):
        warm(p)
        asyncio.run(send(p))
        take_back = Bridge.take_back
        monkeypatch.setattr(Bridge, "take_back", lambda self: (taken.append(1), take_back(self))[1])
        asyncio.run(send(p))
        assert len(taken) < 50


def test_a_response_wakes_an_event_loop_once() -> None:
    calls: list[Any] = []
    hold = Hold()

    async def send(p: Producer) -> None:
        loop = asyncio.get_running_loop()
        call = loop.call_soon_threadsafe
        loop.call_soon_threadsafe = lambda *args: (calls.append(args), call(*args))[1]  # type: ignore
        waiting = asyncio.gather(*(p.send("t", value) for value in numbers(50)))
        await asyncio.sleep(0)  # each message is awaited now
        hold.release()
        await waiting

    with running(topics={"t": 1}) as (cluster, p):
        warm(p)
        before = len(cluster.received("produce"))
        cluster.next("produce", hold)
        asyncio.run(send(p))
        assert 0 < len(calls) <= len(cluster.received("produce")) - before
