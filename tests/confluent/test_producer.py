"""The drop-in for confluent-kafka's Producer: which callbacks run, when, and in which thread."""

from __future__ import annotations

import copy
import gc
import json
import logging
import os
import pickle
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pykaproducer._errors.codes import ErrorCode
from pykaproducer._kernel import ReportTo
from pykaproducer.confluent import (
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    KafkaError,
    KafkaException,
    Message,
    Producer,
)
from pykaproducer.confluent.errors import error_code_for
from pykaproducer.errors import DeliveryTimeoutError, Status
from pykaproducer.testing import KafkaCluster, ScriptedCluster
from pykaproducer.testing.scripted import Exchange, Hold, Refuse
from tests._support.callers import needs_callers
from tests._support.no_memory import call_without_memory, needs_hook

from .helper import SOON, Calls, on, poll_until


@pytest.fixture
def scripted() -> Iterator[ScriptedCluster]:
    with ScriptedCluster(topics={"t": 3}) as made:
        yield made


def test_callbacks_run_in_the_thread_that_polls(scripted: ScriptedCluster) -> None:
    threads: list[int] = []
    with on(scripted) as producer:
        producer.produce(
            "t", b"v", on_delivery=lambda _e, _m: threads.append(threading.get_ident())
        )
        assert producer._core is not None
        producer._core.flush(SOON)
        assert threads == []
        assert len(producer) == 1
        assert producer.poll(SOON) == 1
    assert threads == [threading.get_ident()]


@needs_callers
def test_each_message_that_is_flushed_is_reported_in_that_thread(
    scripted: ScriptedCluster,
) -> None:
    """The thread that flushes may also send the message, and receive the response."""
    found: list[tuple[int, bytes | None]] = []

    def reported(error: KafkaError | None, message: Message) -> None:
        assert error is None
        found.append((threading.get_ident(), message.value()))

    with on(scripted) as producer:
        for number in range(200):
            producer.produce("t", b"%d" % number, partition=number % 2, on_delivery=reported)
            assert producer.flush() == 0
            assert len(producer) == 0
            assert found[number:] == [(threading.get_ident(), b"%d" % number)]
        assert producer._core is not None
        assert producer._core._pipeline is not None
        (broker,) = producer._core._pipeline.brokers.all()
        assert broker.bridge.caller_link.used_at, "it was sent by another thread each time"


def test_a_failure_of_a_flushed_message_is_reported(scripted: ScriptedCluster) -> None:
    reports = Calls()
    with on(scripted) as producer:
        for _ in range(50):
            producer.produce("t", b"fine", partition=0, on_delivery=Calls())
            producer.flush()
        scripted.next("produce", Refuse(10))
        producer.produce("t", b"it", partition=0, on_delivery=reports)
        assert producer.flush() == 0
    ((error, message),) = reports
    assert error.code() == KafkaError.MSG_SIZE_TOO_LARGE
    assert message.value() == b"it"


def test_a_report_has_the_message(scripted: ScriptedCluster) -> None:
    reports = Calls()
    with on(scripted) as producer:
        producer.produce(
            "t", "gruß", "schlüssel", 2, reports, timestamp=1234, headers={"a": "b", "c": None}
        )
        assert producer.flush() == 0
    ((error, message),) = reports
    assert error is None
    assert isinstance(message, Message)
    assert (message.topic(), message.partition(), message.offset()) == ("t", 2, 0)
    assert (message.key(), message.value()) == ("schlüssel".encode(), "gruß".encode())
    assert message.timestamp() == (TIMESTAMP_CREATE_TIME, 1234)
    assert 0 < message.latency() < SOON
    assert message.error() is None
    assert message.headers() is None
    assert len(message) == 5
    (record,) = scripted.log("t", 2)
    assert record.headers == (("a", b"b"), ("c", None))
    assert record.timestamp == 1234


