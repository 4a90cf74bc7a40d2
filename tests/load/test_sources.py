"""SOURCE: every row of every file once, in order, and errors that name the file and the row."""

from __future__ import annotations

import bz2
import concurrent.futures
import gzip
import json
import lzma
import os
import pathlib
import pickle
import tempfile
from decimal import Decimal
from typing import Any

import pyarrow
import pytest
from pyarrow import csv, orc, parquet

from pykaproducer._load import streams
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


@pytest.mark.parametrize(
    ("suffix", "compress"),
    [(".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)],
)
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
    assert "or leave the file out with a pattern" in error("table.txt")
    assert rows("table.txt", format="csv", delimiter=";") == [{"a": "1", "b": "2"}]
    assert "unknown format 'xml'; use one of parquet" in error("table.txt", format="xml")


# CSV


def test_cells_of_csv_are_text_as_it_stands(there: pathlib.Path) -> None:
    write("x.csv", '\ufeffid,name\r\n007,"a, ""b""\nc"\r\n,""\r\n')
    assert rows("x.csv") == [{"id": "007", "name": 'a, "b"\nc'}, {"id": None, "name": ""}]
    write("x.tsv", "a\tb\nNULL\t1.0\n")
    assert rows("x.tsv") == [{"a": "NULL", "b": "1.0"}]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("x.csv", "a;b\n1;2\n", "'a;b'; set --delimiter ';', or --delimiter ','"),
        ("x.csv", "a\tb\n", r"'a\tb'; set --delimiter '\t', or --delimiter ','"),
        ("x.tsv", "a,b\n1,2\n", r"'a,b'; set --delimiter ',', or --delimiter '\t'"),
    ],
)
def test_a_table_whose_delimiter_is_another_is_not_read_as_a_single_column(
    there: pathlib.Path, name: str, text: str, said: str
) -> None:
    write(name, text)
    assert f"{name}: line 1: the only column is {said} if this is its name" in error(name)
    default = "\t" if name == "x.tsv" else ","
    assert open_source([name], Options(delimiter=default)).schema.names == [text.splitlines()[0]]


def test_the_name_of_a_single_column_may_have_the_delimiter(there: pathlib.Path) -> None:
    write("x.csv", '"a,b"\n1\n')
    assert rows("x.csv") == [{"a,b": "1"}]


def test_types_of_csv_are_found_if_one_asks(there: pathlib.Path) -> None:
    write("x.csv", "id,n,ok,at,none\n007,1.50,true,2024-02-29,\n1,-2e3,,x,\n")
    assert rows("x.csv", infer_types=True) == [
        {"id": "007", "n": Decimal("1.50"), "ok": True, "at": "2024-02-29", "none": None},
        {"id": "1", "n": -2000, "ok": None, "at": "x", "none": None},
    ]


def long_csv(last: str) -> bytes:
    return b"a,b\n" + b"1,some text to make it longer\n" * 400_000 + last.encode()


def test_a_bad_row_of_csv_is_told_after_the_rows_before_it(there: pathlib.Path) -> None:
    write("x.csv", long_csv("only one cell\n"))
    found, text = until_error(open_source(["x.csv"]))
    assert found
    assert found[0].first_row == 0
    assert "x.csv: " in text
    assert "x.csv: line 400002, byte 1: the number of cells is 1, but 2 in the header; " in text


def test_a_late_row_of_another_type(there: pathlib.Path) -> None:
    write("x.csv", long_csv("one,1\n"))
    assert len(rows("x.csv")) == 400_001
    found, text = until_error(open_source(["x.csv"], Options(infer_types=True)))
    assert found
    assert "x.csv: row 400000, column a: 'one' is not a number, as in the first rows; " in text
    assert "or omit --infer-types" in text


