"""The result of ``send()``: its outcome, every way to wait for it, and its attributes."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
import pickle
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kafka.errors import KafkaError, KafkaTimeoutError, TopicAuthorizationFailedError

from pykaproducer import (
    Delivery,
    DeliveryError,
    DeliveryTimeoutError,
    Producer,
    RecordMetadata,
    RetriesExhaustedError,
    Status,
    TopicPartition,
)
from pykaproducer._errors.codes import ErrorCode
from pykaproducer.testing import FakeClock, ScriptedCluster
from pykaproducer.testing.scripted import Exchange, Hold, Refuse
from tests._support.threads import Call

SOON = 30
NOW_MS = 1_700_000_000_000
TIMEOUT_MS = 120_000

REFUSED = Refuse(ErrorCode.TOPIC_AUTHORIZATION_FAILED)


class WatchedClock(FakeClock):
    """A clock that notifies when a thread has begun to wait for an outcome, and until when."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = threading.Event()
        self.until: float | None = None

    def acquire(self, lock: Any, deadline: float | None) -> bool:
        self.until = deadline
        self.waits.set()
        return super().acquire(lock, deadline)


class Desk:
    """A producer connected to a scripted cluster, on a clock that stands still."""

    def __init__(self, cluster: ScriptedCluster) -> None:
        self.cluster = cluster
        self.clock = WatchedClock()
        self.settings: dict[str, Any] = {}
        self._producer: Producer | None = None

    @property
    def producer(self) -> Producer:
        if self._producer is None:
            self._producer = self.cluster.producer(clock=self.clock, **self.settings)
        return self._producer

    def send(self, value: bytes | None = b"value", **how: Any) -> Delivery:
        return self.producer.send("events", value, **{"partition": 1, **how})

    def delivered(self, **how: Any) -> Delivery:
        """Return a delivered message whose callbacks have run."""
        delivery = self.send(**how)
        assert delivery.exception(SOON) is None
        self.producer.flush()
        return delivery

    def failed(self, code: int = ErrorCode.TOPIC_AUTHORIZATION_FAILED, **how: Any) -> Delivery:
        """Return a message that the broker has rejected; its callbacks have run."""
        self.cluster.next("produce", Refuse(code))
        delivery = self.send(**how)
        assert delivery.exception(SOON) is not None
        self.producer.flush()
        return delivery

    @contextlib.contextmanager
    def under_way(self, then: Any = None, **how: Any) -> Iterator[Delivery]:
        """Yield a message that a broker has received; it answers at the end of the block."""
        hold = Hold() if then is None else Hold(then)
        self.cluster.next("produce", hold)
        delivery = self.send(**how)
        hold.wait_until_held()
        try:
            yield delivery
        finally:
            hold.release()
            delivery.exception()

    def close(self) -> None:
        if self._producer is not None:
            self._producer.close(0)


@pytest.fixture
def desk() -> Iterator[Desk]:
    with ScriptedCluster(topics={"events": 3}) as cluster:
        made = Desk(cluster)
        yield made
        made.close()


# Attributes -------------------------------------------------------------------------------------


def test_a_message_that_waits_for_metadata(desk: Desk) -> None:
    hold = Hold()
    desk.cluster.next("metadata", hold)
    delivery = desk.send(partition=None, key=b"key")
    hold.wait_until_held()
    assert (delivery.done(), delivery.is_done) == (False, False)
    assert (delivery.succeeded(), delivery.failed(), delivery.error) == (False, False, None)
    assert (delivery.topic, delivery.partition, delivery.offset) == ("events", None, None)
    assert (delivery.timestamp, delivery.status) == (NOW_MS, Status.NOT_PERSISTED)
    assert (delivery.key, delivery.value) == (b"key", b"value")
    assert repr(delivery) == "<Delivery events pending>"
    hold.release()
    assert delivery.result(SOON).topic == "events"


def test_a_message_that_is_under_way(desk: Desk) -> None:
    with desk.under_way() as delivery:
        assert not delivery.done()
        assert (delivery.partition, delivery.offset) == (1, None)
        # A broker may have it; the outcome is ambiguous.
        assert delivery.status is Status.POSSIBLY_PERSISTED
        assert repr(delivery) == "<Delivery events[1] pending>"


