"""Readers for each file format: they read the columns first, then batches in order.

Parquet and ORC files contain the types of their columns. CSV columns are text exactly as in the
file, unless types are to be inferred: a key 007 stays 007, and no late row changes the type. An
empty cell is null; ``""`` is an empty string. JSON Lines values have types: the whole file is first
read for its columns, so that none that appears late is lost. Text stays text, even if it looks like
a time. A member that is missing in a line is null. (An integer with more than 64 bits becomes a
float.)

At most a few batches are in memory.
"""

from __future__ import annotations

import abc
import contextlib
import io
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import pyarrow
from pyarrow import csv, dataset, fs, types
from pyarrow import json as arrow_json

from pykaproducer._load.files import COMPRESSIONS, Partition, SourceError

#: Bytes of text that are read at once; the maximum length of a CSV line.
_BLOCK = 8 << 20
#: Maximum length of a JSON line (bytes).
_LONGEST_LINE = 128 << 20
#: Maximum rows of a batch, and approximate bytes of the file that a batch covers.
_ROWS = 65_536
_SHARE = 8 << 20


#: The row number in pyarrow's errors about JSON.
_ROW = re.compile(r"(?<=\bin row )\d+")


class FileReader(abc.ABC):
    """Reader of one file, which is opened again for each pass."""

    #: Advice for the case that the file is not of this format.
    advice: str

    def __init__(self, path: str, partition: Partition) -> None:
        self.path = path
        self.partition = partition
        with self.errors():
            self.size = os.stat(path).st_size
            # Without the columns from its directories. None if the file is empty.
            self.schema = self._read_schema()

    @property
    def is_empty(self) -> bool:
        """Whether the file is empty and has not even columns."""
        return self.schema is None

    def batches(self, schema: Any) -> Iterator[tuple[Any, int]]:
        """Yield the rows with the columns of *schema*, and the number of bytes read so far.

        Raises:
            SourceError: the file cannot be read.
        """
        constants = dict(self.partition)
        own = pyarrow.schema([each for each in schema if each.name not in constants])
        with self.errors():
            for batch, position in self._read(own):
                yield self._completed(batch, schema, constants), position

    def _completed(self, batch: Any, schema: Any, constants: dict[str, str | None]) -> Any:
        """Return *batch* with exactly the columns of *schema*."""
        columns = []
        for each in schema:
            if each.name in constants:
                value = pyarrow.scalar(constants[each.name], pyarrow.string())
                column = pyarrow.repeat(value, batch.num_rows).cast(each.type)
            elif each.name in batch.schema.names:
                column = batch.column(each.name).cast(each.type)
            else:
                column = pyarrow.nulls(batch.num_rows, each.type)
            columns.append(column)
        if not columns:
            return batch.select([])
        return pyarrow.RecordBatch.from_arrays(columns, schema=schema)

    @contextlib.contextmanager
    def errors(self, first_row: int = 0) -> Iterator[None]:
        """Convert errors of pyarrow and of the system to SourceErrors that name the file.

        *first_row* is added to pyarrow's row numbers, which are relative to the part it was given.
        """
        try:
            yield
        except (OSError, pyarrow.ArrowException, UnicodeError) as error:
            reason = str(error)
            # An error with an errno is the system's; the content of the file is not at fault.
            if isinstance(error, OSError) and error.errno is not None:
                reason = os.strerror(error.errno)
            else:
                reason = _ROW.sub(lambda found: str(int(found[0]) + first_row), reason.strip())
                reason = f"{reason}; {self.advice}"
            raise SourceError(f"{self.path}: {reason}") from error

    @abc.abstractmethod
    def _read_schema(self) -> Any:
        """Return the file's columns, or None."""

    @abc.abstractmethod
    def _read(self, schema: Any) -> Iterator[tuple[Any, int]]:
        """Yield batches with at least the columns of *schema* in the file, and the bytes read."""


# Parquet and ORC ---------------------------------------------------------------------------------


