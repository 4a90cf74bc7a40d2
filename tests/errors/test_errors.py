"""Errors: their base classes, their texts, and that pickling preserves everything."""

from __future__ import annotations

import copy
import inspect
import pickle
import traceback
from typing import Any

import pytest
from kafka import errors as kafka_errors

from pykaproducer import errors
from pykaproducer._errors.codes import ErrorCode
from pykaproducer._machines.transaction_states import (
    FailureKind,
    TransactionCall,
    TransactionFailure,
    TransactionState,
)
from pykaproducer._pipeline.transaction_errors import error_of
from pykaproducer.errors import (
    AbortedError,
    BrokerRejectedError,
    BufferFullError,
    CallbackThreadError,
    CommitOutcome,
    ConfigurationError,
    DeliveryError,
    DeliveryFailures,
    DeliveryTimeoutError,
    FlushTimeoutError,
    ForkedProducerError,
    MessageTooLargeError,
    MetadataTimeoutError,
    OutcomeTimeoutError,
    PartitionerError,
    ProducerBrokenError,
    ProducerClosedError,
    ProducerFencedError,
    PykaproducerError,
    RetriesExhaustedError,
    Status,
    TransactionAbortableError,
    TransactionAbortedError,
    TransactionError,
    TransactionFatalError,
    TransactionStateError,
    TransactionTimeoutError,
    UnsupportedFeatureError,
    delivery_error_for,
)

POSSIBLY = Status.POSSIBLY_PERSISTED
NEVER = Status.NOT_PERSISTED

TIMEOUT = DeliveryTimeoutError(
    topic="events",
    partition=3,
    waited=120.0,
    status=POSSIBLY,
    reason="no connection to 127.0.0.1:9092: connection refused",
    cause=ConnectionRefusedError(111, "Connection refused"),
)
REFUSED = delivery_error_for(29, topic="events", partition=0, status=NEVER, detail="not you")
EXHAUSTED = delivery_error_for(19, topic="events", partition=0, status=NEVER, retries_used=3)

ONE_OF_EACH: list[PykaproducerError] = [
    PykaproducerError("text"),
    ConfigurationError("text"),
    UnsupportedFeatureError("text"),
    ProducerClosedError("text"),
    CallbackThreadError("text"),
    MessageTooLargeError("text"),
    MetadataTimeoutError("text"),
    FlushTimeoutError("text", pending=7),
    OutcomeTimeoutError("text"),
    DeliveryFailures(2, [TIMEOUT, REFUSED]),
    DeliveryError("text", status=NEVER, topic="events", partition=1, retriable=True),
    BufferFullError("text", topic="events"),
    AbortedError("text", status=POSSIBLY, topic="events"),
    PartitionerError("text", status=NEVER, topic="events", cause=KeyError("key")),
    ForkedProducerError("text", topic="events"),
    ProducerBrokenError("text", status=POSSIBLY, topic="events", cause=IndexError("list")),
    TIMEOUT,
    REFUSED,
    EXHAUSTED,
    TransactionAbortedError("text", status=POSSIBLY, topic="events", cause=REFUSED),
    TransactionError("text", transactional_id="app-1"),
    TransactionStateError("text", transactional_id="app-1"),
    TransactionTimeoutError(
        "text", transactional_id="app-1", outcome=CommitOutcome.POSSIBLY_COMMITTED
    ),
    TransactionAbortableError("text", transactional_id="app-1", cause=TIMEOUT),
    TransactionFatalError(
        "text", transactional_id="app-1", outcome=CommitOutcome.POSSIBLY_COMMITTED
    ),
    ProducerFencedError(
        "text", transactional_id="app-1", code=90, outcome=CommitOutcome.NOT_COMMITTED
    ),
]

#: Of the coordinator, with kafka-python's class for the code.
UNDER_WAY = error_of(
    TransactionFailure(
        FailureKind.CONFLICT,
        TransactionState.ENDING_COMMIT,
        TransactionCall.BEGIN,
        other=TransactionCall.COMMIT,
    ),
    "app-1",
)


def refused(kind: FailureKind, code: int) -> Any:
    """Return the error for a request that the coordinator refused with *code*."""
    failure = TransactionFailure(
        kind,
        TransactionState.ENDING_COMMIT,
        TransactionCall.COMMIT,
        api_key=26,
        code=code,
        outcome=CommitOutcome.NOT_COMMITTED,
        cause=REFUSED,
    )
    return error_of(failure, "app-1")


