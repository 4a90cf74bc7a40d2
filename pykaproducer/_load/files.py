"""The files of a source: a file, a directory or a pattern, and the format of each file.

They are files of this machine, or objects of a store (:mod:`pykaproducer._load.stores`).

A directory is read recursively, in the order of file names. Files and directories whose name begins
with ``.`` or ``_`` are skipped. Directories named ``NAME=VALUE`` add a column. A directory that is
a table is refused.
"""

from __future__ import annotations

import errno
import glob
import os
import stat
import urllib.parse
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pykaproducer._load.names import SourceError, is_stored, is_uri

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


@dataclass(frozen=True)
class File:
    """A file of a source, and the columns from its directories."""

    path: str
    partition: Partition = ()


@dataclass(frozen=True)
class Options:
    """Options for reading files."""

    #: None: by the suffix of each file.
    format: str | None = None
    #: CSV delimiter. None: a comma, or a tab in .tsv.
    delimiter: str | None = None
    #: Whether CSV columns of numbers, or of true and false, are such in JSON; otherwise they are
    #: text. Found from the first rows.
    infer_types: bool = False
    #: Encoding of text files: any of Python's.
    encoding: str = "utf-8"
    #: Read JSON Lines as they stand, as a column ``value``, unless their objects have a member
    #: ``value``. Otherwise the columns are the objects' members.
    whole_lines: bool = False


def files_of(name: str) -> list[File]:
    """Return the files that a name stands for.

    Raises:
        SourceError: there are none, or they are the files of a table.
    """
    if is_uri(name):
        raise SourceError(
            f"{name}: can only be read with --spark MASTER; without it, give a file, or a name "
            f"that begins with s3://, gs:// or abfs://"
        )
    if is_stored(name):
        return _stored_files(name)
    if os.path.isdir(name):
        files = _files_below(name)
    elif name == "-" or os.path.exists(name):
        files = [File(name)]
    elif not glob.has_magic(name):
        raise SourceError(f"{name}: no such file or directory")
    else:
        found: dict[str, File] = {}  # ** matches directories, and what is in them
        for each in sorted(_matches(name)):
            below = _files_below(each, may_be_empty=True) if os.path.isdir(each) else [File(each)]
            for file in below:
                found.setdefault(file.path, file)
        files = list(found.values())
        if not files:
            raise SourceError(f"{name}: no file matches")
    _refuse_tables(files, _has)
    return files


def _matches(pattern: str) -> list[str]:
    """Return what a pattern matches, without hidden names that it does not ask for.

    Raises:
        SourceError: a directory that matches cannot be read.
    """
    parts = pattern.split(os.sep)
    first = next(place for place, part in enumerate(parts) if glob.has_magic(part))
    for place in range(first, len(parts)):
        needed = os.X_OK | (os.R_OK if glob.has_magic(parts[place]) else 0)
        above = os.sep.join([*parts[:place], ""]) or os.curdir
        for way in glob.glob(above, recursive=True):
            if _is_passed_over(way, pattern) or not os.path.isdir(way):
                continue
            if not os.access(way, needed):
                raise SourceError(f"{os.path.normpath(way)}: {os.strerror(errno.EACCES)}")
    found = glob.glob(pattern, recursive=True)
    return [way for way in found if not _is_passed_over(way, pattern)]


def _is_passed_over(way: str, pattern: str) -> bool:
    """Return whether *way* matches *pattern* with a hidden name that this does not ask for."""
    parts = pattern.split("/")
    first = next((place for place, part in enumerate(parts) if glob.has_magic(part)), len(parts))
    asked_for = {part[:1] for part in parts[first:]}
    names = way.split("/")[first:]
    return any(_is_hidden(name) and name[0] not in asked_for for name in names)


def _stored_files(name: str) -> list[File]:
    """Return the files that a name in a store stands for."""
    from pykaproducer._load.stores import Listing

    listing, files = Listing(name), []
    for path, top in listing.files():
        inside = path[len(top) :].lstrip("/").split("/")
        if not any(map(_is_hidden, inside)) and not _is_passed_over(path, name):
            files.append(File(path, _partition("/".join(inside[:-1]))))
    if not files:
        raise SourceError(f"{name}: there is no such file, directory or pattern, or no file in it")
    _refuse_tables(files, listing.has)
    return files


