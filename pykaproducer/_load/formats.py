"""The reader of each format, and the columns that files have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow

from pykaproducer._load import json_text
from pykaproducer._load.avro_file import AvroReader
from pykaproducer._load.columnar import ArrowReader, OrcReader, ParquetReader
from pykaproducer._load.encoders import EncodingError, add_fields, twice_named
from pykaproducer._load.files import File, Options, delimiter_of
from pykaproducer._load.names import SourceError, is_pipe
from pykaproducer._load.reader import FileReader
from pykaproducer._load.streams import is_utf8
from pykaproducer._load.text import CsvReader, JsonLinesReader


def refuse_other_formats(options: Options, kinds: set[str]) -> None:
    """Raise SourceError if an option would have no effect on files of these formats."""
    given = {
        "--delimiter": (options.delimiter is not None, {"csv"}),
        "--infer-types": (options.infer_types, {"csv"}),
        "--encoding": (not is_utf8(options.encoding), {"csv", "jsonl"}),
    }
    for name, (is_given, formats) in given.items():
        if is_given and kinds.isdisjoint(formats):
            raise SourceError(
                f"{name} is for {' and '.join(sorted(formats))}, but the source is "
                f"{' and '.join(sorted(kinds))}; leave it out"
            )


def reader_of(kind: str, file: File, options: Options) -> FileReader:
    """Return a reader for a file of format *kind*; SourceError if the file is not of it."""
    path, partition = file.path, file.partition
    if kind == "csv":
        delimiter = options.delimiter or delimiter_of(path)
        reader = CsvReader(path, partition, options.encoding, delimiter, options.infer_types)
        if options.delimiter is None and reader.schema is not None:
            _refuse_other_delimiter(path, reader.schema.names, delimiter)
        return reader
    if kind == "jsonl":
        return JsonLinesReader(path, partition, options.encoding, options.whole_lines)
    if is_pipe(path):
        raise SourceError(f"{path}: {kind} cannot be read from a pipe; save it to a file")
    readers: dict[str, type[Any]] = {
        "parquet": ParquetReader,
        "orc": OrcReader,
        "arrow": ArrowReader,
        "avro": AvroReader,
    }
    found: FileReader = readers[kind](path, partition)
    return found


def _refuse_other_delimiter(path: str, names: Sequence[str], delimiter: str) -> None:
    """Raise SourceError if the only column has the name of several: its rows would be one cell."""
    other = next((each for each in ";\t|," if each in names[0] and each != delimiter), None)
    if len(names) == 1 and other is not None:
        raise SourceError(
            f"{path}: line 1: the only column is {names[0]!r}; set --delimiter {other!r}, or "
            f"--delimiter {delimiter!r} if this is its name"
        )


def common_schema(readers: Sequence[FileReader]) -> Any:
    """Return the columns of all files; SourceError if their types are incompatible."""
    found: dict[str, Any] = {}
    schemas = json_text.unified([reader.schema for reader in readers])
    for reader, schema in zip(readers, schemas, strict=True):
        twice = twice_named(schema.names)
        if twice is not None:
            raise SourceError(f"{reader.path}: two columns are named {twice!r}; rename one")
        try:
            add_fields(found, schema)
        except EncodingError as error:
            raise SourceError(
                f"{reader.path}: its columns are incompatible with the files before it: column "
                f"{error}; load it separately"
            ) from None
    nested = {each.name: each.metadata for schema in schemas for each in schema}
    fields = [pyarrow.field(*each, metadata=nested[each[0]]) for each in found.items()]
    for name in dict.fromkeys(name for reader in readers for name, _ in reader.partition):
        if name in found:
            reader = next(each for each in readers if name in each.schema.names)
            raise SourceError(f"{reader.path}: column {name} is in the file and in its directory")
        fields.append(pyarrow.field(name, pyarrow.string()))
    return pyarrow.schema(fields)
