"""Rows, which Spark passes to the sink if its PySpark has no Arrow writers: the same messages.

The writers here derive from the classes that every PySpark has.
"""

from __future__ import annotations

import datetime
import logging
import pathlib
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow
import pytest
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql import Row, datasource
from pyspark.sql.conversion import ArrowTableToRowsConversion
from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pykaproducer.spark import register, write
from pykaproducer.spark.rows import (
    MOST_BYTES,
    MOST_ROWS,
    arrow_types,
    batches_of,
    local_time_is_utc,
)
from pykaproducer.spark.sink import BatchSink, BatchWrite, StreamSink, StreamWrite
from pykaproducer.spark.writers import receives_arrow
from pykaproducer.testing import KafkaCluster
from pyspark_pykaproducer import DefaultSource
from tests._support.pairs import partly

from .helper import SOON, records, values
from .test_exactly_once import visible
from .test_streams import put_lines

#: The names of the two sinks.
ROWS, DEFAULT = "pykaproducer-rows", "pykaproducer"
OPTIONS = {"kafka.bootstrap.servers": "localhost:9092", "topic": "t"}
VALUE = StructType([StructField("value", StringType())])


def source_of_rows(sink: str = ROWS, zone: tuple[str, str] | None = None) -> type[DefaultSource]:
    """Return a data source whose writers receive rows, in workers with the time zone *zone*."""

    # Classes of a function are pickled with their contents, so that workers need not import tests.
    class RowBatchSink(BatchWrite, DataSourceWriter):
        def write(self, rows: Iterator[Any]) -> Any:
            assert zone is None or time.tzname == zone
            try:
                return super().write(rows)
            finally:
                assert zone is None or time.tzname == zone

    class RowStreamSink(StreamWrite, DataSourceStreamWriter):
        pass

    class Source(DefaultSource):
        @classmethod
        def name(cls) -> str:
            return sink

        def writer(self, schema: Any, overwrite: bool) -> Any:
            return RowBatchSink(self.options, schema, overwrite)

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802
            return RowStreamSink(self.options, schema, overwrite)

    return Source


@pytest.fixture(autouse=True, scope="module")
def registered(spark: Any) -> None:
    register(spark)
    spark.dataSource.register(source_of_rows())


def save(df: Any, sink: str, cluster: KafkaCluster, topic: str | None, **options: str) -> None:
    to = df.write.format(sink).option("kafka.bootstrap.servers", cluster.bootstrap_servers)
    if topic is not None:
        to = to.option("topic", topic)
    to.options(**options).mode("append").save()


def once(prefix: str, **options: str) -> dict[str, str]:
    return {"exactlyOnce": "true", "transactionalIdPrefix": prefix, **options}


# Which of the two Spark passes -------------------------------------------------------------------


def test_the_sink_receives_arrow_batches_where_pyspark_has_such_writers() -> None:
    batch = BatchSink(OPTIONS, VALUE, overwrite=False)
    stream = StreamSink(OPTIONS, VALUE, overwrite=False)
    assert receives_arrow(batch) is hasattr(datasource, "DataSourceArrowWriter")
    assert receives_arrow(stream) is hasattr(datasource, "DataSourceStreamArrowWriter")


def test_the_sinks_of_these_tests_receive_rows() -> None:
    source = source_of_rows()(OPTIONS)
    assert not receives_arrow(source.writer(VALUE, False))
    assert not receives_arrow(source.streamWriter(VALUE, False))


# Batch writes ------------------------------------------------------------------------------------

