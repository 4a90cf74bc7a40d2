"""``--select``: the selected columns are sent unchanged; errors point at their position."""

from __future__ import annotations

import datetime
import pathlib
import pickle
from typing import Any

import pyarrow
import pytest

from pykaproducer._load.mapping import Mapped
from pykaproducer._load.select import Selection, SelectionError
from pykaproducer.testing import ScriptedCluster

#: Far more than any operation here takes (seconds).
SOON = 30


def mapped(text: str, columns: dict[str, Any]) -> Mapped:
    """Return the result of the selection for a batch, after pickling it."""
    batch = pyarrow.record_batch(columns)
    selection: Selection = pickle.loads(pickle.dumps(Selection.parse(text)))
    mapping = pickle.loads(pickle.dumps(selection.bind(batch.schema)))
    return mapping(batch.select(mapping.columns))


def sent(text: str, columns: dict[str, Any]) -> list[dict[str, Any]]:
    found = mapped(text, columns)
    assert found.refused == []
    assert found.rows is None
    rows: list[dict[str, Any]] = found.batch.to_pylist()
    return rows


# Sent columns


def addresses(array: Any) -> list[int | None]:
    """Return the memory addresses of a column."""
    return [None if buffer is None else buffer.address for buffer in array.buffers()]


def test_bytes_and_text_are_sent_as_they_are() -> None:
    kinds = [
        pyarrow.binary(),
        pyarrow.string(),
        pyarrow.large_string(),
        pyarrow.large_binary(),
        pyarrow.string_view(),
        pyarrow.binary_view(),
        pyarrow.binary(2),
        pyarrow.dictionary(pyarrow.int8(), pyarrow.string()),
    ]
    for kind in kinds:
        column = pyarrow.array(["ab", None], pyarrow.string()).cast(kind)
        found = mapped("value=a", {"a": column}).batch
        assert found.column("value").type == kind
        assert addresses(found.column("value")) == addresses(column)


def test_other_columns_are_sent_as_their_text() -> None:
    row = {
        "n": 7,
        "f": 0.1,
        "b": True,
        "d": datetime.date(2024, 2, 29),
        "t": datetime.datetime(2024, 2, 29, 1, 2, 3, 4),
        "z": datetime.datetime(2024, 2, 29, 1, tzinfo=datetime.UTC),
        "nothing": None,
    }
    made = {
        name: "".join(sent(f"value={name}", {name: [cell]})[0]["value"] or "-")
        for name, cell in row.items()
    }
    assert made == {
        "n": "7",
        "f": "0.1",
        "b": "true",
        "d": "2024-02-29",
        "t": "2024-02-29T01:02:03.000004",
        "z": "2024-02-29T01:00:00.000000Z",
        "nothing": "-",
    }


def test_literals_are_the_same_in_every_row() -> None:
    text = "value=null, key='it''s', partition=3, timestamp=12, topic='t', headers.n=-5"
    assert (
        sent(text, {"a": [1, 2]})
        == [
            {
                "value": None,
                "key": b"it's",
                "partition": 3,
                "timestamp": 12,
                "topic": "t",
                "headers": [{"key": "n", "value": b"-5"}],
            }
        ]
        * 2
    )


def test_headers_come_in_their_order_and_may_be_null() -> None:
    columns = {"a": ["x", None, "z"], "b": pyarrow.array(["p", "q", "r"]).dictionary_encode()}
    found = sent("value=a, headers.one=a, headers.`t w o`=b, headers.one=1", columns)
    assert [[(h["key"], h["value"]) for h in row["headers"]] for row in found] == [
        [("one", b"x"), ("t w o", b"p"), ("one", b"1")],
        [("one", None), ("t w o", b"q"), ("one", b"1")],
        [("one", b"z"), ("t w o", b"r"), ("one", b"1")],
    ]


def test_a_batch_without_rows_is_one() -> None:
    columns = {"a": pyarrow.array([], pyarrow.int32())}
    assert sent("value=json(*), key=a, headers.x=a, headers.y='', timestamp=a", columns) == []


def test_a_field_of_a_struct() -> None:
    columns = {"s": [{"t": {"x": "deep"}}, {"t": None}, None], "s.t": ["a", "b", "c"]}
    assert [row["value"] for row in sent("value=s.t.x, key=`s.t`", columns)] == ["deep", None, None]
    assert [row["value"] for row in sent("value=`s.t`", columns)] == ["a", "b", "c"]


