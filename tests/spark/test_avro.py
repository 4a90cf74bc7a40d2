"""Values in Avro, with Spark and Kafka: what other decoders read."""

from __future__ import annotations

import datetime
import decimal
import io
import json
import pathlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import fastavro
import pytest
from pyspark.errors import AnalysisException, PySparkException

from pykaproducer.spark import register, write
from pykaproducer.testing import KafkaCluster
from tests._support.schema_registry import RegistryServer
from tests.transactions.helper import read

from .helper import SOON, records, save
from .test_streams import put_lines

ORDER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "count", "type": "int"},
        {"name": "price", "type": ["null", "double"], "default": None},
    ],
}
SCHEMA = json.dumps(ORDER)


@pytest.fixture(autouse=True, scope="module")
def registered(spark: Any) -> None:
    register(spark)


@pytest.fixture
def registry() -> Iterator[RegistryServer]:
    with RegistryServer().running() as running:
        yield running


def split(value: bytes) -> tuple[int, bytes]:
    """Return the id and the record of a value in the wire format."""
    assert value[:1] == b"\0"
    return int.from_bytes(value[1:5], "big"), value[5:]


def decoded(record: bytes, schema: dict[str, Any] = ORDER) -> Any:
    """Decode a bare record, of which nothing may be left over."""
    source = io.BytesIO(record)
    found = fastavro.schemaless_reader(source, schema, None)
    assert source.read() == b""
    return found


def java_decoded(spark: Any, record: bytes, schema: str) -> Any:
    """Decode a record with the Avro library of Java, and return it in Avro's JSON."""
    avro = spark._jvm.org.apache.avro
    parsed = avro.Schema.Parser().parse(schema)
    decoder = avro.io.DecoderFactory.get().binaryDecoder(bytearray(record), None)
    datum = avro.generic.GenericDatumReader(parsed).read(None, decoder)
    assert decoder.isEnd()
    output = spark._jvm.java.io.ByteArrayOutputStream()
    encoder = avro.io.EncoderFactory.get().jsonEncoder(parsed, output)
    avro.generic.GenericDatumWriter(parsed).write(datum, encoder)
    encoder.flush()
    return json.loads(output.toString("UTF-8"))


def orders(spark: Any, rows: int, tasks: int = 2) -> Any:
    return spark.range(rows, numPartitions=tasks).selectExpr(
        "CAST(id AS STRING) AS key",
        "named_struct('id', id, 'count', CAST(id % 7 AS INT), 'price', id / 4) AS value",
    )


def expected(rows: range) -> list[dict[str, Any]]:
    return [{"id": each, "count": each % 7, "price": each / 4} for each in rows]


def by_id(values: list[bytes | None]) -> list[dict[str, Any]]:
    """Decode records, and return them in the order of their ids."""
    return sorted((decoded(each or b"") for each in values), key=lambda each: int(each["id"]))


# Values -------------------------------------------------------------------------------------------


@pytest.mark.full
def test_bare_records(spark: Any, cluster: KafkaCluster, topic: str) -> None:
    cluster.create_topic(topic)
    save(orders(spark, 1000), cluster, topic=topic, valueFormat="avro", valueSchema=SCHEMA)
    found = records(cluster, topic)
    assert by_id([each.value for each in found]) == expected(range(1000))
    assert all(each.key == str(decoded(each.value or b"")["id"]).encode() for each in found)


def test_the_wire_format_of_a_registry(
    spark: Any, cluster: KafkaCluster, topic: str, registry: RegistryServer
) -> None:
    cluster.create_topic(topic)
    registry.add("another", {**ORDER, "doc": "unused"})
    registry.add(f"{topic}-value", ORDER)
    save(
        orders(spark, 1000),
        cluster,
        **{"topic": topic, "valueFormat": "avro", "schema.registry.url": registry.url},
    )
    found = [split(each.value or b"") for each in records(cluster, topic)]
    assert {number for number, _ in found} == {2}
    assert by_id([record for _, record in found]) == expected(range(1000))
    assert len(registry.asked) == 1


