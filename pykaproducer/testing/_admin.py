"""The few requests that a test cluster has to make: metadata, create and delete a topic.

One blocking socket for one request: no thread, no connection to keep, nothing logged, and each
step bounded by a timeout. kafka-python's message classes encode and decode.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

from kafka.errors import for_code
from kafka.protocol.admin import CreateTopicsRequest, DeleteTopicsRequest
from kafka.protocol.metadata import MetadataRequest

from pykaproducer.testing._errors import ClusterError

#: How long one request may take (seconds); a broker that is asked answers within milliseconds.
REQUEST_TIMEOUT = 5.0
#: How long the broker may take to make or delete a topic (seconds).
TOPIC_TIMEOUT = 30.0

#: A larger answer is garbage.
_MAX_RESPONSE = 64 * 1024 * 1024


class Metadata(NamedTuple):
    """What one broker knows: the brokers that serve, and the leaders by partition."""

    brokers: frozenset[int]
    leaders: dict[int, int]
    error: int


def fetch_metadata(port: int, topic: str | None = None) -> Metadata:
    """Ask the broker at *port*; :class:`OSError` when it does not answer."""
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
    return Metadata(frozenset(broker.node_id for broker in response.brokers), leaders, error)


def create_topic(
    port: int, name: str, partitions: int, replication_factor: int, config: Mapping[str, str]
) -> None:
    """Make a topic; :class:`ClusterError` when the cluster refuses."""
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
    """Delete a topic; :class:`ClusterError` when the cluster refuses."""
    request = DeleteTopicsRequest(
        version=5, topic_names=[name], timeout_ms=int(TOPIC_TIMEOUT * 1000)
    )
    (result,) = ask(port, request, TOPIC_TIMEOUT + REQUEST_TIMEOUT).responses
    check(result.error_code, f"delete topic {name!r}", result.error_message)


def error_name(code: int) -> str:
    """Kafka's name of an error code."""
    return str(getattr(for_code(code), "message", code))


def check(code: int, what: str, message: str | None) -> None:
    """Raise :class:`ClusterError` if the cluster refused to do *what*."""
    if code:
        raise ClusterError(f"could not {what}: {error_name(code)}: {message or 'no details'}")


def ask(port: int, request: Any, timeout: float) -> Any:
    """What the broker at *port* answers to a request of kafka-python's."""
    request.with_header(correlation_id=1, client_id="pykaproducer-testing")
    with socket.create_connection(("127.0.0.1", port), timeout=timeout) as connection:
        connection.sendall(request.encode(header=True, framed=True))
        (size,) = struct.unpack(">i", _receive(connection, 4))
        if not 4 <= size <= _MAX_RESPONSE:
            raise ConnectionError(f"an impossible response length: {size}")
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
