"""Errors name the option, column, row or server; nothing is lost silently."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkException

from pykaproducer.spark import register, write
from pykaproducer.testing import KafkaCluster
from tests._support.pairs import first

from .helper import records, save, values


@pytest.fixture(autouse=True, scope="module")
def registered(spark: Any) -> None:
    register(spark)


@pytest.fixture
def untouched() -> Iterator[str]:
    """Yield the address of a server, and check that no client connects to it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.settimeout(0)
        with pytest.raises(BlockingIOError):
            server.accept()


@pytest.mark.parametrize(
    ("columns", "said"),
    first(
        2,
        [
            ("'k' AS key", "column value is missing"),
            ("id AS value", "column value is bigint; it must be string or binary"),
            ("'v' AS value, id AS key", "column key is bigint"),
            ("'v' AS value, 'one' AS partition", "column partition is string; it must be int"),
            ("'v' AS value, 'now' AS timestamp", "column timestamp is string"),
            ("'v' AS value, array('h') AS headers", "column headers is array<string>; it must be"),
            ("'v' AS value, 7 AS ky", "column ky is not part of a message: did you mean key?"),
            ("'v' AS value, 'v' AS value", "there are 2 columns named value"),
            ("'v' AS Value", "column Value is not part of a message: did you mean value?"),
        ],
    ),
)
def test_a_wrong_column_is_named_when_the_write_is_planned(
    spark: Any, untouched: str, columns: str, said: str
) -> None:
    df = spark.range(1).selectExpr(*columns.split(", "))
    with pytest.raises(AnalysisException) as caught:
        df.write.format("pykaproducer").option("kafka.bootstrap.servers", untouched).option(
            "topic", "t"
        ).mode("append").save()
    assert said in str(caught.value)
    with pytest.raises(ValueError, match=re.escape(said)):
        write(df, topic="t", bootstrap_servers=untouched)


@pytest.mark.parametrize(
    ("options", "said"),
    first(
        3,
        [
            ({"kafka.linger.ms": "soon"}, "option kafka.linger.ms: 'soon' was given"),
            ({"kafka.linger.msec": "5"}, "option kafka.linger.msec is unknown; the most similar"),
            ({"kafka.security.protocol": "TLS"}, "option kafka.security.protocol: 'TLS' was given"),
            (
                {"kafka.key.serializer": "x"},
                "option kafka.key.serializer cannot be 'x' here: Java classes cannot be run",
            ),
            ({"kafka.transactional.id": "t"}, "option kafka.transactional.id: each task needs"),
            ({"linger.ms": "5"}, "write it as kafka.linger.ms"),
            ({"topics": "t"}, "option topics is unknown; did you mean topic?"),
            ({"onError": "ignore"}, "option onError: 'ignore' was given; allowed: fail, or dead"),
            ({"onError": "deadletter:"}, "option onError: topic '' is not a topic name"),
            ({"topic": "no topic"}, "option topic: topic 'no topic' is not a topic name"),
            ({"kafka.bootstrap.servers": "nowhere:port"}, "option kafka.bootstrap.servers: "),
        ],
    ),
)
def test_a_wrong_option_is_named_when_the_write_is_planned(
    spark: Any, untouched: str, options: dict[str, str], said: str
) -> None:
    df = spark.range(1).selectExpr("'v' AS value")
    given = {"kafka.bootstrap.servers": untouched, "topic": "t", **options}
    with pytest.raises(AnalysisException) as caught:
        df.write.format("pykaproducer").options(**given).mode("append").save()
    assert said in str(caught.value)


def test_what_is_missing_is_named(spark: Any, untouched: str) -> None:
    df = spark.range(1).selectExpr("'v' AS value")
    to = df.write.format("pykaproducer").mode("append")
    with pytest.raises(AnalysisException, match=r"option kafka\.bootstrap\.servers is missing"):
        to.option("topic", "t").save()
    to = df.write.format("pykaproducer").option("kafka.bootstrap.servers", untouched)
    with pytest.raises(AnalysisException, match="no topic given: set the option topic, or"):
        to.mode("append").save()
    with pytest.raises(AnalysisException, match="mode overwrite is not supported"):
        to.option("topic", "t").mode("overwrite").save()


@pytest.mark.full
def test_no_topic_is_none_and_not_its_name(spark: Any, untouched: str) -> None:
    with pytest.raises(ValueError, match="no topic given: set the option topic"):
        write(spark.sql("SELECT 'v' AS value"), topic=None, bootstrap_servers=untouched)