def _files_below(top: str, *, may_be_empty: bool = False) -> list[File]:
    """Return the files in a directory and below; what links lead to, too, but nothing twice."""
    found: list[File] = []
    seen: set[str] = set()
    ways = [top]
    while ways:
        # Links come last, because the columns of NAME=VALUE are in the names that are no links.
        links: list[str] = []
        for way in ways:  # grows
            _visit(way, top, found, ways, links, seen)
        ways = links
    if not found and not may_be_empty:
        raise SourceError(f"{top}: the directory contains no files")
    return sorted(found, key=lambda file: file.path.split(os.sep))


def _visit(
    way: str, top: str, found: list[File], ways: list[str], links: list[str], seen: set[str]
) -> None:
    """Add *way* to *found* if it is a file, or else what is in it to *ways* and to *links*."""
    real = os.path.realpath(way)
    if real in seen:
        return
    seen.add(real)
    try:
        if not os.path.isdir(way):
            if not stat.S_ISREG(os.stat(way).st_mode):
                raise SourceError(f"{way}: is not a file; name it by itself if it is a pipe")
            found.append(File(way, _partition(os.path.relpath(os.path.dirname(way), top))))
            return
        with os.scandir(way) as entries:
            names = sorted((each.name, each.is_symlink()) for each in entries)
    except OSError as error:
        raise SourceError(f"{error.filename}: {error.strerror}") from None
    for name, is_link in names:
        if not _is_hidden(name):
            (links if is_link else ways).append(os.path.join(way, name))


#: What marks the directory of a table, its name, and how Spark reads it.
_TABLES = (
    ("_delta_log", "a Delta table", "SELECT * FROM delta.`{}`"),
    (".hoodie", "a Hudi table", "SELECT * FROM hudi.`{}`"),
    ("metadata/*.metadata.json", "an Iceberg table", "SELECT * FROM CATALOG.DATABASE.TABLE"),
    ("_spark_metadata", "the output of a Spark stream", "SELECT * FROM FORMAT.`{}`"),
)


def _refuse_tables(files: Sequence[File], has: Callable[[str, str], bool]) -> None:
    """Raise SourceError if a directory above one of *files*, or what it links to, is a table.

    Not all of its files are rows of the table: others were deleted, replaced, or not committed.
    """
    seen: set[str] = set()
    for way in {os.path.dirname(each.path) for each in files if each.path != "-"}:
        ways = [way] if is_stored(way) else [os.path.abspath(way), os.path.realpath(way)]
        for above in ways:
            while above not in seen and is_stored(above) == is_stored(way):
                seen.add(above)
                above = os.path.dirname(above)
    for where in sorted(seen):
        for mark, what, query in _TABLES:
            if has(where, mark):
                raise SourceError(
                    f"{where}: is {what}, and files of it may be deleted or uncommitted; read it "
                    f"with --spark MASTER --format sql '{query.format(where)}'"
                )


def _has(where: str, mark: str) -> bool:
    return bool(glob.glob(os.path.join(glob.escape(where), mark)))


def _is_hidden(name: str) -> bool:
    # As Spark does. A directory _x=1 adds a column named _x.
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def _partition(way: str) -> Partition:
    """Return the columns from directories named NAME=VALUE.

    Raises:
        SourceError: a name is there twice, or is not UTF-8.
    """
    pairs = [part.partition("=") for part in way.split(os.sep)]
    try:
        found = {
            _unquoted(name): None if value == _NULL else _unquoted(value)
            for name, equals, value in pairs
            if equals
        }
    except UnicodeDecodeError:
        raise SourceError(f"{way!r}: the directory's column is not UTF-8; rename it") from None
    if len(found) < sum(bool(equals) for _, equals, _ in pairs):
        raise SourceError(f"{way}: a column is in two of the directories; rename one")
    return tuple(found.items())


def _unquoted(text: str) -> str:
    return urllib.parse.unquote_to_bytes(os.fsencode(text)).decode()


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
            f"{path}: unknown file suffix; name the format with --format ({', '.join(FORMATS)}), "
            f"or leave the file out with a pattern such as 'DIRECTORY/*.csv'"
        )
    return found


def delimiter_of(path: str) -> str:
    """Return the default delimiter of a CSV file, by its suffix."""
    return "\t" if _suffix(path) == ".tsv" else ","


def _suffix(path: str) -> str:
    stem, suffix = os.path.splitext(path.lower())
    return os.path.splitext(stem)[1] if suffix in COMPRESSIONS else suffix
