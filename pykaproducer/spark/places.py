"""Where Spark has read a row: two columns of its batches, which are not of the source.

They have the file, and the byte at which the piece of it begins that a task has read. (With Spark's
metadata column, which has both as well, ``mapInArrow()`` passes all of its members on.)
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow
from pyarrow import compute
from pyspark.sql.functions import input_file_block_start, input_file_name


class Piece(NamedTuple):
    """Rows of one piece of a file."""

    #: A ``pyarrow.RecordBatch`` of the source's columns.
    batch: Any
    #: The file, and where in it the piece begins.
    place: str
    #: The number of rows of the piece that were before.
    first_row: int


def with_places(df: Any, columns: list[Any]) -> Any:
    """Return *columns* of a DataFrame of files, and where their rows were read.

    No column may be named ``file`` or ``start``.
    """
    places = [input_file_name().alias("file"), input_file_block_start().alias("start")]
    return df.select([*columns, *places])


def pieces(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[Piece]:
    """Yield the rows of such batches, piece by piece."""
    place, row = "", 0
    for batch in batches:
        rows = batch.select([*range(batch.num_columns - 2)])
        file, start = batch.columns[-2:]
        begin = 0
        for end in _ends(file, start):
            before, place = place, _place(file[begin].as_py(), start[begin].as_py())
            row = row if place == before else 0
            yield Piece(rows.slice(begin, end - begin), place, row)
            row += end - begin
            begin = end


def _ends(*columns: Any) -> list[int]:
    """Return where pieces end in a batch."""
    runs = [compute.run_end_encode(column).run_ends.to_pylist() for column in columns]
    return sorted(set().union(*runs))


def _place(file: str, start: int) -> str:
    name = urllib.parse.unquote(file)
    return f"{name}, from byte {start}" if start else name
