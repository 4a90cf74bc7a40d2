"""The producer without a broker: what it rejects, what it accepts, and that it never waits."""

from __future__ import annotations

import ast
import enum
import inspect
import logging
import math
import pathlib
import pickle
import threading
import time
from typing import Any

import pytest
from kafka.errors import KafkaTimeoutError

import pykaproducer
from pykaproducer import (
    ConfigurationError,
    Delivery,
    DeliveryTimeoutError,
    MessageTooLargeError,
    Producer,
    Status,
)
from pykaproducer._net.transport import ConnectionFailed, Endpoint, Network, Transport
from pykaproducer.config import Config
from pykaproducer.testing import FakeClock
from tests._support.logs import told_by_log
from tests._support.threads import threads_of

SOON = 30


class StillProducer(Producer):
    """A producer on a clock that stands still: a call that waits for time never returns."""

    _clock = FakeClock()


class HeldNetwork(Network):
    """A network whose resolver blocks until it is released, and then finds no host."""

    def __init__(self) -> None:
        super().__init__(Config())
        self.asked = threading.Event()
        self.released = threading.Event()

    def resolve(self, host: str, port: int) -> list[Endpoint]:
        self.asked.set()
        self.released.wait()
        raise ConnectionFailed(f"the host name {host!r} cannot be resolved")

    def connect(self, endpoint: Endpoint) -> Transport:
        raise AssertionError("there is no address to connect to")


# Nothing waits for the network


def assert_under_way(producer: Producer, deliveries: list[Delivery]) -> None:
    assert not any(delivery.done() for delivery in deliveries)
    assert {delivery.status for delivery in deliveries} == {Status.NOT_PERSISTED}
    assert not producer.bootstrap_connected()


@pytest.mark.parametrize("server", ["refusing", "silent"])
def test_neither_the_constructor_nor_send_waits(
    server: str, request: pytest.FixtureRequest
) -> None:
    """Otherwise it would wait forever: the clock of this producer stands still."""
    producer = StillProducer(bootstrap_servers=request.getfixturevalue(server))
    deliveries = [producer.send("topic", b"%d" % i) for i in range(100)]
    assert_under_way(producer, deliveries)
    producer.close(0)


def test_send_does_not_wait_for_the_resolver() -> None:
    network = HeldNetwork()

    class HeldProducer(Producer):
        _network_type = staticmethod(lambda config: network)  # type: ignore[assignment]

    producer = HeldProducer(bootstrap_servers="kafka.example:9092")
    try:
        deliveries = [producer.send("topic", b"first")]
        assert network.asked.wait(SOON)
        deliveries += [producer.send(f"topic-{i % 10}", b"%d" % i) for i in range(100)]
        assert_under_way(producer, deliveries)
    finally:
        network.released.set()
    producer.close(0)


def test_a_producer_that_is_not_used_has_no_thread(refusing: str) -> None:
    producer = Producer(bootstrap_servers=refusing, client_id="unused")
    producer.flush(0)
    assert threads_of("unused") == []
    producer.close()
    assert threads_of("unused") == []


def test_what_is_accepted_fails_at_its_deadline_and_says_why(refusing: str) -> None:
    with Producer(bootstrap_servers=refusing) as producer, told_by_log(refusing) as told:
        producer.send("events", b"first")
        assert told.wait(SOON)
        delivery = producer.send("events", b"value", key=b"key", delivery_timeout_ms=50)
        with pytest.raises(DeliveryTimeoutError) as caught:
            delivery.result(SOON)
        producer.close(0)
    error = caught.value
    assert (error.status, error.topic, error.partition) == (Status.NOT_PERSISTED, "events", None)
    assert isinstance(error, KafkaTimeoutError)
    assert refusing in str(error)
    assert "refused" in str(error)
    assert "not written" in str(error)
    # The message is available for another attempt.
    assert (delivery.key, delivery.value) == (b"key", b"value")
    # Also in another process.
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


