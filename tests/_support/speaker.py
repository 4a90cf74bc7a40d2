"""A stats socket that answers with given content, as if a process with a producer owned it."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

#: How long the thread may take to end (seconds).
_SOON = 30


@contextlib.contextmanager
def speaking(path: pathlib.Path, say: Callable[[], dict[str, Any] | bytes]) -> Iterator[None]:
    """Listen at *path*, and answer each client with the current result of *say*."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.fspath(path))
        server.listen()
        thread = threading.Thread(target=_serve, args=(server, say))
        thread.start()
        try:
            yield
        finally:
            path.unlink()
            server.shutdown(socket.SHUT_RDWR)
            thread.join(_SOON)


def _serve(server: socket.socket, say: Callable[[], dict[str, Any] | bytes]) -> None:
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        with connection:
            said = say()
            line = said if isinstance(said, bytes) else json.dumps(said).encode() + b"\n"
            with contextlib.suppress(OSError):  # the client may have closed the connection
                connection.sendall(line)
