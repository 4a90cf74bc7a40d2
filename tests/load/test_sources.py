"""SOURCE: every row of every file once, in order, and errors that name the file and the row."""

from __future__ import annotations

import bz2
import gzip
import json
import pathlib
from typing import Any

import pyarrow
import pytest
from pyarrow import csv, orc, parquet

from pykaproducer._load.sources import LoadSource, Options, SourceBatch, SourceError, open_source
from tests._support import programs


@pytest.fixture
def there(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Return a directory for files, which is the current directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(path: str, content: str | bytes) -> None:
    pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
    pathlib.Path(path).write_bytes(content.encode() if isinstance(content, str) else content)


def write_parquet(path: str, columns: dict[str, Any], **options: Any) -> None:
    pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.table(columns), path, **options)


def write_rows(name: str, rows: list[dict[str, Any]]) -> None:
    """Write a file in the format of its suffix."""
    table = pyarrow.Table.from_pylist(rows)
    if name.endswith((".parquet", ".pq")):
        parquet.write_table(table, name)
    elif name.endswith(".orc"):
        orc.write_table(table, name)
    elif name.endswith(".csv"):
        csv.write_csv(table, name)
    else:
        write(name, "".join(json.dumps(row) + "\n" for row in rows))


def rows(*names: str, **options: Any) -> list[dict[str, Any]]:
    source = open_source(names, Options(**options))
    return [row for found in source.batches() for row in found.batch.to_pylist()]


def error(*names: str, **options: Any) -> str:
    with pytest.raises(SourceError) as caught:
        rows(*names, **options)
    return str(caught.value)


def until_error(source: LoadSource) -> tuple[list[SourceBatch], str]:
    """Return the batches read before the error, and its text."""
    found: list[SourceBatch] = []
    with pytest.raises(SourceError) as caught:
        found.extend(source.batches())  # keeps the batches read before the error
    return found, str(caught.value)


# Formats

ROWS = [{"id": 1, "name": "a"}, {"id": 2, "name": None}]


@pytest.mark.parametrize("name", ["x.parquet", "x.pq", "x.orc", "x.jsonl", "x.ndjson", "x.JSON"])
def test_each_format_is_told_by_its_suffix(there: pathlib.Path, name: str) -> None:
    write_rows(name, ROWS)
    assert rows(name) == ROWS


@pytest.mark.parametrize(("suffix", "compress"), [(".gz", gzip.compress), (".bz2", bz2.compress)])
def test_text_may_be_compressed(there: pathlib.Path, suffix: str, compress: Any) -> None:
    write(f"x.csv{suffix}", compress(b"a,b\n1,2\n") + compress(b"3,4\n"))
    write(f"x.jsonl{suffix}", compress(b'{"a":"5","b":"6"}'))
    assert [tuple(row.values()) for row in rows(f"x.*{suffix}")] == [
        ("1", "2"),
        ("3", "4"),
        ("5", "6"),
    ]


def test_zstd(there: pathlib.Path) -> None:
    with pyarrow.CompressedOutputStream("x.csv.zst", "zstd") as file:
        file.write(b"a\n1\n")
    assert rows("x.csv.zst") == [{"a": "1"}]


def test_a_format_that_is_named_goes_before_the_suffix(there: pathlib.Path) -> None:
    write("table.txt", "a;b\n1;2\n")
    assert "unknown file suffix; name the format with --format (parquet" in error("table.txt")
    assert rows("table.txt", format="csv", delimiter=";") == [{"a": "1", "b": "2"}]
    assert "unknown format 'xml'; use one of parquet" in error("table.txt", format="xml")


# CSV


def test_cells_of_csv_are_text_as_it_stands(there: pathlib.Path) -> None:
    write("x.csv", '\ufeffid,name\r\n007,"a, ""b""\nc"\r\n,""\r\n')
    assert rows("x.csv") == [{"id": "007", "name": 'a, "b"\nc'}, {"id": None, "name": ""}]
    write("x.tsv", "a\tb\nNULL\t1.0\n")
    assert rows("x.tsv") == [{"a": "NULL", "b": "1.0"}]