class _Columnar(FileReader):
    """A columnar file, which contains the types of its columns."""

    format: ClassVar[Any]

    def _read_schema(self) -> Any:
        return self._fragment().physical_schema.remove_metadata()

    def _read(self, schema: Any) -> Iterator[tuple[Any, int]]:
        fragment = self._fragment()
        rows = fragment.count_rows()
        if not schema.names:  # no column is needed, only the number of rows
            yield from self._without_columns(rows)
            return
        at_once = min(_ROWS, max(256, rows * _SHARE // max(self.size, 1)))
        done = 0
        batches = fragment.to_batches(
            schema=schema,
            columns=[name for name in schema.names if name in self.schema.names],
            batch_size=at_once,
            batch_readahead=2,
        )
        for batch in batches:
            done += batch.num_rows
            yield batch, self.size * done // max(rows, 1)

    def _without_columns(self, rows: int) -> Iterator[tuple[Any, int]]:
        for start in range(0, rows, _ROWS):
            count = min(_ROWS, rows - start)
            one = pyarrow.RecordBatch.from_arrays([pyarrow.nulls(count)], ["none"])
            yield one, self.size * (start + count) // rows

    def _fragment(self) -> Any:
        return self.format.make_fragment(self.path, fs.LocalFileSystem())


class ParquetReader(_Columnar):
    """A Parquet file."""

    advice = "is it a complete Parquet file? (for another format, use --format)"
    format = dataset.ParquetFileFormat()


class OrcReader(_Columnar):
    """An ORC file."""

    advice = "is it a complete ORC file? (for another format, use --format)"

    def _fragment(self) -> Any:
        # Created on demand, because some builds of pyarrow lack ORC.
        return dataset.OrcFileFormat().make_fragment(self.path, fs.LocalFileSystem())


# Text --------------------------------------------------------------------------------------------


class _Text(FileReader):
    """A text file, optionally compressed."""

    @contextlib.contextmanager
    def _opened(self) -> Iterator[tuple[Any, Any]]:
        """Open the file. Yield the stream to read, and the file, whose position shows progress."""
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(pyarrow.OSFile(self.path))
            name = COMPRESSIONS.get(os.path.splitext(self.path)[1].lower())
            if name is None:
                yield file, file
            else:
                yield stack.enter_context(pyarrow.CompressedInputStream(file, name)), file


class CsvReader(_Text):
    """A CSV file whose first line contains the column names."""

    advice = "repair the file, or set --format or --delimiter"

    def __init__(
        self, path: str, partition: Partition, delimiter: str = ",", infer_types: bool = False
    ) -> None:
        self._delimiter = delimiter
        self._infer_types = infer_types
        if infer_types:
            self.advice += ", or omit --infer-types"
        super().__init__(path, partition)

    def _read_schema(self) -> Any:
        with self._opened() as (stream, _):
            if not self.size or not stream.read(1):
                return None
        with self._opened() as (stream, _):
            found = self._stream(stream, {}).schema
        if self._infer_types:
            return found
        return pyarrow.schema([(name, pyarrow.string()) for name in found.names])

    def _read(self, schema: Any) -> Iterator[tuple[Any, int]]:
        # Columns have the types found by _read_schema(); _completed() casts them as required.
        kinds = {each.name: each.type for each in self.schema}
        wanted = [name for name in schema.names if name in kinds]
        with self._opened() as (stream, file):
            # At least one column is needed: without columns pyarrow returns no rows.
            reader = self._stream(stream, kinds, wanted or self.schema.names[:1])
            for batch in reader:
                yield batch, file.tell()

    def _stream(self, stream: Any, kinds: dict[str, Any], wanted: Sequence[str] = ()) -> Any:
        # A single thread is as fast, and errors name the row only then.
        return csv.open_csv(
            stream,
            read_options=csv.ReadOptions(use_threads=False, block_size=_BLOCK),
            parse_options=csv.ParseOptions(delimiter=self._delimiter, newlines_in_values=True),
            convert_options=csv.ConvertOptions(
                column_types=kinds,
                include_columns=list(wanted),
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
                **({} if self._infer_types else {"null_values": [""]}),
            ),
        )


class JsonLinesReader(_Text):
    """A file with a JSON object in each line."""

    advice = "each line must be a JSON object (jq -c '.[]' converts an array)"

    def _read_schema(self) -> Any:
        found: Any = None
        row = 0
        for block, _ in self._blocks():
            with self.errors(row):
                table = arrow_json.read_json(io.BytesIO(block), _read_options(block))
                kinds = pyarrow.schema([(f.name, _without_times(f.type)) for f in table.schema])
                pair = [kinds] if found is None else [found, kinds]
                found = pyarrow.unify_schemas(pair, promote_options="permissive")
            row += table.num_rows
        return found

    def _read(self, schema: Any) -> Iterator[tuple[Any, int]]:
        kinds = pyarrow.schema([each for each in self.schema if each.name in schema.names])
        # At least one member is needed: without members pyarrow returns no rows.
        kinds = kinds if kinds.names else pyarrow.schema([self.schema.field(0)])
        options = arrow_json.ParseOptions(explicit_schema=kinds, unexpected_field_behavior="ignore")
        row = 0
        for block, position in self._blocks():
            with self.errors(row):
                table = arrow_json.read_json(io.BytesIO(block), _read_options(block), options)
            for batch in table.combine_chunks().to_batches():
                yield batch, position
            row += table.num_rows

    def _blocks(self) -> Iterator[tuple[bytes, int]]:
        """Yield whole lines, some MiB at once, and the position in the file after them."""
        with self._opened() as (stream, file):
            parts: list[bytes] = []
            size = 0
            if (mark := stream.read(3)) != b"\xef\xbb\xbf":
                parts.append(mark)
            while data := stream.read(_BLOCK):
                head, newline, rest = data.rpartition(b"\n")
                size += len(data)
                if not newline:
                    parts.append(rest)
                    if size > _LONGEST_LINE:
                        raise SourceError(f"{self.path}: a line is too long; {self.advice}")
                    continue
                block = b"".join([*parts, head])
                parts, size = [rest], len(rest)
                if block.strip():
                    yield block, file.tell()
            block = b"".join(parts)
            if block.strip():
                yield block, self.size


def _read_options(block: bytes) -> Any:
    return arrow_json.ReadOptions(use_threads=False, block_size=len(block) + 1)


def _without_times(kind: Any) -> Any:
    """Replace times, which pyarrow infers from text in JSON, by text in a type."""
    if types.is_timestamp(kind) or types.is_date(kind) or types.is_time(kind):
        return pyarrow.string()
    if types.is_list(kind):
        return pyarrow.list_(_without_times(kind.value_type))
    if types.is_struct(kind):
        return pyarrow.struct([(each.name, _without_times(each.type)) for each in kind])
    return kind


# All formats --------------------------------------------------------------------------------------


def reader_of(
    kind: str, path: str, partition: Partition, delimiter: str, infer_types: bool
) -> FileReader:
    """Return a reader for a file of format *kind*; SourceError if the file is not of it."""
    if kind == "csv":
        return CsvReader(path, partition, delimiter, infer_types)
    readers = {"parquet": ParquetReader, "orc": OrcReader, "jsonl": JsonLinesReader}
    return readers[kind](path, partition)


def common_schema(readers: Sequence[FileReader]) -> Any:
    """Return the columns of all files; SourceError if their types are incompatible."""
    found = pyarrow.schema([])
    for reader in readers:
        _check_names(reader)
        try:
            found = pyarrow.unify_schemas([found, reader.schema], promote_options="permissive")
        except pyarrow.ArrowException as error:
            raise SourceError(
                f"{reader.path}: its columns are incompatible with the files before it: {error}; "
                f"load it separately"
            ) from None
    names = dict.fromkeys(name for reader in readers for name, _ in reader.partition)
    for name in names:
        values = [dict(reader.partition).get(name) for reader in readers]
        whole = all(value is None or re.fullmatch(r"0|-?[1-9]\d{0,17}", value) for value in values)
        found = found.append(pyarrow.field(name, pyarrow.int64() if whole else pyarrow.string()))
    for reader in readers:
        both = [name for name in names if name in reader.schema.names]
        if both:
            raise SourceError(
                f"{reader.path}: column {both[0]} is in the file and in its directory"
            )
    return found


def _check_names(reader: FileReader) -> None:
    names = reader.schema.names
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise SourceError(f"{reader.path}: two columns are named {twice!r}; rename one")
