"""Addresses at which no Kafka broker answers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

#: How long a thread may take to end (seconds).
_SOON = 30


@pytest.fixture
def refusing() -> Iterator[str]:
    """Yield an address that refuses connections."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


@pytest.fixture
def silent() -> Iterator[str]:
    """Yield an address that accepts connections and never sends anything."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def garbled() -> Iterator[str]:
    """Yield an address at which a server with another protocol answers."""
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
