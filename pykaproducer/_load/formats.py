"""The reader of each format, and the columns that files have in common."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pyarrow

from pykaproducer._load import json_text
from pykaproducer._load.columnar import OrcReader, ParquetReader
from pykaproducer._load.files import Partition, SourceError
from pykaproducer._load.reader import FileReader
from pykaproducer._load.text import CsvReader, JsonLinesReader


def reader_of(
    kind: str,
    path: str,
    partition: Partition,
    delimiter: str,
    infer_types: bool,
    encoding: str = "utf-8",
    whole_lines: bool = False,
) -> FileReader:
    """Return a reader for a file of format *kind*; SourceError if the file is not of it."""
    if kind == "csv":
        return CsvReader(path, partition, encoding, delimiter, infer_types)
    if kind == "jsonl":
        return JsonLinesReader(path, partition, encoding, whole_lines)
    readers = {"parquet": ParquetReader, "orc": OrcReader}
    return readers[kind](path, partition)


def common_schema(readers: Sequence[FileReader]) -> Any:
    """Return the columns of all files; SourceError if their types are incompatible."""
    found = pyarrow.schema([])
    schemas = json_text.unified([reader.schema for reader in readers])
    for reader, schema in zip(readers, schemas, strict=True):
        _check_names(reader)
        try:
            found = pyarrow.unify_schemas([found, schema], promote_options="permissive")
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
    if len(set(names)) == len(names):
        return
    twice = next(name for name in names if names.count(name) > 1)
    raise SourceError(f"{reader.path}: two columns are named {twice!r}; rename one")
