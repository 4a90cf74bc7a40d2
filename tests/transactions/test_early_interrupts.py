"""Interrupts before a call reaches the coordinator's stage, and after the stage has answered.

A signal may come at the first and at the last instruction of a call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pykaproducer import PreparedTransaction, Producer, transactions
from pykaproducer.errors import TransactionStateError
from pykaproducer.testing import ScriptedCluster
from tests.pipeline.helper import SOON

from .scripted_helper import producer_of, values


@pytest.fixture
def scripted() -> Iterator[ScriptedCluster]:
    with ScriptedCluster(topics={"t": 1}) as made:
        yield made


@pytest.fixture
def producer(scripted: ScriptedCluster) -> Iterator[Producer]:
    with producer_of(scripted) as made:
        made.init_transactions()
        yield made


def interrupt_once(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return *call*, whose first call is interrupted before it does anything."""
    rest: list[BaseException] = [KeyboardInterrupt()]

    def interrupted(*arguments: Any) -> Any:
        if rest:
            raise rest.pop()
        return call(*arguments)

    return interrupted


def interrupt_first(monkeypatch: pytest.MonkeyPatch, producer: Producer, call: str) -> None:
    """Interrupt the first call of the method *call* as it begins."""
    check = producer._check_may_control
    rest: list[BaseException] = [KeyboardInterrupt()]

    def checked(what: str) -> None:
        if what == f"{call}()" and rest:
            raise rest.pop()
        check(what)

    monkeypatch.setattr(producer, "_check_may_control", checked)


def assert_aborted(
    scripted: ScriptedCluster, producer: Producer, interrupted: Callable[[], None]
) -> None:
    """Run the block *interrupted*; its transaction is aborted, and the next one commits."""
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    with producer.transaction():
        producer.send("t", b"next", partition=0)
    assert values(scripted) == [b"next"]


@pytest.mark.parametrize("end", ["commit_transaction", "abort_transaction"])
def test_the_end_of_a_block_that_was_not_asked_for(
    scripted: ScriptedCluster, producer: Producer, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """There is no block any more that could end the transaction, so it must not stay open."""

    def work() -> None:
        with producer.transaction() as transaction:
            producer.send("t", b"dropped", partition=0).result(SOON)
            if end == "abort_transaction":
                transaction.abort()

    interrupt_first(monkeypatch, producer, end)
    assert_aborted(scripted, producer, work)


def test_the_abort_of_a_block_that_cannot_be_committed(
    scripted: ScriptedCluster, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work() -> None:
        with producer.transaction():
            producer.send("t", b"dropped", partition=0).result(SOON)
            assert producer.send("t", b"nowhere", partition=99).exception(SOON) is not None

    interrupt_first(monkeypatch, producer, "abort_transaction")
    assert_aborted(scripted, producer, work)


def test_a_token_that_was_not_returned_is_returned_again(
    scripted: ScriptedCluster, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its token a prepared transaction could not be completed."""
    producer.begin_transaction()
    producer.send("t", b"value", partition=0)
    monkeypatch.setattr(transactions, "PreparedTransaction", interrupt_once(PreparedTransaction))
    with pytest.raises(KeyboardInterrupt):
        producer.prepare_transaction()
    with pytest.raises(TransactionStateError, match=r"prepare_transaction\(\) is under way"):
        producer.init_transactions(transactional_id="another")
    prepared = producer.prepare_transaction()
    assert isinstance(prepared, PreparedTransaction)
    assert not prepared.empty
    producer.init_transactions(transactional_id="another")
