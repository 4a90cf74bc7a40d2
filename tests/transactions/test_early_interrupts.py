"""Interrupts before a call reaches the coordinator's stage, and after the stage has answered.

A signal may come at the first and at the last instruction of a call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pykaproducer import PreparedTransaction, Producer, transactions
from pykaproducer._pipeline import waiting_callers
from pykaproducer._pipeline.coordinator_items import CallerLeft
from pykaproducer.errors import TransactionStateError
from pykaproducer.testing import ScriptedCluster
from tests.pipeline.helper import SOON, pipeline_of

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


def test_the_abort_of_a_block_that_cannot_be_committed(
    scripted: ScriptedCluster, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is interrupted as it begins; the transaction is aborted, and the next one commits."""
    monkeypatch.setattr(producer, "abort_transaction", interrupt_once(producer.abort_transaction))
    with pytest.raises(KeyboardInterrupt), producer.transaction():  # noqa: PT012 - the end raises it
        producer.send("t", b"dropped", partition=0).result(SOON)
        assert producer.send("t", b"nowhere", partition=99).exception(SOON) is not None
    with producer.transaction():
        producer.send("t", b"next", partition=0)
    assert values(scripted) == [b"next"]


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


@pytest.mark.parametrize("again", [False, True], ids=["once", "twice"])
def test_a_commit_that_is_interrupted_after_its_answer(
    scripted: ScriptedCluster, producer: Producer, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """The same call returns the outcome, also if an interrupt comes while one is handled."""
    stage = pipeline_of(producer).coordinator
    assert stage is not None
    wait, put = waiting_callers.threads.acquire, stage._waiting._put

    def acquire(*arguments: Any) -> None:
        wait(*arguments)
        raise KeyboardInterrupt

    def put_nothing(item: Any) -> None:
        """Do not report to the stage that a caller has left."""
        if isinstance(item, CallerLeft):
            raise KeyboardInterrupt
        put(item)

    producer.begin_transaction()
    producer.send("t", b"value", partition=0)
    with monkeypatch.context() as patch:
        patch.setattr(waiting_callers.threads, "acquire", acquire)
        if again:
            patch.setattr(stage._waiting, "_put", put_nothing)
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
    assert values(scripted) == [b"value"]