HEADER = "ARRAY<STRUCT<key: STRING, value: BINARY>>"
CASES = {
    "text": "VALUES ('k', 'v'), ('k', NULL), (NULL, 'v'), ('', ''), ('ключ', 'snowman ☃ 𝄞') "
    "AS t(key, value)",
    "binary": "VALUES (X'00', X'00FF80'), (NULL, NULL), (X'', X'') AS t(key, value)",
    "headers": f"VALUES ('a', CAST(array(struct('trace', X'00FF'), struct('none', NULL)) AS "
    f"{HEADER})), ('b', CAST(array() AS {HEADER})), ('c', NULL) AS t(value, headers)",
    "headers of text": "VALUES ('a', array(named_struct('key', 'ключ', 'value', '☃'))) "
    "AS t(value, headers)",
    "a map of headers": "VALUES ('a', map('one', X'01', 'two', NULL, '', X'')), ('b', map()), "
    "('c', NULL) AS t(value, headers)",
    "a map of text": "VALUES ('a', map('one', '1', 'two', NULL)) AS t(value, headers)",
    "timestamp": "VALUES ('a', TIMESTAMP'2024-05-17 12:30:15.123999'), ('b', "
    "TIMESTAMP'2024-10-27 00:30:00Z'), ('c', TIMESTAMP'2024-10-27 01:30:00Z') "
    "AS t(value, timestamp)",
    "timestamp without time zone": "VALUES ('a', TIMESTAMP_NTZ'2024-05-17 12:30:15.123999'), "
    "('b', TIMESTAMP_NTZ'2024-03-31 02:30:00') AS t(value, timestamp)",
    "milliseconds": "VALUES ('a', 1700000000001L), ('b', 0L) AS t(value, timestamp)",
    "tinyint": "VALUES ('a', 2Y), ('b', 0Y) AS t(value, partition)",
    "smallint": "VALUES ('a', 2S), ('b', 0S) AS t(value, partition)",
    "int": "VALUES ('a', 2, 'k'), ('b', NULL, 'k') AS t(value, partition, key)",
    "bigint": "VALUES ('a', 2L), ('b', 0L) AS t(value, partition)",
    "as read from Kafka": "VALUES (X'6B', X'76', 'other', 0, 17L, TIMESTAMP'2020-01-01', 0) "
    "AS t(key, value, topic, partition, offset, timestamp, timestampType)",
}


@pytest.mark.parametrize("case", partly(CASES, ["text", "headers", "timestamp", "int"]))
def test_the_messages_are_those_of_arrow_batches(
    spark: Any, cluster: KafkaCluster, topic: str, case: str
) -> None:
    df = spark.sql(f"SELECT * FROM {CASES[case]}")
    for column, otherwise in (("timestamp", "1700000000000L"), ("partition", "1")):
        if column not in df.columns:
            df = df.selectExpr("*", f"{otherwise} AS {column}")
    found = {}
    for sink in (ROWS, DEFAULT):
        cluster.create_topic(f"{topic}-{sink}", partitions=3)
        save(df.coalesce(1), sink, cluster, f"{topic}-{sink}")
        found[sink] = records(cluster, f"{topic}-{sink}", 3)
    assert len(found[ROWS]) == df.count()
    assert found[ROWS] == found[DEFAULT]


@pytest.mark.full
def test_without_a_timestamp_it_is_the_time_of_sending(
    spark: Any, cluster: KafkaCluster, topic: str
) -> None:
    cluster.create_topic(topic)
    before = int(time.time() * 1000)
    save(
        spark.sql("SELECT 'v' AS value, CAST(NULL AS TIMESTAMP) AS timestamp"), ROWS, cluster, topic
    )
    assert before <= records(cluster, topic)[0].timestamp <= time.time() * 1000


@pytest.mark.full
def test_each_row_may_sinkits_topic(spark: Any, cluster: KafkaCluster, topic: str) -> None:
    for number in range(2):
        cluster.create_topic(f"{topic}-{number}")
    df = spark.range(30_000, numPartitions=2).selectExpr(
        f"concat('{topic}-', id % 2) AS topic", "CAST(id AS STRING) AS value"
    )
    save(df, ROWS, cluster, None)
    for number in range(2):
        found = [int(value or b"") for value in values(cluster, f"{topic}-{number}")]
        assert sorted(found) == list(range(number, 30_000, 2))


@pytest.mark.full
def test_nothing_is_a_write_too(spark: Any, cluster: KafkaCluster, topic: str) -> None:
    cluster.create_topic(topic)
    df = spark.range(0).selectExpr("CAST(id AS STRING) AS value")
    save(df, ROWS, cluster, topic)
    save(df, ROWS, cluster, topic, **once(topic))
    assert records(cluster, topic) == []


def test_a_row_that_fails_is_named(spark: Any, cluster: KafkaCluster, topic: str) -> None:
    cluster.create_topic(topic)
    df = spark.range(30_000, numPartitions=1).selectExpr(
        f"IF(id = 25000, NULL, '{topic}') AS topic", "CAST(id AS STRING) AS value"
    )
    with pytest.raises(PySparkException, match=r"Spark partition 0 .*row 25000: .*topic' is null"):
        save(df, ROWS, cluster, None)


