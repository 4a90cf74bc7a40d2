"""How a file of each format is read: its columns first, then batch by batch, in order.

Parquet and ORC know the types of their columns. Of CSV all columns are text, as it stands in the
file (a key 007 stays 007, and no late row is of another type), unless types are asked for; an empty
cell is null, ``""`` is an empty text. JSON lines say types as they go: the whole of a file is read
once for its columns, so that none that comes late is lost; text stays text, also if it looks like
a time; a member that a line lacks is null. (A whole number with more than 64 bits becomes a float.)

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

#: Bytes of text that are read at once; no line of CSV may be longer.
_BLOCK = 8 << 20
#: A JSON line that is longer is none.
_LONGEST_LINE = 128 << 20
#: The most rows of a batch, and about how many bytes of the file it may stand for.
_ROWS = 65_536
_SHARE = 8 << 20


#: In errors about JSON.
_ROW = re.compile(r"(?<=\bin row )\d+")


class Reader(abc.ABC):
    """Reads one file. It is opened anew each time."""

    #: What to do if the file is not of this format.
    advice: str

    def __init__(self, path: str, partition: Partition) -> None:
        self.path = path
        self.partition = partition
        with self.errors():
            self.size = os.stat(path).st_size
            # Its columns, without those of its directories. None: there is nothing in it.
            self.schema = self._read_schema()

    @property
    def is_empty(self) -> bool:
        """Whether not even columns are known."""
        return self.schema is None

    def batches(self, schema: Any) -> Iterator[tuple[Any, int]]:
        """The rows with the columns of *schema*, and how many bytes were read with them.

        Raises SourceError.
        """
        constants = dict(self.partition)
        own = pyarrow.schema([each for each in schema if each.name not in constants])
        with self.errors():
            for batch, position in self._read(own):
                yield self._completed(batch, schema, constants), position

    def _completed(self, batch: Any, schema: Any, constants: dict[str, str | None]) -> Any:
        """*batch* with exactly the columns of *schema*."""
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
        """Turns what pyarrow and the system raise into SourceErrors that name the file.

        *first_row* is the number of the row that pyarrow, given a part of the file, calls 0.
        """
        try:
            yield
        except (OSError, pyarrow.ArrowException, UnicodeError) as error:
            reason = str(error)
            # The system's own have a number: what is in the file is not what is wrong then.
            if isinstance(error, OSError) and error.errno is not None:
                reason = os.strerror(error.errno)
            else:
                reason = _ROW.sub(lambda found: str(int(found[0]) + first_row), reason.strip())
                reason = f"{reason}; {self.advice}"
            raise SourceError(f"{self.path}: {reason}") from error

    @abc.abstractmethod
    def _read_schema(self) -> Any:
        """The file's columns, or None."""

    @abc.abstractmethod
    def _read(self, schema: Any) -> Iterator[tuple[Any, int]]:
        """Batches with at least those columns of *schema* that the file has, and the bytes read."""


# Parquet and ORC ---------------------------------------------------------------------------------


class _Columnar(Reader):
    """A file that is a table, with the types of its columns."""

    format: ClassVar[Any]

    def _read_schema(self) -> Any:
        return self._fragment().physical_schema.remove_metadata()

    def _read(self, schema: Any) -> Iterator[tuple[Any, int]]:
        fragment = self._fragment()
        rows = fragment.count_rows()
        if not schema.names:  # no column is wanted, only to know how many rows there are
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

    advice = "is it a whole Parquet file? (if it is of another format, say which with --format)"
    format = dataset.ParquetFileFormat()


class OrcReader(_Columnar):
    """An ORC file."""

    advice = "is it a whole ORC file? (if it is of another format, say which with --format)"

    def _fragment(self) -> Any:
        # Not every build of pyarrow has it.
        return dataset.OrcFileFormat().make_fragment(self.path, fs.LocalFileSystem())


# Text --------------------------------------------------------------------------------------------


class _Text(Reader):
    """A file of lines, that may be compressed."""

    @contextlib.contextmanager
    def _opened(self) -> Iterator[tuple[Any, Any]]:
        """What to read, and the file itself: its place says how far we are."""
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(pyarrow.OSFile(self.path))
            name = COMPRESSIONS.get(os.path.splitext(self.path)[1].lower())
            if name is None:
                yield file, file
            else:
                yield stack.enter_context(pyarrow.CompressedInputStream(file, name)), file


class CsvReader(_Text):
    """A CSV file whose first line names the columns."""

    advice = "repair the file, or say its --format or --delimiter"

    def __init__(
        self, path: str, partition: Partition, delimiter: str = ",", infer_types: bool = False
    ) -> None:
        self._delimiter = delimiter
        self._infer_types = infer_types
        if infer_types:
            self.advice += ", or leave --infer-types out"
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
        # Each column is converted as the first look at the file said; _completed() does the rest.
        kinds = {each.name: each.type for each in self.schema}
        wanted = [name for name in schema.names if name in kinds]
        with self._opened() as (stream, file):
            # Without any column there would be no rows either.
            reader = self._stream(stream, kinds, wanted or self.schema.names[:1])
            for batch in reader:
                yield batch, file.tell()

    def _stream(self, stream: Any, kinds: dict[str, Any], wanted: Sequence[str] = ()) -> Any:
        # One thread: it is as fast, and only then errors know their row.
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

    advice = "each line must be a JSON object (of an array, jq -c '.[]' makes lines)"

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
        # Of no member at all there would be no rows either.
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
        """Whole lines, some MiB at once, and the place in the file behind them."""
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
                        raise SourceError(f"{self.path}: a line has no end; {self.advice}")
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
    """A type that was found in JSON, with text where the text looked like a time."""
    if types.is_timestamp(kind) or types.is_date(kind) or types.is_time(kind):
        return pyarrow.string()
    if types.is_list(kind):
        return pyarrow.list_(_without_times(kind.value_type))
    if types.is_struct(kind):
        return pyarrow.struct([(each.name, _without_times(each.type)) for each in kind])
    return kind


# All of them -------------------------------------------------------------------------------------


def reader_of(
    kind: str, path: str, partition: Partition, delimiter: str, infer_types: bool
) -> Reader:
    """The reader for a file of format *kind*; SourceError if it is none."""
    if kind == "csv":
        return CsvReader(path, partition, delimiter, infer_types)
    readers = {"parquet": ParquetReader, "orc": OrcReader, "jsonl": JsonLinesReader}
    return readers[kind](path, partition)


def common_schema(readers: Sequence[Reader]) -> Any:
    """All columns of all files; SourceError if one's types do not go together."""
    found = pyarrow.schema([])
    for reader in readers:
        _check_names(reader)
        try:
            found = pyarrow.unify_schemas([found, reader.schema], promote_options="permissive")
        except pyarrow.ArrowException as error:
            raise SourceError(
                f"{reader.path}: its columns do not go with those of the files before it: {error}; "
                f"load it by itself"
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


def _check_names(reader: Reader) -> None:
    names = reader.schema.names
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise SourceError(f"{reader.path}: two of its columns are called {twice!r}; rename one")
