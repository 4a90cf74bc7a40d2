"""``json()`` and ``avro()``: other readers decode the contents of the columns."""

from __future__ import annotations

import base64
import datetime
import decimal
import io
import json
import math
import pathlib
import pickle
from typing import Any

import fastavro
import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykaproducer._load.mapping import Mapped
from pykaproducer._load.select import Selection, SelectionError
from tests._support import programs

TEXT = st.text(max_size=8) | st.sampled_from(
    ['"', "\\", "\n", "\x00", "\x1f", "\x7f", "\u2028", "é"]
)
UUID = "00010203-0405-0607-0809-0a0b0c0d0e0f"
INT = st.integers(-(2**63), 2**63 - 1)

#: Types, and strategies for their cells.
COLUMNS: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (pyarrow.string(), TEXT),
    (pyarrow.large_string(), TEXT),
    (pyarrow.string_view(), TEXT),
    (pyarrow.dictionary(pyarrow.int16(), pyarrow.string()), TEXT),
    (pyarrow.int64(), INT),
    (pyarrow.uint64(), st.integers(0, 2**64 - 1)),
    (pyarrow.float64(), st.floats(allow_nan=False, allow_infinity=False)),
    (pyarrow.bool_(), st.booleans()),
    (pyarrow.null(), st.none()),
    (pyarrow.list_(pyarrow.string()), st.lists(st.none() | TEXT, max_size=3)),
    (pyarrow.list_(pyarrow.int64(), 2), st.lists(INT, min_size=2, max_size=2)),
    (
        pyarrow.large_list(pyarrow.list_(pyarrow.int64())),
        st.lists(st.none() | st.lists(st.none() | INT, max_size=2), max_size=3),
    ),
    (
        pyarrow.struct([("x y", pyarrow.string()), ('"', pyarrow.list_(pyarrow.bool_()))]),
        st.fixed_dictionaries(
            {"x y": st.none() | TEXT, '"': st.none() | st.lists(st.booleans(), max_size=2)}
        ),
    ),
    (
        pyarrow.map_(pyarrow.string(), pyarrow.struct([("n", pyarrow.int64())])),
        st.dictionaries(TEXT, st.none() | st.fixed_dictionaries({"n": INT}), max_size=3),
    ),
]


@st.composite
def tables(draw: st.DrawFn) -> tuple[Any, list[dict[str, Any]]]:
    """Draw a batch that is a slice of a longer one, and its rows as from json.loads()."""
    rows = draw(st.integers(0, 5))
    chosen = draw(st.lists(st.sampled_from(COLUMNS), min_size=1, max_size=4))
    names = draw(st.lists(TEXT, min_size=len(chosen), max_size=len(chosen), unique=True))
    cells = [draw(st.lists(st.none() | kind[1], min_size=rows, max_size=rows)) for kind in chosen]
    arrays = []
    for (kind, _), column in zip(chosen, cells, strict=True):
        given = [
            list(c.items()) if isinstance(c, dict) and pyarrow.types.is_map(kind) else c
            for c in column
        ]
        if pyarrow.types.is_dictionary(kind):
            arrays.append(pyarrow.array(given, kind.value_type).cast(kind))
        else:
            arrays.append(pyarrow.array(given, kind))
    batch = pyarrow.RecordBatch.from_arrays(arrays, names)
    start = draw(st.integers(0, rows))
    expected = [dict(zip(names, row, strict=True)) for row in zip(*cells, strict=True)]
    return batch.slice(start), expected[start:]


def encoded(text: str, batch: Any) -> Mapped:
    mapping = pickle.loads(pickle.dumps(Selection.parse(text).bind(batch.schema)))
    found: Mapped = mapping(batch)
    return found


def values(text: str, columns: dict[str, Any]) -> list[bytes]:
    found = encoded(text, pyarrow.record_batch(columns))
    assert found.refused == []
    cells: list[bytes] = found.batch.column("value").to_pylist()
    return cells