def test_types_of_csv_are_found_if_one_asks(there: pathlib.Path) -> None:
    write("x.csv", "id,at\n007,2024-02-29\n")
    assert open_source(["x.csv"], Options(infer_types=True)).schema.types == [
        pyarrow.int64(),
        pyarrow.date32(),
    ]


def long_csv(last: str) -> bytes:
    return b"a,b\n" + b"1,some text to make it longer\n" * 400_000 + last.encode()


def test_a_bad_row_of_csv_is_told_after_the_rows_before_it(there: pathlib.Path) -> None:
    write("x.csv", long_csv("only one cell\n"))
    found, text = until_error(open_source(["x.csv"]))
    assert found
    assert found[0].first_row == 0
    assert "x.csv: " in text
    assert "400002" in text  # the number of the line
    assert "Expected 2 columns, got 1" in text


def test_a_late_row_of_another_type(there: pathlib.Path) -> None:
    write("x.csv", long_csv("one,1\n"))
    assert len(rows("x.csv")) == 400_001
    found, text = until_error(open_source(["x.csv"], Options(infer_types=True)))
    assert found
    assert "invalid value 'one'" in text
    assert "or omit --infer-types" in text


def test_csv_that_is_not_utf8(there: pathlib.Path) -> None:
    write("x.csv", b"a\n\xff\n")
    assert "x.csv: In CSV column #0: Row #2: " in error("x.csv")


# JSON lines


def test_a_member_that_comes_late_is_a_column_from_the_beginning(there: pathlib.Path) -> None:
    line = '{"a":1,"filler":"' + "x" * 100 + '"}\n'
    write("x.jsonl", line * 100_000 + '{"a":2.5,"s":{"late":["y"]}}\n')
    source = open_source(["x.jsonl"])
    assert source.schema.names == ["a", "filler", "s"]
    found = list(source.batches(["s", "a"]))
    assert len(found) > 1
    assert found[0].batch.slice(0, 1).to_pylist() == [{"s": None, "a": 1.0}]
    assert found[-1].batch.slice(found[-1].batch.num_rows - 1).to_pylist() == [
        {"s": {"late": ["y"]}, "a": 2.5}
    ]
    assert found[-1].first_row + found[-1].batch.num_rows == 100_001


def test_text_in_json_stays_as_it_is_also_if_it_looks_like_a_time(there: pathlib.Path) -> None:
    cells = {"t": "2024-02-29T01:00:00Z", "l": ["2024-02-29"], "s": {"d": "2024-02-29"}}
    write("x.jsonl", "\ufeff" + json.dumps(cells) + "\n\n \n")
    assert rows("x.jsonl") == [cells]


def test_a_bad_line_of_json_is_told_before_anything_is_read(there: pathlib.Path) -> None:
    write("x.jsonl", '{"a":1}\n' * 2_000_000 + '{"a":\n')
    with pytest.raises(SourceError, match=r"x\.jsonl: JSON parse error: .* in row 2000000; each"):
        open_source(["x.jsonl"])


def test_json_that_is_no_lines(there: pathlib.Path) -> None:
    write("x.json", '[\n  {"a": 1},\n  {"a": 2}\n]\n')
    assert "each line must be a JSON object (jq -c '.[]' converts an array)" in error("x.json")
    write("x.jsonl", '{"a":1}\n{"a":"x"}\n')
    assert "Column(/a) changed from number to string in row 1" in error("x.jsonl")


# Many files


