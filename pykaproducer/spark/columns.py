"""The columns of a write: those of Spark's Kafka sink, and ``timestamp``.

They are checked in the driver, when the write is planned. Spark's own sink drops unknown columns,
so that a misspelt ``key`` is lost silently. Here they are rejected, except for the additional
columns of Spark's Kafka source, which cannot be written: ``offset``, ``timestampType``.
"""

from __future__ import annotations

import difflib
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    CharType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
)

from pykaproducer._load.avro import check_names
from pykaproducer._load.encoders import EncodingError
from pykaproducer._load.messages import MessageColumns, RecordValue
from pykaproducer.spark.options import SinkError, SinkOptions
from pykaproducer.spark.rows import arrow_types
from pykaproducer.spark.value_options import AvroOptions

_INTEGERS = (ByteType, ShortType, IntegerType, LongType)
_TEXTS = (StringType, CharType, VarcharType)
_BYTES = (*_TEXTS, BinaryType)

#: Allowed types of each column, and their description.
_KINDS: dict[str, tuple[tuple[type[DataType], ...], str]] = {
    "value": (_BYTES, "string or binary"),
    "key": (_BYTES, "string or binary"),
    "topic": (_TEXTS, "string"),
    "partition": (_INTEGERS, "int"),
    "timestamp": ((TimestampType, TimestampNTZType, LongType), "timestamp, or bigint (ms)"),
}
_HEADERS = "array<struct<key: string, value: binary>>, or map<string, binary>"
#: Columns of Spark's Kafka source that a message has only after it was written.
_NOT_WRITTEN = ("offset", "timestampType")
_KNOWN = (*_KINDS, "headers")

#: Advice for converting a column that has none of these types.
_ADVICE = {
    "value": "use to_json(struct(*)) for a row, or cast(... as string) for a number",
    "key": "use cast(... as string) for a number",
    "partition": "use cast(... as int)",
}
#: The same for a value in Avro.
_STRUCT = "use struct(*) for a row"


def columns_of(schema: StructType, options: SinkOptions, *, again: bool = False) -> MessageColumns:
    """Return the columns to send.

    Args:
        schema: of the rows.
        options (SinkOptions): of the write.
        again (bool): whether the write is repeated for other rows, as that of a stream.

    Raises:
        SinkError: a column is missing, unknown, duplicated, or of an unsuitable type; or there is
            no schema for Avro.
    """
    avro = options.avro
    names = [field.name for field in schema.fields if field.name not in _NOT_WRITTEN]
    for name in names:
        if name not in _KNOWN:
            raise SinkError(_unknown(name))
        if names.count(name) > 1:
            raise SinkError(f"there are {names.count(name)} columns named {name}; drop all but one")
    if "value" not in names:
        raise SinkError(
            f"column value is missing (columns: {', '.join(schema.names) or 'none'}); "
            f"{_ADVICE['value'] if avro is None else _STRUCT}"
        )
    if options.topic is None and "topic" not in names:
        raise SinkError("no topic given: set the option topic, or add a column topic")
    for field in schema.fields:
        if avro is None or field.name != "value":
            _check_type(field.name, field.dataType)
    value = None if avro is None else _record(schema["value"], avro, again=again)
    return MessageColumns(tuple(names), value)


def _record(column: StructField, avro: AvroOptions, *, again: bool) -> RecordValue:
    """Return how the column value is encoded in Avro."""
    kind = column.dataType
    if not isinstance(kind, StructType) or not kind.fields:
        raise SinkError(
            f"column value is {kind.simpleString()}; with valueFormat=avro it must be a struct: "
            f"{_STRUCT}"
        )
    for name in kind.names:
        if kind.names.count(name) > 1:
            raise SinkError(f"column value: there are {kind.names.count(name)} fields named {name}")
    try:
        schema, prefix = avro.find(again=again)
    except ValueError as error:
        raise SinkError(str(error)) from None
    try:
        types = [_arrow_type(field) for field in kind.fields]
        check_names(schema.fields(), kind.names)
        return RecordValue(tuple(kind.names), schema, schema.plan(kind.names, types), prefix)
    except EncodingError as error:
        raise SinkError(f"column value: {error}") from None


def _arrow_type(field: StructField) -> Any:
    try:
        return arrow_types(StructType([field])).field(0).type
    except PySparkException:
        raise EncodingError(
            f"{field.name} is {field.dataType.simpleString()}, which cannot be passed to Python"
        ) from None


def _check_type(name: str, kind: DataType) -> None:
    if name in _NOT_WRITTEN:
        return
    if name == "headers":
        allowed, good = _HEADERS, _are_headers(kind)
    else:
        types, allowed = _KINDS[name]
        good = isinstance(kind, types)
    if not good:
        advice = f"; {_ADVICE[name]}" if name in _ADVICE else ""
        raise SinkError(f"column {name} is {kind.simpleString()}; it must be {allowed}{advice}")


def _are_headers(kind: Any) -> bool:
    if isinstance(kind, MapType):
        pair = (kind.keyType, kind.valueType)
    elif isinstance(kind, ArrayType) and isinstance(kind.elementType, StructType):
        if kind.elementType.names != ["key", "value"]:
            return False
        pair = tuple(field.dataType for field in kind.elementType.fields)
    else:
        return False
    return isinstance(pair[0], _TEXTS) and isinstance(pair[1], _BYTES)


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name.lower(), _KNOWN, n=1, cutoff=0.6)
    hint = f"did you mean {near[0]}?" if near else "drop it, or include it in value."
    return f"column {name} is not part of a message: {hint} The columns are {', '.join(_KNOWN)}"