class UnpicklableError(Exception):
    """An error that pickles, but cannot be constructed again from its args."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} and {two}")


def over_there(error: BaseException) -> Any:
    """Return the error as another process would receive it."""
    return pickle.loads(pickle.dumps(error))


def attributes(error: BaseException) -> dict[str, Any]:
    return {name: repr(value) for name, value in error.__dict__.items()}


def by_type(error: PykaproducerError) -> str:
    return type(error).__name__


# Pickling -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "code", "ours", "theirs"),
    [
        (FailureKind.INITIALIZATION, 53, TransactionError, "TransactionalIdAuthorizationFailed"),
        (FailureKind.INITIALIZATION, 50, TransactionError, "InvalidTransactionTimeout"),
        (FailureKind.ABORTABLE, 48, TransactionAbortableError, "InvalidTxnState"),
        (FailureKind.FATAL, 47, TransactionFatalError, "InvalidProducerEpoch"),
        (FailureKind.FENCED, 90, ProducerFencedError, "ProducerFenced"),
        (FailureKind.FENCED, 47, ProducerFencedError, "InvalidProducerEpoch"),
        (FailureKind.FATAL, 32_000, TransactionFatalError, "Unknown"),
    ],
)
def test_an_error_of_a_transaction_is_also_their_class_and_pickled_with_everything(
    kind: FailureKind, code: int, ours: type[TransactionError], theirs: str
) -> None:
    error = refused(kind, code)
    for found in (error, over_there(error), copy.copy(error)):
        assert isinstance(found, ours)
        assert isinstance(found, getattr(kafka_errors, f"{theirs}Error"))
        assert type(found).__name__ == ours.__name__
        assert (found.transactional_id, found.code) == ("app-1", code)
        assert found.outcome is CommitOutcome.NOT_COMMITTED
        assert (found.abortable, found.fatal, found.retriable) == (
            ours.abortable,
            ours.fatal,
            False,
        )
        assert found == error
        assert str(found.__cause__) == str(REFUSED)
    assert f"END_TXN returned {kafka_name(code)}" in str(error)


def kafka_name(code: int) -> str:
    """Return Kafka's name of an error code, as texts have it."""
    return {32_000: "unknown error code"}.get(code) or ErrorCode(code).name


def test_a_call_that_another_one_prevents_is_told_its_name() -> None:
    for found in (UNDER_WAY, over_there(UNDER_WAY)):
        assert isinstance(found, TransactionStateError)
        assert found.under_way == "commit_transaction"
    assert TransactionStateError("text").under_way is None


def test_an_aborted_message_is_caught_as_by_kafka_python() -> None:
    theirs = getattr(kafka_errors, "TransactionAbortedError", kafka_errors.KafkaError)
    error = TransactionAbortedError("text", status=NEVER)
    assert isinstance(error, theirs)
    assert isinstance(over_there(error), theirs)


def test_there_is_one_of_each() -> None:
    classes = {
        kind
        for _, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, PykaproducerError)
    }
    # An instance of BrokerRejectedError always has a class made for its code.
    assert classes - {type(error) for error in ONE_OF_EACH} == {
        BrokerRejectedError,
        RetriesExhaustedError,
    }


@pytest.mark.parametrize("error", ONE_OF_EACH, ids=by_type)
def test_nothing_is_lost_on_the_way(error: PykaproducerError) -> None:
    there = over_there(error)
    assert type(there) is type(error)
    assert str(there) == str(error)
    assert attributes(there) == attributes(error)
    assert repr(there.__cause__) == repr(error.__cause__)
    assert there.retriable == error.retriable


@pytest.mark.parametrize("error", ONE_OF_EACH, ids=by_type)
def test_it_can_be_copied_and_kept_in_a_set(error: PykaproducerError) -> None:
    assert str(copy.copy(error)) == str(error)
    assert error in {error}
    assert copy.copy(error) in {error}
    assert copy.copy(error) is not error


def test_the_whole_chain_of_causes_travels() -> None:
    inner = OSError(111, "Connection refused")
    middle = RuntimeError("no connection")
    middle.__cause__ = inner
    outer = DeliveryError("outer", status=NEVER, cause=middle)
    outermost = ProducerBrokenError("outermost", status=NEVER, cause=outer)
    there = over_there(outermost)
    assert str(there.__cause__) == "outer (the message was not written)"
    assert repr(there.__cause__.__cause__) == repr(middle)
    assert there.__cause__.__cause__.__cause__.errno == 111


def test_notes_travel() -> None:
    error = AbortedError("text", status=NEVER)
    error.add_note("while closing")
    assert over_there(error).__notes__ == ["while closing"]


def make_local_error() -> Exception:
    class LocalError(Exception):
        pass

    return LocalError("from a function")


@pytest.mark.parametrize("cause", [UnpicklableError("this", "that"), make_local_error()])
def test_a_cause_that_cannot_travel_leaves_its_text(cause: Exception) -> None:
    cause.__cause__ = KeyError("deeper")
    there = over_there(PartitionerError("text", status=NEVER, cause=cause))
    assert type(cause).__name__ in str(there.__cause__)
    assert str(cause) in str(there.__cause__)
    assert repr(there.__cause__.__cause__) == "KeyError('deeper')"


def test_a_circle_of_causes_ends() -> None:
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    there = over_there(PartitionerError("text", status=NEVER, cause=one))
    assert repr(there.__cause__.__cause__) == "ValueError('two')"


