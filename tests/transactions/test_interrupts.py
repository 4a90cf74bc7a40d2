"""Calls that are interrupted: the same call returns the outcome, and nothing is left open."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pykaproducer import Producer
from pykaproducer._pipeline import waiting_callers
from pykaproducer._pipeline.coordinator_items import CallerLeft
from pykaproducer.errors import CommitOutcome, TransactionStateError, TransactionTimeoutError
from tests.transactions.helper import PATIENCE, Kafka


@contextmanager
def interrupt_after_the_wait(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Interrupt each call of this block between its result and its return."""
    wait = waiting_callers.threads.acquire

    def interrupted(*arguments: Any) -> bool:
        wait(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(waiting_callers.threads, "acquire", interrupted)
        yield


@pytest.mark.parametrize("again", [False, True], ids=["once", "twice"])
def test_an_interrupted_commit_returns_its_outcome_later(
    kafka: Kafka, topic: str, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """Also if a second interrupt comes while the first one is handled."""
    with kafka.producer() as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"value", partition=0)
        with monkeypatch.context() as patch, interrupt_after_the_wait(patch):
            if again:
                lose_items_of(patch, producer)
            with pytest.raises(KeyboardInterrupt) as raised:
                producer.commit_transaction()
            if not again:
                (note,) = raised.value.__notes__
                assert "call commit_transaction() again to learn its outcome" in note
        with pytest.raises(TransactionStateError, match=r"commit_transaction\(\) is under way"):
            producer.begin_transaction()
        producer.commit_transaction()
        with pytest.raises(TransactionStateError, match="there is no transaction"):
            producer.commit_transaction()
        with producer.transaction():
            producer.send(topic, b"next", partition=0)
    assert kafka.committed(topic) == [b"value", b"next"]


def lose_items_of(patch: pytest.MonkeyPatch, producer: Producer) -> None:
    """Interrupt each attempt to report to the stage that a caller has left."""
    assert producer._pipeline is not None
    stage = producer._pipeline.coordinator
    assert stage is not None
    put = stage._waiting._put

    def interrupted(item: Any) -> None:
        if isinstance(item, CallerLeft):
            raise KeyboardInterrupt
        put(item)

    patch.setattr(stage._waiting, "_put", interrupted)


@pytest.mark.parametrize("end", ["abort", "init"])
def test_other_calls_may_be_repeated(
    kafka: Kafka, topic: str, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    with kafka.producer() as producer:
        if end == "init":
            with interrupt_after_the_wait(monkeypatch), pytest.raises(KeyboardInterrupt):
                producer.init_transactions()
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"dropped", partition=0).result(PATIENCE)
        if end == "abort":
            with interrupt_after_the_wait(monkeypatch), pytest.raises(KeyboardInterrupt):
                producer.abort_transaction()
        producer.abort_transaction()
        with producer.transaction():
            producer.send(topic, b"next", partition=0)
    assert kafka.committed(topic) == [b"next"]


def test_a_block_that_is_interrupted_before_its_body(
    kafka: Kafka, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No transaction stays open without a block that would end it."""
    with kafka.producer() as producer:
        producer.init_transactions()
        with monkeypatch.context() as patch:
            begin = producer.begin_transaction

            def interrupted() -> None:
                begin()
                raise KeyboardInterrupt

            patch.setattr(producer, "begin_transaction", interrupted)
            with pytest.raises(KeyboardInterrupt), producer.transaction():
                raise AssertionError("the body runs")
        with producer.transaction():
            producer.send(topic, b"next", partition=0)
    assert kafka.committed(topic) == [b"next"]


def test_a_timeout_while_a_callback_runs(kafka: Kafka, topic: str) -> None:
    """It says that the transaction is committed."""
    go_on = threading.Event()
    with kafka.producer() as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(
            topic, b"value", partition=0, on_delivery=lambda *_: go_on.wait(PATIENCE)
        ).result(PATIENCE)
        outcome = None
        while outcome is not CommitOutcome.COMMITTED:
            with pytest.raises(TransactionTimeoutError) as raised:
                producer.commit_transaction(0.1)
            outcome = raised.value.outcome
        assert "the transaction is committed, but callbacks" in str(raised.value)
        assert kafka.committed(topic) == [b"value"], "callbacks do not delay its end"
        with pytest.raises(TransactionStateError, match=r"commit_transaction\(\) is under way"):
            producer.begin_transaction()
        go_on.set()
        producer.commit_transaction()
