"""Streams: every row of the input is in Kafka, also across stops, crashes and restarts."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest

from pykaproducer.spark import register, write
from pykaproducer.testing import KafkaCluster
from tests.fix_spark import spark_environment

from .helper import values

#: How long a query, or a whole Spark, may take on a busy machine (seconds).
SOON = 240


@pytest.fixture(autouse=True, scope="module")
def registered(spark: Any) -> None:
    register(spark)


def put_lines(directory: pathlib.Path, name: str, numbers: range) -> None:
    """A file of the input, there at once and whole."""
    directory.mkdir(exist_ok=True)
    hidden = directory / f".{name}"
    hidden.write_text("".join(f"{number}\n" for number in numbers))
    hidden.rename(directory / name)


def test_a_stream_stops_and_goes_on(
    spark: Any, cluster: KafkaCluster, topic: str, tmp_path: pathlib.Path
) -> None:
    cluster.create_topic(topic, partitions=2)

    def run() -> None:
        query = (
            spark.readStream.text(str(tmp_path / "in"))
            .writeStream.format("pykaproducer")
            .option("kafka.bootstrap.servers", cluster.bootstrap_servers)
            .option("topic", topic)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .queryName("numbers")
            .trigger(availableNow=True)
            .start()
        )
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
    assert Counter(values(cluster, topic)) == {b"%d" % number: 2 for number in range(100)}


def test_a_query_fails_with_the_brokers_error(
    spark: Any, cluster: KafkaCluster, topic: str, tmp_path: pathlib.Path
) -> None:
    cluster.create_topic(topic, config={"max.message.bytes": "100"})
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a").write_text("x" * 1000)
    query = (
        spark.readStream.text(str(tmp_path / "in"))
        .writeStream.format("pykaproducer")
        .option("kafka.bootstrap.servers", cluster.bootstrap_servers)
        .option("topic", topic)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(Exception, match=r"row 0: .*[Tt]oo[_ ]?[Ll]arge"):
        query.awaitTermination(SOON)


def start_driver(arguments: dict[str, str]) -> subprocess.Popen[str]:
    """A Spark application of its own, in a process group of its own."""
    script = pathlib.Path(__file__).parent / "stream_app.py"
    return subprocess.Popen(
        [sys.executable, str(script), json.dumps(arguments)],
        env={**os.environ, **spark_environment()},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )


def test_nothing_is_lost_when_the_driver_is_killed_in_the_middle_of_a_batch(
    cluster: KafkaCluster, topic: str, tmp_path: pathlib.Path
) -> None:
    cluster.create_topic(topic, partitions=2)
    rows = 60_000
    for number in range(6):
        start = number * rows // 6
        put_lines(tmp_path / "in", str(number), range(start, start + rows // 6))
    arguments = {
        "servers": cluster.bootstrap_servers,
        "topic": topic,
        "input": str(tmp_path / "in"),
        "checkpoint": str(tmp_path / "checkpoint"),
        "local": str(tmp_path / "local"),
    }
    first = start_driver(arguments)
    try:
        assert first.stdout is not None
        # It stops in the third batch, of which a part has been written, and says so.
        assert "in the middle of batch 2" in (said := first.stdout.readline()), said
    finally:
        os.killpg(first.pid, signal.SIGKILL)
        first.communicate(timeout=SOON)
    written = len(values(cluster, topic, 2))
    assert 0 < written < rows
    second = start_driver({**arguments, "finish": "yes"})
    said, _ = second.communicate(timeout=SOON)
    assert second.returncode == 0, said
    counts = Counter(int(value or b"") for value in values(cluster, topic, 2))
    assert set(counts) == set(range(rows))
    again = sum(counts.values()) - rows
    # At least once: rows of the batch in which it was killed are there twice, and no others.
    assert 0 <= again <= rows // 6, f"{again} rows are there twice"