def test_times_may_be_times_dates_numbers_or_text() -> None:
    day = datetime.date(1970, 1, 2)
    for column in (
        pyarrow.array([86_400_000, None]),
        pyarrow.array(["86400000", None]),
        pyarrow.array(["1970-01-02", None]).dictionary_encode(),
        pyarrow.array(["1970-01-02T01:00:00+01:00", None]),
        pyarrow.array([day, None]),
        pyarrow.array([86_400_000_000_000, None], pyarrow.timestamp("ns")),
        pyarrow.array([86_400, None], pyarrow.timestamp("s", "Europe/Berlin")),
    ):
        made = mapped("value='', timestamp=t", {"t": column}).batch.column("timestamp")
        assert made.cast(pyarrow.timestamp("ms")).cast(pyarrow.int64()).to_pylist() == [
            86_400_000,
            None,
        ]


def test_rows_that_cannot_be_sent_are_told_and_the_others_are_sent() -> None:
    columns = {
        "t": ["1", "yesterday", "3", None, "5", "9" * 20, "7"],
        "p": ["1", "2", "three", "4", "", "6", "0X10"],
        "view": pyarrow.array(list("abcdefg"), pyarrow.string_view()),
    }
    found = mapped("value=view, timestamp=t, partition=p, headers.x=view", columns)
    assert found.rows == [0, 3]
    assert [row for row, _ in found.refused] == [1, 2, 4, 5, 6]
    texts = [str(error) for _, error in found.refused]
    assert texts[0].startswith("timestamp=t: 'yesterday' is neither milliseconds since 1970 nor")
    assert texts[1] == "partition=p: 'three' is not an integer"
    assert texts[3].startswith(f"timestamp=t: '{'9' * 20}' is neither milliseconds since 1970 nor")
    assert texts[4] == "partition=p: '0X10' is not an integer"
    assert [(row["value"], row["partition"]) for row in found.batch.to_pylist()] == [
        ("a", 1),
        ("d", 4),
    ]
    assert pickle.loads(pickle.dumps(found.refused[0][1])).args == found.refused[0][1].args


def test_a_batch_of_which_no_row_can_be_sent() -> None:
    found = mapped("value=t, timestamp=t", {"t": ["a", "b"]})
    assert found.rows == []
    assert found.batch.num_rows == 0
    assert len(found.refused) == 2


def test_only_what_is_needed_is_read() -> None:
    schema = pyarrow.schema([(name, pyarrow.string()) for name in "abcdef"])
    selection = Selection.parse("value=json(f, b as x), key=d, headers.h=b")
    assert selection.bind(schema).columns == ("f", "b", "d")
    assert Selection.parse("value=json(*)").bind(schema).columns == tuple("abcdef")
    assert Selection.parse("value='x'").bind(schema).columns == ()


def test_the_producer_takes_what_is_made() -> None:
    columns = {
        "n": [1, 2],
        "text": pyarrow.array(["a", None]).dictionary_encode(),
        "view": pyarrow.array([b"x", b"y"], pyarrow.binary_view()),
        "topic": ["one", "two"],
        "at": ["1970-01-01T00:00:01Z", "5"],
        "p": ["0", None],
    }
    batches = [
        mapped("value=json(n), key=text, topic=topic, timestamp=at, partition=p", columns),
        mapped("value=view, key=n, headers.h=text, headers.`é`='1', topic='one'", columns),
        mapped("value=text, timestamp=null, partition=null, topic=topic, key=null", columns),
    ]
    with ScriptedCluster() as cluster:
        for name in ("one", "two"):
            cluster.add_topic(name, 1)
        with cluster.producer() as producer:
            for each in batches:
                producer.send_arrow(each.batch).result(SOON)
        one, two = cluster.log("one"), cluster.log("two")
    assert [(r.key, r.value, list(r.headers)) for r in one] == [
        (b"a", b'{"n":1}', []),
        (b"1", b"x", [("h", b"a"), ("é", b"1")]),
        (b"2", b"y", [("h", None), ("é", b"1")]),
        (None, b"a", []),
    ]
    assert [(r.key, r.value, list(r.headers)) for r in two] == [
        (None, b'{"n":2}', []),
        (None, None, []),
    ]
    assert (one[0].timestamp, two[0].timestamp) == (1000, 5)


# Type errors

