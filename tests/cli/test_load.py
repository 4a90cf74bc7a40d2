"""``load``: every row of a file is sent or kept; and what was sent can be verified."""

from __future__ import annotations

import json
import pathlib
import signal
import subprocess
from typing import Any

import fastavro
import pyarrow
import pytest
from pyarrow import csv, orc, parquet

from pykaproducer._load.refused import RefusedRow
from pykaproducer._load.rejects import Origin, Rejects, RejectsDirectory, RejectsPart
from pykaproducer._load.summary import Summary, Written
from pykaproducer.cli import main
from pykaproducer.cli._load_report import verified
from pykaproducer.config import Config
from pykaproducer.delivery import TopicPartition
from pykaproducer.testing import KafkaCluster
from tests._support.consumer import consume

from .helper import NOWHERE, PATIENCE, command, end_of, run

ROWS = [
    {"id": 1, "name": "Ärger", "price": 1.5},
    {"id": 2, "name": 'says "no"', "price": None},
    {"id": 3, "name": None, "price": -2.0},
]


def write_rows(path: pathlib.Path) -> None:
    table = pyarrow.Table.from_pylist(ROWS)
    if path.suffix == ".parquet":
        parquet.write_table(table, path)
    elif path.suffix == ".orc":
        orc.write_table(table, path)
    elif path.suffix == ".csv":
        csv.write_csv(table, path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))


def load(cluster: KafkaCluster, topic: str, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    servers = cluster.bootstrap_servers
    return run("load", "-t", topic, "--bootstrap-servers", servers, *arguments)


def test_a_dry_run_sends_nothing(tmp_path: pathlib.Path) -> None:
    source = tmp_path / "rows.csv"
    source.write_text('id,name,price\n1,A,1.5\n2,"""no""",\n3,,-2.0\n')
    select = ["--select", "key=id, value=json(id, price), headers.n=name, partition=price"]
    done = run("load", str(source), "-t", "t", "-b", NOWHERE, "--dry-run", *select)
    assert done.returncode == 1
    assert not done.stderr
    *lines, reason = done.stdout.decode().splitlines()
    assert lines == [
        "1 file, 42 B, with the columns:",
        *("  id: string", "  name: string", "  price: string"),
        "the first messages:",
        """  key '2', header n '"no"', value '{"id":"2","price":null}'""",
        "3 rows, of which 2 would be rejected",
    ]
    assert reason.startswith(f"  2 rejected; the first: {source}, row 0: EncodingError: partition=")


def test_a_dry_run_shows_names_of_headers_that_no_message_can_have(tmp_path: pathlib.Path) -> None:
    raw = pyarrow.array([None, b"\xff"], pyarrow.binary()).buffers()
    names = pyarrow.Array.from_buffers(pyarrow.string(), 2, raw)
    pairs = pyarrow.StructArray.from_arrays([names, pyarrow.array(["a", "b"])], ["key", "value"])
    headers = pyarrow.ListArray.from_arrays([0, 2], pairs)
    parquet.write_table(pyarrow.table({"value": ["x"], "headers": headers}), tmp_path / "x.parquet")
    done = run("load", str(tmp_path / "x.parquet"), "-t", "t", "-b", NOWHERE, "--dry-run")
    assert "  header null 'a', header \\xff 'b', value 'x'" in done.stdout.decode().splitlines()
    assert not done.stderr


@pytest.mark.parametrize("suffix", ["parquet", "orc", "csv", "jsonl"])
def test_each_row_is_an_object_of_json(
    suffix: str, cluster: KafkaCluster, topic: str, tmp_path: pathlib.Path
) -> None:
    cluster.create_topic(topic)
    write_rows(tmp_path / f"rows.{suffix}")
    done = load(cluster, topic, str(tmp_path / f"rows.{suffix}"), "--verify")
    said = done.stderr.decode()
    assert done.returncode == 0, said
    assert f"3 of 3 rows delivered to {topic}" in said
    assert "verified: 3 rows read back, count and checksum match" in said
    found = [json.loads(record.value) for record in consume(cluster.bootstrap_servers, topic, 3)]
    if suffix == "csv":  # CSV contains only text, which is sent unchanged
        assert [row["id"] for row in found] == ["1", "2", "3"]
        assert [row["name"] for row in found] == [row["name"] for row in ROWS]
    else:
        assert found == ROWS


def test_a_selection_makes_every_part_of_a_message(
    cluster: KafkaCluster, topic: str, tmp_path: pathlib.Path
) -> None:
    cluster.create_topic(topic, partitions=2)
    parquet.write_table(
        pyarrow.table(
            {
                "id": [7],
                "shard": [1],
                "at": pyarrow.array([1_600_000_000_123], pyarrow.timestamp("ms", tz="UTC")),
                "name": ["a"],
            }
        ),
        tmp_path / "rows.parquet",
    )
    schema = {
        "type": "record",
        "name": "Row",
        "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": "string"}],
    }
    (tmp_path / "row.avsc").write_text(json.dumps(schema))
    select = (
        f"key=id, value=avro(*, '{tmp_path}/row.avsc'), headers.source='import', "
        f"headers.name=name, timestamp=at, partition=shard"
    )
    done = load(cluster, topic, str(tmp_path), "--format", "parquet", "--select", select)
    assert done.returncode == 2, "the directory has a file that is not Parquet"
    assert "row.avsc" in done.stderr.decode()
    done = load(cluster, topic, str(tmp_path / "*.parquet"), "--select", select)
    assert done.returncode == 0, done.stderr.decode()
    (record,) = consume(cluster.bootstrap_servers, topic, 1, partitions=[1])
    assert (record.key, record.timestamp) == (b"7", 1_600_000_000_123)
    assert record.headers == [("source", b"import"), ("name", b"a")]
    from io import BytesIO

    assert fastavro.schemaless_reader(BytesIO(record.value), schema) == {"id": 7, "name": "a"}