@given(tables())
def test_json_says_what_was_in_the_columns(table: tuple[Any, list[dict[str, Any]]]) -> None:
    batch, expected = table
    found = encoded("value=json(*)", batch)
    assert found.refused == []
    texts = found.batch.column("value").to_pylist()
    assert [json.loads(text) for text in texts] == expected
    # and a float differs from an integer, and -0.0 from 0.0
    assert [json.dumps(json.loads(text), sort_keys=True) for text in texts] == [
        json.dumps(row, sort_keys=True) for row in expected
    ]


def test_json_is_compact_and_in_the_order_of_the_columns() -> None:
    columns = {"b": ["é"], "a": [1]}
    assert values("value=json(*)", columns) == ['{"b":"é","a":1}'.encode()]
    assert values("value=json(a, b as c)", columns) == ['{"a":1,"c":"é"}'.encode()]


def test_many_columns_of_some_types_are_not_mixed_up() -> None:
    columns: dict[str, Any] = {f"c{n}": [n, None] for n in range(5000)}
    columns |= {f"d{n}": [f"{n}\n", None] for n in range(5000)}
    columns |= {f"e{n}": [None, {"a": n / 4}] for n in range(3000)}
    found = values("value=json(*)", columns)
    assert [json.loads(text) for text in found] == pyarrow.table(columns).to_pylist()


def test_a_struct_is_a_member_or_gives_its_fields() -> None:
    columns = {"s": [{"x": 1, "y": "z"}, None]}
    assert values("value=json(s)", columns) == [b'{"s":{"x":1,"y":"z"}}', b'{"s":null}']
    assert values("value=json(s.*)", columns) == [b'{"x":1,"y":"z"}', b'{"x":null,"y":null}']
    assert values("value=json(s.y)", columns) == [b'{"y":"z"}', b'{"y":null}']


def test_json_of_types_that_it_does_not_have() -> None:
    zone = pyarrow.timestamp("ns", "Europe/Berlin")
    columns = {
        "bytes": [b"\xff\x00"],
        "decimal": [decimal.Decimal("12345678901234567890.10")],
        "scaled": pyarrow.array([decimal.Decimal("1200")], pyarrow.decimal128(5, -2)),
        "nan": [math.nan],
        "inf": [-math.inf],
        "whole": [-3.0],
        "single": pyarrow.array([0.1], pyarrow.float32()),
        "date": [datetime.date(2024, 2, 29)],
        "time": [datetime.time(1, 2, 3)],
        "zoned": pyarrow.array([1_709_168_400_000_000_001], zone),
        "seconds": pyarrow.array([-1], pyarrow.timestamp("s")),
        "numbered": pyarrow.array([[(1, None)]], pyarrow.map_(pyarrow.int8(), pyarrow.int8())),
        "uuid": pyarrow.array([bytes(range(16))], pyarrow.uuid()),
        "empty": pyarrow.array([{}], pyarrow.struct([])),
    }
    text = values("value=json(*)", columns)[0]
    assert json.loads(text, parse_float=decimal.Decimal) == {
        "bytes": base64.b64encode(b"\xff\x00").decode(),
        "decimal": decimal.Decimal("12345678901234567890.10"),
        "scaled": decimal.Decimal("1.2E+3"),
        "nan": None,
        "inf": None,
        "whole": decimal.Decimal("-3.0"),
        "single": decimal.Decimal("0.1"),
        "date": "2024-02-29",
        "time": "01:02:03.000000",
        "zoned": "2024-02-29T01:00:00.000000001Z",
        "seconds": "1969-12-31T23:59:59",
        "numbered": {"1": None},
        "uuid": UUID,
        "empty": {},
    }


def text_of_any_bytes(cells: list[bytes | None]) -> Any:
    """Return a column of strings whose bytes are not validated."""
    array = pyarrow.array(cells, pyarrow.binary())
    return pyarrow.Array.from_buffers(pyarrow.string(), len(cells), array.buffers())