# Base classes ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "caught_as"),
    [
        (ConfigurationError("text"), kafka_errors.KafkaConfigurationError),
        (ConfigurationError("text"), ValueError),
        (ProducerClosedError("text"), kafka_errors.IllegalStateError),
        (CallbackThreadError("text"), kafka_errors.IllegalStateError),
        (MessageTooLargeError("text"), kafka_errors.MessageSizeTooLargeError),
        (MessageTooLargeError("text"), ValueError),
        (BufferFullError("text"), kafka_errors.KafkaTimeoutError),
        (FlushTimeoutError("text"), kafka_errors.KafkaTimeoutError),
        (FlushTimeoutError("text"), TimeoutError),
        (OutcomeTimeoutError("text"), kafka_errors.KafkaTimeoutError),
        (OutcomeTimeoutError("text"), TimeoutError),
        (MetadataTimeoutError("text"), kafka_errors.KafkaTimeoutError),
        (TIMEOUT, kafka_errors.KafkaTimeoutError),
        (PartitionerError("text", status=NEVER), ValueError),
        (REFUSED, kafka_errors.TopicAuthorizationFailedError),
        (REFUSED, kafka_errors.AuthorizationError),
        (REFUSED, BrokerRejectedError),
        (EXHAUSTED, kafka_errors.NotEnoughReplicasError),
        (EXHAUSTED, RetriesExhaustedError),
        *((error, kafka_errors.KafkaError) for error in ONE_OF_EACH),
    ],
)
def test_code_for_kafka_python_catches_it(
    error: PykaproducerError, caught_as: type[BaseException]
) -> None:
    with pytest.raises(caught_as) as caught:
        raise error
    assert caught.value is error
    with pytest.raises(caught_as):
        raise over_there(error)


CODES = sorted(code for code in kafka_errors.kafka_errors if code is not None)


@pytest.mark.parametrize("code", [*CODES, 9999])
def test_every_code_of_a_broker(code: int) -> None:
    kind = kafka_errors.kafka_errors.get(code, kafka_errors.UnknownError)
    for retries in (None, 3):
        error = delivery_error_for(
            code, topic="events", partition=0, status=POSSIBLY, retries_used=retries
        )
        there: Any = over_there(error)
        assert isinstance(there, kind)
        assert type(there) is type(error)
        assert (there.code, there.errno, there.retriable) == (code, code, kind.retriable)
        assert there.status is POSSIBLY
        assert f"({code})" in str(there)
        assert isinstance(error, RetriesExhaustedError) == (retries is not None)


def test_a_brokers_error_has_kafka_pythons_as_its_cause() -> None:
    assert type(REFUSED.__cause__) is kafka_errors.TopicAuthorizationFailedError
    assert REFUSED.__cause__.args == ("not you",)


# Texts ----------------------------------------------------------------------------------------


def test_a_timeout_says_where_how_long_and_why() -> None:
    assert str(TIMEOUT) == (
        "topic 'events' partition 3: not delivered within 120 s: "
        "no connection to 127.0.0.1:9092: connection refused (the message may have been written)"
    )
    assert isinstance(TIMEOUT.__cause__, ConnectionRefusedError)
    assert TIMEOUT.retriable


def test_a_refusal_says_what_the_broker_said_and_what_to_do() -> None:
    assert str(REFUSED) == (
        "topic 'events' partition 0: the broker rejected it: TOPIC_AUTHORIZATION_FAILED (29): "
        "not you; grant this client Write on the topic (the message was not written)"
    )
    assert not REFUSED.retriable


def test_retries_that_are_used_up_are_counted() -> None:
    assert "NOT_ENOUGH_REPLICAS (19) (after 3 retries)" in str(EXHAUSTED)
    assert EXHAUSTED.retriable


def test_a_code_that_nobody_knows_is_kept() -> None:
    error = delivery_error_for(9999, topic="events", partition=0, status=NEVER)
    assert "unknown error code (9999)" in str(error)
    assert error.code == 9999


def test_failures_are_counted_and_the_first_are_shown() -> None:
    failures = DeliveryFailures(5, [REFUSED, TIMEOUT])
    assert failures.count == 5
    assert failures.errors == (REFUSED, TIMEOUT)
    assert failures.__cause__ is REFUSED
    assert str(failures).startswith(
        "5 messages were not delivered, and no callback or read outcome has reported it; first"
    )
    assert (
        str(DeliveryFailures(1))
        == "1 message was not delivered, and no callback or read outcome has reported it"
    )


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (BufferFullError("text"), NEVER),
        (ForkedProducerError("text"), POSSIBLY),
        (AbortedError("text", status=POSSIBLY), POSSIBLY),
        (PartitionerError("text", status=NEVER), NEVER),
    ],
)
def test_an_outcome_says_whether_the_message_may_be_in_the_log(
    error: DeliveryError, status: Status
) -> None:
    assert error.status is status
    assert ("not written" in str(error)) == (status is NEVER)


def test_a_traceback_names_it_once() -> None:
    error = ProducerClosedError("the producer is closed")
    (line,) = traceback.format_exception_only(error)
    assert line == "pykaproducer.errors.ProducerClosedError: the producer is closed\n"
