"""What to do about a coordinator's error, as text that follows the error's name."""

from __future__ import annotations

from typing import Final

from pykaproducer._errors.hints import ADVICE

_FIND, _INIT, _OFFSETS = 10, 22, 28

_LOST_PARTITIONS: Final = (
    "the consumer may have lost its partitions to another member, or has not joined its group yet; "
    "poll it, and take its group metadata anew for the next transaction"
)
_NOT_THE_SAME: Final = "the coordinator has another state; a new producer settles the transaction"

#: By API key and Kafka's error code.
_BY_REQUEST: Final[dict[tuple[int, int], str]] = {
    # GROUP_AUTHORIZATION_FAILED
    (_FIND, 30): "grant this client Describe and Read on the group",
    # TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    (_FIND, 53): "grant this client Describe and Write on the transactional id",
    # INVALID_TXN_STATE
    (_INIT, 48): _NOT_THE_SAME,
    # TOPIC_AUTHORIZATION_FAILED
    (_OFFSETS, 29): "grant this client Read on the topic",
}

#: By Kafka's error code. The advice for messages is used for the others.
_BY_CODE: Final[dict[int, str]] = {
    # UNKNOWN_TOPIC_OR_PARTITION
    3: "there is no such partition",
    # REQUEST_TIMED_OUT
    7: "check the brokers' load and replication",
    # OFFSET_METADATA_TOO_LARGE
    12: "shorten the metadata of the offset, or raise the brokers' offset.metadata.max.bytes",
    # ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, REBALANCE_IN_PROGRESS, FENCED_INSTANCE_ID,
    # STALE_MEMBER_EPOCH
    **dict.fromkeys((22, 25, 27, 82, 113), _LOST_PARTITIONS),
    # INVALID_COMMIT_OFFSET_SIZE
    28: "send fewer offsets, or shorter metadata, in one call",
    # GROUP_AUTHORIZATION_FAILED
    30: "grant this client Read on the group",
    # CLUSTER_AUTHORIZATION_FAILED
    31: "grant this client IdempotentWrite on the cluster",
    # UNSUPPORTED_VERSION
    35: "the broker, or a proxy before it, supports only older versions of this request; "
    "transactions require Kafka 2.5 or newer",
    # INVALID_REQUEST
    42: "check transactional_id; the broker's log has the reason",
    # INVALID_TXN_STATE
    48: "the coordinator has no open transaction; it aborts one that takes longer than "
    "transaction_timeout_ms",
    # INVALID_PRODUCER_ID_MAPPING
    49: "the coordinator does not know this producer any more; it forgets an id that is not used "
    "for transactional.id.expiration.ms",
    # OPERATION_NOT_ATTEMPTED
    55: "another partition of the request was rejected",
    # UNKNOWN_PRODUCER_ID
    59: "the broker does not know this producer any more",
}


def coordinator_advice(api_key: int | None, code: int) -> str:
    """Return what to do about *code* in the answer to a request, "" if its name is sufficient."""
    if api_key is None:  # an answer to Produce
        return ADVICE.get(code) or _BY_CODE.get(code, "")
    return _BY_REQUEST.get((api_key, code)) or _BY_CODE.get(code) or ADVICE.get(code, "")
