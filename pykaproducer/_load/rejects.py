"""Rows of a load that were not delivered: counted by reason, and kept in Parquet files.

A file contains the columns that were read, and the column ``pykaproducer_error``. It can be loaded
again with the same selection, whose ``*`` omits that column. Only what Parquet does not support is
changed: times in seconds become milliseconds, and intervals and structs without fields text.
"""

from __future__ import annotations

import contextlib
import errno
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

#: Number of rows to collect before writing.
_GATHERED = 10_000
#: Prefix of the name of a file that is being written, and the file systems that need it. In others,
#: a file is visible when it is closed, and another name would be a copy.
_INCOMPLETE = "."
_RENAMING = ("local", "hdfs")
_LOST = "not all rejected rows were kept, and the file is incomplete"

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
    #: Their origin: a file, a piece of one, or "Spark partition 3".
    file: str
    #: The index of the first row there.
    first_row: int
    #: For each row sent, the index of its row in *batch*; None if all rows were sent.
    rows: list[int] | None = None

    def row_of(self, place: int) -> int:
        """Return the index in :attr:`batch` of the row sent at *place*."""
        return place if self.rows is None else self.rows[place]

    def where(self, place: int) -> str:
        """Describe the location of that row, for an error."""
        return f"{self.file}, row {self.first_row + self.row_of(place)}"


@dataclass(frozen=True)
class RejectsDirectory:
    """The directory of the files: a path, or a URI that pyarrow supports. Can be pickled."""

    name: str  # absolute, or a URI, because Spark's tasks have other working directories
    #: Part of the names of all files of one load.
    run: str = field(default_factory=lambda: uuid.uuid4().hex[:12])

    @classmethod
    def of(cls, name: str) -> RejectsDirectory:
        """Return the directory for *name*, as given by the user."""
        return cls(name if "://" in name else os.path.abspath(name))

    def prepare(self) -> None:
        """Create the directory if it does not exist.

        Raises:
            OSError: it cannot be created.
        """
        system, path = self._opened()
        system.create_dir(path, recursive=True)

    def check(self) -> None:
        """Raise OSError or ValueError if it is known that the directory cannot be created."""
        self._opened()
        above = "/" if "://" in self.name else self.name
        while not os.path.exists(above):
            above = os.path.dirname(above)
        if not os.path.isdir(above):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), above)

    def part(self, name: str) -> RejectsPart:
        """Return the file for one part of the load."""
        system, path = self._opened()
        return RejectsPart(system, path, f"rejects-{self.run}-{name}.parquet")

    def forget_others(self, files: Sequence[str]) -> None:
        """Remove files of this load left by parts that were repeated or did not complete."""
        system, path = self._opened()
        # A store may list a path in another form, and rename a file although it reports an error.
        kept = {file.rpartition("/")[2].removeprefix(_INCOMPLETE) for file in files}
        for found in system.get_file_info(fs.FileSelector(path)):
            name = found.base_name.removeprefix(_INCOMPLETE)
            if name.startswith(f"rejects-{self.run}-") and name not in kept:
                system.delete_file(found.path)

    def _opened(self) -> tuple[Any, str]:
        if "://" in self.name:
            system, path = fs.FileSystem.from_uri(self.name)
            return system, path
        return fs.LocalFileSystem(), self.name


class RejectsPart:
    """The rejected rows of one part of the load. Created with the first of them.

    Until it is complete, it has a name that Spark and Arrow skip when they read the directory.
    """

    def __init__(self, system: Any, directory: str, name: str) -> None:
        self.path = f"{directory}/{name}"
        #: Its path until it is complete.
        self.incomplete = self.path
        if system.type_name in _RENAMING:
            self.incomplete = f"{directory}/{_INCOMPLETE}{name}"
        self._system = system
        self._directory = directory
        self._writer: Any = None

    def write(self, table: Any) -> None:
        """Append rows."""
        if self._writer is None:
            self._system.create_dir(self._directory, recursive=True)  # a task's machine may lack it
            self._writer = parquet.ParquetWriter(
                self.incomplete, table.schema, filesystem=self._system
            )
        self._writer.write_table(table)

    def complete(self) -> bool:
        """End the file, and return whether there is one."""
        if self._writer is None:
            return False
        self._writer.close()
        return True

    def show(self) -> str:
        """Have the complete file read with its directory. Return its path."""
        if self.incomplete != self.path:
            self._system.move(self.incomplete, self.path)
        return self.path