def test_a_report_says_if_the_timestamp_is_the_brokers(scripted: ScriptedCluster) -> None:
    def log_append_time(exchange: Exchange) -> None:
        answer = exchange.apply()
        answer.responses[0].partition_responses[0].log_append_time_ms = 987_654
        exchange.answer(answer)

    reports = Calls()
    with on(scripted) as producer:
        scripted.next("produce", log_append_time)
        producer.produce("t", b"value", partition=0, on_delivery=reports, timestamp=1234)
        assert producer.flush() == 0
    ((_, message),) = reports
    assert message.timestamp() == (TIMESTAMP_LOG_APPEND_TIME, 987_654)


def test_what_a_callback_raises_reaches_the_caller_and_the_others_wait(
    scripted: ScriptedCluster,
) -> None:
    def refuse(_error: object, message: Message) -> None:
        raise ValueError(message.value())

    with on(scripted) as producer:
        for value in (b"1", b"2"):
            producer.produce("t", value, partition=0, on_delivery=refuse)
        assert producer._core is not None
        producer._core.flush(SOON)
        for value in (b"1", b"2"):
            with pytest.raises(ValueError, match=repr(value)):
                producer.poll(SOON)
        assert producer.poll(0) == 0


def test_messages_without_callback_count_as_events_too(scripted: ScriptedCluster) -> None:
    with on(scripted) as producer:
        producer.produce("t", b"1")
        producer.produce("t", b"2")
        assert producer._core is not None
        producer._core.flush(SOON)
        assert len(producer) == 0
        assert producer.poll() == 2
        assert producer.poll(0) == 0


def test_the_callback_of_all_messages_and_reports_of_errors_only(
    scripted: ScriptedCluster,
) -> None:
    reports, own = Calls(), Calls()
    scripted.next("produce", Refuse(ErrorCode.INVALID_RECORD))
    settings = {"on_delivery": reports, "delivery__report__only__error": True}
    with on(scripted, **settings) as producer:
        producer.produce("t", b"refused")
        producer.flush()
        producer.produce("t", b"delivered")
        producer.flush()
        producer.produce("t", b"own", callback=own)
        producer.flush()
    ((error, message),) = reports
    assert error.code() == KafkaError.INVALID_RECORD
    assert message.value() == b"refused"
    assert message.error() is error
    assert own == []


def test_the_queue_is_full_until_outcomes_are_served(scripted: ScriptedCluster) -> None:
    with on(scripted, queue__buffering__max__messages=2) as producer:
        producer.produce("t", b"1", on_delivery=Calls())
        producer.produce("t", b"2", on_delivery=Calls())
        with pytest.raises(BufferError, match=r"Queue full.*queue\.buffering\.max\.messages"):
            producer.produce("t", b"3")
        assert producer._core is not None
        producer._core.flush(SOON)
        with pytest.raises(BufferError):
            producer.produce("t", b"3")
        assert producer.poll(SOON) == 2
        producer.produce("t", b"3")
        assert producer.flush() == 0


def test_bytes_are_bounded_as_well() -> None:
    with Producer({"queue.buffering.max.kbytes": 1, "message.timeout.ms": 60_000}) as producer:
        producer.produce("t", bytes(700))
        with pytest.raises(BufferError, match=r"queue\.buffering\.max\.kbytes"):
            producer.produce("t", bytes(700))
        producer.purge()


def test_a_batch_marks_what_was_not_accepted(scripted: ScriptedCluster) -> None:
    reports = Calls()
    messages: list[dict[str, Any]] = [
        {"value": b"1", "partition": 1, "headers": [("h", b"x")]},
        {"value": bytes(2_000_000)},
        {"value": "3", "key": "k", "callback": reports},
    ]
    with on(scripted) as producer:
        assert producer.produce_batch("t", messages, on_delivery=reports) == 2
        assert producer.flush() == 0
    assert [("_error" in message) for message in messages] == [False, True, False]
    assert messages[1]["_error"].code() == KafkaError.MSG_SIZE_TOO_LARGE
    assert sorted(message.value() for _, message in reports) == [b"1", b"3"]
    assert scripted.log("t", 1)[0].headers == (("h", b"x"),)


