"""ProgressListener: what each micro-batch has written reaches the program that runs the query."""

from __future__ import annotations

import logging
import os
import pathlib
import re
import textwrap
from typing import Any

import pytest

from pykaproducer import TopicPartition
from pykaproducer.spark import ProgressListener, SinkError, Summary, Written, register, write
from pykaproducer.spark.listener import check_shared
from pykaproducer.spark.reports import MOST, leave, remove, take
from pykaproducer.testing import KafkaCluster

from .helper import SOON, records, save, values
from .test_streams import put_lines, stream_to

ROOT = pathlib.Path(__file__).parents[2]

Reports = list[tuple[Any, Summary]]


@pytest.fixture(autouse=True, scope="module")
def registered(spark: Any) -> None:
    register(spark)


def run(spark: Any, cluster: KafkaCluster, topic: str, path: pathlib.Path, **options: str) -> None:
    """Write the lines of each new file in a micro-batch."""
    lines = spark.readStream.option("maxFilesPerTrigger", 1).text(str(path / "in"))
    rows = lines.selectExpr("value AS key", "value")
    query = stream_to(cluster, topic, rows, path / "checkpoint").options(**options).start()
    assert query.awaitTermination(SOON)
    assert query.exception() is None


def test_summaries_are_those_of_the_log_after_a_restart(
    spark: Any, cluster: KafkaCluster, topic: str, tmp_path: pathlib.Path
) -> None:
    cluster.create_topic(topic, partitions=2)
    reports: Reports = []
    sizes = [100, 2000, 1, 300]
    for first in (0, 2):
        for number in (first, first + 1):
            put_lines(tmp_path / "in", str(number), range(sizes[number]))
        with ProgressListener(spark, lambda *report: reports.append(report)) as listener:
            run(spark, cluster, topic, tmp_path, **listener.options)
        assert [progress.batchId for progress, _ in reports] == list(range(first + 2))
        assert not any(map(os.path.exists, listener.options.values()))
    assert sorted(summary.rows for _, summary in reports) == sorted(sizes)
    assert all(progress.numInputRows == summary.rows for progress, summary in reports)
    assert {progress.name for progress, _ in reports} == {"numbers"}
    assert all(progress.durationMs["addBatch"] > 0 for progress, _ in reports)
    total = Summary.of(summary for _, summary in reports)
    assert total.size == 2 * sum(len(value or b"") for value in values(cluster, topic, 2))
    for place in (TopicPartition(topic, number) for number in range(2)):
        written = [
            summary.partitions[place] for _, summary in reports if place in summary.partitions
        ]
        next_offset = 0
        for each in written:
            assert (each.first, each.last) == (next_offset, next_offset + each.rows - 1)
            next_offset += each.rows
    assert total.rows == len(records(cluster, topic, 2)) == sum(sizes)


@pytest.mark.full
def test_batches_that_are_exactly_once(
    spark: Any, cluster: KafkaCluster, topic: str, tmp_path: pathlib.Path
) -> None:
    cluster.create_topic(topic)
    put_lines(tmp_path / "in", "a", range(10))
    reports: Reports = []
    once = {"exactlyOnce": "true", "transactionalIdPrefix": topic}
    with ProgressListener(spark, lambda *report: reports.append(report)) as listener:
        run(spark, cluster, topic, tmp_path, **once, **listener.options)
        # Spark forgets that it has committed the batch, as if the driver had died just before:
        (tmp_path / "checkpoint" / "commits" / "0").unlink()
        (tmp_path / "checkpoint" / "commits" / ".0.crc").unlink(missing_ok=True)
        run(spark, cluster, topic, tmp_path, **once, **listener.options)
    assert [(s.rows, s.repeated) for _, s in reports] == [(10, False), (0, True)]


