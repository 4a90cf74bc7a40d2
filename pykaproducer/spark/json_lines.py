"""JSON Lines of which Spark reads the lines: from file systems that only Spark reaches.

Spark's own reader of JSON would convert numbers, and replace what is not UTF-8. So it passes lines
as they are, and tasks scan them as the embedded load scans a file (``_load/text.py``).
"""

from __future__ import annotations

import contextlib
import fnmatch
import json
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow

from pykaproducer._load._scan import VERBATIM, JsonScan, ScanError, Texts, write_rows
from pykaproducer._load.encoders import TEXT
from pykaproducer._load.json_text import merge
from pykaproducer._load.names import SourceError
from pykaproducer._load.rejects import Origin
from pykaproducer._load.text import VALUE, json_batches, json_remedy, json_schema
from pykaproducer.spark.places import pieces, with_places

#: Suffixes of files that the embedded load decompresses, and Spark reads as they are, or otherwise.
_UNKNOWN_TO_SPARK = (".xz", ".lz4")
#: Columns of what :func:`_learnt` returns.
_LEARNT = "tree string, nested boolean, problem string"


@dataclass(frozen=True)
class LineRows:
    """Makes rows of the lines that a task gets. Can be pickled."""

    #: The columns to make; None: a column ``value`` of lines as they stand.
    names: tuple[str, ...] | None
    #: The members that a line may have.
    known: tuple[str, ...] = ()
    #: The member that each line must have.
    required: str | None = None

    def __call__(
        self, batches: Iterator[pyarrow.RecordBatch], *, advance: Callable[[tuple[int, int]], None]
    ) -> Iterator[Origin]:
        """Yield the rows. SourceError for a line that is no JSON object, or has other members."""
        if self.names is None:
            scan = JsonScan(refused=[VALUE])
        else:
            scan = JsonScan(self.names, known=self.known, required=self.required, strict=True)
        place, row = "", 0
        may_stand = self.names is None or self.required is not None
        for found, offset, block, size in _blocks(batches):
            row = row if found == place else 0
            place = found
            with _scanning(place, offset, may_stand=may_stand):
                for _, batch in json_batches(scan, self.names, block, 0, size):
                    advance((0, batch.num_rows))
                    yield Origin(batch, place, row)
                    row += batch.num_rows


def lines(session: Any, names: Sequence[str]) -> Any:
    """Return the lines of files as a DataFrame: a column of them, and where they are.

    Raises:
        SourceError: Spark would read a file, or its directory, as something else.
    """
    options = {
        "recursiveFileLookup": True,
        "lineSep": "\n",
        # The session may have other defaults.
        "ignoreCorruptFiles": False,
        "ignoreMissingFiles": False,
    }
    df = session.read.options(**options).text(list(names))
    patterns = [part for name in names for part in name.split("/")]
    for file in map(urllib.parse.unquote, df.inputFiles()):
        *directories, last = file.split("/")
        if last.endswith(_UNKNOWN_TO_SPARK):
            raise SourceError(f"{file}: Spark cannot decompress it; decompress it first")
        for part in directories:
            if "=" in part and not any(fnmatch.fnmatchcase(part, each) for each in patterns):
                raise SourceError(
                    f"{file}: the directory {part} is a column, which lines have not; name the "
                    f"directories in the source, or use --format sql"
                )
    return with_places(df, [df.value])


def rows_of(df: Any, name: str, *, whole_lines: bool) -> tuple[Any, LineRows]:
    """Return the ``pyarrow.Schema`` of the rows of *df*, which has lines, and what makes them.

    Args:
        name (str): the source, for errors.
        whole_lines (bool): lines are sent as they stand, unless their objects have a member
            ``value``.

    Raises:
        SourceError: there are no lines, or one is no JSON object.
    """
    first = df.where(df.value.rlike(r"\S")).select(df.value.cast("binary")).head(1)
    if not first:
        raise SourceError(f"{name}: empty: there are no columns")
    required = None
    if whole_lines:
        scan = JsonScan()
        line = bytes(first[0][0]) + b"\n"
        with _scanning(f"{name}: the first line that is not blank", 0, may_stand=False):
            scan.learn(line, 0, len(line))
        if VALUE not in scan.tree():
            return pyarrow.schema([(VALUE, TEXT)]), LineRows(None)
        required = VALUE
    tree: dict[str, Any] = {}
    nested = True
    for found in df.mapInArrow(_learnt, _LEARNT).collect():
        if found.problem is not None:
            raise SourceError(found.problem)
        merge(tree, json.loads(found.tree))
        nested = nested and found.nested
    schema = json_schema(name, tree, nested_known=nested)
    return schema, LineRows((), tuple(schema.names), required)


def _learnt(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    """Return the names of members in the lines of a task."""
    scan, problem = JsonScan(), None
    try:
        for place, offset, block, size in _blocks(batches):
            with _scanning(place, offset, may_stand=False):
                scan.learn(block, 0, size)
    except SourceError as error:
        problem = str(error)
    found = {"tree": json.dumps(scan.tree()), "nested": scan.nested, "problem": problem}
    types = [("tree", pyarrow.string()), ("nested", pyarrow.bool_()), ("problem", pyarrow.string())]
    yield pyarrow.RecordBatch.from_pylist([found], pyarrow.schema(types))


def _blocks(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[tuple[str, int, Any, int]]:
    """Yield the lines of each piece as blocks of the scan: (place, offset, block, size).

    The scan numbers the lines of the task; a line's number in its piece is higher by *offset*.
    """
    scanned = 0
    for piece in pieces(batches):
        cells = piece.batch.column(0).cast(pyarrow.large_binary())
        line = b"", VERBATIM, Texts(*cells.buffers()), cells.offset
        *_, block = write_rows([line], b"\n", len(cells))
        yield piece.place, piece.first_row - scanned, block, memoryview(block).nbytes
        scanned += len(cells)


@contextlib.contextmanager
def _scanning(where: str, offset: int, *, may_stand: bool) -> Iterator[None]:
    """Convert errors of the scan, to whose number of a line *offset* must be added."""
    try:
        yield
    except ScanError as error:
        text, _, other = str(error).partition(" (--encoding ")
        remedy = json_remedy(error, may_stand=may_stand)
        if other:  # not for what Spark reads
            remedy = "convert the file to UTF-8 first"
        line, byte = offset + error.line + 1, error.byte + 1
        raise SourceError(f"{where}: line {line}, byte {byte}: {text}; {remedy}") from None