def test_a_message_that_is_delivered(desk: Desk) -> None:
    desk.delivered()
    delivery = desk.delivered(key=b"key")
    assert (delivery.done(), delivery.is_done) == (True, True)
    assert (delivery.succeeded(), delivery.failed(), delivery.error) == (True, False, None)
    assert (delivery.topic, delivery.partition, delivery.offset) == ("events", 1, 1)
    assert (delivery.timestamp, delivery.status) == (NOW_MS, Status.PERSISTED)
    assert repr(delivery) == "<Delivery events[1] offset 1>"
    # Its payload is released.
    assert (delivery.key, delivery.value) == (None, None)
    assert (delivery.serialized_key_size, delivery.serialized_value_size) == (3, 5)


def test_a_message_that_has_failed(desk: Desk) -> None:
    delivery = desk.failed(key=b"key")
    assert (delivery.done(), delivery.is_done) == (True, True)
    assert (delivery.succeeded(), delivery.failed()) == (False, True)
    assert (delivery.partition, delivery.offset) == (1, None)
    error = delivery.error
    assert isinstance(error, TopicAuthorizationFailedError)
    assert isinstance(error, DeliveryError)
    assert (error.status, delivery.status) == (Status.NOT_PERSISTED, Status.NOT_PERSISTED)
    assert repr(delivery) == f"<Delivery events[1] failed: {error}>"
    # It can be sent again.
    assert (delivery.key, delivery.value) == (b"key", b"value")


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (ErrorCode.NOT_ENOUGH_REPLICAS, Status.NOT_PERSISTED),
        (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, Status.POSSIBLY_PERSISTED),
        (ErrorCode.REQUEST_TIMED_OUT, Status.POSSIBLY_PERSISTED),
    ],
)
def test_the_status_of_a_refused_message_says_whether_it_may_be_there(
    desk: Desk, code: int, status: Status
) -> None:
    desk.settings = {"retries": 0}
    delivery = desk.failed(code)
    assert isinstance(delivery.error, RetriesExhaustedError)
    assert (delivery.status, delivery.error.status) == (status, status)


def test_without_acks_nobody_has_confirmed_it(desk: Desk) -> None:
    desk.settings = {"acks": 0}
    delivery = desk.delivered()
    assert (delivery.offset, delivery.status) == (-1, Status.POSSIBLY_PERSISTED)
    assert delivery.succeeded()
    assert repr(delivery) == "<Delivery events[1] offset -1>"


def test_nothing_shows_the_payload(desk: Desk) -> None:
    secret = {"value": b"hunter2", "key": b"hunter2", "headers": [("h", b"hunter2")]}
    shown = [repr(desk.delivered(**secret)), repr(desk.failed(**secret))]
    with desk.under_way(**secret) as delivery:
        shown += [repr(delivery), str(delivery)]
    assert "hunter2" not in " ".join(shown)


def test_it_cannot_be_made_copied_or_pickled(desk: Desk) -> None:
    delivery = desk.delivered()
    for call in (Delivery, lambda: pickle.dumps(delivery), lambda: copy.copy(delivery)):
        with pytest.raises(TypeError, match=r"send\(\)|copied"):
            call()


# result(), exception(), get() -------------------------------------------------------------------


def test_the_metadata_of_a_delivered_message(desk: Desk) -> None:
    desk.delivered()
    delivery = desk.delivered(key=b"key", timestamp_ms=1234)
    metadata = delivery.result()
    expected = RecordMetadata(
        topic="events",
        partition=1,
        topic_partition=TopicPartition("events", 1),
        offset=1,
        timestamp=1234,
        checksum=None,
        serialized_key_size=3,
        serialized_value_size=5,
        serialized_header_size=-1,
    )
    assert metadata == expected
    assert delivery.result(0) == delivery.get() == delivery.get(timeout=0) == expected
    assert delivery.exception() is None


def test_sizes_of_what_is_not_there(desk: Desk) -> None:
    metadata = desk.delivered(value=None).result()
    assert (metadata.serialized_key_size, metadata.serialized_value_size) == (-1, -1)
    metadata = desk.delivered(value=b"", key=b"").result()
    assert (metadata.serialized_key_size, metadata.serialized_value_size) == (0, 0)


