"""Which files a source is: a file, a directory or a pattern, and the format of each.

Of a directory all files below it are read, in the order of their names, but for those whose name,
or whose directory's, begins with ``.`` or ``_``. Directories named ``NAME=VALUE`` give a column.
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
    ".csv": "csv",
    ".tsv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
}
#: Of text, by suffix; what pyarrow calls them.
COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}

FORMATS = ("parquet", "orc", "csv", "jsonl")

#: What stands in a directory's name for null.
_NULL = "__HIVE_DEFAULT_PARTITION__"


#: What directories named NAME=VALUE say.
Partition = tuple[tuple[str, str | None], ...]


class SourceError(Exception):
    """A source cannot be opened, or not be read to its end.

    The text names the file, the row if it is known, and what to do. What was read before stays
    valid.
    """


@dataclass(frozen=True)
class File:
    """A file of a source, and what its directories say."""

    path: str
    partition: Partition = ()


def files_of(name: str) -> list[File]:
    """What one name stands for.

    Raises:
        SourceError: nothing.
    """
    if re.match(r"\w\w+://", name):
        raise SourceError(f"{name}: only files are read here; --spark reads what Spark can reach")
    if os.path.isdir(name):
        return _files_below(name)
    if os.path.exists(name):
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
        raise SourceError(f"{name}: no file is called so")
    return files


def _files_below(top: str, *, may_be_empty: bool = False) -> list[File]:
    """The files of a directory and those below it."""

    def fail(error: OSError) -> None:
        raise SourceError(f"{error.filename}: {error.strerror}") from None

    found = []
    for where, directories, names in os.walk(top, onerror=fail, followlinks=True):
        directories[:] = sorted(each for each in directories if not _is_hidden(each))
        partition = _partition(os.path.relpath(where, top))
        shown = sorted(name for name in names if not _is_hidden(name))
        found += [File(os.path.join(where, name), partition) for name in shown]
    if not found and not may_be_empty:
        raise SourceError(f"{top}: there is no file in it")
    return sorted(found, key=lambda file: file.path.split(os.sep))


def _is_hidden(name: str) -> bool:
    # A directory _x=1 is a column named _x.
    return name.startswith((".", "_")) and "=" not in name


def _partition(way: str) -> Partition:
    """The columns that directories named NAME=VALUE stand for."""
    pairs = [part.partition("=") for part in way.split(os.sep)]
    return tuple(
        (urllib.parse.unquote(name), None if value == _NULL else urllib.parse.unquote(value))
        for name, equals, value in pairs
        if equals
    )


def format_of(path: str) -> str:
    """The format of a file, by its suffix.

    Raises:
        SourceError: it has none, or another.
    """
    found = _SUFFIXES.get(_suffix(path))
    if found is None:
        raise SourceError(
            f"{path}: its format cannot be told from its name; say --format ({', '.join(FORMATS)})"
        )
    return found


def delimiter_of(path: str) -> str:
    """What separates the cells of a CSV file, by its suffix."""
    return "\t" if _suffix(path) == ".tsv" else ","


def _suffix(path: str) -> str:
    stem, suffix = os.path.splitext(path.lower())
    return os.path.splitext(stem)[1] if suffix in COMPRESSIONS else suffix
