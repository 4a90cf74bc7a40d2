"""Wrong calls and wrong arguments: the error says what to do, and nothing is left half done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from pykaproducer import (
    CallbackThreadError,
    Producer,
    ProducerClosedError,
    ProducerFencedError,
    TopicPartition,
    TransactionAbortableError,
    TransactionError,
    TransactionStateError,
    TransactionTimeoutError,
)
from pykaproducer.interceptors import Interceptor
from pykaproducer.transaction_control import CommittedOffset
from tests.transactions.helper import PATIENCE, Kafka

Call = Callable[[Producer, str], Any]


def place(topic: str, partition: int = 0) -> TopicPartition:
    return TopicPartition(topic, partition)


def offsets_of(producer: Producer, topic: str) -> None:
    producer.send_offsets_to_transaction({place(topic): 1}, f"group-{topic}")


def in_a_block(producer: Producer, topic: str) -> None:
    with producer.transaction():
        raise AssertionError("there is no transaction")


CALLS: dict[str, Call] = {
    "init_transactions": lambda p, topic: p.init_transactions(),
    "init_transactions, another id": lambda p, topic: p.init_transactions(
        transactional_id=f"{topic}-other"
    ),
    "begin_transaction": lambda p, topic: p.begin_transaction(),
    "transaction": in_a_block,
    "send_offsets_to_transaction": offsets_of,
    "commit_transaction": lambda p, topic: p.commit_transaction(),
    "abort_transaction": lambda p, topic: p.abort_transaction(),
    "prepare_transaction": lambda p, topic: p.prepare_transaction(),
    "send": lambda p, topic: p.send(topic, b"never"),
    "send_many": lambda p, topic: p.send_many(topic, [b"never"]),
}

# States -------------------------------------------------------------------------------------------


def _new(kafka: Kafka, producer: Producer, topic: str) -> None:
    pass


def _ready(kafka: Kafka, producer: Producer, topic: str) -> None:
    producer.init_transactions()


def _open(kafka: Kafka, producer: Producer, topic: str) -> None:
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(topic, b"before", partition=0).result(PATIENCE)


def _failed(kafka: Kafka, producer: Producer, topic: str) -> None:
    _open(kafka, producer, topic)
    assert producer.send(topic, b"nowhere", partition=99).exception(PATIENCE)
    with pytest.raises(TransactionAbortableError):  # after the report of the failure
        producer.commit_transaction()


def _prepared(kafka: Kafka, producer: Producer, topic: str) -> None:
    _open(kafka, producer, topic)
    producer.prepare_transaction()


def _fenced(kafka: Kafka, producer: Producer, topic: str) -> None:
    _open(kafka, producer, topic)
    with kafka.producer(transactional_id=producer.config.transactional_id) as other:
        other.init_transactions()
    with pytest.raises(ProducerFencedError):
        producer.commit_transaction()


def _closed(kafka: Kafka, producer: Producer, topic: str) -> None:
    _ready(kafka, producer, topic)
    producer.close()


class State(NamedTuple):
    """A state, and what the calls that do not fit raise in it."""

    reach: Callable[[Kafka, Producer, str], None]
    #: The calls that fit.
    fits: tuple[str, ...]
    error: type[Exception]
    #: In the text, after the name of the call.
    text: str
    #: The calls after which a transaction can begin; None: never.
    then: tuple[str, ...] | None
    #: The committed messages of the state; those that the test sends later come after them.
    visible: tuple[bytes, ...] = ()


STATES: dict[str, State] = {
    "new": State(
        _new,
        ("init_transactions", "init_transactions, another id", "transaction"),
        TransactionStateError,
        r"init_transactions\(\) has not been called; call init_transactions\(\)$",
        ("init_transactions",),
    ),
    "ready": State(
        _ready,
        (
            "init_transactions",
            "init_transactions, another id",
            "begin_transaction",
            "transaction",
        ),
        TransactionStateError,
        r"there is no transaction; call begin_transaction\(\)$",
        (),
    ),
    "open": State(
        _open,
        (
            "send_offsets_to_transaction",
            "commit_transaction",
            "abort_transaction",
            "prepare_transaction",
            "send",
            "send_many",
        ),
        TransactionStateError,
        r"a transaction is open; call commit_transaction\(\) or abort_transaction\(\) first$",
        ("commit_transaction",),
        (b"before",),
    ),
    "failed": State(
        _failed,
        ("abort_transaction",),
        TransactionAbortableError,
        r"the transaction must be aborted: .*partition 99",
        ("abort_transaction",),
    ),
    "prepared": State(
        _prepared,
        ("init_transactions", "init_transactions, another id"),
        TransactionStateError,
        r"the last transaction was prepared; call init_transactions\(\) with another .*$",
        ("init_transactions",),
    ),
    "fenced": State(
        _fenced,
        (),
        ProducerFencedError,
        "another producer has taken over the transactional id",
        None,
    ),
    "closed": State(_closed, (), ProducerClosedError, "the producer (is|was) closed", None),
}


@pytest.mark.parametrize("name", STATES)
def test_calls_that_do_not_fit(kafka: Kafka, topic: str, name: str) -> None:
    """They change nothing: afterwards the call that fits works, and so does a transaction."""
    state = STATES[name]
    with kafka.producer() as producer:
        state.reach(kafka, producer, topic)
        for call in CALLS.keys() - set(state.fits):
            with pytest.raises(state.error, match=state.text) as raised:
                CALLS[call](producer, topic)
            error = raised.value
            if isinstance(error, TransactionError):
                assert repr(producer.config.transactional_id) in str(error)
                assert error.transactional_id == producer.config.transactional_id
                assert error.fatal is (name == "fenced")
                assert error.abortable is (name == "failed")
                assert not error.retriable
            if state.error is TransactionStateError:
                method = {"send_many": "send"}
                own = call.partition(",")[0]
                method["transaction"] = "transaction" if name == "open" else "begin_transaction"
                assert f" {method.get(own, own)}(): " in str(error)
        if state.then is not None:
            for call in state.then:
                CALLS[call](producer, topic)
            with producer.transaction():
                producer.send(topic, b"after", partition=0)
    visible = [*state.visible, *([b"after"] if state.then is not None else [])]
    assert kafka.committed(topic) == visible


# Places from which no call may wait ---------------------------------------------------------------


def everything(producer: Producer, topic: str) -> list[str]:
    """Try all control calls, and return the names of those that the thread may not call."""
    refused = []
    for name in CALLS.keys() - {"send", "send_many"}:
        with pytest.raises(
            CallbackThreadError, match="called from a callback, partitioner, serializer"
        ):
            CALLS[name](producer, topic)
        refused.append(name)
    return refused


CONTROLS = CALLS.keys() - {"send", "send_many"}


def test_from_a_callback(kafka: Kafka, topic: str) -> None:
    refused: list[str] = []
    with kafka.producer() as producer, producer.transaction():
        producer.send(
            topic, b"x", on_delivery=lambda *_: refused.extend(everything(producer, topic))
        )
    assert set(refused) == CONTROLS
    assert kafka.committed(topic) == [b"x"]


def test_from_a_partitioner(kafka: Kafka, topic: str) -> None:
    refused: list[str] = []

    def choose(*arguments: Any) -> int:
        refused.extend(everything(producer, topic))
        return 0

    with kafka.producer(partitioner=choose) as producer, producer.transaction():
        producer.send(topic, b"x", key=b"key")
    assert set(refused) == CONTROLS
    assert kafka.committed(topic) == [b"x"]


def test_from_an_interceptor_of_outcomes(kafka: Kafka, topic: str) -> None:
    refused: list[str] = []

    class Watch(Interceptor):
        def on_acknowledgement(self, *arguments: Any, **more: Any) -> None:
            refused.extend(everything(producer, topic))

    with kafka.producer(interceptors=[Watch()]) as producer, producer.transaction():
        producer.send(topic, b"x")
    assert set(refused) == CONTROLS
    assert kafka.committed(topic) == [b"x"]


def test_from_a_serializer(kafka: Kafka, topic: str) -> None:
    """It runs within ``send()``, whose transaction it could end."""
    refused: list[str] = []

    def serialize(value: bytes) -> bytes:
        if value == b"calls":
            refused.extend(everything(producer, topic))
        return value

    with kafka.producer(value_serializer=serialize) as producer, producer.transaction():
        producer.send(topic, b"calls", partition=0)
    assert set(refused) == CONTROLS
    assert kafka.committed(topic)[-1] == b"calls"


# Arguments ----------------------------------------------------------------------------------------


class Consumer:
    """A consumer without a group."""

    def group_metadata(self) -> Any:
        return None


WRONG_OFFSETS: list[tuple[Callable[[str], Any], Any, type[Exception], str]] = [
    (lambda topic: 7, "g", TypeError, "offsets must be a dict"),
    (lambda topic: topic, "g", TypeError, "offsets must be a dict"),
    (lambda topic: {topic: 1}, "g", TypeError, "the keys of offsets, .* must have the attribute"),
    (lambda topic: [1], "g", TypeError, "a list of offsets must have the attribute 'offset'"),
    (lambda topic: {place(topic): "1"}, "g", TypeError, "must have the attribute 'offset'"),
    (lambda topic: {place(topic): True}, "g", TypeError, "must have the attribute 'offset'"),
    (lambda topic: {place(topic): 1.5}, "g", TypeError, "must have the attribute 'offset'"),
    (lambda topic: {place(topic): -1}, "g", ValueError, "the offset is -1, but must be 0 to"),
    (lambda topic: {place(topic): 2**63}, "g", ValueError, r"but must be 0 to 2\*\*63 - 1"),
    (lambda topic: {place(topic, -1): 1}, "g", ValueError, "partition's number is -1, but must"),
    (lambda topic: {place(""): 1}, "g", ValueError, "a topic's name is empty"),
    (
        lambda topic: {place(topic): CommittedOffset(1, -1, b"x")},  # type: ignore[arg-type]
        "g",
        TypeError,
        "the metadata of an offset must be a str, not bytes",
    ),
    (
        lambda topic: {place(topic): CommittedOffset(1, -1, "x" * 40_000)},
        "g",
        ValueError,
        "the metadata of an offset has 40000 bytes, more than 32767",
    ),
    (lambda topic: {place(topic): 1}, "", ValueError, "the group's name is empty"),
    (lambda topic: {place(topic): 1}, None, TypeError, "the group must be its name"),
    (lambda topic: {place(topic): 1}, 7, TypeError, "the group must be its name"),
    (lambda topic: {place(topic): 1}, Consumer(), TypeError, "the group must be its name"),
    (lambda topic: {place(topic): 1}, b"g", ValueError, "the group's metadata are bytes"),
]


def test_offsets_and_groups_that_are_none(kafka: Kafka, topic: str) -> None:
    """They are refused before anything is sent, and the transaction continues."""
    with kafka.producer() as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for offsets, group, error, text in WRONG_OFFSETS:
            with pytest.raises(error, match=text):
                producer.send_offsets_to_transaction(offsets(topic), group)
        producer.send(topic, b"x", partition=0)
        producer.send_offsets_to_transaction({}, "g")  # nothing to do
        offsets_of(producer, topic)
        producer.commit_transaction()
    assert kafka.committed(topic) == [b"x"]


def assert_goes_on(kafka: Kafka, producer: Producer, topic: str, *names: str) -> None:
    """Assert that the transaction must be aborted, says why, and that the next one works."""
    for call in (producer.commit_transaction, lambda: producer.send(topic, b"x")):
        with pytest.raises(TransactionAbortableError) as raised:
            call()
        for name in names:
            assert name in str(raised.value)
    producer.abort_transaction()
    with producer.transaction():
        producer.send(topic, b"after", partition=0)
        offsets_of(producer, topic)
    assert kafka.committed(topic) == [b"after"]


def test_metadata_that_are_too_long_for_the_brokers(kafka: Kafka, topic: str) -> None:
    with kafka.producer() as producer:
        _open(kafka, producer, topic)
        with pytest.raises(TransactionAbortableError) as raised:
            producer.send_offsets_to_transaction(
                {place(topic): CommittedOffset(1, -1, "x" * 5_000)}, "g"
            )
        assert raised.value.code == 12
        assert_goes_on(kafka, producer, topic, "OFFSET_METADATA_TOO_LARGE (12)")


def test_offsets_of_a_partition_that_there_is_not(kafka: Kafka, topic: str) -> None:
    """It may be created at any time, so it is waited for, up to the timeout."""
    with kafka.producer() as producer:
        _open(kafka, producer, topic)
        for timeout in (0.3, PATIENCE):
            with pytest.raises((TransactionAbortableError, TransactionTimeoutError)) as raised:
                producer.send_offsets_to_transaction({place(topic, 99): 1}, "g", timeout=timeout)
            if raised.value.abortable:
                break
        assert raised.value.code == 3
        assert_goes_on(kafka, producer, topic, "UNKNOWN_TOPIC_OR_PARTITION (3)")


def test_a_timeout_above_the_limit_of_the_brokers(kafka: Kafka, topic: str) -> None:
    """``init_transactions()`` may be repeated, as the brokers' limit can be raised."""
    with kafka.producer(transaction_timeout_ms=2_000_000) as producer:
        for _ in range(2):
            with pytest.raises(TransactionError, match="INVALID_TRANSACTION_TIMEOUT") as raised:
                producer.init_transactions()
            assert raised.value.code == 50
            assert "transaction_timeout_ms" in str(raised.value)
            assert "transaction.max.timeout.ms" in str(raised.value)
            assert not raised.value.fatal
            assert not raised.value.abortable
        with pytest.raises(
            TransactionStateError, match=r"n\(\): init_transactions\(\) failed: .*; call it again$"
        ) as refused:
            producer.begin_transaction()
        assert isinstance(refused.value.__cause__, TransactionError)
        with pytest.raises(TransactionError, match="INVALID_TRANSACTION_TIMEOUT"):
            in_a_block(producer, topic)
    name = producer.config.transactional_id
    with kafka.producer(transactional_id=name) as other, other.transaction():
        other.send(topic, b"x", partition=0)
    assert kafka.committed(topic) == [b"x"]


@pytest.mark.parametrize(
    "timeout", ["1", float("nan"), [], 10**400], ids=lambda each: f"{each!r:.5}"
)
def test_a_timeout_that_is_none(kafka: Kafka, topic: str, timeout: Any) -> None:
    with kafka.producer() as producer:
        calls: list[Callable[[], Any]] = [
            lambda: producer.init_transactions(timeout),
            lambda: producer.commit_transaction(timeout),
            lambda: producer.abort_transaction(timeout),
            lambda: producer.prepare_transaction(timeout),
            lambda: producer.send_offsets_to_transaction({place(topic): 1}, "g", timeout=timeout),
        ]
        for prepare in (lambda: None, producer.init_transactions, producer.begin_transaction):
            prepare()
            for call in calls:
                with pytest.raises((TypeError, ValueError), match="timeout must be a number"):
                    call()
        producer.send(topic, b"x", partition=0)
        producer.commit_transaction()
    assert kafka.committed(topic) == [b"x"]
