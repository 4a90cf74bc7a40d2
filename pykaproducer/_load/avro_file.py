"""Reader of Avro container files.

fastavro decodes records, but not logical types, maps and unions, which are decoded here. (It drops
a key that is there twice, and times that Python's datetime does not represent are errors.) For that
it gets a schema that has the same binary encoding as the file's: without logical types, with arrays
of entries for maps, and with a record for each type of a union, whose one field tells the type. As
on Spark, a union of several types is a struct with a field ``member0``, ``member1`` ... for each of
them, but int and long are long, and float and double are double.
"""

from __future__ import annotations

import bz2
import dataclasses
import decimal
import io
import itertools
import json
import lzma
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, NamedTuple

import pyarrow

from pykaproducer._load.avro import fastavro_module
from pykaproducer._load.encoders import (
    TEXT,
    EncodingError,
    MissingPackageError,
    conform,
    decimal_type,
    interval,
    plain,
)
from pykaproducer._load.names import SourceError
from pykaproducer._load.reader import WHOLE, FilePart, FileReader, Read, batch_of
from pykaproducer._load.stores import opened

_MAGIC = b"Obj\x01"
_SYNC = 16
#: Maximum size of a block, and approximate size (bytes) and number of the records of a batch.
_LARGEST = 1 << 30
#: Bytes that are decompressed at once.
_PIECE = 1 << 20
_BYTES = 2 << 20
_ROWS = 16_384

#: Errors of fastavro, of pyarrow and of the codecs for data that does not fit the schema.
_DAMAGE = (
    *(ValueError, LookupError, ArithmeticError, EOFError, TypeError, MemoryError, struct.error),
    *(OSError, zlib.error, lzma.LZMAError, pyarrow.ArrowException),
)


class AvroReader(FileReader):
    """An Avro container file. Its parts are ranges of blocks, by their byte positions."""

    advice = "is it a complete Avro file? (for another format, use --format)"

    def _read_schema(self) -> Any:
        with opened(self.path) as file:
            return self._header(file).schema

    def parts(self, size: int) -> list[FilePart]:
        if self.size <= size:
            return [WHOLE]
        found = []
        with self.errors(), opened(self.path) as file:
            header = self._header(file)
            start, first, row = header.end, 0, 0
            for block in self._blocks(file, header, WHOLE):
                row += block.records
                if block.end - start >= size or block.end >= self.size:
                    found.append(FilePart(start, block.end, first))
                    start, first = block.end, row
        return found or [WHOLE]

    def _read(self, schema: Any, part: FilePart) -> Iterator[Read]:
        names = set(schema.names)
        with opened(self.path) as file:
            header = self._header(file)
            self._check_unchanged(header.schema)
            nodes = {name: node for name, node in header.record.fields.items() if name in names}
            row, end, size = part.first_row, 0, 0
            records: list[dict[str, Any]] = []
            try:
                for record, length, end in self._records(file, header, part):
                    records.append(record)
                    size += length
                    if len(records) == _ROWS or size > _BYTES:
                        full, records, size = records, [], 0
                        yield Read(self._batch(nodes, full, row), end)
                        row += len(full)
            except SourceError:
                # Records before the damage are valid.
                if records:
                    yield Read(self._batch(nodes, records, row), end)
                raise
            if records:
                yield Read(self._batch(nodes, records, row), end)

    def _header(self, file: BinaryIO) -> _Header:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise SourceError(f"{self.path}: not an Avro container file; {self.advice}")
        try:
            avro = fastavro_module()
            found = avro.schemaless_reader(file, {"type": "map", "values": "bytes"}, None)
            schema = avro.parse_schema(json.loads(found["avro.schema"]))
            codec = found.get("avro.codec", b"null").decode()
            if codec not in _CODECS:
                raise EncodingError(f"the codec {codec} is not supported")
            if not isinstance(schema, dict) or schema["type"] not in ("record", "error"):
                raise EncodingError("the schema is not that of a record")
            record = _Schema().node(schema)
        except (EncodingError, MissingPackageError) as error:
            raise SourceError(f"{self.path}: {error}") from None
        except (*_DAMAGE, RecursionError, avro.schema.SchemaParseException) as error:
            raise SourceError(f"{self.path}: the header is invalid: {error!r}") from error
        sync = file.read(_SYNC)
        return _Header(record, avro.parse_schema(record.schema), codec, sync, file.tell())

    def _blocks(self, file: BinaryIO, header: _Header, part: FilePart) -> Iterator[_Block]:
        """Yield the blocks of a part. Checks that each is complete."""
        position = part.start or header.end
        stop = self.size if part.stop is None else part.stop
        while position < stop:
            file.seek(position)
            count, size = _long(file), _long(file)
            start = file.tell()
            end = start + max(size, 0) + _SYNC
            file.seek(end - _SYNC)
            if count < 0 or size < 0 or file.read(_SYNC) != header.sync:
                raise SourceError(
                    f"{self.path}: byte {position}: the block is damaged or incomplete; write the "
                    f"file again"
                )
            yield _Block(count, position, start, end)
            position = end

    def _records(
        self, file: BinaryIO, header: _Header, part: FilePart
    ) -> Iterator[tuple[dict[str, Any], int, int]]:
        """Yield the records of a part, with their size and the end of their block."""
        read = fastavro_module().schemaless_reader
        row = part.first_row
        for block in self._blocks(file, header, part):
            file.seek(block.start)
            try:
                data = _CODECS[header.codec](file.read(block.end - _SYNC - block.start))
                if header.record.is_empty and block.records > _ROWS:
                    raise EncodingError("too many records without fields")
                source, begun = io.BytesIO(data), 0
                for _ in range(block.records):
                    record = read(source, header.decoded, None)
                    begun, length = source.tell(), source.tell() - begun
                    yield record, length, block.end
                    row += 1
                if begun != len(data):
                    raise EncodingError("bytes follow the last record")
            except _DAMAGE as error:
                raise self._damage(f"block at byte {block.position}, row {row}", error) from error

    def _batch(self, nodes: dict[str, _Node], records: list[dict[str, Any]], row: int) -> Any:
        """Convert records, the first of which is *row*."""
        columns = []
        for name, node in nodes.items():
            try:
                column = pyarrow.array([record[name] for record in records], node.stored)
                columns.append(node.finish(column))
            except _DAMAGE as error:
                where = f"rows {row} to {row + len(records) - 1}, column {name}"
                raise self._damage(where, error) from error
        return batch_of(len(records), list(nodes), columns)

    def _damage(self, where: str, error: Exception) -> SourceError:
        reason = str(error) or type(error).__name__
        return SourceError(f"{self.path}: {where}: {reason}; write the file again")


