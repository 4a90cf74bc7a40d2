"""Describe a cluster, and create a topic: each with one connection, which is closed again.

Both block the caller. The pipeline has a persistent way to metadata, limited to the topics in use.
"""

from __future__ import annotations

from collections.abc import Mapping

from pykaproducer._errors.formatting import format_partition
from pykaproducer._net.one_request import OneRequest, OneRequestSettings
from pykaproducer._net.transport import Network
from pykaproducer._util.clock import Clock
from pykaproducer._wire.create_topics import create_topic_request, decode_create_topic
from pykaproducer._wire.describe import ClusterDescription, decode_description
from pykaproducer._wire.messages import ApiKey, metadata_request

#: From this version of CreateTopics on, -1 stands for the broker's default (KIP-464).
_FIRST_WITH_DEFAULTS = 4
#: Number of replicas of a topic on older brokers, if there are as many brokers.
_REPLICAS = 3


def list_cluster(
    config: OneRequestSettings,
    timeout: float | None,
    topic: str | None = None,
    *,
    create: bool = False,
    clock: Clock | None = None,
    network: Network | None = None,
) -> ClusterDescription:
    """Ask one of ``bootstrap_servers`` to describe its cluster, with all topics or only *topic*.

    The servers are tried in turn until one answers. A topic that does not exist is in the result,
    with its error code.

    Args:
        config: the configuration of a producer.
        timeout (float): seconds. None waits until a server answers.
        topic (str): None returns all topics.
        create (bool): whether the brokers may create *topic*, if their configuration permits it.
        clock, network: replacements for tests.

    Raises:
        MetadataTimeoutError: no server answered within *timeout*; the text has the last reason.
    """
    where = "" if topic is None else f"{format_partition(topic)}: "
    topics = None if topic is None else [topic]

    def encode(version: int, correlation_id: int) -> bytes:
        return metadata_request(version, correlation_id, config.client_id, topics, create)

    request = OneRequest(config, ApiKey.METADATA, encode, decode_description, f"{where}no metadata")
    return request.answer(config.bootstrap_servers, timeout, clock, network)


def create_topic(
    config: OneRequestSettings,
    timeout: float,
    topic: str,
    *,
    partitions: int = -1,
    replication_factor: int = -1,
    topic_config: Mapping[str, str],
) -> tuple[int, str | None]:
    """Create *topic*, with the broker's default for -1. Return the error code and message.

    Brokers before Kafka 2.4 have no defaults in this request. There a topic gets 1 partition, and 3
    replicas, or as many as there are brokers.

    The controller is asked. If the connection is lost before its response, it is asked again, and
    then the topic may exist already.

    Raises:
        MetadataTimeoutError: there was no response within *timeout* seconds.
    """
    clock = Clock()
    began = clock.monotonic()
    # A topic is named because the request would otherwise be for all topics.
    cluster = list_cluster(config, timeout, topic, clock=clock)
    controllers = [b for b in cluster.brokers if b.node_id == cluster.controller_id]
    servers = [(b.host, b.port) for b in controllers] or [cluster.answered_by]
    left = max(0.0, timeout - (clock.monotonic() - began))

    def encode(version: int, correlation_id: int) -> bytes:
        has_defaults = version >= _FIRST_WITH_DEFAULTS
        replicas = min(_REPLICAS, max(1, len(cluster.brokers)))
        return create_topic_request(
            version,
            correlation_id,
            config.client_id,
            topic,
            1 if partitions < 0 and not has_defaults else partitions,
            replicas if replication_factor < 0 and not has_defaults else replication_factor,
            topic_config,
            int(left * 1000),
        )

    request = OneRequest(
        config,
        ApiKey.CREATE_TOPICS,
        encode,
        lambda version, payload, _: decode_create_topic(version, payload),
        f"{format_partition(topic)}: no response",
    )
    return request.answer(servers, left, clock)