def test_csv_that_is_not_utf8(there: pathlib.Path) -> None:
    write("x.csv", b"a\n\xff\n")
    assert "x.csv: line 2, byte 1: the text is not UTF-8 (--encoding" in error("x.csv")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("a,\n1,2\n", "x.csv: line 1: column 2 has no name"),
        ("\na\n1\n", "x.csv: line 1: column 1 has no name"),
        ('a,b\n1,"2\n3,4\n', "x.csv: line 2, byte 3: a quotation mark opens here and is never"),
        (",".join(f"c{n}" for n in range(100_001)), "x.csv: more than 100,000 columns"),
        ("a\n1\n".encode("utf-16"), "the text is utf-16; read it with --encoding utf-16"),
    ],
)
def test_csv_that_is_refused(there: pathlib.Path, content: str | bytes, said: str) -> None:
    write("x.csv", content)
    assert said in error("x.csv")


def test_empty_lines_of_one_column_are_rows(there: pathlib.Path) -> None:
    csv.write_csv(pyarrow.table({"name": ["ann", None, "", None]}), "x.csv")
    assert rows("x.csv") == [{"name": "ann"}, {"name": None}, {"name": ""}, {"name": None}]


def test_a_cell_may_be_longer_than_a_block(there: pathlib.Path) -> None:
    cell = "line\r\n" * 3_000_000
    write("x.csv", f'a,b\n1,"{cell}"\n2,3\n')
    assert rows("x.csv") == [{"a": "1", "b": cell}, {"a": "2", "b": "3"}]


# All text


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-32", "utf-8-sig", "latin-1"])
def test_other_encodings(there: pathlib.Path, encoding: str) -> None:
    write("x.csv", 'id,name\n1,"J\xf6rg\n"\n'.encode(encoding))
    assert rows("x.csv", encoding=encoding) == [{"id": "1", "name": "J\xf6rg\n"}]
    write("x.jsonl", '{"name":"J\xf6rg"}\n'.encode(encoding))
    assert rows("x.jsonl", encoding=encoding, whole_lines=True) == [{"value": '{"name":"J\xf6rg"}'}]
    assert "unknown encoding 'rot13'" in error("x.csv", encoding="rot13")


def test_a_byte_order_mark_is_no_text(there: pathlib.Path) -> None:
    for name, text in (("x.csv", "a\n1\n"), ("x.jsonl", '{"a":"1"}\n')):
        write(name, f"\ufeff{text}".encode("utf-16-le"))
        assert rows(name, encoding="utf-16-le") == [{"a": "1"}]


def test_text_of_another_encoding_than_the_given_one(there: pathlib.Path) -> None:
    write("x.csv", "a\n1\n".encode("utf-16")[:-1])
    assert "x.csv: not utf-16 at byte 8: truncated data; " in error("x.csv", encoding="utf-16")
    write("x.csv", b"a\n\xff\n")
    assert "x.csv: not ascii at byte 2: " in error("x.csv", encoding="ascii")


@pytest.mark.parametrize("options", [{}, {"whole_lines": True}])
def test_a_pipe_is_read_once(there: pathlib.Path, options: dict[str, Any]) -> None:
    os.mkfifo("pipe")
    text = b"".join(b'{"a":%d}\n' % number for number in range(300_000))
    with concurrent.futures.ThreadPoolExecutor() as pool:
        writing = pool.submit(write, "pipe", text)
        source = open_source(["pipe"], Options(format="jsonl", **options))
        assert sum(found.batch.num_rows for found in source.batches()) == 300_000
        writing.result()
    assert until_error(source)[1] == "pipe: a pipe can be read only once; save it to a file"
    with pytest.raises(SourceError, match="without --spark"):
        pickle.dumps(source.parts(1))
    assert error("-") == "-: name the format of standard input with --format csv or jsonl"


@pytest.mark.parametrize("kind", ["parquet", "orc", "arrow", "avro"])
def test_a_pipe_of_a_format_that_is_no_text(there: pathlib.Path, kind: str) -> None:
    os.mkfifo("pipe")
    for name in ("pipe", "-"):
        assert f"{name}: {kind} cannot be read from a pipe; save it" in error(name, format=kind)


