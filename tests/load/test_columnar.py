"""Parquet, ORC and Arrow IPC: values as they are in the file, parts, and damage."""

from __future__ import annotations

import datetime
import json
import pathlib
import pickle
from typing import Any

import pyarrow
import pytest
from pyarrow import ipc, orc, parquet

from pykaproducer._load.sources import SourceError, open_source
from tests.load.truth import values


@pytest.fixture(autouse=True)
def there(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a temporary directory the current one."""
    monkeypatch.chdir(tmp_path)


def write(name: str, table: Any, rows: int = 1000) -> None:
    """Write a file in the format of its suffix, in groups of *rows* if the format allows it."""
    if name.endswith(".parquet"):
        parquet.write_table(table, name, row_group_size=rows)
    elif name.endswith(".orc"):
        orc.write_table(table, name, stripe_size=1, batch_size=rows)
    else:
        new = ipc.new_file if name.endswith(".arrow") else ipc.new_stream
        with new(name, table.schema) as file:
            file.write_table(table, max_chunksize=rows)


def rows(*names: str) -> list[Any]:
    return [row for each in open_source(names).batches() for row in each.batch.to_pylist()]


def error(*names: str) -> str:
    with pytest.raises(SourceError) as caught:
        rows(*names)
    return str(caught.value)


@pytest.mark.parametrize("name", ["x.parquet", "x.orc", "x.arrow", "x.arrows"])
def test_parts_have_all_rows_in_order_and_know_their_numbers(name: str) -> None:
    table = pyarrow.table({"n": range(40_000), "s": [f"{n} text" for n in range(40_000)]})
    write(name, table)
    source = open_source([name])
    assert rows(name) == table.to_pylist()
    parts = pickle.loads(pickle.dumps(source.parts(source.size // 5)))
    assert len(parts) > 2 or name == "x.arrows"  # a stream is read from its beginning
    number = 0
    for part in parts:
        for batch, _, first, position in part.batches(source.schema.empty_table().schema):
            assert first == number
            assert batch["n"].to_pylist() == list(range(number, number + batch.num_rows))
            assert 0 < position <= source.size
            number += batch.num_rows
    assert number == 40_000


@pytest.mark.parametrize("name", ["x.parquet", "x.arrow", "x.arrows"])
def test_nested_values_of_every_storage(name: str) -> None:
    plain = {"l": [1, None, 3], "d": "a", "m": [("k", "v")]}
    kind = pyarrow.struct(
        [
            ("l", pyarrow.large_list(pyarrow.int8())),
            ("d", pyarrow.dictionary(pyarrow.int8(), pyarrow.string())),
            ("m", pyarrow.map_(pyarrow.string(), pyarrow.string_view())),
        ]
    )
    array = pyarrow.array([plain, None, plain], kind)
    lists = pyarrow.ListArray.from_arrays([0, 0, 1, 3], array)
    ids = pyarrow.ListArray.from_arrays(
        [0, 1, 1, 2], pyarrow.array([bytes(16)] * 2, pyarrow.uuid())
    )
    write(name, pyarrow.table({"a": array, "b": lists, "c": ids}), 2)
    text = "00000000-0000-0000-0000-000000000000"
    assert rows(name) == [
        {"a": plain, "b": [], "c": [text]},
        {"a": None, "b": [plain], "c": []},
        {"a": plain, "b": [None, plain], "c": [text]},
    ]


COMMON = [
    (pyarrow.array(["a"]), pyarrow.array(["b"]).dictionary_encode(), ["a", "b"]),
    (pyarrow.array(["a"]), pyarrow.array(["b"], pyarrow.string_view()), ["a", "b"]),
    (pyarrow.array([[1]]), pyarrow.array([[2]], pyarrow.list_view(pyarrow.int8())), [[1], [2]]),
    (pyarrow.array([1], pyarrow.uint64()), pyarrow.array([-1]), [1, -1]),
    (pyarrow.array([1], pyarrow.uint32()), pyarrow.array([-1], pyarrow.int8()), [1, -1]),
    (pyarrow.array([2**53]), pyarrow.array([0.5]), [2.0**53, 0.5]),
    (pyarrow.array([2**53 + 1]), pyarrow.array([0.5]), "column c: Integer value 9007199254740993"),
    (
        pyarrow.array([2**63 - 1]),
        pyarrow.array([1]).cast(pyarrow.decimal128(21, 2)),
        [2**63 - 1, 1],
    ),
    (
        pyarrow.array([1.5]),
        pyarrow.array([1]).cast(pyarrow.decimal128(21, 2)),
        "double and decimal",
    ),
    (pyarrow.array(["a"]), pyarrow.array([b"b"]), "string and binary"),
    (
        pyarrow.array([0], pyarrow.timestamp("us", "UTC")),
        pyarrow.array([0], pyarrow.timestamp("ms", "+00:00")),
        [datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)] * 2,
    ),
    (
        pyarrow.array([0], pyarrow.timestamp("us")),
        pyarrow.array([0], pyarrow.timestamp("us", "UTC")),
        "timestamp[us] and timestamp[us, tz=UTC]",
    ),
    (
        pyarrow.array([{"x": 1, "y": 2}]),
        pyarrow.array([{"z": 3, "y": 4}]),
        [{"x": 1, "y": 2, "z": None}, {"x": None, "y": 4, "z": 3}],
    ),
]


@pytest.mark.parametrize(("one", "other", "found"), COMMON)
def test_files_have_common_types_that_change_no_value(one: Any, other: Any, found: Any) -> None:
    write("1.parquet", pyarrow.table({"c": one, "first": [1]}))
    write("2.parquet", pyarrow.table({"second": [2], "c": other}))
    if isinstance(found, str):
        assert found in error("1.parquet", "2.parquet")
        return
    read = rows("1.parquet", "2.parquet")
    assert read == [
        {"c": found[0], "first": 1, "second": None},
        {"c": found[1], "first": None, "second": 2},
    ]
    assert sorted(map(repr, (row["c"] for row in rows("2.parquet", "1.parquet")))) == sorted(
        map(repr, (row["c"] for row in read))
    ) or isinstance(found[0], dict)


def test_int96_is_an_instant_of_any_year_nested_or_not() -> None:
    times = [datetime.datetime(year, 12, 31, 1, 2, 3, 4) for year in (1, 1600, 2024, 9999)]
    columns = {"t": times, "l": [[time] for time in times], "s": [{"t": time} for time in times]}
    table = pyarrow.table(columns)
    options: Any = {"use_deprecated_int96_timestamps": True, "store_schema": False}
    parquet.write_table(table, "x.parquet", **options)
    instants = [time.replace(tzinfo=datetime.UTC) for time in times]
    assert rows("x.parquet") == [{"t": each, "l": [each], "s": {"t": each}} for each in instants]
    fine = pyarrow.table({"a": [0, 1], "t": pyarrow.array([1000, 1001], pyarrow.timestamp("ns"))})
    parquet.write_table(fine, "x.parquet", **options)
    assert "x.parquet: row 1, column t: INT96 with nanoseconds" in error("x.parquet")
    assert [each.batch.num_rows for each in open_source(["x.parquet"]).batches(["a"])] == [2]
    # Also behind a column of an extension type that is nested in the file.
    storage = pyarrow.array([{"x": 1, "y": 2}] * 2)
    kind = pyarrow.opaque(storage.type, "pair", "of us")
    pair = pyarrow.ExtensionArray.from_storage(kind, storage)
    options["store_schema"] = True
    parquet.write_table(fine.set_column(0, "pair", pair), "x.parquet", **options)
    assert "x.parquet: row 1, column t: INT96 with nanoseconds" in error("x.parquet")


def test_orc_timestamps_outside_of_its_range_are_told() -> None:
    late = pyarrow.array([253_402_300_799], pyarrow.timestamp("s"))
    orc.write_table(pyarrow.table({"a": [1], "late": late}), "x.orc")
    assert "x.orc: stripe 0, column late: " in error("x.orc")


def test_a_page_is_checked_and_its_column_named() -> None:
    numbers = {"a": [1, 2], "amount": [1_111_111_111, 2]}
    options: Any = {"use_dictionary": False, "write_page_checksum": True, "compression": "none"}
    parquet.write_table(pyarrow.table(numbers), "x.parquet", write_statistics=False, **options)
    data = bytearray(pathlib.Path("x.parquet").read_bytes())
    data[data.index((1_111_111_111).to_bytes(8, "little"))] ^= 64
    pathlib.Path("x.parquet").write_bytes(data)
    assert "x.parquet: row group 0, column amount: could not verify page" in error("x.parquet")


def test_repeated_long_values_come_in_small_batches() -> None:
    cell = "x" * 100_000
    write("x.parquet", pyarrow.table({"a": [cell] * 500}))
    sizes = [each.batch.nbytes for each in open_source(["x.parquet"]).batches()]
    assert sum(sizes) >= 500 * len(cell)
    assert max(sizes) < 10_000_000


def test_wide_row_groups_are_read_by_columns() -> None:
    table = pyarrow.table({f"c.{n}": range(n, n + 700) for n in range(300)})
    write("x.parquet", table, 500)
    assert rows("x.parquet") == table.to_pylist()


def test_a_column_with_the_name_of_a_field_of_another() -> None:
    text = [f"{row:040}" for row in range(20_000)]
    nested = [{"b": f"b{each}", "c": f"c{each}"} for each in text]
    for names in (["a", "a.b"], ["a.b", "a"]):
        table = pyarrow.table({"a": nested, "a.b": text}).select(names)
        write("x.parquet", table, 20_000)
        assert rows("x.parquet") == table.to_pylist()
        write("x.orc", table)
        assert "x.orc: column a.b may be taken for a field of another" in error("x.orc")


@pytest.mark.parametrize("name", ["x.parquet", "x.arrow"])
def test_names_that_are_not_utf8_or_there_twice(name: str) -> None:
    write(name, pyarrow.table({"abcdef": [1]}))
    data = pathlib.Path(name).read_bytes()
    pathlib.Path(name).write_bytes(data.replace(b"abcdef", b"abcde\xff"))
    assert error(name).startswith(f"{name}: ")
    write(name, pyarrow.table([[1], [2]], ["a", "a"]))
    assert f"{name}: two columns are named 'a'; rename one" in error(name)


@pytest.mark.parametrize("name", ["x.parquet", "x.orc", "x.arrow"])
def test_names_of_fields_that_are_not_utf8(name: str) -> None:
    write(name, pyarrow.table({"a": [[{"abcdef": 1}]]}))
    data = pathlib.Path(name).read_bytes()
    pathlib.Path(name).write_bytes(data.replace(b"abcdef", b"abcde\xff"))
    assert error(name).startswith(f"{name}: 'utf-8' codec can't decode byte 0xff")


def test_a_stream_that_was_cut_or_is_followed_by_another() -> None:
    write("x.arrows", pyarrow.table({"n": range(5000)}))
    data = pathlib.Path("x.arrows").read_bytes()
    for wrong in (data[:-8], data + data, data[:-9]):
        pathlib.Path("x.arrows").write_bytes(wrong)
        assert error("x.arrows").startswith("x.arrows: ")
    pathlib.Path("x.arrow").write_bytes(b"FEA1" + data)
    assert "Feather version 1; write it as version 2" in error("x.arrow")


def test_arrow_columns_are_checked() -> None:
    text = pyarrow.Array.from_buffers(
        pyarrow.string(), 2, pyarrow.array([b"a", b"\xff"], pyarrow.binary()).buffers()
    )
    write("x.arrow", pyarrow.table({"a": [1, 2], "b": text}))
    assert "x.arrow: record batch 0, column b: Invalid UTF8" in error("x.arrow")


@pytest.mark.parametrize("changed", ["a", "b"])
def test_a_file_that_is_replaced_while_it_is_loaded(changed: str) -> None:
    write("x.parquet", pyarrow.table({"a": [1]}))
    source = open_source(["x.parquet"])
    write("x.parquet", pyarrow.table({changed: range(2)}))
    with pytest.raises(SourceError, match="changed while it was read; load it again"):
        list(source.batches())


def test_encrypted_columns_are_refused() -> None:
    encryption = pytest.importorskip("pyarrow.parquet.encryption")

    class Keys(encryption.KmsClient):  # type: ignore[misc]
        def wrap_key(self, key: bytes, name: str) -> bytes:
            return key.hex().encode()

    keys = encryption.CryptoFactory(lambda _: Keys()).file_encryption_properties(
        encryption.KmsConnectionConfig(),
        encryption.EncryptionConfiguration("k", column_keys={"k": ["a"]}, plaintext_footer=True),
    )
    table = pyarrow.table({"a": ["secret"] * 9, "b": ["plain"] * 9})
    parquet.write_table(table, "x.parquet", encryption_properties=keys)
    assert "x.parquet: row group 0, column a: Cannot decrypt" in error("x.parquet")


def test_names_of_enums_are_text() -> None:
    data = pathlib.Path(__file__).parent / "corpus/spark/parquet-thrift-compat.snappy.parquet"
    assert rows(str(data))[0]["enumColumn"] == "SPADES"


@pytest.mark.parametrize("binary", [pyarrow.binary(), pyarrow.large_binary()], ids=str)
def test_a_variant_of_spark_is_refused_unless_it_is_not_selected(binary: Any) -> None:
    """Spark 4.0 names it in its metadata; see ``corpus/parquet-testing`` for annotated ones."""
    value = {"metadata": b"\1\0\0", "value": b"\x0c\1"}
    spark = {
        "type": "struct",
        "fields": [
            {"name": "n", "type": "long", "nullable": True, "metadata": {}},
            {"name": "v", "type": "variant", "nullable": True, "metadata": {}},
        ],
    }
    metadata = {"org.apache.spark.sql.parquet.row.metadata": json.dumps(spark)}
    kind = pyarrow.struct({"value": pyarrow.binary(), "metadata": binary})
    table = pyarrow.table({"n": [1], "v": pyarrow.array([value], kind)})
    key, text = next(iter(metadata.items()))
    named = {key: text.replace("variant", "binary").replace('"n"', '"variant"')}
    parquet.write_table(table.replace_schema_metadata(named), "plain.parquet")
    assert rows("plain.parquet") == [{"n": 1, "v": value}]
    parquet.write_table(table.replace_schema_metadata(metadata), "x.parquet")
    assert "x.parquet: column v is a VARIANT" in error("x.parquet")
    assert values("x.parquet", select="value=json(n)") == [b'{"n":1}']


@pytest.mark.parametrize("number", [b"\x88\x26", b"\x80\x00"])  # 4872, 0
def test_an_orc_file_that_has_another_number_of_rows_than_it_says(number: bytes) -> None:
    table = pyarrow.table({"n": range(5000)})
    orc.write_table(table, "x.orc", compression="uncompressed")
    data = pathlib.Path("x.orc").read_bytes()
    assert data.count(b"\x30\x88\x27") == 1  # the field of the footer
    pathlib.Path("x.orc").write_bytes(data.replace(b"\x30\x88\x27", b"\x30" + number))
    assert "x.orc: there are 5000 rows, but " in error("x.orc")


def test_damaged_statistics_of_sizes_are_refused() -> None:
    parquet.write_table(pyarrow.table({"a": ["x"] * 9 + [None]}), "x.parquet")
    data = pathlib.Path("x.parquet").read_bytes()
    # The histogram counts 1 null and 9 values; then it has one level, and a field follows it.
    histogram, damaged = b"\x19\x26\x02\x12\x00", b"\x19\x16\x02\x12\x00"
    assert data.count(histogram) == 1
    pathlib.Path("x.parquet").write_bytes(data.replace(histogram, damaged))
    assert "x.parquet: row group 0, column a: Definition level histogram" in error("x.parquet")
