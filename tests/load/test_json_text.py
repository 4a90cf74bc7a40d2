"""Members of JSON Lines in messages: nothing is converted, and what does not fit is refused."""

from __future__ import annotations

import io
import json
import pathlib
import pickle
from typing import Any

import fastavro
import pyarrow
import pytest

from pykaproducer._load import json_text
from pykaproducer._load.cells import RowMessage, messages
from pykaproducer._load.refused import RefusedRow
from pykaproducer._load.rejects import Origin, Rejects, RejectsDirectory
from pykaproducer._load.select import Selection, SelectionError
from pykaproducer._load.sources import Options, open_source
from pykaproducer._load.summary import Summary


@pytest.fixture
def file(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "x.jsonl"


def loaded(source: pathlib.Path, select: str) -> tuple[list[RowMessage], dict[int, str], Any]:
    """Return the messages, the errors by row, and the batch that is sent."""
    opened = open_source([str(source)], Options())
    mapping = pickle.loads(pickle.dumps(Selection.parse(select).bind(opened.schema)))
    (batch,) = opened.batches(mapping.columns)
    found = mapping(batch.batch)
    refused = {row: str(error) for row, error in found.refused}
    return messages(found.batch), refused, found.batch


ROWS = """\
{"id":1,"p":{"x":1.50,"y":"\\u00e9\\n","z":{"q":[1, 2]}},"at":"2024-01-01T00:00:00Z"}
{"id":"k","p":{"y":null},"at":1700000000000}
{"id":true,"p":5,"at":1.5}
{"p":{"x":12345678901234567890.10}}
"""


@pytest.mark.parametrize(
    ("select", "values", "refused"),
    [
        ("value=id", [b"1", b"k", b"true", None], {}),
        ("value=at", [b"2024-01-01T00:00:00Z", b"1700000000000", b"1.5", None], {}),
        ("value=p", [b"5"], {0: "an object; it has no", 1: "an object; it", 3: "an object; it"}),
        ("value=p.x", [b"1.50", None, b"12345678901234567890.10"], {2: "no member 'x'"}),
        (
            "value=p.y",
            ["\xe9\n".encode(), None, None],
            {2: "value=p.y: the value is not an object"},
        ),
        (
            "value=json(id, p.z.q as q)",
            [b'{"id":1,"q":[1, 2]}', b'{"id":"k","q":null}', b'{"id":null,"q":null}'],
            {2: "no member 'z'"},
        ),
        (
            "value=json(p.*)",
            [
                b'{"x":1.50,"y":"\\u00e9\\n","z":{"q":[1, 2]}}',
                b'{"x":null,"y":null,"z":null}',
                b'{"x":12345678901234567890.10,"y":null,"z":null}',
            ],
            {2: "the value is not an object"},
        ),
    ],
)
def test_members_are_sent_as_they_are_written(
    file: pathlib.Path, select: str, values: list[bytes | None], refused: dict[int, str]
) -> None:
    file.write_text(ROWS)
    sent, errors, _ = loaded(file, select)
    assert [each.value for each in sent] == values
    assert errors.keys() == refused.keys()
    assert all(refused[row] in errors[row] for row in refused)


def test_all_members_are_columns_in_the_order_of_their_appearance(file: pathlib.Path) -> None:
    file.write_text(ROWS)
    sent, _, _ = loaded(file, "value=json(*)")
    first, *others = ROWS.splitlines()
    assert sent[0].value == first.encode()
    for message, line in zip(sent[1:], others, strict=True):
        assert message.value is not None
        assert json.loads(message.value) == {"id": None, "at": None} | json.loads(line)


def test_fields_of_a_message(file: pathlib.Path) -> None:
    file.write_text(
        '{"at":1700000000000,"n":3,"t":"a","h":[{"key":"k","value":"v"},{"key":"n"}]}\n'
        '{"at":"2024-01-01","n":"4","t":"b","h":{"k":"v","l":null}}\n'
        '{"at":1.5,"n":0,"t":"c"}\n{"n":1.5,"t":"c"}\n{"t":7}\n{"h":[{"key":1}]}\n{"h":{"k":5}}\n'
    )
    sent, errors, batch = loaded(file, "value=null, timestamp=at, partition=n, topic=t, headers=h")
    assert batch.select(["timestamp", "partition", "topic"]).to_pylist() == [
        {"timestamp": 1_700_000_000_000, "partition": 3, "topic": "a"},
        {"timestamp": 1_704_067_200_000, "partition": 4, "topic": "b"},
    ]
    assert [each.headers for each in sent] == [
        [(b"k", b"v"), (b"n", None)],
        [(b"k", b"v"), (b"l", None)],
    ]
    expected = [
        "milliseconds since 1970",
        "partition=n: ",
        "it must be text",
        "headers must be",
        "'k'",
    ]
    for row, said in enumerate(expected, 2):
        assert said in errors[row]


@pytest.mark.parametrize(
    ("select", "said"),
    [
        ("value=nme", "no column nme; did you mean name?"),
        ("value=p.nme", "p has no member nme; did you mean name?"),
        ("value=name.x", "name has no member x"),
        ("value=json(name.*)", "column name has no objects"),
    ],
)
def test_members_that_no_line_has(file: pathlib.Path, select: str, said: str) -> None:
    file.write_text('{"name":"a","p":{"name":"b"}}\n')
    with pytest.raises(SelectionError) as caught:
        loaded(file, select)
    assert said in str(caught.value)


#: A type of Avro, a JSON value, and the value that is read back; or why it is refused.
AVRO = [
    ("long", "9223372036854775807", 9223372036854775807),
    ("long", "9223372036854775808", "f: 9223372036854775808 where the schema has long"),
    ("int", "2147483648", "where the schema has int"),
    ("long", "1.5", "f: 1.5 where the schema has long"),
    ("long", '"1"', "where the schema has long"),
    ("long", "true", "where the schema has long"),
    ("long", "null", "f: null where the schema has long"),
    ("double", "0.1", 0.1),
    ("double", "5", 5.0),
    ("double", "1e22", 1e22),
    ("double", "9007199254740993", "f: 9007199254740993 where the schema has double"),
    ("double", "123456789.123456789123", "where the schema has double"),
    ("double", "1e400", "where the schema has double"),
    ("float", "0.5", 0.5),
    ("float", "16777217", "where the schema has float"),
    ("float", "0.123456789123", "where the schema has float"),
    ("boolean", "true", True),
    ("boolean", "1", "where the schema has boolean"),
    ("string", '"\\u00e9"', "\xe9"),
    ("string", "5", "f: 5 where the schema has string"),
    ("bytes", '"x"', "where the schema has bytes"),
    (["null", "long", "double", "string"], "1.5", 1.5),
    (["null", "long", "double", "string"], "null", None),
    (["float", "double"], "0.1234567890123", 0.1234567890123),
    (["int", "string"], "2147483648", "where the schema has string"),
    ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, '"B"', "B"),
    ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, '"C"', "f: C where the schema has enum"),
    ({"type": "array", "items": "long"}, "[1,2]", [1, 2]),
    ({"type": "array", "items": "long"}, "[1,null]", "f[]: null where the schema has long"),
    ({"type": "map", "values": "double"}, '{"a":0.5}', {"a": 0.5}),
    ({"type": "map", "values": "long"}, '{"a":0.5}', "f.a: 0.5 where the schema has long"),
]