def test_rows_that_are_not_text_are_told_and_the_others_are_encoded() -> None:
    names = text_of_any_bytes([b"a", b'"\xff"', b"c", None, b"\x80", b"f"])
    nested = pyarrow.ListArray.from_arrays(pyarrow.array([0, 1, 1, 2, 3, 4, 6]), names)
    batch = pyarrow.record_batch({"n": range(6), "name": names, "nested": nested})
    for text, bad in (("n, name", [1, 4]), ("n, nested", [2, 5]), ("*", [1, 2, 4, 5])):
        for start in (0, 1, 3):
            found = encoded(f"value=json({text})", batch.slice(start))
            assert [row + start for row, _ in found.refused] == [row for row in bad if row >= start]
            assert all(
                f"column {text.split()[-1].replace('*', 'name')}: the text is not UTF-8"
                in str(error)
                or "column nested" in str(error)
                for _, error in found.refused
            )
            texts = found.batch.column("value").to_pylist()
            kept = [json.loads(text)["n"] for text in texts]
            assert kept == [row for row in range(start, 6) if row not in bad]
            assert found.rows == [row - start for row in kept] or not found.refused


@given(st.lists(st.none() | TEXT.map(str.encode) | st.binary(max_size=12), max_size=5))
def test_text_is_what_python_takes_for_utf_8(cells: list[bytes | None]) -> None:
    found = encoded("value=json(s)", pyarrow.record_batch({"s": text_of_any_bytes(cells)}))
    refused = {row for row, _ in found.refused}
    expected = []
    for row, cell in enumerate(cells):
        try:
            text = None if cell is None else cell.decode()
        except UnicodeDecodeError:
            assert row in refused
        else:
            expected.append(f'{{"s":{json.dumps(text, ensure_ascii=False)}}}'.encode())
    assert found.batch.column("value").to_pylist() == expected


def test_keys_of_maps_are_different() -> None:
    for kind, keys in (
        (pyarrow.string(), ["a", "b", "a", "a"]),
        (pyarrow.binary(), [b"a", b"b", b"a", b"a"]),
        (pyarrow.binary(0), [b""] * 4),
    ):
        key, value = pyarrow.array(keys, kind), pyarrow.array([1, 2, 3, 4])
        maps = pyarrow.MapArray.from_arrays(
            pyarrow.array([0, 1, 2, 4], pyarrow.int32()), key, value
        )
        for start in range(3):
            found = encoded("value=json(m)", pyarrow.record_batch({"m": maps.slice(start)}))
            ((row, error),) = found.refused
            assert row == 2 - start
            assert "column m: a map has a key twice" in str(error)


@given(st.lists(st.none() | st.binary(max_size=12), max_size=5))
def test_bytes_are_base64(cells: list[bytes | None]) -> None:
    array = pyarrow.array(cells, pyarrow.binary())
    found = encoded("value=json(b)", pyarrow.record_batch({"b": array}))
    texts = [json.loads(text)["b"] for text in found.batch.column("value").to_pylist()]
    assert [None if text is None else base64.b64decode(text) for text in texts] == cells


def test_times_outside_of_the_calendar_are_told() -> None:
    batch = pyarrow.record_batch({"t": pyarrow.array([0, 2**62], pyarrow.timestamp("us"))})
    for text in ("value=t", "value=json(t)"):
        found = encoded(text, batch)
        assert found.rows == [0]
        assert str(found.refused[0][1]).startswith(f"{text}: ")
        assert "outside the calendar" in str(found.refused[0][1])