def test_refused_rows_are_kept_and_can_be_loaded_again(
    cluster: KafkaCluster, topic: str, tmp_path: pathlib.Path
) -> None:
    """Rows that are not a message, that the producer rejects, and that the broker rejects."""
    cluster.create_topic(topic, config={"max.message.bytes": "3000"})
    rows = [{"n": n, "shard": "0", "pad": ""} for n in range(1000)]
    rows[10]["shard"] = "none"
    rows[20]["shard"] = "-1"
    rows[30]["shard"] = "9"
    rows[40]["pad"] = "x" * 10_000
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    select = ["--select", "key=n, value=json(*), partition=shard"]
    rejects = tmp_path / "rejects"
    source = str(tmp_path / "rows.jsonl")
    done = load(cluster, topic, source, *select, "--rejects", str(rejects), "--verify")
    said = done.stderr.decode()
    assert done.returncode == 1, said
    assert "996 of 1,000 rows delivered" in said
    assert "rows are numbered from 0" in said
    assert "verified: 996 rows" in said
    kept = parquet.read_table(rejects).to_pylist()
    kept.sort(key=lambda row: row["n"])
    assert [{**row, "pykaproducer_error": None} for row in kept] == [
        {**rows[n], "pykaproducer_error": None} for n in (10, 20, 30, 40)
    ]
    errors = [row["pykaproducer_error"] for row in kept]
    assert [error["row"] for error in errors] == [10, 20, 30, 40]
    assert {error["file"] for error in errors} == {source}
    assert {error["status"] for error in errors} == {"NOT_PERSISTED"}
    assert f"{source}, row 10: " in said

    larger = f"{topic}-larger"
    cluster.create_topic(larger)
    done = load(cluster, larger, str(rejects), "--select", "key=n, value=json(*)", "--verify")
    assert done.returncode == 0, done.stderr.decode()
    again = consume(cluster.bootstrap_servers, larger, 4)
    assert sorted(json.loads(record.value)["n"] for record in again) == [10, 20, 30, 40]
    assert json.loads(again[0].value).keys() == rows[0].keys()


@pytest.mark.parametrize(
    "column",
    [
        pyarrow.array([{}, {}], pyarrow.struct([])),
        pyarrow.array(["a", "b"], pyarrow.string_view()),
        pyarrow.array([b"\xff", b"\xfe"]).view(pyarrow.string()),
        pyarrow.array(["a", "a"]).dictionary_encode(),
    ],
    ids=["empty struct", "view", "not UTF-8", "dictionary"],
)
def test_rows_of_every_type_are_kept(column: Any, tmp_path: pathlib.Path) -> None:
    """Even if Parquet has no such type, or pyarrow cannot take rows of it."""
    rows = pyarrow.record_batch({"column": column, "n": [1, 2]})
    rejects = Rejects(RejectsDirectory.of(str(tmp_path)), "part")
    origin = Origin(rows, "file", 10)
    rejects.take(origin, [RefusedRow(11, 1, ValueError("wrong"))] * 10_000)
    assert all(path.name.startswith(".") for path in tmp_path.iterdir()), "it is incomplete"
    summary = Summary()
    rejects.finish(summary)
    assert summary.troubles == []
    assert summary.files == [str(path) for path in tmp_path.iterdir()]
    kept = parquet.read_table(tmp_path)
    assert kept.column("n").to_pylist() == [2] * 10_000
    assert kept.column("pykaproducer_error").to_pylist()[0]["row"] == 11


