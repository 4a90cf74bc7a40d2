"""Rows of a load that were not delivered: counted by the reason, and kept in Parquet files.

A file has the columns of the source that were read, as they were, and one more,
``pykaproducer_error``: so it can be loaded again with the same selection, whose ``*`` leaves that
column out.
"""

from __future__ import annotations

import functools
import os
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow
from pyarrow import fs, parquet

from pykaproducer._load.grammar import ERROR_COLUMN
from pykaproducer._load.refused import RefusedRow, describe, status_of, text_of
from pykaproducer._load.summary import Summary

#: So many rows are gathered before they are written.
_GATHERED = 10_000

_ERROR = pyarrow.struct(
    {
        "class": pyarrow.string(),
        "message": pyarrow.string(),
        "status": pyarrow.string(),
        "file": pyarrow.string(),
        "row": pyarrow.int64(),
    }
)


class Origin(NamedTuple):
    """Rows of a source, and which of them were sent."""

    #: A ``pyarrow.RecordBatch``.
    batch: Any
    #: Where it is from: a file, or "Spark partition 3".
    file: str
    #: The number of its first row there.
    first_row: int
    #: The row of *batch* that each row sent was made of; None: they are the same.
    rows: list[int] | None = None

    def row_of(self, place: int) -> int:
        """The row of :attr:`batch` that the row at *place* was made of."""
        return place if self.rows is None else self.rows[place]

    def where(self, place: int) -> str:
        """The place of that row, for an error."""
        return f"{self.file}, row {self.first_row + self.row_of(place)}"


@dataclass(frozen=True)
class RejectsDirectory:
    """Where the files are put: a directory, or a URI that pyarrow knows. Can be pickled."""

    name: str  # absolute, or a URI: tasks of Spark run in directories of their own
    #: In the names of all files of one load.
    run: str = field(default_factory=lambda: uuid.uuid4().hex[:12])

    @classmethod
    def of(cls, name: str) -> RejectsDirectory:
        """The directory that a user means by *name*."""
        return cls(name if "://" in name else os.path.abspath(name))

    def prepare(self) -> None:
        """Make it if it is not there.

        Raises:
            OSError: that cannot be.
        """
        system, path = self._opened()
        system.create_dir(path, recursive=True)

    def path_for(self, part: str) -> str:
        """The path of the file of one part of the load."""
        return f"{self._opened()[1]}/rejects-{self.run}-{part}.parquet"

    def write(self, path: str, schema: Any) -> Any:
        """A ``ParquetWriter``; where a task runs, the directory need not be there yet."""
        system, directory = self._opened()
        system.create_dir(directory, recursive=True)
        return parquet.ParquetWriter(path, schema, filesystem=system)

    def forget_others(self, files: Sequence[str]) -> None:
        """Remove what parts of this load have left that were done again, or never ended."""
        system, path = self._opened()
        for found in system.get_file_info(fs.FileSelector(path)):
            if found.base_name.startswith(f"rejects-{self.run}-") and found.path not in files:
                system.delete_file(found.path)

    def _opened(self) -> tuple[Any, str]:
        if "://" in self.name:
            system, path = fs.FileSystem.from_uri(self.name)
            return system, path
        return fs.LocalFileSystem(), self.name


class Rejects:
    """Takes refused rows; keeps them if there is a directory."""

    def __init__(self, directory: RejectsDirectory | None, part: str) -> None:
        self.wants_rows = True  # an error names the file and the row
        self.count = 0
        #: Why not all of them are kept, or None.
        self.trouble: str | None = None
        self._directory = directory
        self._path = None if directory is None else directory.path_for(part)
        self._reasons: dict[str, tuple[str, int]] = {}
        self._gathered: list[Any] = []
        self._gathered_rows = 0
        self._writer: Any = None

    @property
    def ends_the_load(self) -> bool:
        """Whether a row was refused that nobody keeps."""
        return self.count > 0 and (self._directory is None or self.trouble is not None)

    def take(self, origin: Origin, rows: Sequence[RefusedRow]) -> None:
        """Count them, and keep them."""
        self.count += len(rows)
        for refused in rows:
            kind = f"{type(refused.error).__name__} {status_of(refused.error)}"
            text = f"{origin.where(refused.place)}: {describe(refused.error)}"
            text, before = self._reasons.get(kind, (text, 0))
            self._reasons[kind] = (text, before + 1)
        if self._directory is not None:
            self._gathered.append(_rejected(origin, rows))
            self._gathered_rows += len(rows)
            if self._gathered_rows >= _GATHERED:
                self._write()

    def finish(self, summary: Summary) -> None:
        """Write what is left; tell of all."""
        self._write(last=True)
        if self._writer is not None:
            assert self._path is not None
            summary.files.append(self._path)
        if self.trouble is not None:
            summary.troubles.append(self.trouble)
        summary.refused += self.count
        summary.add_reasons(self._reasons)

    def _write(self, *, last: bool = False) -> None:
        """Write what has been gathered. What cannot be written ends the load, with a reason."""
        try:
            if self._gathered and self.trouble is None:
                self._write_gathered()
            if last and self._writer is not None:
                self._writer.close()
        except (OSError, pyarrow.ArrowException) as error:
            self.trouble = f"--rejects: not all refused rows are kept: {self._path}: {error}"
        self._gathered.clear()
        self._gathered_rows = 0

    def _write_gathered(self) -> None:
        table = pyarrow.Table.from_batches(self._gathered)
        if self._writer is None:
            assert self._directory is not None
            assert self._path is not None
            self._writer = self._directory.write(self._path, table.schema)
        self._writer.write_table(table)


def _rejected(origin: Origin, rows: Sequence[RefusedRow]) -> Any:
    """The source's rows, with their errors."""
    places = [origin.row_of(each.place) for each in rows]
    # Not by take(), which does not know all types.
    found = pyarrow.concat_batches([origin.batch.slice(place, 1) for place in places])
    kept = [_kept(found.column(name)) for name in found.schema.names]
    errors = [
        {
            "class": type(each.error).__name__,
            "message": text_of(each.error),
            "status": status_of(each.error),
            "file": origin.file,
            "row": origin.first_row + place,
        }
        for each, place in zip(rows, places, strict=True)
    ]
    return pyarrow.RecordBatch.from_arrays(
        [*kept, pyarrow.array(errors, _ERROR)], [*found.schema.names, ERROR_COLUMN]
    )


def _kept(column: Any) -> Any:
    """A column; where Parquet has no type for it, as for a struct without fields, its text."""
    if _can_be_written(column.type):
        return column
    cells = [None if cell is None else str(cell) for cell in column.to_pylist()]
    return pyarrow.array(cells, pyarrow.string())


@functools.lru_cache(maxsize=256)
def _can_be_written(kind: Any) -> bool:
    schema = pyarrow.schema([("column", kind)])
    try:
        parquet.write_table(schema.empty_table(), pyarrow.BufferOutputStream())
    except pyarrow.ArrowException:
        return False
    return True


def unsent(failures: Sequence[tuple[int, Exception]], before: int) -> Iterator[RefusedRow]:
    """Rows of a batch of which no message could be made; *before*: rows before the batch."""
    for place, error in failures:
        yield RefusedRow(before + place, place, error)