@pytest.mark.full
def test_a_row_that_fails_may_be_a_dead_letter(
    spark: Any, cluster: KafkaCluster, topic: str
) -> None:
    cluster.create_topic(topic)
    cluster.create_topic(f"{topic}-dead")
    df = spark.sql("SELECT * FROM VALUES ('good', 0), ('bad', 999) AS t(value, partition)")
    save(df, ROWS, cluster, topic, onError=f"deadletter:{topic}-dead")
    assert values(cluster, topic) == [b"good"]
    assert values(cluster, f"{topic}-dead") == [b"bad"]


@pytest.mark.parametrize(
    ("column", "options", "said"),
    [
        ("CAST(1.5 AS DECIMAL(10, 2)) AS value", {}, r"value is decimal\(10,2\); it must be str"),
        ("id AS value", {}, "column value is bigint; it must be string or binary"),
        ("'v' AS valeu", {}, "column valeu is not part of a message: did you mean value"),
        ("'v' AS value", {"topics": "t"}, "option topics is unknown; did you mean topic"),
        ("'v' AS value", {"kafka.linger.ms": "soon"}, "option kafka.linger.ms: 'soon'"),
        ("'v' AS value", {"exactlyOnce": "true"}, "transactionalIdPrefix"),
    ],
)
def test_what_is_wrong_is_named_when_the_write_is_planned(
    spark: Any, column: str, options: dict[str, str], said: str
) -> None:
    to = spark.range(1).selectExpr(column).write.format(ROWS).options(**OPTIONS, **options)
    with pytest.raises(AnalysisException, match=said):
        to.mode("append").save()


def test_overwriting_is_refused(spark: Any) -> None:
    to = spark.sql("SELECT 'v' AS value").write.format(ROWS).options(**OPTIONS)
    with pytest.raises(AnalysisException, match="mode overwrite is not supported"):
        to.mode("overwrite").save()


# Streams -----------------------------------------------------------------------------------------


