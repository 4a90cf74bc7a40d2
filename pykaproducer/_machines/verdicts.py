"""What a Produce answer means: one table, keyed by Kafka's error code.

Nothing else in the package branches on error codes of a Produce answer.
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
    #: An older batch of the partition is missing in the log and goes again: so does this one.
    OUT_OF_ORDER = enum.auto()
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

VERDICTS: dict[int, Verdict] = {
    ErrorCode.NONE: Verdict(Action.DELIVERED),
    # The broker has had this batch before: an earlier attempt was appended.
    ErrorCode.DUPLICATE_SEQUENCE_NUMBER: Verdict(Action.DELIVERED),
    # The leader moved, or this broker does not know (yet, any more) that it is the leader.
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: _MOVED,
    ErrorCode.LEADER_NOT_AVAILABLE: _MOVED,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: _MOVED,
    ErrorCode.REPLICA_NOT_AVAILABLE: _MOVED,
    ErrorCode.FENCED_LEADER_EPOCH: _MOVED,
    ErrorCode.UNKNOWN_LEADER_EPOCH: _MOVED,
    ErrorCode.UNKNOWN_TOPIC_ID: _MOVED,
    # Temporary errors of the broker.
    ErrorCode.CORRUPT_MESSAGE: _AGAIN,
    ErrorCode.NETWORK_EXCEPTION: _AGAIN,
    ErrorCode.BROKER_NOT_AVAILABLE: _AGAIN,
    ErrorCode.NOT_ENOUGH_REPLICAS: _AGAIN,
    ErrorCode.KAFKA_STORAGE_ERROR: _AGAIN,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED: _AGAIN,
    ErrorCode.REQUEST_TIMED_OUT: Verdict(Action.AGAIN, possibly_persisted=True),
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: Verdict(Action.AGAIN, possibly_persisted=True),
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: Verdict(Action.OUT_OF_ORDER),
    ErrorCode.MESSAGE_TOO_LARGE: Verdict(Action.SPLIT),
    ErrorCode.RECORD_LIST_TOO_LARGE: Verdict(Action.SPLIT),
}

_FAILED = Verdict(Action.FAILED)


def judge(code: int, *, older_unsettled: bool, count: int) -> Verdict:
    """The verdict on a batch that was answered with *code*.

    *older_unsettled*: an older batch of the same partition has no outcome yet. *count*: messages in
    the batch. Codes that are not
    in the table are final: authorization, invalid topic, invalid record, message too large ...
    """
    verdict = VERDICTS.get(code, _FAILED)
    if verdict.action is Action.OUT_OF_ORDER and not older_unsettled:
        return _FAILED
    if verdict.action is Action.SPLIT and count == 1:
        return _FAILED
    return verdict


#: Errors of a whole topic in a Metadata answer that no waiting mends: its messages fail at once.
#: An unknown topic is not among them: it may be created while they wait.
FATAL_TOPIC_ERRORS = frozenset(
    {ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.TOPIC_AUTHORIZATION_FAILED}
)
