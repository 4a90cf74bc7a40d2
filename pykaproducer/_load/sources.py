"""Sources of batches: Parquet, ORC, Arrow, Avro, CSV and JSON Lines files.

A source is a file, a directory or a pattern (``data/*.csv``), or several of these
(:mod:`pykaproducer._load.files`). The suffix determines the format: .parquet .pq .orc .arrow
.arrows .feather .ipc .avro .csv .tsv .jsonl .ndjson .json; text files may have an additional suffix
for compression: .gz .bz2 .xz .zst .lz4 (:mod:`pykaproducer._load.formats` chooses the reader).

All files are opened first, and their columns combined by name. A column that is missing in a file
is null in its rows. Columns with incompatible types are an error, raised before anything is sent.
Directories named ``NAME=VALUE`` add a column of text: 01 stays 01.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from pykaproducer._load.files import FORMATS, Options, files_of, format_of
from pykaproducer._load.names import SourceError, is_stored

if TYPE_CHECKING:
    from pykaproducer._load.reader import FilePart, FileReader

__all__ = ["FORMATS", "LoadSource", "Options", "SourceBatch", "SourceError", "open_source"]

#: Older ones change values without a word: of ORC, timestamps that do not fit their type.
_OLDEST_PYARROW = 25


class SourceBatch(NamedTuple):
    """Rows of one file."""

    #: A ``pyarrow.RecordBatch``.
    batch: Any
    #: The file, and where the part begins if that is not its start.
    file: str
    #: The index of its first row in the part, from 0, not counting a header.
    first_row: int
    #: Approximate bytes of the source read so far, of :attr:`LoadSource.size`.
    position: int


@dataclass(frozen=True)
class SourcePart:
    """A part of a source, for one task. Can be pickled."""

    reader: FileReader = field(repr=False)
    part: FilePart
    #: Bytes of the files before this one.
    before: int
    #: Approximate bytes that it reads.
    size: int

    def batches(self, schema: Any) -> Iterator[SourceBatch]:
        """Yield its rows with the columns of *schema*, a part of :attr:`LoadSource.schema`.

        Raises:
            SourceError: reading failed. Batches yielded before stay valid.
        """
        check_pyarrow()  # again, as a task of Spark may have another
        reader, (start, _, row) = self.reader, self.part
        # The number of the first row in the file may be unknown.
        is_within = start > 0 and not row
        name = f"{reader.path}, from byte {start:,} on" if is_within else reader.path
        for batch, position in reader.batches(schema, self.part):
            if batch.num_rows:
                place = self.before + min(position, reader.size)
                yield SourceBatch(batch, name, row, place)
            row += batch.num_rows


@dataclass(frozen=True)
class LoadSource:
    """Files whose columns are known. Their rows are read by :meth:`batches`.

    A source can be read several times.
    """

    #: A ``pyarrow.Schema``: all columns of all files.
    schema: Any
    #: Total size of the files on disk (bytes).
    size: int
    readers: tuple[FileReader, ...] = field(repr=False)

    @property
    def files(self) -> list[str]:
        """The files, in the order in which they are read."""
        return [reader.path for reader in self.readers]

    def parts(self, size: int) -> list[SourcePart]:
        """Return all parts of all files, of about *size* bytes each, in order."""
        before, found = 0, []
        for reader in self.readers:
            parts = reader.parts(size)
            share = reader.size // max(len(parts), 1)
            found += [SourcePart(reader, part, before, share) for part in parts]
            before += reader.size
        return found

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[SourceBatch]:
        """Yield the rows of each file, in order, with *columns* in this order, or all columns.

        Raises:
            SourceError: reading failed. Batches yielded before stay valid.
        """
        names = self.schema.names if columns is None else columns
        schema = columns_of(self.schema, names)
        for part in self.parts(sys.maxsize):
            yield from part.batches(schema)


def columns_of(schema: Any, names: Sequence[str]) -> Any:
    """Return the columns *names* of a ``pyarrow.Schema``."""
    import pyarrow

    return pyarrow.schema([schema.field(name) for name in names])


def check_pyarrow() -> None:
    """Raise SourceError if pyarrow is too old to read files."""
    import pyarrow

    if int(pyarrow.__version__.partition(".")[0]) < _OLDEST_PYARROW:
        raise SourceError(
            f"reading files needs pyarrow {_OLDEST_PYARROW} or newer; {pyarrow.__version__} reads "
            f'some values as others: pip install "pykaproducer[load]"'
        )


def open_source(names: Sequence[str], options: Options | None = None) -> LoadSource:
    """Open files, directories or patterns.

    Raises:
        SourceError: nothing was found, a file cannot be read, or pyarrow is missing.
    """
    try:
        from pykaproducer._load import formats
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "pyarrow":
            raise
        text = 'reading files needs the package pyarrow: pip install "pykaproducer[load]"'
        raise SourceError(text) from None
    check_pyarrow()
    options = options or Options()
    if options.format not in (None, *FORMATS):
        raise SourceError(f"unknown format {options.format!r}; use one of {', '.join(FORMATS)}")
    files = list(itertools.chain.from_iterable(files_of(name) for name in names))
    seen: set[str] = set()
    for file in files:
        real = file.path.replace("abfss://", "abfs://", 1)
        if not is_stored(real):
            real = os.path.realpath(real)
        if real in seen:
            raise SourceError(f"{file.path}: this file is in the source twice; name it once")
        seen.add(real)
    kinds = [options.format or format_of(file.path) for file in files]
    formats.refuse_other_formats(options, set(kinds))
    if set(kinds) != {"jsonl"}:
        options = replace(options, whole_lines=False)
    readers = [
        formats.reader_of(kind, file, options) for kind, file in zip(kinds, files, strict=True)
    ]
    found = [reader for reader in readers if reader.schema is not None]
    if not found:
        raise SourceError(f"{', '.join(names)}: empty: there are no columns")
    schema = formats.common_schema(found)
    return LoadSource(schema, sum(reader.size for reader in found), tuple(found))
