"""TLS between the process under load and the proxies, with files that are renewed."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pykaproducer.testing import FaultProxy
from pykaproducer.testing._certificates import CertificateAuthority


def issue(directory: Path) -> tuple[ssl.SSLContext, dict[str, str]]:
    """Make a new authority; return the brokers' context and the client's files by setting."""
    authority = CertificateAuthority("chaos")
    client, broker = authority.issue("client"), authority.issue("broker", ["127.0.0.1"])
    (directory / "broker.pem").write_text(broker.certificate + broker.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sslsocket_class = _Connection
    context.load_cert_chain(directory / "broker.pem")
    context.load_verify_locations(cadata=authority.certificate)
    context.verify_mode = ssl.CERT_REQUIRED
    return context, {
        "ssl_cafile": authority.certificate,
        "ssl_certfile": client.certificate,
        "ssl_keyfile": client.key,
    }


def write(directory: Path, files: dict[str, str]) -> dict[str, str]:
    """Write the client's files, and return its settings."""
    for name, text in files.items():
        (directory / name).write_text(text)
    return {name: str(directory / name) for name in files} | {"security_protocol": "SSL"}


class SecuredProxy(FaultProxy):
    """A proxy that requires TLS and a client certificate."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context
        super().__init__()

    def secure(self, context: ssl.SSLContext) -> None:
        """Use *context* for new connections."""

        def listen_again() -> None:
            self._context = context
            self._refuse()
            self._listen()

        self._call(listen_again)

    def _listen(self) -> None:
        super()._listen()
        assert self._listener is not None
        self._listener = self._context.wrap_socket(
            self._listener, server_side=True, do_handshake_on_connect=False
        )


class _Connection(ssl.SSLSocket):
    """A connection that behaves as a plain socket that does not block."""

    def recv(self, *arguments: Any) -> bytes:
        return bytes(_without_wait(super().recv, *arguments))

    def send(self, *arguments: Any) -> int:
        return int(_without_wait(super().send, *arguments))


def _without_wait(function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
        raise BlockingIOError from None
