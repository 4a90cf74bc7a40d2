"""CreateTopics (KIP-4): the request and response for one topic.

Version 4 is the first that accepts -1 for the broker's defaults (KIP-464).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pykaproducer._wire import WireError
from pykaproducer._wire.messages import ApiKey
from pykaproducer._wire.reader import Reader
from pykaproducer._wire.writer import RequestWriter

if TYPE_CHECKING:
    from typing_extensions import Buffer


def create_topic_request(
    version: int,
    correlation_id: int,
    client_id: str | None,
    name: str,
    partitions: int,
    replication_factor: int,
    configs: Mapping[str, str],
    timeout_ms: int,
) -> bytes:
    """Encode a framed CreateTopics request. *partitions*, *replication_factor*: -1 is the default.

    *timeout_ms*: how long the broker may take.
    """
    out = RequestWriter(
        ApiKey.CREATE_TOPICS, version, correlation_id, client_id, flexible=version >= 5
    )
    out.array(1)
    out.string(name)
    out.int32(partitions)
    out.int16(replication_factor)
    out.array(0)  # the broker assigns the replicas
    out.array(len(configs))
    for key, value in configs.items():
        out.string(key)
        out.string(value)
        out.no_tags()
    out.no_tags()  # of the topic
    out.int32(timeout_ms)
    out.int8(False)  # not only validate
    out.no_tags()
    return out.frame()


def decode_create_topic(version: int, payload: Buffer) -> tuple[int, str | None]:
    """Decode a CreateTopics response: the error code and message of its only topic."""
    reader = Reader(payload, flexible=version >= 5)
    reader.skip_tags()  # the header's
    reader.int32()  # throttle time
    if reader.array() != 1:
        raise WireError("a CreateTopics response is not for one topic")
    reader.string()
    if version >= 7:
        reader.fields(_topic_id)
    (error_code,) = reader.fields(_int16)
    return error_code, reader.text()


_int16 = struct.Struct(">h")
_topic_id = struct.Struct(">16s")
