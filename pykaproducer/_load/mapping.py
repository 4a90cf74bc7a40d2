"""Mapping of the columns of a source to the columns of ``send_arrow()``, according to a selection.

Errors that affect all rows were found when the mapping was created
(:mod:`pykaproducer._load.binding`). Errors of single rows are reported by row and do not affect the
other rows.
"""

from __future__ import annotations

import datetime
import functools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import pyarrow

from pykaproducer._load import compute, json_text
from pykaproducer._load.avro import AvroSchema, Plan
from pykaproducer._load.encoders import (
    BYTES,
    Array,
    Encoded,
    EncodingError,
    by_row,
    is_text,
    json_objects,
    plain,
    text_of,
)
from pykaproducer._load.json_text import is_json


class Mapped(NamedTuple):
    """The result of mapping a batch."""

    #: A ``pyarrow.RecordBatch`` with the columns of ``send_arrow()``.
    batch: Any
    #: For each row, its index in the source's batch; None if all rows are included.
    rows: list[int] | None
    #: The other rows: index in the source's batch and error, in order.
    refused: list[tuple[int, EncodingError]]


class Bound(Protocol):
    """An expression that is bound to columns."""

    def __call__(self, batch: Any) -> Encoded: ...


@dataclass(frozen=True)
class Mapping:
    """Converts batches of a source to messages. Can be pickled, including its Avro schemas."""

    #: The columns of the source that are required.
    columns: tuple[str, ...]
    #: The columns to make: name, bound expression and its text.
    made: tuple[tuple[str, Bound, str], ...]

    def __call__(self, batch: Any) -> Mapped:
        """Map a ``pyarrow.RecordBatch`` that has at least :attr:`columns`."""
        arrays = []
        refused: dict[int, EncodingError] = {}
        for _, bound, text in self.made:
            array, failures = bound(batch)
            arrays.append(array)
            for row, error in failures.items():
                refused.setdefault(row, refusal(text, error))
        names = [name for name, _, _ in self.made]
        made = pyarrow.RecordBatch.from_arrays(arrays, names)
        if not refused:
            return Mapped(made, None, [])
        rows = [row for row in range(batch.num_rows) if row not in refused]
        return Mapped(without(made, refused), rows, sorted(refused.items()))


def refusal(text: str, error: Exception) -> EncodingError:
    """Return the error of a row, of which *text* could not be made."""
    found = EncodingError(f"{text}: {error}")
    found.__cause__ = error
    return found


def without(batch: Any, refused: Collection[int]) -> Any:
    """Remove rows from a batch. (filter() does not support all types.)"""
    ends = sorted(refused)
    starts = [0, *(row + 1 for row in ends)]
    pieces = [
        batch.slice(start, end - start)
        for start, end in zip(starts, [*ends, batch.num_rows], strict=True)
    ]
    return pyarrow.concat_batches(pieces)


# Bound expressions -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Path:
    """A column of the source, or a field nested in it."""

    column: str
    #: The index of a struct's field, or the name of a member of JSON.
    fields: tuple[int | str, ...] = ()

    def of(self, batch: Any) -> Array:
        """Return its cells in a batch."""
        return self.within(batch.column(self.column))

    def within(self, array: Array) -> Array:
        """Return its cells in the column; ValueError if JSON has no such member."""
        for place in self.fields:
            if isinstance(place, str):
                array = json_text.member(array, place)
            else:
                array = compute.struct_field(plain(array), [place])
        return array


def _by_row(
    convert: Callable[[Sequence[Array]], Encoded], paths: Sequence[Path], batch: Any, kind: Any
) -> Encoded:
    """Convert the cells of *paths*. See :func:`by_row`."""
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    return by_row(
        lambda arrays: convert(
            [path.within(array) for path, array in zip(paths, arrays, strict=True)]
        ),
        [columns[path.column] for path in paths],
        kind,
    )


@dataclass(frozen=True)
class AsItIs:
    """A column that is used unchanged."""

    path: Path

    def __call__(self, batch: Any) -> Encoded:
        return Encoded(self.path.of(batch), {})


