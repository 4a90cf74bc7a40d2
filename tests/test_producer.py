"""The producer without a broker: what it refuses, what it accepts, and that it never waits."""

from __future__ import annotations

import asyncio
import enum
import logging
import math
import pickle
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from kafka.errors import KafkaError, KafkaTimeoutError

from pykaproducer import (
    AbortedError,
    BufferFullError,
    CallbackThreadError,
    ConfigurationError,
    Delivery,
    DeliveryFailures,
    DeliveryTimeoutError,
    FlushTimeoutError,
    MessageTooLargeError,
    Producer,
    ProducerClosedError,
    Status,
)

SOON = 30

#: Far more than a call that waits for nothing takes, far less than any wait (seconds).
NO_WAIT = 2.0


@pytest.fixture
def refusing() -> Iterator[str]:
    """An address where nobody listens."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{nobody.getsockname()[1]}"


@pytest.fixture
def silent() -> Iterator[str]:
    """An address where somebody listens and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def garbled() -> Iterator[str]:
    """An address where a server of another kind answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(1)
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join(SOON)


def threads_of(client_id: str) -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith(f"{client_id}-")]


@contextmanager
def told_by_log(text: str) -> Iterator[threading.Event]:
    """Set as soon as the library logs *text*."""
    told = threading.Event()

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if text in record.getMessage():
                told.set()

    listener = Listener()
    logging.getLogger("pykaproducer").addHandler(listener)
    try:
        yield told
    finally:
        logging.getLogger("pykaproducer").removeHandler(listener)


# Nothing waits for the network


@pytest.mark.parametrize("server", ["refusing", "silent", "no-such-host.invalid:9092"])
def test_neither_the_constructor_nor_send_waits(
    server: str, request: pytest.FixtureRequest
) -> None:
    if ":" not in server:
        server = request.getfixturevalue(server)
    started = time.monotonic()
    producer = Producer(bootstrap_servers=server)
    deliveries = [producer.send("topic", b"%d" % i) for i in range(100)]
    took = time.monotonic() - started
    assert not any(delivery.done() for delivery in deliveries)
    assert {delivery.status for delivery in deliveries} == {Status.NOT_PERSISTED}
    assert not producer.bootstrap_connected()
    producer.close(0)
    assert took < NO_WAIT


def test_a_producer_that_is_not_used_has_no_thread(refusing: str) -> None:
    producer = Producer(bootstrap_servers=refusing, client_id="unused")
    producer.flush(0)
    assert threads_of("unused") == []
    producer.close()
    assert threads_of("unused") == []


def test_what_is_accepted_fails_at_its_deadline_and_says_why(refusing: str) -> None:
    with Producer(bootstrap_servers=refusing, delivery_timeout_ms=100) as producer:
        delivery = producer.send("events", b"value", key=b"key")
        with pytest.raises(DeliveryTimeoutError) as caught:
            delivery.result(SOON)
    error = caught.value
    assert (error.status, error.topic, error.partition) == (Status.NOT_PERSISTED, "events", None)
    assert isinstance(error, KafkaTimeoutError)
    assert refusing in str(error)
    assert "refused" in str(error)
    assert "not written" in str(error)
    # For another attempt the message is still there.
    assert (delivery.key, delivery.value) == (b"key", b"value")
    # For another process too.
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


@pytest.mark.parametrize(
    ("server", "reason"),
    [("no-such-host.invalid:9092", "cannot be resolved"), ("garbled", "makes no sense")],
)
def test_a_wrong_server_is_named_in_the_error(
    server: str, reason: str, request: pytest.FixtureRequest
) -> None:
    if ":" not in server:
        server = request.getfixturevalue(server)
    with Producer(bootstrap_servers=server) as producer, told_by_log(server) as told:
        first = producer.send("events", b"value", delivery_timeout_ms=SOON * 1000)
        assert told.wait(SOON)
        error = producer.send("events", b"value", delivery_timeout_ms=50).exception(SOON)
        assert not first.done()
        producer.close(0)
    assert server in str(error)
    assert reason in str(error)


def test_an_unreachable_server_is_logged_once(
    refusing: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="pykaproducer")
    with Producer(
        bootstrap_servers=refusing,
        delivery_timeout_ms=300,
        reconnect_backoff_ms=1,
        reconnect_backoff_max_ms=1,
    ) as producer:
        producer.send("events", b"secret payload").exception(SOON)
    (record,) = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert refusing in record.getMessage()
    assert "secret" not in caplog.text


def test_partitions_for_is_bounded_by_max_block_ms(refusing: str) -> None:
    with (
        Producer(bootstrap_servers=refusing, max_block_ms=50) as producer,
        pytest.raises(KafkaTimeoutError, match=refusing),
    ):
        producer.partitions_for("events")


# What can never be right


class Topics(enum.StrEnum):
    """Still texts."""

    EVENTS = "events"


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"topic": 3}, TypeError, "topic must be str, not int"),
    ({"topic": b"events"}, TypeError, "topic must be str, not bytes"),
    ({"topic": None}, TypeError, "topic must be str"),
    ({"topic": ""}, ValueError, "not a topic name"),
    ({"topic": "a b"}, ValueError, "'a b' is not a topic name"),
    ({"topic": "größe"}, ValueError, "not a topic name"),
    ({"topic": "."}, ValueError, "not a topic name"),
    ({"topic": ".."}, ValueError, "not a topic name"),
    ({"topic": "x" * 250}, ValueError, "not a topic name"),
    ({"topic": "events\n"}, ValueError, "not a topic name"),
    ({"value": "text"}, TypeError, "value"),
    ({"value": 3}, TypeError, "value"),
    ({"key": "text"}, TypeError, "key"),
    ({"value": memoryview(bytes(8))[::2]}, (TypeError, ValueError, BufferError), ""),
    ({"headers": "ab"}, TypeError, "headers"),
    ({"headers": {"a": b"1"}}, TypeError, "headers"),
    ({"headers": [("a", "1")]}, TypeError, "header"),
    ({"headers": [("a", 1)]}, TypeError, "header"),
    ({"headers": [(b"a", b"1")]}, TypeError, "header"),
    ({"headers": [("a",)]}, (TypeError, ValueError), "header"),
    ({"headers": ["ab"]}, (TypeError, ValueError), "header"),
    ({"partition": -1}, ValueError, "partition"),
    ({"partition": 2**31}, ValueError, "partition"),
    ({"partition": "0"}, TypeError, "partition"),
    ({"partition": 1.5}, TypeError, "partition"),
    ({"partition": True}, TypeError, "partition"),
    ({"timestamp_ms": -1}, ValueError, "timestamp_ms"),
    ({"timestamp_ms": "now"}, TypeError, "timestamp_ms"),
    ({"delivery_timeout_ms": 0}, ValueError, "delivery_timeout_ms"),
    ({"delivery_timeout_ms": -5}, ValueError, "delivery_timeout_ms"),
    ({"delivery_timeout_ms": "1"}, TypeError, "delivery_timeout_ms"),
    ({"on_delivery": "report"}, TypeError, "on_delivery must be callable, not str"),
    ({"value": bytes(1 << 20)}, MessageTooLargeError, "max_request_size allows 1048576"),
    ({"key": bytes(1 << 20)}, MessageTooLargeError, "topic 'events'"),
    ({"headers": [("h", bytes(1 << 20))]}, MessageTooLargeError, "max_request_size"),
]


@pytest.mark.parametrize(("arguments", "kind", "text"), WRONG)
def test_send_refuses_at_once_what_can_never_be_right(
    refusing: str, arguments: dict[str, Any], kind: Any, text: str
) -> None:
    producer = Producer(bootstrap_servers=refusing)
    with pytest.raises(kind) as caught:
        producer.send(**{"topic": "events", "value": b"value", **arguments})
    assert isinstance(caught.value, (TypeError, ValueError, BufferError))
    assert text in str(caught.value)
    assert "Traceback" not in str(caught.value)
    # Nothing was accepted.
    assert producer.accepted == 0
    producer.flush(0)
    producer.close(0)


def test_send_takes_what_can_be_right(refusing: str) -> None:
    with Producer(bootstrap_servers=refusing, delivery_timeout_ms=50) as producer:
        accepted: list[Delivery] = [
            producer.send("a.b_c-D" + "9" * 242),
            producer.send(Topics.EVENTS, b"", b"", [], 2**31 - 1, 0),
            producer.send("events", headers=()),
            producer.send("events", headers=[["h", None]]),  # type: ignore[list-item]
        ]
        assert producer.accepted == len(accepted)
        assert [delivery.topic for delivery in accepted[1:]] == ["events"] * 3
        assert type(accepted[1].topic) is str
        for delivery in accepted:
            assert isinstance(delivery.exception(SOON), DeliveryTimeoutError)


def test_a_serializer_that_raises_accepts_nothing(refusing: str) -> None:
    def serialize(value: Any) -> bytes:
        if value == "bad":
            raise LookupError("no such schema")
        return value

    with Producer(
        bootstrap_servers=refusing, value_serializer=serialize, delivery_timeout_ms=50
    ) as producer:
        with pytest.raises(LookupError, match="no such schema"):
            producer.send("events", "bad")
        with pytest.raises(TypeError, match="value"):
            producer.send("events", 3)
        assert producer.accepted == 0
        assert producer.send("events", b"good").exception(SOON) is not None


def test_settings_are_checked_by_the_constructor() -> None:
    with pytest.raises(ConfigurationError, match="linger_ms"):
        Producer(linger_sm=5)
    with pytest.raises(ConfigurationError, match="acks"):
        Producer(acks=2)


# buffer_memory


def test_a_full_buffer_refuses_after_max_block_ms(refusing: str) -> None:
    producer = Producer(bootstrap_servers=refusing, buffer_memory=10_000, max_block_ms=100)
    while producer._budget.fits(1100):
        producer.send("events", bytes(1000))
    accepted = producer.accepted
    started = time.monotonic()
    with pytest.raises(BufferFullError, match=r"max_block_ms \(100 ms\)") as caught:
        producer.send("events", bytes(1000))
    assert time.monotonic() - started >= 0.1
    assert isinstance(caught.value, KafkaTimeoutError)
    assert caught.value.status is Status.NOT_PERSISTED
    assert producer.accepted == accepted
    # A smaller one may still find room.
    producer.send("events", b"x")
    producer.close(0)
    assert producer._budget.used == 0


def test_max_block_ms_0_does_not_wait_at_all(refusing: str) -> None:
    producer = Producer(bootstrap_servers=refusing, buffer_memory=2000, max_block_ms=0)
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
    with Producer(
        bootstrap_servers=refusing,
        buffer_memory=20_000,
        delivery_timeout_ms=50,
        max_block_ms=SOON * 1000,
    ) as producer:
        for _ in range(50):
            producer.send("events", bytes(1000))


def test_handles_that_are_kept_do_not_keep_the_buffer(refusing: str) -> None:
    with Producer(bootstrap_servers=refusing, delivery_timeout_ms=50) as producer:
        kept = [producer.send("events", bytes(1000)) for _ in range(100)]
        assert all(delivery.exception(SOON) is not None for delivery in kept)
        producer.flush(SOON)
        assert producer._budget.used == 0
        assert kept[-1].value == bytes(1000)


# flush()


def test_flush_reports_what_failed_and_nobody_was_told_of(refusing: str) -> None:
    with Producer(bootstrap_servers=refusing, delivery_timeout_ms=50) as producer:
        for _ in range(20):
            producer.send("events", b"value")
        with pytest.raises(DeliveryFailures) as caught:
            producer.flush(SOON)
        assert caught.value.count == 20
        assert refusing in str(caught.value)
        assert isinstance(caught.value.__cause__, DeliveryTimeoutError)
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


# Callbacks: what would wait for its own thread


def test_a_callback_that_would_wait_for_itself_is_told_so(refusing: str) -> None:
    outcomes: dict[str, BaseException] = {}
    called = threading.Event()

    def report(error: BaseException | None, delivery: Delivery) -> None:
        outcomes["reported"] = error or LookupError("there should be one")
        pending = producer.send("events", b"another")
        for name, wait in {
            "flush": producer.flush,
            "result": pending.result,
            "exception": pending.exception,
            "get": pending.get,
            "partitions_for": lambda: producer.partitions_for("events"),
            "await": lambda: asyncio.run(wait_for(pending)),
        }.items():
            try:
                wait()
            except KafkaError as problem:
                outcomes[name] = problem
        try:
            while True:
                producer.send("events", bytes(10_000))
        except BufferFullError as problem:
            outcomes["send"] = problem
        # What is settled can be asked.
        outcomes["own"] = delivery.exception() or LookupError("there should be one")
        called.set()

    async def wait_for(delivery: Delivery) -> Any:
        return await delivery

    producer = Producer(
        bootstrap_servers=refusing,
        buffer_memory=100_000,
        client_id="callbacks",
    )
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


# close()


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
    producer = Producer(bootstrap_servers=request.getfixturevalue(server), client_id="aborting")
    deliveries = [producer.send(f"topic-{i % 10}", b"value") for i in range(1000)]
    producer.send("topic-0", b"value", on_delivery=lambda error, _: told.append(error))
    started = time.monotonic()
    producer.abort()
    assert time.monotonic() - started < NO_WAIT
    assert threads_of("aborting") == []
    errors = [delivery.exception(0) for delivery in deliveries]
    assert {type(error) for error in (*errors, *told)} == {AbortedError}
    assert {getattr(error, "status", None) for error in errors} == {Status.NOT_PERSISTED}
    assert "abort()" in str(errors[0])
    assert len(told) == 1


def test_close_ends_what_waits_for_a_result(refusing: str) -> None:
    outcomes: list[BaseException | None] = []
    producer = Producer(bootstrap_servers=refusing)
    delivery = producer.send("events", b"value")
    waiting = threading.Event()

    def wait() -> None:
        waiting.set()
        outcomes.append(delivery.exception(SOON))

    thread = threading.Thread(target=wait)
    thread.start()
    assert waiting.wait(SOON)
    producer.close(0.05)
    thread.join(SOON)
    assert [type(outcome) for outcome in outcomes] == [AbortedError]
    assert "0.05 s" in str(outcomes[0])


def test_sending_while_another_thread_closes_loses_nothing(refusing: str) -> None:
    """Each message that was accepted gets its outcome, whichever thread was first."""
    for _ in range(20):
        producer = Producer(bootstrap_servers=refusing)
        accepted: list[Delivery] = []
        begun = threading.Event()

        def send(
            producer: Producer = producer,
            accepted: list[Delivery] = accepted,
            begun: threading.Event = begun,
        ) -> None:
            try:
                while True:
                    accepted.append(producer.send("events", b"value"))
                    begun.set()
            except ProducerClosedError:
                pass

        thread = threading.Thread(target=send)
        thread.start()
        assert begun.wait(SOON)
        producer.close(0)
        thread.join(SOON)
        assert all(delivery.done() for delivery in accepted)
        assert {type(delivery.exception(0)) for delivery in accepted} == {AbortedError}


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


# What it looks like


def test_repr_names_the_producer_and_no_secret(refusing: str) -> None:
    producer = Producer(
        bootstrap_servers=refusing,
        client_id="app",
        ssl_password="hunter2",
        sasl_plain_password="hunter2",
    )
    delivery = producer.send("events", b"hunter2", key=b"hunter2", headers=[("h", b"hunter2")])
    pending = repr(delivery)
    producer.close(0)
    assert repr(producer) == f"<Producer app bootstrap_servers={refusing!r}>"
    assert "hunter2" not in repr(producer.config)
    assert pending == "<Delivery events pending>"
    assert "failed: topic 'events'" in repr(delivery)
    assert "hunter2" not in pending + repr(delivery) + str(delivery.error)


def test_each_producer_has_a_name_of_its_own() -> None:
    one, other = Producer(), Producer()
    assert one.config.client_id != other.config.client_id
    assert "localhost:9092" in repr(one)


def test_a_timestamp_is_the_time_of_the_call(refusing: str) -> None:
    producer = Producer(bootstrap_servers=refusing)
    before = math.floor(time.time() * 1000)
    delivery = producer.send("events", b"value")
    assert before <= delivery.timestamp <= math.ceil(time.time() * 1000)
    assert producer.send("events", b"value", timestamp_ms=7).timestamp == 7
    producer.close(0)