#: Columns, their text and their JSON; None: there is no text, or no JSON.
FORMS: list[tuple[Any, str | None, Any]] = [
    (pyarrow.array([bytes(range(16))], pyarrow.uuid()), UUID, UUID),
    (pyarrow.array([1], pyarrow.bool8()), "true", True),
    (pyarrow.array(['{"a": 1.50}'], pyarrow.json_()), '{"a": 1.50}', {"a": 1.5}),
    (pyarrow.array(["a"], pyarrow.string_view()), "a", "a"),
    (pyarrow.array(["a"]).dictionary_encode(), "a", "a"),
    (pyarrow.RunEndEncodedArray.from_arrays([1], ["a"]), "a", "a"),
    (pyarrow.array([1.5], pyarrow.float16()), "1.5", 1.5),
    (pyarrow.array([93_784_005], pyarrow.duration("ms")), "PT93784.005S", "PT93784.005S"),
    (pyarrow.array([-1], pyarrow.duration("ns")), "PT-0.000000001S", "PT-0.000000001S"),
    (
        pyarrow.array([(14, -3, 5)], pyarrow.month_day_nano_interval()),
        "P14M-3DT0.000000005S",
        "P14M-3DT0.000000005S",
    ),
    (
        pyarrow.array([decimal.Decimal("1E-20")], pyarrow.decimal128(38, 20)),
        "0.00000000000000000001",
        1e-20,
    ),
    (pyarrow.array([decimal.Decimal("0.10")], pyarrow.decimal32(5, 2)), "0.10", 0.1),
    (pyarrow.array([[1], None], pyarrow.list_view(pyarrow.int8())).slice(0, 1), None, [1]),
    (pyarrow.array([[1, 2]], pyarrow.list_(pyarrow.int8(), 2)), None, [1, 2]),
    (
        pyarrow.UnionArray.from_sparse(pyarrow.array([0], pyarrow.int8()), [pyarrow.array([1])]),
        None,
        None,
    ),
    (
        pyarrow.array([[("a", 1), ("a", 2)]], pyarrow.map_(pyarrow.string(), pyarrow.int8())),
        None,
        "a map has a key twice",
    ),
    (
        pyarrow.array(['{"a": 1, "a": 2}'], pyarrow.json_()),
        '{"a": 1, "a": 2}',
        "the value is not JSON: the object has two members 'a'",
    ),
    *(
        (pyarrow.array([cell], pyarrow.json_()), cell, "the value is not JSON: ")
        for cell in ("{", "", "NaN", "1}", '1,"":2', '1,"b":2', r'"\ud800"', '"a\nb"', "1 2")
    ),
    (pyarrow.array(["[1,\n2]"], pyarrow.json_()), "[1,\n2]", [1, 2]),
]


@pytest.mark.parametrize(("array", "text", "found"), FORMS, ids=range(len(FORMS)))
def test_every_type_has_one_form_nested_or_not(array: Any, text: str | None, found: Any) -> None:
    if text is not None:
        assert values("value=a", {"a": array}) == [text]
    else:
        with pytest.raises(SelectionError, match="has no text form"):
            values("value=a", {"a": array})
    nested = (
        array,
        pyarrow.StructArray.from_arrays([array], ["x"]),
        pyarrow.ListArray.from_arrays([0, 1], array),
        pyarrow.MapArray.from_arrays([0, 1], ["k"], array),
    )
    for column, outside in zip(nested, ("{}", '{{"x":{}}}', "[{}]", '{{"k":{}}}'), strict=True):
        columns = pyarrow.record_batch({"a": column})
        if found is None:
            with pytest.raises(SelectionError, match="has no JSON representation"):
                encoded("value=json(a)", columns)
        elif isinstance(found, str) and " " in found:
            refused = encoded("value=json(a)", columns).refused
            assert f"column a: {found}" in str(refused[0][1])
        else:
            inside = json.loads(encoded("value=json(a)", columns).batch["value"][0].as_py())["a"]
            assert inside == json.loads(outside.format(json.dumps(found)))


# Avro

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": ["null", "string"], "default": None},
        {"name": "paid", "type": "boolean"},
        {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9,
                                    "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "day", "type": ["null", {"type": "int", "logicalType": "date"}]},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "more", "type": {"type": "map", "values": ["null", "int"]}},
        {"name": "place", "type": ["null", {"type": "record", "name": "Place", "fields": [
            {"name": "x", "type": "double"}, {"name": "open", "type": "boolean"},
            {"name": "note", "type": "string", "default": "none"}]}]},
        {"name": "colour", "type": {"type": "enum", "name": "Colour", "symbols": ["RED", "BLUE"]}},
        {"name": "other", "type": "Colour"},
        {"name": "raw", "type": {"type": "fixed", "name": "Two", "size": 2}},
        {"name": "comment", "type": "string", "default": "-"},
    ],
}  # fmt: skip

