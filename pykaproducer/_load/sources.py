"""Where batches come from: files of Parquet, ORC, CSV and JSON lines.

A source is a file, a directory or a pattern (``data/*.csv``), or several of these
(:mod:`pykaproducer._load.files`). The format is told by the suffix, before one of compression if it
is text: .parquet .pq .orc .csv .tsv .jsonl .ndjson .json, .gz .bz2 .zst .lz4
(:mod:`pykaproducer._load.formats`: how each is read).

All files are opened first, and their columns put together by name: a column that a file does not
have is null in its rows; a column whose types do not go together is an error before anything is
sent. What directories named ``NAME=VALUE`` say is a column too, of whole numbers if all are.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from pykaproducer._load.files import (
    FORMATS,
    File,
    SourceError,
    delimiter_of,
    files_of,
    format_of,
)

if TYPE_CHECKING:
    from pykaproducer._load.formats import Reader

__all__ = ["FORMATS", "Options", "Source", "SourceBatch", "SourceError", "open_source"]


class SourceBatch(NamedTuple):
    """Rows of one file."""

    #: A ``pyarrow.RecordBatch``.
    batch: Any
    file: str
    #: The number of its first row in the file, from 0 (a header is none).
    first_row: int
    #: About how many bytes of the source have been read with it, of :attr:`Source.size`.
    position: int


@dataclass(frozen=True)
class Options:
    """How files are read."""

    #: None: by the suffix of each file.
    format: str | None = None
    #: Of CSV: what separates cells. None: a comma, and a tab in .tsv.
    delimiter: str | None = None
    #: Of CSV: find types by looking at the first rows. Else all columns are text, as it stands.
    infer_types: bool = False


@dataclass(frozen=True)
class Source:
    """Files that have been looked at: what is in them is known, they are read by :meth:`batches`.

    A source can be read several times.
    """

    #: A ``pyarrow.Schema``: all columns of all files.
    schema: Any
    #: Bytes of all files, as they are on the disk.
    size: int
    readers: tuple[Reader, ...] = field(repr=False)

    @property
    def files(self) -> list[str]:
        """The files, in the order in which they are read."""
        return [reader.path for reader in self.readers]

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[SourceBatch]:
        """The rows of each file, in order; only these *columns* (and in this order), or all.

        Raises:
            SourceError: while it is read. Batches that were given before stay valid.
        """
        names = self.schema.names if columns is None else columns
        schema = self.schema.empty_table().select(list(names)).schema
        before = 0
        for reader in self.readers:
            row = 0
            for batch, position in reader.batches(schema):
                if batch.num_rows:
                    yield SourceBatch(batch, reader.path, row, before + min(position, reader.size))
                row += batch.num_rows
            before += reader.size


def open_source(names: Sequence[str], options: Options | None = None) -> Source:
    """Open files, directories or patterns.

    Raises:
        SourceError: nothing is there, or something that cannot be read; pyarrow is missing.
    """
    try:
        from pykaproducer._load import formats
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "pyarrow":
            raise
        text = 'reading files needs the package pyarrow: pip install "pykaproducer[load]"'
        raise SourceError(text) from None
    options = options or Options()
    if options.format not in (None, *FORMATS):
        raise SourceError(f"no format {options.format!r}; formats are {', '.join(FORMATS)}")
    files = list(itertools.chain.from_iterable(files_of(name) for name in names))
    readers = [_reader(formats, file, options) for file in files]
    found = [reader for reader in readers if not reader.is_empty]
    if not found:
        raise SourceError(f"{', '.join(names)}: empty: not even names of columns are there")
    schema = formats.common_schema(found)
    return Source(schema, sum(reader.size for reader in found), tuple(found))


def _reader(formats: Any, file: File, options: Options) -> Reader:
    kind = options.format or format_of(file.path)
    delimiter = options.delimiter or delimiter_of(file.path)
    reader: Reader = formats.reader_of(
        kind, file.path, file.partition, delimiter, options.infer_types
    )
    return reader
