"""What a producer of another process says of itself: the reading side of ``stats_socket``.

A producer with ``stats_socket="/run/app/%p.sock"`` listens there. Whoever connects gets one line
of JSON, its ``stats()``, and the end of the stream. The commands of the command line listen in a
directory of the user's own, where :func:`running` finds them.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import socket
import stat
import tempfile
import time
from typing import Any, NamedTuple

#: The most that is read of an answer: more is no producer's.
_LARGEST = 64 << 20
_PIECE = 1 << 16

#: What ``stats()`` has at least.
_SECTIONS = (
    *("client_id", "pid", "time", "state", "messages", "bytes", "buffer", "requests"),
    *("latency_ms", "stages", "brokers", "topics", "partitions"),
)


def read_stats(path: str | os.PathLike[str], timeout: float = 5.0) -> dict[str, Any]:
    """What the producer behind a Unix socket says: its ``stats()``.

    Raises:
        OSError: nobody answers there, or not within *timeout* seconds.
        ValueError: whoever answers is no producer, or one of another version.
    """
    answer = _read_all(os.fspath(path), time.monotonic() + timeout)
    try:
        found = json.loads(answer)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(name in found for name in _SECTIONS):
        raise ValueError(f"{os.fspath(path)}: what answers there is no producer of this version")
    return found


def _read_all(path: str, deadline: float) -> bytes:
    pieces: list[bytes] = []
    size = 0
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(max(0.001, deadline - time.monotonic()))
        client.connect(path)
        while True:
            # The time is one for the whole answer: one byte a second would never end.
            client.settimeout(max(0.001, deadline - time.monotonic()))
            piece = client.recv(_PIECE)
            if not piece:
                return b"".join(pieces)
            size += len(piece)
            if size > _LARGEST:
                raise ValueError(f"{path}: what answers there is no producer")
            pieces.append(piece)


# The user's own directory -------------------------------------------------------------------------


class Running(NamedTuple):
    """A process with a producer that answers."""

    pid: int
    path: str


def runtime_directory() -> pathlib.Path:
    """Where the commands listen: in ``$XDG_RUNTIME_DIR``, or else in the temporary directory."""
    private = os.environ.get("XDG_RUNTIME_DIR")
    if private and os.path.isdir(private) and os.access(private, os.W_OK | os.X_OK):
        return pathlib.Path(private) / "pykaproducer"
    return pathlib.Path(tempfile.gettempdir()) / f"pykaproducer-{os.getuid()}"


def make_runtime_directory() -> pathlib.Path:
    """The same, made if it is not there.

    Raises:
        OSError: it cannot be made, or somebody else may write in it.
    """
    directory = runtime_directory()
    with contextlib.suppress(FileExistsError):
        directory.mkdir(mode=0o700)
    if not _is_ours(directory):
        raise PermissionError(f"{directory}: it is not ours alone; remove it")
    return directory


def default_stats_socket() -> str:
    """The setting ``stats_socket`` of the commands; makes the directory.

    Raises:
        OSError: there is no directory for it.
    """
    return str(make_runtime_directory() / "%p.sock")


def running() -> list[Running]:
    """The processes that listen in the user's own directory, the newest last."""
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
    """Whether nobody else can have put anything into it.

    In a directory for all somebody might make ours before us, and listen in our name.
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