def test_a_message_that_times_out_says_why(refusing: str) -> None:
    reports = Calls()
    with Producer({"bootstrap.servers": refusing, "message.timeout.ms": 2_000}) as producer:
        producer.produce("t", b"v", on_delivery=reports)
        assert producer.flush() == 0
    ((error, message),) = reports
    assert error == KafkaError._MSG_TIMED_OUT
    assert error.str().startswith("Local: Message timed out")
    assert "connection refused" in error.str()
    assert isinstance(error.origin, DeliveryTimeoutError)
    assert error.origin.status is Status.NOT_PERSISTED
    assert message.offset() is None


def test_flush_returns_what_is_left_and_purge_fails_it(scripted: ScriptedCluster) -> None:
    reports = Calls()
    hold = Hold()
    scripted.next("metadata", hold)
    with on(scripted) as producer:
        producer.produce("t", b"v", on_delivery=reports)
        assert producer.flush(0.01) == 1
        producer.purge(in_queue=False)
        assert len(producer) == 1
        with pytest.raises(KafkaException, match="in_flight"):
            producer.purge(in_flight=False)
        producer.purge()
        hold.release()
        assert producer.flush(SOON) == 0
        ((error, _),) = reports
        assert error.code() == KafkaError._PURGE_QUEUE
        producer.produce("t", b"after", on_delivery=reports)
        assert producer.flush(SOON) == 0
    assert reports[1][0] is None


def test_what_was_sent_is_purged_as_in_flight(scripted: ScriptedCluster) -> None:
    reports = Calls()
    hold = Hold()
    scripted.next("produce", hold)
    with on(scripted) as producer:
        producer.produce("t", b"v", on_delivery=reports)
        scripted.wait_for("produce", 1)
        producer.purge()
        hold.release()
        producer.flush(SOON)
    assert reports[0][0].code() == KafkaError._PURGE_INFLIGHT


def test_errors_are_told_to_error_cb_and_the_logger(
    refusing: str, caplog: pytest.LogCaptureFixture
) -> None:
    errors = Calls()
    caplog.set_level(logging.DEBUG, "app")
    settings = {"bootstrap.servers": refusing, "error_cb": errors, "debug": "broker"}
    with Producer(settings, logger=logging.getLogger("app")) as producer:
        poll_until(producer, lambda: len(errors) >= 2)
        producer.poll(0)
    assert [error.code() for error in errors] == [
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
    ]
    assert "connection refused" in errors[0].str()
    told = [record for record in caplog.records if record.name == "app"]
    assert told[0].getMessage().startswith("INIT [rdkafka]")
    assert "connection refused" in told[1].getMessage()


@pytest.mark.parametrize(
    "reason", ["the host name has no address", "the host name 'b' cannot be resolved: unknown"]
)
def test_a_failed_lookup_has_librdkafkas_code(reason: str) -> None:
    assert error_code_for(f"no connection to b:9092: {reason}") == KafkaError._RESOLVE


def test_a_missing_token_is_told_to_error_cb(refusing: str) -> None:
    errors = Calls()
    settings = {
        "bootstrap.servers": refusing,
        "error_cb": errors,
        "security.protocol": "sasl_plaintext",
        "sasl.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.token.endpoint.url": f"http://{refusing}/token",
        "sasl.oauthbearer.client.id": "me",
        "sasl.oauthbearer.client.secret": "secret",
    }
    with Producer(settings) as producer:
        poll_until(producer, lambda: errors)
    assert errors[0].code() == KafkaError._AUTHENTICATION
    assert f"no token from http://{refusing}/token: " in errors[0].str()