UTC = datetime.UTC


def order(**changes: Any) -> dict[str, Any]:
    row = {
        "id": 2**40,
        "name": None,
        "paid": True,
        "amount": decimal.Decimal("12.30"),
        "at": datetime.datetime(2024, 2, 29, 1, 2, 3, 4),
        "day": datetime.date(2024, 2, 29),
        "tags": ["a", "é"],
        "more": [("x", 1), ("y", None)],
        "place": {"x": 1.5, "open": False},
        "colour": "RED",
        "other": "BLUE",
        "raw": b"ab",
    }
    return {**row, **changes}


ORDERS = pyarrow.schema(
    [
        ("unknown", pyarrow.string()),
        ("id", pyarrow.int64()),
        ("name", pyarrow.dictionary(pyarrow.int8(), pyarrow.string())),
        ("paid", pyarrow.bool_()),
        ("amount", pyarrow.decimal128(20, 4)),
        ("at", pyarrow.timestamp("ns")),
        ("day", pyarrow.date32()),
        ("tags", pyarrow.list_(pyarrow.string_view())),
        ("more", pyarrow.map_(pyarrow.string(), pyarrow.int64())),
        ("place", pyarrow.struct([("x", pyarrow.float32()), ("open", pyarrow.bool_())])),
        ("colour", pyarrow.string()),
        ("other", pyarrow.large_string()),
        ("raw", pyarrow.binary(2)),
    ]
)


def orders(rows: list[dict[str, Any]]) -> Any:
    arrays = []
    for field in ORDERS:
        cells = [row.get(field.name) for row in rows]
        if pyarrow.types.is_dictionary(field.type):
            arrays.append(pyarrow.array(cells, pyarrow.string()).cast(field.type))
        else:
            arrays.append(pyarrow.array(cells, field.type))
    return pyarrow.RecordBatch.from_arrays(arrays, schema=ORDERS)


@pytest.fixture
def avro(tmp_path: pathlib.Path) -> str:
    """Return an expression that encodes orders; its file is deleted before rows are encoded."""
    path = tmp_path / "it's.avsc"
    path.write_text(json.dumps(ORDER))
    return f"avro(*, '{str(path).replace(chr(39), chr(39) * 2)}')"


def read(record: bytes, schema: Any = ORDER) -> Any:
    data = io.BytesIO(record)
    found = fastavro.schemaless_reader(data, fastavro.parse_schema(schema), None)
    assert not data.read(), "there are bytes after the record"
    return found


def test_avro_says_what_was_in_the_columns(avro: str) -> None:
    found = encoded(f"value={avro}", orders([order(), order(place=None, name="n", day=None)]))
    assert found.refused == []
    first, second = (read(record) for record in found.batch.column("value").to_pylist())
    assert first == order(
        at=datetime.datetime(2024, 2, 29, 1, 2, 3, 4, tzinfo=UTC),
        more={"x": 1, "y": None},
        place={"x": 1.5, "open": False, "note": "none"},
        comment="-",
    )
    assert (second["place"], second["name"], second["day"]) == (None, "n", None)


def test_the_wire_format_of_a_registry_precedes_each_record(avro: str) -> None:
    found = encoded(f"value={avro[:-1]}, id=258)", orders([order(), order(name="n")]))
    for record, name in zip(found.batch["value"].to_pylist(), [order()["name"], "n"], strict=True):
        assert record[:5] == b"\0\0\0\1\2"
        assert read(record[5:])["name"] == name


