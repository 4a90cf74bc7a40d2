"""Avro container files: values by their types, codecs, parts, and files that are damaged."""

from __future__ import annotations

import contextlib
import datetime
import decimal
import io
import json
import pathlib
import uuid
import zlib
from collections.abc import Callable
from typing import Any

import fastavro
import pyarrow
import pytest
from fastavro._read_common import HEADER_SCHEMA

from pykaproducer._load.select import Selection
from pykaproducer._load.sources import LoadSource, SourceError, open_source

UTC = datetime.UTC
WHEN = datetime.datetime(9999, 12, 31, 23, 59, 59, 999_000)
UUID = uuid.UUID(bytes=bytes(range(16)))


@pytest.fixture
def path(tmp_path: pathlib.Path) -> str:
    return str(tmp_path / "x.avro")


def write(
    path: str, kind: Any, cells: list[Any], codec: str = "null", interval: int = 16_000
) -> None:
    """Write records with the fields ``a``, of a type, and ``n``, a number."""
    fields = [{"name": "a", "type": kind}, {"name": "n", "type": "long"}]
    schema = {"type": "record", "name": "row", "namespace": "test", "fields": fields}
    rows = [{"a": cell, "n": number} for number, cell in enumerate(cells)]
    compress = {"snappy": _snappy, "zstandard": _zstandard}.get(codec)
    with open(path, "wb") as file:
        fastavro.writer(file, schema, rows, "null" if compress else codec, interval)
    if compress:
        _compress_blocks(path, codec, compress)


def _snappy(data: bytes) -> bytes:
    compressed: bytes = pyarrow.compress(data, codec="snappy", asbytes=True)
    return compressed + zlib.crc32(data).to_bytes(4, "big")


def _zstandard(data: bytes) -> bytes:
    compressed: bytes = pyarrow.compress(data, codec="zstd", asbytes=True)
    return compressed


def _compress_blocks(path: str, codec: str, compress: Callable[[bytes], bytes]) -> None:
    """Compress a file, by a codec for which fastavro needs other packages."""
    out = io.BytesIO()
    with open(path, "rb") as file:
        blocks = fastavro.block_reader(file)
        sync = b"0123456789abcdef"
        meta = {name: text.encode() for name, text in blocks.metadata.items()}
        header = {"magic": b"Obj\1", "meta": meta | {"avro.codec": codec.encode()}, "sync": sync}
        fastavro.schemaless_writer(out, fastavro.schema.parse_schema(HEADER_SCHEMA), header)
        for block in blocks:
            data = compress(block.bytes_.getvalue())
            for number in (block.num_records, len(data)):
                fastavro.schemaless_writer(out, "long", number)
            out.write(data + sync)
    pathlib.Path(path).write_bytes(out.getvalue())


def as_json(source: LoadSource, text: str = "value=json(*)") -> list[Any]:
    mapping = Selection.parse(text).bind(source.schema)
    found = []
    for each in source.batches(mapping.columns):
        mapped = mapping(each.batch)
        assert mapped.refused == []
        found += [json.loads(text) for text in mapped.batch["value"].to_pylist()]
    return found


def count(source: LoadSource) -> int:
    return sum(each.batch.num_rows for each in source.batches())


def logical(base: Any, name: str, **more: Any) -> dict[str, Any]:
    return (base if isinstance(base, dict) else {"type": base}) | {"logicalType": name, **more}


def fixed(name: str, size: int) -> dict[str, Any]:
    return {"type": "fixed", "name": name, "size": size}


def record(name: str, **fields: Any) -> dict[str, Any]:
    described = [{"name": field, "type": kind} for field, kind in fields.items()]
    return {"type": "record", "name": name, "fields": described}


