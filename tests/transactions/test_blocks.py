"""``with producer.transaction()`` when its body ends the transaction itself."""

from __future__ import annotations

import pytest

from pykaproducer import Producer
from pykaproducer.errors import CommitOutcome, TransactionStateError
from pykaproducer.testing import MockProducer, ScriptedCluster
from tests.transactions.scripted_helper import producer_of

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
