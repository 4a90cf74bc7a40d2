"""Files of an object store: names and patterns, the rows of local files, and errors."""

from __future__ import annotations

import contextlib
import json
import pathlib
import threading
import time
from typing import Any

import fastavro
import pyarrow
import pytest
from pyarrow import csv, feather, fs, orc, parquet

from pykaproducer._load.names import SourceError
from pykaproducer._load.sources import LoadSource, Options, open_source
from pykaproducer.cli import main
from tests._support import s3
from tests._support.s3 import s3_port  # noqa: F401

pytestmark = pytest.mark.scripted

TABLE = pyarrow.table(
    {"id": range(3000), "name": ["ä", '"', "%20 b"] * 1000, "part": [b"x" * 700] * 3000}
)


def write(path: pathlib.Path, table: Any = TABLE) -> None:
    """Write a file in the format of its suffix."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        parquet.write_table(table, path, row_group_size=1000)
    elif path.suffix == ".orc":
        orc.write_table(table, path)
    elif path.suffix == ".arrow":
        feather.write_feather(table, path, compression="uncompressed")
    elif path.suffix == ".avro":
        fields = [
            {"name": "id", "type": "long"},
            {"name": "name", "type": "string"},
            {"name": "part", "type": "bytes"},
        ]
        schema = fastavro.parse_schema({"type": "record", "name": "Row", "fields": fields})
        with path.open("wb") as file:
            fastavro.writer(file, schema, table.to_pylist())
    elif path.suffix == ".csv":
        csv.write_csv(table.drop_columns("part"), path)
    else:
        rows = table.drop_columns("part").to_pylist()
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def rows(*names: str, size: int | None = None, **options: Any) -> list[tuple[str, dict[str, Any]]]:
    """Return all rows, each with the last part of the name of its file."""
    source = open_source(names, Options(**options))
    parts = source.parts(size) if size else source.parts(1 << 40)
    return [
        (found.file.partition(",")[0].rpartition("/")[2], row)
        for part in parts
        for found in part.batches(source.schema)
        for row in found.batch.to_pylist()
    ]


@pytest.fixture
def store(
    s3_port: int,  # noqa: F811
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> str:
    """Return the name of a bucket that does not exist yet; programs find its store."""
    for name, value in s3.environment(s3_port).items():
        monkeypatch.setenv(name, value)
    return f"b{abs(hash(request.node.nodeid)):x}"


@pytest.mark.parametrize("suffix", ["parquet", "orc", "arrow", "avro", "csv", "jsonl"])
def test_the_rows_are_those_of_the_same_files_here(
    suffix: str, store: str, tmp_path: pathlib.Path
) -> None:
    for name in ("b 1%20", "a", "c/day=1/d"):
        write(tmp_path / f"{name}.{suffix}")
    s3.put(store, tmp_path)
    expected = rows(str(tmp_path))
    assert len(expected) == 9000
    assert rows(f"s3://{store}") == expected
    assert rows(f"s3://{store}/", size=50_000) == rows(str(tmp_path), size=50_000) == expected


def test_compressed_and_encoded_text(store: str, tmp_path: pathlib.Path) -> None:
    import gzip
    import lzma

    text = "id,name\r\n1,ä\r\n"
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(text.encode("utf-16")))
    (tmp_path / "b.csv.xz").write_bytes(lzma.compress(text.encode("utf-16")))
    s3.put(store, tmp_path)
    expected = [(name, {"id": "1", "name": "ä"}) for name in ("a.csv.gz", "b.csv.xz")]
    assert rows(f"s3://{store}", encoding="utf-16") == expected


NAMES = [
    "top.csv",
    "d/a.csv",
    "d/b[1].csv",
    "d/.hidden.csv",
    "d/_SUCCESS",
    "d/_x/c.csv",
    "d/year=2024/q=a%2Fb/e.csv",
    "d/year=2023/q=__HIVE_DEFAULT_PARTITION__/f.csv",
    "dd/g.csv",
    "d-x/h.csv",
]


@pytest.mark.parametrize(
    "name",
    [
        "",
        "d",
        "d/",
        "top.csv",
        "d/b[1].csv",
        "d/_x",
        "d/*.csv",
        "d/[ab].csv",
        "d*",
        "d/**/*.csv",
        "*/year=*",
        "d/.hid*",
        "d/year=202?/*/*",
        "*/",
        "*/*.csv",
        "**/*.csv",
    ],
)
def test_names_stand_for_the_same_files_as_here(
    name: str, store: str, tmp_path: pathlib.Path
) -> None:
    for each in NAMES:
        path = tmp_path / each
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"n\n{each}\n")
    s3.put(store, tmp_path)
    assert rows(f"s3://{store}/{name}") == rows(f"{tmp_path}/{name}")


@pytest.mark.parametrize("name", ["none.csv", "none/", "*.parquet", "e/*"])
def test_a_name_that_stands_for_nothing(name: str, store: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.csv").write_text("n\n1\n")
    s3.put(store, tmp_path)
    with pytest.raises(SourceError, match="there is no such file, directory or pattern"):
        rows(f"s3://{store}/{name}")


@pytest.mark.parametrize(
    ("mark", "what"),
    [
        ("_delta_log/0.json", "a Delta table"),
        (".hoodie/hoodie.properties", "a Hudi table"),
        ("metadata/v1.metadata.json", "an Iceberg table"),
        ("_spark_metadata/0", "the output of a Spark stream"),
    ],
)
@pytest.mark.parametrize("name", ["", "t", "t/x/a.csv", "t/x", "*/x/*.csv", "t/*/a.csv"])
def test_files_of_a_table_are_refused(
    mark: str, what: str, name: str, store: str, tmp_path: pathlib.Path
) -> None:
    for each in ("t/x/a.csv", f"t/{mark}"):
        (tmp_path / each).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / each).write_text("n\n1\n")
    s3.put(store, tmp_path)
    with pytest.raises(SourceError) as caught:
        rows(f"s3://{store}/{name}")
    assert f"s3://{store}/t: is {what}" in str(caught.value)


class ObjectsOnly:
    """A file system that lists no directories, as that of Google, and only what is below *top*."""

    def __init__(self, system: Any, top: str) -> None:
        self._system, self._top = system, top
        self.open_input_file = system.open_input_file

    def get_file_info(self, wanted: Any) -> Any:
        path = wanted.base_dir if isinstance(wanted, fs.FileSelector) else wanted
        if not "".join(path).startswith(self._top):
            raise OSError("access denied")
        found = self._system.get_file_info(wanted)
        if isinstance(wanted, fs.FileSelector):
            found = [each for each in found if each.is_file]
        return found


@pytest.mark.parametrize("mark", ["_delta_log/0.json", "metadata/v1.metadata.json", "y/b.csv"])
@pytest.mark.parametrize("name", ["team", "team/t", "team/t/*/*.csv"])
def test_a_store_that_lists_neither_directories_nor_the_bucket(
    mark: str, name: str, store: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for each in ("team/t/x/a.csv", f"team/t/{mark}"):
        (tmp_path / each).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / each).write_text("n\n1\n")
    s3.put(store, tmp_path)
    system = ObjectsOnly(fs.FileSystem.from_uri(f"s3://{store}")[0], f"{store}/team")
    monkeypatch.setattr("pykaproducer._load.stores._system", lambda bucket: (system, store))
    if mark == "y/b.csv":
        assert len(rows(f"s3://{store}/{name}")) == 2
    else:
        with pytest.raises(SourceError, match=f"s3://{store}/team/t: is an? "):
            rows(f"s3://{store}/{name}")


def test_a_table_beside_the_files_is_none_of_theirs(store: str, tmp_path: pathlib.Path) -> None:
    for each in ("t/x/a.csv", "u/_delta_log/0.json", "t/a.csv"):
        (tmp_path / each).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / each).write_text("n\n1\n")
    s3.put(store, tmp_path)
    assert len(rows(f"s3://{store}/*/*.csv")) == 1


def test_a_bucket_that_does_not_exist(store: str) -> None:
    with pytest.raises(SourceError) as caught:
        rows(f"s3://{store}/x.csv")
    assert str(caught.value).startswith(f"s3://{store}/x.csv: ")


@pytest.mark.parametrize(
    "name",
    [
        "s3://key:SECRET@bucket/x.csv",
        "s3a://key:SECRET@bucket/x.csv",
        "S3://key:SECRET@bucket/x.csv",
        "s3://bucket?secret_key=SECRET",
        "s3://bucket/x.csv?access_key=a&secret_key=SECRET",
        "abfs://c@account.dfs.core.windows.net/x.csv?sv=1&sig=SECRET",
    ],
)
def test_a_secret_in_the_name_is_refused_and_not_shown(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["load", name, "-t", "topic", "-b", "127.0.0.1:9"]) == 2
    stderr = capsys.readouterr().err
    assert "in the environment" in stderr
    assert "SECRET" not in stderr


@pytest.mark.parametrize("name", ["s3:///x.csv", "s3://*/x.csv", "s3://b?/x.csv", "s3://b//x.csv"])
def test_names_that_no_object_has(name: str, store: str) -> None:
    with pytest.raises(SourceError, match=r"is not the name of a bucket|has an empty part"):
        rows(name)


@pytest.mark.parametrize("name", ["", "d*"])
def test_an_object_and_a_directory_of_the_same_name(
    name: str, store: str, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "a.csv").write_text("n\n1\n")
    s3.put(store, tmp_path)
    for key in ("d.csv/a.csv", "d.csv"):
        with s3.system().open_output_stream(f"{store}/{key}") as file:
            file.write(b"n\n2\n")
    with pytest.raises(SourceError, match=r"d\.csv: an object, and a directory"):
        rows(f"s3://{store}/{name}")


def one_file(store: str, tmp_path: pathlib.Path, suffix: str) -> LoadSource:
    """Return a source of one object."""
    write(tmp_path / f"a.{suffix}")
    s3.put(store, tmp_path)
    return open_source([f"s3://{store}/a.{suffix}"], Options())


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_an_object_that_is_replaced_while_it_is_read(
    suffix: str, store: str, tmp_path: pathlib.Path
) -> None:
    source = one_file(store, tmp_path, suffix)
    batches = source.batches()
    next(batches)
    wait_for_another_second()
    fs.copy_files(
        str(tmp_path / f"a.{suffix}"), f"{store}/a.{suffix}", destination_filesystem=s3.system()
    )
    with pytest.raises(SourceError, match="changed while it was read; load it again"):
        list(batches)


def wait_for_another_second() -> None:
    """Wait until objects get another time than before: S3 has whole seconds."""
    began = int(time.time())
    ends = threading.Event()
    while int(time.time()) == began:
        ends.wait(0.05)


@pytest.mark.parametrize("suffix", ["parquet", "orc", "arrow", "avro", "csv", "jsonl"])
@pytest.mark.parametrize("reads", [0, 2])
def test_an_error_of_the_store_is_not_taken_for_damage(
    reads: int, suffix: str, store: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, source = f"s3://{store}/a.{suffix}", one_file(store, tmp_path, suffix)
    cut = Cut(fs.FileSystem.from_uri(f"s3://{store}")[0], reads)
    monkeypatch.setattr("pykaproducer._load.stores._system", lambda bucket: (cut, store))
    with contextlib.suppress(SourceError):
        list(source.batches())
        assert cut.reads <= reads
        return
    with pytest.raises(SourceError) as caught:
        list(source.batches())
    assert str(caught.value) == (
        f"{name}: the network is gone; are credentials, region and endpoint right in the "
        f"environment?"
    )


class Cut:
    """A file system whose files fail after some reads."""

    def __init__(self, system: Any, most: int) -> None:
        self._system, self._most, self.reads = system, most, 0

    def get_file_info(self, path: str) -> Any:
        return self._system.get_file_info(path)

    def open_input_file(self, path: str) -> Any:
        file, outer = self._system.open_input_file(path), self

        class File:
            size, seek, close = file.size, file.seek, file.close

            def readinto(self, buffer: Any) -> int:
                outer.reads += 1
                if outer.reads > outer._most:
                    raise OSError("the network is gone")
                return int(file.readinto(buffer))

        return File()


@pytest.mark.parametrize("suffix", ["parquet", "orc", "arrow", "avro", "csv", "jsonl"])
def test_an_object_that_vanishes_while_it_is_read(
    suffix: str, store: str, tmp_path: pathlib.Path
) -> None:
    source = one_file(store, tmp_path, suffix)
    s3.system().delete_file(f"{store}/a.{suffix}")
    with pytest.raises(SourceError) as caught:
        list(source.batches())
    assert str(caught.value) == f"s3://{store}/a.{suffix}: no such file"
