"""Calls that do not fit: the error names the call, what is the matter, and what to call."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from pykaproducer import Producer
from pykaproducer.errors import (
    CallbackThreadError,
    CommitOutcome,
    ProducerBrokenError,
    ProducerClosedError,
    TransactionAbortableError,
    TransactionStateError,
    TransactionTimeoutError,
)
from pykaproducer.testing._processes import tick
from tests.transactions.helper import PATIENCE, Kafka, calls_of

CONTROLS: dict[str, Callable[[Producer], Any]] = {
    "begin_transaction": lambda producer: producer.begin_transaction(),
    "commit_transaction": lambda producer: producer.commit_transaction(),
    "abort_transaction": lambda producer: producer.abort_transaction(),
}
EVERY = CONTROLS | {"init_transactions": lambda producer: producer.init_transactions()}
SENDS: dict[str, Callable[[Producer], Any]] = {
    "send": lambda producer: producer.send("refused", b"value"),
    "send_many": lambda producer: producer.send_many("refused", [b"value"]),
}


def assert_refused(producer: Producer, *names: str, because: str, advice: str) -> None:
    for name in names:
        call = (CONTROLS | SENDS)[name]
        with pytest.raises(TransactionStateError) as raised:
            call(producer)
        # Blocks are refused as their messages are.
        assert f"{name.removesuffix('_many')}(): {because}" in str(raised.value)
        assert str(raised.value).endswith(f"; call {advice}()")
        assert repr(producer.config.transactional_id) in str(raised.value)
        assert not (raised.value.fatal)
        assert not (raised.value.abortable)
        assert not (raised.value.retriable)


def test_before_init_transactions(kafka: Kafka) -> None:
    with kafka.producer() as producer:
        assert_refused(
            producer,
            *CONTROLS,
            *SENDS,
            because="init_transactions() has not been called",
            advice="init_transactions",
        )


def test_without_a_transaction(kafka: Kafka, topic: str) -> None:
    with kafka.producer() as producer:
        producer.init_transactions()
        for end in (None, "commit_transaction", "abort_transaction"):
            if end is not None:
                producer.begin_transaction()
                producer.send(topic, b"value", partition=0)
                CONTROLS[end](producer)
            assert_refused(
                producer,
                "commit_transaction",
                "abort_transaction",
                *SENDS,
                because="there is no transaction",
                advice="begin_transaction",
            )
    assert kafka.committed(topic) == [b"value"]


def test_in_a_transaction(kafka: Kafka, topic: str) -> None:
    with kafka.producer() as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for call in (producer.begin_transaction, producer.init_transactions):
            with pytest.raises(
                TransactionStateError, match=r"\(\): a transaction is open; call commit"
            ):
                call()
        producer.send(topic, b"value")
        producer.commit_transaction()
    assert kafka.committed(topic) == [b"value"]


def test_in_a_transaction_that_has_failed(kafka: Kafka, topic: str) -> None:
    with kafka.producer() as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"value", partition=99).exception(PATIENCE)
        calls = (
            producer.init_transactions,
            producer.begin_transaction,
            producer.commit_transaction,
            lambda: producer.send(topic, b"value"),
            lambda: producer.send_many(topic, [b"value"]),
        )
        for call in calls:
            with pytest.raises(TransactionAbortableError, match=r"must be aborted: .*partition 99"):
                call()
        producer.abort_transaction()
        assert_refused(
            producer, "send", because="there is no transaction", advice="begin_transaction"
        )


def test_a_with_block_says_that_it_has_aborted(kafka: Kafka, topic: str) -> None:
    """The text of the error is that of the call, after which the caller has to abort."""
    with kafka.producer() as producer:

        def fail(in_block: bool) -> None:
            with producer.transaction():
                producer.send(topic, b"value", partition=99).exception(PATIENCE)
                if in_block:
                    producer.send(topic, b"value")

        for in_block in (False, True):
            with pytest.raises(TransactionAbortableError) as raised:
                fail(in_block)
            assert raised.value.__notes__ == [
                "the with block has aborted the transaction; the next one can begin"
            ]


@pytest.mark.parametrize("end", ["commit_transaction", "abort_transaction"])
def test_a_with_block_in_which_the_transaction_was_ended(
    kafka: Kafka, topic: str, end: str
) -> None:
    with kafka.producer() as producer:

        def write() -> None:
            with producer.transaction():
                producer.send(topic, b"value", partition=0)
                getattr(producer, end)()

        with pytest.raises(TransactionStateError, match=f"was already .* by {end}") as raised:
            write()
        committed = raised.value.outcome is CommitOutcome.COMMITTED
        assert committed == (end == "commit_transaction")
        with producer.transaction():
            producer.send(topic, b"next", partition=0)
    first = [b"value"] if end == "commit_transaction" else []
    assert kafka.committed(topic) == [*first, b"next"]


def test_without_a_transactional_id(kafka: Kafka) -> None:
    with Producer(bootstrap_servers=kafka.cluster.bootstrap_servers) as producer:
        for name, call in EVERY.items():
            with pytest.raises(TransactionStateError, match=rf"^{name}\(\): .*transactional_id"):
                call(producer)


def test_after_close(kafka: Kafka, topic: str) -> None:
    producer = kafka.producer()
    with producer.transaction():
        producer.send(topic, b"value")
    producer.close()
    for call in EVERY.values():
        with pytest.raises(ProducerClosedError, match="the producer is closed"):
            call(producer)


@pytest.mark.parametrize("call", ["commit", "abort"])
def test_after_an_error_in_the_library(
    kafka: Kafka, topic: str, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing hangs, if the coordinator's stage dies."""

    def crash(*_arguments: Any) -> None:
        raise ArithmeticError("a bug")

    producer = kafka.producer()
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(topic, b"value").result(PATIENCE)
    assert producer._pipeline is not None
    assert producer._pipeline.coordinator is not None
    monkeypatch.setattr(producer._pipeline.coordinator.machine, call, crash)
    for _ in range(2):
        with pytest.raises(ProducerBrokenError) as raised:
            CONTROLS[f"{call}_transaction"](producer)
        assert isinstance(raised.value.__cause__, ArithmeticError)
    producer.close()