class _Block(NamedTuple):
    """A block: its records, and the positions of its header, its data and its end."""

    records: int
    position: int
    start: int
    end: int


class _Header(NamedTuple):
    """The header of a file, which ends at the position *end*."""

    record: _Node
    #: The schema for fastavro, parsed.
    decoded: Any
    codec: str
    sync: bytes
    end: int

    @property
    def schema(self) -> Any:
        return pyarrow.schema(list(self.record.kind))


def _long(file: BinaryIO) -> int:
    """Read a number of the header of a block; -1 if it is not one."""
    value = 0
    for shift in range(0, 70, 7):
        byte = file.read(1)
        if not byte:
            return -1
        value |= (byte[0] & 127) << shift
        if byte[0] < 128:
            return (value >> 1) ^ -(value & 1)
    return -1


# Codecs ------------------------------------------------------------------------------------------


def _inflated(decompressor: Any) -> Callable[[bytes], bytes]:
    def decompress(data: bytes) -> bytes:
        one = decompressor()
        found: bytes = one.decompress(data, _LARGEST)
        if not one.eof:
            raise EncodingError(f"the block is cut, or has more than {_LARGEST} bytes")
        return found

    return decompress


def _snappy(data: bytes) -> bytes:
    data, checksum = data[:-4], data[-4:]
    source = io.BytesIO(data)
    size = shift = 0
    while True:
        (byte,) = source.read(1)
        size |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            break
    if size > _LARGEST:
        raise EncodingError(f"the block has more than {_LARGEST} bytes")
    found = pyarrow.decompress(data, size, codec="snappy", asbytes=True)
    if zlib.crc32(found) != int.from_bytes(checksum, "big"):
        raise EncodingError("the checksum is wrong")
    return bytes(found)