@pytest.mark.parametrize(("kind", "cell", "expected"), AVRO)
def test_numbers_are_exact_in_avro(file: pathlib.Path, kind: Any, cell: str, expected: Any) -> None:
    check_avro(file, kind, cell, expected)


@pytest.mark.parametrize(
    ("kind", "cell", "expected"),
    [
        ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, "1.5", "1.50"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, "1.505", None),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, "123", None),
        ({"type": "int", "logicalType": "date"}, '"2024-02-29"', "2024-02-29"),
        ({"type": "int", "logicalType": "date"}, '"2023-02-29"', None),
        (
            {"type": "long", "logicalType": "timestamp-millis"},
            '"2024-02-29T01:00:00.123+01:00"',
            "2024-02-29 00:00:00.123000+00:00",
        ),
        ({"type": "long", "logicalType": "timestamp-millis"}, '"2024-02-29T01:00:00.1234"', None),
        ({"type": "int", "logicalType": "time-millis"}, '"01:02:03.004"', "01:02:03.004000"),
    ],
)
def test_logical_types_of_avro(
    file: pathlib.Path, kind: Any, cell: str, expected: str | None
) -> None:
    wanted = f"where the schema has {kind['logicalType']}" if expected is None else expected
    check_avro(file, kind, cell, wanted, str)


def check_avro(
    file: pathlib.Path, kind: Any, cell: str, expected: Any, form: Any = lambda value: value
) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "f", "type": kind}]}
    file.write_text(f'{{"f":{cell}}}\n')
    sent, errors, _ = loaded(file, f"value=avro(*, '{json.dumps(schema)}')")
    if isinstance(expected, str) and "where the schema" in expected:
        assert expected in errors[0]
        return
    assert errors == {}
    assert sent[0].value is not None
    found = fastavro.schemaless_reader(io.BytesIO(sent[0].value), schema)
    assert form(found["f"]) == expected


def test_a_nested_record_must_have_the_fields_of_the_schema(file: pathlib.Path) -> None:
    inner = {"type": "record", "name": "I", "fields": [{"name": "a", "type": "long"}]}
    schema = {"type": "record", "name": "R", "fields": [{"name": "p", "type": ["null", inner]}]}
    file.write_text('{"p":{"a":1}}\n{"p":{"b":1}}\n{"p":{}}\n{"p":null}\n')
    sent, errors, _ = loaded(file, f"value=avro(*, '{json.dumps(schema)}')")
    assert [each.value for each in sent] == [b"\x02\x02", b"\x00"]
    assert "p: the schema has no field b" in errors[1]
    assert "p: the schema requires a" in errors[2]


def test_refused_rows_can_be_loaded_again_with_the_same_selection(
    file: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    file.write_text(ROWS.replace(',"p":5', ""))
    (found,) = open_source([str(file)]).batches()
    rejects = Rejects(RejectsDirectory.of(str(tmp_path / "rejects")), "part")
    error = ValueError("wrong")
    rejects.take(Origin(found.batch, "file", 0), [RefusedRow(n, n, error) for n in range(4)])
    rejects.finish(Summary())
    for select in ("value=json(*)", "key=p.x, value=json(p.*, id)", "value=id, timestamp=null"):
        assert loaded(tmp_path / "rejects", select)[:2] == loaded(file, select)[:2]


@pytest.mark.parametrize(
    "cell", ['"\\', '"\\u12"', '"\\ud800"', '"a', '"', '{"a":', "{}x", "[", "\xff"]
)
def test_cells_that_are_not_json_do_no_harm(cell: str) -> None:
    """A Parquet file may claim that its text is JSON."""
    column = json_text.of_text(pyarrow.array(["1", cell], pyarrow.large_string()))
    for convert in (json_text.text, lambda array: json_text.member(array, "a")):
        try:
            convert(column)
        except ValueError:
            pass
