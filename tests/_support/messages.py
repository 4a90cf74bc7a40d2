"""Messages with which only tests read and change a real cluster."""

from __future__ import annotations

from pykaproducer.testing._codec import (
    BYTES,
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

#: Version 4, the first with record batches of format 2 and all codecs but zstd.
FetchRequest, FetchResponse = message(
    "Fetch",
    1,
    12,
    [
        Field("replica_id", INT32, default=-1),
        Field("max_wait_ms", INT32),
        Field("min_bytes", INT32),
        Field("max_bytes", INT32, default=0x7FFFFFFF),
        Field("isolation_level", INT8),
        Field(
            "topics",
            Array(
                record(
                    "FetchTopic",
                    Field("topic", STRING),
                    Field(
                        "partitions",
                        Array(
                            record(
                                "FetchPartition",
                                Field("partition", INT32),
                                Field("fetch_offset", INT64),
                                Field("partition_max_bytes", INT32),
                            )
                        ),
                    ),
                )
            ),
        ),
    ],
    [
        Field("throttle_time_ms", INT32),
        Field(
            "responses",
            Array(
                record(
                    "FetchableTopicResponse",
                    Field("topic", STRING),
                    Field(
                        "partitions",
                        Array(
                            record(
                                "PartitionData",
                                Field("partition_index", INT32),
                                Field("error_code", INT16),
                                Field("high_watermark", INT64),
                                Field("last_stable_offset", INT64, default=-1),
                                Field(
                                    "aborted_transactions",
                                    Array(
                                        record(
                                            "AbortedTransaction",
                                            Field("producer_id", INT64),
                                            Field("first_offset", INT64),
                                        )
                                    ),
                                ),
                                Field("records", BYTES),
                            )
                        ),
                    ),
                )
            ),
        ),
    ],
)

ElectLeadersRequest, ElectLeadersResponse = message(
    "ElectLeaders",
    43,
    2,
    [
        Field("election_type", INT8, since=1),
        Field(
            "topic_partitions",
            Array(
                record(
                    "TopicPartitions",
                    Field("topic", STRING),
                    Field("partitions", Array(INT32)),
                )
            ),
        ),
        Field("timeout_ms", INT32, default=60_000),
    ],
    [
        Field("throttle_time_ms", INT32),
        Field("error_code", INT16, since=1),
        Field(
            "replica_election_results",
            Array(
                record(
                    "ReplicaElectionResult",
                    Field("topic", STRING),
                    Field(
                        "partition_result",
                        Array(
                            record(
                                "PartitionResult",
                                Field("partition_id", INT32),
                                Field("error_code", INT16),
                                Field("error_message", STRING, default=None),
                            )
                        ),
                    ),
                )
            ),
        ),
    ],
)

#: Version 0.
AlterPartitionReassignmentsRequest, AlterPartitionReassignmentsResponse = message(
    "AlterPartitionReassignments",
    45,
    0,
    [
        Field("timeout_ms", INT32, default=60_000),
        Field(
            "topics",
            Array(
                record(
                    "ReassignableTopic",
                    Field("name", STRING),
                    Field(
                        "partitions",
                        Array(
                            record(
                                "ReassignablePartition",
                                Field("partition_index", INT32),
                                Field("replicas", Array(INT32), default=None),
                            )
                        ),
                    ),
                )
            ),
        ),
    ],
    [
        Field("throttle_time_ms", INT32),
        Field("error_code", INT16),
        Field("error_message", STRING, default=None),
        Field(
            "responses",
            Array(
                record(
                    "ReassignableTopicResponse",
                    Field("name", STRING),
                    Field(
                        "partitions",
                        Array(
                            record(
                                "ReassignablePartitionResponse",
                                Field("partition_index", INT32),
                                Field("error_code", INT16),
                                Field("error_message", STRING, default=None),
                            )
                        ),
                    ),
                )
            ),
        ),
    ],
)
