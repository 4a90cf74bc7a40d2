"""The messages of Kafka's protocol between a transactional producer and its coordinators.

As in ``_messages``, fields are named as in Kafka's schemas, and as in kafka-python 3's classes.
InitProducerId is there. Without versions that clients do not send: AddPartitionsToTxn from 4 on is
for brokers. OffsetFetch before 7 and from 10 on, with topic ids, is omitted.
"""

from __future__ import annotations

from pykaproducer.testing._codec import (
    BOOL,
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    Array,
    Field,
    message,
    record,
)

#: The transactional id, the producer id and the epoch: the first fields of most requests.
_TRANSACTIONAL_ID = Field("transactional_id", STRING)
_PRODUCER = (Field("producer_id", INT64), Field("producer_epoch", INT16))
#: The beginning of all responses.
_THROTTLE = Field("throttle_time_ms", INT32)


def _codes(topic: str, partition: str, names: tuple[str, str, str]) -> Field:
    """Return the field with the error code of each partition; *names* are those of the arrays."""
    topics, partitions, code = names
    codes = record(partition, Field("partition_index", INT32), Field(code, INT16))
    return Field(
        topics, Array(record(topic, Field("name", STRING), Field(partitions, Array(codes))))
    )


FindCoordinatorRequest, FindCoordinatorResponse = message(
    "FindCoordinator",
    10,
    3,
    [
        Field("key", STRING, until=3),
        Field("key_type", INT8, since=1),
        Field("coordinator_keys", Array(STRING), since=4),
    ],
    [
        Field("throttle_time_ms", INT32, since=1),
        Field("error_code", INT16, until=3),
        Field("error_message", STRING, since=1, until=3, default=None),
        Field("node_id", INT32, until=3),
        Field("host", STRING, until=3),
        Field("port", INT32, until=3),
        Field(
            "coordinators",
            Array(
                record(
                    "Coordinator",
                    Field("key", STRING),
                    Field("node_id", INT32),
                    Field("host", STRING),
                    Field("port", INT32),
                    Field("error_code", INT16),
                    Field("error_message", STRING, default=None),
                )
            ),
            since=4,
        ),
    ],
)

AddPartitionsToTxnRequest, AddPartitionsToTxnResponse = message(
    "AddPartitionsToTxn",
    24,
    3,
    [
        Field("v3_and_below_transactional_id", STRING),
        Field("v3_and_below_producer_id", INT64),
        Field("v3_and_below_producer_epoch", INT16),
        Field(
            "v3_and_below_topics",
            Array(
                record(
                    "AddPartitionsToTxnTopic",
                    Field("name", STRING),
                    Field("partitions", Array(INT32)),
                )
            ),
        ),
    ],
    [
        _THROTTLE,
        _codes(
            "AddPartitionsToTxnTopicResult",
            "AddPartitionsToTxnPartitionResult",
            ("results_by_topic_v3_and_below", "results_by_partition", "partition_error_code"),
        ),
    ],
)

AddOffsetsToTxnRequest, AddOffsetsToTxnResponse = message(
    "AddOffsetsToTxn",
    25,
    3,
    [_TRANSACTIONAL_ID, *_PRODUCER, Field("group_id", STRING)],
    [_THROTTLE, Field("error_code", INT16)],
)

EndTxnRequest, EndTxnResponse = message(
    "EndTxn",
    26,
    3,
    [_TRANSACTIONAL_ID, *_PRODUCER, Field("committed", BOOL)],
    [
        _THROTTLE,
        Field("error_code", INT16),
        Field("producer_id", INT64, since=5, default=-1),
        Field("producer_epoch", INT16, since=5, default=-1),
    ],
)

TxnOffsetCommitRequest, TxnOffsetCommitResponse = message(
    "TxnOffsetCommit",
    28,
    3,
    [
        _TRANSACTIONAL_ID,
        Field("group_id", STRING),
        *_PRODUCER,
        Field("generation_id", INT32, since=3, default=-1),
        Field("member_id", STRING, since=3),
        Field("group_instance_id", STRING, since=3, default=None),
        Field(
            "topics",
            Array(
                record(
                    "TxnOffsetCommitRequestTopic",
                    Field("name", STRING),
                    Field(
                        "partitions",
                        Array(
                            record(
                                "TxnOffsetCommitRequestPartition",
                                Field("partition_index", INT32),
                                Field("committed_offset", INT64),
                                Field("committed_leader_epoch", INT32, since=2, default=-1),
                                Field("committed_metadata", STRING),
                            )
                        ),
                    ),
                )
            ),
        ),
    ],
    [
        _THROTTLE,
        _codes(
            "TxnOffsetCommitResponseTopic",
            "TxnOffsetCommitResponsePartition",
            ("topics", "partitions", "error_code"),
        ),
    ],
)

