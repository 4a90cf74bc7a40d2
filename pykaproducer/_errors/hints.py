"""What to do about a broker's error, as text that follows the error's name."""

from __future__ import annotations

from typing import Final

#: By Kafka's error code (``org.apache.kafka.common.protocol.Errors``). Errors whose names are
#: sufficient are missing here.
ADVICE: Final[dict[int, str]] = {
    # REQUEST_TIMED_OUT
    7: "the replicas did not confirm in time; check the brokers' load and replication",
    # MESSAGE_TOO_LARGE
    10: "send smaller messages, or raise the topic's max.message.bytes",
    # INVALID_TOPIC_EXCEPTION
    17: "the cluster does not allow this name, or writing to this topic",
    # RECORD_LIST_TOO_LARGE
    18: "lower batch_size, or raise the topic's segment.bytes",
    # NOT_ENOUGH_REPLICAS
    19: "fewer replicas are in sync than min.insync.replicas requires; check for failed brokers",
    # NOT_ENOUGH_REPLICAS_AFTER_APPEND
    20: "fewer replicas are in sync than min.insync.replicas requires; check for failed brokers",
    # INVALID_REQUIRED_ACKS
    21: "the broker does not support this value of acks",
    # TOPIC_AUTHORIZATION_FAILED
    29: "grant this client Write on the topic",
    # CLUSTER_AUTHORIZATION_FAILED
    31: "grant this client Write on its topics (before Kafka 2.8 IdempotentWrite on the cluster), "
    "or set enable_idempotence=False",
    # INVALID_TIMESTAMP
    32: "the topic's message.timestamp.before.max.ms and .after.max.ms limit the timestamps",
    # UNSUPPORTED_VERSION
    35: "the broker is too old for this request",
    # UNSUPPORTED_FOR_MESSAGE_FORMAT
    43: "the topic's message format is older than v2; raise it on the broker",
    # POLICY_VIOLATION
    44: "a policy of the cluster forbids it; ask its administrator",
    # INVALID_TRANSACTION_TIMEOUT
    50: "transaction_timeout_ms is above the brokers' transaction.max.timeout.ms; lower it",
    # TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    53: "grant this client Write on the transactional id",
    # KAFKA_STORAGE_ERROR
    56: "the broker cannot write to its disk; check its log",
    # UNSUPPORTED_COMPRESSION_TYPE
    76: "choose another compression_type",
    # INVALID_RECORD
    87: "the topic rejects such messages; a compacted topic, for example, requires keys",
}
#: Codes about the size of a batch, and about its format or compression.
_TOO_LARGE: Final = (10, 18)
_FORMAT, _COMPRESSION = 43, 76
#: The same for messages of a transaction.
ADVICE_IN_TRANSACTIONS: Final[dict[int, str]] = {
    # UNSUPPORTED_VERSION
    35: f"{ADVICE[35]}; abort the transaction and repeat it: the next one has the older protocol",
    # INVALID_PRODUCER_EPOCH
    47: "another client has probably taken over the transactional id, or the transaction has timed "
    "out; abort_transaction() reports which",
}


def advice_for_batch(
    code: int, *, compression: str | None, count: int, plain: int, sealed: int
) -> str | None:
    """Return what to do about *code* in view of the rejected batch; None: see :data:`ADVICE`.

    *compression*: its ``compression_type``. *count*: number of its messages. *plain*, *sealed*: its
    size in bytes before and after compression.
    """
    if code in _TOO_LARGE:
        messages = "one message" if count == 1 else f"{count:,} messages"
        packed = "" if compression is None else f" ({sealed:,} bytes with {compression})"
        return f"the batch of {messages} has {plain:,} bytes{packed}; {ADVICE[code]}"
    if code in (_FORMAT, _COMPRESSION) and compression is not None:
        text = (
            f"this server may not support compression_type={compression!r}; choose another one, or "
            "None (as for Azure Event Hubs)"
        )
        return text if code == _COMPRESSION else f"{text}. Or {ADVICE[code]}"
    return None