def test_the_brokers_timestamp_where_the_topic_says_so(desk: Desk) -> None:
    def log_append_time(exchange: Exchange) -> None:
        answer = exchange.apply()
        answer.responses[0].partition_responses[0].log_append_time_ms = 987_654
        exchange.answer(answer)

    desk.cluster.next("produce", log_append_time)
    delivery = desk.delivered(timestamp_ms=1234)
    assert (delivery.timestamp, delivery.result().timestamp) == (987_654, 987_654)


def raised(call: Callable[[], object]) -> BaseException:
    with pytest.raises(KafkaError) as caught:
        call()
    return caught.value


def test_the_error_of_a_failed_message_is_the_same_however_it_is_asked_for(desk: Desk) -> None:
    delivery = desk.failed()
    error = delivery.error
    assert error is not None
    found = [
        delivery.exception(),
        delivery.exception(0),
        raised(delivery.result),
        raised(delivery.get),
        raised(lambda: asyncio.run(_awaited(delivery))),
    ]
    assert found == [error] * 5
    assert {str(each.__cause__) for each in found if each is not None} == {str(error.__cause__)}


def test_an_error_that_is_raised_often_does_not_grow(desk: Desk) -> None:
    delivery = desk.failed()
    depths = [len(traceback.extract_tb(raised(delivery.result).__traceback__)) for _ in range(5)]
    assert len(set(depths)) == 1


@pytest.mark.parametrize("timeout", [0, -1, 0.0])
def test_without_time_it_does_not_wait(desk: Desk, timeout: float) -> None:
    with desk.under_way() as delivery:
        for wait in (delivery.result, delivery.exception):
            with pytest.raises(TimeoutError, match=r"topic 'events'.*still being sent"):
                wait(timeout)
        with pytest.raises(KafkaTimeoutError, match="no outcome"):
            delivery.get(timeout)
        assert not delivery.done()


@pytest.mark.parametrize(
    ("method", "error"),
    [("result", TimeoutError), ("exception", TimeoutError), ("get", KafkaTimeoutError)],
)
def test_a_wait_ends_at_its_timeout(desk: Desk, method: str, error: type[Exception]) -> None:
    with desk.under_way() as delivery:
        waiter = Call(lambda: getattr(delivery, method)(timeout=5))
        assert desk.clock.waits.wait(SOON)
        desk.clock.jump(5)
        assert isinstance(waiter.outcome(), error)
        assert not delivery.done()
    assert delivery.result().offset == 0


def test_a_wait_does_not_end_before_its_timeout(desk: Desk) -> None:
    began = desk.clock.monotonic()
    with desk.under_way() as delivery:
        waiter = Call(lambda: delivery.result(5))
        assert desk.clock.waits.wait(SOON)
        assert desk.clock.until == began + 5
        desk.clock.jump(4.999)
    assert waiter.outcome() == delivery.result()


def test_everybody_who_waits_is_told(desk: Desk) -> None:
    with desk.under_way() as delivery:
        waiters = [Call(delivery.result) for _ in range(3)]
        waiters += [Call(lambda: delivery.result(SOON)) for _ in range(3)]
    assert [waiter.outcome() for waiter in waiters] == [delivery.result()] * 6


def test_a_wait_for_a_message_that_expires(desk: Desk) -> None:
    with desk.under_way() as delivery:
        waiter = Call(delivery.result)
        desk.clock.jump(TIMEOUT_MS / 1000 + 1)
        error = waiter.outcome()
    assert isinstance(error, DeliveryTimeoutError)
    assert delivery.status is Status.POSSIBLY_PERSISTED
    assert delivery.error == error


# await ------------------------------------------------------------------------------------------


async def _awaited(delivery: Delivery) -> RecordMetadata:
    return await delivery


def test_await_what_has_its_outcome(desk: Desk) -> None:
    delivery = desk.delivered()
    assert asyncio.run(_awaited(delivery)) == delivery.result()


def test_await_does_not_block_the_loop(desk: Desk) -> None:
    hold = Hold()
    desk.cluster.next("produce", hold)

    async def main() -> None:
        delivery = desk.send()
        tasks = [asyncio.create_task(_awaited(delivery)) for _ in range(3)]
        await asyncio.sleep(0)
        assert not any(task.done() for task in tasks)
        hold.release()
        assert await asyncio.gather(*tasks) == [delivery.result()] * 3

    asyncio.run(main())


def test_await_raises_the_error(desk: Desk) -> None:
    desk.cluster.next("produce", REFUSED)

    async def main() -> None:
        with pytest.raises(TopicAuthorizationFailedError):
            await desk.send()

    asyncio.run(main())


