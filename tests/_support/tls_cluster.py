"""A scripted cluster that is reached over TLS: a thread for each connection decrypts."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
from pathlib import Path
from typing import cast

import pytest

from pykaproducer._net.tls import TlsTransport
from pykaproducer._net.tls_errors import Peer
from pykaproducer._net.transport import Endpoint, PlainTransport, Transport
from pykaproducer.testing.scripted import ScriptedNetwork

_NAME = "localhost"


def tls_files(directory: Path) -> tuple[str, str]:
    """Make the files for :func:`tls_network` in *directory*; skip the test without ``trustme``."""
    pytest.importorskip("trustme")
    from pykaproducer.testing._certificates import CertificateAuthority

    made = CertificateAuthority("an authority")
    issued = made.issue("server", [_NAME])
    authority, certificate = directory / "ca.pem", directory / "server.pem"
    authority.write_text(made.certificate)
    certificate.write_text(issued.certificate + issued.key)
    return str(authority), str(certificate)


def tls_network(authority: str, certificate: str) -> type[ScriptedNetwork]:
    """Return a type of network for :class:`ScriptedCluster`. *authority*, *certificate*: files."""
    trusting = ssl.create_default_context(cafile=authority)
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(certificate)

    class TlsNetwork(ScriptedNetwork):
        def connect(self, endpoint: Endpoint) -> Transport:
            behind = cast("PlainTransport", super().connect(endpoint))._socket
            ours, theirs = socket.socketpair()
            ours.setblocking(False)
            threading.Thread(target=_decrypt, args=(serving, theirs, behind), daemon=True).start()
            return TlsTransport(ours, trusting, Peer(_NAME, "SSL", None))

    return TlsNetwork


def _decrypt(context: ssl.SSLContext, sock: socket.socket, behind: socket.socket) -> None:
    """Pass bytes on between *sock*, encrypted, and *behind*, until either ends."""
    behind.setblocking(True)
    with behind, sock, contextlib.suppress(OSError):
        secure = context.wrap_socket(sock, server_side=True)
        with secure:
            while True:
                ready: list[object] = [secure] if secure.pending() else []
                ready = ready or select.select([secure, behind], [], [])[0]
                for source, target in ((secure, behind), (behind, secure)):
                    if source in ready:
                        data = source.recv(65536)
                        if not data:
                            return
                        target.sendall(data)
