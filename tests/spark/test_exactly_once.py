"""Writes that are exactly once, on Spark: what readers of committed messages see."""

from __future__ import annotations

import pathlib
from collections import Counter
from typing import Any

import pytest
from pyspark.errors import PySparkException

from pykaproducer.spark import SinkError, register, write
from pykaproducer.testing import KafkaCluster
from tests.transactions.helper import read

from .test_streams import SOON, put_lines


@pytest.fixture(autouse=True, scope="module")
def registered(spark: Any) -> None:
    register(spark)


def visible(cluster: KafkaCluster, topic: str, partitions: int = 2) -> Counter[int]:
    """Return what a reader of committed messages sees."""
    found = read(cluster.bootstrap_servers, topic, "read_committed", range(partitions))
    return Counter(int(value) for value in found)


def once(cluster: KafkaCluster, topic: str) -> dict[str, Any]:
    """Return the options of ``write()``, with the topic's name as the prefix."""
    return {
        "bootstrap_servers": cluster.bootstrap_servers,
        "topic": topic,
        "exactly_once": True,
        "transactional_id_prefix": topic,
    }


def numbers(spark: Any, count: int, tasks: int = 4) -> Any:
    """Return a DataFrame with the numbers below *count*, in so many partitions."""
    return spark.range(count, numPartitions=tasks).selectExpr("CAST(id AS STRING) AS value")


def test_a_batch(spark: Any, cluster: KafkaCluster, topic: str) -> None:
    cluster.create_topic(topic, partitions=2)
    (
        numbers(spark, 1000)
        .write.format("pykaproducer")
        .option("kafka.bootstrap.servers", cluster.bootstrap_servers)
        .option("topic", topic)
        .option("exactlyOnce", "true")
        .option("transactionalIdPrefix", topic)
        .mode("append")
        .save()
    )
    assert visible(cluster, topic) == Counter(range(1000))


def test_a_write_with_an_id_is_repeated(spark: Any, cluster: KafkaCluster, topic: str) -> None:
    cluster.create_topic(topic, partitions=2)
    options = once(cluster, topic)
    first = write(numbers(spark, 1000), **options, write_id="2025-03-01")
    assert (first.rows, first.repeated) == (1000, False)
    again = write(numbers(spark, 1000, tasks=3), **options, write_id="2025-03-01")
    assert (again.rows, again.repeated) == (0, True)
    assert visible(cluster, topic) == Counter(range(1000))
    assert write(numbers(spark, 10), **options, write_id="2025-03-02").rows == 10
    assert visible(cluster, topic) == Counter(range(1000)) + Counter(range(10))


def test_a_write_that_fails_leaves_nothing(spark: Any, cluster: KafkaCluster, topic: str) -> None:
    cluster.create_topic(topic, partitions=2)
    broken = spark.range(1000, numPartitions=4).selectExpr(
        "CAST(IF(id = 990, raise_error('row 990 is broken'), id) AS STRING) AS value"
    )
    with pytest.raises(PySparkException, match="row 990 is broken"):
        write(broken, **once(cluster, topic))
    # Tasks that succeeded have left transactions open, which this write aborts.
    write(numbers(spark, 10), **once(cluster, topic))
    assert visible(cluster, topic) == Counter(range(10))


def stream(
    spark: Any, cluster: KafkaCluster, topic: str, directory: pathlib.Path, **options: str
) -> Any:
    lines = spark.readStream.option("maxFilesPerTrigger", 1).text(str(directory / "in"))
    return (
        lines.writeStream.format("pykaproducer")
        .option("kafka.bootstrap.servers", cluster.bootstrap_servers)
        .option("topic", topic)
        .option("exactlyOnce", "true")
        .option("transactionalIdPrefix", topic)
        .options(**options)
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
    )


def test_a_stream_stops_and_continues(
    spark: Any, cluster: KafkaCluster, topic: str, tmp_path: pathlib.Path
) -> None:
    cluster.create_topic(topic, partitions=2)
    for number in range(3):
        put_lines(tmp_path / "in", f"{number}", range(number * 100, number * 100 + 100))
        query = stream(spark, cluster, topic, tmp_path).start()
        assert query.awaitTermination(SOON)
        assert query.exception() is None
    assert visible(cluster, topic) == Counter(range(300))


def test_the_number_of_a_batch_outside_of_foreach_batch(spark: Any) -> None:
    with pytest.raises(SinkError, match=r"pass batch= only within foreachBatch, or pass write_id="):
        write(
            numbers(spark, 10),
            batch=0,
            bootstrap_servers="127.0.0.1:1",
            topic="orders",
            exactly_once=True,
            transactional_id_prefix="shop",
        )


def test_a_function_for_each_batch(
    spark: Any, cluster: KafkaCluster, topic: str, tmp_path: pathlib.Path
) -> None:
    cluster.create_topic(topic, partitions=2)
    put_lines(tmp_path / "in", "0", range(100))
    put_lines(tmp_path / "in", "1", range(100, 200))

    def write_twice(frame: Any, number: int) -> None:
        for _ in range(2):  # as if the first call had failed after its commit
            write(frame, batch=number, **once(cluster, topic))

    lines = spark.readStream.option("maxFilesPerTrigger", 1).text(str(tmp_path / "in"))
    query = (
        lines.writeStream.foreachBatch(write_twice)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(SOON)
    assert query.exception() is None
    assert visible(cluster, topic) == Counter(range(200))
