"""``topics``: the topics of a cluster, as text and as JSON."""

from __future__ import annotations

import json

import pytest

from pykaproducer.cli import main
from pykaproducer.testing import KafkaCluster

from .helper import NOWHERE


def told(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> str:
    """Return the output of ``topics``."""
    assert main(["topics", *arguments]) == status
    return capsys.readouterr().out


def test_the_names(cluster: KafkaCluster, topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    cluster.create_topic(f"{topic}-b", 2)
    cluster.create_topic(f"{topic}-a", 3)
    servers = ["--bootstrap-servers", cluster.bootstrap_servers]
    lines = told(capsys, "list", *servers).splitlines()
    assert [line for line in lines if line.startswith(topic)] == [f"{topic}-a", f"{topic}-b"]
    assert lines == sorted(lines)
    found = {each["topic"]: each for each in json.loads(told(capsys, "list", "--json", *servers))}
    assert found[f"{topic}-a"] == {
        "topic": f"{topic}-a",
        "internal": False,
        "partitions": 3,
        "replicas": 1,
    }


def test_partitions_and_offsets(
    cluster: KafkaCluster, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.create_topic(topic, 2)
    servers = ["--bootstrap-servers", cluster.bootstrap_servers]
    assert main(["verify", "-t", topic, "--count", "100", "--keys", "0", *servers]) == 0
    capsys.readouterr()
    lines = told(capsys, "describe", topic, "--offsets", *servers).splitlines()
    assert lines[0] == f"{topic}: 2 partitions, 1 replica"
    assert lines[1].split() == (
        ["partition", "leader", "replicas", "in", "sync", "first", "offset", "next", "offset"]
    )
    rows = [line.split() for line in lines[2:]]
    assert [row[:-1] for row in rows] == [
        [str(number), "0", cluster.bootstrap_servers, "0", "0", "0"] for number in range(2)
    ]
    assert sum(int(row[-1]) for row in rows) == 100
    (figures,) = json.loads(told(capsys, "describe", topic, "--json", *servers))
    assert figures["partitions"][1] == {
        "partition": 1,
        "leader": 0,
        "leader_address": cluster.bootstrap_servers,
        "replicas": [0],
        "in_sync": [0],
        "offline": [],
        "error": None,
    }


def test_a_topic_that_is_not_there(
    cluster: KafkaCluster, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The others are described all the same; and it is not created."""
    cluster.create_topic(topic)
    servers = ["--bootstrap-servers", cluster.bootstrap_servers]
    assert main(["topics", "describe", f"{topic}-not", topic, *servers]) == 1
    out, err = capsys.readouterr()
    assert out.startswith(f"{topic}: 1 partition")
    assert f"topic '{topic}-not': UNKNOWN_TOPIC_OR_PARTITION (3)" in err
    assert f"{topic}-not" not in told(capsys, "list", *servers).splitlines()


def test_a_cluster_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["list", "--bootstrap-servers", NOWHERE, "-X", "max_block_ms=200"]
    assert main(["topics", *arguments]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert NOWHERE in err
    assert err.count("\n") == 1


def test_a_name_that_cannot_be(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topics", "describe", "no topic"]) == 2
    assert "is not a topic name" in capsys.readouterr().err
