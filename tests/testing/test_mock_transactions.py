"""``MockProducer`` with transactions: the real states, and a history of what is committed."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from pykaproducer import (
    AbortedError,
    DeliveryTimeoutError,
    ProducerFencedError,
    TransactionAbortableError,
    TransactionAbortedError,
    TransactionError,
    TransactionFatalError,
    TransactionStateError,
    TransactionTimeoutError,
)
from pykaproducer.delivery import TopicPartition
from pykaproducer.testing import MockKafkaProducer, MockProducer
from tests._support.threads import Call

#: How long another thread may take (seconds).
SOON = 30.0


def mock(**settings: Any) -> MockProducer:
    return MockProducer(transactional_id="mine", **settings)


def begun(**settings: Any) -> MockProducer:
    producer = mock(**settings)
    producer.init_transactions()
    producer.begin_transaction()
    return producer


def values(producer: MockProducer) -> list[bytes | None]:
    return [record.value for record in producer.history()]


def uncommitted(producer: MockProducer) -> list[bytes | None]:
    return [record.value for record in producer.uncommitted_records()]


# What is visible ---------------------------------------------------------------------------------


@pytest.mark.parametrize("auto_complete", [True, False])
def test_the_history_has_what_is_committed(auto_complete: bool) -> None:
    producer = begun(auto_complete=auto_complete)
    first = producer.send("events", b"1")
    producer.send_many("events", [b"2", b"3"])
    assert first.done() is auto_complete
    assert values(producer) == []
    assert uncommitted(producer) == [b"1", b"2", b"3"]
    producer.commit_transaction()
    assert first.result(0).offset == 0
    assert values(producer) == [b"1", b"2", b"3"]
    assert uncommitted(producer) == []
    producer.begin_transaction()
    producer.send("events", b"4")
    assert values(producer) == [b"1", b"2", b"3"]
    producer.commit_transaction()
    assert values(producer) == [b"1", b"2", b"3", b"4"]


def test_what_is_aborted_never_is_in_the_history() -> None:
    producer = begun(auto_complete=False)
    delivered = producer.send("events", b"delivered")
    producer.complete_next()
    pending = producer.send("events", b"pending")
    producer.abort_transaction()
    assert delivered.result(0).offset == 0
    assert isinstance(pending.exception(0), TransactionAbortedError)
    assert values(producer) == uncommitted(producer) == []
    producer.flush()  # the abort has reported it
    with producer.transaction():
        producer.send("events", b"next")
    assert values(producer) == [b"next"]


def test_offsets() -> None:
    producer = begun()
    place = TopicPartition("input", 0)
    producer.send_offsets_to_transaction({place: 17}, "group")
    producer.send_offsets_to_transaction({place: 18, TopicPartition("input", 1): 3}, "group")
    assert producer.uncommitted_offsets() == {"group": {place: 18, TopicPartition("input", 1): 3}}
    assert producer.offsets_history() == []
    producer.commit_transaction()
    assert producer.uncommitted_offsets() == {}
    with producer.transaction():
        producer.send("events", b"no offsets")
    with producer.transaction() as transaction:
        producer.send_offsets_to_transaction({place: 19}, "group")
        transaction.abort()
    assert producer.offsets_history() == [{"group": {place: 18, TopicPartition("input", 1): 3}}]


def test_callbacks_have_run_when_a_commit_returns() -> None:
    told: list[BaseException | None] = []
    producer = begun(auto_complete=False)
    producer.send("events", b"value", on_delivery=lambda error, _: told.append(error))
    producer.commit_transaction()
    assert told == [None]


# States ------------------------------------------------------------------------------------------


def test_without_an_id_there_are_none() -> None:
    producer = MockProducer()
    producer.send("events", b"value")
    assert producer.stats()["transactions"] is None
    for call in (
        producer.init_transactions,
        producer.begin_transaction,
        producer.fence_producer,
        producer.offsets_history,
    ):
        with pytest.raises(TransactionStateError, match="set transactional_id"):
            call()


def test_a_failed_message_makes_it_abortable() -> None:
    producer = begun(auto_complete=False)
    first = producer.send("events", b"1")
    second = producer.send("events", b"2")
    producer.fail_next()
    assert isinstance(first.exception(0), DeliveryTimeoutError)
    outcome = second.exception(0)
    assert isinstance(outcome, TransactionAbortedError)
    assert isinstance(outcome.__cause__, DeliveryTimeoutError)
    with pytest.raises(TransactionAbortableError) as raised:
        producer.commit_transaction()
    assert isinstance(raised.value.__cause__, DeliveryTimeoutError)
    producer.abort_transaction()
    assert values(producer) == []
    with producer.transaction():
        producer.send("events", b"again")
    assert values(producer) == [b"again"]


def test_a_message_that_fails_within_send() -> None:
    producer = begun()
    producer.fail_next(29)
    assert producer.send("events", b"1").exception(0) is not None
    with pytest.raises(TransactionAbortableError):
        producer.commit_transaction()
    producer.abort_transaction()


def test_a_commit_joins_another_one() -> None:
    """One waits for a callback; the same call of another thread waits for the same end."""
    started, go_on = threading.Event(), threading.Event()

    def on_delivery(_error: Any, _delivery: Any) -> None:
        started.set()
        go_on.wait(SOON)

    producer = begun(auto_complete=False)
    producer.send("events", b"value", on_delivery=on_delivery)
    first = Call(producer.commit_transaction)
    assert started.wait(SOON)
    with pytest.raises(TransactionTimeoutError, match="has not ended within its timeout"):
        producer.commit_transaction(0.01)
    second = Call(producer.commit_transaction)
    go_on.set()
    assert (first.outcome(), second.outcome()) == (None, None)
    assert values(producer) == [b"value"]
    producer.begin_transaction()


def test_ctrl_c_in_a_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same call goes on with it."""

    def interrupted() -> int:
        raise KeyboardInterrupt

    producer = begun(auto_complete=False)
    producer.send("events", b"1")
    with monkeypatch.context() as patch:
        patch.setattr(producer._outcomes, "_deliver_all", interrupted)
        with pytest.raises(KeyboardInterrupt):
            producer.commit_transaction()
    producer.commit_transaction()
    assert values(producer) == [b"1"]


