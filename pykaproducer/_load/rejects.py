"""Rows of a load that were not delivered: counted by the reason, and kept in Parquet files.

A file has the columns of the source that were read, as they were, and one more,
``pykaproducer_error``: so it can be loaded again with the same selection, whose ``*`` leaves that
column out.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow
from pyarrow import fs, parquet

from pykaproducer._load.grammar import ERROR_COLUMN
from pykaproducer._load.refused import RefusedRow, describe
from pykaproducer._load.summary import Summary
from pykaproducer.delivery import Status

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
    #: Where it is from; None: nobody knows.
    file: str | None
    #: The number of its first row there.
    first_row: int
    #: The row of *batch* that each row sent was made of; None: they are the same.
    rows: list[int] | None = None

    def row_of(self, place: int) -> int:
        """The row of :attr:`batch` that the row at *place* was made of."""
        return place if self.rows is None else self.rows[place]

    def where(self, place: int) -> str:
        """The place of that row, for an error."""
        row = self.first_row + self.row_of(place)
        return f"row {row}" if self.file is None else f"{self.file}, row {row}"


@dataclass(frozen=True)
class RejectsDirectory:
    """Where the files are put: a directory, or a URI that pyarrow knows. Can be pickled."""

    name: str
    #: In the names of all files of one load.
    run: str = field(default_factory=lambda: uuid.uuid4().hex[:12])

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
        """A ``ParquetWriter``."""
        return parquet.ParquetWriter(path, schema, filesystem=self._opened()[0])

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
        return fs.LocalFileSystem(), os.path.abspath(self.name)


class Rejects:
    """Takes refused rows; keeps them if there is a directory."""

    def __init__(self, directory: RejectsDirectory | None, part: str) -> None:
        self.wants_rows = True  # an error names the file and the row
        self.count = 0
        self._directory = directory
        self._path = None if directory is None else directory.path_for(part)
        self._reasons: dict[str, tuple[str, int]] = {}
        self._gathered: list[Any] = []
        self._gathered_rows = 0
        self._writer: Any = None

    @property
    def ends_the_load(self) -> bool:
        """Whether a row was refused that nobody keeps."""
        return self.count > 0 and self._directory is None

    def take(self, origin: Origin, rows: Sequence[RefusedRow]) -> None:
        """Count them, and keep them."""
        self.count += len(rows)
        for refused in rows:
            kind = f"{type(refused.error).__name__} {_status_of(refused.error)}"
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
        self._write()
        if self._writer is not None:
            self._writer.close()
            assert self._path is not None
            summary.files.append(self._path)
        summary.refused += self.count
        summary.add_reasons(self._reasons)

    def _write(self) -> None:
        if not self._gathered:
            return
        table = pyarrow.Table.from_batches(self._gathered)
        if self._writer is None:
            assert self._directory is not None
            assert self._path is not None
            self._writer = self._directory.write(self._path, table.schema)
        self._writer.write_table(table)
        self._gathered.clear()
        self._gathered_rows = 0


def _rejected(origin: Origin, rows: Sequence[RefusedRow]) -> Any:
    """The source's rows, with their errors."""
    places = [origin.row_of(each.place) for each in rows]
    found = origin.batch.take(pyarrow.array(places, pyarrow.int64()))
    errors = [
        {
            "class": type(each.error).__name__,
            "message": str(each.error),
            "status": _status_of(each.error),
            "file": origin.file,
            "row": origin.first_row + place,
        }
        for each, place in zip(rows, places, strict=True)
    ]
    return found.append_column(ERROR_COLUMN, pyarrow.array(errors, _ERROR))


def _status_of(error: BaseException) -> str:
    status = getattr(error, "status", None)
    return status.name if isinstance(status, Status) else Status.NOT_PERSISTED.name


def unsent(failures: Sequence[tuple[int, Exception]], before: int) -> Iterator[RefusedRow]:
    """Rows of a batch of which no message could be made; *before*: rows before the batch."""
    for place, error in failures:
        yield RefusedRow(before + place, place, error)