def test_in_a_callback(kafka: Kafka, topic: str) -> None:
    errors: list[str] = []

    def on_delivery(_error: Any, _delivery: Any) -> None:
        for name, call in EVERY.items():
            with pytest.raises(CallbackThreadError) as raised:
                call(producer)
            errors.append(f"{name}() was called from a callback")
            assert str(raised.value).startswith(errors[-1])

    with kafka.producer() as producer, producer.transaction():
        producer.send(topic, b"value", on_delivery=on_delivery)
    assert len(errors) == len(EVERY)
    assert kafka.committed(topic) == [b"value"]


def test_calls_while_a_commit_waits_for_a_callback(kafka: Kafka, topic: str) -> None:
    """The same call waits for the same end, another one is refused."""
    started, go_on = threading.Event(), threading.Event()

    def on_delivery(_error: Any, _delivery: Any) -> None:
        started.set()
        go_on.wait(PATIENCE)

    with kafka.producer() as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"value", on_delivery=on_delivery)
        with pytest.raises(TransactionTimeoutError, match=r"commit_transaction\(\) has not ended"):
            producer.commit_transaction(0.001)
        for call in (producer.abort_transaction, producer.begin_transaction):
            with pytest.raises(
                TransactionStateError, match=r"commit_transaction\(\) is under way; call that again"
            ):
                call()
        commits = [threading.Thread(target=producer.commit_transaction) for _ in range(2)]
        for commit in commits:
            commit.start()
        assert started.wait(PATIENCE)
        calls = calls_of(producer)
        while calls.under_way is None or len(calls.under_way.callers) < 2:
            tick()
        go_on.set()
        for commit in commits:
            commit.join(PATIENCE)
        producer.begin_transaction()
        producer.abort_transaction()
    assert kafka.committed(topic) == [b"value"]
