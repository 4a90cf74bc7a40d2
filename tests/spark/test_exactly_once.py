"""Writes that are exactly once, on Spark: what readers of committed messages see."""

from __future__ import annotations

import pathlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow
import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException

from pykaproducer import TransactionControl
from pykaproducer.cli import main
from pykaproducer.spark import SinkError, register, write
from pykaproducer.testing import KafkaCluster
from tests._support.pairs import partly
from tests.transactions.helper import read

from .helper import SOON
from .test_streams import put_lines


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
    to_sink(numbers(spark, 1000), cluster, topic).mode("append").save()
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


def open_ids(servers: str, prefix: str) -> list[str]:
    """Return the ids with *prefix* whose transactions are open."""
    with TransactionControl(bootstrap_servers=servers) as control:
        return [each.transactional_id for each in control.list(f"{prefix}.", ["Ongoing"])]


def breaks_in_the_last(
    servers: str, topic: str, tasks: int
) -> Callable[[Iterator[pyarrow.RecordBatch]], Iterator[pyarrow.RecordBatch]]:
    """Return the rows of *tasks*: the last fails while the transaction of the one before is open.

    That one ends when Spark kills it. Others succeed.
    """

    def values(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        task = context.partitionId()
        if task < tasks - 1:
            rows = pyarrow.record_batch({"value": [f"{i:050}" for i in range(30_000)]})
            yield from (rows, rows)  # the end of the last one stays in the worker's buffer
        if task == tasks - 2:
            threading.Event().wait()
        while task == tasks - 1:
            if f"{topic}.{task - 1}" in open_ids(servers, topic):
                raise RuntimeError("the last task is broken")

    return values


WAYS = ["write", "save", "stream", "foreachBatch", "load"]


@pytest.mark.parametrize("way", partly(WAYS, ["write", "stream", "load"]))
def test_a_write_that_fails_leaves_no_transaction_open(
    spark: Any, cluster: KafkaCluster, topic: str, tmp_path: pathlib.Path, way: str
) -> None:
    cluster.create_topic(topic, partitions=2)
    tasks = 3 if way in ("write", "save") else 2  # with two, none succeeds
    values = breaks_in_the_last(cluster.bootstrap_servers, topic, tasks)
    if way in ("stream", "foreachBatch"):
        source = spark.readStream.format("rate-micro-batch").options(numPartitions=tasks)
        frame = source.option("rowsPerBatch", 10).load().mapInArrow(values, "value string")
        query = to_sink(frame, cluster, topic) if way == "stream" else frame.writeStream
        if way == "foreachBatch":
            query = query.foreachBatch(
                lambda each, number: write(each, batch=number, **once(cluster, topic))
            )
        started = query.option("checkpointLocation", str(tmp_path)).start()
        with pytest.raises(PySparkException, match="the last task is broken"):
            started.awaitTermination(SOON)
    else:
        frame = spark.range(tasks, numPartitions=tasks).mapInArrow(values, "value string")
        frame.createOrReplaceTempView("broken")
        if way == "load":
            arguments = ["load", "broken", "--format", "table", "--spark", "local[2]", "-t", topic]
            arguments += ["--exactly-once", "--transactional-id-prefix", topic]
            assert main([*arguments, "--bootstrap-servers", cluster.bootstrap_servers]) == 1
        elif way == "save":
            with pytest.raises(PySparkException, match="the last task is broken"):
                to_sink(frame, cluster, topic).mode("append").save()
        else:
            with pytest.raises(PySparkException, match="the last task is broken"):
                write(frame, **once(cluster, topic))
    assert open_ids(cluster.bootstrap_servers, topic) == []
    assert visible(cluster, topic) == Counter()


def to_sink(frame: Any, cluster: KafkaCluster, topic: str) -> Any:
    """Return the writer of *frame*, which may be a stream, with the topic's name as the prefix."""
    writer = frame.writeStream if frame.isStreaming else frame.write
    return writer.format("pykaproducer").options(
        **{"kafka.bootstrap.servers": cluster.bootstrap_servers},
        topic=topic,
        exactlyOnce="true",
        transactionalIdPrefix=topic,
    )


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