def test_directories_give_columns(there: pathlib.Path) -> None:
    for day, hour in (("2024-02-29", 9), ("a%2Fb", 10), ("__HIVE_DEFAULT_PARTITION__", 11)):
        write_parquet(f"top/day={day}/hour={hour}/part.parquet", {"a": [hour]})
    write("top/_SUCCESS", b"")
    write("top/_delta/x.parquet", b"")
    write("top/day=a%2Fb/.part.crc", b"")
    assert rows("top") == [
        {"a": 9, "day": "2024-02-29", "hour": 9},
        {"a": 11, "day": None, "hour": 11},
        {"a": 10, "day": "a/b", "hour": 10},
    ]
    only = open_source(["top"]).batches(["hour"])
    assert [found.batch.to_pylist() for found in only] == [[{"hour": h}] for h in (9, 11, 10)]


def test_directories_of_text_give_columns_too(there: pathlib.Path) -> None:
    write("top/n=1/x.csv", "a\nx\n")
    write("top/n=two/x.jsonl", '{"a":"y"}')
    assert rows("top") == [{"a": "x", "n": "1"}, {"a": "y", "n": "two"}]


def test_columns_are_put_together_by_name(there: pathlib.Path) -> None:
    write_parquet("a.parquet", {"x": pyarrow.array([1], pyarrow.int32()), "s": [{"p": 1}]})
    write_parquet("b.parquet", {"y": ["new"], "x": [2**40], "s": [{"q": 2}]})
    write("c.csv", "y\ntext\n")
    source = open_source(["*.parquet", "c.csv"])
    assert source.files == ["a.parquet", "b.parquet", "c.csv"]
    found = [row for each in source.batches() for row in each.batch.to_pylist()]
    assert found == [
        {"x": 1, "s": {"p": 1, "q": None}, "y": None},
        {"x": 2**40, "s": {"p": None, "q": 2}, "y": "new"},
        {"x": None, "s": None, "y": "text"},
    ]


def test_columns_that_do_not_go_together(there: pathlib.Path) -> None:
    write_parquet("a.parquet", {"x": [1]})
    write_parquet("b.parquet", {"x": ["text"]})
    text = error("a.parquet", "b.parquet")
    assert text.startswith("b.parquet: its columns are incompatible with the files before it: ")
    assert "Field x has incompatible types: int64 vs string" in text
    write("top/a=1/x.csv", "a\n1\n")
    assert "column a is in the file and in its directory" in error("top")
    write("twice.csv", "a,a\n1,2\n")
    assert "two columns are named 'a'" in error("twice.csv")


def test_an_empty_file_among_others_has_no_rows(there: pathlib.Path) -> None:
    for name in ("1.csv", "2.csv"):
        write(name, b"")
    assert error("*.csv") == "*.csv: empty: there are no columns"
    write("3.csv", "a\n1\n")
    write("4.csv", "a\n")
    assert rows("*.csv") == [{"a": "1"}]
    assert rows("4.csv") == []
    write("x.jsonl", b"\n")
    assert "empty" in error("x.jsonl")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nowhere.csv", "nowhere.csv: no such file or directory"),
        ("no*.csv", "no*.csv: no file matches"),
        ("empty", "empty: the directory contains no files"),
        ("s3://bucket/x.parquet", "URIs can only be read with --spark"),
    ],
)
def test_nothing_is_there(there: pathlib.Path, name: str, said: str) -> None:
    pathlib.Path("empty").mkdir()
    assert said in error(name)


# Kinds of sources


def test_batches_say_their_file_their_row_and_how_far_it_is(there: pathlib.Path) -> None:
    numbers = pyarrow.array(range(150_000))
    write_parquet("a.parquet", {"n": numbers}, row_group_size=40_000)
    write("b.csv", "n,m\n" + "".join(f"{number},{number}\n" for number in range(1_000_000)))
    source = open_source(["a.parquet"])
    together = list(open_source(["b.csv", "b.csv"]).batches(["m"]))
    assert source.size == pathlib.Path("a.parquet").stat().st_size
    for found in (list(source.batches()), together):
        row: dict[str, int] = {}
        for place, each in enumerate(found):
            if place and each.first_row == 0:
                row.clear()
            assert each.first_row == row.get(each.file, 0)
            assert each.batch.column(0)[0].as_py() in (each.first_row, str(each.first_row))
            row[each.file] = each.first_row + each.batch.num_rows
        positions = [each.position for each in found]
        assert positions == sorted(positions)
    assert together[-1].position == 2 * pathlib.Path("b.csv").stat().st_size
    assert sum(each.batch.num_rows for each in together) == 2_000_000


