"""``with producer.transaction()``: bodies that end it themselves, and transactions that fail."""

from __future__ import annotations

from typing import Any

import pytest

from pykaproducer import Producer
from pykaproducer.errors import (
    CommitOutcome,
    ProducerBrokenError,
    TransactionAbortableError,
    TransactionStateError,
)
from pykaproducer.testing import MockProducer, ScriptedCluster
from tests.pipeline.helper import SOON, pipeline_of
from tests.transactions.scripted_helper import begun, producer_of

ENDS = {
    "commit_transaction": (
        "committed",
        CommitOutcome.COMMITTED,
        "remove that call",
    ),
    "abort_transaction": (
        "aborted",
        CommitOutcome.NOT_COMMITTED,
        "call abort() of the block's transaction instead",
    ),
    "prepare_transaction": (
        "prepared",
        None,
        "use begin_transaction() instead of the block",
    ),
}


def write(producer: Producer, end: str, error: Exception | None = None) -> None:
    with producer.transaction():
        producer.send("t", b"value", partition=0)
        getattr(producer, end)()
        if error is not None:
            raise error


@pytest.mark.parametrize("end", sorted(ENDS))
def test_an_end_in_the_body(scripted: ScriptedCluster, end: str) -> None:
    done, outcome, advice = ENDS[end]
    said = f"the transaction of the with block was already {done} by {end}()"
    with producer_of(scripted) as producer:
        with pytest.raises(TransactionStateError) as raised:
            write(producer, end)
        assert str(raised.value) == f"transactional id 'orders-0': {said}; {advice}"
        assert raised.value.outcome is outcome
        assert raised.value.transactional_id == "orders-0"
    committed = scripted.log("t", 0, committed=True)
    assert len(committed) == (outcome is CommitOutcome.COMMITTED)


def test_an_exception_after_the_end(scripted: ScriptedCluster) -> None:
    """The program must not believe that the exception has aborted it."""
    with producer_of(scripted) as producer:
        with pytest.raises(ZeroDivisionError) as raised:
            write(producer, "commit_transaction", ZeroDivisionError())
        assert raised.value.__notes__ == [
            "the transaction of the with block was already committed by commit_transaction()"
        ]


def test_another_transaction_in_the_body(scripted: ScriptedCluster) -> None:
    """The end of the block commits it, and the next block begins without memory of this one."""
    with producer_of(scripted) as producer:
        with producer.transaction():
            producer.send("t", b"1", partition=0)
            producer.commit_transaction()
            producer.begin_transaction()
            producer.send("t", b"2", partition=0)
        producer.begin_transaction()
        producer.commit_transaction()
        with producer.transaction():
            producer.send("t", b"3", partition=0)
    assert [each.value for each in scripted.log("t", 0, committed=True)] == [b"1", b"2", b"3"]


def test_a_block_in_a_transaction(scripted: ScriptedCluster) -> None:
    text = r": transaction\(\): a transaction is open; leave its with block first$"
    with producer_of(scripted) as producer, producer.transaction():
        with pytest.raises(TransactionStateError, match=text), producer.transaction():
            pass
        producer.send("t", b"value", partition=0)
    assert [each.value for each in scripted.log("t", 0, committed=True)] == [b"value"]


def test_a_mock_does_the_same() -> None:
    with MockProducer(transactional_id="orders-0") as mock:
        with pytest.raises(TransactionStateError, match="already committed by commit"):
            write(mock, "commit_transaction")
        assert len(mock.history()) == 1


def test_a_block_that_cannot_be_committed_says_that_it_has_aborted(
    scripted: ScriptedCluster,
) -> None:
    """The text of the error is that of the call, after which the caller has to abort."""

    def fail(in_block: bool) -> None:
        with producer.transaction():
            producer.send("t", b"value", partition=99).exception(SOON)
            if in_block:
                producer.send("t", b"value")

    with producer_of(scripted) as producer:
        for in_block in (False, True):
            with pytest.raises(TransactionAbortableError) as raised:
                fail(in_block)
            assert raised.value.__notes__ == [
                "the with block has aborted the transaction; the next one can begin"
            ]


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_an_error_in_the_library(
    scripted: ScriptedCluster, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing hangs, if the coordinator's stage dies."""

    def crash(*_arguments: Any) -> None:
        raise ArithmeticError("a bug")

    with producer_of(scripted) as producer:
        begun(producer)
        producer.send("t", b"value").result(SOON)
        coordinator = pipeline_of(producer).coordinator
        assert coordinator is not None
        monkeypatch.setattr(coordinator.machine, end, crash)
        for _ in range(2):
            with pytest.raises(ProducerBrokenError) as raised:
                getattr(producer, f"{end}_transaction")()
            assert isinstance(raised.value.__cause__, ArithmeticError)
            assert raised.value.outcome is CommitOutcome.NOT_COMMITTED
            assert "the message" not in str(raised.value)
