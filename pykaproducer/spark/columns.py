"""The columns of a write: those of Spark's Kafka sink, and ``timestamp``.

They are checked in the driver, when the write is planned. Spark's own sink drops unknown columns,
so that a misspelt ``key`` is lost silently. Here they are rejected, except for the additional
columns of Spark's Kafka source, which cannot be written: ``offset``, ``timestampType``.
"""

from __future__ import annotations

import difflib
from typing import Any

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
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
)

from pykaproducer.spark.options import SinkError

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


def columns_of(schema: StructType, topic: str | None) -> tuple[str, ...]:
    """Return the names of the columns to send.

    Raises:
        SinkError: a column is missing, unknown, duplicated, or of an unsuitable type.
    """
    names = [field.name for field in schema.fields if field.name not in _NOT_WRITTEN]
    for name in names:
        if name not in _KNOWN:
            raise SinkError(_unknown(name))
        if names.count(name) > 1:
            raise SinkError(f"there are {names.count(name)} columns named {name}; drop all but one")
    if "value" not in names:
        raise SinkError(
            f"column value is missing (columns: {', '.join(schema.names) or 'none'}); "
            f"{_ADVICE['value']}"
        )
    if topic is None and "topic" not in names:
        raise SinkError("no topic given: set the option topic, or add a column topic")
    for field in schema.fields:
        _check_type(field.name, field.dataType)
    return tuple(names)


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