@pytest.mark.full
def test_an_exception_in_the_callback_harms_nothing(
    spark: Any,
    cluster: KafkaCluster,
    topic: str,
    tmp_path: pathlib.Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster.create_topic(topic)
    for name in "ab":
        put_lines(tmp_path / "in", name, range(10))
    seen: list[int] = []

    def fail_first(progress: Any, summary: Summary) -> None:
        seen.append(summary.rows)
        if progress.batchId == 0:
            raise ValueError("a bug of the user's")

    with ProgressListener(spark, fail_first) as listener:
        run(spark, cluster, topic, tmp_path, **listener.options)
    assert seen == [10, 10]
    (record,) = [each for each in caplog.records if each.name == "pykaproducer.spark"]
    assert record.levelno == logging.ERROR
    assert "fail_first" in record.getMessage()
    assert record.exc_info is not None
    assert "a bug of the user's" in str(record.exc_info[1])

    # Its program is gone; the query is started with the same options.
    put_lines(tmp_path / "in", "c", range(10))
    run(spark, cluster, topic, tmp_path, **listener.options)
    assert len(values(cluster, topic)) == 30
    assert seen == [10, 10]


@pytest.mark.full
def test_other_queries_are_not_reported(
    spark: Any, cluster: KafkaCluster, topic: str, tmp_path: pathlib.Path
) -> None:
    cluster.create_topic(topic)
    put_lines(tmp_path / "in", "a", range(10))
    reports: Reports = []
    with ProgressListener(spark, lambda *report: reports.append(report)):
        run(spark, cluster, topic, tmp_path)
    assert reports == []


def test_the_example_of_the_guide(
    spark: Any, cluster: KafkaCluster, topic: str, tmp_path: pathlib.Path, capsys: Any
) -> None:
    page = (ROOT / "docs" / "spark.rst").read_text()
    blocks = re.findall(r"\.\. code-block:: python\n\n((?: {4}.*\n|\n)+)", page)
    (example,) = [each for each in blocks if "ProgressListener" in each]
    for old, new in (
        ('"ticks")  ', f'"{topic}")  '),
        ("checkpoints/ticks", str(tmp_path / "checkpoint")),
        ('processingTime="2 seconds"', "availableNow=True"),
        ("awaitTermination(20)", f"awaitTermination({SOON})"),
    ):
        assert old in example
        example = example.replace(old, new)
    put_lines(tmp_path / "in", "a", range(10))
    lines = spark.readStream.text(str(tmp_path / "in"))
    ticks = lines.selectExpr("CAST(value AS INT) AS value", "current_timestamp() AS timestamp")
    cluster.create_topic(topic)
    exec(
        textwrap.dedent(example),
        {"spark": spark, "ticks": ticks, "servers": cluster.bootstrap_servers},
    )
    out = capsys.readouterr().out
    assert re.search(r"^batch 0: 10 rows, 10 bytes, [\d.]+ rows/s, [\d.]+ s$", out, re.MULTILINE)
    assert f"{topic}[0]: 10 rows, 10 bytes, offsets 0 to 9\n" in out


@pytest.mark.full
def test_a_server_on_another_machine(spark: Any, tmp_path: pathlib.Path) -> None:
    """Spark Connect; here Spark does not see the directory because it does not exist."""
    check_shared(spark, str(tmp_path))
    with pytest.raises(SinkError, match=r"requires that both run on the same machine"):
        check_shared(spark, str(tmp_path / "elsewhere"))


def test_the_option_is_for_streams(
    spark: Any, cluster: KafkaCluster, topic: str, tmp_path: pathlib.Path
) -> None:
    df = spark.range(1).selectExpr("CAST(id AS STRING) AS value")
    options = {"topic": topic, "progressDirectory": str(tmp_path)}
    with pytest.raises(SinkError, match="option progressDirectory is for streams"):
        write(df, bootstrap_servers=cluster.bootstrap_servers, **options)
    with pytest.raises(Exception, match="option progressDirectory is for streams"):
        save(df, cluster, **options)


# The files ----------------------------------------------------------------------------------------

SUMMARY = Summary(
    partitions={
        TopicPartition("t", 0): Written(3, 30, 5, 9),
        TopicPartition("t", 1): Written(1, 0, None, None),
    },
    refused=2,
    reasons={"PartitionerError": ("row 0: no such partition", 2)},
    repeated=True,
    troubles=["a sentence"],
)


def test_a_summary_travels_unchanged(tmp_path: pathlib.Path) -> None:
    directory = str(tmp_path)
    leave(directory, "a-b", 10, SUMMARY)
    assert take(directory, "a-b", 10) == SUMMARY
    assert take(directory, "a-b", 10) is None
    assert os.listdir(directory) == []


def test_batches_that_were_not_reported_are_removed(tmp_path: pathlib.Path) -> None:
    directory = str(tmp_path)
    for number in (8, 9, 10, 11):
        leave(directory, "a", number, SUMMARY)
    leave(directory, "b", 1, SUMMARY)
    assert take(directory, "a", 10) == SUMMARY
    assert sorted(os.listdir(directory)) == ["a-11.json", "b-1.json"]


def test_a_listener_that_takes_nothing_costs_little(tmp_path: pathlib.Path) -> None:
    directory = str(tmp_path)
    for number in range(MOST + 5):
        leave(directory, "a", number, Summary())
    assert len(os.listdir(directory)) == MOST
    assert take(directory, "a", MOST + 4) == Summary()


def test_the_sink_does_not_mind_that_the_directory_is_gone(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "of-a-listener"
    directory.mkdir()
    leave(str(directory), "a", 0, SUMMARY)
    remove(str(directory), os.getpid() + 1)  # as a child that was forked would
    assert directory.exists()
    remove(str(directory), os.getpid())
    leave(str(directory), "a", 1, SUMMARY)
    assert os.listdir(tmp_path) == []
    assert caplog.records == []


def test_a_summary_that_cannot_be_left_is_logged(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a-7.json").mkdir()
    leave(str(tmp_path), "a", 7, SUMMARY)
    (record,) = caplog.records
    assert record.getMessage().startswith("batch 7 is written, but its listener will not know it")
