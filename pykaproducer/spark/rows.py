"""Rows of Spark as Arrow batches, for a PySpark that passes rows to the sink.

See :mod:`~pykaproducer.spark.writers`. The batches hold what Spark would pass as Arrow batches, so
that the same messages are sent, and have the same checksums after an update of Spark.
"""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

#: A batch ends with the row that reaches one of these. Spark's own batches have as many rows.
MOST_ROWS = 10_000
MOST_BYTES = 4 * 2**20

#: The assumed size of a value that is neither text nor bytes.
_WORD = 8


def arrow_types(schema: StructType) -> pyarrow.Schema:
    """Return the schema of the batches that Spark makes of such rows.

    Raises:
        PySparkException: a column has a type that Arrow does not support.
    """
    # An older PySpark has no such argument, and always uses UTC.
    if "timezone" in inspect.signature(to_arrow_schema).parameters:
        return to_arrow_schema(schema, timezone="UTC")
    return to_arrow_schema(schema)


@contextmanager
def local_time_is_utc() -> Iterator[None]:
    """Let this process have UTC as its local time; rows must be read in such a block.

    Spark makes rows while they are read. A timestamp becomes the local time without its offset from
    UTC, so an hour of each autumn would be ambiguous. A worker runs one task at a time, and no code
    of the user while it writes; its next task may be the user's, so the time zone is restored.
    """
    before = os.environ.get("TZ")
    os.environ["TZ"] = "UTC"
    time.tzset()
    try:
        yield
    finally:
        if before is None:
            del os.environ["TZ"]
        else:
            os.environ["TZ"] = before
        time.tzset()


def batches_of(rows: Iterator[Any], schema: StructType) -> Iterator[pyarrow.RecordBatch]:
    """Yield all *rows* (``pyspark.sql.Row``) in batches of a limited size."""
    converters = [_converter(field.dataType) for field in schema.fields]
    types = arrow_types(schema)
    taken: list[Any] = []
    size = 0
    for row in rows:
        taken.append(row)
        size += _size(row)
        if len(taken) >= MOST_ROWS or size >= MOST_BYTES:
            yield _batch(taken, converters, types)
            taken, size = [], 0
    if taken:
        yield _batch(taken, converters, types)


def _batch(
    rows: list[Any], converters: list[Callable[[Any], Any] | None], schema: pyarrow.Schema
) -> pyarrow.RecordBatch:
    arrays = []
    for column, convert, field in zip(zip(*rows, strict=True), converters, schema, strict=True):
        values = column if convert is None else list(map(convert, column))
        arrays.append(pyarrow.array(values, field.type))
    return pyarrow.RecordBatch.from_arrays(arrays, schema=schema)


def _converter(kind: DataType) -> Callable[[Any], Any] | None:
    """Return the conversion of a value for pyarrow; None if pyarrow accepts it as it is.

    A row becomes a dictionary, and a dictionary a list of pairs.
    """
    if isinstance(kind, StructType):
        names = kind.names
        fields = [_converter(field.dataType) or _same for field in kind.fields]
        return _unless_none(
            lambda value: {
                name: convert(each)
                for name, convert, each in zip(names, fields, value, strict=True)
            }
        )
    if isinstance(kind, ArrayType):
        element = _converter(kind.elementType)
        return element and _unless_none(lambda value: list(map(element, value)))
    if isinstance(kind, MapType):
        key = _converter(kind.keyType) or _same
        item = _converter(kind.valueType) or _same
        return _unless_none(lambda value: [(key(a), item(b)) for a, b in value.items()])
    return None


def _same(value: Any) -> Any:
    return value


def _unless_none(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else convert(value)


def _size(value: Any) -> int:
    """Return roughly the bytes of a value; not exactly, because text is not encoded for it."""
    if isinstance(value, (str, bytes, bytearray)):
        return len(value)
    if isinstance(value, (list, tuple)):
        return sum(map(_size, value))
    if isinstance(value, dict):
        return sum(_size(key) + _size(item) for key, item in value.items())
    return _WORD
