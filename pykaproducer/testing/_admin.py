"""The few requests that a test cluster makes: metadata, create and delete a topic.

Each request uses its own blocking socket: no thread, no persistent connection, no logging, and a
timeout for each step.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

from pykaproducer._errors.formatting import format_error_code
from pykaproducer.testing._admin_messages import CreateTopicsRequest, DeleteTopicsRequest
from pykaproducer.testing._errors import ClusterError
from pykaproducer.testing._messages import MetadataRequest

#: Timeout of a request (seconds); brokers usually answer within milliseconds.
REQUEST_TIMEOUT = 5.0
#: Timeout for creating or deleting a topic (seconds).
TOPIC_TIMEOUT = 30.0

#: Maximum size of a response; a larger one is malformed.
_MAX_RESPONSE = 64 * 1024 * 1024


class FetchedMetadata(NamedTuple):
    """The metadata of one broker: live brokers, and leaders by partition."""

    brokers: frozenset[int]
    leaders: dict[int, int]
    error: int


def fetch_metadata(port: int, topic: str | None = None) -> FetchedMetadata:
    """Fetch metadata from the broker at *port*; raise :class:`OSError` if it does not answer."""
    request = MetadataRequest(
        version=8,
        topics=[] if topic is None else [MetadataRequest.MetadataRequestTopic(name=topic)],
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )
    response = ask(port, request, REQUEST_TIMEOUT)
    leaders, error = {}, 0
    for entry in response.topics:
        error = entry.error_code
        for partition in entry.partitions:
            leaders[partition.partition_index] = partition.leader_id
    return FetchedMetadata(frozenset(broker.node_id for broker in response.brokers), leaders, error)


def create_topic(
    port: int, name: str, partitions: int, replication_factor: int, config: Mapping[str, str]
) -> None:
    """Create a topic; raise :class:`ClusterError` if the cluster rejects it."""
    topic = CreateTopicsRequest.CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replication_factor,
        assignments=[],
        configs=[
            CreateTopicsRequest.CreatableTopic.CreatableTopicConfig(name=key, value=value)
            for key, value in config.items()
        ],
    )
    request = CreateTopicsRequest(
        version=5, topics=[topic], timeout_ms=int(TOPIC_TIMEOUT * 1000), validate_only=False
    )
    (result,) = ask(port, request, TOPIC_TIMEOUT + REQUEST_TIMEOUT).topics
    check(result.error_code, f"create topic {name!r}", result.error_message)


def delete_topic(port: int, name: str) -> None:
    """Delete a topic; raise :class:`ClusterError` if the cluster rejects this."""
    request = DeleteTopicsRequest(
        version=5, topic_names=[name], timeout_ms=int(TOPIC_TIMEOUT * 1000)
    )
    (result,) = ask(port, request, TOPIC_TIMEOUT + REQUEST_TIMEOUT).responses
    check(result.error_code, f"delete topic {name!r}", result.error_message)


def error_name(code: int) -> str:
    """Return Kafka's name of an error code."""
    return format_error_code(code)


def check(code: int, what: str, message: str | None) -> None:
    """Raise :class:`ClusterError` if the cluster returned an error for *what*."""
    if code:
        raise ClusterError(f"could not {what}: {error_name(code)}: {message or 'no details'}")


def ask(port: int, request: Any, timeout: float) -> Any:
    """Send a request to the broker at *port*, and return the response.

    *request*: of ``_messages`` or ``_admin_messages``, or of kafka-python 3's classes.
    """
    request.with_header(correlation_id=1, client_id="pykaproducer-testing")
    with socket.create_connection(("127.0.0.1", port), timeout=timeout) as connection:
        connection.sendall(request.encode(header=True, framed=True))
        (size,) = struct.unpack(">i", _receive(connection, 4))
        if not 4 <= size <= _MAX_RESPONSE:
            raise ConnectionError(f"invalid response length: {size}")
        response = _receive(connection, size)
    return request.header.get_response_class().decode(response, header=True)


def _receive(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise ConnectionError("the broker closed the connection")
        data += piece
    return bytes(data)
