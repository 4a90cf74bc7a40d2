"""What the errors say about the reason, and what to do."""

from __future__ import annotations

import pytest

from pykaproducer import Status
from pykaproducer._errors.codes import ErrorCode
from pykaproducer._machines.transaction_states import (
    FailureKind,
    TransactionFailure,
    TransactionState,
)
from pykaproducer._pipeline import transaction_errors
from pykaproducer.errors import (
    BrokerRejectedError,
    DeliveryFailures,
    TransactionAbortedError,
    TransactionError,
    TransactionStateError,
)
from pykaproducer.testing import ScriptedCluster
from pykaproducer.testing.scripted import Refuse, proceed
from tests.pipeline.helper import SOON
from tests.transactions.scripted_helper import begun, producer_of


def test_calls_after_a_failed_initialization(scripted: ScriptedCluster) -> None:
    """The program may have caught the error: it is the reason."""
    scripted.always("init_producer_id", Refuse(ErrorCode.INVALID_TRANSACTION_TIMEOUT))
    with producer_of(scripted) as producer:
        for call in (producer.init_transactions, producer.transaction().__enter__):
            with pytest.raises(TransactionError, match=r"brokers' transaction\.max\.timeout\.ms"):
                call()
        calls = {"begin_transaction": (), "commit_transaction": (), "send": ("t", b"value")}
        for name, arguments in calls.items():
            with pytest.raises(TransactionStateError) as raised:
                getattr(producer, name)(*arguments)
            assert isinstance(raised.value.__cause__, TransactionError)
            text = str(raised.value)
            assert f"{name}(): init_transactions() failed: INIT_PRODUCER_ID returned" in text
            assert "INVALID_TRANSACTION_TIMEOUT (50); transaction_timeout_ms is above" in text
            assert text.endswith("; call it again")
        scripted.always("init_producer_id", proceed)
        begun(producer)


def test_an_epoch_that_is_refused_without_transactions() -> None:
    """There is no transactional id to speak of."""
    with ScriptedCluster(topics={"t": 1}) as scripted:
        scripted.always("produce", Refuse(ErrorCode.INVALID_PRODUCER_EPOCH))
        with scripted.producer(enable_idempotence=False) as producer:
            error = producer.send("t", b"value").exception(SOON)
        assert isinstance(error, BrokerRejectedError)
        assert "transactional id" not in str(error)


def test_close_without_a_commit(scripted: ScriptedCluster) -> None:
    advice = r"was aborted when the producer was closed; call commit_transaction\(\) before close"
    producer = scripted.producer(transactional_id="orders-0", linger_ms=60_000)
    begun(producer)
    delivery = producer.send("t", b"value", partition=0)
    with pytest.raises(DeliveryFailures, match=advice), producer:
        pass
    assert isinstance(delivery.exception(0), TransactionAbortedError)


def test_an_abort_says_nothing_of_close(scripted: ScriptedCluster) -> None:
    with producer_of(scripted, linger_ms=60_000) as producer:
        begun(producer)
        error = producer.send("t", b"value", partition=0).exception
        producer.abort_transaction()
        assert "its transaction was aborted (" in str(error(0))
        assert error(0).status is Status.NOT_PERSISTED


def test_a_timeout_says_what_to_change() -> None:
    for kind in (FailureKind.ABORTABLE, FailureKind.FENCED):
        failure = TransactionFailure(kind, TransactionState.IN_TRANSACTION, timed_out=True)
        text = str(transaction_errors.error_of(failure, "orders-0"))
        assert ": transaction_timeout_ms has passed; " in text
        assert "; make transactions smaller, or raise transaction_timeout_ms" in text


def test_no_offsets_before_anything(scripted: ScriptedCluster) -> None:
    """As documented, that has no effect in any state."""
    with producer_of(scripted) as producer:
        producer.send_offsets_to_transaction({}, "readers")