def test_a_row_without_topic_is_named(spark: Any, cluster: KafkaCluster, topic: str) -> None:
    cluster.create_topic(topic)
    df = spark.range(30_000, numPartitions=1).selectExpr(
        f"IF(id = 25000, NULL, '{topic}') AS topic", "CAST(id AS STRING) AS value"
    )
    with pytest.raises(PySparkException, match=r"Spark partition 0 .*row 25000: .*topic' is null"):
        save(df, cluster)


def test_a_topic_that_is_unknown_is_named(spark: Any, cluster: KafkaCluster, topic: str) -> None:
    df = spark.range(10).selectExpr("CAST(id AS STRING) AS value")
    with pytest.raises(PySparkException, match=f"'?{topic}'?.*not delivered within"):
        save(
            df,
            cluster,
            topic=topic,
            kafka_allow_auto_create_topics="false",
            kafka_delivery_timeout_ms="1500",
        )


@pytest.mark.full
def test_servers_that_do_not_answer_are_named(spark: Any, refusing: str) -> None:
    df = spark.range(10).selectExpr("CAST(id AS STRING) AS value")
    with pytest.raises(PySparkException, match=rf"not delivered within.*{refusing}"):
        write(df, topic="t", bootstrap_servers=refusing, delivery_timeout_ms=5000)


def test_rows_that_the_broker_refuses_fail_the_write(
    spark: Any, cluster: KafkaCluster, topic: str
) -> None:
    cluster.create_topic(topic, config={"max.message.bytes": "2000"})
    df = spark.range(3000, numPartitions=1).selectExpr(
        "IF(id IN (17, 2500), repeat('x', 5000), CAST(id AS STRING)) AS value"
    )
    with pytest.raises(PySparkException, match=r"row 17: .*[Tt]oo[_ ]?[Ll]arge"):
        save(df, cluster, topic=topic)


def test_rows_that_the_broker_refuses_go_to_the_dead_letter_topic(
    spark: Any, cluster: KafkaCluster, topic: str
) -> None:
    lost = f"{topic}-lost"
    cluster.create_topic(topic, config={"max.message.bytes": "2000"})
    cluster.create_topic(lost)
    df = spark.range(3000, numPartitions=1).selectExpr(
        "'k' AS key",
        "IF(id IN (17, 2500), repeat('x', 5000), CAST(id AS STRING)) AS value",
        "map('trace', encode(CAST(id AS STRING), 'UTF-8')) AS headers",
    )
    summary = write(
        df,
        topic=topic,
        on_error=f"deadletter:{lost}",
        bootstrap_servers=cluster.bootstrap_servers,
    )
    assert (summary.rows, summary.refused) == (2998, 2)
    assert len(values(cluster, topic)) == 2998
    letters = records(cluster, lost)
    assert [(each.key, each.value) for each in letters] == [(b"k", b"x" * 5000)] * 2
    headers = [dict(each.headers) for each in letters]
    assert [each["trace"] for each in headers] == [b"17", b"2500"]
    assert [each["pykaproducer.error.row"] for each in headers] == [b"17", b"2500"]
    assert {each["pykaproducer.error.topic"] for each in headers} == {topic.encode()}
    assert {each["pykaproducer.error.status"] for each in headers} == {b"NOT_PERSISTED"}


def test_rows_that_can_never_be_sent_go_to_the_dead_letter_topic(
    spark: Any, cluster: KafkaCluster, topic: str
) -> None:
    """Without a topic, or for a partition below zero: each row separately."""
    lost = f"{topic}-lost"
    cluster.create_topic(topic)
    cluster.create_topic(lost)
    df = spark.range(1000, numPartitions=1).selectExpr(
        f"IF(id = 3, NULL, '{topic}') AS topic",
        "CAST(id AS STRING) AS value",
        "CAST(IF(id = 999, -1, 0) AS INT) AS partition",
    )
    save(df, cluster, onError=f"deadletter:{lost}")
    found = {int(value or b"") for value in values(cluster, topic)}
    assert found == set(range(1000)) - {3, 999}
    assert values(cluster, lost) == [b"3", b"999"]


@pytest.mark.full
def test_a_dead_letter_topic_that_takes_nothing_fails_the_write(
    spark: Any, cluster: KafkaCluster, topic: str
) -> None:
    for name in (topic, f"{topic}-lost"):
        cluster.create_topic(name, config={"max.message.bytes": "2000"})
    df = spark.range(1).selectExpr("repeat('x', 5000) AS value")
    with pytest.raises(PySparkException, match=f"row 0: .*{topic}-lost"):
        save(df, cluster, topic=topic, onError=f"deadletter:{topic}-lost")
