"""Addresses where no Kafka answers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

#: How long the end of a thread may take (seconds).
_SOON = 30


@pytest.fixture
def refusing() -> Iterator[str]:
    """An address where nobody listens."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{nobody.getsockname()[1]}"


@pytest.fixture
def silent() -> Iterator[str]:
    """An address where somebody listens and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def garbled() -> Iterator[str]:
    """An address where a server of another kind answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(1)
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join(_SOON)
