"""Readers of text: CSV and JSON Lines."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow
from pyarrow import csv, types
from pyarrow import json as arrow_json

from pykaproducer._load.files import COMPRESSIONS, Partition, SourceError
from pykaproducer._load.reader import FilePart, FileReader, Read

#: Bytes of text that are read at once; the maximum length of a CSV line.
_BLOCK = 8 << 20
#: Maximum length of a JSON line (bytes).
_LONGEST_LINE = 128 << 20


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

    def _read(self, schema: Any, part: FilePart) -> Iterator[Read]:
        # Columns have the types found by _read_schema(); _completed() casts them as required.
        kinds = {each.name: each.type for each in self.schema}
        wanted = [name for name in schema.names if name in kinds]
        with self._opened() as (stream, file):
            # At least one column is needed: without columns pyarrow returns no rows.
            reader = self._stream(stream, kinds, wanted or self.schema.names[:1])
            for batch in reader:
                yield Read(batch, file.tell())

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

    def _read(self, schema: Any, part: FilePart) -> Iterator[Read]:
        kinds = pyarrow.schema([each for each in self.schema if each.name in schema.names])
        # At least one member is needed: without members pyarrow returns no rows.
        kinds = kinds if kinds.names else pyarrow.schema([self.schema.field(0)])
        options = arrow_json.ParseOptions(explicit_schema=kinds, unexpected_field_behavior="ignore")
        row = 0
        for block, position in self._blocks():
            with self.errors(row):
                table = arrow_json.read_json(io.BytesIO(block), _read_options(block), options)
            for batch in table.combine_chunks().to_batches():
                yield Read(batch, position)
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
