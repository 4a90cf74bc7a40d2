"""``load --spark``: the same load by the tasks of an application; also of tables and queries."""

from __future__ import annotations

import gzip
import json
import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pyarrow
import pytest
from pyarrow import csv, parquet

from pykaproducer.cli import main
from pykaproducer.cli.common import human_bytes
from pykaproducer.testing import KafkaCluster
from tests._support import s3
from tests._support.fixtures.spark import spark_environment
from tests._support.pairs import partly
from tests._support.s3 import s3_port  # noqa: F401
from tests.load.truth import values as rows_of
from tests.transactions.helper import read

from .helper import SOON, records, values


def load(cluster: KafkaCluster, topic: str, *arguments: str) -> int:
    return main(
        [
            *("load", "-t", topic, "--bootstrap-servers", cluster.bootstrap_servers),
            *("--spark", "local[2]"),
            *arguments,
        ]
    )


def test_both_modes_make_the_same_messages(
    spark: Any, cluster: KafkaCluster, topic: str, tmp_path: pathlib.Path
) -> None:
    table = pyarrow.table(
        {
            "id": range(1000),
            "price": [None, 1.5, -0.1, 1e300] * 250,
            "name": ["ä", '"', None, ""] * 250,
            "at": pyarrow.array(range(1000), pyarrow.timestamp("us", tz="UTC")),
            "tags": [["a"], [], None, [None]] * 250,
        }
    )
    parquet.write_table(table, tmp_path / "rows.parquet")
    arguments = [
        str(tmp_path / "rows.parquet"),
        *("--select", "key=id, value=json(*), headers.name=name, timestamp=at"),
        "--verify",
    ]
    for name in (topic, f"{topic}-embedded"):
        cluster.create_topic(name)
    assert load(cluster, topic, *arguments) == 0
    servers = cluster.bootstrap_servers
    embedded = ["load", "-t", f"{topic}-embedded", "--bootstrap-servers", servers, *arguments]
    assert main(embedded) == 0

    def messages(name: str) -> list[Any]:
        return sorted(record[1:] for record in records(cluster, name))

    assert messages(topic) == messages(f"{topic}-embedded")
    assert len(messages(topic)) == 1000


def test_progress_is_told_as_in_the_embedded_load(
    spark: Any,
    cluster: KafkaCluster,
    topic: str,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pykaproducer.cli._progress._INTERVAL", 0.0)
    for rows in (3, 4):
        parquet.write_table(pyarrow.table({"id": range(rows)}), tmp_path / f"{rows}.parquet")
    size = sum(path.stat().st_size for path in tmp_path.iterdir())
    cluster.create_topic(topic)
    assert load(cluster, topic, str(tmp_path)) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if " rows to " in line]
    assert f" 7 rows to {topic}; {human_bytes(size)} of {human_bytes(size)} read" in lines[-1]


@pytest.mark.parametrize("kind", partly(["csv", "jsonl", "orc", "table", "sql"], ["csv", "sql"]))
def test_what_spark_reads(
    kind: str, spark: Any, cluster: KafkaCluster, topic: str, tmp_path: pathlib.Path
) -> None:
    cluster.create_topic(topic)
    df = spark.sql("SELECT '1' AS id, 'one' AS name UNION ALL SELECT '2', 'two'")
    source = str(tmp_path / "rows")
    if kind == "sql":
        df.createOrReplaceTempView("numbers")
        source = "SELECT id, name FROM numbers"
    elif kind == "table":
        df.createOrReplaceTempView("numbers")
        source = "numbers"
    else:
        written = {"jsonl": "json"}.get(kind, kind)
        df.write.format(written).option("header", True).save(source)
    assert load(cluster, topic, source, "--format", kind, "--select", "key=id,value=json(*)") == 0
    assert sorted(json.loads(value or b"")["name"] for value in values(cluster, topic)) == [
        "one",
        "two",
    ]


#: JSON Lines that a reader of JSON would change: exact numbers, spaces, a name twice in two cases.
LINES = (
    b'{"id": 1.0, "n": 12345678901234567890.123456789, "a":{"b": [1e400, null]}}\n',
    b'\n{"n":0.10,  "id" :"\\u00e9", "N": true}\r\n',
    '{"late":"ä","id":-0.0}'.encode(),
)


