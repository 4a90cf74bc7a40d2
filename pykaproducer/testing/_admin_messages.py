"""The messages with which a test cluster is administered: see ``_messages``."""

from __future__ import annotations

import enum

from pykaproducer.testing._codec import (
    BOOL,
    INT8,
    INT16,
    INT32,
    STRING,
    Array,
    Field,
    message,
    record,
)


class AclOperation(enum.IntEnum):
    """Kafka's codes of operations."""

    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


#: Versions up to 6.
CreateTopicsRequest, CreateTopicsResponse = message(
    "CreateTopics",
    19,
    5,
    [
        Field(
            "topics",
            Array(
                record(
                    "CreatableTopic",
                    Field("name", STRING),
                    Field("num_partitions", INT32),
                    Field("replication_factor", INT16),
                    Field(
                        "assignments",
                        Array(
                            record(
                                "CreatableReplicaAssignment",
                                Field("partition_index", INT32),
                                Field("broker_ids", Array(INT32)),
                            )
                        ),
                    ),
                    Field(
                        "configs",
                        Array(
                            record(
                                "CreatableTopicConfig",
                                Field("name", STRING),
                                Field("value", STRING),
                            )
                        ),
                    ),
                )
            ),
        ),
        Field("timeout_ms", INT32, default=60_000),
        Field("validate_only", BOOL, since=1),
    ],
    [
        Field("throttle_time_ms", INT32, since=2),
        Field(
            "topics",
            Array(
                record(
                    "CreatableTopicResult",
                    Field("name", STRING),
                    Field("error_code", INT16),
                    Field("error_message", STRING, since=1, default=None),
                    Field("topic_config_error_code", INT16, since=5, tag=0),
                    Field("num_partitions", INT32, since=5, default=-1),
                    Field("replication_factor", INT16, since=5, default=-1),
                    Field(
                        "configs",
                        Array(
                            record(
                                "CreatableTopicConfigs",
                                Field("name", STRING),
                                Field("value", STRING),
                                Field("read_only", BOOL),
                                Field("config_source", INT8, default=-1),
                                Field("is_sensitive", BOOL),
                            )
                        ),
                        since=5,
                    ),
                )
            ),
        ),
    ],
)

#: Versions up to 5.
DeleteTopicsRequest, DeleteTopicsResponse = message(
    "DeleteTopics",
    20,
    4,
    [Field("topic_names", Array(STRING)), Field("timeout_ms", INT32)],
    [
        Field("throttle_time_ms", INT32, since=1),
        Field(
            "responses",
            Array(
                record(
                    "DeletableTopicResult",
                    Field("name", STRING),
                    Field("error_code", INT16),
                    Field("error_message", STRING, since=5, default=None),
                )
            ),
        ),
    ],
)

CreateAclsRequest, CreateAclsResponse = message(
    "CreateAcls",
    30,
    2,
    [
        Field(
            "creations",
            Array(
                record(
                    "AclCreation",
                    Field("resource_type", INT8),
                    Field("resource_name", STRING),
                    Field("resource_pattern_type", INT8, since=1, default=3),
                    Field("principal", STRING),
                    Field("host", STRING),
                    Field("operation", INT8),
                    Field("permission_type", INT8),
                )
            ),
        )
    ],
    [
        Field("throttle_time_ms", INT32),
        Field(
            "results",
            Array(
                record(
                    "AclCreationResult",
                    Field("error_code", INT16),
                    Field("error_message", STRING, default=None),
                )
            ),
        ),
    ],
)

#: The filter of DescribeAcls and DeleteAcls.
_FILTER = (
    Field("resource_type_filter", INT8),
    Field("resource_name_filter", STRING),
    Field("pattern_type_filter", INT8, since=1, default=3),
    Field("principal_filter", STRING),
    Field("host_filter", STRING),
    Field("operation", INT8),
    Field("permission_type", INT8),
)

#: The end of each rule that they return.
_WHO = (
    Field("principal", STRING),
    Field("host", STRING),
    Field("operation", INT8),
    Field("permission_type", INT8),
)

DeleteAclsRequest, DeleteAclsResponse = message(
    "DeleteAcls",
    31,
    2,
    [Field("filters", Array(record("DeleteAclsFilter", *_FILTER)))],
    [
        Field("throttle_time_ms", INT32),
        Field(
            "filter_results",
            Array(
                record(
                    "DeleteAclsFilterResult",
                    Field("error_code", INT16),
                    Field("error_message", STRING, default=None),
                    Field(
                        "matching_acls",
                        Array(
                            record(
                                "DeleteAclsMatchingAcl",
                                Field("error_code", INT16),
                                Field("error_message", STRING, default=None),
                                Field("resource_type", INT8),
                                Field("resource_name", STRING),
                                Field("pattern_type", INT8, since=1, default=3),
                                *_WHO,
                            )
                        ),
                    ),
                )
            ),
        ),
    ],
)

DescribeAclsRequest, DescribeAclsResponse = message(
    "DescribeAcls",
    29,
    2,
    _FILTER,
    [
        Field("throttle_time_ms", INT32),
        Field("error_code", INT16),
        Field("error_message", STRING, default=None),
        Field(
            "resources",
            Array(
                record(
                    "DescribeAclsResource",
                    Field("resource_type", INT8),
                    Field("resource_name", STRING),
                    Field("pattern_type", INT8, since=1, default=3),
                    Field("acls", Array(record("AclDescription", *_WHO))),
                )
            ),
        ),
    ],
)

#: Versions up to 1.
UpdateFeaturesRequest, UpdateFeaturesResponse = message(
    "UpdateFeatures",
    57,
    0,
    [
        Field("timeout_ms", INT32, default=60_000),
        Field(
            "feature_updates",
            Array(
                record(
                    "FeatureUpdateKey",
                    Field("feature", STRING),
                    Field("max_version_level", INT16),
                    Field("allow_downgrade", BOOL, until=0),
                    Field("upgrade_type", INT8, since=1, default=1),
                )
            ),
        ),
        Field("validate_only", BOOL, since=1),
    ],
    [
        Field("throttle_time_ms", INT32),
        Field("error_code", INT16),
        Field("error_message", STRING, default=None),
        Field(
            "results",
            Array(
                record(
                    "UpdatableFeatureResult",
                    Field("feature", STRING),
                    Field("error_code", INT16),
                    Field("error_message", STRING, default=None),
                )
            ),
        ),
    ],
)
