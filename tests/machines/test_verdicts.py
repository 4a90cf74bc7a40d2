"""The meaning of each error code in a Produce response: the table of the contract."""

from __future__ import annotations

import itertools

import pytest

from pykaproducer._errors.codes import ErrorCode
from pykaproducer._errors.formatting import kafka_class
from pykaproducer._machines.verdicts import (
    FATAL_TOPIC_ERRORS,
    TRANSACTIONAL_VERDICTS,
    VERDICTS,
    Action,
    Verdict,
    classify,
)


def verdict(
    code: int, *, older_unsettled: bool = False, count: int = 5, sequenced: bool = True
) -> Verdict:
    return classify(code, older_unsettled=older_unsettled, count=count, sequenced=sequenced)


#: Independent of the batch: the action, and whether the batch may be in the log.
ALWAYS: list[tuple[int, Action, bool]] = [
    (ErrorCode.NONE, Action.DELIVERED, False),
    (ErrorCode.DUPLICATE_SEQUENCE_NUMBER, Action.DELIVERED, False),
    # Another broker is the leader.
    (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, Action.REFRESH_AND_RETRY, False),
    (ErrorCode.LEADER_NOT_AVAILABLE, Action.REFRESH_AND_RETRY, False),
    (ErrorCode.NOT_LEADER_OR_FOLLOWER, Action.REFRESH_AND_RETRY, False),
    (ErrorCode.REPLICA_NOT_AVAILABLE, Action.REFRESH_AND_RETRY, False),
    (ErrorCode.FENCED_LEADER_EPOCH, Action.REFRESH_AND_RETRY, False),
    (ErrorCode.UNKNOWN_LEADER_EPOCH, Action.REFRESH_AND_RETRY, False),
    (ErrorCode.UNKNOWN_TOPIC_ID, Action.REFRESH_AND_RETRY, False),
    # Temporary errors of the broker: these count as retries.
    (ErrorCode.CORRUPT_MESSAGE, Action.RETRY, False),
    (ErrorCode.NETWORK_EXCEPTION, Action.REFRESH_AND_RETRY, False),
    (ErrorCode.BROKER_NOT_AVAILABLE, Action.REFRESH_AND_RETRY, False),
    (ErrorCode.NOT_ENOUGH_REPLICAS, Action.RETRY, False),
    (ErrorCode.KAFKA_STORAGE_ERROR, Action.REFRESH_AND_RETRY, False),
    (ErrorCode.THROTTLING_QUOTA_EXCEEDED, Action.RETRY, False),
    (ErrorCode.REQUEST_TIMED_OUT, Action.RETRY, True),
    (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, Action.RETRY, True),
    # Permanent errors.
    (ErrorCode.INVALID_TOPIC_EXCEPTION, Action.FAILED, False),
    (ErrorCode.INVALID_REQUIRED_ACKS, Action.FAILED, False),
    (ErrorCode.TOPIC_AUTHORIZATION_FAILED, Action.FAILED, False),
    (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, Action.FAILED, False),
    (ErrorCode.INVALID_TIMESTAMP, Action.FAILED, False),
    (ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, Action.FAILED, False),
    (ErrorCode.POLICY_VIOLATION, Action.FAILED, False),
    (ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, Action.FAILED, False),
    (ErrorCode.INVALID_RECORD, Action.FAILED, False),
]


@pytest.mark.parametrize(
    ("code", "action", "possibly_persisted"), ALWAYS, ids=lambda value: getattr(value, "name", "")
)
def test_what_a_code_means(code: int, action: Action, possibly_persisted: bool) -> None:
    for older, count, sequenced in itertools.product([False, True], [1, 5], [False, True]):
        found = verdict(code, older_unsettled=older, count=count, sequenced=sequenced)
        assert (found.action, found.possibly_persisted) == (action, possibly_persisted)


@pytest.mark.parametrize("code", list(ErrorCode))
def test_a_missing_right_is_marked(code: int) -> None:
    missing = {ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED}
    assert verdict(code).not_authorized is (code in missing)
    assert classify(
        code, older_unsettled=False, count=5, sequenced=True, has_offset=True
    ).not_authorized is (code in missing)


@pytest.mark.parametrize("code", [-1, -2, 999, 32767, -32768])
@pytest.mark.parametrize("older_unsettled", [False, True])
def test_a_code_that_nobody_knows_is_final(code: int, older_unsettled: bool) -> None:
    """As the meaning of the code is unknown, the batch may be in the log."""
    found = verdict(code, older_unsettled=older_unsettled)
    assert (found.action, found.possibly_persisted) == (Action.FAILED, True)


@pytest.mark.parametrize("count", [1, 5])
def test_out_of_order_behind_an_older_batch_goes_again_behind_it(count: int) -> None:
    code = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    found = verdict(code, older_unsettled=True, count=count)
    assert found == Verdict(Action.RETRY_AFTER_OLDER)


ABOUT_NUMBERS = [
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.UNKNOWN_PRODUCER_ID,
    ErrorCode.INVALID_PRODUCER_EPOCH,
]


@pytest.mark.parametrize("code", ABOUT_NUMBERS)
def test_numbers_that_the_broker_refuses_are_not_sent_again_as_they_are(code: int) -> None:
    """There is nothing to wait for, and the same numbers would be rejected forever."""
    again_as_it_is = {
        Action.DELIVERED,
        Action.REFRESH_AND_RETRY,
        Action.RETRY,
        Action.RETRY_AFTER_OLDER,
    }
    assert verdict(code).action not in again_as_it_is


