"""Files by their names: of this machine, or objects of a store, which pyarrow reads.

The stores are S3 (``s3://bucket/name``), Google Cloud Storage (``gs://bucket/name``) and Azure
(``abfs://container@account.dfs.core.windows.net/name``). The name of an object follows the bucket
as it stands, without percent-encoding. Credentials, region and endpoint come from the environment,
as for the stores' own programs; on Spark, from that of each worker.
"""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import glob
import io
import os
import re
import stat
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

from pyarrow import ArrowException, fs

from pykaproducer._load.names import SourceError, is_stored

#: Bytes that are requested at once when an object is read from its beginning to its end.
_BUFFER = 8 << 20

_BUCKET = re.compile(r"[\w.-]+(@[\w.:-]+)?")


def opened(name: str) -> BinaryIO:
    """Open a file that is read from its beginning to its end."""
    return io.BufferedReader(StoredFile(name), _BUFFER) if is_stored(name) else open(name, "rb")


def size_of(name: str) -> int:
    """Return the size of a file (bytes)."""
    return stored_version(name)[0] if is_stored(name) else os.stat(name).st_size


def version_of(name: str) -> tuple[int, ...] | None:
    """Return what distinguishes a file from another of its name; None: it is no regular file."""
    if name == "-":
        return None
    if is_stored(name):
        return stored_version(name)
    found = os.stat(name)
    if not stat.S_ISREG(found.st_mode):
        return None
    return found.st_size, found.st_mtime_ns, found.st_ino


def stored_version(name: str) -> tuple[int, int]:
    """Return the size of an object (bytes), and its time."""
    with _errors(name):
        system, path, *_ = _place(name)
        found = system.get_file_info(path)
        if not found.is_file:
            raise FileNotFoundError
        return int(found.size), int(found.mtime_ns)


class StoredFile(io.RawIOBase):
    """An object, opened for reading.

    An error of the store is a :exc:`SourceError`, and not taken for one of the content. It is also
    appended to *failures*, as it is only a part of the text of an error of Arrow's reader of ORC.
    """

    def __init__(self, name: str, failures: list[SourceError] | None = None) -> None:
        self._name = name
        self._failures = failures
        self._at = 0
        with _errors(name, failures):
            system, path, *_ = _place(name)
            self._file = system.open_input_file(path)
            self._size = int(self._file.size())

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read at the position."""
        if self._at >= self._size:
            return 0
        with _errors(self._name, self._failures):
            self._file.seek(self._at)
            count = int(self._file.readinto(buffer))
        self._at += count
        return count

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Change the position."""
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def close(self) -> None:
        """Close it."""
        self._file.close()
        super().close()


@contextlib.contextmanager
def _errors(name: str, failures: list[SourceError] | None = None) -> Iterator[None]:
    try:
        yield
    except (OSError, ArrowException, UnicodeError) as error:
        reason = f"{error}; rename the object, or leave it out with a pattern"
        if isinstance(error, FileNotFoundError):
            reason = "no such file"
        elif isinstance(error, OSError):
            reason = f"{error}; are credentials, region and endpoint right in the environment?"
        failure = SourceError(f"{name}: {reason}")
        if failures is not None:
            failures.append(failure)
        raise failure from error


@functools.cache
def _system(bucket: str) -> tuple[Any, str]:
    """Return the file system of a bucket (``s3://bucket``), and the path of the bucket in it."""
    system, path = fs.FileSystem.from_uri(bucket)
    return system, path.rstrip("/")


def _place(name: str) -> tuple[Any, str, str, str]:
    """Return the file system of an object, its path there, and its bucket's name and path."""
    scheme, _, rest = name.partition("://")
    bucket, slash, key = rest.partition("/")
    if not _BUCKET.fullmatch(bucket):
        raise SourceError(f"{name}: {bucket!r} is not the name of a bucket or a container")
    if not {"", ".", ".."}.isdisjoint(key.split("/")) and key:
        raise SourceError(f"{name}: has an empty part, or one that is . or ..; leave it out")
    root = f"{scheme}://{bucket}"
    system, path = _system(root)
    return system, path + slash + key, root, path


class Listing:
    """The objects that a name in a store stands for: one, those in a directory, or a pattern's."""

    def __init__(self, name: str) -> None:
        self._must_be_directory = name.endswith("/")
        with _errors(name):
            self._system, path, self._root, self._bucket = _place(name.rstrip("/"))
            self._top, self._pattern = path, None
            found = self._system.get_file_info(path)
            if found.type == fs.FileType.NotFound and glob.has_magic(path):
                self._top = re.split(r"[*?[]", path)[0].rpartition("/")[0]
                self._pattern = path.split("/")
            entries = [found]
            if self._must_be_directory or self._pattern is not None or not found.is_file:
                selector = fs.FileSelector(self._top, recursive=True, allow_not_found=True)
                entries = self._system.get_file_info(selector)
        self._objects = {each.path for each in entries if each.is_file}
        # Some stores do not list directories.
        self._directories = {each.path for each in entries if each.type == fs.FileType.Directory}
        for each in self._objects:
            while (each := os.path.dirname(each)) and each not in self._directories:
                self._directories.add(each)

    def files(self) -> list[tuple[str, str]]:
        """Return names of objects, each with the name that matches it or what it is in, in order.

        Raises:
            SourceError: an object and a directory have the same name.
        """
        found = []
        for path in self._objects:
            parts = path.split("/")
            for count in range(1, len(parts) + (not self._must_be_directory)):
                if self._is_meant(parts[:count]):
                    top = "/".join(parts[:count])
                    found.append((top + "/" * self._must_be_directory, parts, path))
                    for each in {top, path} & self._objects & self._directories:
                        raise SourceError(
                            f"{self._name(each)}: an object, and a directory; name its objects by "
                            f"a pattern"
                        )
        return [(self._name(path), self._name(top)) for top, _, path in sorted(found)]

    def _is_meant(self, parts: Sequence[str]) -> bool:
        if self._pattern is None:
            return "/".join(parts) == self._top
        return _fits(parts, self._pattern)

    def _name(self, path: str) -> str:
        return self._root + path.removeprefix(self._bucket)

    def has(self, where: str, mark: str) -> bool:
        """Return whether a directory has *mark*: a name, or a pattern in a directory of it."""
        path = self._bucket + where.removeprefix(self._root)
        inside, _, name = f"{path}/{mark}".rpartition("/")
        if path == self._top or path.startswith(f"{self._top}/"):
            if "*" not in name:
                return f"{inside}/{name}" in self._directories
            found = self._objects if inside in self._directories else set()
        else:
            wanted = (
                fs.FileSelector(inside, allow_not_found=True)
                if "*" in name
                else [f"{inside}/{name}"]
            )
            try:
                entries = self._system.get_file_info(wanted)
            except OSError:  # only what is below may be listed
                return False
            found = {each.path for each in entries if each.type != fs.FileType.NotFound}
        return any(
            os.path.dirname(each) == inside and fnmatch.fnmatchcase(os.path.basename(each), name)
            for each in found
        )


def _fits(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Return whether a path matches a pattern as those of :mod:`glob`, both in parts."""
    if not pattern or (not parts and pattern[0] != "**"):
        return not parts and not pattern
    if pattern[0] == "**":
        is_deeper = bool(parts) and not parts[0].startswith(".") and _fits(parts[1:], pattern)
        return is_deeper or _fits(parts, pattern[1:])
    if parts[0].startswith(".") and not pattern[0].startswith("."):
        return False
    return fnmatch.fnmatchcase(parts[0], pattern[0]) and _fits(parts[1:], pattern[1:])
