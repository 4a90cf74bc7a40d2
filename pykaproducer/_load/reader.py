"""The base of all readers of files: the columns of a file, and the parts it is read in.

A :class:`FilePart` is what one task of Spark reads: a range of row groups, stripes, blocks or
bytes. An embedded load reads all parts of all files, in order. A reader and its parts can be
pickled.
"""

from __future__ import annotations

import abc
import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow

from pykaproducer._load.encoders import conform
from pykaproducer._load.files import Partition
from pykaproducer._load.names import SourceError, is_stored
from pykaproducer._load.stores import size_of, version_of


class FilePart(NamedTuple):
    """A range of a file that can be read by itself.

    The unit is the format's: row groups, stripes, blocks, or bytes (of lines that begin there).
    """

    start: int
    #: None: to the end of the file.
    stop: int | None
    #: The index of its first row in the file, if it is known without reading what precedes it.
    first_row: int = 0


#: Maximum number of columns that are exchanged one by one, which copies the list of all.
_FEW = 50

#: A file that is read at once.
WHOLE = FilePart(0, None)


class Read(NamedTuple):
    """Rows that were read."""

    #: A ``pyarrow.RecordBatch``.
    batch: Any
    #: Approximate number of bytes of the file read so far.
    position: int


def batch_of(rows: int, names: Sequence[str], columns: Sequence[Any]) -> Any:
    """Return columns as a batch, which without any has still its rows."""
    if not names:
        return pyarrow.RecordBatch.from_arrays([pyarrow.nulls(rows)], [""]).select([])
    return pyarrow.RecordBatch.from_arrays(columns, names)


class FileReader(abc.ABC):
    """Reader of one file, which is opened again for each pass."""

    #: Advice for the case that the file is not of this format.
    advice: str

    def __init__(self, path: str, partition: Partition) -> None:
        self.path = path
        self.partition = partition
        #: Errors of the store, which pyarrow's readers may have put into errors of the content.
        self._failures: list[SourceError] = []
        with self.errors():
            self._version = version_of(path)
            self.size = 0 if path == "-" else size_of(path)
            # Without the columns from its directories. None if the file is empty: no columns.
            self.schema = self._read_schema()
        # Batches lack the names of JSON's nested members, which columns have as metadata.
        self._has_metadata = any(field.metadata for field in self.schema or ())

    def parts(self, size: int) -> list[FilePart]:
        """Return the parts of about *size* bytes that the file can be read in, in order."""
        return [WHOLE]

    def batches(self, schema: Any, part: FilePart = WHOLE) -> Iterator[Read]:
        """Yield the rows of *part* with the columns of *schema*.

        Raises:
            SourceError: the file cannot be read.
        """
        constants = dict(self.partition)
        own = pyarrow.schema([each for each in schema if each.name not in constants])
        row = part.first_row
        self._failures.clear()
        with self.errors():
            version = version_of(self.path) if self._version is None else self._version
            for batch, position in self._read(own, part):
                yield Read(self._completed(batch, schema, constants, row), position)
                row += batch.num_rows
            now = version
            with contextlib.suppress(FileNotFoundError):  # an open file keeps its content
                now = version_of(self.path)
        # If it was written to or replaced, rows of both versions may have been read.
        if now != version:
            raise self._changed()

    def __getstate__(self) -> dict[str, Any]:
        # The time of a local file may be another one on another machine.
        return {**self.__dict__, "_version": self._version if is_stored(self.path) else None}

    def _completed(
        self, batch: Any, schema: Any, constants: dict[str, str | None], row: int
    ) -> Any:
        """Return *batch*, which begins at *row*, with exactly the columns of *schema*."""
        if batch.schema.names == schema.names and not self._has_metadata:
            is_same = batch.schema == schema
            pairs = () if is_same else enumerate(zip(batch.schema, schema, strict=True))
            others = [place for place, (own, wanted) in pairs if own != wanted]
            if len(others) <= _FEW:
                for place in others:
                    column = self._conformed(batch.column(place), schema.field(place), row)
                    batch = batch.set_column(place, schema.field(place), column)
                return batch
        columns = []
        found = dict(zip(batch.schema.names, batch.columns, strict=True))
        for each in schema:
            if each.name in constants:
                value = pyarrow.scalar(constants[each.name], pyarrow.string())
                column = pyarrow.repeat(value, batch.num_rows)
            elif each.name in found:
                column = self._conformed(found[each.name], each, row)
            else:
                column = pyarrow.nulls(batch.num_rows, each.type)
            columns.append(column)
        if not columns:
            return batch.select([])
        return pyarrow.RecordBatch.from_arrays(columns, schema=schema)

    def _conformed(self, column: Any, field: Any, row: int) -> Any:
        try:
            return conform(column, field.type)
        except pyarrow.ArrowInvalid as error:
            raise SourceError(
                f"{self.path}: rows {row} to {row + len(column) - 1}, column {field.name}: "
                f"{error}; its type in other files is another: load the file separately"
            ) from None

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Convert errors of pyarrow and of the system to SourceErrors that name the file."""
        try:
            yield
        except (OSError, pyarrow.ArrowException, UnicodeError) as error:
            self._raise_failures()
            reason = f"{str(error).strip()}; {self.advice}"
            # An error with an errno is the system's; the content of the file is not at fault.
            if isinstance(error, OSError) and error.errno is not None:
                reason = os.strerror(error.errno)
            raise SourceError(f"{self.path}: {reason}") from error

    def _raise_failures(self) -> None:
        if self._failures:
            raise self._failures[0] from None

    def _check_unchanged(self, schema: Any) -> None:
        """Raise SourceError if the file, now with the columns *schema*, is another than before."""
        if schema != self.schema or size_of(self.path) != self.size:
            raise self._changed()

    def _changed(self) -> SourceError:
        return SourceError(f"{self.path}: changed while it was read; load it again")

    @abc.abstractmethod
    def _read_schema(self) -> Any:
        """Return the file's columns, or None."""

    @abc.abstractmethod
    def _read(self, schema: Any, part: FilePart) -> Iterator[Read]:
        """Yield the rows of *part* with at least the columns of *schema* that the file has."""