@pytest.mark.parametrize("line", ["1234567\n", '{"a":1}\n'], ids=["csv", "jsonl"])
def test_a_line_that_is_cut_while_the_file_is_read_is_not_a_row(
    there: pathlib.Path, line: str
) -> None:
    name = "x.csv" if line[0] == "1" else "x.jsonl"
    write(name, line * 4_000_000)
    batches = open_source([name], Options(whole_lines=True)).batches()
    found = [next(batches)]
    os.truncate(name, (8 << 21) + 6)
    with pytest.raises(SourceError) as caught:
        found.extend(batches)  # keeps the batches read before the error
    assert str(caught.value) == f"{name}: became shorter while it was read; load it again"
    assert {cell for each in found for cell in each.batch.column(0).unique().to_pylist()} == {
        line.strip()
    }


def test_a_file_that_changes_while_it_is_read(there: pathlib.Path) -> None:
    write("x.jsonl", '{"a":1}\n' * 4_000_000)
    source = open_source(["x.jsonl"], Options(whole_lines=True))
    batches = source.batches()
    next(batches)
    os.truncate("x.jsonl", 8 << 21)
    with pytest.raises(SourceError, match=r"x\.jsonl: became shorter while it was read"):
        list(batches)
    write("x.jsonl", '{"a":1}\n')
    source = open_source(["x.jsonl"])
    write("x.jsonl", '{"b":1}\n')
    assert "the member 'b' was not there before: the file has changed" in until_error(source)[1]
    write("x.csv", "a,b\n1,2\n")
    source = open_source(["x.csv"])
    write("x.csv", "b,a\n1,2\n")
    assert until_error(source)[1] == "x.csv: changed while it was read; load it again"


@pytest.mark.parametrize("pickled", [False, True], ids=["here", "in a task"])
@pytest.mark.parametrize("how", ["written", "replaced", "appended"])
def test_a_file_that_is_written_to_while_it_is_read(
    there: pathlib.Path, how: str, pickled: bool
) -> None:
    """With rows that cannot be distinguished."""
    write("x.csv", "a\n" + "old\n" * 8_000_000)
    source = open_source(["x.csv"])
    if pickled:
        source = pickle.loads(pickle.dumps(source))
    batches = source.batches()
    next(batches)
    if how == "appended":
        with open("x.csv", "a") as file:
            file.write("new\n")
    else:
        write("y.csv" if how == "replaced" else "x.csv", "a\n" + "new\n" * 8_000_000)
        if how == "replaced":
            os.replace("y.csv", "x.csv")
    with pytest.raises(SourceError, match=r"^x\.csv: changed while it was read; load it again$"):
        list(batches)


def test_a_file_that_is_removed_while_it_is_read_keeps_its_rows(there: pathlib.Path) -> None:
    write("x.csv", "a\n" + "row\n" * 8_000_000)
    batches = open_source(["x.csv"]).batches()
    found = next(batches).batch.num_rows
    os.unlink("x.csv")
    assert found + sum(each.batch.num_rows for each in batches) == 8_000_000