@dataclass(frozen=True)
class Converted:
    """A column that is converted."""

    path: Path
    convert: Callable[[Array], Array]
    #: The resulting type.
    kind: Any

    def __call__(self, batch: Any) -> Encoded:
        return _by_row(
            lambda arrays: Encoded(self.convert(arrays[0]), {}), [self.path], batch, self.kind
        )


@dataclass(frozen=True)
class Constant:
    """A constant for each row."""

    value: bytes | str | int | None
    kind: Any

    def __call__(self, batch: Any) -> Encoded:
        return Encoded(pyarrow.repeat(pyarrow.scalar(self.value, self.kind), batch.num_rows), {})


@dataclass(frozen=True)
class JsonObject:
    """``json()``."""

    names: tuple[str, ...]
    paths: tuple[Path, ...]

    def __call__(self, batch: Any) -> Encoded:
        return _by_row(lambda arrays: json_objects(self.names, arrays), self.paths, batch, BYTES)


@dataclass(frozen=True)
class AvroRecord:
    """``avro()``."""

    names: tuple[str, ...]
    paths: tuple[Path, ...]
    schema: AvroSchema
    plan: Plan
    #: Precedes each record.
    prefix: bytes = b""

    def __call__(self, batch: Any) -> Encoded:
        return _by_row(
            lambda arrays: self.schema.encode(self.names, self.plan, arrays, self.prefix),
            self.paths,
            batch,
            BYTES,
        )


@dataclass(frozen=True)
class Headers:
    """Headers that every row has, in this order; values may be null."""

    names: tuple[str, ...]
    values: tuple[Bound, ...]

    def __call__(self, batch: Any) -> Encoded:
        failures: dict[int, Exception] = {}
        columns = []
        for value in self.values:
            array, failed = value(batch)
            columns.append(plain(array).cast(BYTES))
            failures |= failed
        order, names, offsets = _row_by_row(batch.num_rows, len(columns))
        keys = pyarrow.array(self.names, pyarrow.string()).take(names)
        values = pyarrow.concat_arrays(columns).take(order)
        pairs = pyarrow.StructArray.from_arrays([keys, values], ["key", "value"])
        return Encoded(pyarrow.LargeListArray.from_arrays(offsets, pairs), failures)


@functools.lru_cache(maxsize=4)
def _row_by_row(rows: int, columns: int) -> tuple[Array, Array, Array]:
    """Return indices that convert column-major cells to row-major order.

    These are the position and the column of each cell, and the offset of each row.
    """
    order = [column * rows + row for row in range(rows) for column in range(columns)]
    names = list(range(columns)) * rows
    offsets = range(0, rows * columns + 1, columns)
    kind = pyarrow.int64()
    return pyarrow.array(order, kind), pyarrow.array(names, kind), pyarrow.array(offsets, kind)


_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def milliseconds(array: Array) -> Array:
    """Convert text to milliseconds since 1970; it is an integer number of them, or ISO 8601."""
    text = text_of(array)
    found = [None if cell is None else _millisecond(cell) for cell in text.to_pylist()]
    return pyarrow.array(found, pyarrow.int64())


def _millisecond(text: str) -> int:
    try:
        if text.isascii() and text.isdigit() and (number := int(text)) < 1 << 63:
            return number
        when = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise EncodingError(
            f"{text!r} is neither milliseconds since 1970 nor an ISO 8601 time"
        ) from None
    if when.tzinfo is None:
        when = when.replace(tzinfo=datetime.UTC)
    return (when - _EPOCH) // datetime.timedelta(milliseconds=1)


def midnight(array: Array) -> Array:
    """Convert dates to timestamps at midnight UTC."""
    return plain(array).cast(pyarrow.timestamp("ms"))


def whole(array: Array) -> Array:
    """Convert cells to integers."""
    array = text_of(array) if is_json(array.type) else plain(array)
    try:
        if (
            is_text(array.type)
            and compute.any(compute.match_substring_regex(array, "[xX]")).as_py()
        ):
            raise pyarrow.ArrowInvalid("hexadecimal, which cast() would convert")
        return array.cast(pyarrow.int64())
    except pyarrow.ArrowInvalid:
        if len(array) != 1:
            raise  # the rows are tried one by one
        raise EncodingError(f"{array[0].as_py()!r} is not an integer") from None
