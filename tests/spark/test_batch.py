"""Batch writes: Kafka holds the contents of the DataFrame."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from kafka.partitioner.default import murmur2
from pyspark.errors import AnalysisException

from pykaproducer import TopicPartition
from pykaproducer.spark import Written, register, write
from pykaproducer.testing import KafkaCluster
from tests.cluster.readback import read_log

from .helper import records, save, values


@pytest.fixture(autouse=True, scope="module")
def registered(spark: Any) -> None:
    register(spark)


def test_every_column_of_a_message_arrives(spark: Any, cluster: KafkaCluster, topic: str) -> None:
    cluster.create_topic(topic, partitions=3)
    moment = datetime.datetime(2024, 5, 17, 12, 30, 15, 123000, tzinfo=datetime.UTC)
    df = spark.createDataFrame(
        [
            (b"value", "key", [("source", b"test"), ("none", None)], moment, 2),
            (None, None, None, moment, 2),
            ("snowman ☃".encode(), "", [], moment, 2),
        ],
        "value binary, key string, headers array<struct<key: string, value: binary>>, "
        "timestamp timestamp, partition int",
    ).coalesce(1)
    save(df, cluster, topic=topic)
    milliseconds = int(moment.timestamp() * 1000)
    assert [record[1:] for record in records(cluster, topic, 3)] == [
        (milliseconds, b"key", b"value", [("source", b"test"), ("none", None)]),
        (milliseconds, None, None, []),
        (milliseconds, b"", "snowman ☃".encode(), []),
    ]


def test_headers_may_be_a_map(spark: Any, cluster: KafkaCluster, topic: str) -> None:
    cluster.create_topic(topic)
    df = spark.sql("SELECT 'v' AS value, map('trace', CAST('17' AS BINARY)) AS headers")
    save(df, cluster, topic=topic, includeHeaders="true")
    assert records(cluster, topic)[0].headers == [("trace", b"17")]


def test_each_row_may_name_its_topic(spark: Any, cluster: KafkaCluster, topic: str) -> None:
    topics = [f"{topic}-{number}" for number in range(3)]
    for name in topics:
        cluster.create_topic(name)
    df = spark.range(99).selectExpr(
        f"concat('{topic}-', id % 3) AS topic", "CAST(id AS STRING) AS value"
    )
    save(df, cluster)
    for number, name in enumerate(topics):
        assert values(cluster, name) == sorted(b"%d" % n for n in range(number, 99, 3))


def test_the_option_topic_overrides_the_column(
    spark: Any, cluster: KafkaCluster, topic: str
) -> None:
    cluster.create_topic(topic)
    df = spark.sql("SELECT 'nowhere' AS topic, 'v' AS value")
    save(df, cluster, topic=topic)
    assert values(cluster, topic) == [b"v"]


def test_every_row_is_there_once_and_where_its_key_belongs(
    spark: Any, cluster: KafkaCluster, topic: str
) -> None:
    cluster.create_topic(topic, partitions=4)
    rows = 50_000
    df = spark.range(rows, numPartitions=4).selectExpr(
        "CAST(id % 1000 AS STRING) AS key", "CAST(id AS STRING) AS value"
    )
    summary = write(df, topic=topic, bootstrap_servers=cluster.bootstrap_servers)
    found = [
        (partition, record)
        for partition in range(4)
        for record in read_log(cluster, topic, partition).records
    ]
    assert sorted(int(record.value or b"") for _, record in found) == list(range(rows))
    for partition, record in found:
        # As in the Java client's partitioner.
        assert partition == (murmur2(record.key) & 0x7FFFFFFF) % 4
    counts = [sum(place == partition for place, _ in found) for partition in range(4)]
    assert {place: written.rows for place, written in summary.partitions.items()} == {
        TopicPartition(topic, partition): counts[partition] for partition in range(4)
    }


def test_what_was_written_comes_back(spark: Any, cluster: KafkaCluster, topic: str) -> None:
    cluster.create_topic(topic)
    df = spark.range(10).selectExpr("'key' AS key", "'12345' AS value")
    first = write(df, topic=topic, bootstrap_servers=[cluster.bootstrap_servers])
    second = write(df, **{"topic": topic, "kafka.bootstrap.servers": cluster.bootstrap_servers})
    place = TopicPartition(topic, 0)
    assert first.partitions == {place: Written(rows=10, size=80, first=0, last=9)}
    assert second.partitions == {place: Written(rows=10, size=80, first=10, last=19)}
    assert (second.rows, second.size, second.refused) == (10, 80, 0)


def test_nothing_is_a_write_too(spark: Any, cluster: KafkaCluster, topic: str) -> None:
    cluster.create_topic(topic)
    df = spark.range(0).selectExpr("CAST(id AS STRING) AS value")
    save(df, cluster, topic=topic)
    assert write(df, topic=topic, bootstrap_servers=cluster.bootstrap_servers).rows == 0
    assert records(cluster, topic) == []


def test_sql_inserts_into_a_view(spark: Any, cluster: KafkaCluster, topic: str) -> None:
    cluster.create_topic(topic)
    spark.sql(
        f"CREATE TEMPORARY VIEW events (key STRING, value STRING) USING pykaproducer OPTIONS ("
        f"'kafka.bootstrap.servers' '{cluster.bootstrap_servers}', 'topic' '{topic}')"
    )
    try:
        spark.sql("INSERT INTO events SELECT 'k', CAST(id AS STRING) FROM range(5)")
        spark.sql("INSERT INTO events VALUES ('k', 'last')")
    finally:
        spark.sql("DROP VIEW events")
    assert values(cluster, topic) == [b"0", b"1", b"2", b"3", b"4", b"last"]


def test_sql_inserts_into_a_table(spark: Any, cluster: KafkaCluster, topic: str) -> None:
    """Spark passes a Python sink the options of the INSERT, but not those of the table."""
    cluster.create_topic(topic)
    servers = f"'kafka.bootstrap.servers' = '{cluster.bootstrap_servers}'"
    spark.sql("CREATE TABLE sink (key STRING, value STRING) USING pykaproducer")
    try:
        spark.sql(f"INSERT INTO sink WITH ({servers}, 'topic' = '{topic}') VALUES ('k', 'v')")
        with pytest.raises(AnalysisException, match=r"bootstrap.servers is missing.*INSERT INTO"):
            spark.sql("INSERT INTO sink VALUES ('k', 'lost')")
    finally:
        spark.sql("DROP TABLE sink")
    assert values(cluster, topic) == [b"v"]


def test_a_topic_of_sparks_kafka_source_can_be_written_as_it_was_read(
    spark: Any, cluster: KafkaCluster, topic: str
) -> None:
    """Its schema has two columns in addition to ours, which only a message in the log has."""
    cluster.create_topic(topic)
    df = spark.sql(
        "SELECT CAST('k' AS BINARY) AS key, CAST('v' AS BINARY) AS value, 'other' AS topic, "
        "0 AS partition, 17L AS offset, timestamp'2020-01-01' AS timestamp, 0 AS timestampType"
    )
    save(df, cluster, topic=topic)
    assert values(cluster, topic) == [b"v"]


def test_rows_that_do_not_fit_into_one_batch_are_split_and_all_arrive(
    spark: Any, cluster: KafkaCluster, topic: str
) -> None:
    """The broker rejects batches of more than 2,000 bytes, the producer makes larger ones."""
    cluster.create_topic(topic, config={"max.message.bytes": "2000"})
    df = spark.range(2000, numPartitions=2).selectExpr("CAST(id AS STRING) AS value")
    save(df, cluster, topic=topic, kafka_batch_size="65536")
    assert sorted(int(value or b"") for value in values(cluster, topic)) == list(range(2000))