def test_statistics_have_librdkafkas_names(scripted: ScriptedCluster) -> None:
    told = Calls()
    settings = {"stats_cb": told, "statistics__interval__ms": 1, "client__id": "me"}
    with on(scripted, **settings) as producer:
        producer.produce("t", b"v", partition=1)
        producer.flush()
        told.clear()
        poll_until(producer, lambda: told)
    found = json.loads(told[-1])
    assert (found["name"], found["type"]) == ("me", "producer")
    assert (found["txmsgs"], found["msg_cnt"], found["msg_max"]) == (1, 0, 100_000)
    assert found["topics"]["t"]["partitions"]["1"]["txmsgs"] == 1
    assert [broker["state"] for broker in found["brokers"].values()] == ["UP"]


def test_a_producer_that_is_dropped_delivers_what_it_has(scripted: ScriptedCluster) -> None:
    producer = on(scripted)
    producer.produce("t", b"v", partition=0)
    del producer
    gc.collect()
    scripted.wait_for("produce", 1)
    for thread in threading.enumerate():
        if thread.name.endswith("-farewell") and thread.ident is not None:
            thread.join(SOON)


def test_a_forked_child_begins_empty(refusing: str) -> None:
    with Producer({"bootstrap.servers": refusing, "message.timeout.ms": 20}) as producer:
        producer.produce("t", b"v", on_delivery=Calls())
        child = os.fork()
        if child == 0:
            fine = len(producer) == 0 and producer.poll(0) == 0
            producer.produce("t", b"v", on_delivery=Calls())
            os._exit(0 if fine and producer.flush(SOON) == 0 else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert producer.flush() == 0


@pytest.mark.parametrize(("value", "key"), [(1, None), (None, 1)])
def test_a_wrong_type_is_not_told_of_settings_that_are_not_here(value: Any, key: Any) -> None:
    with Producer({}) as producer, pytest.raises(TypeError, match=r"not int$"):
        producer.produce("t", value, key)


def test_it_cannot_be_pickled() -> None:
    with Producer({}) as producer, pytest.raises(TypeError, match="cannot pickle"):
        pickle.dumps(producer)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))])
def test_errors_can_be_copied(copied: Callable[[Any], Any]) -> None:
    error = KafkaError(KafkaError._MSG_TIMED_OUT, "why", fatal=True)
    error.origin = DeliveryTimeoutError(topic="t", waited=1, status=Status.NOT_PERSISTED)
    for made in (copied(error), copied(KafkaException(error)).args[0]):
        assert (made, made.str(), made.fatal()) == (error, "why", True)
        assert type(made.origin) is DeliveryTimeoutError
        assert made.origin.status is Status.NOT_PERSISTED


# On real Kafka


def test_on_real_kafka(cluster: KafkaCluster, topic: str) -> None:
    cluster.create_topic(topic, partitions=3)
    reports = Calls()
    settings = {"bootstrap.servers": cluster.bootstrap_servers, "compression.type": "gzip"}
    with Producer(settings) as producer:
        for number in range(100):
            producer.produce(topic, f"{number}", partition=number % 3, on_delivery=reports)
        assert producer.flush(SOON) == 0
        found = producer.list_topics(timeout=SOON)
        assert producer.cluster_id(timeout=SOON) == found.cluster_id
    assert len(reports) == 100
    assert not any(error for error, _ in reports)
    for place in range(3):
        offsets = [message.offset() for _, message in reports if message.partition() == place]
        assert offsets == list(range(len(offsets)))
    assert {partition.leader for partition in found.topics[topic].partitions.values()} == {0}
    assert found.topics[topic].partitions[2].replicas == [0]
    assert list(found.brokers) == [found.controller_id] == [found.orig_broker_id]


def test_nobody_tells_of_topics(refusing: str) -> None:
    producer = Producer({"bootstrap.servers": refusing})
    with pytest.raises(KafkaException, match="connection refused") as raised:
        producer.list_topics(timeout=0.05)
    assert raised.value.args[0].code() == KafkaError._TRANSPORT


