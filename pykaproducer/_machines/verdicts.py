"""What a Produce answer means: one table, keyed by Kafka's error code.

Nothing else in the package branches on error codes of a Produce answer. The rules are those of
``docs/design.rst`` ("What each failure does"); the codes that a broker can send are those of its
``ReplicaManager`` and ``KafkaApis``.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from pykaproducer._wire.error_codes import ErrorCode


class Action(enum.Enum):
    """What becomes of a batch that has been answered."""

    DELIVERED = enum.auto()
    #: The leader is elsewhere: refresh the metadata, send again; not a retry that is counted.
    MOVED = enum.auto()
    #: A temporary error of the broker: send again; counts against ``retries``.
    AGAIN = enum.auto()
    #: Refused for its sequence numbers, because an older batch of the partition is missing in the
    #: log and goes again: so does this one, as it is, behind it.
    BEHIND = enum.auto()
    #: Its sequence numbers are void, though nothing older is under way: the partition takes a new
    #: epoch, and the batch is sealed again, unless an earlier attempt of it may be in the log.
    NEW_EPOCH = enum.auto()
    #: The same, and the broker would refuse the next epoch as well: with a new producer id.
    NEW_PRODUCER_ID = enum.auto()
    #: Larger than the broker takes: in smaller batches again; a single message fails.
    SPLIT = enum.auto()
    FAILED = enum.auto()


@dataclass(frozen=True, slots=True)
class Verdict:
    """The action, and whether this attempt may nevertheless have been appended."""

    action: Action
    possibly_persisted: bool = False


_MOVED = Verdict(Action.MOVED)
_AGAIN = Verdict(Action.AGAIN)
_FAILED = Verdict(Action.FAILED)

VERDICTS: dict[int, Verdict] = {
    ErrorCode.NONE: Verdict(Action.DELIVERED),
    # The broker has had this batch before: an earlier attempt was appended.
    ErrorCode.DUPLICATE_SEQUENCE_NUMBER: Verdict(Action.DELIVERED),
    # The leader moved, or this broker does not know (yet, any more) that it is the leader.
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: _MOVED,
    ErrorCode.LEADER_NOT_AVAILABLE: _MOVED,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: _MOVED,
    ErrorCode.REPLICA_NOT_AVAILABLE: _MOVED,
    ErrorCode.LISTENER_NOT_FOUND: _MOVED,
    ErrorCode.FENCED_LEADER_EPOCH: _MOVED,
    ErrorCode.UNKNOWN_LEADER_EPOCH: _MOVED,
    ErrorCode.UNKNOWN_TOPIC_ID: _MOVED,
    ErrorCode.INCONSISTENT_TOPIC_ID: _MOVED,
    # The broker cannot serve the partition. One whose log directory has failed answers so until it
    # is restarted, while the controller elects another leader at once.
    ErrorCode.KAFKA_STORAGE_ERROR: _MOVED,
    ErrorCode.NETWORK_EXCEPTION: _MOVED,
    ErrorCode.BROKER_NOT_AVAILABLE: _MOVED,
    # Temporary errors of the broker.
    ErrorCode.CORRUPT_MESSAGE: _AGAIN,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: _AGAIN,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: _AGAIN,
    ErrorCode.NOT_COORDINATOR: _AGAIN,
    ErrorCode.NOT_CONTROLLER: _AGAIN,
    ErrorCode.CONCURRENT_TRANSACTIONS: _AGAIN,
    ErrorCode.NOT_ENOUGH_REPLICAS: _AGAIN,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED: _AGAIN,
    ErrorCode.REQUEST_TIMED_OUT: Verdict(Action.AGAIN, possibly_persisted=True),
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: Verdict(Action.AGAIN, possibly_persisted=True),
    # Sequence numbers (judge() knows whether something older is under way).
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: Verdict(Action.NEW_EPOCH),
    ErrorCode.UNKNOWN_PRODUCER_ID: Verdict(Action.NEW_EPOCH),
    ErrorCode.INVALID_PRODUCER_EPOCH: Verdict(Action.NEW_PRODUCER_ID),
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: Verdict(Action.NEW_PRODUCER_ID),
    ErrorCode.PRODUCER_FENCED: Verdict(Action.NEW_PRODUCER_ID),
    # Too large.
    ErrorCode.MESSAGE_TOO_LARGE: Verdict(Action.SPLIT),
    ErrorCode.RECORD_LIST_TOO_LARGE: Verdict(Action.SPLIT),
    # What no waiting mends. (So is a code that is not in the table.)
    ErrorCode.UNKNOWN_SERVER_ERROR: Verdict(Action.FAILED, possibly_persisted=True),
    ErrorCode.INVALID_TOPIC_EXCEPTION: _FAILED,
    ErrorCode.INVALID_REQUIRED_ACKS: _FAILED,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: _FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: _FAILED,
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

#: The broker compared the batch's sequence numbers with those that it has.
_ABOUT_SEQUENCE = frozenset({Action.NEW_EPOCH, Action.NEW_PRODUCER_ID})


def judge(
    code: int, *, older_unsettled: bool, count: int, sequenced: bool, has_offset: bool = False
) -> Verdict:
    """The verdict on a batch that was answered with *code*.

    *older_unsettled*: an older batch of the same partition has no outcome yet. *count*: messages in
    the batch. *sequenced*: whether it has sequence numbers. *has_offset*: an offset stands beside
    the code. A code that is not in the table is final, and as nobody knows what it means the
    messages count as possibly persisted.

    A leader that has appended a batch with ``acks=all``, and resigns or fails before the replicas
    have it, answers with the same code as one that refuses it; but it tells the offset (Kafka's
    ``DelayedProduce`` replaces only the error). The next leader may have the batch.
    """
    verdict = _verdict(code, older_unsettled, count, sequenced)
    if has_offset and verdict.action is not Action.DELIVERED:
        return Verdict(verdict.action, possibly_persisted=True)
    return verdict


def _verdict(code: int, older_unsettled: bool, count: int, sequenced: bool) -> Verdict:
    verdict = VERDICTS.get(code, VERDICTS[ErrorCode.UNKNOWN_SERVER_ERROR])
    if verdict.action in _ABOUT_SEQUENCE:
        if not sequenced:
            return _FAILED  # it has none: the answer makes no sense
        if older_unsettled and code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            return Verdict(Action.BEHIND)
    if verdict.action is Action.SPLIT and count == 1:
        return _FAILED
    return verdict


#: The client is not allowed to do it: that concerns all messages of the topic, not this one.
NO_RIGHT = frozenset({ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED})

#: Errors of a whole topic in a Metadata answer that no waiting mends: its messages fail at once.
#: An unknown topic is not among them: it may be created while they wait.
FATAL_TOPIC_ERRORS = frozenset(
    {ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.TOPIC_AUTHORIZATION_FAILED}
)
