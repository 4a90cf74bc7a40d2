"""Where the rows were that a task of ``load --spark`` reads: the file, its piece, the line."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow
import pytest

from pykaproducer._load.names import SourceError
from pykaproducer.spark.json_lines import LineRows
from pykaproducer.spark.load import file_rows

GOOD = ['{"a":1}', "", '{"a":2}']
BAD = ['{"a":3}', "{]"]


def batch(*read: tuple[str, int, Sequence[str]]) -> pyarrow.RecordBatch:
    """Return a batch of Spark: the lines of pieces of files."""
    rows = [(line, file, start) for file, start, lines in read for line in lines]
    columns = [list(column) for column in zip(*rows, strict=True)] or [[]] * 3
    types = [pyarrow.string(), pyarrow.string(), pyarrow.int64()]
    return pyarrow.record_batch(
        [pyarrow.array(*each) for each in zip(columns, types, strict=True)],
        names=["value", "file", "start"],
    )


def test_a_batch_has_rows_of_several_pieces_and_a_piece_rows_of_several_batches() -> None:
    batches = [
        batch(("a%20b", 0, "12"), ("a%20b", 64, "3")),
        batch(),
        batch(("a%20b", 64, "45")),
        batch(("c", 64, "6"), ("d", 0, "7")),
    ]
    read = file_rows(["value"], iter(batches), advance=lambda _: None)
    assert [(each.file, each.first_row, each.batch.to_pydict()) for each in read] == [
        ("a b", 0, {"value": ["1", "2"]}),
        ("a b, from byte 64", 0, {"value": ["3"]}),
        ("a b, from byte 64", 1, {"value": ["4", "5"]}),
        ("c, from byte 64", 0, {"value": ["6"]}),
        ("d", 0, {"value": ["7"]}),
    ]


@pytest.mark.parametrize("rows", [LineRows(None), LineRows(("a",), ("a",))])
@pytest.mark.parametrize(
    ("batches", "place"),
    [
        ([batch(("f", 0, GOOD)), batch(("f", 0, BAD))], "f: line 5, "),
        ([batch(("f", 0, GOOD)), batch(("g", 0, BAD))], "g: line 2, "),
        ([batch(("f", 0, GOOD), ("f", 64, BAD))], "f, from byte 64: line 2, "),
    ],
)
def test_the_lines_of_each_piece_are_numbered(
    rows: LineRows, batches: Sequence[pyarrow.RecordBatch], place: str
) -> None:
    with pytest.raises(SourceError, match=f"^{place}"):
        list(rows(iter(batches), advance=lambda _: None))