@pytest.mark.parametrize(
    ("kind", "cell", "found"),
    [
        ("null", None, None),
        ("boolean", True, True),
        ("int", -(2**31), -(2**31)),
        ("long", 2**63 - 1, 2**63 - 1),
        ("float", 0.5, 0.5),
        ("double", 1e300, 1e300),
        ("bytes", b"\xff", "/w=="),
        ("string", "é\0", "é\0"),
        (fixed("two", 2), b"\xff\0", "/wA="),
        ({"type": "enum", "name": "colour", "symbols": ["RED", "BLUE"]}, "BLUE", "BLUE"),
        (logical("int", "date"), datetime.date(1, 1, 1), "0001-01-01"),
        (logical("int", "time-millis"), datetime.time(1, 2, 3, 4000), "01:02:03.004"),
        (logical("long", "time-micros"), datetime.time(1, 2, 3, 4), "01:02:03.000004"),
        (
            logical("long", "timestamp-millis"),
            WHEN.replace(tzinfo=UTC),
            "9999-12-31T23:59:59.999Z",
        ),
        (
            logical("long", "timestamp-micros"),
            WHEN.replace(tzinfo=UTC),
            "9999-12-31T23:59:59.999000Z",
        ),
        (logical("long", "timestamp-nanos"), 1, "1970-01-01T00:00:00.000000001Z"),
        (logical("long", "local-timestamp-millis"), WHEN, "9999-12-31T23:59:59.999"),
        (logical("long", "local-timestamp-micros"), WHEN, "9999-12-31T23:59:59.999000"),
        (logical("string", "uuid"), UUID, str(UUID)),
        (logical(fixed("id", 16), "uuid"), UUID.bytes, str(UUID)),
        (
            logical(fixed("time", 12), "duration"),
            b"\1\0\0\0\2\0\0\0\3\0\0\0",
            "P1M2DT0.003000000S",
        ),
        (
            logical("bytes", "decimal", precision=40, scale=2),
            decimal.Decimal("-" + "9" * 38 + ".25"),
            float("-" + "9" * 38 + ".25"),
        ),
        (
            logical(fixed("money", 4), "decimal", precision=5, scale=2),
            decimal.Decimal("-1.25"),
            -1.25,
        ),
        (logical("long", "a type of ours"), 5, 5),
        (["null", "string"], None, None),
        (["string", "null"], "a", "a"),
        (["null", "int", "long"], 2**40, 2**40),
        (["int", "string", "null"], "a", {"member0": None, "member1": "a"}),
        (["int", "string", "null"], None, None),
        (
            [record("x", a="int"), record("y", a="int")],
            ("test.y", {"a": 1}),
            {"member0": None, "member1": {"a": 1}},
        ),
        (
            {"type": "array", "items": ["null", logical("int", "date")]},
            [None, datetime.date(2024, 2, 29)],
            [None, "2024-02-29"],
        ),
        (
            {"type": "map", "values": logical("int", "date")},
            {"k": datetime.date(2024, 2, 29)},
            {"k": "2024-02-29"},
        ),
        (
            record("out", day=logical("int", "date"), twice=[fixed("f", 1), "test.f", "null"]),
            {"day": datetime.date(2024, 2, 29), "twice": None},
            {"day": "2024-02-29", "twice": None},
        ),
        (
            record("both", one=fixed("f", 1), two={"type": "array", "items": "test.f"}),
            {"one": b"a", "two": [b"b"]},
            {"one": "YQ==", "two": ["Yg=="]},
        ),
    ],
)
def test_values_by_their_types(path: str, kind: Any, cell: Any, found: Any) -> None:
    write(path, kind, [cell, cell])
    assert as_json(open_source([path])) == [{"a": found, "n": number} for number in (0, 1)]
    nested = record(
        "outer", x={"type": "array", "items": ["null", {"type": "map", "values": kind}]}
    )
    if kind != "null":
        write(path, nested, [{"x": [None, {"k": cell}]}])
        assert as_json(open_source([path])) == [{"a": {"x": [None, {"k": found}]}, "n": 0}]


@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2", "xz", "snappy", "zstandard"])
def test_codecs_and_parts(path: str, codec: str) -> None:
    cells = [f"{number} text" for number in range(20_000)]
    write(path, "string", cells, codec)
    source = open_source([path])
    assert [row["a"] for row in as_json(source)] == cells
    assert as_json(source, "value=json(n)") == [{"n": number} for number in range(20_000)]
    assert sum(each.batch.num_rows for each in source.batches([])) == 20_000
    parts = source.parts(source.size // 4)
    assert 2 < len(parts) < 6
    row = 0
    for part in parts:
        for batch, _, first, position in part.batches(source.schema):
            assert first == row
            assert batch["a"].to_pylist() == cells[row : row + batch.num_rows]
            assert position <= source.size
            row += batch.num_rows
    assert row == 20_000


@pytest.mark.parametrize(
    ("kind", "cell", "said"),
    [
        (record("node", next=["null", "test.node"]), {"next": None}, "test.node is recursive"),
        ({"type": "array", "items": "null"}, [], "an array of values without bytes"),
        (logical("bytes", "decimal", precision=77), b"", "77 digits, of which 76 are supported"),
    ],
)
def test_types_that_are_refused(path: str, kind: Any, cell: Any, said: str) -> None:
    if "decimal" in str(kind):
        cell = decimal.Decimal(0)
    write(path, kind, [cell])
    with pytest.raises(SourceError, match=said) as caught:
        open_source([path])
    assert str(caught.value).startswith(f"{path}: ")


@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2", "xz", "snappy", "zstandard"])
def test_no_damage_is_anything_but_an_error_that_names_the_file(path: str, codec: str) -> None:
    cells = [str(number) * 9 for number in range(300)]
    write(path, ["null", "string"], cells, codec, 1000)
    data = pathlib.Path(path).read_bytes()
    for place in range(0, len(data), 7):
        for damaged in (
            data[:place],
            data[:place] + bytes([data[place] ^ 0x81]) + data[place + 1 :],
        ):
            pathlib.Path(path).write_bytes(damaged)
            with contextlib.suppress(SourceError):
                # Cut between two blocks, or changed where there is no checksum.
                assert count(open_source([path])) <= len(cells)


def test_what_precedes_the_damage_is_read_and_its_place_named(path: str) -> None:
    write(path, "string", ["a" * 100] * 300, "snappy", 1000)
    data = bytearray(pathlib.Path(path).read_bytes())
    data[len(data) * 2 // 3] ^= 1
    pathlib.Path(path).write_bytes(data)
    batches = open_source([path]).batches()
    read = next(batches).batch.num_rows
    assert read > 100
    with pytest.raises(SourceError) as caught:
        next(batches)
    assert "block at byte " in str(caught.value)
    assert f"row {read}: " in str(caught.value)


def test_text_that_is_not_utf8(path: str) -> None:
    write(path, "bytes", [b"a", b"\xff"])
    rest = io.BytesIO(pathlib.Path(path).read_bytes()[4:])
    meta = fastavro.schemaless_reader(rest, {"type": "map", "values": "bytes"}, None)
    meta["avro.schema"] = meta["avro.schema"].replace(b'"bytes"', b'"string"')
    out = io.BytesIO(b"Obj\1")
    out.seek(4)
    fastavro.schemaless_writer(out, {"type": "map", "values": "bytes"}, meta)
    pathlib.Path(path).write_bytes(out.getvalue() + rest.read())
    with pytest.raises(SourceError, match=r"row 1: 'utf-8' codec can't decode"):
        as_json(open_source([path]))
