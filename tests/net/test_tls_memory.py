"""TLS without memory."""

from __future__ import annotations

import contextlib
import socket
import ssl
from typing import Any

import pytest

from pykaproducer._net.transport import ConnectionFailed, Endpoint
from tests.net.helper import Refusing, connect
from tests.net.tls_server import Files, Server, network, receive, server_context

pytest.importorskip("trustme")

from pykaproducer.testing._certificates import CertificateAuthority


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("tls"), CertificateAuthority("an authority"))


class Buffer:
    """One of OpenSSL's buffers: the next call of *method* fails."""

    def __init__(self, real: Any, method: str, error: Exception) -> None:
        self._real = real
        setattr(self, method, Refusing(getattr(real, method), times=1, error=error))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def test_an_answer_does_not_write_what_there_was_no_memory_for(files: Files) -> None:
    """The connection is lost, and the request is written again on the next one."""
    read = []

    def serve(connection: Any) -> None:
        connection.sendall(b"answer")
        with contextlib.suppress(ssl.SSLError):
            while data := connection.recv(65536):
                read.append(data)

    with Server(server_context(files.issued("server", "localhost")), serve) as server:
        transport: Any = connect(network(ssl_cafile=files.ca), server.endpoint())
        transport._outgoing = Buffer(transport._outgoing, "read", MemoryError())
        with pytest.raises(MemoryError):
            transport.send([memoryview(b"request")])
        assert receive(transport, 6) == b"answer"
        transport.close()
    assert read == []


def test_openssl_has_no_memory_for_received_bytes(files: Files) -> None:
    def serve(connection: Any) -> None:
        connection.sendall(b"answer")
        connection.recv(1)

    with Server(server_context(files.issued("other", "localhost")), serve) as server:
        transport: Any = connect(network(ssl_cafile=files.ca), server.endpoint())
        error = ssl.SSLError(1, "malloc failure")
        error.reason = "MALLOC_FAILURE"
        transport._incoming = Buffer(transport._incoming, "write", error)
        with (
            contextlib.closing(transport),
            pytest.raises(ConnectionFailed, match="TLS failed: malloc failure"),
        ):
            receive(transport, 6)


def test_a_transport_that_cannot_be_registered_is_closed(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full:
        def add(self, each: object) -> None:
            raise MemoryError

    made = network(ssl_cafile=files.ca)
    opened = []
    real = made._open

    def open_(endpoint: Endpoint) -> socket.socket:
        opened.append(real(endpoint))
        return opened[0]

    monkeypatch.setattr(made, "_open", open_)
    monkeypatch.setattr(made, "_tls", Full())
    with Server(None, lambda connection: None) as server, pytest.raises(MemoryError):
        made.connect(server.endpoint())
    assert opened[0].fileno() < 0