SCHEMA = pyarrow.schema(
    [
        ("user_id", pyarrow.int64()),
        ("s", pyarrow.struct([("x", pyarrow.int64())])),
        ("a.b", pyarrow.string()),
        ("d", pyarrow.dense_union([pyarrow.field("0", pyarrow.int64())])),
        (
            "h",
            pyarrow.list_(pyarrow.struct([("value", pyarrow.binary()), ("key", pyarrow.string())])),
        ),
        ("twice", pyarrow.int64()),
        ("twice", pyarrow.int64()),
    ]
)


@pytest.mark.parametrize(
    ("text", "position", "said"),
    [
        ("value=userid", 6, "no column userid; did you mean user_id?; available: user_id, s,"),
        ("value=USER_ID", 6, "did you mean user_id?"),
        ("key=1, value=json(s, zzz)", 21, "no column zzz; available: user_id"),
        ("value=a.b", 6, "no column a; use `a.b`"),
        ("value=s.y", 6, "s has no field y; available: x"),
        ("value=user_id.y", 6, "user_id is int64; .y requires a struct"),
        ("value=json(user_id.*)", 11, "user_id is int64; .* requires a struct"),
        ("value=twice", 6, "the source has 2 columns named twice"),
        ("value=s", 6, "which has no text form; use json(s)"),
        ("value=json(d)", 6, "type dense_union<0: int64=0> has no JSON representation"),
        ("value=json(s.x, s.*)", 16, "two members are named x; rename one"),
        ("value=user_id, topic=user_id", 21, "a topic must be text"),
        ("value=user_id, partition=s", 25, "a partition must be an integer"),
        ("value=user_id, timestamp=s", 25, "a timestamp must be a timestamp, a date"),
        ("value=user_id, headers=h", 23, "headers must be a list of structs of key and value"),
    ],
)
def test_what_does_not_fit_the_source_is_shown(text: str, position: int, said: str) -> None:
    with pytest.raises(SelectionError) as caught:
        Selection.parse(text).bind(SCHEMA)
    assert said in str(caught.value)
    assert caught.value.position == position


def test_an_avro_schema_that_does_not_fit_is_shown(tmp_path: pathlib.Path) -> None:
    def error(items: str, schema: str) -> str:
        with pytest.raises(SelectionError) as caught:
            Selection.parse(f"value=avro({items}, '{schema}')").bind(SCHEMA)
        return str(caught.value)

    def record(kind: str, more: str = "") -> str:
        fields = f'[{{"name":"user_id","type":{kind}{more}}}]'
        return f'{{"type":"record","name":"r","fields":{fields}}}'

    assert "x.avsc: the Avro schema cannot be read: No such file" in error("*", "x.avsc")
    assert "the Avro schema is invalid: " in error("*", "{")
    assert "the Avro schema is invalid: " in error("*", record('"lung"'))
    assert "is invalid: " in error("*", '{"type":"record"}')
    assert "not the schema of a record" in error("*", '{"type":"array","items":"int"}')
    assert "the schema has no field s" in error("user_id, s", record('"long"'))
    assert "the schema has no field user" in error("s as user", record('"long"'))
    asks = record('"long"},{"name":"x","type":"long"')
    assert "requires x, which has no default; add it" in error("*", asks)
    assert "user_id: the schema has string, the column is int64" in error("*", record('"string"'))
    path = tmp_path / "bad.avsc"
    path.write_text("[]")
    assert "bad.avsc is not the schema of a record" in error("*", str(path))


# Without a selection


def default(columns: dict[str, Any]) -> tuple[str, list[dict[str, Any]]]:
    batch = pyarrow.record_batch(columns)
    selection = Selection.default(batch.schema)
    return str(selection), selection.bind(batch.schema)(batch).batch.to_pylist()


def test_a_source_of_messages_is_sent_as_it_is() -> None:
    headers = pyarrow.array([[("a", b"1")]], pyarrow.map_(pyarrow.string(), pyarrow.binary()))
    text, rows = default({"headers": headers, "value": [b"v"], "key": ["k"], "partition": [1]})
    assert text == "key=key, value=value, partition=partition, headers=headers"
    assert rows == [{"key": "k", "value": b"v", "partition": 1, "headers": [("a", b"1")]}]


def test_any_other_source_is_sent_as_json() -> None:
    text, rows = default({"key": [1], "other": ["x"]})
    assert text == "value=json(*)"
    assert rows == [{"value": b'{"key":1,"other":"x"}'}]


def test_a_column_value_among_others_is_not_sent_alone() -> None:
    with pytest.raises(SelectionError, match=r"not part of a message \(sensor\); use --select"):
        default({"sensor": [1], "value": [1.5]})
