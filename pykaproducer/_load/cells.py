"""Rows of Arrow batches as Python objects, for code that handles single messages.

Text is returned as bytes, because strings from Spark or from a file need not be valid UTF-8.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import pyarrow

Headers = list[tuple[bytes | None, bytes | None]]


class RowMessage(NamedTuple):
    """Key, value and headers of a row in a batch with the columns of ``send_arrow()``."""

    key: bytes | None
    value: bytes | None
    headers: Headers


def messages(batch: Any) -> list[RowMessage]:
    """Return the rows of a ``pyarrow.RecordBatch``."""
    rows = batch.num_rows
    return [
        RowMessage(*row)
        for row in zip(
            cells(batch, "key") or [None] * rows,
            cells(batch, "value") or [None] * rows,
            _headers(batch),
            strict=True,
        )
    ]


def cells(batch: Any, name: str) -> list[bytes | None] | None:
    """Return a column of bytes or text, or None if there is no column *name*."""
    return _bytes_of(batch.column(name)) if name in batch.schema.names else None


def _headers(batch: Any) -> list[Headers]:
    if "headers" not in batch.schema.names:
        return [[] for _ in range(batch.num_rows)]
    column = batch.column("headers")
    if isinstance(column, pyarrow.MapArray):
        names, values, there = column.keys, column.items, None
    else:
        entries = column.values
        names, values, there = entries.field(0), entries.field(1), entries.is_valid()
    ends = column.offsets.to_pylist()
    first = ends[0] if ends else 0
    size = (ends[-1] if ends else 0) - first
    pairs = list(
        zip(
            _bytes_of(names.slice(first, size)),
            _bytes_of(values.slice(first, size)),
            strict=True,
        )
    )
    if there is not None:
        valid = there.slice(first, size).to_pylist()
        pairs = [pair if good else (None, None) for pair, good in zip(pairs, valid, strict=True)]
    known = column.is_valid().to_pylist()
    return [
        pairs[start - first : end - first] if good else []
        for (start, end), good in zip(itertools.pairwise(ends), known, strict=True)
    ]


def _bytes_of(column: Any) -> list[bytes | None]:
    if isinstance(column, pyarrow.DictionaryArray):
        column = column.dictionary_decode()
    found: list[bytes | None] = column.cast(pyarrow.large_binary()).to_pylist()
    return found