def test_that_all_brokers_are_down_is_told_when_the_last_one_goes() -> None:
    errors = Calls()
    producer = Producer({"bootstrap.servers": "127.0.0.1:1", "error_cb": errors})
    for down in ({1}, {1, 2, 3}, {1, 2, 3}, {1}, {1, 2, 3}):
        brokers = [{"id": i, "last_error": "lost" if i in down else None} for i in (1, 2, 3)]
        producer._watch._look_for_errors({"brokers": brokers, "cluster_error": None})
    producer._events.serve()
    codes = [error.code() for error in errors]
    assert codes.count(KafkaError._ALL_BROKERS_DOWN) == 2
    assert codes[3] == KafkaError._ALL_BROKERS_DOWN


@pytest.mark.parametrize("place", ["another thread", "a signal handler"])
def test_a_change_is_reported_once_although_two_look_for_it(
    scripted: ScriptedCluster, place: str
) -> None:
    """Both see the change before either has noted that it is reported."""
    errors = Calls()
    producer = on(scripted, error_cb=errors)
    watch, report = producer._watch, producer._watch._report
    others: list[threading.Thread] = []

    def poll_in_between(code: int, reason: str) -> None:
        if not others:
            others.append(threading.Thread(target=producer.poll, args=(0,)))
            watch._errors_due = 0.0
            if place == "another thread":
                others[0].start()
                others[0].join(0.2)
            else:
                producer.poll(0)
        report(code, reason)

    class Core:
        """A producer below that has lost a broker."""

        def stats(self) -> dict[str, Any]:
            brokers = [{"id": 1, "last_error": "connection lost"}, {"id": 2, "last_error": None}]
            return {
                "state": "running",
                "brokers": brokers,
                "cluster_error": None,
                "requests": {"throttle_ms": 0},
            }

    watch._report = poll_in_between  # type: ignore[method-assign]
    watch._core = Core()  # type: ignore[assignment]
    watch._errors_due = 0.0
    producer.poll(0)
    if place == "another thread":
        others[0].join(SOON)
    producer.poll(0)
    assert [error.str() for error in errors] == ["Local: Broker transport failure: connection lost"]
    producer.close()


def test_a_callback_that_forks_leaves_the_others_to_the_parent(scripted: ScriptedCluster) -> None:
    served: list[str] = []
    pids: list[int] = []

    def fork(_error: Any, _message: Any) -> None:
        pids.append(os.fork())

    producer = on(scripted)
    producer.produce("t", b"1", partition=0, on_delivery=fork)
    producer.produce("t", b"2", partition=0, on_delivery=lambda _e, _m: served.append("parent's"))
    assert producer._core is not None
    producer._core.flush(SOON)
    try:
        count = producer.poll(0)
    finally:
        if pids == [0]:
            os._exit(len(served))
    assert count == 2
    assert os.waitstatus_to_exitcode(os.waitpid(pids[0], 0)[1]) == 0
    assert served == ["parent's"]
    producer.close()


def test_what_finishes_while_room_is_counted_is_counted(scripted: ScriptedCluster) -> None:
    class Late:
        """A queue to which a message is added just after its length was read."""

        came = False

        @property
        def count(self) -> int:
            found = queue.count
            if not self.came:
                self.came = True
                ReportTo(producer._outcomes, Calls())(None, delivery)
            return found

    producer = on(scripted, queue__buffering__max__messages=1)
    assert producer._core is not None
    delivery = producer._core.send("t", b"v")
    delivery.result(SOON)
    queue = producer._events.queue
    producer._events.queue = Late()  # type: ignore[assignment]
    producer._sure = 0
    with pytest.raises(BufferError):
        producer.produce("t", b"more")
    producer._events.queue = queue
    producer.close()


def test_threads_that_poll_at_once_count_each_message_once(scripted: ScriptedCluster) -> None:
    counts: list[int] = []

    class Channel:
        """A channel that another thread polls between two reads of one thread."""

        _settled = 5

        def take_failures(self) -> tuple[int, None]:
            return 0, None

        @property
        def settled(self) -> int:
            found = self._settled
            if found == 5:
                self._settled = 10
                other = threading.Thread(target=lambda: counts.append(producer._serve()))
                others.append(other)
                other.start()
                other.join(0.2)
            return found

    others: list[threading.Thread] = []
    producer = on(scripted)
    real, producer._outcomes = producer._outcomes, Channel()  # type: ignore[assignment]
    counts.append(producer._serve())
    others[0].join(SOON)
    producer._outcomes = real
    producer._counted = 0
    assert sorted(counts) == [5, 5]
    producer.close()


