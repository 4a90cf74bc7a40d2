"""A process with a producer, as seen from its stats socket: what it says is what it is told."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

#: How long the end of the thread may take (seconds).
_SOON = 30


@contextlib.contextmanager
def speaking(path: pathlib.Path, say: Callable[[], dict[str, Any] | bytes]) -> Iterator[None]:
    """Listen at *path*, and answer each who comes with what *say* returns then."""
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
            with contextlib.suppress(OSError):  # whoever asked may have left
                connection.sendall(line)