# Errors that the test wants ----------------------------------------------------------------------


def test_fence_before_there_is_a_producer() -> None:
    with pytest.raises(TransactionStateError, match=r"init_transactions\(\) has not been called"):
        mock().fence_producer()


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("init_transactions", TransactionTimeoutError("slow")),
        ("begin_transaction", TransactionStateError("no")),
        ("commit_transaction", TransactionTimeoutError("slow")),
        ("abort_transaction", TransactionFatalError("no")),
    ],
)
def test_an_error_before_a_call_does_anything(call: Any, error: Exception) -> None:
    producer = mock()
    producer.raise_next(call, error)
    for name in ("init_transactions", "begin_transaction", "commit_transaction"):
        if name == call:
            with pytest.raises(type(error)) as raised:
                getattr(producer, name)()
            assert raised.value is error
        getattr(producer, name)()
    producer.begin_transaction()
    if call == "abort_transaction":
        with pytest.raises(TransactionFatalError):
            producer.abort_transaction()
    producer.abort_transaction()


def test_an_error_before_offsets_are_sent() -> None:
    producer = begun()
    producer.raise_next("send_offsets_to_transaction", TransactionAbortableError("lost them"))
    with pytest.raises(TransactionAbortableError, match="lost them"):
        producer.send_offsets_to_transaction({TopicPartition("input", 0): 1}, "group")
    assert producer.uncommitted_offsets() == {}


@pytest.mark.parametrize(
    ("code", "error", "state"),
    [
        (48, TransactionAbortableError, "abortable"),
        (120, TransactionAbortableError, "abortable"),
        (90, ProducerFencedError, "fatal"),
        (53, TransactionFatalError, "fatal"),
    ],
)
def test_a_commit_that_the_coordinator_refuses(
    code: int, error: type[TransactionError], state: str
) -> None:
    producer = begun()
    producer.send("events", b"value")
    producer.refuse_next("commit_transaction", code)
    with pytest.raises(error) as raised:
        producer.commit_transaction()
    assert raised.value.code == code
    assert values(producer) == []
    assert producer.stats()["transactions"]["state"] == state
    if state == "abortable":
        producer.abort_transaction()
        with producer.transaction():
            producer.send("events", b"again")
        assert values(producer) == [b"again"]


@pytest.mark.parametrize("code", [14, 15, 16, 51])
def test_a_coordinator_that_has_to_be_asked_again(code: int) -> None:
    producer = mock()
    producer.refuse_next("init_transactions", code)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("events", b"value")
    producer.refuse_next("send_offsets_to_transaction", code)
    producer.send_offsets_to_transaction({TopicPartition("input", 0): 1}, "group")
    for _ in range(3):
        producer.refuse_next("commit_transaction", code)
    producer.commit_transaction()
    assert values(producer) == [b"value"]
    assert len(producer.offsets_history()) == 1


def test_an_initialization_that_is_refused() -> None:
    producer = mock()
    producer.refuse_next("init_transactions", 53)
    with pytest.raises(TransactionError, match="TRANSACTIONAL_ID_AUTHORIZATION_FAILED"):
        producer.init_transactions()
    producer.init_transactions()
    producer.begin_transaction()


def test_a_group_that_refuses_offsets() -> None:
    producer = begun()
    producer.refuse_next("send_offsets_to_transaction", 22)
    with pytest.raises(TransactionAbortableError, match="ILLEGAL_GENERATION"):
        producer.send_offsets_to_transaction({TopicPartition("input", 0): 1}, "group")
    assert producer.uncommitted_offsets() == {}
    producer.abort_transaction()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("begin_transaction", 48), ValueError),
        (("commit_transaction", 0), ValueError),
        (("commit_transaction", "48"), TypeError),
        (("commit_transaction", True), TypeError),
    ],
)
def test_wrong_refusals(arguments: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        mock().refuse_next(*arguments)


# The end -----------------------------------------------------------------------------------------


def test_close_aborts_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    producer = begun(auto_complete=False)
    delivery = producer.send("events", b"value")
    producer.close()
    assert isinstance(delivery.exception(0), AbortedError)
    (line,) = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert "the open transaction was aborted, and 1 message of it failed" in line
    assert values(producer) == []
    stats = producer.stats()["transactions"]
    assert (stats["state"], stats["aborted"]) == ("closed", 1)


def test_clear_forgets_transactions() -> None:
    producer = begun(auto_complete=False)
    producer.send("events", b"value")
    producer.clear()
    assert values(producer) == uncommitted(producer) == []
    with producer.transaction():
        producer.send("events", b"value")
    assert values(producer) == [b"value"]


def test_the_mock_of_kafka_python() -> None:
    producer = MockKafkaProducer(transactional_id="mine")
    producer.init_transactions()
    producer.begin_transaction()
    assert producer.send("events", b"value").get(0).offset == 0
    producer.send_offsets_to_transaction({TopicPartition("input", 0): 1}, "group")
    producer.commit_transaction()
    assert values(producer) == [b"value"]
    assert producer.offsets_history() == [{"group": {TopicPartition("input", 0): 1}}]
