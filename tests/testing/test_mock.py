"""``MockProducer``: the real producer up to the pipeline, and outcomes that the test decides."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import kafka.errors
import pytest

import pykaproducer
from pykaproducer import (
    AbortedError,
    CallbackThreadError,
    Delivery,
    DeliveryError,
    DeliveryFailures,
    DeliveryTimeoutError,
    FlushTimeoutError,
    OutcomeTimeoutError,
    Producer,
    ProducerClosedError,
    Status,
)
from pykaproducer._kernel import MURMUR2, partition_for
from pykaproducer.testing import MockProducer, SentRecord
from tests._support.threads import Call

#: How long another thread may take (seconds).
SOON = 30.0


def manual(**settings: Any) -> MockProducer:
    return MockProducer(auto_complete=False, **settings)


# History and delivery ----------------------------------------------------------------------------


def test_the_history_has_what_would_be_in_the_log() -> None:
    producer = MockProducer(partitions={"events": 4})
    headers = [("trace", b"1"), ("none", None)]
    producer.send("events", b"value", b"key", headers, 3, 1_700_000_000_000)
    producer.send("other", None, key=b"")
    first, second = producer.history()
    assert first == SentRecord("events", 3, b"key", b"value", tuple(headers), 1_700_000_000_000)
    assert (second.topic, second.partition, second.key, second.value) == ("other", 0, b"", None)
    assert second.headers == ()


def test_a_message_is_delivered_within_send() -> None:
    producer = MockProducer()
    delivery = producer.send("events", b"value", timestamp_ms=7)
    assert delivery.done()
    metadata = delivery.result(timeout=0)
    assert (metadata.topic, metadata.partition, metadata.offset) == ("events", 0, 0)
    assert (metadata.timestamp, metadata.serialized_value_size) == (7, 5)
    assert delivery.status is Status.PERSISTED
    assert delivery.exception() is None


def test_offsets_count_per_partition() -> None:
    producer = MockProducer(partitions=2)
    places = [("a", 0), ("a", 1), ("a", 0), ("b", 0), ("a", 1)]
    sent = [producer.send(topic, b"", partition=partition) for topic, partition in places]
    assert [delivery.offset for delivery in sent] == [0, 0, 1, 0, 1]


def test_it_starts_no_thread_and_needs_no_address() -> None:
    before = set(threading.enumerate())
    with MockProducer(bootstrap_servers="nowhere.invalid:1") as producer:
        producer.connect()
        producer.send("events", b"value")
        assert producer.bootstrap_connected()
        producer.flush()
        assert set(threading.enumerate()) == before
    assert not producer.bootstrap_connected()


def test_messages_of_a_large_history_stay_in_order() -> None:
    producer = MockProducer(partitions=3)
    for number in range(5_000):
        producer.send("events", b"%d" % number, key=b"%d" % (number % 7))
    assert [record.value for record in producer.history()] == [b"%d" % n for n in range(5_000)]


def test_keys_choose_the_partition_of_the_real_partitioner() -> None:
    producer = MockProducer(partitions={"events": 12})
    for number in range(50):
        producer.send("events", b"", key=b"key %d" % number)
    chosen = [record.partition for record in producer.history()]
    assert chosen == [partition_for(MURMUR2, b"key %d" % number, 12) for number in range(50)]


# Outcomes that the test decides ------------------------------------------------------------------


def test_messages_wait_for_complete_next() -> None:
    producer = manual()
    first, second = (producer.send("events", value) for value in (b"1", b"2"))
    assert (first.done(), second.done(), producer.pending) == (False, False, 2)
    assert len(producer.history()) == 2
    assert producer.complete_next()
    assert (first.done(), second.done(), producer.pending) == (True, False, 1)
    assert producer.complete_all() == 1
    assert second.offset == 1
    assert not producer.complete_next()
    assert producer.complete_all() == 0


def test_a_pending_handle_is_as_of_the_real_producer() -> None:
    producer = manual()
    delivery = producer.send("events", b"value")
    assert type(delivery) is Delivery
    assert (delivery.offset, delivery.error, delivery.value) == (None, None, b"value")
    assert delivery.status is Status.NOT_PERSISTED
    with pytest.raises(OutcomeTimeoutError):
        delivery.result(timeout=0.01)
    producer.complete_next()
    assert delivery.result(timeout=0).offset == 0


def failed(*error: Any, **how: Any) -> Delivery:
    """Return a message that has failed by ``fail_next()``."""
    producer = manual()
    delivery = producer.send("events", b"value", partition=0)
    assert producer.fail_next(*error, **how)
    return delivery


def test_fail_next_with_a_code_of_kafka() -> None:
    delivery = failed(29)
    with pytest.raises(kafka.errors.TopicAuthorizationFailedError) as caught:
        delivery.result()
    error = caught.value
    assert isinstance(error, pykaproducer.BrokerRejectedError)
    assert (error.code, error.topic, error.partition) == (29, "events", 0)
    assert error.status is Status.NOT_PERSISTED
    assert "grant this client Write" in str(error)
    assert delivery.value == b"value"


@pytest.mark.parametrize(
    "error", [17, kafka.errors.InvalidTopicError, kafka.errors.InvalidTopicError()]
)
def test_fail_next_with_an_error_of_kafka_python(error: Any) -> None:
    found = failed(error).exception()
    assert isinstance(found, pykaproducer.BrokerRejectedError)
    assert isinstance(found, kafka.errors.InvalidTopicError)
    assert (found.code, found.topic, found.retriable) == (17, "events", False)


def test_fail_next_with_no_error() -> None:
    with pytest.raises(ValueError, match="0 means that there is none"):
        manual().fail_next(0)
    with pytest.raises(
        ValueError, match=r"after DUPLICATE_SEQUENCE_NUMBER \(46\) a message counts"
    ):
        manual().fail_next(46)


def test_fail_next_with_a_delivery_error() -> None:
    error = DeliveryTimeoutError(topic="events", waited=120, status=Status.POSSIBLY_PERSISTED)
    delivery = failed(error)
    assert delivery.exception() == error
    assert delivery.status is Status.POSSIBLY_PERSISTED


def test_fail_next_with_any_other_exception_makes_it_the_cause() -> None:
    error = failed(OSError("no route"), status=Status.POSSIBLY_PERSISTED).exception()
    assert type(error) is DeliveryError
    assert isinstance(error.__cause__, OSError)
    assert error.status is Status.POSSIBLY_PERSISTED
    assert "OSError: no route" in str(error)


def test_fail_next_without_an_error_is_a_timeout() -> None:
    error = failed().exception()
    assert isinstance(error, DeliveryTimeoutError)
    assert "not delivered within 120 s: the test called fail_next()" in str(error)


def test_fail_next_with_a_wrong_status_or_a_class() -> None:
    wrong: Any = "x"
    with pytest.raises(TypeError, match=r"status must be a pykaproducer.Status, not 'x'"):
        manual().fail_next(29, status=wrong)
    with pytest.raises(TypeError, match=r"an instance: OSError\(\.\.\.\), not the class"):
        manual().fail_next(OSError)


def test_fail_next_without_a_pending_message() -> None:
    assert not manual().fail_next()


def test_with_auto_complete_the_next_message_fails() -> None:
    producer = MockProducer()
    assert producer.fail_next(10)
    bad, good = producer.send("events", b"1"), producer.send("events", b"2")
    assert isinstance(bad.exception(), kafka.errors.MessageSizeTooLargeError)
    assert good.result().offset == 0
    assert [record.value for record in producer.history()] == [b"1", b"2"]


@pytest.mark.parametrize("error", ["29", object(), True, KeyboardInterrupt()])
def test_fail_next_with_something_else(error: Any) -> None:
    with pytest.raises(TypeError, match="an error code of Kafka"):
        manual().fail_next(error)


def test_fail_next_with_two_statuses() -> None:
    error = DeliveryTimeoutError(topic="events", waited=1, status=Status.NOT_PERSISTED)
    with pytest.raises(TypeError, match="its own status"):
        manual().fail_next(error, status=Status.NOT_PERSISTED)


def test_a_pending_message_fails_at_its_deadline_while_a_thread_waits() -> None:
    producer = manual()
    late = producer.send("events", b"1", delivery_timeout_ms=1)
    other = producer.send("events", b"2")
    with pytest.raises(DeliveryTimeoutError, match="the test did not complete it"):
        late.result()
    assert producer.pending == 1
    producer.complete_next()
    assert other.offset == 0


def test_another_thread_waits_for_the_outcome() -> None:
    producer = manual()
    delivery = producer.send("events", b"value")
    waits = Call(lambda: delivery.result(SOON).offset)
    producer.complete_next()
    assert waits.outcome() == 0


def test_await() -> None:
    producer = manual()

    async def main() -> tuple[int, int]:
        delivery, block = producer.send("a", b"1"), producer.send_many("a", [b"2", b"3"])
        asyncio.get_running_loop().call_soon(producer.complete_all)
        return (await delivery).offset, (await block).rows

    assert asyncio.run(main()) == (0, 2)


def test_acks_0_has_no_offset() -> None:
    delivery = MockProducer(acks=0).send("events", b"value")
    assert delivery.offset == -1
    assert delivery.status is Status.POSSIBLY_PERSISTED


# Callbacks ---------------------------------------------------------------------------------------


def test_callbacks_run_in_the_thread_that_completes() -> None:
    producer = manual()
    seen: list[tuple[object, ...]] = []

    def report(error: DeliveryError | None, delivery: Delivery) -> None:
        seen.append((type(error), delivery.value, threading.current_thread()))

    producer.send("events", b"1", on_delivery=report)
    producer.send("events", b"2", on_delivery=report)
    assert not seen
    producer.complete_next()
    producer.fail_next()
    here = threading.current_thread()
    assert seen == [(type(None), b"1", here), (DeliveryTimeoutError, b"2", here)]
    producer.flush()  # the callback has told of the failure


def test_a_callback_may_send_and_must_not_wait() -> None:
    producer = manual()
    raised: list[BaseException] = []

    def report(error: DeliveryError | None, delivery: Delivery) -> None:
        again = producer.send("again", b"value")
        for call in (producer.flush, again.result, lambda: producer.partitions_for("events")):
            with pytest.raises(CallbackThreadError) as caught:
                call()
            raised.append(caught.value)

    producer.send("events", b"value", on_delivery=report)
    assert producer.complete_all() == 1
    assert len(raised) == 3
    assert producer.pending == 1


def test_a_callback_that_sends_each_time_does_not_nest() -> None:
    producer = MockProducer()
    depth: list[int] = []
    running = 0

    def report(error: DeliveryError | None, delivery: Delivery) -> None:
        nonlocal running
        running += 1
        depth.append(running)
        if len(depth) < 2_000:
            producer.send("events", b"value", on_delivery=report)
        running -= 1

    producer.send("events", b"value", on_delivery=report)
    assert depth == [1] * 2_000


def test_callbacks_run_one_at_a_time() -> None:
    producer = manual()
    entered, leave = threading.Event(), threading.Event()
    seen: list[object] = []

    def slow(error: DeliveryError | None, delivery: Delivery) -> None:
        entered.set()
        leave.wait(SOON)
        seen.append(("slow", threading.current_thread()))

    def fast(error: DeliveryError | None, delivery: Delivery) -> None:
        seen.append(("fast", threading.current_thread()))

    producer.send("events", b"1", on_delivery=slow)
    second = producer.send("events", b"2", on_delivery=fast)
    thread = threading.Thread(target=producer.complete_next)
    thread.start()
    assert entered.wait(SOON)
    assert producer.complete_next()
    assert second.done()  # but its callback waits for the other one
    assert not seen
    with pytest.raises(FlushTimeoutError):
        producer.flush(timeout=0.01)
    leave.set()
    producer.flush(timeout=SOON)
    assert seen == [("slow", thread), ("fast", thread)]
    thread.join(SOON)


def test_a_callback_that_raises_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    producer = MockProducer()

    def report(error: DeliveryError | None, delivery: Delivery) -> None:
        raise ZeroDivisionError

    assert producer.send("events", b"value", on_delivery=report).result().offset == 0
    assert "exception in delivery callback" in caplog.text


# flush(), close(), with --------------------------------------------------------------------------


def test_flush_delivers_what_is_pending() -> None:
    producer = manual()
    sent = [producer.send("events", b"") for _ in range(3)]
    producer.flush()
    assert [delivery.offset for delivery in sent] == [0, 1, 2]


def test_flush_raises_failures_that_nobody_has_read() -> None:
    producer = manual()
    kept = producer.send("events", b"")
    producer.fail_next()
    with pytest.raises(DeliveryFailures) as caught:
        producer.flush()
    assert caught.value.count == 1
    producer.flush()
    assert kept.failed()


def test_the_end_of_a_with_block_delivers_and_raises() -> None:
    producer = manual()
    producer.send("events", b"1")
    producer.fail_next()
    last = producer.send("events", b"2")
    with pytest.raises(DeliveryFailures), producer:
        pass
    assert last.result().offset == 0
    with pytest.raises(ProducerClosedError):
        producer.send("events", b"3")


@pytest.mark.parametrize("end", [Producer.abort, lambda producer: producer.close(0)])
def test_abort_fails_what_is_pending(end: Callable[[Producer], None]) -> None:
    producer = manual()
    delivery = producer.send("events", b"")
    end(producer)
    with pytest.raises(AbortedError, match="abort"):
        delivery.result()


def test_after_close_every_call_is_refused() -> None:
    producer = MockProducer()
    producer.close()
    producer.close()
    calls: list[Callable[[], object]] = [
        lambda: producer.send("events", b""),
        lambda: producer.send_many("events", [b""]),
        lambda: producer.partitions_for("events"),
        producer.connect,
    ]
    for call in calls:
        with pytest.raises(ProducerClosedError):
            call()
    assert producer.stats()["state"] == "closed"


def test_callbacks_may_send_while_close_waits() -> None:
    producer = manual()
    producer.send("events", b"1", on_delivery=lambda *_: producer.send("events", b"2"))
    producer.close()
    assert [record.value for record in producer.history()] == [b"1", b"2"]


def test_close_ends_although_callbacks_always_send() -> None:
    producer = manual()
    sent: list[Delivery] = []

    def report(error: DeliveryError | None, delivery: Delivery) -> None:
        try:
            sent.append(producer.send("events", b"", on_delivery=report))
        except ProducerClosedError:
            pass

    producer.send("events", b"", on_delivery=report)
    producer.close()
    assert isinstance(sent[-1].exception(0), AbortedError)


def test_a_callback_may_close() -> None:
    producer = manual()
    producer.send("events", b"1", on_delivery=lambda *_: producer.close())
    last = producer.send("events", b"2")
    producer.complete_next()
    assert last.result(0).offset == 1
    with pytest.raises(ProducerClosedError):
        producer.send("events", b"3")
