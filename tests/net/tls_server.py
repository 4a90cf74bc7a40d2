"""A TLS server in a thread, and the files that it and its clients need."""

from __future__ import annotations

import contextlib
import selectors
import socket
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pykaproducer._net.secure import SecureNetwork
from pykaproducer._net.transport import Endpoint, Transport
from pykaproducer.config import Config
from pykaproducer.testing._certificates import CertificateAuthority
from tests.net.helper import wait

PASSWORD = "hunter2"


@dataclass(frozen=True)
class Files:
    """The certificate of an authority, and those that it has signed, in PEM."""

    directory: Path
    authority: CertificateAuthority

    def put(self, name: str, text: str) -> str:
        path = self.directory / name
        path.write_text(text)
        return str(path)

    def issued(self, name: str, *hosts: str, **more: Any) -> str:
        """Return a file with a certificate and its key."""
        made = self.authority.issue(name, hosts, **more)
        return self.put(f"{name}.pem", made.certificate + made.key)

    @property
    def ca(self) -> str:
        return self.put("ca.pem", self.authority.certificate)


class Server:
    """A server that passes one connection after the other to *serve*, in a thread."""

    def __init__(
        self,
        context: ssl.SSLContext | None,
        serve: Callable[[Any], object],
        receive_buffer: int = 0,
    ) -> None:
        self._context = context
        self._serve = serve
        self.errors: list[OSError] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        if receive_buffer:
            self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self._thread = threading.Thread(target=self._run)

    @property
    def port(self) -> int:
        return int(self.listener.getsockname()[1])

    def endpoint(self, host: str = "localhost") -> Endpoint:
        return Endpoint(socket.AF_INET, self.listener.getsockname(), host)

    def __enter__(self) -> Server:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(30)
        self.listener.close()
        assert not self._thread.is_alive(), "a client has not closed its connection"

    def _run(self) -> None:
        while True:
            try:
                accepted, _ = self.listener.accept()
            except OSError:
                return  # it was shut down
            with accepted:
                try:
                    self._welcome(accepted)
                except OSError as error:  # includes ssl.SSLError
                    self.errors.append(error)

    def _welcome(self, accepted: socket.socket) -> None:
        if self._context is None:
            self._serve(accepted)
            return
        with self._context.wrap_socket(accepted, server_side=True) as secured:
            self._serve(secured)


def echo(connection: Any) -> None:
    while data := connection.recv(65536):
        connection.sendall(data)


def server_context(certificate: str, client_ca: str | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    if client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(client_ca)
    return context


def network(**settings: Any) -> SecureNetwork:
    return SecureNetwork(Config(**{"security_protocol": "SSL", **settings}))


def send_all(transport: Transport, *buffers: bytes) -> None:
    """Send everything as a connection does: unsent data again, sent data never."""
    left = [memoryview(buffer) for buffer in buffers]
    while left:
        taken = transport.send(left)
        while left and taken >= len(left[0]):
            taken -= len(left.pop(0))
        if left:
            left[0] = left[0][taken:]
            wait(transport, selectors.EVENT_WRITE)


def receive(transport: Transport, count: int, room: int = 65536) -> bytes:
    """Return *count* bytes; use the selector only when the transport reports no more."""
    buffer = memoryview(bytearray(room))
    data = b""
    while True:
        got = transport.receive(buffer)
        data += buffer[:got]
        if len(data) >= count:
            return data
        if got < room:
            wait(transport, selectors.EVENT_READ)