@pytest.mark.parametrize("whole_lines", [False, True])
def test_parts_of_json_lines_are_all_rows(there: pathlib.Path, whole_lines: bool) -> None:
    ends = ["\n", "\r\n", "\n\n"]
    lines = [f'{{"a":{n},"b":"{"é" * (n % 50)}"}}{ends[n % 3]}' for n in range(1000)]
    write("x.jsonl", "\ufeff" + "".join(lines) + '{"a":"last"}')
    source = open_source(["x.jsonl"], Options(whole_lines=whole_lines))
    expected = [row for found in source.batches() for row in found.batch.to_pylist()]
    assert len(expected) == 1001
    for size in (64, 1000, 65536):
        parts = pickle.loads(pickle.dumps(source.parts(size)))
        assert len(parts) == -(-pathlib.Path("x.jsonl").stat().st_size // size)
        batches = [found.batch for part in parts for found in part.batches(source.schema)]
        assert [row for batch in batches for row in batch.to_pylist()] == expected
    with pathlib.Path("x.jsonl").open("a") as file:
        file.write("\n{]")
    with pytest.raises(SourceError, match=r"x\.jsonl: line 1335, byte 2: "):
        list(parts[-1].batches(source.schema))


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


@pytest.mark.parametrize("count", [1, 100_000])
def test_the_last_line_of_json_may_end_with_a_carriage_return(
    there: pathlib.Path, count: int
) -> None:
    lines = [json.dumps({"n": row, "text": "x" * 80}) for row in range(count)]
    write("x.jsonl", "\n".join(lines) + "\r")  # 100,000 are more than a block
    found = rows("x.jsonl", whole_lines=True)
    assert len(found) == count
    assert found[-1] == {"value": lines[-1]}


def test_a_bad_line_of_json_is_told_before_anything_is_read(there: pathlib.Path) -> None:
    write("x.jsonl", '{"a":1}\n' * 2_000_000 + '{"a":\n')
    with pytest.raises(SourceError, match=r"x\.jsonl: line 2000001, byte 6: .*; each"):
        open_source(["x.jsonl"])


def test_json_that_is_no_lines(there: pathlib.Path) -> None:
    write("x.json", '[\n  {"a": 1},\n  {"a": 2}\n]\n')
    assert "each line must be a JSON object (jq -c '.[]' converts an array)" in error("x.json")
    write("x.jsonl", '{"a":1}\n{"a":"x"}\n')
    assert rows("x.jsonl") == [{"a": 1}, {"a": "x"}]


def test_lines_are_sent_as_they_stand(there: pathlib.Path) -> None:
    lines = ['{"a":1.0,"a b":"\\u00e9"}', ' { "b" : [ 1E400 ] } ', "{}"]
    write("x.jsonl", "\r\n".join(lines))
    assert rows("x.jsonl", whole_lines=True) == [{"value": line} for line in lines]
    write("top/day=1/x.jsonl", '{"a":1}\n{}\n')
    assert rows("top", whole_lines=True) == [
        {"value": '{"a":1,"day":"1"}'},
        {"value": '{"day":"1"}'},
    ]
    write("top/day=1/x.jsonl", '{"day":1}\n')
    assert "x.jsonl: line 1, byte 2: the line has a member 'day'; its directory" in error(
        "top", whole_lines=True
    )


def test_objects_with_a_value_are_messages(there: pathlib.Path) -> None:
    write("x.jsonl", '{"key":"a","value":"x"}\n{"value":null}\n')
    assert rows("x.jsonl", whole_lines=True) == [
        {"key": "a", "value": "x"},
        {"key": None, "value": None},
    ]
    write("x.jsonl", '{"key":"a","value":"x"}\n{"key":"b"}\n')
    assert "line 2, byte 1: the line has no member 'value'; without --select, either" in error(
        "x.jsonl", whole_lines=True
    )
    write("x.jsonl", '{"key":"a"}\n' * 1_000_000 + '{"value":1}\n')
    found, text = until_error(open_source(["x.jsonl"], Options(whole_lines=True)))
    assert found
    assert "line 1000001, byte 2: the line has a member 'value'; without --select, either" in text


def test_members_and_columns_of_the_same_name(there: pathlib.Path) -> None:
    write("x.jsonl", '{"a":{"b":1.50}}\n{"a":12345678901234567890}\n')
    write_parquet("y.parquet", {"a": [7]})
    write("z.csv", 'a\n"say ""x"""\n')
    assert rows("x.jsonl", "y.parquet", "z.csv") == [
        {"a": {"b": Decimal("1.50")}},
        {"a": 12345678901234567890},
        {"a": 7},
        {"a": 'say "x"'},
    ]


# Many files


def test_directories_give_columns(there: pathlib.Path) -> None:
    for day, hour in (("2024-02-29", 9), ("a%2Fb", 10), ("__HIVE_DEFAULT_PARTITION__", 11)):
        write_parquet(f"top/day={day}/hour={hour}/part.parquet", {"a": [hour]})
    write("top/_SUCCESS", b"")
    write("top/_delta/x.parquet", b"")
    write("top/day=a%2Fb/.part.crc", b"")
    assert rows("top") == [
        {"a": 9, "day": "2024-02-29", "hour": "9"},
        {"a": 11, "day": None, "hour": "11"},
        {"a": 10, "day": "a/b", "hour": "10"},
    ]
    only = open_source(["top"]).batches(["hour"])
    assert [found.batch.to_pylist() for found in only] == [[{"hour": h}] for h in ("9", "11", "10")]


@pytest.mark.parametrize(
    ("mark", "told"),
    [
        ("_delta_log/0.json", "is a Delta table"),
        (".hoodie/hoodie.properties", "is a Hudi table"),
        ("metadata/v1.metadata.json", "is an Iceberg table"),
        ("_spark_metadata/0", "is the output of a Spark stream"),
    ],
)
@pytest.mark.parametrize("source", ["top", "top/table", "top/table/day=1", "top/table/day=1/*"])
def test_the_files_of_a_table_are_refused(
    source: str, mark: str, told: str, there: pathlib.Path
) -> None:
    """Some of them may be deleted, or not committed."""
    write_parquet("top/table/day=1/part.parquet", {"a": [1]})
    write(f"top/table/{mark}", b"")
    with pytest.raises(SourceError, match=f"table: {told}.*--spark MASTER --format sql"):
        open_source([source])


def test_what_links_lead_to_is_read_once(there: pathlib.Path) -> None:
    write_parquet("top/day=1/part.parquet", {"a": [1]})
    write_parquet("else/day=2/part.parquet", {"a": [2]})
    for link, target in (("a", "day=1"), ("self", "."), ("day=3", "../else/day=2")):
        (there / "top" / link).symlink_to(target)
    (there / "top/day=1/b.parquet").symlink_to("part.parquet")
    assert rows("top") == [{"a": 1, "day": "1"}, {"a": 2, "day": "3"}]


def test_a_file_that_is_named_twice(there: pathlib.Path) -> None:
    write("top/a.csv", "a\n1\n")
    with pytest.raises(SourceError, match=r"top/a.csv: this file is in the source twice"):
        open_source(["top", "top/*.csv"])


@pytest.mark.parametrize(
    ("directory", "said"),
    [
        (b"day=1/day=2", "day=1/day=2: a column is in two of the directories"),
        (b"day=%ff", "'day=%ff': the directory's column is not UTF-8"),
        (b"day=\xff", r"'day=\\udcff': the directory's column is not UTF-8"),
    ],
)
def test_directories_whose_columns_are_refused(
    directory: bytes, said: str, there: pathlib.Path
) -> None:
    os.makedirs(b"top/" + directory)
    pathlib.Path(os.fsdecode(b"top/" + directory), "x.csv").write_text("a\n1\n")
    with pytest.raises(SourceError, match=said):
        open_source(["top"])


def test_a_pipe_in_a_directory_is_an_error(there: pathlib.Path) -> None:
    write_parquet("top/a.parquet", {"a": [1]})
    os.mkfifo("top/b.parquet")
    with pytest.raises(SourceError, match=r"top/b.parquet: is not a file"):
        open_source(["top"])


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
    assert "column x: int64 and string" in text
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
        ("s3a://bucket/x.parquet", "can only be read with --spark MASTER"),
    ],
)
def test_nothing_is_there(there: pathlib.Path, name: str, said: str) -> None:
    pathlib.Path("empty").mkdir()
    assert said in error(name)


