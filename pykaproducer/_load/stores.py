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
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

from pyarrow import ArrowException, fs

from pykaproducer._load.names import SourceError, is_stored

#: Bytes that are requested at once when an object is read from its beginning to its end.
_BUFFER = 8 << 20


def opened(name: str) -> BinaryIO:
    """Open a file that is read from its beginning to its end."""
    return io.BufferedReader(StoredFile(name), _BUFFER) if is_stored(name) else open(name, "rb")


def size_of(name: str) -> int:
    """Return the size of a file (bytes)."""
    if not is_stored(name):
        return os.stat(name).st_size
    with StoredFile(name) as file:
        return file.size


class StoredFile(io.RawIOBase):
    """An object, opened for reading.

    An error of the store is a :exc:`SourceError`, and not taken for one of the content.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        with _errors(name):
            system, path, *_ = _place(name)
            self._file = system.open_input_file(path)
            self.size = int(self._file.size())

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read at the position."""
        with _errors(self._name):
            return int(self._file.readinto(buffer))

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Change the position."""
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        """Return the position."""
        return int(self._file.tell())


@contextlib.contextmanager
def _errors(name: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise SourceError(f"{name}: no such file") from None
    except (OSError, ArrowException) as error:
        raise SourceError(f"{name}: {error}") from error


@functools.cache
def _system(bucket: str) -> tuple[Any, str]:
    """Return the file system of a bucket (``s3://bucket``), and the path of the bucket in it."""
    system, path = fs.FileSystem.from_uri(bucket)
    return system, path.rstrip("/")


def _place(name: str) -> tuple[Any, str, str, str]:
    """Return the file system of an object, its path there, and its bucket's name and path."""
    scheme, _, rest = name.partition("://")
    bucket, slash, key = rest.partition("/")
    if ":" in bucket:
        raise SourceError(
            f"{scheme}://...: logs and errors would show the password that the name contains; set "
            f"the store's credentials in the environment"
        )
    root = f"{scheme}://{bucket}"
    system, path = _system(root)
    return system, path + slash + key, root, path


class Listing:
    """The objects that a name in a store stands for: one, those in a directory, or a pattern's."""

    def __init__(self, name: str) -> None:
        with _errors(name):
            self._system, path, self._root, self._bucket = _place(name.rstrip("/"))
            found = [self._system.get_file_info(path)]
            self._top, self._pattern = path, None
            if found[0].type == fs.FileType.NotFound and glob.has_magic(path):
                self._top = re.split(r"[*?[]", path)[0].rpartition("/")[0]
                self._pattern = path.split("/")
            if found[0].type == fs.FileType.Directory or self._pattern is not None:
                selector = fs.FileSelector(self._top, recursive=True, allow_not_found=True)
                found += self._system.get_file_info(selector)
        self._found = {each.path: each for each in found if each.type != fs.FileType.NotFound}

    def files(self) -> Iterator[tuple[str, str]]:
        """Yield names of objects, in order, each with the name that matches it or what it is in."""
        for parts in sorted(path.split("/") for path, each in self._found.items() if each.is_file):
            for count in range(1, len(parts) + 1):
                if self._is_meant(parts[:count]):
                    yield self._name(parts), self._name(parts[:count])

    def _is_meant(self, parts: Sequence[str]) -> bool:
        if self._pattern is None:
            return "/".join(parts) == self._top
        return _fits(parts, self._pattern)

    def _name(self, parts: Sequence[str]) -> str:
        return self._root + "/".join(parts).removeprefix(self._bucket)

    def has(self, where: str, mark: str) -> bool:
        """Return whether a directory has *mark*: a name, or a pattern in a directory of it."""
        path = self._bucket + where.removeprefix(self._root)
        inside, _, name = f"{path}/{mark}".rpartition("/")
        if path == self._top or path.startswith(f"{self._top}/"):
            if "*" not in name:
                return f"{path}/{mark}" in self._found
            found = self._found if inside in self._found else {}
        else:
            with _errors(where):
                selector = fs.FileSelector(inside, allow_not_found=True)
                wanted = selector if "*" in name else [f"{path}/{mark}"]
                entries = self._system.get_file_info(wanted)
            found = {each.path: each for each in entries if each.type != fs.FileType.NotFound}
        return any(fnmatch.filter(found, f"{glob.escape(inside)}/{name}"))


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