OffsetFetchRequest, OffsetFetchResponse = message(
    "OffsetFetch",
    9,
    6,
    [
        Field("group_id", STRING, until=7),
        Field(
            "topics",
            Array(
                record(
                    "OffsetFetchRequestTopic",
                    Field("name", STRING),
                    Field("partition_indexes", Array(INT32)),
                )
            ),
            until=7,
        ),
        Field(
            "groups",
            Array(
                record(
                    "OffsetFetchRequestGroup",
                    Field("group_id", STRING),
                    Field("member_id", STRING, since=9, default=None),
                    Field("member_epoch", INT32, since=9, default=-1),
                    Field(
                        "topics",
                        Array(
                            record(
                                "OffsetFetchRequestTopics",
                                Field("name", STRING),
                                Field("partition_indexes", Array(INT32)),
                            )
                        ),
                    ),
                )
            ),
            since=8,
        ),
        Field("require_stable", BOOL),
    ],
    [
        _THROTTLE,
        Field(
            "topics",
            Array(
                record(
                    "OffsetFetchResponseTopic",
                    Field("name", STRING),
                    Field(
                        "partitions",
                        Array(
                            record(
                                "OffsetFetchResponsePartition",
                                Field("partition_index", INT32),
                                Field("committed_offset", INT64),
                                Field("committed_leader_epoch", INT32, default=-1),
                                Field("metadata", STRING),
                                Field("error_code", INT16),
                            )
                        ),
                    ),
                )
            ),
            until=7,
        ),
        Field("error_code", INT16, until=7),
        Field(
            "groups",
            Array(
                record(
                    "OffsetFetchResponseGroup",
                    Field("group_id", STRING),
                    Field(
                        "topics",
                        Array(
                            record(
                                "OffsetFetchResponseTopics",
                                Field("name", STRING),
                                Field(
                                    "partitions",
                                    Array(
                                        record(
                                            "OffsetFetchResponsePartitions",
                                            Field("partition_index", INT32),
                                            Field("committed_offset", INT64),
                                            Field("committed_leader_epoch", INT32, default=-1),
                                            Field("metadata", STRING),
                                            Field("error_code", INT16),
                                        )
                                    ),
                                ),
                            )
                        ),
                    ),
                    Field("error_code", INT16),
                )
            ),
            since=8,
        ),
    ],
)

DescribeTransactionsRequest, DescribeTransactionsResponse = message(
    "DescribeTransactions",
    65,
    0,
    [Field("transactional_ids", Array(STRING))],
    [
        _THROTTLE,
        Field(
            "transaction_states",
            Array(
                record(
                    "TransactionState",
                    Field("error_code", INT16),
                    _TRANSACTIONAL_ID,
                    Field("transaction_state", STRING),
                    Field("transaction_timeout_ms", INT32),
                    Field("transaction_start_time_ms", INT64),
                    *_PRODUCER,
                    Field(
                        "topics",
                        Array(
                            record(
                                "TopicData",
                                Field("topic", STRING),
                                Field("partitions", Array(INT32)),
                            )
                        ),
                    ),
                )
            ),
        ),
    ],
)

ListTransactionsRequest, ListTransactionsResponse = message(
    "ListTransactions",
    66,
    0,
    [
        Field("state_filters", Array(STRING)),
        Field("producer_id_filters", Array(INT64)),
        Field("duration_filter", INT64, since=1, default=-1),
        Field("transactional_id_pattern", STRING, since=2, default=None),
    ],
    [
        _THROTTLE,
        Field("error_code", INT16),
        Field("unknown_state_filters", Array(STRING)),
        Field(
            "transaction_states",
            Array(
                record(
                    "TransactionState",
                    _TRANSACTIONAL_ID,
                    _PRODUCER[0],
                    Field("transaction_state", STRING),
                )
            ),
        ),
    ],
)