@pytest.mark.parametrize("select", [None, "key=id, value=json(*), headers.b=json(a.b)"])
@pytest.mark.parametrize("messages", [False, True])
def test_json_lines_of_uris_are_read_as_files_are(
    select: str | None,
    messages: bool,
    spark: Any,
    cluster: KafkaCluster,
    topic: str,
    tmp_path: pathlib.Path,
) -> None:
    source = tmp_path / "rows"
    (source / "below").mkdir(parents=True)
    lines: Sequence[bytes] = LINES
    if messages:
        lines = [json.dumps({"value": each.decode(), "key": "k"}).encode() for each in LINES]
    (source / "below" / "1.jsonl").write_bytes(lines[0])
    (source / "2.jsonl.gz").write_bytes(gzip.compress(lines[1]))
    (source / "3.jsonl").write_bytes(lines[2])
    if messages and select is not None:
        select = "key=value, value=json(*)"
    arguments = ["--format", "jsonl", *([] if select is None else ["--select", select])]
    cluster.create_topic(f"{topic}-embedded")
    cluster.create_topic(topic)
    servers = ["--bootstrap-servers", cluster.bootstrap_servers]
    assert main(["load", "-t", f"{topic}-embedded", *servers, str(source), *arguments]) == 0
    assert load(cluster, topic, source.as_uri(), *arguments) == 0

    def sent(name: str) -> list[Any]:
        # Members of all files are in the order of the files, which Spark reads in another.
        order = (lambda text: text) if select is None else _sorted_members
        return sorted(
            (each.key or b"", order(each.value or b""), each.headers)
            for each in records(cluster, name)
        )

    assert sent(topic) == sent(f"{topic}-embedded")
    assert len(sent(topic)) == 3


def _sorted_members(text: bytes) -> str:
    return json.dumps(json.loads(text, parse_float=str), sort_keys=True)