@pytest.mark.parametrize("name", ["x.parquet", "x.orc", "x.csv", "x.jsonl"])
def test_without_any_column_there_are_still_rows(there: pathlib.Path, name: str) -> None:
    write_rows(name, [{"a": number} for number in range(3)])
    found = list(open_source([name]).batches([]))
    assert [(each.batch.num_rows, each.batch.num_columns) for each in found] == [(3, 0)]


def test_columns_come_as_they_were_asked_for(there: pathlib.Path) -> None:
    write_parquet("x.parquet", {"a.b": [1], "a": [{"b": 2}], "c": [3]})
    found = next(open_source(["x.parquet"]).batches(["c", "a.b"]))
    assert found.batch.to_pylist() == [{"c": 3, "a.b": 1}]


def test_wide_rows_come_in_small_batches(there: pathlib.Path) -> None:
    cells = [(b"%07d" % number) * 3000 for number in range(3000)]
    write_parquet("x.parquet", {"a": cells}, compression="none", use_dictionary=False)
    found = list(open_source(["x.parquet"]).batches())
    assert len(found) > 3
    assert [cell for each in found for cell in each.batch.column(0).to_pylist()] == cells


# Broken files


def test_a_file_that_is_not_what_it_says(there: pathlib.Path) -> None:
    for name in ("x.parquet", "x.orc"):
        write(name, b"no such thing" * 100)
        assert error(name).startswith(f"{name}: ")
        assert "(for another format, use --format)" in error(name)


def test_what_was_read_before_a_broken_place_is_not_lost(there: pathlib.Path) -> None:
    for name in ("a.parquet", "b.parquet"):
        write_parquet(name, {"n": range(1000)}, row_group_size=100)
    start = parquet.ParquetFile("b.parquet").metadata.row_group(6).column(0).data_page_offset
    data = bytearray(pathlib.Path("b.parquet").read_bytes())
    data[start : start + 50] = b"\xff" * 50
    write("b.parquet", data)
    found, text = until_error(open_source(["*.parquet"]))
    read = [cell for each in found for cell in each.batch.column(0).to_pylist()]
    assert read[:1000] == list(range(1000))
    assert read[1000:] == list(range(len(read) - 1000))
    assert text.startswith("b.parquet: ")


def test_a_compressed_file_that_was_cut(there: pathlib.Path) -> None:
    write("x.csv.gz", gzip.compress(b"a\n" + b"1\n" * 100_000)[:-20])
    assert error("x.csv.gz").startswith("x.csv.gz: Truncated compressed stream; ")


def test_a_file_that_is_gone_when_it_is_read(there: pathlib.Path) -> None:
    write("a.csv", "a\n1\n")
    write("b.csv", "a\n2\n")
    source = open_source(["a.csv", "b.csv"])
    pathlib.Path("b.csv").unlink()
    found, text = until_error(source)
    assert [each.batch.to_pylist() for each in found] == [[{"a": "1"}]]
    assert text == "b.csv: No such file or directory"


def test_without_pyarrow_it_says_what_to_install() -> None:
    program = """
import sys
sys.modules["pyarrow"] = None
import pykaproducer
from pykaproducer._load.select import Selection
from pykaproducer._load.sources import SourceError, open_source
Selection.parse("value=json(*)")
try:
    open_source(["x.csv"])
except SourceError as error:
    print(error)
"""
    assert 'pip install "pykaproducer[load]"' in programs.run(program)
