"""``topics``: the topics of a cluster, as text and as JSON."""

from __future__ import annotations

import json

import pytest

from pykaproducer import BrokerRejectedError, Producer
from pykaproducer._net import one_request
from pykaproducer.cli import main
from pykaproducer.testing import KafkaCluster, Security

from .helper import NOWHERE, status_of


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
    assert (
        f"topic '{topic}-not': the cluster has no such topic: UNKNOWN_TOPIC_OR_PARTITION (3)" in err
    )
    assert f"{topic}-not" not in told(capsys, "list", *servers).splitlines()


def test_a_cluster_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["list", "--bootstrap-servers", NOWHERE, "-X", "max_block_ms=200"]
    assert main(["topics", *arguments]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert NOWHERE in err
    assert err.count("\n") == 1


def test_a_long_wait_says_why(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(one_request, "_PATIENCE", 0.0)
    arguments = ["list", "--bootstrap-servers", NOWHERE, "-X", "max_block_ms=1500"]
    assert main(["topics", *arguments]) == 1
    first, last = capsys.readouterr().err.splitlines()
    reason = f"no connection to {NOWHERE}: connection refused: nothing listens there"
    assert first == f"pykaproducer: {reason}; trying again"
    assert reason in last


def test_a_name_that_cannot_be(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topics", "describe", "no topic"]) == 2
    assert "is not a topic name" in capsys.readouterr().err


# create -------------------------------------------------------------------------------------------


def test_a_topic_is_created(
    cluster: KafkaCluster, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    servers = ["-b", cluster.bootstrap_servers]
    more = ["--partitions", "3", "--replication-factor", "1", *servers]
    config = ["--topic-config", "max.message.bytes=100"]
    out = told(capsys, "create", topic, *more, *config)
    assert out == f"created {topic}: 3 partitions, 1 replica\n"
    assert told(capsys, "describe", topic, *servers).startswith(f"{topic}: 3 partitions")
    # The configuration is the topic's.
    with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        with pytest.raises(BrokerRejectedError, match="MESSAGE_SIZE_TOO_LARGE"):
            producer.send(topic, b"x" * 1000).result(timeout=60)
        producer.send(topic, b"x").result(timeout=60)


def test_a_topic_with_the_defaults_of_the_brokers(
    cluster: KafkaCluster, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = told(capsys, "create", topic, "-b", cluster.bootstrap_servers)
    assert out == f"created {topic}: 1 partition, 1 replica\n"


def test_a_topic_that_exists_already(
    cluster: KafkaCluster, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.create_topic(topic)
    servers = ["-b", cluster.bootstrap_servers]
    assert main(["topics", "create", topic, *servers]) == 1
    assert capsys.readouterr() == (
        "",
        f"pykaproducer: topic '{topic}' was not created: it exists already "
        "(TOPIC_ALREADY_EXISTS (36)); choose another name, or use --if-not-exists\n",
    )
    assert main(["topics", "create", topic, "--if-not-exists", *servers]) == 0
    assert f"topic '{topic}' exists already; nothing was changed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--topic-config", f"a={'1' * 2**15}"], "--topic-config: a has 32768 bytes, more than"),
        (["--topic-config", f"{'a' * 2**15}=1"], "--topic-config: a name has 32768 bytes"),
        (["--replication-factor", "40000"], "'40000' is not an integer <= 32767"),
    ],
)
def test_what_no_request_can_hold(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of(["topics", "create", "t", *arguments, "-b", NOWHERE]) == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--replication-factor", "3"], "INVALID_REPLICATION_FACTOR (38)"),
        (["--replication-factor", "3"], "lower --replication-factor"),
        (["--topic-config", "no.such=1"], "Unknown topic config name: no.such"),
        (["--topic-config", "retention.ms=x"], "Invalid value x for configuration retention.ms"),
    ],
)
def test_a_topic_that_the_cluster_rejects(
    arguments: list[str],
    text: str,
    cluster: KafkaCluster,
    topic: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["create", topic, *arguments, "-b", cluster.bootstrap_servers]
    assert told(capsys, *words, status=1) == ""
    assert topic not in told(capsys, "list", "-b", cluster.bootstrap_servers).splitlines()
    assert main(["topics", *words]) == 1
    err = capsys.readouterr().err
    assert f"topic '{topic}' was not created: " in err
    assert text in err
    assert err.count("\n") == 1


@pytest.mark.kafka
def test_a_topic_that_this_client_may_not_create(
    topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    security = Security("SASL_PLAINTEXT", mechanism="PLAIN", authorize=True)
    with KafkaCluster(security=security, fast_start=True) as secured:
        settings = secured.settings()
        names = ("security_protocol", "sasl_mechanism", "sasl_plain_username")
        access = [f"-X{name}={settings[name]}" for name in names]
        access.append(f"-Xsasl_plain_password={settings['sasl_plain_password']}")
        words = ["create", topic, *access, "-b", secured.bootstrap_servers]
        assert told(capsys, *words, status=1) == ""
        assert main(["topics", *words]) == 1
        assert "grant this client Create on the topic" in capsys.readouterr().err
        secured.allow(settings["sasl_plain_username"], topic)
        assert told(capsys, *words) == f"created {topic}: 1 partition, 1 replica\n"


def test_a_topic_on_a_cluster_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topics", "create", "t", "-b", NOWHERE, "-X", "max_block_ms=200"]) == 1
    assert f"no connection to {NOWHERE}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["no topic"], "'no topic' is not a topic name"),
        (["t", "--topic-config", "retention.ms"], "--topic-config retention.ms: expected name"),
        (["t", "--partitions", "0"], "'0' is not an integer >= 1"),
        ([], "the following arguments are required: TOPIC"),
    ],
)
def test_what_create_refuses(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of(["topics", "create", *arguments]) == 2
    assert text in capsys.readouterr().err