@pytest.mark.parametrize(
    ("server", "reason"),
    [("no-such-host.invalid:9092", "cannot be resolved"), ("garbled", "malformed response")],
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
    with (
        Producer(
            bootstrap_servers=refusing, reconnect_backoff_ms=1, reconnect_backoff_max_ms=1
        ) as producer,
        told_by_log(refusing) as told,
    ):
        first = producer.send("events", b"secret payload")
        assert told.wait(SOON)
        producer.send("events", b"secret payload", delivery_timeout_ms=300).exception(SOON)
        assert not first.done()
        producer.close(0)
        first.exception(0)
    (record,) = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert refusing in record.getMessage()
    assert "secret" not in caplog.text


def test_partitions_for_is_bounded_by_max_block_ms(refusing: str) -> None:
    with (
        Producer(bootstrap_servers=refusing, max_block_ms=50) as producer,
        told_by_log(refusing) as told,
    ):
        producer.send("events", b"value")
        assert told.wait(SOON)
        with pytest.raises(KafkaTimeoutError, match=refusing):
            producer.partitions_for("events")
        producer.close(0)


# Invalid arguments


class Topics(enum.StrEnum):
    """An enum whose members are str."""

    EVENTS = "events"


class NotBytes:
    """An object that cannot be sent."""


STRIDED = memoryview(bytes(8))[::2]
LARGE = bytes(1 << 20)
#: An argument, values that it cannot have, and the error: with {kind}, which names their type.
WRONG: list[tuple[str, list[Any], type[Exception], str]] = [
    ("topic", [3, b"events", None, ["events"]], TypeError, "topic must be str, not {kind}"),
    ("topic", ["", "größe", ".", "..", "x" * 250, "events\n"], ValueError, "not a topic name"),
    ("topic", ["a b"], ValueError, "'a b' is not a topic name"),
    ("value", ["text", 3, NotBytes()], TypeError, "value must be bytes.*not {kind}.*value_seria"),
    ("key", ["text", 5], TypeError, "key must be bytes.*not {kind}.*key_serializer"),
    ("value", [STRIDED], ValueError, "value.*contiguous"),
    ("key", [STRIDED], ValueError, "key.*contiguous"),
    ("headers", [5, "ab", {"a": b"1"}], TypeError, "headers must be"),
    ("headers", [[5], [("a",)], [("a", b"b", b"c")]], TypeError, r"\[0\] must be a pair"),
    ("headers", [[("a", b"b"), "abc"]], TypeError, r"headers\[1\] must be a pair"),
    ("headers", [[(b"a", b"1")], [(None, b"b")]], TypeError, r"headers\[0\].*name must be str"),
    (
        "headers",
        [[("a", "1")], [("a", 1)], ["ab"]],
        TypeError,
        r"headers\[0\].*value must be bytes",
    ),
    ("headers", [[("a", None), ("a", "b")]], TypeError, r"headers\[1\].*value must be bytes"),
    ("headers", [[("\ud800", b"b")]], ValueError, r"headers\[0\].*UTF-8"),
    ("partition", [-1, 2**31, 2**80], ValueError, "partition must be between 0"),
    ("partition", ["0", 1.5, True], TypeError, "partition must be an int, not {kind}"),
    ("timestamp_ms", [-1, 2**63], ValueError, "timestamp_ms must be between 0"),
    ("timestamp_ms", [1.5, "now"], TypeError, "timestamp_ms must be an int"),
    ("delivery_timeout_ms", [0, -5, 2**53], ValueError, "delivery_timeout_ms must be between 1"),
    ("delivery_timeout_ms", ["1"], TypeError, "delivery_timeout_ms must be an int"),
    ("on_delivery", ["report", 5], TypeError, "on_delivery must be callable, not {kind}"),
    ("value", [LARGE], MessageTooLargeError, "max_request_size allows 1048576"),
    ("key", [LARGE], MessageTooLargeError, "topic 'events'"),
    ("headers", [[("h", LARGE)]], MessageTooLargeError, "max_request_size"),
]


@pytest.mark.parametrize(
    ("argument", "wrong", "kind", "text"),
    [(name, wrong, kind, text) for name, values, kind, text in WRONG for wrong in values],
)
def test_send_refuses_at_once_what_can_never_be_right(
    refusing: str, argument: str, wrong: Any, kind: type[Exception], text: str
) -> None:
    producer = Producer(bootstrap_servers=refusing)
    with pytest.raises(kind, match=text.replace("{kind}", type(wrong).__name__)) as caught:
        producer.send(**{"topic": "events", "value": b"value", argument: wrong})
    assert "Traceback" not in str(caught.value)
    # Nothing was accepted, and the next one is.
    assert (producer.accepted, producer.stats()["buffer"]["used"]) == (0, 0)
    producer.flush(0)
    producer.send("events", b"next")
    assert (producer.accepted, producer.stats()["messages"]["pending"]) == (1, 1)
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
    def serialize(value: Any) -> Any:
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


# Representation


def test_repr_names_the_producer_and_no_secret(refusing: str) -> None:
    producer = Producer(
        bootstrap_servers=refusing,
        client_id="app",
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="PLAIN",
        sasl_plain_username="user",
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


# Introspection of the compiled send()


def test_the_signature_of_send_in_producer_py_is_that_of_the_compiled_function() -> None:
    path = pathlib.Path(pykaproducer.__file__).parent / "producer.py"
    (shown,) = (
        node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name == "send"
    )
    assert (ast.get_docstring(shown) or "").split() == (Producer.send.__doc__ or "").split()
    parameters = inspect.signature(Producer.send).parameters.values()
    arguments = shown.args
    assert [each.arg for each in (*arguments.args, *arguments.kwonlyargs)] == [
        each.name for each in parameters
    ]
    keywords = [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]
    assert keywords == [each.arg for each in arguments.kwonlyargs]
    defaults = [each.default for each in parameters if each.default is not each.empty]
    assert all(default is None for default in defaults)
    assert len(defaults) == len(arguments.defaults) + len(arguments.kw_defaults)