@pytest.mark.parametrize(
    "raised", [RuntimeError, OSError, ReferenceError, MemoryError, asyncio.CancelledError]
)
@pytest.mark.parametrize("others", [0, 2])
def test_an_event_loop_that_raises_harms_its_own_tasks_only(
    desk: Desk, raised: type[BaseException], others: int
) -> None:
    class Loop(asyncio.SelectorEventLoop):
        refusals = 0

        def call_soon_threadsafe(self, *arguments: Any, **options: Any) -> Any:
            if self.refusals:
                self.refusals -= 1
                raise raised("the loop has ended")
            return super().call_soon_threadsafe(*arguments, **options)

    loop = Loop()
    with desk.under_way() as delivery:
        tasks = [loop.create_task(_awaited(delivery)) for _ in range(1 + others)]
        loop.run_until_complete(asyncio.sleep(0))
        loop.refusals = 3
    assert delivery.result(SOON)
    assert desk.delivered().succeeded()
    if raised is MemoryError:  # tried again: the tasks must not wait forever
        while loop.refusals:
            desk.clock.jump(0.1)
        assert loop.run_until_complete(asyncio.gather(*tasks)) == [delivery.result()] * len(tasks)
    for task in tasks:
        task.cancel()
    loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    loop.close()


@pytest.mark.parametrize("frozen_at", [10.0, 1_577_836_800.0], ids=["early", "late"])
@pytest.mark.parametrize("started", [True, False])
def test_a_frozen_module_time_stops_no_clock(
    monkeypatch: pytest.MonkeyPatch, frozen_at: float, started: bool
) -> None:
    """As freezegun and others do it in a user's tests."""
    with ScriptedCluster(topics={"t": 1}) as cluster, cluster.producer() as producer:
        if started:
            producer.send("t", b"before").result(SOON)
        for name in ("monotonic", "time", "perf_counter", "thread_time"):
            monkeypatch.setattr(time, name, lambda: frozen_at)
        delivery = producer.send("t", b"frozen")
        assert delivery.result(SOON).timestamp == cluster.log("t")[-1].timestamp
        hold = Hold()
        cluster.next("produce", hold)
        waits = producer.send("t", b"waits")
        with pytest.raises(KafkaTimeoutError):
            waits.result(0.01)
        hold.release()
        assert waits.result(SOON)
        monkeypatch.undo()


def test_an_await_that_is_cancelled_leaves_the_message_on_its_way(desk: Desk) -> None:
    with desk.under_way() as delivery:

        async def main() -> None:
            task = asyncio.create_task(_awaited(delivery))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(_awaited(delivery), 0)

        asyncio.run(main())
        assert not delivery.done()
    assert delivery.succeeded()


def test_an_await_that_is_cancelled_as_the_outcome_comes(desk: Desk) -> None:
    """The loop has been asked to wake it, and then it is cancelled."""
    complaints: list[object] = []
    hold = Hold()
    desk.cluster.next("produce", hold)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: complaints.append(context))
        delivery = desk.send()
        task = asyncio.create_task(_awaited(delivery))
        await asyncio.sleep(0)
        hold.release()
        desk.producer.flush()  # blocks the loop until the message is settled
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert delivery.succeeded()

    asyncio.run(main())
    assert complaints == []


def test_a_loop_that_is_closed_before_the_outcome_comes_harms_nothing(desk: Desk) -> None:
    with desk.under_way() as delivery:
        loop = asyncio.new_event_loop()
        awaiting = delivery.__await__()

        async def begin() -> None:
            next(awaiting)

        loop.run_until_complete(begin())
        loop.close()
        waiter = Call(delivery.result)
    assert waiter.outcome() == delivery.result()
    awaiting.close()


# Callbacks --------------------------------------------------------------------------------------


def in_thread(called: list[Any]) -> Callable[..., None]:
    """Return a callback that records its thread's name and its arguments."""
    return lambda *what, **more: called.append((threading.current_thread().name, *what, more))


def test_on_delivery_is_called_once_in_the_reports_thread(desk: Desk) -> None:
    called: list[Any] = []
    report = in_thread(called)
    good, bad = desk.delivered(on_delivery=report), desk.failed(on_delivery=report)
    name = f"{desk.producer.config.client_id}-reports"
    assert called == [(name, None, good, {}), (name, bad.error, bad, {})]
    assert [hash(given) for _, _, given, _ in called] == [hash(good), hash(bad)]
    assert good != bad
    assert good != "good"