def test_a_dropped_producer_with_unserved_reports_is_collected(scripted: ScriptedCluster) -> None:
    """Also if the callback refers to the producer, and the report to itself."""

    class Program:
        def __init__(self) -> None:
            self.producer = on(scripted)

        def on_delivery(self, _error: object, _message: Message) -> None:
            raise AssertionError("poll() was not called")

    program = Program()
    gone = weakref.ref(program)
    for value in (b"1", b"2"):
        program.producer.produce("t", value, on_delivery=program.on_delivery)
    core = program.producer._core
    assert core is not None
    core.flush(SOON)
    del program, core
    gc.collect()
    assert gone() is None


def test_a_report_with_a_cycle_is_collected(scripted: ScriptedCluster) -> None:
    class Value:
        message: Message

    producer = on(scripted)
    reports = Calls()
    producer.produce("t", b"1", on_delivery=reports)
    producer.flush(SOON)
    ((_error, message),) = reports
    value = Value()
    gone = weakref.ref(value)
    value.message = message
    message.set_value(value)
    reports.clear()  # the producer keeps the last callback
    del value, message
    producer.close()
    gc.collect()
    assert gone() is None


def test_reports_are_served_in_order_through_polls_in_callbacks(scripted: ScriptedCluster) -> None:
    """And through exceptions; with several callbacks in turn, in longer and shorter runs."""
    producer = on(scripted)
    served: list[bytes] = []

    def note(_error: object, message: Message) -> None:
        served.append(message.value())

    def poll(_error: object, message: Message) -> None:
        served.append(message.value())
        producer.poll(0)

    def fail(_error: object, message: Message) -> None:
        served.append(message.value())
        raise ZeroDivisionError

    values = [b"%d" % number for number in range(5000)]
    for number, value in enumerate(values):
        callback = {7: poll, 2500: fail, 2501: fail, 4000: poll}.get(number, note)
        producer.produce("t", value, partition=0, on_delivery=callback)
    assert producer._core is not None
    producer._core.flush(SOON)
    assert len(producer) == 5000
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            producer.poll(0)
    assert served[-1] == b"2501"
    assert len(producer) == 5000 - 2502
    producer.flush(SOON)
    assert served == values
    producer.close()


def test_two_threads_that_poll_serve_each_report_once(scripted: ScriptedCluster) -> None:
    producer = on(scripted)
    served: list[bytes] = []
    for number in range(20_000):
        producer.produce(
            "t",
            b"%d" % number,
            on_delivery=lambda _error, message: served.append(message.value()),
        )
    done = threading.Event()

    def poll() -> None:
        while not done.is_set():
            producer.poll(0.01)

    others = [threading.Thread(target=poll) for _ in range(3)]
    for other in others:
        other.start()
    assert producer.flush(SOON) == 0
    done.set()
    for other in others:
        other.join(SOON)
    assert len(served) == 20_000
    assert len(set(served)) == 20_000
    producer.close()


@needs_hook
def test_a_report_for_which_there_is_no_memory_counts_as_finished(
    scripted: ScriptedCluster,
) -> None:
    """The callback cannot be called; flush() does not wait for it, and the queue stays usable."""
    producer = on(scripted)
    reports = Calls()
    assert producer._core is not None
    delivery = producer._core.send("t", b"v")
    delivery.result(SOON)
    to = ReportTo(producer._outcomes, reports)
    for refused in range(12):
        finished = producer._outcomes.finished
        call_without_memory(refused, to, None, delivery)
        assert producer._outcomes.finished == finished + 1
    queued = producer._events.queue.count
    assert producer.poll(0) == queued == len(reports)
    producer.close()
