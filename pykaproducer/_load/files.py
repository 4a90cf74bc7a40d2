"""The files of a source: a file, a directory or a pattern, and the format of each file.

A directory is read recursively, in the order of file names. Files and directories whose name begins
with ``.`` or ``_`` are skipped. Directories named ``NAME=VALUE`` add a column.
"""

from __future__ import annotations

import glob
import os
import re
import urllib.parse
from dataclasses import dataclass

_SUFFIXES = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".orc": "orc",
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
    ".avro": "avro",
    ".csv": "csv",
    ".tsv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
}
#: Compression of text files by suffix.
COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4", ".xz": "xz"}

FORMATS = ("parquet", "orc", "arrow", "avro", "csv", "jsonl")

#: Represents null in the name of a directory.
_NULL = "__HIVE_DEFAULT_PARTITION__"


#: Names and values of the columns that directories named NAME=VALUE add.
Partition = tuple[tuple[str, str | None], ...]


class SourceError(Exception):
    """A source cannot be opened, or cannot be read to its end.

    The text names the file, the row if it is known, and what to do. Batches read before the error
    stay valid.
    """


@dataclass(frozen=True)
class File:
    """A file of a source, and the columns from its directories."""

    path: str
    partition: Partition = ()


def is_uri(name: str) -> bool:
    """Return whether *name* is a URI, whose file system only Spark reads."""
    return re.match(r"\w\w+://", name) is not None


def files_of(name: str) -> list[File]:
    """Return the files that a name stands for.

    Raises:
        SourceError: there are none.
    """
    if is_uri(name):
        raise SourceError(f"{name}: URIs can only be read with --spark; give a local file")
    if os.path.isdir(name):
        return _files_below(name)
    if name == "-" or os.path.exists(name):
        return [File(name)]
    if not glob.has_magic(name):
        raise SourceError(f"{name}: no such file or directory")
    found = sorted(glob.glob(name, recursive=True))
    files = [
        file
        for each in found
        for file in (_files_below(each, may_be_empty=True) if os.path.isdir(each) else [File(each)])
    ]
    if not files:
        raise SourceError(f"{name}: no file matches")
    return files


def _files_below(top: str, *, may_be_empty: bool = False) -> list[File]:
    """Return the files in a directory and below."""

    def fail(error: OSError) -> None:
        raise SourceError(f"{error.filename}: {error.strerror}") from None

    found = []
    for where, directories, names in os.walk(top, onerror=fail, followlinks=True):
        directories[:] = sorted(each for each in directories if not _is_hidden(each))
        partition = _partition(os.path.relpath(where, top))
        shown = sorted(name for name in names if not _is_hidden(name))
        found += [File(os.path.join(where, name), partition) for name in shown]
    if not found and not may_be_empty:
        raise SourceError(f"{top}: the directory contains no files")
    return sorted(found, key=lambda file: file.path.split(os.sep))


def _is_hidden(name: str) -> bool:
    # A directory _x=1 adds a column named _x.
    return name.startswith((".", "_")) and "=" not in name


def _partition(way: str) -> Partition:
    """Return the columns from directories named NAME=VALUE."""
    pairs = [part.partition("=") for part in way.split(os.sep)]
    return tuple(
        (urllib.parse.unquote(name), None if value == _NULL else urllib.parse.unquote(value))
        for name, equals, value in pairs
        if equals
    )


def format_of(path: str) -> str:
    """Return the format of a file, by its suffix.

    Raises:
        SourceError: the suffix is missing or unknown.
    """
    found = _SUFFIXES.get(_suffix(path))
    if found is None and path == "-":
        raise SourceError("-: name the format of standard input with --format csv or jsonl")
    if found is None:
        raise SourceError(
            f"{path}: unknown file suffix; name the format with --format ({', '.join(FORMATS)})"
        )
    return found


def delimiter_of(path: str) -> str:
    """Return the default delimiter of a CSV file, by its suffix."""
    return "\t" if _suffix(path) == ".tsv" else ","


def _suffix(path: str) -> str:
    stem, suffix = os.path.splitext(path.lower())
    return os.path.splitext(stem)[1] if suffix in COMPRESSIONS else suffix