def test_avro_does_not_need_the_file_of_the_schema_again(avro: str, tmp_path: pathlib.Path) -> None:
    batch = orders([order()])
    travels = pickle.dumps(Selection.parse(f"value={avro}").bind(batch.schema))
    (tmp_path / "it's.avsc").unlink()
    assert read(pickle.loads(travels)(batch).batch.column("value")[0].as_py())["id"] == 2**40


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"id": None}, "id"),
        ({"paid": None}, "paid: null where the schema has boolean"),
        ({"place": {"x": 1.0, "open": None}}, "null where the schema has boolean"),
        ({"amount": decimal.Decimal("1.2345")}, ""),
        ({"amount": decimal.Decimal("123456789.00")}, ""),
        ({"at": None}, "at"),
        ({"tags": ["a", None]}, "tags"),
        ({"more": [("x", 2**31)]}, "2147483648"),
        ({"more": [("x", 1), ("x", 2)]}, "x"),
        ({"colour": "GREEN"}, "GREEN"),
        ({"raw": None}, ""),
    ],
)
def test_a_row_that_does_not_fit_is_told_and_the_others_are_encoded(
    avro: str, change: dict[str, Any], said: str
) -> None:
    rows = [order(id=number) for number in range(9)]
    rows[4] |= change
    # A slice of a longer batch, whose other rows would not fit.
    batch = orders([order(**change), *rows, order(**change)]).slice(1, 9)
    found = encoded(f"value={avro}, key='k'", batch)
    assert [row for row, _ in found.refused] == [4]
    assert said in str(found.refused[0][1])
    kept = [read(record)["id"] for record in found.batch.column("value").to_pylist()]
    assert kept == found.rows == [0, 1, 2, 3, 5, 6, 7, 8]


def inline(kind: Any, column: Any) -> list[Any]:
    """Return the values of a column for a field of a type, or the error of each row."""
    schema = {"type": "record", "name": "r", "fields": [{"name": "a", "type": kind}]}
    found = encoded(f"value=avro(a, '{json.dumps(schema)}')", pyarrow.record_batch({"a": column}))
    cells: list[Any] = [read(record, schema)["a"] for record in found.batch["value"].to_pylist()]
    for row, error in found.refused:
        cells.insert(row, type(error))
    return [cell if not isinstance(cell, type) else "refused" for cell in cells]


def test_nothing_is_cut_or_guessed_on_the_way_to_avro() -> None:
    micros = pyarrow.array([1, 1000, 1001], pyarrow.timestamp("ns"))
    epoch = datetime.datetime(1970, 1, 1, tzinfo=UTC)
    one = epoch + datetime.timedelta(microseconds=1)
    assert inline("int", pyarrow.array([1, 2**31, -(2**31)])) == [1, "refused", -(2**31)]
    assert inline("boolean", pyarrow.array([True, None, False])) == [True, "refused", False]
    assert inline(["null", "boolean"], pyarrow.array([True, None])) == [True, None]
    assert inline({"type": "array", "items": "boolean"}, [[True], [None], []]) == [
        [True],
        "refused",
        [],
    ]
    lists = pyarrow.array([[1], [2**40], [3]])
    for row, expected in enumerate(([1], "refused", [3])):
        assert inline({"type": "array", "items": "int"}, lists.slice(row, 1)) == [expected]
    kind = {"type": "long", "logicalType": "timestamp-micros"}
    assert inline(kind, micros) == ["refused", one, "refused"]
    assert inline(["int", "long"], pyarrow.array([2**40])) == [2**40]
    assert inline(["null", "long", "string"], pyarrow.array(["1", None])) == ["1", None]
    assert inline("string", text_of_any_bytes([b"a", b"\xff"])) == ["a", "refused"]
    assert inline(["null", "string"], pyarrow.nulls(1)) == [None]
    assert inline("string", pyarrow.nulls(2)) == ["refused"] * 2


def test_without_fastavro_it_says_what_to_install() -> None:
    program = """
import sys
sys.modules["fastavro"] = None
import pyarrow
from pykaproducer._load.select import Selection, SelectionError
schema = pyarrow.schema([("a", pyarrow.int64())])
try:
    Selection.parse("value=avro(*, '{}')").bind(schema)
except ValueError as error:
    print(error)
"""
    assert 'pip install "pykaproducer[load]"' in programs.run(program)