def _zstandard(data: bytes) -> bytes:
    found = bytearray()
    with pyarrow.CompressedInputStream(pyarrow.BufferReader(data), "zstd") as stream:
        # In pieces: pyarrow allocates what it is asked for, and keeps it after an error.
        while piece := stream.read(_PIECE):
            found += piece
            if len(found) > _LARGEST:
                raise EncodingError(f"the block has more than {_LARGEST} bytes")
    return bytes(found)


_CODECS: dict[str, Callable[[bytes], bytes]] = {
    "null": bytes,
    "deflate": _inflated(lambda: zlib.decompressobj(-15)),
    "bzip2": _inflated(bz2.BZ2Decompressor),
    "xz": _inflated(lzma.LZMADecompressor),
    "snappy": _snappy,
    "zstandard": _zstandard,
}


# Types -------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Node:
    """How the values of a type are decoded."""

    #: The schema for fastavro.
    schema: Any
    #: The Arrow type of what fastavro returns.
    stored: Any
    #: The Arrow type of the column.
    kind: Any
    #: Converts from one to the other.
    finish: Callable[[Any], Any]
    #: Of a record, by name.
    fields: dict[str, _Node] = dataclasses.field(default_factory=dict)
    #: Whether values have no bytes.
    is_empty: bool = False


def _same(schema: Any, kind: Any, *, is_empty: bool = False) -> _Node:
    return _Node(schema, kind, kind, lambda array: array, is_empty=is_empty)


_PRIMITIVES = {
    "null": pyarrow.null(),
    "boolean": pyarrow.bool_(),
    "int": pyarrow.int32(),
    "long": pyarrow.int64(),
    "float": pyarrow.float32(),
    "double": pyarrow.float64(),
    "bytes": pyarrow.binary(),
    "string": pyarrow.string(),
}

#: Logical types of numbers: the type that each annotates, and its Arrow type.
_LOGICAL = {
    "date": ("int", pyarrow.date32()),
    "time-millis": ("int", pyarrow.time32("ms")),
    "time-micros": ("long", pyarrow.time64("us")),
    **{
        f"{local}timestamp-{name}": ("long", pyarrow.timestamp(unit, zone))
        for local, zone in (("", "UTC"), ("local-", None))
        for name, unit in (("millis", "ms"), ("micros", "us"), ("nanos", "ns"))
    },
}


class _Schema:
    """Converts the types of a schema that fastavro has parsed: names are full, and defined."""

    def __init__(self) -> None:
        #: None while the type is being converted.
        self._named: dict[str, _Node | None] = {}
        self._numbers = itertools.count()

    def node(self, schema: Any) -> _Node:
        """Convert a type; EncodingError if it cannot be read."""
        if isinstance(schema, list):
            return self._union(schema)
        if isinstance(schema, str):
            if schema in _PRIMITIVES:
                return _same(schema, _PRIMITIVES[schema], is_empty=schema == "null")
            found = self._named[schema]
            if found is None:
                raise EncodingError(f"the type {schema} is recursive, which is not supported")
            return dataclasses.replace(found, schema=schema)
        kind = schema["type"]
        if isinstance(kind, dict | list):
            return self.node(kind)
        if kind in ("record", "error", "enum", "fixed"):
            name = schema["name"]
            self._named[name] = None
            made: _Node = getattr(self, f"_{kind}")(schema)
            self._named[name] = made
            return made
        if kind == "array":
            return self._array(self.node(schema["items"]))
        if kind == "map":
            return self._map(schema["values"])
        return _logical(schema, self.node(kind))

    def _record(self, schema: dict[str, Any]) -> _Node:
        fields = {each["name"]: self.node(each["type"]) for each in schema["fields"]}
        return _struct(schema["name"], fields)

    _error = _record

    def _enum(self, schema: dict[str, Any]) -> _Node:
        return _same(_only(schema, "type", "name", "symbols"), pyarrow.string())

    def _fixed(self, schema: dict[str, Any]) -> _Node:
        size = schema["size"]
        plainly = _only(schema, "type", "name", "size")
        return _logical(schema, _same(plainly, pyarrow.binary(size), is_empty=size == 0))

    def _array(self, items: _Node) -> _Node:
        if items.is_empty:
            # Two bytes can make an array of any number of these.
            raise EncodingError("an array of values without bytes is not supported")
        return _Node(
            {"type": "array", "items": items.schema},
            pyarrow.list_(items.stored),
            pyarrow.list_(items.kind),
            lambda array: pyarrow.ListArray.from_arrays(
                array.offsets, items.finish(array.values), mask=array.is_null()
            ),
        )

    def _map(self, values: Any) -> _Node:
        entry = {"key": _same("string", pyarrow.string()), "value": self.node(values)}
        entries = self._array(_struct(self._unique("entry"), entry))
        kind = pyarrow.map_(pyarrow.string(), entry["value"].kind)
        return dataclasses.replace(
            entries, kind=kind, finish=lambda array: conform(entries.finish(array), kind)
        )

    def _union(self, types: list[Any]) -> _Node:
        nodes = [self.node(each) for each in types if each != "null"]
        kinds = {node.kind for node in nodes}
        if len(nodes) > 1 and kinds == {pyarrow.int32(), pyarrow.int64()}:
            return _same(types, pyarrow.int64())
        if len(nodes) > 1 and kinds == {pyarrow.float32(), pyarrow.float64()}:
            return _same(types, pyarrow.float64())
        if len(nodes) < 2:
            node = nodes[0] if nodes else _same("null", pyarrow.null())
            union = ["null" if each == "null" else node.schema for each in types]
            return dataclasses.replace(node, schema=union, is_empty=False)
        fields = {f"member{place}": node for place, node in enumerate(nodes)}
        members = iter(
            [_struct(self._unique("member"), {name: node}) for name, node in fields.items()]
        )
        union = ["null" if each == "null" else next(members).schema for each in types]
        return dataclasses.replace(_struct("", fields), schema=union, is_empty=False)

    def _unique(self, what: str) -> str:
        return f"pykaproducer.{what}{next(self._numbers)}"


