"""Reading the statistics of producers in other processes, through ``stats_socket``.

A producer with ``stats_socket="/run/app/%p.sock"`` listens at that path. It answers each
connection with its ``stats()`` as one line of JSON, and closes it. The commands of the command line
listen in a directory of the user, where :func:`running` finds them.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import socket
import stat
import tempfile
from typing import Any, NamedTuple

from pykaproducer._kernel import monotonic

#: The maximum size of an answer; a producer never sends more.
_LARGEST = 64 << 20
_PIECE = 1 << 16

#: The sections that ``stats()`` always has.
_SECTIONS = (
    *("client_id", "pid", "time", "state", "messages", "bytes", "buffer", "requests"),
    *("latency_ms", "stages", "brokers", "topics", "partitions"),
)


def read_stats(path: str | os.PathLike[str], timeout: float = 5.0) -> dict[str, Any]:
    """Return the ``stats()`` of the producer that listens at the Unix socket *path*.

    Raises:
        OSError: there is no answer, or not within *timeout* seconds.
        ValueError: the answer is not from a producer, or from one of another version.
    """
    answer = _read_all(os.fspath(path), monotonic() + timeout)
    try:
        found = json.loads(answer)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(name in found for name in _SECTIONS):
        raise ValueError(f"{os.fspath(path)}: the answer is not from a producer of this version")
    return found


def _read_all(path: str, deadline: float) -> bytes:
    pieces: list[bytes] = []
    size = 0
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(max(0.001, deadline - monotonic()))
        client.connect(path)
        while True:
            # One deadline for the whole answer, so that a slow sender cannot extend it.
            client.settimeout(max(0.001, deadline - monotonic()))
            piece = client.recv(_PIECE)
            if not piece:
                return b"".join(pieces)
            size += len(piece)
            if size > _LARGEST:
                raise ValueError(f"{path}: the answer is not from a producer")
            pieces.append(piece)


# The user's directory -----------------------------------------------------------------------------


class Running(NamedTuple):
    """A process with a producer that answers."""

    pid: int
    path: str


def runtime_directory() -> pathlib.Path:
    """Return the commands' directory, in ``$XDG_RUNTIME_DIR`` or the temporary directory."""
    private = os.environ.get("XDG_RUNTIME_DIR")
    if private and os.path.isdir(private) and os.access(private, os.W_OK | os.X_OK):
        return pathlib.Path(private) / "pykaproducer"
    return pathlib.Path(tempfile.gettempdir()) / f"pykaproducer-{os.getuid()}"


def make_runtime_directory() -> pathlib.Path:
    """Return the same directory, created if missing.

    Raises:
        OSError: it cannot be created, or another user may write to it.
    """
    directory = runtime_directory()
    with contextlib.suppress(FileExistsError):
        directory.mkdir(mode=0o700)
    if not _is_ours(directory):
        raise PermissionError(f"{directory}: not a directory of this user only; remove it")
    return directory


def default_stats_socket() -> str:
    """Return the commands' setting ``stats_socket``, and create its directory.

    Raises:
        OSError: the directory cannot be created or used.
    """
    return str(make_runtime_directory() / "%p.sock")


def running() -> list[Running]:
    """Return the processes that listen in the user's directory, the newest last."""
    directory = runtime_directory()
    if not _is_ours(directory):
        return []
    found = []
    for path in directory.glob("*.sock"):
        with contextlib.suppress(OSError, ValueError):
            made = path.stat().st_mtime
            found.append((made, Running(int(read_stats(path, 1.0)["pid"]), str(path))))
    return [each for _, each in sorted(found)]


def _is_ours(directory: pathlib.Path) -> bool:
    """Return whether no other user can have put anything into *directory*.

    In a shared directory, another user could create ours before us and listen in our name.
    """
    try:
        found = directory.lstat()
    except OSError:
        return False
    return (
        stat.S_ISDIR(found.st_mode)
        and found.st_uid == os.getuid()
        and not stat.S_IMODE(found.st_mode) & (stat.S_IWGRP | stat.S_IWOTH)
    )