@pytest.mark.parametrize("code", [ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE])
@pytest.mark.parametrize(
    ("count", "action"),
    [(1, Action.FAILED), (2, Action.SPLIT), (10_000, Action.SPLIT)],
)
def test_what_is_too_large_is_split_down_to_a_single_message(
    code: int, count: int, action: Action
) -> None:
    assert verdict(code, count=count) == Verdict(action)


@pytest.mark.parametrize("code", ABOUT_NUMBERS)
def test_a_batch_without_numbers_cannot_be_refused_for_them(code: int) -> None:
    assert verdict(code, older_unsettled=True, sequenced=False).action is Action.FAILED


@pytest.mark.parametrize("code", [code for code in VERDICTS if kafka_class(code).retriable])
def test_what_kafka_python_calls_retriable_goes_again(code: int) -> None:
    assert verdict(code).action in {Action.REFRESH_AND_RETRY, Action.RETRY}


@pytest.mark.parametrize(
    ("code", "fatal"),
    [
        (ErrorCode.INVALID_TOPIC_EXCEPTION, True),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, True),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, False),  # it may be created while they wait
        (ErrorCode.LEADER_NOT_AVAILABLE, False),
        (ErrorCode.NONE, False),
        (999, False),
    ],
)
def test_which_topics_are_not_waited_for(code: int, fatal: bool) -> None:
    assert (code in FATAL_TOPIC_ERRORS) is fatal


# In a transaction -------------------------------------------------------------------------------


def in_transaction(
    code: int, *, older_unsettled: bool = False, count: int = 5, retried_soon: bool = False
) -> Verdict:
    return classify(
        code,
        older_unsettled=older_unsettled,
        count=count,
        sequenced=True,
        transactional=True,
        retried_soon=retried_soon,
    )


#: What differs from a producer without transactions.
IN_TRANSACTION: dict[int, Verdict] = {
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: Verdict(Action.FAILED),
    ErrorCode.INVALID_PRODUCER_EPOCH: Verdict(Action.FAILED),
    ErrorCode.UNKNOWN_PRODUCER_ID: Verdict(Action.FAILED),
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: Verdict(Action.FAILED, fatal=True),
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Verdict(Action.FAILED, fatal=True),
    ErrorCode.PRODUCER_FENCED: Verdict(Action.FAILED, fatal=True, fenced=True),
    ErrorCode.CONCURRENT_TRANSACTIONS: Verdict(Action.RETRY_SOON),
    ErrorCode.NOT_ENOUGH_REPLICAS: Verdict(Action.RETRY_SOON),
    ErrorCode.MESSAGE_TOO_LARGE: Verdict(Action.SPLIT_IN_PLACE),
    ErrorCode.RECORD_LIST_TOO_LARGE: Verdict(Action.SPLIT_IN_PLACE),
}


@pytest.mark.parametrize("code", [*ErrorCode, 999, -2])
def test_each_code_in_a_transaction(code: int) -> None:
    assert in_transaction(code) == IN_TRANSACTION.get(code, verdict(code))


@pytest.mark.parametrize("code", [*ErrorCode, 999])
@pytest.mark.parametrize("older_unsettled", [False, True])
def test_no_epoch_is_chosen_locally_in_a_transaction(code: int, older_unsettled: bool) -> None:
    found = in_transaction(code, older_unsettled=older_unsettled)
    assert found.action not in {Action.BUMP_EPOCH, Action.RESET_PRODUCER_ID, Action.SPLIT}


@pytest.mark.parametrize("code", [ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTION_ABORTABLE])
def test_what_the_coordinator_has_refused_is_not_fatal(code: int) -> None:
    """The coordinator may have aborted the transaction because of its timeout."""
    assert in_transaction(code) == Verdict(Action.FAILED)


def test_out_of_order_behind_an_older_batch_waits_for_it_in_a_transaction() -> None:
    code = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert in_transaction(code, older_unsettled=True).action is Action.RETRY_AFTER_OLDER
    others = set(IN_TRANSACTION) - {code}
    assert all(in_transaction(o, older_unsettled=True) == IN_TRANSACTION[o] for o in others)


def test_too_few_replicas_may_be_a_busy_coordinator_once() -> None:
    code = ErrorCode.NOT_ENOUGH_REPLICAS
    assert in_transaction(code, retried_soon=True) == verdict(code)
    busy = ErrorCode.CONCURRENT_TRANSACTIONS
    assert in_transaction(busy, retried_soon=True).action is Action.RETRY_SOON


@pytest.mark.parametrize("code", [ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE])
def test_a_single_message_is_not_split_in_a_transaction(code: int) -> None:
    assert in_transaction(code, count=1) == Verdict(Action.FAILED)


@pytest.mark.parametrize("code", list(ErrorCode))
@pytest.mark.parametrize("count", [1, 5])
def test_without_a_transaction_nothing_of_it_applies(code: int, count: int) -> None:
    found = verdict(code, count=count)
    assert found.action not in {Action.RETRY_SOON, Action.SPLIT_IN_PLACE}
    assert not found.fatal
    assert not found.fenced


@pytest.mark.parametrize("transactional", [False, True])
@pytest.mark.parametrize("code", list(ErrorCode))
def test_an_offset_means_something_where_a_leader_may_have_appended(
    code: int, transactional: bool
) -> None:
    without, found = (
        classify(
            code,
            older_unsettled=False,
            count=5,
            sequenced=True,
            has_offset=has_offset,
            transactional=transactional,
        )
        for has_offset in (False, True)
    )
    after_append = {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
    assert found.action is without.action
    assert found.possibly_persisted is (without.possibly_persisted or code in after_append)


def test_codes_of_a_transaction_are_codes_of_produce() -> None:
    assert set(TRANSACTIONAL_VERDICTS) <= set(VERDICTS)
