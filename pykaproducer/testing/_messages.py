"""The messages of Kafka's protocol that brokers and administrators of test clusters use.

Fields are named as in Kafka's schemas, and as in kafka-python 3's classes. Versions without a
bound here may exist in Kafka only up to some version: see :data:`VERSIONS` of ``_scripted_apis``
for those that a scripted broker supports.
"""

from __future__ import annotations

from pykaproducer.testing._codec import (
    BOOL,
    BYTES,
    INT16,
    INT32,
    INT64,
    STRING,
    UUID_,
    Array,
    Field,
    message,
    record,
)

#: The value of a field of authorized operations that were not requested.
_NOT_REQUESTED = -(2**31)

ProduceRequest, ProduceResponse = message(
    "Produce",
    0,
    9,
    [
        Field("transactional_id", STRING, since=3, default=None),
        Field("acks", INT16),
        Field("timeout_ms", INT32),
        Field(
            "topic_data",
            Array(
                record(
                    "TopicProduceData",
                    Field("name", STRING),
                    Field(
                        "partition_data",
                        Array(
                            record(
                                "PartitionProduceData",
                                Field("index", INT32),
                                Field("records", BYTES),
                            )
                        ),
                    ),
                )
            ),
        ),
    ],
    [
        Field(
            "responses",
            Array(
                record(
                    "TopicProduceResponse",
                    Field("name", STRING),
                    Field(
                        "partition_responses",
                        Array(
                            record(
                                "PartitionProduceResponse",
                                Field("index", INT32),
                                Field("error_code", INT16),
                                Field("base_offset", INT64),
                                Field("log_append_time_ms", INT64, since=2, default=-1),
                                Field("log_start_offset", INT64, since=5, default=-1),
                                Field(
                                    "record_errors",
                                    Array(
                                        record(
                                            "BatchIndexAndErrorMessage",
                                            Field("batch_index", INT32),
                                            Field(
                                                "batch_index_error_message", STRING, default=None
                                            ),
                                        )
                                    ),
                                    since=8,
                                ),
                                Field("error_message", STRING, since=8, default=None),
                                Field(
                                    "current_leader",
                                    record(
                                        "LeaderIdAndEpoch",
                                        Field("leader_id", INT32, default=-1),
                                        Field("leader_epoch", INT32, default=-1),
                                    ),
                                    since=10,
                                    tag=0,
                                ),
                            )
                        ),
                    ),
                )
            ),
        ),
        Field("throttle_time_ms", INT32, since=1),
        Field(
            "node_endpoints",
            Array(
                record(
                    "NodeEndpoint",
                    Field("node_id", INT32),
                    Field("host", STRING),
                    Field("port", INT32),
                    Field("rack", STRING, default=None),
                )
            ),
            since=10,
            tag=0,
        ),
    ],
)

MetadataRequest, MetadataResponse = message(
    "Metadata",
    3,
    9,
    [
        Field(
            "topics",
            Array(
                record(
                    "MetadataRequestTopic",
                    Field("topic_id", UUID_, since=10),
                    Field("name", STRING),
                )
            ),
        ),
        Field("allow_auto_topic_creation", BOOL, since=4, default=True),
        Field("include_cluster_authorized_operations", BOOL, since=8, until=10),
        Field("include_topic_authorized_operations", BOOL, since=8),
    ],
    [
        Field("throttle_time_ms", INT32, since=3),
        Field(
            "brokers",
            Array(
                record(
                    "MetadataResponseBroker",
                    Field("node_id", INT32),
                    Field("host", STRING),
                    Field("port", INT32),
                    Field("rack", STRING, since=1, default=None),
                )
            ),
        ),
        Field("cluster_id", STRING, since=2, default=None),
        Field("controller_id", INT32, since=1, default=-1),
        Field(
            "topics",
            Array(
                record(
                    "MetadataResponseTopic",
                    Field("error_code", INT16),
                    Field("name", STRING),
                    Field("topic_id", UUID_, since=10),
                    Field("is_internal", BOOL, since=1),
                    Field(
                        "partitions",
                        Array(
                            record(
                                "MetadataResponsePartition",
                                Field("error_code", INT16),
                                Field("partition_index", INT32),
                                Field("leader_id", INT32),
                                Field("leader_epoch", INT32, since=7, default=-1),
                                Field("replica_nodes", Array(INT32)),
                                Field("isr_nodes", Array(INT32)),
                                Field("offline_replicas", Array(INT32), since=5),
                            )
                        ),
                    ),
                    Field("topic_authorized_operations", INT32, since=8, default=_NOT_REQUESTED),
                )
            ),
        ),
        Field("cluster_authorized_operations", INT32, since=8, until=10, default=_NOT_REQUESTED),
        Field("error_code", INT16, since=13),
    ],
)

ApiVersionsRequest, ApiVersionsResponse = message(
    "ApiVersions",
    18,
    3,
    [
        Field("client_software_name", STRING, since=3),
        Field("client_software_version", STRING, since=3),
    ],
    [
        Field("error_code", INT16),
        Field(
            "api_keys",
            Array(
                record(
                    "ApiVersion",
                    Field("api_key", INT16),
                    Field("min_version", INT16),
                    Field("max_version", INT16),
                )
            ),
        ),
        Field("throttle_time_ms", INT32, since=1),
        Field(
            "supported_features",
            Array(
                record(
                    "SupportedFeatureKey",
                    Field("name", STRING),
                    Field("min_version", INT16),
                    Field("max_version", INT16),
                )
            ),
            since=3,
            tag=0,
        ),
        Field("finalized_features_epoch", INT64, since=3, tag=1, default=-1),
        Field(
            "finalized_features",
            Array(
                record(
                    "FinalizedFeatureKey",
                    Field("name", STRING),
                    Field("max_version_level", INT16),
                    Field("min_version_level", INT16),
                )
            ),
            since=3,
            tag=2,
        ),
        Field("zk_migration_ready", BOOL, since=3, tag=3),
    ],
)

InitProducerIdRequest, InitProducerIdResponse = message(
    "InitProducerId",
    22,
    2,
    [
        Field("transactional_id", STRING, default=None),
        Field("transaction_timeout_ms", INT32),
        Field("producer_id", INT64, since=3, default=-1),
        Field("producer_epoch", INT16, since=3, default=-1),
    ],
    [
        Field("throttle_time_ms", INT32),
        Field("error_code", INT16),
        Field("producer_id", INT64, default=-1),
        Field("producer_epoch", INT16),
    ],
)

SaslHandshakeRequest, SaslHandshakeResponse = message(
    "SaslHandshake",
    17,
    None,
    [Field("mechanism", STRING)],
    [Field("error_code", INT16), Field("mechanisms", Array(STRING))],
)

SaslAuthenticateRequest, SaslAuthenticateResponse = message(
    "SaslAuthenticate",
    36,
    2,
    [Field("auth_bytes", BYTES)],
    [
        Field("error_code", INT16),
        Field("error_message", STRING, default=None),
        Field("auth_bytes", BYTES),
        Field("session_lifetime_ms", INT64, since=1),
    ],
)
