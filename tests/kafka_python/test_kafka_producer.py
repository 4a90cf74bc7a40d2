"""``KafkaProducer``: the behaviour on which code written for kafka-python relies."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import pickle
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import kafka
import kafka.errors
import kafka.partitioner
import kafka.serializer
import numpy as np
import pytest
from kafka.future import Future

from pykaproducer import (
    KafkaProducer,
    MessageTooLargeError,
    Producer,
    TopicPartition,
)
from pykaproducer.kafka_python.producer import FutureRecordMetadata
from pykaproducer.testing import KafkaCluster, ScriptedCluster
from pykaproducer.testing.scripted import Hold
from tests._support.peers import KAFKA_PYTHON

#: In kafka-python 2 a partitioner is a callable, with three arguments.
Partitioner = getattr(kafka.partitioner, "Partitioner", object)

NOWHERE = "127.0.0.1:1"


@contextlib.contextmanager
def idle(**settings: Any) -> Iterator[KafkaProducer]:
    """Yield a producer that cannot reach a broker."""
    producer = KafkaProducer(bootstrap_servers=NOWHERE, **settings)
    try:
        yield producer
    finally:
        producer.close(timeout=0)


@pytest.fixture(scope="module")
def scripted() -> Iterator[ScriptedCluster]:
    with ScriptedCluster(topics={"t": 3}) as cluster:
        yield cluster


def connect(scripted: ScriptedCluster, **settings: Any) -> KafkaProducer:
    """Return a producer connected to that cluster."""

    class Scripted(KafkaProducer):
        _network_type = staticmethod(lambda config: scripted.network)  # type: ignore[assignment]

    return Scripted(bootstrap_servers=scripted.bootstrap_servers, **settings)


@pytest.fixture
def producer(scripted: ScriptedCluster) -> Iterator[KafkaProducer]:
    with connect(scripted) as producer:
        yield producer


# Futures --------------------------------------------------------------------------------------


def test_a_future_before_and_behind_its_outcome(producer: KafkaProducer) -> None:
    with idle() as nowhere:
        future = nowhere.send("t", b"v")
        assert (future.is_done, future.value, future.exception) == (False, None, None)
        assert not future.succeeded()
        assert not future.failed()
        assert not future.retriable()
        with pytest.raises(kafka.errors.KafkaTimeoutError):
            future.get(timeout=0)
    assert future.is_done
    assert future.failed()
    assert future.value is None
    assert isinstance(future.exception, kafka.errors.KafkaError)
    with pytest.raises(type(future.exception)):
        future.get()

    future = producer.send("t", b"value", b"key", [("né", b"ab"), ("n", None)], partition=1)
    metadata = future.get(timeout=30)
    assert future.is_done
    assert future.succeeded()
    assert future.exception is None
    assert future.value is metadata
    assert metadata._fields == kafka.producer.future.RecordMetadata._fields
    assert metadata.topic_partition == TopicPartition("t", 1)
    assert metadata[6:] == (3, 5, 6)
    assert producer.send("t", b"v").get(30).serialized_header_size == -1


def test_callbacks_take_the_value_and_return_the_future(
    producer: KafkaProducer, scripted: ScriptedCluster
) -> None:
    called: list[Any] = []
    done = threading.Event()
    hold = Hold()
    scripted.next("produce", hold)
    future = producer.send("t", b"v", headers=[("a", b"b")])
    assert future.add_callback(called.append) is future
    assert future.add_callback(lambda *a, **k: called.append((a, k)), 1, two=2) is future
    assert future.add_errback(called.append) is future
    assert future.add_both(lambda value: done.set()) is future
    hold.release()
    assert done.wait(30)
    assert called == [future.value, ((1, future.value), {"two": 2})]
    assert called[0].serialized_header_size == 2
    future.add_callback(called.append)  # settled: called at once
    assert called[-1] is future.value


def test_a_callback_that_raises_harms_nobody(producer: KafkaProducer) -> None:
    future = producer.send("t", b"v").add_callback(lambda value: 1 / 0)
    assert future.get(30)
    done = threading.Event()
    future.add_callback(lambda value: done.set())
    assert done.wait(30)


def test_errbacks_take_the_error() -> None:
    called: list[Any] = []
    with idle() as producer:
        future = producer.send("t", b"v")
        future.add_errback(called.append)
        future.add_both(lambda error: called.append(error))
        future.add_callback(lambda value: called.append("not this"))
    assert called == [future.exception] * 2


def test_a_chained_future_of_kafka_python(producer: KafkaProducer) -> None:
    fine, failed = Future(), Future()
    future = producer.send("t", b"v")
    assert future.chain(fine) is future
    future.get(30)
    producer.flush()
    assert fine.value is future.value
    with idle() as nowhere:
        lost = nowhere.send("t", b"v").chain(failed)
    assert failed.exception == lost.exception


def test_a_future_can_be_awaited(producer: KafkaProducer) -> None:
    async def send() -> Any:
        return await producer.send("t", b"v", headers=[("a", b"b")])

    assert asyncio.run(send()).serialized_header_size == 2


def test_an_unknown_partition_is_a_value_error_of_the_future(producer: KafkaProducer) -> None:
    future = producer.send("t", b"v", partition=99)
    with pytest.raises(ValueError, match="partition"):
        future.get(30)
    assert "99" in repr(future)
    assert repr(future).startswith("<FutureRecordMetadata")


# send() ---------------------------------------------------------------------------------------


def test_the_arguments_of_every_method_are_those_of_kafka_python() -> None:
    for name, method in inspect.getmembers(kafka.KafkaProducer, callable):
        if name.startswith("_"):
            continue
        theirs = list(inspect.signature(method).parameters)
        ours = list(inspect.signature(getattr(KafkaProducer, name)).parameters)
        if name == "send_offsets_to_transaction" and KAFKA_PYTHON < (3, 0):
            continue  # the second argument, which is not used here, had another name
        assert ours[: len(theirs)] == theirs, name


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ({"topic": "t"}, ValueError),
        ({"topic": "t", "value": "text"}, TypeError),
        ({"topic": "t", "value": b"v", "key": 3}, TypeError),
        ({"topic": 3, "value": b"v"}, TypeError),
        ({"topic": b"t", "value": b"v"}, TypeError),
        ({"topic": "a b", "value": b"v"}, ValueError),
        ({"topic": "t" * 250, "value": b"v"}, ValueError),
        ({"topic": "t", "value": b"v", "headers": "a"}, TypeError),
        ({"topic": "t", "value": b"v", "headers": [("a", "b")]}, TypeError),
        ({"topic": "t", "value": b"v", "headers": [(b"a", b"b")]}, TypeError),
        ({"topic": "t", "value": b"v", "partition": -1}, ValueError),
        ({"topic": "t", "value": b"v", "colour": 1}, TypeError),
        ({"topic": "t", "value": b"v" * 2**20}, kafka.errors.MessageSizeTooLargeError),
    ],
)
def test_wrong_arguments_raise_what_they_raise_there(
    arguments: dict[str, Any], kind: type[Exception]
) -> None:
    with idle() as producer, pytest.raises(kind):
        producer.send(**arguments)
    assert issubclass(MessageTooLargeError, kafka.errors.MessageSizeTooLargeError)


def test_a_full_buffer_is_a_kafka_timeout() -> None:
    with idle(buffer_memory=2000, max_block_ms=1) as producer:
        producer.send("t", b"v" * 1000)
        with pytest.raises(kafka.errors.KafkaTimeoutError):
            producer.send("t", b"v" * 1000)


def test_a_closed_producer_is_an_illegal_state() -> None:
    producer = KafkaProducer(bootstrap_servers=NOWHERE)
    producer.close()
    for arguments in ({"topic": "t", "value": b"v"}, {"topic": "t"}, {"topic": 3}):
        with pytest.raises(kafka.errors.IllegalStateError):
            producer.send(**arguments)  # type: ignore[arg-type]  # what is wrong comes second
    assert producer.bootstrap_connected() is False
    producer.flush()
    producer.close()


# Serializers and partitioners ------------------------------------------------------------------


class Old:
    """A serializer in the style of kafka-python 2."""

    def __init__(self) -> None:
        self.closed = 0

    def serialize(self, topic: str, data: Any) -> bytes:
        return f"{topic}:{data}".encode()

    def close(self) -> None:
        self.closed += 1


class New(kafka.serializer.Serializer):  # type: ignore[misc]  # kafka-python has no types
    def serialize(self, topic: str, headers: Any, data: Any) -> bytes:
        return f"{headers}".encode()


def test_serializers_of_every_kind(scripted: ScriptedCluster) -> None:
    old = Old()

    def of_key(key: object) -> bytes:
        return b"no" if key is None else b"k"

    with connect(scripted, value_serializer=old, key_serializer=of_key) as p:
        metadata = p.send("t", 5).get(30)
        assert metadata.serialized_value_size == len("t:5")
        assert metadata.serialized_key_size == len("no")
        assert old.closed == 0
    assert old.closed == 1
    p.close()
    assert old.closed == 1
    with connect(scripted, value_serializer=New()) as p:
        assert p.send("t", 5).get(30).serialized_value_size == len("[]")
        sent = p.send("t", 5, headers=[("a", b"b")]).get(30)
        assert sent.serialized_value_size == len("[('a', b'b')]")


def test_two_threads_that_close_close_a_serializer_once(
    scripted: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = Old()
    producer = connect(scripted, value_serializer=old)
    after = producer._clock.after
    others: list[threading.Thread] = []

    def close_in_another_thread(timeout: float | None) -> float | None:
        if not others:
            others.append(threading.Thread(target=producer.close))
            others[0].start()
            others[0].join()
        return after(timeout)

    monkeypatch.setattr(producer._clock, "after", close_in_another_thread)
    producer.close()
    assert old.closed == 1


def test_the_exit_of_the_process_closes_serializers_too(scripted: ScriptedCluster) -> None:
    old = Old()
    producer = connect(scripted, value_serializer=old)
    producer._close_by(producer._begin_exit())
    assert old.closed == 1


def test_a_partitioner_of_ones_own_is_asked_in_send(scripted: ScriptedCluster) -> None:
    asked: list[Any] = []

    class Mine(Partitioner):  # type: ignore[misc]  # no types there
        def partition(self, *arguments: Any) -> int:
            *seen, cluster = arguments
            asked.append((threading.get_ident(), *seen))
            assert topic in cluster.topics()
            assert cluster.available_partitions_for_topic("nothing") is None
            assert cluster.available_partitions_for_topic(topic) == {0, 1, 2}
            return max(cluster.partitions_for_topic(topic)) if seen[3] else -1

    topic = "t"
    with connect(scripted, partitioner=Mine(), value_serializer=lambda v: b"%d" % v) as producer:
        assert producer.send(topic, 5, b"k").get(30).partition == 2
        assert asked == [(threading.get_ident(), "t", b"k", b"k", 5, b"5")]
        assert producer.send(topic, 5, partition=1).get(30).partition == 1
        with pytest.raises(ValueError, match="-1, which is not a partition"):
            producer.send(topic, 0)
    with connect(scripted, partitioner=Mine()) as producer:
        assert producer.send(topic, b"v").get(30).partition == 2


def test_a_partitioner_of_before(scripted: ScriptedCluster) -> None:
    class Mine:
        def partition(self, topic: str, key: bytes, cluster: Any) -> int:
            assert key == b"k"
            return 1

    with connect(scripted, partitioner=Mine(), key_serializer=str.encode) as producer:
        assert producer.send("t", b"v", "k").get(30).partition == 1


#: kafka-python's second partitioner, if it has one.
STICKY = [kind for name, kind in vars(kafka.partitioner).items() if name == "StickyPartitioner"]


def test_the_partitioners_of_kafka_python_have_names_here() -> None:
    for theirs, name in (
        (kafka.partitioner.DefaultPartitioner(), "murmur2_random"),
        *((kind(), "murmur2") for kind in STICKY),
        (lambda key, everything, available: 0, None),
        ("fnv1a", "fnv1a"),
    ):
        with idle(partitioner=theirs) as producer:
            assert producer.config.partitioner == (name or theirs)


# Settings --------------------------------------------------------------------------------------


def test_the_configuration_can_be_read_as_there() -> None:
    with idle(acks=1, api_version=(2, 6), client_id="me") as producer:
        assert producer.config["acks"] == 1
        assert producer.config["enable_idempotence"] is False
        assert producer.config["client_id"] == "me"
        assert producer.config.get("nothing") is None
        assert producer.config.get("acks") == 1
        assert "api_version" in producer.config
        assert dict(producer.config) == {**producer.config}
        assert list(producer.config) == list(KafkaProducer.DEFAULT_CONFIG)
        with pytest.raises(KeyError):
            producer.config["nothing"]
        assert producer.max_usable_produce_magic(producer.config["api_version"]) == 2
    for name in kafka.KafkaProducer.DEFAULT_CONFIG:
        with idle() as producer:
            producer.config[name]


@pytest.mark.parametrize("version", [(0, 10), (0, 10, 2), "0.9", [0, 10]])
def test_an_old_api_version_turns_idempotence_off(
    version: object, caplog: pytest.LogCaptureFixture
) -> None:
    for settings in ({}, {"enable_idempotence": None}, {"enable.idempotence": None}):
        with idle(api_version=version, **settings) as producer:
            assert producer.config["enable_idempotence"] is False
            assert producer.config["acks"] == -1
    assert "api_version=(0, " in caplog.text
    for name in ("enable_idempotence", "enable.idempotence"):
        with pytest.raises(kafka.errors.KafkaConfigurationError, match="api_version"):
            KafkaProducer(**{"api_version": version, name: True})


@pytest.mark.parametrize("version", [(0, 11), (4, 1), "2.6", "auto", None])
def test_other_api_versions_change_nothing(version: object) -> None:
    for settings in ({}, {"enable_idempotence": True}):
        with idle(api_version=version, **settings) as producer:
            assert producer.config["enable_idempotence"] is True


@pytest.mark.parametrize(
    "version", ["new", 4, ("a", "b"), (0, None), (float("inf"),), np.array([[1, 2], [3, 4]])]
)
def test_an_api_version_that_is_none(version: object) -> None:
    with pytest.raises(kafka.errors.KafkaConfigurationError, match="setting api_version"):
        KafkaProducer(api_version=version)


def test_a_delivery_timeout_below_linger_and_request_timeout() -> None:
    settings = {"linger_ms": 10, "request_timeout_ms": 1_000}
    with pytest.raises(kafka.errors.KafkaConfigurationError, match="delivery_timeout_ms"):
        KafkaProducer(delivery_timeout_ms=1_009, **settings)
    with idle(delivery_timeout_ms=1_010, **settings):
        pass
    Producer(delivery_timeout_ms=10, **settings).close()


def test_every_default_of_kafka_python_may_be_given() -> None:
    settings = {**kafka.KafkaProducer.DEFAULT_CONFIG, "bootstrap_servers": NOWHERE}
    with warnings.catch_warnings(action="error"):
        KafkaProducer(**settings).close()


@pytest.mark.parametrize(
    "wrong",
    [
        {"colour": 1},
        {"compression_type": "rar"},
        {"enable_idempotence": True, "acks": 1},
        {"enable_idempotence": True, "retries": 0},
        {"enable_idempotence": True, "max_in_flight_requests_per_connection": 10},
    ],
)
def test_wrong_settings_are_value_errors(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011  # which one is asked below
        KafkaProducer(**wrong)
    assert isinstance(caught.value, kafka.errors.KafkaConfigurationError)


def test_a_pickled_one_is_one_again() -> None:
    with idle(client_id="me", partitioner=kafka.partitioner.DefaultPartitioner()) as producer:
        copy = pickle.loads(pickle.dumps(producer))
    assert type(copy) is KafkaProducer
    assert copy.config == producer.config
    copy.close()


# Other methods ---------------------------------------------------------------------------------


def test_flush_logs_what_nobody_was_told(
    producer: KafkaProducer, caplog: pytest.LogCaptureFixture
) -> None:
    producer.send("t", b"v", partition=99)
    assert producer.flush(timeout=30) is None  # type: ignore[func-returns-value]  # as there
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert (
        "1 message was not delivered, and no callback or read outcome has reported it"
        in record.getMessage()
    )


def test_a_flush_that_ends_too_early_is_a_kafka_timeout() -> None:
    with idle() as producer:
        producer.send("t", b"v")
        with pytest.raises(kafka.errors.KafkaTimeoutError):
            producer.flush(timeout=0)


@pytest.mark.parametrize("timeout", [-1, float("nan"), float("inf"), 1e30])
def test_close_with_a_wrong_timeout(timeout: float) -> None:
    with idle() as producer, pytest.raises(ValueError, match="timeout"):
        producer.close(timeout)


def test_the_first_bootstrap_connected_connects(scripted: ScriptedCluster) -> None:
    with connect(scripted) as producer:
        assert producer.bootstrap_connected()
        assert producer.bootstrap_connected()
        assert producer.partitions_for("t") == {0, 1, 2}
    assert not producer.bootstrap_connected()
    with idle(bootstrap_timeout_ms=1) as producer:
        assert not producer.bootstrap_connected()
        assert not producer.bootstrap_connected()


def test_many_producers_that_nobody_closes_are_told_of(
    scripted: ScriptedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(19):
            stack.enter_context(connect(scripted)).send("t", b"v")
        assert not caplog.records
        for _ in range(3):
            stack.enter_context(connect(scripted)).send("t", b"v")
    (record,) = caplog.records
    assert record.getMessage().startswith("20 producers are open in this process")


def test_it_is_a_producer(producer: KafkaProducer) -> None:
    assert isinstance(producer, Producer)
    assert repr(producer).startswith("<KafkaProducer ")
    assert isinstance(producer.send("t", b"v"), FutureRecordMetadata)


def test_what_was_sent_is_in_the_log_when_the_block_ends(cluster: KafkaCluster, topic: str) -> None:
    with KafkaProducer(bootstrap_servers=cluster.bootstrap_servers, client_id="c") as producer:
        for number in range(100):
            producer.send(topic, b"%d" % number, key=b"k", headers=[("n", b"%d" % number)])
    consumer = kafka.KafkaConsumer(
        topic,
        bootstrap_servers=cluster.bootstrap_servers,
        auto_offset_reset="earliest",
        consumer_timeout_ms=10_000,
    )
    with contextlib.closing(consumer):
        found = [next(consumer) for _ in range(100)]
    assert [message.value for message in found] == [b"%d" % number for number in range(100)]
    assert [message.headers for message in found] == [[("n", b"%d" % n)] for n in range(100)]


def test_an_interceptor_comes_before_partitioner_and_serializers(
    scripted: ScriptedCluster,
) -> None:
    seen: list[Any] = []

    class Shout:
        def on_send(self, record: Any) -> Any:
            seen.append((record.key, record.value))
            return record.replace(key=record.key.upper())

    class Mine(Partitioner):  # type: ignore[misc]  # no types there
        def partition(self, *arguments: Any) -> int:
            return 2 if arguments[1:3] == ("K", b"K") else 0

    with connect(
        scripted,
        partitioner=Mine(),
        interceptors=[Shout()],
        key_serializer=str.encode,
        value_serializer=lambda value: repr(value).encode(),
    ) as producer:
        sent = producer.send("t", 5, "k")
        assert sent.get(30).partition == 2
        assert seen == [("k", 5)]
        assert sent.value is not None
        assert sent.value.serialized_value_size == len("5")
