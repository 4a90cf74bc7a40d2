"""One-off queries to a cluster: on scripted servers, and without any."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pykaproducer._net.inspect import list_cluster
from pykaproducer._wire import WireError
from pykaproducer._wire.describe import decode_description
from pykaproducer.config import Config
from pykaproducer.errors import MetadataTimeoutError
from pykaproducer.testing import KafkaCluster, ScriptedCluster
from pykaproducer.testing.scripted import Drop
from tests.wire.helper import payload
from tests.wire.test_messages import their_metadata

SOON = 30


@pytest.fixture
def scripted() -> Iterator[ScriptedCluster]:
    with ScriptedCluster(2, {"a": 2, "b": 1}) as made:
        yield made


def ask(scripted: ScriptedCluster, topic: str | None = None) -> Any:
    config = Config.from_kwargs({"bootstrap_servers": scripted.bootstrap_servers})
    return list_cluster(config, SOON, topic, network=scripted.network)


def test_brokers_and_a_topic(scripted: ScriptedCluster) -> None:
    found = ask(scripted, "a")
    assert [broker.node_id for broker in found.brokers] == [0, 1]
    (topic,) = found.topics
    assert (topic.name, topic.error_code) == ("a", 0)
    assert [(p.index, p.leader_id) for p in topic.partitions] == [(0, 0), (1, 1)]


def test_a_server_that_hangs_up_is_not_the_only_one(scripted: ScriptedCluster) -> None:
    scripted.next("metadata", Drop())
    assert [topic.name for topic in ask(scripted, "b").topics] == ["b"]


def test_nobody_answers(refusing: str, silent: str) -> None:
    for servers, why in ((refusing, "connection refused"), (silent, "")):
        config = Config.from_kwargs({"bootstrap_servers": servers})
        with pytest.raises(MetadataTimeoutError, match=f"no metadata.*{why}"):
            list_cluster(config, 0.05)


@pytest.mark.parametrize("version", range(13))
def test_every_version_is_read_whole(version: int) -> None:
    described = (5, 3, -1, 4, [7, 8])
    answer = their_metadata(version, 0, [(7, "h", 9, "r")], [(0, "t", True, [described])])
    sent = payload(answer)
    found = decode_description(version, sent, ("h", 9))
    (broker,), (topic,) = found.brokers, found.topics
    (partition,) = topic.partitions
    assert (broker.node_id, broker.host, broker.port) == (7, "h", 9)
    assert broker.rack == ("r" if version >= 1 else None)
    assert found.cluster_id == ("the cluster" if version >= 2 else None)
    assert found.controller_id == (3 if version >= 1 else -1)
    assert (topic.name, topic.is_internal) == ("t", version >= 1)
    assert (partition.index, partition.error_code, partition.leader_id) == (3, 5, -1)
    assert (partition.replicas, partition.in_sync) == ((7, 8), (8,))
    assert partition.offline == ((7,) if version >= 5 else ())
    assert partition.leader_epoch == (4 if version >= 7 else -1)
    for end in range(len(sent)):
        with pytest.raises(WireError):
            decode_description(version, sent[:end])


def test_all_topics_of_real_kafka(cluster: KafkaCluster, topic: str) -> None:
    cluster.create_topic(topic, partitions=3)
    config = Config.from_kwargs({"bootstrap_servers": cluster.bootstrap_servers})
    found = {one.name: one for one in list_cluster(config, SOON).topics}
    assert [partition.replicas for partition in found[topic].partitions] == [(0,)] * 3
    (missing,) = list_cluster(config, SOON, f"{topic}-missing").topics
    assert (missing.error_code, missing.partitions) == (3, ())