@pytest.mark.full
def test_each_type_as_java_reads_it(spark: Any, cluster: KafkaCluster, topic: str) -> None:
    cluster.create_topic(topic)
    fields: dict[str, Any] = {
        "flag": "boolean",
        "small": "int",
        "big": "long",
        "half": "float",
        "text": "string",
        "data": "bytes",
        "mark": {"type": "enum", "name": "Mark", "symbols": ["GOOD", "BAD"]},
        "code": {"type": "fixed", "name": "Code", "size": 2},
        "money": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2},
        "day": {"type": "int", "logicalType": "date"},
        "at": {"type": "long", "logicalType": "timestamp-millis"},
        "list": {"type": "array", "items": ["null", "int"]},
        "map": {"type": "map", "values": "double"},
        "inner": {"type": "record", "name": "In", "fields": [{"name": "x", "type": "int"}]},
        "maybe": ["null", "string"],
        "absent": {"type": "string"},
    }
    members = [{"name": name, "type": kind} for name, kind in fields.items()]
    members[-1]["default"] = "none"
    schema = {"type": "record", "name": "All", "fields": members}
    df = spark.sql(
        """SELECT struct(true AS flag, CAST(-5 AS SMALLINT) AS small, 1L << 40 AS big,
        CAST(0.5 AS FLOAT) AS half, 'snowman ☃' AS text, CAST('ab' AS BINARY) AS data,
        'BAD' AS mark, CAST('xy' AS BINARY) AS code, CAST(-12.34 AS DECIMAL(6, 2)) AS money,
        DATE'2024-02-29' AS day, TIMESTAMP'2024-05-17 12:30:15.123 UTC' AS at,
        array(1, NULL) AS list, map('a', 1.5D) AS map, struct(7 AS x) AS inner,
        CAST(NULL AS STRING) AS maybe) AS value"""
    )
    write(
        df,
        topic=topic,
        bootstrap_servers=cluster.bootstrap_servers,
        value_format="avro",
        value_schema=json.dumps(schema),
        value_schema_id=77,
    )
    number, record = split(records(cluster, topic)[0].value or b"")
    assert number == 77
    moment = datetime.datetime(2024, 5, 17, 12, 30, 15, 123000, tzinfo=datetime.UTC)
    plain = {
        "flag": True,
        "small": -5,
        "big": 2**40,
        "half": 0.5,
        "text": "snowman ☃",
        "mark": "BAD",
        "map": {"a": 1.5},
        "inner": {"x": 7},
        "maybe": None,
        "absent": "none",
    }
    assert decoded(record, schema) == {
        **plain,
        "data": b"ab",
        "code": b"xy",
        "money": decimal.Decimal("-12.34"),
        "day": datetime.date(2024, 2, 29),
        "at": moment,
        "list": [1, None],
    }
    assert java_decoded(spark, record, json.dumps(schema)) == {
        **plain,
        "data": "ab",
        "code": "xy",
        "money": (-1234).to_bytes(2, "big", signed=True).decode("latin-1"),
        "day": (datetime.date(2024, 2, 29) - datetime.date(1970, 1, 1)).days,
        "at": int(moment.timestamp() * 1000),
        "list": [{"int": 1}, None],
    }


@pytest.mark.full
def test_a_null_value_is_a_tombstone(spark: Any, cluster: KafkaCluster, topic: str) -> None:
    cluster.create_topic(topic)
    df = orders(spark, 1000, 1).selectExpr("key", "IF(value.id % 3 = 0, NULL, value) AS value")
    save(df, cluster, topic=topic, valueFormat="avro", valueSchema=SCHEMA, valueSchemaId="5")
    for number, record in enumerate(records(cluster, topic)):
        assert record.key == b"%d" % number
        if number % 3 == 0:
            assert record.value is None
        else:
            assert decoded(split(record.value or b"")[1])["id"] == number


@pytest.mark.full
def test_only_tombstones(spark: Any, cluster: KafkaCluster, topic: str) -> None:
    cluster.create_topic(topic)
    df = orders(spark, 10).selectExpr("key", "IF(value.id < 0, value, NULL) AS value")
    save(df, cluster, topic=topic, valueFormat="avro", valueSchema=SCHEMA)
    assert [each.value for each in records(cluster, topic)] == [None] * 10


def test_sql(spark: Any, cluster: KafkaCluster, topic: str, registry: RegistryServer) -> None:
    cluster.create_topic(topic)
    number = registry.add("orders", ORDER)
    options = {
        "kafka.bootstrap.servers": cluster.bootstrap_servers,
        "topic": topic,
        "valueFormat": "avro",
        "schema.registry.url": registry.url,
        "schemaRegistrySubject": "orders",
    }
    given = ", ".join(f"'{name}' = '{value}'" for name, value in options.items())
    spark.sql(
        "CREATE TABLE avro_sink (value STRUCT<id: BIGINT, count: INT, price: DOUBLE>) "
        "USING pykaproducer"
    )
    try:
        spark.sql(
            f"INSERT INTO avro_sink WITH ({given}) "
            f"SELECT named_struct('id', id, 'count', 1, 'price', 0.5D) FROM range(5)"
        )
    finally:
        spark.sql("DROP TABLE avro_sink")
    found = [split(each.value or b"") for each in records(cluster, topic)]
    assert {each for each, _ in found} == {number}
    assert sorted(decoded(record)["id"] for _, record in found) == list(range(5))


# Rows that do not fit -----------------------------------------------------------------------------


def broken(spark: Any) -> Any:
    """Return rows of which those with the ids 17 and 2500 do not fit."""
    return spark.range(3000, numPartitions=1).selectExpr(
        "CAST(id AS STRING) AS key",
        "map('trace', CAST(CAST(id AS STRING) AS BINARY)) AS headers",
        "named_struct('id', IF(id = 17, NULL, id), 'count', "
        "IF(id = 2500, 3000000000, id), 'price', 0.5D) AS value",
    )


