"""Readers of text: CSV and JSON Lines.

Both are checked and cut into columns by the compiled scan (:mod:`pykaproducer._load._scan`), block
by block. Nothing is converted: a CSV cell is text, a member of a JSON object a JSON text
(:mod:`pykaproducer._load.json_text`). JSON Lines of which the whole row is sent are a single column
``value``, the lines as they stand.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow
from pyarrow import compute

from pykaproducer._load._scan import CsvScan, JsonScan, ScanError
from pykaproducer._load.encoders import TEXT
from pykaproducer._load.files import COMPRESSIONS, Partition
from pykaproducer._load.json_text import JSON, fields_of, large_string, of_text
from pykaproducer._load.names import SourceError, is_pipe
from pykaproducer._load.reader import WHOLE, FilePart, FileReader, Read, batch_of
from pykaproducer._load.stores import opened
from pykaproducer._load.streams import (
    CONTENT_ERRORS,
    Blocks,
    Decoded,
    Pipe,
    Range,
    decompressed,
    is_utf8,
)

#: Maximum number of cells that are read at once, and of columns.
_CELLS = 500_000
_MOST_COLUMNS = 100_000

#: The member that makes an object a message, and the column of lines as they stand.
VALUE = "value"

JSON_ADVICE = "each line must be a JSON object (jq -c '.[]' converts an array)"


class _Text(FileReader):
    """A text file, optionally compressed."""

    #: Whether a carriage return alone ends a line.
    carriage_returns = False

    def __init__(self, path: str, partition: Partition, encoding: str) -> None:
        self._encoding = encoding
        self._is_utf8 = is_utf8(encoding)
        self._compression = COMPRESSIONS.get(os.path.splitext(path)[1].lower())
        self._pipe = Pipe(path) if is_pipe(path) else None
        super().__init__(path, partition)

    @contextlib.contextmanager
    def _opened(
        self, part: FilePart = WHOLE, *, first: bool = False
    ) -> Iterator[tuple[Blocks, Any]]:
        """Open the file. Yield the blocks, and the file, whose position shows progress."""
        with contextlib.ExitStack() as stack:
            if self._pipe is None:
                file: Any = opened(self.path)
            else:
                file = self._pipe.first() if first else self._pipe.second()
                if first:
                    stack.push(self._pipe.close_after)
            stack.enter_context(file)
            stream = file if part.stop is None and not part.start else Range(file, part)
            stream = decompressed(stream, self._compression)
            if not self._is_utf8:
                stream = Decoded(stream, self.path, self._encoding)
            try:
                blocks = Blocks(
                    stream,
                    self.path,
                    carriage_returns=self.carriage_returns,
                    marks=not part.start,
                    eager=self._pipe is not None,
                    at=part.start,
                )
                yield blocks, file
            except CONTENT_ERRORS as error:
                if self._compression is None or getattr(error, "errno", None) is not None:
                    raise  # the system's
                raise SourceError(
                    f"{self.path}: {error}; is it a complete file of {self._compression}?"
                ) from None

    def _blocks(self, part: FilePart) -> Iterator[tuple[Blocks, int]]:
        """Yield each block of *part*, and the position in the file after it."""
        end = self.size if part.stop is None else min(part.stop, self.size)
        with self._opened(part) as (blocks, file):
            more = True
            while more:
                more = blocks.advance()
                if blocks.last and file.tell() < end:  # the last line may be cut
                    raise SourceError(
                        f"{self.path}: became shorter while it was read; load it again"
                    )
                if more:
                    yield blocks, file.tell()

    @contextlib.contextmanager
    def _scanning(self, part: FilePart = WHOLE) -> Iterator[None]:
        """Convert errors of the scan."""
        try:
            yield
        except ScanError as error:
            line = error.line + 1 + self._lines_before(part.start)
            raise SourceError(
                f"{self.path}: line {line}, byte {error.byte + 1}: {error}; {self._remedy(error)}"
            ) from None

    def _lines_before(self, position: int) -> int:
        if not position:
            return 0
        with opened(self.path) as file:
            count = 0
            while position > 0 and (data := file.read(min(position, 1 << 20))):
                count += data.count(b"\n")
                position -= len(data)
            return count + (data[-1:] != b"\n")

    def _remedy(self, error: ScanError) -> str:
        return self.advice


def _at_once(columns: int) -> int:
    return max(1, _CELLS // max(columns, 1))


class CsvReader(_Text):
    """A CSV file whose first line contains the column names."""

    advice = "repair the file, or set --format, --delimiter or --encoding"
    carriage_returns = True

    def __init__(
        self,
        path: str,
        partition: Partition,
        encoding: str,
        delimiter: str,
        infer_types: bool,
    ) -> None:
        if delimiter in '"\r\n\0':
            raise SourceError(f"{delimiter!r} cannot be the delimiter of CSV")
        self._delimiter = delimiter
        self._infer_types = infer_types
        #: By the name of a column: what all its cells are, as a regular expression.
        self._literals: dict[str, str] = {}
        super().__init__(path, partition, encoding)

    def _read_schema(self) -> Any:
        with self._opened(first=True) as (blocks, _), self._scanning():
            names = self._names(blocks)
            if names is not None and self._infer_types:
                scan = CsvScan(self._delimiter, len(names), range(len(names)))
                for _, columns in itertools.islice(self._rows(scan, blocks, len(names)), 1):
                    self._literals = {
                        name: literal
                        for name, column in zip(names, columns, strict=True)
                        for literal in _LITERALS
                        if column.null_count < len(column) and not _others(column, literal)
                    }
        if names is None:
            return None
        kinds = [JSON if name in self._literals else TEXT for name in names]
        return pyarrow.schema(list(zip(names, kinds, strict=True)))

    def _names(self, blocks: Blocks) -> list[str] | None:
        """Read the names of the columns, or return None if the file is empty."""
        scan = CsvScan(self._delimiter)
        while blocks.advance():
            block = (blocks.buffer, blocks.start, blocks.end, 1, blocks.last)
            if not scan.columns(*block)[1]:
                continue
            if scan.found > _MOST_COLUMNS:
                break
            scan = CsvScan(self._delimiter, scan.found, range(scan.found))
            blocks.start, rows, columns = scan.columns(*block)
            names = [large_string(rows, column)[0].as_py() or "" for column in columns]
            if "" in names:
                raise SourceError(
                    f"{self.path}: line 1: column {names.index('') + 1} has no name; the first "
                    f"line must contain the names of the columns"
                )
            return names
        if scan.found > _MOST_COLUMNS:
            raise SourceError(f"{self.path}: more than {_MOST_COLUMNS:,} columns; {self.advice}")
        return None

    def _read(self, schema: Any, part: FilePart) -> Iterator[Read]:
        place = {name: place for place, name in enumerate(self.schema.names)}
        names = [name for name in schema.names if name in place]
        scan = CsvScan(self._delimiter, len(place), [place[name] for name in names])
        row, header = 0, True
        for blocks, position in self._blocks(part):
            with self._scanning():
                if header:
                    header = not self._skip_header(scan, blocks, names)
                for rows, columns in self._rows(scan, blocks, len(names)):
                    found = [
                        self._typed(column, name, row)
                        for name, column in zip(names, columns, strict=True)
                    ]
                    yield Read(batch_of(rows, names, found), position)
                    row += rows

    def _skip_header(self, scan: CsvScan, blocks: Blocks, names: Sequence[str]) -> bool:
        block = (blocks.buffer, blocks.start, blocks.end, 1, blocks.last)
        blocks.start, rows, columns = scan.columns(*block)
        if rows and names != [large_string(1, column)[0].as_py() for column in columns]:
            raise SourceError(f"{self.path}: changed while it was read; load it again")
        return bool(rows)

    def _rows(self, scan: CsvScan, blocks: Blocks, count: int) -> Iterator[tuple[int, list[Any]]]:
        """Yield the rows of a block as columns."""
        while blocks.start < blocks.end:
            blocks.start, rows, columns = scan.columns(
                blocks.buffer, blocks.start, blocks.end, _at_once(count), blocks.last
            )
            if not rows:
                return
            yield rows, [large_string(rows, column) for column in columns]

    def _typed(self, column: Any, name: str, row: int) -> Any:
        literal = self._literals.get(name)
        if literal is None:
            return column
        if others := _others(column, literal):
            place = row + compute.index(column, others[0]).as_py()
            raise SourceError(
                f"{self.path}: row {place}, column {name}: {others[0].as_py()[:40]!r} is not "
                f"{_LITERALS[literal]}, as in the first rows; {self.advice}, or omit --infer-types"
            )
        return of_text(column)


#: Cells of CSV that are JSON as they stand.
_LITERALS = {
    r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?$": "a number",
    r"^(true|false)$": "true or false",
}


def _others(column: Any, literal: str) -> Any:
    """Return the cells that do not match."""
    return column.filter(compute.invert(compute.match_substring_regex(column, literal)))


class JsonLinesReader(_Text):
    """A file with a JSON object in each line.

    With *whole_lines* the only column is ``value``, the lines as they stand, unless the objects
    have a member of this name, which all must have then, or none.
    """

    advice = JSON_ADVICE

    def __init__(self, path: str, partition: Partition, encoding: str, whole_lines: bool) -> None:
        self._wants_lines = whole_lines and VALUE not in dict(partition)
        #: Members to append to each line's object; None: lines are not read as they stand.
        self._suffix: bytes | None = None
        self._constants = dict(partition)
        self._required: str | None = None
        super().__init__(path, partition, encoding)

    def parts(self, size: int) -> list[FilePart]:
        """Return ranges of bytes, if lines can be found in the bytes of the file."""
        if self._pipe is not None or self._compression is not None or not self._is_utf8:
            return [WHOLE]
        ends = [*range(size, self.size, size), None]
        return [FilePart(start or 0, end) for start, end in itertools.pairwise([0, *ends])]

    def _read_schema(self) -> Any:
        scan, rows = JsonScan(), 0
        with self._opened(first=True) as (blocks, _), self._scanning():
            while blocks.advance():
                rows += scan.learn(blocks.buffer, blocks.start, blocks.end)
                blocks.start = blocks.end
                if rows and self._wants_lines and self._required is None:
                    if VALUE not in scan.tree():
                        return self._whole_lines()
                    self._required = VALUE
        if not rows:
            return None
        return json_schema(self.path, scan.tree(), nested_known=scan.nested)

    def _whole_lines(self) -> Any:
        members = json.dumps(self._constants, ensure_ascii=False, separators=(",", ":"))
        self._suffix = members[1:-1].encode()
        self.partition = ()
        return pyarrow.schema([(VALUE, TEXT)])

    def _read(self, schema: Any, part: FilePart) -> Iterator[Read]:
        names = None
        if self._suffix is not None:
            scan = JsonScan(refused=[VALUE, *self._constants])
        else:
            known = set(self.schema.names)
            names = [name for name in schema.names if name in known]
            scan = JsonScan(names, known=self.schema.names, required=self._required, strict=True)
        suffix = self._suffix or b""
        for blocks, position in self._blocks(part):
            with self._scanning(part):
                at = blocks.buffer, blocks.start, blocks.end
                for blocks.start, batch in json_batches(scan, names, *at, suffix):
                    yield Read(batch, position)

    def _remedy(self, error: ScanError) -> str:
        if error.member in self._constants:
            return "its directory has it, too; rename one"
        return json_remedy(error, may_stand=self._suffix is not None or self._required is not None)


def json_remedy(error: ScanError, *, may_stand: bool) -> str:
    """Return what to do about a line; *may_stand*: lines may have been read as they stand."""
    if error.member is None:
        return JSON_ADVICE
    if error.member == VALUE and may_stand:
        return (
            "without --select, either all lines have it (they are messages) or none (they are "
            "values); use --select"
        )
    return "repair the line"


def json_schema(name: str, tree: dict[str, Any], *, nested_known: bool) -> Any:
    """Return the columns of the objects in *name*, whose members a scan has learnt."""
    fields = fields_of(tree, nested_known=nested_known)
    if len(fields) > _MOST_COLUMNS:
        raise SourceError(
            f"{name}: more than {_MOST_COLUMNS:,} different members; they cannot be columns. "
            f"Without --select, lines are sent as they stand"
        )
    return pyarrow.schema(fields)


def json_batches(
    scan: JsonScan,
    names: Sequence[str] | None,
    block: Any,
    start: int,
    end: int,
    suffix: bytes = b"",
) -> Iterator[tuple[int, Any]]:
    """Yield the rows of a block in batches, and where each ends in it.

    Args:
        names: the columns to make; None: a column ``value`` of lines as they stand.
        suffix (bytes): members to append to the object of each line that stands.
    """
    while start < end:
        if names is None:
            rows, column = scan.lines(block, start, end, suffix)
            start = end
            yield end, batch_of(rows, [VALUE], [large_string(rows, column)])
        else:
            start, rows, columns = scan.columns(block, start, end, _at_once(len(names)))
            found = [of_text(large_string(rows, column)) for column in columns]
            yield start, batch_of(rows, names, found)