def test_a_callback_can_read_key_and_value(desk: Desk) -> None:
    read: list[tuple[bytes | None, bytes | None]] = []
    desk.delivered(key=b"key", on_delivery=lambda error, it: read.append((it.key, it.value)))
    assert read == [(b"key", b"value")]


def test_add_done_callback_before_the_outcome(desk: Desk) -> None:
    called: list[Any] = []
    with desk.under_way() as delivery:
        for _ in range(2):
            delivery.add_done_callback(in_thread(called))
        assert called == []
    desk.producer.flush()
    assert called == [(f"{desk.producer.config.client_id}-reports", delivery, {})] * 2


@pytest.mark.parametrize("outcome", ["delivered", "failed"])
def test_add_done_callback_after_the_outcome_calls_at_once(desk: Desk, outcome: str) -> None:
    called: list[Any] = []
    delivery = getattr(desk, outcome)()
    delivery.add_done_callback(in_thread(called))
    assert called == [(threading.current_thread().name, delivery, {})]


def test_callbacks_as_in_kafka_python(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    """The outcome follows the positional arguments; keywords are passed on."""
    caplog.set_level(logging.ERROR, logger="pykaproducer")
    for outcome, before in [(d, b) for d in (True, False) for b in (True, False)]:
        good: list[Any] = []
        bad: list[Any] = []
        both: list[Any] = []

        def add(
            it: Delivery, good: list[Any] = good, bad: list[Any] = bad, both: list[Any] = both
        ) -> None:
            given = it.add_callback(lambda *a, **k: good.append((a, k)), 1, x=2)
            assert given is it  # so that calls can be chained
            assert it.add_errback(lambda *a, **k: bad.append((a, k)), 3, y=4) is it
            assert it.add_both(lambda *a, **k: both.append((a, k)), 5) is it

        with desk.under_way(None if outcome else REFUSED) as delivery:
            if before:
                add(delivery)
        desk.producer.flush()
        if not before:
            add(delivery)
        if outcome:
            metadata = delivery.result()
            assert (good, bad, both) == ([((1, metadata), {"x": 2})], [], [((5, metadata), {})])
        else:
            error = delivery.error
            assert (good, bad, both) == ([], [((3, error), {"y": 4})], [((5, error), {})])
    assert not [record for record in caplog.records if record.name == "pykaproducer.delivery"]


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_a_callback_that_raises_is_logged_and_harms_nobody(
    desk: Desk, caplog: pytest.LogCaptureFixture, before: bool
) -> None:
    called: list[str] = []

    def broken(*what: object) -> None:
        called.append("broken")
        raise LookupError("a bug of the user's")

    def add(delivery: Delivery) -> None:
        delivery.add_done_callback(broken)
        delivery.add_callback(broken)
        delivery.add_done_callback(lambda _: called.append("next"))

    caplog.set_level(logging.ERROR, logger="pykaproducer")
    with desk.under_way(on_delivery=broken if before else None) as delivery:
        if before:
            add(delivery)
    desk.producer.flush()
    if not before:
        add(delivery)
    assert called == ["broken"] * (3 if before else 2) + ["next"]
    assert delivery.succeeded()
    records = [record for record in caplog.records if record.name == "pykaproducer.delivery"]
    assert len(records) == called.count("broken")
    assert "broken" in records[0].getMessage()
    for record in records:
        assert record.exc_info is not None
        assert isinstance(record.exc_info[1], LookupError)
    assert desk.delivered().succeeded()


def test_an_outcome_that_was_read_or_reported_is_not_told_again_by_flush(desk: Desk) -> None:
    """``flush()`` raises for unreported failures only: these were all reported."""
    desk.failed()
    desk.failed(on_delivery=lambda error, delivery: None)
    desk.cluster.next("produce", REFUSED)
    desk.send().add_errback(lambda error: None)
    desk.producer.flush()


def test_a_handle_outlives_its_producer(desk: Desk) -> None:
    good, bad = desk.delivered(), desk.failed()
    desk.close()
    assert good.result(0).offset == 0
    assert isinstance(bad.exception(0), TopicAuthorizationFailedError)
    assert bad.value == b"value"
