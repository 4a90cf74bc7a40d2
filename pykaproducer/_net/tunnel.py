"""Connections through a proxy (``proxy_url``).

The transport asks the proxy for the broker in ``finish_connect``, after TCP and before TLS. From
then on its socket is the broker's. TLS checks the certificate for the broker's own name.
"""

from __future__ import annotations

import selectors
import socket
from typing import Final

from pykaproducer._config.network import Proxy
from pykaproducer._machines.proxy_handshake import (
    HttpConnectHandshake,
    ProxyHandshake,
    ProxyRefused,
    Socks5Handshake,
)
from pykaproducer._net.plain import ConnectionFailed, HandshakeFailed, HungUp, PlainTransport

#: The most that is read at a time.
_ROOM: Final = 4096


class Tunnel(PlainTransport):
    """A connection through *proxy* to the broker at *target*: a name or address, and a port."""

    def __init__(self, sock: socket.socket, proxy: Proxy, target: tuple[str, int]) -> None:
        super().__init__(sock)
        self._proxy = proxy
        kind = HttpConnectHandshake if proxy.scheme == "http" else Socks5Handshake
        try:
            self._handshake: ProxyHandshake = kind(*target, proxy.user, proxy.password)
        except ProxyRefused as error:
            raise ConnectionFailed(f"the proxy {proxy}: {error}") from None
        self._outgoing: bytes = b""
        self._room = memoryview(bytearray(_ROOM))

    @property
    def doing(self) -> str:
        if not self.reached:
            return f"connecting to the proxy {self._proxy}"
        speaks = "HTTP CONNECT" if self._proxy.scheme == "http" else "SOCKS5"
        return f"the answer of the proxy {self._proxy} (does it speak {speaks}?)"

    def finish_connect(self) -> int:
        try:
            return self._finish_connect()
        except ProxyRefused as error:
            raise HandshakeFailed(f"the proxy {self._proxy}: {error}") from None
        except HungUp as error:
            raise HandshakeFailed(
                f"the proxy {self._proxy} closed the connection before it had answered"
            ) from error
        except ConnectionFailed as error:
            raise ConnectionFailed(f"the proxy {self._proxy}: {error}") from error.__cause__

    def _finish_connect(self) -> int:
        if not self.reached:
            wanted = super().finish_connect()
            if wanted:
                return wanted
            self._outgoing = self._handshake.begin()
        if not self._outgoing:
            # One read at a time: a proxy that sends without end must not keep the caller, which
            # watches the time.
            count = self.receive(self._room)
            if count:
                self._outgoing = self._handshake.received(bytes(self._room[:count]))
            if self._handshake.done:
                return 0
        if self._outgoing:
            sent = self.send([memoryview(self._outgoing)], patient=False)
            self._outgoing = self._outgoing[sent:]
        return selectors.EVENT_WRITE if self._outgoing else selectors.EVENT_READ