# Kinds of sources


def test_batches_say_their_file_their_row_and_how_far_it_is(there: pathlib.Path) -> None:
    numbers = pyarrow.array(range(150_000))
    write_parquet("a.parquet", {"n": numbers}, row_group_size=40_000)
    for name in ("b.csv", "c.csv"):
        write(name, "n,m\n" + "".join(f"{number},{number}\n" for number in range(1_000_000)))
    source = open_source(["a.parquet"])
    together = list(open_source(["b.csv", "c.csv"]).batches(["m"]))
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


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz", ".zst", ".lz4"])
def test_a_compressed_file_that_was_cut(there: pathlib.Path, suffix: str) -> None:
    name = f"x.csv{suffix}"
    if suffix == ".xz":
        write(name, lzma.compress(b"a\n" + b"1\n" * 100_000))
    else:
        kind = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}[suffix]
        with pyarrow.CompressedOutputStream(name, kind) as file:
            file.write(b"a\n" + b"1\n" * 100_000)
    data = pathlib.Path(name).read_bytes()
    for cut in (data[:-1], data[:9], data + data[:9]):
        write(name, cut)
        assert error(name).startswith(f"{name}: Truncated compressed stream; is it a complete file")
    write(name, data + b"something else")
    assert "is it a complete file of" in error(name)


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst", ".lz4"])
@pytest.mark.parametrize("name", ["x.csv", "x.jsonl"])
def test_a_compressed_file_without_its_suffix(there: pathlib.Path, name: str, suffix: str) -> None:
    if suffix == ".xz":
        write(name, lzma.compress(b'{"a":1}\n'))
    else:
        kind = {".gz": "gzip", ".zst": "zstd", ".lz4": "lz4"}[suffix]
        with pyarrow.CompressedOutputStream(name, kind) as file:
            file.write(b'{"a":1}\n')
    assert f"{name}: the file is compressed; give its name the suffix {suffix}" in error(name)