def stream(
    spark: Any, cluster: KafkaCluster, topic: str, path: pathlib.Path, sink: str, **options: str
) -> None:
    """Write what is new in a directory, one file per micro-batch."""
    lines = spark.readStream.option("maxFilesPerTrigger", 1).text(str(path / "in"))
    query = (
        lines.writeStream.format(sink)
        .option("kafka.bootstrap.servers", cluster.bootstrap_servers)
        .option("topic", topic)
        .options(**options)
        .option("checkpointLocation", str(path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(SOON)
    assert query.exception() is None


@pytest.mark.full
def test_a_stream_stops_and_goes_on(
    spark: Any, cluster: KafkaCluster, topic: str, tmp_path: pathlib.Path
) -> None:
    cluster.create_topic(topic, partitions=2)
    for start in (0, 15_000):
        put_lines(tmp_path / "in", str(start), range(start, start + 15_000))
        stream(spark, cluster, topic, tmp_path, ROWS)
    stream(spark, cluster, topic, tmp_path, ROWS)
    assert sorted(int(value or b"") for value in values(cluster, topic, 2)) == list(range(30_000))


def test_a_stream_with_a_wrong_option_ends(
    spark: Any, cluster: KafkaCluster, topic: str, tmp_path: pathlib.Path
) -> None:
    put_lines(tmp_path / "in", "a", range(10))
    with pytest.raises(StreamingQueryException, match="option topics is unknown; did you mean"):
        stream(spark, cluster, topic, tmp_path, ROWS, topics="t")


@pytest.mark.full
def test_each_micro_batch_may_be_written_by_a_function(
    spark: Any, cluster: KafkaCluster, topic: str, tmp_path: pathlib.Path
) -> None:
    cluster.create_topic(topic, partitions=2)
    put_lines(tmp_path / "in", "a", range(100))

    def write_twice(df: Any, number: int) -> None:
        for _ in range(2):  # the second of them is the same batch, and committed already
            save(df, ROWS, cluster, topic, **once(topic))

    query = (
        spark.readStream.text(str(tmp_path / "in"))
        .writeStream.foreachBatch(write_twice)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(SOON)
    assert query.exception() is None
    assert visible(cluster, topic) == Counter(range(100))


# Exactly once: also when an update of Spark changes what it passes -------------------------------


def logged(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Return what this package has logged; kafka-python logs that a step of it was slow."""
    return [each for each in caplog.records if each.name.startswith("pykaproducer")]


@pytest.mark.full
@pytest.mark.parametrize("sink", [ROWS, DEFAULT])
def test_a_write_with_an_id_is_repeated(
    spark: Any, cluster: KafkaCluster, topic: str, sink: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Each repetition counts its rows and their checksum, and compares them."""
    cluster.create_topic(topic, partitions=2)
    df = spark.range(25_000, numPartitions=2).selectExpr(
        "CAST(id AS STRING) AS value",
        "map('id', CAST(id AS STRING)) AS headers",
        "timestamp_millis(1700000000000 + id) AS timestamp",
    )
    given = once(topic, writeId="a")
    for each in (sink, ROWS, DEFAULT):
        save(df, each, cluster, topic, **given)
        assert visible(cluster, topic) == Counter(range(25_000))
    # write() always gets Arrow batches, and compares them in this process.
    given |= {"bootstrap_servers": cluster.bootstrap_servers, "topic": topic}
    assert write(df, **given).repeated
    assert not logged(caplog)
    assert write(df.limit(10), **given).repeated
    (record,) = logged(caplog)
    assert "with 25,000 rows. The 10 rows of this run differ from them" in record.getMessage()
    assert visible(cluster, topic) == Counter(range(25_000))


@pytest.mark.full
@pytest.mark.parametrize("sinks", [(ROWS, ROWS), (ROWS, DEFAULT), (DEFAULT, ROWS)])
def test_a_stream_is_visible_once(
    spark: Any, cluster: KafkaCluster, topic: str, tmp_path: pathlib.Path, sinks: tuple[str, str]
) -> None:
    cluster.create_topic(topic, partitions=2)
    for number, sink in enumerate(sinks):
        start = number * 200
        put_lines(tmp_path / "in", f"{start}", range(start, start + 100))
        put_lines(tmp_path / "in", f"{start + 100}", range(start + 100, start + 200))
        stream(spark, cluster, topic, tmp_path, sink, **once(topic))
    assert visible(cluster, topic) == Counter(range(400))


# The conversion ----------------------------------------------------------------------------------


def rows_of(count: int, value: str = "v") -> Iterator[Row]:
    return (Row(value=value) for _ in range(count))


def test_batches_have_a_limited_number_of_rows() -> None:
    found = [batch.num_rows for batch in batches_of(rows_of(2 * MOST_ROWS + 1), VALUE)]
    assert found == [MOST_ROWS, MOST_ROWS, 1]


def test_batches_have_a_limited_size() -> None:
    value = "x" * (MOST_BYTES // 4)
    found = [batch.num_rows for batch in batches_of(rows_of(10, value), VALUE)]
    assert found == [4, 4, 2]


def test_the_size_of_a_batch_includes_headers() -> None:
    header = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
    schema = StructType([*VALUE.fields, StructField("headers", ArrayType(header))])
    headers = [Row(key="key", value=bytearray(MOST_BYTES // 4))] * 2
    rows = (Row(value="v", headers=headers) for _ in range(5))
    assert [batch.num_rows for batch in batches_of(rows, schema)] == [2, 2, 1]


def test_a_batch_is_made_before_further_rows_are_read() -> None:
    rows = rows_of(2 * MOST_ROWS)
    next(batches_of(rows, VALUE))
    assert len(list(rows)) == MOST_ROWS


def test_nested_values_are_converted() -> None:
    pair = StructType([StructField("one", StringType()), StructField("two", TimestampType())])
    nested = StructType([StructField("of", MapType(StringType(), ArrayType(pair)))])
    schema = StructType([StructField("value", nested), StructField("pair", pair)])
    moment = datetime.datetime(2024, 5, 17, 12, 30, tzinfo=datetime.UTC)
    given = pyarrow.Table.from_pylist(
        [
            {"value": {"of": [("a", [{"one": "1", "two": moment}, None])]}, "pair": None},
            {"value": {"of": None}, "pair": {"one": None, "two": None}},
            {"value": None, "pair": {"one": "1", "two": moment}},
        ],
        arrow_types(schema),
    )
    with local_time_is_utc():
        rows = ArrowTableToRowsConversion.convert(given, schema)
        assert pyarrow.Table.from_batches(batches_of(iter(rows), schema)) == given
