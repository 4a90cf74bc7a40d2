"""A selection on the columns of one source: what makes the columns of ``send_arrow()``.

What can be wrong for all rows has been found when the mapping was made
(:mod:`pykaproducer._load.binding`). What is wrong with one row is told by row, and harms no other.
"""

from __future__ import annotations

import datetime
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import pyarrow
from pyarrow import compute

from pykaproducer._load.avro import AvroSchema, Plan
from pykaproducer._load.encoders import (
    BYTES,
    Array,
    Encoded,
    EncodingError,
    by_row,
    json_objects,
    plain,
)


class Mapped(NamedTuple):
    """What became of a batch."""

    #: A ``pyarrow.RecordBatch`` with the columns of ``send_arrow()``.
    batch: Any
    #: The number in the source's batch of each of its rows; None: they are the same rows.
    rows: list[int] | None
    #: The others: number in the source's batch, and why; in order.
    refused: list[tuple[int, EncodingError]]


class Bound(Protocol):
    """An expression that knows its columns."""

    def __call__(self, batch: Any) -> Encoded: ...


@dataclass(frozen=True)
class Mapping:
    """Makes messages of the batches of a source. Can be pickled; knows its Avro schemas."""

    #: The columns of the source that it needs.
    columns: tuple[str, ...]
    #: The columns that it makes: their names, how, and the text of the expression.
    made: tuple[tuple[str, Bound, str], ...]

    def __call__(self, batch: Any) -> Mapped:
        """The messages of a ``pyarrow.RecordBatch`` that has at least :attr:`columns`."""
        arrays = []
        refused: dict[int, EncodingError] = {}
        for _, bound, text in self.made:
            array, failures = bound(batch)
            arrays.append(array)
            for row, error in failures.items():
                refused.setdefault(row, _refusal(text, error))
        names = [name for name, _, _ in self.made]
        made = pyarrow.RecordBatch.from_arrays(arrays, names)
        if not refused:
            return Mapped(made, None, [])
        rows = [row for row in range(batch.num_rows) if row not in refused]
        return Mapped(_without(made, refused), rows, sorted(refused.items()))


def _refusal(text: str, error: Exception) -> EncodingError:
    told = EncodingError(f"{text}: {error}")
    told.__cause__ = error
    return told


def _without(batch: Any, refused: dict[int, EncodingError]) -> Any:
    """A batch without some rows. (Not by filter(): there is none for all types.)"""
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
    """A column of the source, or a field in it."""

    column: str
    fields: tuple[int, ...] = ()

    def of(self, batch: Any) -> Array:
        """Its cells in a batch."""
        array = batch.column(self.column)
        for place in self.fields:
            array = compute.struct_field(plain(array), [place])
        return array


@dataclass(frozen=True)
class AsItIs:
    """A column that a message takes without a change."""

    path: Path

    def __call__(self, batch: Any) -> Encoded:
        array = self.path.of(batch)
        while isinstance(array, pyarrow.ExtensionArray):
            array = array.storage
        return Encoded(array, {})


@dataclass(frozen=True)
class Converted:
    """A column that is converted."""

    path: Path
    convert: Callable[[Array], Array]
    #: The type that it makes.
    kind: Any

    def __call__(self, batch: Any) -> Encoded:
        return by_row(
            lambda arrays: Encoded(self.convert(arrays[0]), {}), [self.path.of(batch)], self.kind
        )


@dataclass(frozen=True)
class Constant:
    """The same for each row."""

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
        return by_row(
            lambda arrays: json_objects(self.names, arrays),
            [path.of(batch) for path in self.paths],
            BYTES,
        )


@dataclass(frozen=True)
class AvroRecord:
    """``avro()``."""

    names: tuple[str, ...]
    paths: tuple[Path, ...]
    schema: AvroSchema
    plan: Plan

    def __call__(self, batch: Any) -> Encoded:
        return by_row(
            lambda arrays: self.schema.encode(self.names, self.plan, arrays),
            [path.of(batch) for path in self.paths],
            BYTES,
        )


@dataclass(frozen=True)
class Headers:
    """Headers that each row has, in this order; a value may be null."""

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
    """Of columns that lie one behind the other, for their cells row by row: the place of each, its
    column, and where each row begins."""
    order = [column * rows + row for row in range(rows) for column in range(columns)]
    names = list(range(columns)) * rows
    offsets = range(0, rows * columns + 1, columns)
    kind = pyarrow.int64()
    return pyarrow.array(order, kind), pyarrow.array(names, kind), pyarrow.array(offsets, kind)


_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def milliseconds(array: Array) -> Array:
    """Milliseconds since 1970 of times in text: a whole number of them, or ISO 8601."""
    found = [None if cell is None else _millisecond(cell) for cell in plain(array).to_pylist()]
    return pyarrow.array(found, pyarrow.int64())


def _millisecond(text: str) -> int:
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        when = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise EncodingError(
            f"{text!r} is neither milliseconds since 1970 nor a time of ISO 8601"
        ) from None
    if when.tzinfo is None:
        when = when.replace(tzinfo=datetime.UTC)
    return (when - _EPOCH) // datetime.timedelta(milliseconds=1)


def midnight(array: Array) -> Array:
    """Dates as the time at which they begin, in UTC."""
    return plain(array).cast(pyarrow.timestamp("ms"))


def whole(array: Array) -> Array:
    """Whole numbers, of whatever says them."""
    return plain(array).cast(pyarrow.int64())