def test_rejects_that_cannot_be_written_end_the_load_with_a_reason(tmp_path: pathlib.Path) -> None:
    directory = RejectsDirectory.of(str(tmp_path / "rejects"))
    directory.prepare()
    (tmp_path / "rejects").rmdir()
    (tmp_path / "rejects").touch()
    rejects = Rejects(directory, "part")
    rows = pyarrow.record_batch({"n": [1]})
    rejects.take(Origin(rows, "file", 0), [RefusedRow(0, 0, ValueError("wrong"))])
    summary = Summary()
    rejects.finish(summary)
    assert "not all rejected rows were kept, and the file is incomplete" in summary.troubles[0]
    assert summary.files == []
    assert rejects.ends_the_load


def test_a_file_of_rejects_stays_although_its_rename_reports_an_error(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store may have renamed it. Files of repeated tasks are removed."""
    show = RejectsPart.show

    def shown(part: RejectsPart) -> str:
        show(part)
        raise OSError("no response")

    directory = RejectsDirectory.of(str(tmp_path))
    summary = Summary()
    for name, outcome in (("0-0", show), ("0-1", shown)):
        monkeypatch.setattr(RejectsPart, "show", outcome)
        rejects = Rejects(directory, name)
        rows = pyarrow.record_batch({"n": [1]})
        rejects.take(Origin(rows, "file", 0), [RefusedRow(0, 0, ValueError("wrong"))])
        summary = Summary()
        rejects.finish(summary)
    assert "could not be renamed" in summary.troubles[0]
    directory.forget_others(summary.files)
    assert [path.name[-11:] for path in tmp_path.iterdir()] == ["0-1.parquet"]
    assert len(parquet.read_table(tmp_path)) == 1


def test_without_a_place_for_them_the_first_refused_row_ends_the_load(
    cluster: KafkaCluster, topic: str, tmp_path: pathlib.Path
) -> None:
    """The rows accepted before it are delivered."""
    cluster.create_topic(topic)
    lines = ["shard,n\n", *(f"0,{n}\n" for n in range(300_000))]
    lines[200_001] = "none,200000\n"
    (tmp_path / "rows.csv").write_text("".join(lines))
    source = str(tmp_path / "rows.csv")
    done = load(cluster, topic, source, "--select", "value=n, partition=shard")
    said = done.stderr.decode()
    assert done.returncode == 1, said
    assert f"1 not delivered; the first: {source}, row 200000: " in said
    assert "--rejects DIR keeps such rows and continues" in said
    assert end_of(cluster.bootstrap_servers, topic) == 200_000


def test_so_does_a_row_that_the_producer_refuses(
    cluster: KafkaCluster, topic: str, tmp_path: pathlib.Path
) -> None:
    cluster.create_topic(topic)
    rows = [f"{-1 if n == 20_000 else 0},{n}\n" for n in range(50_000)]
    (tmp_path / "rows.csv").write_text("".join(["shard,n\n", *rows]))
    done = load(cluster, topic, str(tmp_path / "*.csv"), "--select", "value=n, partition=shard")
    assert done.returncode == 1
    assert "1 not delivered; the first: " in done.stderr.decode()
    assert end_of(cluster.bootstrap_servers, topic) == 20_000


def test_a_file_that_breaks_in_the_middle_loses_nothing_before(
    cluster: KafkaCluster, topic: str, tmp_path: pathlib.Path
) -> None:
    cluster.create_topic(topic)
    (tmp_path / "a.csv").write_text("n\n" + "".join(f"{n}\n" for n in range(1000)))
    line = "x" * 100 + "\n"
    (tmp_path / "b.csv").write_text("n\n" + 200_000 * line + "2,too,many\n")
    done = load(cluster, topic, str(tmp_path / "*.csv"))
    said = done.stderr.decode()
    assert done.returncode == 1, said
    assert "b.csv" in said
    assert "only a part of it was read" in said
    assert end_of(cluster.bootstrap_servers, topic) >= 1000


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--select", "value=json(*"], "--select: expected a comma, "),
        (["--select", "value=nme"], "name"),
        (["--select", "key=id"], "value"),
        (["--format", "sql"], "--format sql: requires Spark; add --spark MASTER"),
        (["-X", "linger.ms=x"], "setting linger.ms: 'x' was given"),
        (["--rejects", "/proc/none"], "--rejects /proc/none: "),
        (["--select", "value=id, topic=name"], "-t t conflicts with topic= in --select"),
        (["--delimiter", ";;"], "--delimiter ;;: must be a single ASCII character"),
        (["--delimiter", r"\y"], r"--delimiter \y: \y is not an escape sequence; there are"),
        (["-t", "no topic"], "-t: topic 'no topic' is not a topic name"),
        (["/no/such/file.csv"], "/no/such/file.csv: no such file"),
        (
            ["s3a://b/x", "--dry-run"],
            "--dry-run: reads files, not s3a://b/x, which only Spark reads",
        ),
    ],
)
def test_a_mistake_is_told_before_anything_is_sent(
    arguments: list[str], told: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_rows(tmp_path / "rows.csv")
    source = [] if "/" in arguments[0] else [str(tmp_path / "rows.csv")]
    base = ["load", "-t", "t", "--bootstrap-servers", NOWHERE]
    assert main([*base, *source, *arguments]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--delimiter", ";"], "--delimiter is for csv, but the source is parquet; leave it out"),
        (["--infer-types"], "--infer-types is for csv, but the source is parquet"),
        (["--encoding", "latin-1"], "--encoding is for csv and jsonl, but the source is parquet"),
    ],
)
def test_an_option_for_other_formats_is_refused(
    arguments: list[str], message: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_rows(tmp_path / "rows.parquet")
    assert main(["load", "-t", "t", "--dry-run", str(tmp_path / "rows.parquet"), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_the_delimiter_may_be_an_escape_sequence(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "table.csv"
    table.write_text("a\tb\n1\t2\n")
    assert main(["load", "-t", "t", "--dry-run", "--delimiter", r"\t", str(table)]) == 0
    assert """value '{"a":"1","b":"2"}'""" in capsys.readouterr().out


def test_a_topic_must_be_named(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_rows(tmp_path / "rows.csv")
    assert main(["load", str(tmp_path / "rows.csv")]) == 2
    assert "no topic given: use -t TOPIC, or topic=COLUMN in --select" in capsys.readouterr().err
    assert main(["load", "-t", "t"]) == 2
    assert "no source given" in capsys.readouterr().err


def test_servers_that_do_not_answer_are_named(tmp_path: pathlib.Path) -> None:
    write_rows(tmp_path / "rows.csv")
    more = ["--bootstrap-servers", NOWHERE, "-X", "delivery_timeout_ms=1000"]
    done = run("load", "-t", "t", str(tmp_path / "rows.csv"), *more)
    assert done.returncode == 1
    assert f"no connection to {NOWHERE}" in done.stderr.decode()
    assert "0 of 3 rows delivered" in done.stderr.decode()


@pytest.mark.full
def test_an_interrupt_ends_it_soon(own_cluster: KafkaCluster, topic: str, tmp_path: Any) -> None:
    """With a full buffer, and no broker."""
    own_cluster.create_topic(topic)
    parquet.write_table(pyarrow.table({"value": ["x" * 1000] * 200_000}), tmp_path / "a.parquet")
    own_cluster.kill(0)
    try:
        with subprocess.Popen(
            [
                *command("load", "-t", topic, "--bootstrap-servers", own_cluster.bootstrap_servers),
                *(str(tmp_path / "a.parquet"), "-X", "buffer_memory=1000000"),
            ],
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stderr is not None
            # It has reported the missing broker, so it is running.
            first = process.stderr.readline()
            process.send_signal(signal.SIGTERM)
            rest = process.communicate(timeout=PATIENCE)[1]
    finally:
        own_cluster.restart(0)
    assert process.returncode == 128 + signal.SIGTERM, first + rest
    assert "stopped by SIGTERM" in rest


def test_a_difference_is_found(cluster: KafkaCluster, topic: str, tmp_path: pathlib.Path) -> None:
    """The report of --verify if the log does not hold what was sent."""
    cluster.create_topic(topic)
    write_rows(tmp_path / "rows.csv")
    assert load(cluster, topic, str(tmp_path / "rows.csv")).returncode == 0
    place = TopicPartition(topic, 0)
    summary = Summary({place: Written(3, 10, 0, 2)}, ranges={place: [range(3)]}, checksum=17)
    same, text = verified(summary, Config(bootstrap_servers=cluster.bootstrap_servers))
    assert not same
    assert text == "NOT VERIFIED: 3 rows were delivered, but the checksums differ"


def test_the_script_for_spark_submit_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["load", "--script"]) == 0
    assert pathlib.Path(capsys.readouterr().out.strip()).is_file()