def test_a_row_that_does_not_fit_fails_the_write(
    spark: Any, cluster: KafkaCluster, topic: str
) -> None:
    cluster.create_topic(topic)
    options = {"valueFormat": "avro", "valueSchema": SCHEMA}
    with pytest.raises(
        PySparkException, match=r"row 17: EncodingError: column value: id: null where the schema"
    ):
        save(broken(spark), cluster, topic=topic, **options)
    with pytest.raises(
        PySparkException, match=r"row 2499: EncodingError: column value: count: Integer value 3000"
    ):
        save(broken(spark).where("key != '17'"), cluster, topic=topic, **options)


def test_a_row_that_does_not_fit_is_a_dead_letter_in_json(
    spark: Any, cluster: KafkaCluster, topic: str
) -> None:
    """So is one that the broker rejects, as it would have been sent; each has its own number."""
    lost = f"{topic}-lost"
    for name in (topic, lost):
        cluster.create_topic(name)
    df = broken(spark).selectExpr("*", "CAST(IF(key = '2999', 999, 0) AS INT) AS partition")
    summary = write(
        df,
        topic=topic,
        on_error=f"deadletter:{lost}",
        bootstrap_servers=cluster.bootstrap_servers,
        value_format="avro",
        value_schema=SCHEMA,
    )
    assert (summary.rows, summary.refused) == (2997, 3)
    ids = [decoded(each.value or b"")["id"] for each in records(cluster, topic)]
    assert ids == [each for each in range(2999) if each not in (17, 2500)]
    letters = {
        dict(each.headers)["pykaproducer.error.row"]: each for each in records(cluster, lost)
    }
    assert set(letters) == {b"17", b"2500", b"2999"}
    assert json.loads(letters[b"17"].value or b"") == {"id": None, "count": 17, "price": 0.5}
    assert json.loads(letters[b"2500"].value or b"")["count"] == 3_000_000_000
    assert decoded(letters[b"2999"].value or b"")["id"] == 2999
    for number, letter in letters.items():
        assert letter.key == number
        headers = dict(letter.headers)
        assert headers["trace"] == number
        assert headers["pykaproducer.error.topic"] == topic.encode()
    assert dict(letters[b"17"].headers)["pykaproducer.error.class"] == b"EncodingError"


def test_what_does_not_fit_the_schema_is_refused_at_planning(
    spark: Any, cluster: KafkaCluster, topic: str, registry: RegistryServer
) -> None:
    registry.add(f"{topic}-value", ORDER)
    with pytest.raises(AnalysisException, match="column value: the schema requires count, which"):
        save(
            orders(spark, 10).selectExpr("struct(value.id AS id) AS value"),
            cluster,
            **{"topic": topic, "valueFormat": "avro", "schema.registry.url": registry.url},
        )


# Streams, and exactly once ------------------------------------------------------------------------


def lines_in(spark: Any, directory: pathlib.Path) -> Any:
    lines = spark.readStream.option("maxFilesPerTrigger", 1).text(str(directory))
    return lines.selectExpr(
        "named_struct('id', CAST(value AS BIGINT), 'count', 0, 'price', NULL) AS value"
    )


@pytest.mark.full
@pytest.mark.parametrize("once", [False, True])
def test_a_stream_needs_the_registry_only_once(
    spark: Any,
    cluster: KafkaCluster,
    topic: str,
    registry: RegistryServer,
    tmp_path: pathlib.Path,
    once: bool,
) -> None:
    cluster.create_topic(topic, partitions=2)
    number = registry.add("numbers", ORDER)
    for each in range(3):
        put_lines(tmp_path / "in", f"{each}", range(each * 100, each * 100 + 100))
    to = (
        lines_in(spark, tmp_path / "in")
        .writeStream.format("pykaproducer")
        .option("kafka.bootstrap.servers", cluster.bootstrap_servers)
        .option("topic", topic)
        .option("valueFormat", "avro")
        .option("schema.registry.url", registry.url)
        .option("schemaRegistrySubject", "numbers")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
    )
    if once:
        to = to.option("exactlyOnce", "true").option("transactionalIdPrefix", topic)
    query = to.start()
    assert query.awaitTermination(SOON)
    assert query.exception() is None
    found = read(cluster.bootstrap_servers, topic, "read_committed", range(2))
    assert {split(each)[0] for each in found} == {number}
    assert Counter(decoded(split(each)[1])["id"] for each in found) == Counter(range(300))
    assert len(registry.asked) == 1


@pytest.mark.full
def test_a_write_that_is_exactly_once_is_repeated(
    spark: Any, cluster: KafkaCluster, topic: str
) -> None:
    cluster.create_topic(topic, partitions=2)
    options = {
        "bootstrap_servers": cluster.bootstrap_servers,
        "topic": topic,
        "exactly_once": True,
        "transactional_id_prefix": topic,
        "write_id": "2025-03-01",
        "value_format": "avro",
        "value_schema": SCHEMA,
    }
    assert write(orders(spark, 1000), **options).rows == 1000
    assert write(orders(spark, 1000, tasks=3), **options).rows == 0
    found = read(cluster.bootstrap_servers, topic, "read_committed", range(2))
    assert by_id(list(found)) == expected(range(1000))