@pytest.mark.parametrize(
    ("place", "content", "error"),
    [
        (
            "rows.jsonl",
            b'{"a":1}\n{"a":"\xff"}\n',
            "rows.jsonl: line 2, byte 7: the text is not UTF-8",
        ),
        ("rows.jsonl", b'{"a":1}\n{"value":1}\n', "without --select, either all lines have it"),
        (
            "rows.jsonl",
            b'\n{"a":"\xff"}\n',
            "not blank: line 1, byte 7: the text is not UTF-8; convert the file",
        ),
        (
            "rows.jsonl",
            b"[1]\n",
            "the first line that is not blank: line 1, byte 1: the line is not a JSON object",
        ),
        ("rows.jsonl", b"\n \n", "empty: there are no columns"),
        ("day=1/rows.jsonl", b"{}\n", "the directory day=1 is a column, which lines have not"),
        ("rows.jsonl.xz", b"{}\n", "rows.jsonl.xz: Spark cannot decompress it; decompress it"),
    ],
)
def test_uris_without_json_lines_that_spark_reads_are_refused(
    place: str,
    content: bytes,
    error: str,
    spark: Any,
    cluster: KafkaCluster,
    topic: str,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cluster.create_topic(topic)
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / place).write_bytes(content)
    # What is wrong in a later line is found while the rows before it are sent.
    status = 1 if content.startswith(b'{"a":1}') else 2
    assert load(cluster, topic, tmp_path.as_uri(), "--format", "jsonl") == status
    stderr = capsys.readouterr().err
    assert error in stderr
    assert "Traceback" not in stderr


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_rows_of_uris_are_told_by_file(
    kind: str,
    spark: Any,
    cluster: KafkaCluster,
    topic: str,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cluster.create_topic(topic)
    source = tmp_path / "of two"
    source.mkdir()
    for name in ("a", "b"):
        shards = ["0"] * 30_000
        shards[20_000 if name == "b" else 5] = "none"
        table = pyarrow.table({"shard": shards})
        path = source / f"{name}.{kind}"
        if kind == "csv":
            csv.write_csv(table, path)
        elif kind == "jsonl":
            path.write_text("".join(f"{json.dumps(row)}\n" for row in table.to_pylist()))
        else:
            parquet.write_table(table, path)
    rejects = tmp_path / "rejects"
    select = ["--select", "value='x', partition=shard", "--rejects", str(rejects)]
    assert load(cluster, topic, f"file://{source}", "--format", kind, *select) == 1
    assert f"2 not delivered; the first: file://{source}/" in capsys.readouterr().err
    errors = parquet.read_table(rejects).column("pykaproducer_error").to_pylist()
    assert sorted((each["file"], each["row"]) for each in errors) == [
        (f"file://{source}/a.{kind}", 5),
        (f"file://{source}/b.{kind}", 20_000),
    ]


def test_lines_of_a_piece_are_told_by_its_first_byte(
    spark: Any,
    cluster: KafkaCluster,
    topic: str,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cluster.create_topic(topic)
    source = tmp_path / "rows.jsonl"
    lines = ['{"n":1}\n'] * 40_000
    lines[35_000] = "{]\n"  # in the second batch of its piece
    source.write_text("".join(lines))
    spark.conf.set("spark.sql.files.maxPartitionBytes", "160000")
    try:
        assert load(cluster, topic, source.as_uri()) == 1
    finally:
        spark.conf.unset("spark.sql.files.maxPartitionBytes")
    # The line across the boundary of two pieces is of the first one.
    told = f"file://{source}, from byte 160000: line 15000, byte 2: "
    assert told in capsys.readouterr().err


def test_columns_of_any_name_are_read(
    spark: Any, cluster: KafkaCluster, topic: str, tmp_path: pathlib.Path
) -> None:
    """Also with dots, and as Spark's own for the file of a row."""
    cluster.create_topic(topic)
    row = {"a.b": 1, "`": 2, "input_file_name()": 3, "file": 4, "0": 5}
    parquet.write_table(pyarrow.Table.from_pylist([row]), tmp_path / "rows.parquet")
    source = (tmp_path / "rows.parquet").as_uri()
    assert load(cluster, topic, source, "--select", "value=json(*)") == 0
    query = f"SELECT * FROM parquet.`{source}`"
    assert load(cluster, topic, query, "--format", "sql", "--select", "value=json(*)") == 0
    assert [json.loads(value or b"") for value in values(cluster, topic)] == [row, row]


@pytest.mark.full
def test_a_selection_without_a_column_has_a_message_for_each_row(
    spark: Any, cluster: KafkaCluster, topic: str
) -> None:
    cluster.create_topic(topic)
    query = ["SELECT * FROM range(3)", "--format", "sql", "--select", "value='x'", "--verify"]
    assert load(cluster, topic, *query) == 0
    assert values(cluster, topic) == [b"x"] * 3


#: Of each format some, whose columns are compatible.
CORPUS = (
    "avro/weather.avro",
    "avro/weather-snappy.avro",
    "csv-spectrum/newlines_crlf.csv",
    "csv-spectrum/utf8.csv",
    "orc/col.dot.orc",
    "orc/orc-file-no-timezone.orc",
    "parquet-java/test-append_1.parquet",
    "parquet-java/test-append_2.parquet",
    "spark/before_1582_date_v2_4.snappy.orc",
    "spark/before_1582_timestamp_int96_dict_v3_2_0.snappy.parquet",
    "spark/episodes.avro",
    "spark/parquet-thrift-compat.snappy.parquet",
    "spark/proto-struct-with-array-many.parquet",
)


def test_files_of_other_writers_make_the_same_messages(
    spark: Any, cluster: KafkaCluster, topic: str, tmp_path: pathlib.Path
) -> None:
    for name in CORPUS:
        shutil.copy(pathlib.Path(__file__).parents[1] / "load/corpus" / name, tmp_path)
    (tmp_path / "x.jsonl").write_text('{"n":1.50,"inner":{"x":[1e400]}}\n{"n":null}\n')
    found = []
    for name, mode in ((topic, ["--spark", "local[2]"]), (f"{topic}-embedded", [])):
        cluster.create_topic(name)
        servers = ["--bootstrap-servers", cluster.bootstrap_servers, *mode]
        arguments = [str(tmp_path), "--select", "value=json(*)", "--verify"]
        assert main(["load", "-t", name, *servers, *arguments]) == 0
        found.append(sorted(value or b"" for value in values(cluster, name)))
    assert found[0] == found[1]
    assert found[0] == sorted(rows_of(str(tmp_path)))


def test_spark_reads_files_as_the_embedded_load_does(
    spark: Any, cluster: KafkaCluster, topic: str, tmp_path: pathlib.Path
) -> None:
    """Lines in cells, quotes in cells, columns of some files; and a malformed line is an error."""
    cluster.create_topic(topic)
    source = tmp_path / "rows.tsv"
    source.write_text('a\tb\n1\t"two\nlines"\n2\t"say ""hi"""\n3\t\n4\t""\n')
    assert load(cluster, topic, str(source)) == 0
    assert [json.loads(value or b"") for value in values(cluster, topic)] == [
        {"a": "1", "b": "two\nlines"},
        {"a": "2", "b": 'say "hi"'},
        {"a": "3", "b": None},
        {"a": "4", "b": ""},
    ]
    for number, names in enumerate((["a"], ["a", "b"])):
        table = pyarrow.table({name: [number] for name in names})
        parquet.write_table(table, tmp_path / f"{number}.parquet")
    cluster.create_topic(f"{topic}-parquet")
    files = [str(tmp_path / f"{number}.parquet") for number in range(2)]
    assert load(cluster, f"{topic}-parquet", *files) == 0
    assert values(cluster, f"{topic}-parquet") == [b'{"a":0,"b":null}', b'{"a":1,"b":1}']
    for name, text in (("rows.jsonl", '{"a":1}\n{"a":2\n'), ("rows.csv", "a,b\n1,2\n3,4,5\n")):
        (tmp_path / name).write_text(text)
        assert load(cluster, topic, str(tmp_path / name)) != 0
    assert len(values(cluster, topic)) <= 6


@pytest.mark.full
def test_refused_rows_are_kept(
    spark: Any,
    cluster: KafkaCluster,
    topic: str,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cluster.create_topic(topic)
    query = "SELECT id, IF(id % 100 = 7, 'none', '0') AS shard FROM range(0, 1000, 1, 4)"
    arguments = ["--format", "sql", "--select", "value=id, partition=shard"]
    rejects = tmp_path / "rejects"
    assert load(cluster, topic, query, *arguments, "--rejects", str(rejects), "--verify") == 1
    said = capsys.readouterr().err
    assert "990 of 1,000 rows delivered" in said
    assert "10 not delivered; the first: Spark partition 0, row 7: " in said
    assert "verified: 990 rows" in said
    kept = parquet.read_table(rejects).to_pylist()
    assert sorted(row["id"] for row in kept) == list(range(7, 1000, 100))
    # Without --rejects, the first rejected row of each task ends that task's part of the load.
    assert load(cluster, topic, query, *arguments) == 1
    assert "--rejects DIR keeps such rows and continues" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (["/no/such/file.parquet"], 2, "/no/such/file.parquet"),
        (["/dev/null", "--format", "csv"], 2, "/dev/null"),
        (["s3a://bucket/x.csv", "--encoding", "latin-1"], 2, "--encoding: not for sources that"),
        (["s3a://bucket/x.csv", "--infer-types"], 2, "--infer-types: not for sources that"),
        (["nowhere", "--format", "table", "--delimiter", ";"], 2, "--delimiter: not for sources"),
        (["s3a://bucket/x.jsonl", "--delimiter", ";"], 2, "--delimiter: not for sources"),
        (["s3a://b/x.csv", "s3a://b/x.orc"], 2, "several formats ('csv' and 'orc'); load each"),
        (["s3a://b/x.csv", "s3a://b/x.tsv"], 2, "several delimiters (',' and '\\t'); load each"),
        (["nowhere", "--format", "table"], 2, "nowhere"),
        (["SELEC 1", "--format", "sql"], 2, "SELEC"),
        (["SELECT 1 AS a", "--format", "sql", "--select", "value=b"], 2, "--select: "),
    ],
)
def test_a_mistake_is_told(
    spark: Any,
    cluster: KafkaCluster,
    topic: str,
    arguments: list[str],
    status: int,
    told: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert load(cluster, topic, *arguments) == status
    said = capsys.readouterr().err
    assert told in said
    assert "Traceback" not in said


@pytest.mark.full
def test_spark_submit_runs_the_script(
    cluster: KafkaCluster, topic: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import pyspark

    cluster.create_topic(topic)
    parquet.write_table(pyarrow.table({"value": ["a", "b"]}), tmp_path / "rows.parquet")
    assert main(["load", "--script"]) == 0
    script = capsys.readouterr().out.strip()
    done = subprocess.run(
        [
            str(pathlib.Path(pyspark.__file__).parent / "bin" / "spark-submit"),
            *("--master", "local[1]", "--conf", "spark.ui.enabled=false"),
            *("--conf", "spark.driver.host=127.0.0.1", script),
            *(str(tmp_path / "rows.parquet"), "-t", topic),
            *("--bootstrap-servers", cluster.bootstrap_servers),
        ],
        env={**os.environ, **spark_environment()},
        capture_output=True,
        timeout=SOON,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()[-5000:]
    # spark-submit redirects the script's output there
    assert b"2 of 2 rows delivered" in done.stdout
    assert values(cluster, topic) == [b"a", b"b"]


@pytest.mark.full
def test_workers_on_this_machine_run_the_python_of_the_command(
    cluster: KafkaCluster, topic: str, tmp_path: pathlib.Path
) -> None:
    """Although the first ``python3`` of ``PATH`` is another one."""
    cluster.create_topic(topic)
    parquet.write_table(pyarrow.table({"value": ["a", "b"]}), tmp_path / "rows.parquet")
    other = tmp_path / "python3"
    other.write_text("#!/bin/sh\nexit 1\n")
    other.chmod(0o700)
    environment = {**os.environ, **spark_environment()}
    del environment["PYSPARK_PYTHON"]
    environment["PATH"] = f"{tmp_path}:{environment['PATH']}"
    servers = cluster.bootstrap_servers
    words = ["-m", "pykaproducer", "load", str(tmp_path / "rows.parquet"), "-t", topic]
    done = subprocess.run(
        [sys.executable, *words, "--bootstrap-servers", servers, "--spark", "local[1]"],
        env=environment,
        capture_output=True,
        timeout=SOON,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()[-5000:]
    assert values(cluster, topic) == [b"a", b"b"]


def test_objects_of_a_store_are_read_by_both_engines(
    cluster: KafkaCluster,
    topic: str,
    tmp_path: pathlib.Path,
    s3_port: int,  # noqa: F811
) -> None:
    environment = {**os.environ, **spark_environment(), **s3.environment(s3_port)}
    (tmp_path / "day=1").mkdir()
    (tmp_path / "day=1" / "a.jsonl").write_text('{"n": 1.0}\n{"n":2}\n')
    parquet.write_table(pyarrow.table({"n": [3.0]}), tmp_path / "b.parquet")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in s3.environment(s3_port).items():
            patch.setenv(name, value)
        s3.put(topic, tmp_path)
    found = []
    for engine, arguments in {"here": [], "spark": ["--spark", "local[1]"]}.items():
        cluster.create_topic(f"{topic}-{engine}")
        words = ["-m", "pykaproducer", "load", f"s3://{topic}", "-t", f"{topic}-{engine}"]
        servers = ["--bootstrap-servers", cluster.bootstrap_servers, "--select", "value=json(*)"]
        done = subprocess.run(
            [sys.executable, *words, *servers, *arguments],
            env=environment,
            capture_output=True,
            timeout=SOON,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()[-5000:]
        found.append(sorted(values(cluster, f"{topic}-{engine}")))
    assert found[0] == found[1]
    assert len(found[0]) == 3


def once(topic: str, *arguments: str) -> list[str]:
    return ["--exactly-once", "--transactional-id-prefix", topic, *arguments]


def test_a_load_that_is_exactly_once(
    spark: Any,
    cluster: KafkaCluster,
    topic: str,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cluster.create_topic(topic, partitions=2)
    table = pyarrow.table({"value": [f"{i}" for i in range(1000)]})
    parquet.write_table(table, tmp_path / "rows.parquet", row_group_size=100)
    arguments = [str(tmp_path / "rows.parquet"), *once(topic, "--write-id", "first")]
    assert load(cluster, topic, *arguments) == 0
    assert "1,000 of 1,000 rows delivered" in capsys.readouterr().err
    assert load(cluster, topic, *arguments) == 0
    assert "nothing was written: first was committed before" in capsys.readouterr().err
    found = read(cluster.bootstrap_servers, topic, "read_committed", range(2))
    assert sorted(map(int, found)) == list(range(1000))


@pytest.mark.full
def test_a_rejected_row_makes_all_rows_invisible(
    spark: Any,
    cluster: KafkaCluster,
    topic: str,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cluster.create_topic(topic)
    table = pyarrow.table({"value": ["good", "x" * 2_000_000, "good"]})
    parquet.write_table(table, tmp_path / "rows.parquet")
    arguments = [str(tmp_path / "rows.parquet"), *once(topic)]
    assert load(cluster, topic, *arguments) != 0
    assert "rows.parquet, row 1: " in capsys.readouterr().err
    assert read(cluster.bootstrap_servers, topic, "read_committed", [0]) == []
    kept = str(tmp_path / "kept")
    assert load(cluster, topic, *arguments, "--rejects", kept) == 1
    assert read(cluster.bootstrap_servers, topic, "read_committed", [0]) == [b"good", b"good"]
    assert len(parquet.read_table(kept)) == 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--spark", "local[2]", "--exactly-once"], "--transactional-id-prefix is missing"),
        (["--write-id", "first"], "--write-id: needs --exactly-once"),
        (["--exactly-once"], "--exactly-once: requires Spark; add --spark MASTER"),
        (
            ["--spark", "local[2]", "--exactly-once", "--verify"],
            "--exactly-once and --verify cannot be combined",
        ),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else "",
)
def test_what_does_not_fit_exactly_once_is_refused(
    spark: Any,
    cluster: KafkaCluster,
    topic: str,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    text: str,
) -> None:
    parquet.write_table(pyarrow.table({"value": ["1"]}), tmp_path / "rows.parquet")
    servers = ["--bootstrap-servers", cluster.bootstrap_servers]
    source = str(tmp_path / "rows.parquet")
    assert main(["load", source, "-t", topic, *servers, *arguments]) == 2
    assert text in capsys.readouterr().err