class Rejects:
    """Handler of rejected rows that keeps them if there is a directory."""

    def __init__(self, directory: RejectsDirectory | None, part: str) -> None:
        self.wants_rows = True  # errors name the file and the row
        self.count = 0
        #: Why not all rows could be kept, or None.
        self.problem: str | None = None
        self._file = None if directory is None else directory.part(part)
        self._reasons: dict[str, tuple[str, int]] = {}
        self._gathered: list[Any] = []
        self._gathered_rows = 0

    @property
    def ends_the_load(self) -> bool:
        """Whether a row was rejected and cannot be kept."""
        return self.count > 0 and (self._file is None or self.problem is not None)

    def take(self, origin: Origin, rows: Sequence[RefusedRow]) -> None:
        """Count the rows, and keep them if there is a directory."""
        self.count += len(rows)
        for refused in rows:
            kind = f"{type(refused.error).__name__} {status_of(refused.error)}"
            text = f"{origin.where(refused.place)}: {describe(refused.error)}"
            text, before = self._reasons.get(kind, (text, 0))
            self._reasons[kind] = (text, before + 1)
        if self._file is not None:
            self._gathered.append(_rejected(origin, rows))
            self._gathered_rows += len(rows)
            if self._gathered_rows >= _GATHERED:
                self._write()

    def finish(self, summary: Summary) -> None:
        """Write the remaining rows and update *summary*."""
        self._write()
        if self._file is not None:
            self._complete(self._file, summary)
        if self.problem is not None:
            summary.troubles.append(self.problem)
        summary.refused += self.count
        summary.add_reasons(self._reasons)

    def _complete(self, file: RejectsPart, summary: Summary) -> None:
        """Complete the file, if there is one, and add it to *summary*."""
        is_complete = False
        if self.problem is None:
            with self._noticing(_LOST):
                is_complete = file.complete()
        if self.problem is not None:
            summary.broken_files.append(file.incomplete)
        elif is_complete:
            path = file.incomplete
            with self._noticing("all rejected rows were kept, but the file could not be renamed"):
                path = file.show()
            summary.files.append(path)

    def _write(self) -> None:
        """Write the collected rows."""
        if self._file is not None and self._gathered and self.problem is None:
            with self._noticing(_LOST):
                self._file.write(pyarrow.Table.from_batches(self._gathered))
        self._gathered.clear()
        self._gathered_rows = 0

    @contextlib.contextmanager
    def _noticing(self, what: str) -> Iterator[None]:
        """Note an error, which ends the load; *what* has happened to the rows."""
        try:
            yield
        except (OSError, pyarrow.ArrowException) as error:
            assert self._file is not None
            self.problem = f"--rejects: {what}: {self._file.incomplete}: {error}"


def _rejected(origin: Origin, rows: Sequence[RefusedRow]) -> Any:
    """Return the source's rows with their errors."""
    places = [origin.row_of(each.place) for each in rows]
    # take() does not support all types.
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
    fields = [each.with_type(column.type) for each, column in zip(found.schema, kept, strict=True)]
    return pyarrow.RecordBatch.from_arrays(
        [*kept, pyarrow.array(errors, _ERROR)],
        schema=pyarrow.schema([*fields, (ERROR_COLUMN, _ERROR)]),
    )


def _kept(column: Any) -> Any:
    """Return a column, as text if Parquet does not support its type."""
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