def _only(schema: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: schema[name] for name in names}


def _struct(name: str, fields: dict[str, _Node]) -> _Node:
    kind = pyarrow.struct([(each, node.kind) for each, node in fields.items()])

    def finish(array: Any) -> Any:
        if array.type == kind:
            return array
        columns = [
            node.finish(child) for node, child in zip(fields.values(), array.flatten(), strict=True)
        ]
        return pyarrow.StructArray.from_arrays(columns, fields=list(kind), mask=array.is_null())

    described = [{"name": each, "type": node.schema} for each, node in fields.items()]
    return _Node(
        {"type": "record", "name": name, "fields": described},
        pyarrow.struct([(each, node.stored) for each, node in fields.items()]),
        kind,
        finish,
        fields,
        all(node.is_empty for node in fields.values()),
    )


def _logical(schema: dict[str, Any], node: _Node) -> _Node:
    """Apply the logical type of a schema; one that is unknown or does not fit has no effect."""
    logical, annotated = schema.get("logicalType"), schema["type"]
    base, kind = _LOGICAL.get(str(logical), ("", None))
    size = schema.get("size")
    if annotated == base:
        return dataclasses.replace(node, kind=kind, finish=lambda array: array.cast(kind))
    if logical == "uuid" and size == 16:
        return dataclasses.replace(node, kind=TEXT, finish=_uuid)
    if logical == "duration" and size == 12:
        return dataclasses.replace(node, kind=TEXT, finish=_duration)
    if logical == "decimal" and annotated in ("bytes", "fixed"):
        precision, scale = schema.get("precision", 0), schema.get("scale", 0)
        if precision > 76:
            raise EncodingError(f"a decimal with {precision} digits, of which 76 are supported")
        if 0 <= scale <= precision and precision > 0:
            kind = decimal_type(precision, scale)
            return dataclasses.replace(node, kind=kind, finish=lambda array: _decimal(array, kind))
    return node


def _uuid(array: Any) -> Any:
    return plain(pyarrow.ExtensionArray.from_storage(pyarrow.uuid(), array))


def _duration(array: Any) -> Any:
    found = []
    for cell in array.to_pylist():
        months, days, millis = (0, 0, 0) if cell is None else struct.unpack("<3I", cell)
        found.append(None if cell is None else interval(months, days, millis * 1_000_000))
    return pyarrow.array(found, TEXT)


def _decimal(array: Any, kind: Any) -> Any:
    exact = decimal.Context(prec=100)
    found = [
        None
        if cell is None
        else exact.scaleb(decimal.Decimal(int.from_bytes(cell, "big", signed=True)), -kind.scale)
        for cell in array.to_pylist()
    ]
    return pyarrow.array(found, kind)
