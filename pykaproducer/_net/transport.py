"""Sending and receiving bytes, with an interface that TLS and tests can implement.

This is the boundary to the operating system, with :mod:`pykaproducer._net.plain`.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import os
import selectors
import socket
import weakref
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from pykaproducer._config.network import Proxy
from pykaproducer._kernel import TlsStream
from pykaproducer._machines.authentication import Authentication
from pykaproducer._machines.session import VersionLadders
from pykaproducer._net.plain import (
    CLOSED,
    PATIENCE_MS,
    ConnectionFailed,
    HandshakeFailed,
    HungUp,
    PlainTransport,
    failure,
    is_shortage,
    mapped,
)
from pykaproducer._net.tunnel import Tunnel

__all__ = [
    "CLOSED",
    "PATIENCE_MS",
    "ConnectionFailed",
    "ConnectionSettings",
    "Endpoint",
    "HandshakeFailed",
    "HungUp",
    "Network",
    "PlainTransport",
    "Select",
    "SocketSettings",
    "Transport",
    "failure",
    "is_shortage",
    "mapped",
]

# Load the resolver's codec now. Otherwise Python imports it at the first lookup, in a background
# thread:
#
# 1. that thread imports the module and holds its import lock;
# 2. another thread forks;
# 3. in the child no thread is left to release the lock, and the first lookup waits forever.
codecs.lookup("idna")


class Endpoint(NamedTuple):
    """One of the addresses of a host name."""

    family: int
    address: tuple[object, ...]
    #: The name itself, if its certificate has to be checked (TLS).
    host: str = ""
    #: The broker's name or address, and its port, if the address is that of a proxy.
    beyond: tuple[str, int] | None = None

    def __str__(self) -> str:
        host, port = self.address[:2]
        return f"[{host}]:{port}" if self.family == socket.AF_INET6 else f"{host}:{port}"


class SocketSettings(Protocol):
    """The configuration settings of a socket."""

    @property
    def send_buffer_bytes(self) -> int | None: ...

    @property
    def receive_buffer_bytes(self) -> int | None: ...

    @property
    def socket_options(self) -> Sequence[tuple[int, int, int]]: ...

    @property
    def proxy_url(self) -> Proxy | None: ...


class ConnectionSettings(SocketSettings, Protocol):
    """The configuration settings of a connection."""

    @property
    def bootstrap_servers(self) -> Sequence[tuple[str, int]]: ...

    @property
    def client_id(self) -> str | None: ...

    @property
    def request_timeout_ms(self) -> int: ...

    @property
    def receive_message_max_bytes(self) -> int: ...

    @property
    def socket_connection_setup_timeout_ms(self) -> float: ...

    @property
    def socket_connection_setup_timeout_max_ms(self) -> float: ...

    @property
    def connections_check_idle_ms(self) -> float: ...

    @property
    def tcp_user_timeout_ms(self) -> float: ...


#: Waits for I/O, as Clock.select.
Select = Callable[
    [selectors.BaseSelector, float | None, Callable[[], None]],
    list[tuple[selectors.SelectorKey, int]],
]


class Transport(Protocol):
    """A byte stream to one address, used by one thread at a time.

    No method blocks, except that ``send`` may wait briefly for a full socket. A wait without the
    GIL costs less than one call for every piece of a large request. Every method except ``close``
    and ``fileno`` raises :class:`ConnectionFailed`.
    """

    @property
    def stream(self) -> TlsStream | None:
        """Return the object that encrypts its bytes; None: they are not encrypted."""

    def fileno(self) -> int:
        """Return the descriptor to wait for."""

    @property
    def doing(self) -> str:
        """Return the current step of ``finish_connect``, worded to precede "took too long"."""

    @property
    def reached(self) -> bool:
        """Return whether TCP has connected. The rest of ``finish_connect`` is a handshake."""

    def unacknowledged(self) -> float | None:
        """Return for how long the broker's host has not acknowledged sent data (seconds).

        The time before the data was sent counts too. It is 0 if nothing had to be sent again, and
        None if the system does not tell. (See :class:`PlainTransport`.)
        """

    def finish_connect(self) -> int:
        """Continue to connect. Return 0 when done, else the selector events to wait for first."""

    def send(self, buffers: Sequence[memoryview], *, patient: bool = True) -> int:
        """Send from the beginning of *buffers*. Return the number of bytes taken, perhaps 0.

        *patient*: wait briefly for room. Otherwise do not wait.
        """

    def receive(self, into: memoryview) -> int:
        """Receive into a buffer and return the number of bytes.

        If they do not fill the buffer, there is no more data now. The end of the stream raises
        ConnectionFailed.
        """

    def close(self) -> None:
        """Close the connection. A second call has no effect."""


class HasDescriptors(Protocol):
    """An owner of file descriptors."""

    def close(self) -> None:
        """Close them."""


class Network:
    """A factory of TCP connections.

    ``secure.SecureNetwork`` adds TLS and SASL. Tests replace it by a subclass.
    """

    #: The setting ``security_protocol``, for error texts.
    protocol = "PLAINTEXT"

    def __init__(self, settings: SocketSettings) -> None:
        self._settings = settings
        #: The versions of ApiVersions that its connections try.
        self.ladders = VersionLadders()
        self._inherited: weakref.WeakSet[HasDescriptors] = weakref.WeakSet()

    def resolve(self, host: str, port: int) -> list[Endpoint]:
        """Return the addresses of *host*, to be tried in turn. The resolver may block."""
        if not 0 < port < 65536 or "\0" in host:
            # The resolver would silently truncate either of them.
            raise ConnectionFailed(f"invalid broker address: host {host!r}, port {port}")
        proxy = self._settings.proxy_url
        if proxy is None:
            return _addresses(host, port, f"the host name {host!r}")
        targets = [(host, port)]
        if not proxy.resolves:
            found = _addresses(host, port, f"the host name {host!r}")
            targets = [(str(each.address[0]), port) for each in found]
        proxies = _addresses(proxy.host, proxy.port, f"the host name of the proxy {proxy}")
        return [each._replace(beyond=target) for target in targets for each in proxies]

    def connect(self, endpoint: Endpoint) -> Transport:
        """Begin to connect."""
        with contextlib.ExitStack() as undo:
            transport = self._plain(undo.enter_context(self._open(endpoint)), endpoint)
            undo.pop_all()  # the transport closes it from now on
        return transport

    def _plain(self, sock: socket.socket, endpoint: Endpoint) -> PlainTransport:
        """Return the connection without TLS."""
        proxy = self._settings.proxy_url
        if proxy is None or endpoint.beyond is None:
            return PlainTransport(sock)
        return Tunnel(sock, proxy, endpoint.beyond)

    def _open(self, endpoint: Endpoint) -> socket.socket:
        with mapped(), contextlib.ExitStack() as undo:
            sock = undo.enter_context(socket.socket(endpoint.family, socket.SOCK_STREAM))
            self.close_in_child(sock)
            self._begin(sock, endpoint)
            undo.pop_all()  # the transport closes it from now on
        return sock

    def authenticator(self, host: str) -> Callable[[], Authentication] | None:
        """Return a factory for the authentication of a connection to *host*, None without SASL."""
        return None

    def close_in_child(self, owner: HasDescriptors) -> None:
        """Have :meth:`close_inherited` close *owner*, which has file descriptors."""
        self._inherited.add(owner)

    def close_inherited(self) -> None:
        """Close the duplicates of the parent's file descriptors in a forked child.

        This does not affect the parent's connections. While a child has a socket open, the broker
        would not notice that the parent has closed it. And in a chain of forks they would pile up.
        """
        for owner in list(self._inherited):
            owner.close()

    def _begin(self, sock: socket.socket, endpoint: Endpoint) -> None:
        settings = self._settings
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
        if settings.send_buffer_bytes is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, settings.send_buffer_bytes)
        if settings.receive_buffer_bytes is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, settings.receive_buffer_bytes)
        for option in settings.socket_options:
            sock.setsockopt(*option)
        code = sock.connect_ex(endpoint.address)
        if code not in _UNDER_WAY:
            raise OSError(code, os.strerror(code))


#: Probe an idle connection after a minute instead of the system's two hours. This keeps it in the
#: tables of most NATs and load balancers, and detects a dead peer. ``socket_options`` overrides it.
_KEEPALIVE = tuple(
    (getattr(socket, name), value)
    for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 6))
    if hasattr(socket, name)
)

_UNDER_WAY = (0, errno.EINPROGRESS, errno.EWOULDBLOCK, errno.EALREADY)


def _addresses(host: str, port: int, what: str) -> list[Endpoint]:
    with mapped(f"{what} cannot be resolved"):
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(Endpoint(family, address) for family, *_, address in found))
