"""Classification of Produce responses: one table, keyed by Kafka's error code.

Only this table decides how a batch is handled for an error code of a Produce response; elsewhere
the code merely selects the exception class and its text. The rules are those of
``docs/design.rst`` ("The effect of each failure"). The codes that a broker can send are those of
``ReplicaManager`` and ``KafkaApis``.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from pykaproducer._errors.codes import ErrorCode


class Action(enum.Enum):
    """How to handle a batch after the broker has responded."""

    DELIVERED = enum.auto()
    #: The leader has moved: refresh the metadata and retry. Does not count against ``retries``.
    REFRESH_AND_RETRY = enum.auto()
    #: A temporary error of the broker: retry. Counts against ``retries``.
    RETRY = enum.auto()
    #: Out of sequence because an older batch of the partition is missing in the log and is being
    #: retried. Retry this batch unchanged, after the older one.
    RETRY_AFTER_OLDER = enum.auto()
    #: Invalid sequence numbers, although no older batch is unresolved. Bump the partition's epoch
    #: and seal the batch again, unless an earlier attempt may be in the log.
    BUMP_EPOCH = enum.auto()
    #: As BUMP_EPOCH, but with a new producer id: the broker would reject the next epoch too.
    RESET_PRODUCER_ID = enum.auto()
    #: Larger than the broker allows: retry in smaller batches. A single message fails.
    SPLIT = enum.auto()
    #: In a transaction: split it in place. The broker has appended nothing, so the parts use the
    #: batch's sequence numbers.
    SPLIT_IN_PLACE = enum.auto()
    #: In a transaction: the coordinator is busy with this or the last transaction. Retry after 1,
    #: 2, 4 .. 20 ms. Does not count against ``retries``.
    RETRY_SOON = enum.auto()
    #: A transaction must then be aborted.
    FAILED = enum.auto()


class Verdict(NamedTuple):
    """How to handle one batch."""

    action: Action
    #: This attempt may have been appended despite the error.
    possibly_persisted: bool = False
    #: The client lacks a right, which affects every message of the topic.
    not_authorized: bool = False
    #: In a transaction: the producer cannot be used further.
    fatal: bool = False
    #: As fatal, because another producer has the transactional id.
    fenced: bool = False
    #: The leader may return it for a batch that it has appended. Then there is an offset too.
    after_append: bool = False


_REFRESH_AND_RETRY = Verdict(Action.REFRESH_AND_RETRY)
_REFRESH_AFTER_APPEND = Verdict(Action.REFRESH_AND_RETRY, after_append=True)
_RETRY = Verdict(Action.RETRY)
_FAILED = Verdict(Action.FAILED)
_NOT_AUTHORIZED = Verdict(Action.FAILED, not_authorized=True)

VERDICTS: dict[int, Verdict] = {
    ErrorCode.NONE: Verdict(Action.DELIVERED),
    # An earlier attempt was appended.
    ErrorCode.DUPLICATE_SEQUENCE_NUMBER: Verdict(Action.DELIVERED),
    # The leader has moved, or this broker is not (yet, or no longer) aware that it is the leader.
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: _REFRESH_AFTER_APPEND,
    ErrorCode.LEADER_NOT_AVAILABLE: _REFRESH_AND_RETRY,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: _REFRESH_AFTER_APPEND,
    ErrorCode.REPLICA_NOT_AVAILABLE: _REFRESH_AND_RETRY,
    ErrorCode.LISTENER_NOT_FOUND: _REFRESH_AND_RETRY,
    ErrorCode.FENCED_LEADER_EPOCH: _REFRESH_AND_RETRY,
    ErrorCode.UNKNOWN_LEADER_EPOCH: _REFRESH_AND_RETRY,
    ErrorCode.UNKNOWN_TOPIC_ID: _REFRESH_AND_RETRY,
    ErrorCode.INCONSISTENT_TOPIC_ID: _REFRESH_AND_RETRY,
    # The broker cannot serve the partition. After the failure of a log directory, a broker returns
    # this error until it is restarted, while the controller elects another leader at once.
    ErrorCode.KAFKA_STORAGE_ERROR: _REFRESH_AFTER_APPEND,
    ErrorCode.NETWORK_EXCEPTION: _REFRESH_AND_RETRY,
    ErrorCode.BROKER_NOT_AVAILABLE: _REFRESH_AND_RETRY,
    # Temporary errors of the broker.
    ErrorCode.CORRUPT_MESSAGE: _RETRY,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: _RETRY,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: _RETRY,
    ErrorCode.NOT_COORDINATOR: _RETRY,
    ErrorCode.NOT_CONTROLLER: _RETRY,
    ErrorCode.CONCURRENT_TRANSACTIONS: _RETRY,
    ErrorCode.NOT_ENOUGH_REPLICAS: _RETRY,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED: _RETRY,
    ErrorCode.REQUEST_TIMED_OUT: Verdict(Action.RETRY, possibly_persisted=True),
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: Verdict(Action.RETRY, possibly_persisted=True),
    # Sequence numbers. classify() takes unresolved older batches into account.
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: Verdict(Action.BUMP_EPOCH),
    ErrorCode.UNKNOWN_PRODUCER_ID: Verdict(Action.BUMP_EPOCH),
    ErrorCode.INVALID_PRODUCER_EPOCH: Verdict(Action.RESET_PRODUCER_ID),
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: Verdict(Action.RESET_PRODUCER_ID),
    ErrorCode.PRODUCER_FENCED: Verdict(Action.RESET_PRODUCER_ID),
    # Too large.
    ErrorCode.MESSAGE_TOO_LARGE: Verdict(Action.SPLIT),
    ErrorCode.RECORD_LIST_TOO_LARGE: Verdict(Action.SPLIT),
    # Permanent errors. A code that is not in the table is handled as UNKNOWN_SERVER_ERROR.
    ErrorCode.UNKNOWN_SERVER_ERROR: Verdict(Action.FAILED, possibly_persisted=True),
    ErrorCode.INVALID_TOPIC_EXCEPTION: _FAILED,
    ErrorCode.INVALID_REQUIRED_ACKS: _FAILED,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: _NOT_AUTHORIZED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: _NOT_AUTHORIZED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: _FAILED,
    ErrorCode.INVALID_TIMESTAMP: _FAILED,
    ErrorCode.UNSUPPORTED_SASL_MECHANISM: _FAILED,
    ErrorCode.ILLEGAL_SASL_STATE: _FAILED,
    ErrorCode.SASL_AUTHENTICATION_FAILED: _FAILED,
    ErrorCode.UNSUPPORTED_VERSION: _FAILED,
    ErrorCode.INVALID_REQUEST: _FAILED,
    ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT: _FAILED,
    ErrorCode.POLICY_VIOLATION: _FAILED,
    ErrorCode.INVALID_TXN_STATE: _FAILED,
    ErrorCode.SECURITY_DISABLED: _FAILED,
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE: _FAILED,
    ErrorCode.INVALID_RECORD: _FAILED,
    ErrorCode.TRANSACTION_ABORTABLE: _FAILED,
}

#: In a transaction, instead of those of :data:`VERDICTS`. No id or epoch is ever chosen locally.
TRANSACTIONAL_VERDICTS: dict[int, Verdict] = {
    # The transaction has a gap, or the coordinator has aborted it.
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: _FAILED,
    ErrorCode.UNKNOWN_PRODUCER_ID: _FAILED,
    ErrorCode.INVALID_PRODUCER_EPOCH: _FAILED,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: Verdict(Action.FAILED, fatal=True),
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Verdict(Action.FAILED, fatal=True),
    ErrorCode.PRODUCER_FENCED: Verdict(Action.FAILED, fatal=True, fenced=True),
    ErrorCode.CONCURRENT_TRANSACTIONS: Verdict(Action.RETRY_SOON),
    ErrorCode.MESSAGE_TOO_LARGE: Verdict(Action.SPLIT_IN_PLACE),
    ErrorCode.RECORD_LIST_TOO_LARGE: Verdict(Action.SPLIT_IN_PLACE),
}

#: The broker compared the batch's sequence numbers with those that it remembers.
_ABOUT_SEQUENCE = frozenset({Action.BUMP_EPOCH, Action.RESET_PRODUCER_ID})


def classify(
    code: int,
    *,
    older_unsettled: bool,
    count: int,
    sequenced: bool,
    has_offset: bool = False,
    transactional: bool = False,
    retried_soon: bool = False,
) -> Verdict:
    """Return how to handle a batch for which the broker returned *code*.

    *older_unsettled*: an older batch of the same partition has no outcome yet. *count*: number of
    messages in the batch. *sequenced*: whether the batch has sequence numbers. *has_offset*:
    whether the response has an offset besides the code. *transactional*: the batch belongs to a
    transaction. *retried_soon*: it has been retried once with RETRY_SOON because of too few
    replicas.

    A code that is not in the table is final. Its meaning is unknown, so the messages count as
    possibly persisted.

    A leader may append a batch with ``acks=all`` and then resign or fail before the replicas have
    it. Its error code is that of a leader that rejects the batch, but its response includes the
    offset (Kafka's ``DelayedProduce`` replaces only the error). The next leader may have the batch.
    With any other code the offset means nothing: Kafka sends -1, other brokers may send 0.
    """
    if transactional:
        verdict = _transactional_verdict(code, older_unsettled, count, retried_soon)
    else:
        verdict = _verdict(code, older_unsettled, count, sequenced)
    if has_offset and verdict.after_append:
        return verdict._replace(possibly_persisted=True)
    return verdict


def _verdict(code: int, older_unsettled: bool, count: int, sequenced: bool) -> Verdict:
    verdict = VERDICTS.get(code, VERDICTS[ErrorCode.UNKNOWN_SERVER_ERROR])
    if verdict.action in _ABOUT_SEQUENCE:
        if not sequenced:
            return _FAILED  # a meaningless response: the batch has no sequence numbers
        if older_unsettled and code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            return Verdict(Action.RETRY_AFTER_OLDER)
    if verdict.action is Action.SPLIT and count == 1:
        return _FAILED
    return verdict


def _transactional_verdict(
    code: int, older_unsettled: bool, count: int, retried_soon: bool
) -> Verdict:
    if code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and older_unsettled:
        return Verdict(Action.RETRY_AFTER_OLDER)
    if code == ErrorCode.NOT_ENOUGH_REPLICAS and not retried_soon:
        # Also the answer of a leader that asks the coordinator about another request of this
        # transactional id (AddPartitionsToTxnManager).
        return Verdict(Action.RETRY_SOON)
    default = VERDICTS.get(code, VERDICTS[ErrorCode.UNKNOWN_SERVER_ERROR])
    verdict = TRANSACTIONAL_VERDICTS.get(code, default)
    if verdict.action is Action.SPLIT_IN_PLACE and count == 1:
        return _FAILED
    return verdict


#: Permanent errors of a whole topic in a Metadata response: its messages fail at once. An unknown
#: topic is not among them, as it may be created while the messages wait.
FATAL_TOPIC_ERRORS = frozenset(
    {ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.TOPIC_AUTHORIZATION_FAILED}
)