def test_a_pyarrow_that_changes_values_is_refused(
    there: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("a.csv", "a\n1\n")
    source = open_source(["a.csv"])
    monkeypatch.setattr(pyarrow, "__version__", "24.0.1")
    assert error("a.csv").startswith("reading files needs pyarrow 25 or newer; 24.0.1 reads some ")
    found, text = until_error(source)  # as in a task of Spark on another machine
    assert (found, text[:33]) == ([], "reading files needs pyarrow 25 or")


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


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("out/*", ["out/a.csv"]),
        ("out/**", ["out/a.csv"]),
        ("out/**/*.csv", ["out/a.csv"]),
        ("*/*.csv", ["out/a.csv"]),
        ("out/_*.csv", ["out/_old.csv"]),
        ("out/_temporary/*", ["out/_temporary/a.csv"]),
        ("out", ["out/a.csv"]),
    ],
)
def test_a_pattern_has_the_hidden_names_that_it_asks_for(
    there: pathlib.Path, pattern: str, found: list[str]
) -> None:
    """Spark's committers leave copies of rows in ``_temporary``."""
    os.makedirs("out/_temporary")
    for name in ("out/a.csv", "out/_old.csv", "out/.b=x.csv", "out/_temporary/a.csv"):
        write(name, "a\n1\n")
    assert open_source([pattern]).files == found


#: Prints the error of a pattern, without root's right to read everything.
UNREADABLE = """
    import os, sys
    from pykaproducer._load import formats
    from pykaproducer._load.sources import SourceError, open_source

    os.chdir(sys.argv[1])
    os.chmod("b", 0)
    if os.geteuid() == 0:
        os.setuid(65534)
    for pattern in ("*/x.csv", "**/x.csv", "**/*.csv", "b/*.csv"):
        try:
            print(open_source([pattern]).files)
        except SourceError as error:
            print(error)
"""


@pytest.mark.scripted
def test_a_directory_of_a_pattern_that_cannot_be_read() -> None:
    with tempfile.TemporaryDirectory() as top:
        os.chmod(top, 0o777)
        for name in "ab":
            os.mkdir(f"{top}/{name}")
            pathlib.Path(f"{top}/{name}/x.csv").write_text("a\n1\n")
            os.chmod(f"{top}/{name}", 0o777)
        if os.geteuid() == 0:
            os.chown(f"{top}/b", 65534, -1)
        assert programs.run(UNREADABLE, top).splitlines() == ["b: Permission denied"] * 4
        os.chmod(f"{top}/b", 0o777)


def test_a_quotation_mark_that_is_never_closed_in_a_large_file(
    there: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "_LONGEST", streams.BLOCK)
    write("x.csv", "a,b\n" + "1,2\n" * 1000 + '1,"x\n' + "1,2\n" * (streams.BLOCK // 2))
    with pytest.raises(SourceError, match=r"^x\.csv: after byte 4,004 a line, or a cell in quot"):
        list(open_source(["x.csv"]).batches())
