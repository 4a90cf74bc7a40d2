"""Streams: every row of the input is in Kafka, despite stops, crashes and restarts."""

from __future__ import annotations

import pathlib
from collections import Counter
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.types import StringType, StructField, StructType

from pykaproducer.spark import SinkError, Summary, register, write
from pykaproducer.spark.sink import Commit, StreamSink
from pykaproducer.testing import KafkaCluster

from .helper import SOON, Meeting, application, values, wait_for_rows


@pytest.fixture(autouse=True, scope="module")
def registered(spark: Any) -> None:
    register(spark)


def put_lines(directory: pathlib.Path, name: str, numbers: range) -> None:
    """Add a file to the input atomically."""
    directory.mkdir(exist_ok=True)
    hidden = directory / f".{name}"
    hidden.write_text("".join(f"{number:0200}\n" for number in numbers))
    hidden.rename(directory / name)


def stream_to(cluster: KafkaCluster, topic: str, df: Any, checkpoint: pathlib.Path) -> Any:
    """Return a writer that sends the available rows of a stream when started."""
    return (
        df.writeStream.format("pykaproducer")
        .option("kafka.bootstrap.servers", cluster.bootstrap_servers)
        .option("topic", topic)
        .option("checkpointLocation", str(checkpoint))
        .queryName("numbers")
        .trigger(availableNow=True)
    )


def test_a_stream_stops_and_goes_on(
    spark: Any, cluster: KafkaCluster, topic: str, tmp_path: pathlib.Path
) -> None:
    cluster.create_topic(topic, partitions=2)

    def run() -> None:
        lines = spark.readStream.text(str(tmp_path / "in"))
        query = stream_to(cluster, topic, lines, tmp_path / "checkpoint").start()
        assert query.awaitTermination(SOON)
        assert query.exception() is None

    put_lines(tmp_path / "in", "a", range(1000))
    run()
    put_lines(tmp_path / "in", "b", range(1000, 3000))
    run()
    run()
    assert sorted(int(value or b"") for value in values(cluster, topic, 2)) == list(range(3000))


def test_each_micro_batch_may_be_written_by_a_function(
    spark: Any, cluster: KafkaCluster, topic: str, tmp_path: pathlib.Path
) -> None:
    cluster.create_topic(topic)
    put_lines(tmp_path / "in", "a", range(100))
    rows: list[int] = []

    def write_both_ways(df: Any, number: int) -> None:
        df.write.format("pykaproducer").option(
            "kafka.bootstrap.servers", cluster.bootstrap_servers
        ).option("topic", topic).mode("append").save()
        rows.append(write(df, topic=topic, bootstrap_servers=cluster.bootstrap_servers).rows)

    query = (
        spark.readStream.text(str(tmp_path / "in"))
        .writeStream.foreachBatch(write_both_ways)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(SOON)
    assert rows == [100]
    assert Counter(values(cluster, topic)) == {b"%0200d" % number: 2 for number in range(100)}


def test_a_query_fails_with_the_brokers_error(
    spark: Any, cluster: KafkaCluster, topic: str, tmp_path: pathlib.Path
) -> None:
    cluster.create_topic(topic, config={"max.message.bytes": "100"})
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a").write_text("x" * 1000)
    lines = spark.readStream.text(str(tmp_path / "in"))
    query = stream_to(cluster, topic, lines, tmp_path / "checkpoint").start()
    with pytest.raises(StreamingQueryException, match=r"row 0: .*[Tt]oo[_ ]?[Ll]arge"):
        query.awaitTermination(SOON)


def test_a_stream_that_would_overwrite_is_told_what_to_do(
    spark: Any, cluster: KafkaCluster, topic: str, tmp_path: pathlib.Path
) -> None:
    put_lines(tmp_path / "in", "a", range(10))
    counts = spark.readStream.text(str(tmp_path / "in")).groupBy("value").count()
    to = stream_to(cluster, topic, counts.select("value"), tmp_path / "checkpoint")
    query = to.outputMode("complete").start()
    with pytest.raises(
        StreamingQueryException,
        match=r"output mode complete is not supported: .*foreachBatch\(\) with",
    ):
        query.awaitTermination(SOON)


def test_epochs_without_rows_are_not_committed() -> None:
    """trigger(continuous=...) commits rows that Spark has passed to no task."""
    schema = StructType([StructField("value", StringType())])
    sink = StreamSink({"kafka.bootstrap.servers": "h", "topic": "t"}, schema, overwrite=False)
    sink.commit([Commit(Summary())], 0)
    with pytest.raises(SinkError, match=r"trigger\(continuous=...\) is not supported"):
        sink.commit([Commit(Summary()), None], 1)


@pytest.mark.full
def test_nothing_is_lost_when_the_driver_is_killed_in_the_middle_of_a_batch(
    cluster: KafkaCluster, topic: str, tmp_path: pathlib.Path, tell: list[str]
) -> None:
    cluster.create_topic(topic, partitions=2)
    rows = 120_000
    for number in range(6):
        start = number * rows // 6
        put_lines(tmp_path / "in", str(number), range(start, start + rows // 6))
    meeting = Meeting(tmp_path / "sign")
    arguments = {
        "sign": str(meeting.path),
        "servers": cluster.bootstrap_servers,
        "topic": topic,
        "input": str(tmp_path / "in"),
        "checkpoint": str(tmp_path / "checkpoint"),
        "local": str(tmp_path / "local"),
    }
    log = tmp_path / "log"
    with application("stream_app.py", arguments, log):
        meeting.wait(SOON)  # in the third batch, of which a part is in the log
        wait_for_rows(cluster, topic, range(rows // 3, rows // 2), 2)
    # Killed. The second run continues to the end:
    written = len(values(cluster, topic, 2))
    assert 0 < written < rows
    with application("stream_app.py", {**arguments, "finish": "yes"}, log) as second:
        assert second.wait(SOON) == 0, log.read_text()[-5000:]
    counts = Counter(int(value or b"") for value in values(cluster, topic, 2))
    assert set(counts) == set(range(rows))
    again = sum(counts.values()) - rows
    # At least once: only rows of the batch in which it was killed are duplicated.
    assert 0 < again <= rows // 6
    tell.append(f"Spark, the driver dies in a stream of {rows:,} rows: {again:,} are there twice")
