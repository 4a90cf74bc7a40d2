"""Sending and receiving bytes, with an interface that TLS and tests can implement.

This is the boundary to the operating system. Its exceptions are converted to
:class:`ConnectionFailed` here and nowhere else.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import os
import selectors
import socket
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

import pykaproducer._kernel as _kernel
from pykaproducer._machines.authentication import Authentication

#: Maximum wait of a write for a full socket before the owner checks its inbox again.
PATIENCE_MS = 20

# Load the resolver's codec now. Otherwise Python imports it at the first lookup, in a background
# thread:
#
# 1. that thread imports the module and holds its import lock;
# 2. another thread forks;
# 3. in the child no thread is left to release the lock, and the first lookup waits forever.
codecs.lookup("idna")


class ConnectionFailed(Exception):
    """A connection could not be made or was lost. The text is the reason, without the address."""


class HandshakeFailed(ConnectionFailed):
    """The TLS handshake failed."""


class HungUp(ConnectionFailed):
    """The broker closed an established connection without giving a reason."""


class Endpoint(NamedTuple):
    """One of the addresses of a host name."""

    family: int
    address: tuple[object, ...]
    #: The name itself, if its certificate has to be checked (TLS).
    host: str = ""

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


class ConnectionSettings(SocketSettings, Protocol):
    """The configuration settings of a connection."""

    @property
    def client_id(self) -> str | None: ...

    @property
    def request_timeout_ms(self) -> int: ...

    @property
    def receive_message_max_bytes(self) -> int: ...


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

    def fileno(self) -> int:
        """Return the descriptor to wait for."""

    @property
    def doing(self) -> str:
        """Return the current step of ``finish_connect``, worded to precede "took too long"."""

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


class Network:
    """A factory of TCP connections.

    ``secure.SecureNetwork`` adds TLS and SASL. Tests replace it by a subclass.
    """

    #: The setting ``security_protocol``, for error texts.
    protocol = "PLAINTEXT"

    def __init__(self, settings: SocketSettings) -> None:
        self._settings = settings
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()

    def resolve(self, host: str, port: int) -> list[Endpoint]:
        """Return the addresses of *host*, to be tried in turn. The resolver may block."""
        if not 0 < port < 65536 or "\0" in host:
            # The resolver would silently truncate either of them.
            raise ConnectionFailed(f"invalid broker address: host {host!r}, port {port}")
        with mapped(f"the host name {host!r} cannot be resolved"):
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(Endpoint(family, address) for family, *_, address in found))

    def connect(self, endpoint: Endpoint) -> Transport:
        """Begin to connect."""
        return PlainTransport(self._open(endpoint))

    def _open(self, endpoint: Endpoint) -> socket.socket:
        with mapped(), contextlib.ExitStack() as undo:
            sock = undo.enter_context(socket.socket(endpoint.family, socket.SOCK_STREAM))
            self._sockets.add(sock)
            self._begin(sock, endpoint)
            undo.pop_all()  # the transport closes it from now on
        return sock

    def authenticator(self, host: str) -> Callable[[], Authentication] | None:
        """Return a factory for the authentication of a connection to *host*, None without SASL."""
        return None

    def close_inherited(self) -> None:
        """Close the duplicates of the parent's sockets in a forked child.

        This does not affect the parent's connections. While a child has a socket open, the broker
        would not notice that the parent has closed it.
        """
        for sock in list(self._sockets):
            sock.close()

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


class PlainTransport:
    """A connection without encryption, over a non-blocking socket that has begun to connect."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def doing(self) -> str:
        return "connecting"

    def finish_connect(self) -> int:
        with mapped():
            code = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                raise OSError(code, os.strerror(code))
            try:
                self._socket.getpeername()
            except OSError as error:
                if error.errno != errno.ENOTCONN:
                    raise
                return selectors.EVENT_WRITE
        return 0

    def send(self, buffers: Sequence[memoryview], *, patient: bool = True) -> int:
        sent = 0
        for start in range(0, len(buffers), _kernel.MOST_BUFFERS):
            some = buffers[start : start + _kernel.MOST_BUFFERS]
            try:
                count = _kernel.write_buffers(
                    self._socket.fileno(), some, PATIENCE_MS if patient else 0
                )
            except OSError as error:
                if sent:
                    break  # return the number of bytes taken; the next call raises the error
                raise failure(error) from error
            sent += count
            if count < sum(map(len, some)):
                break
        return sent

    def receive(self, into: memoryview) -> int:
        try:
            count = _kernel.read_into(self._socket.fileno(), into)
        except OSError as error:
            raise failure(error) from error
        if count is None:
            return 0
        if count == 0:
            raise HungUp(CLOSED)
        return count

    def close(self) -> None:
        self._socket.close()


#: Probe an idle connection after a minute instead of the system's two hours. This keeps it in the
#: tables of most NATs and load balancers, and detects a dead peer. ``socket_options`` overrides it.
_KEEPALIVE = tuple(
    (getattr(socket, name), value)
    for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 6))
    if hasattr(socket, name)
)

_UNDER_WAY = (0, errno.EINPROGRESS, errno.EWOULDBLOCK, errno.EALREADY)

#: Text for the end of a stream.
CLOSED = "the broker closed the connection"

#: Texts for common errors. Others have the text of the system.
_TEXTS: dict[int | None, str] = {
    errno.ECONNREFUSED: "connection refused: nothing listens there",
    errno.ECONNRESET: "the broker reset the connection",
    errno.EPIPE: CLOSED,
    errno.ETIMEDOUT: "the TCP connection timed out",
    errno.EHOSTUNREACH: "there is no route to the host",
    errno.ENETUNREACH: "the network is unreachable",
    errno.EMFILE: "this process has too many open files; increase its limit (ulimit -n)",
    errno.ENFILE: "the system has too many open files",
    errno.ENOBUFS: "the system has no memory for a socket",
    errno.ENOMEM: "the system has no memory for a socket",
}

_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


def _text(error: OSError) -> str:
    known = _TEXTS.get(error.errno)
    if known is not None and not isinstance(error, socket.gaierror):
        return known
    return error.strerror or str(error)


def is_shortage(error: OSError | ConnectionFailed) -> bool:
    """Return whether the system lacked a resource that may be available later."""
    cause = error if isinstance(error, OSError) else error.__cause__
    return isinstance(cause, OSError) and cause.errno in _SHORTAGES


def failure(error: OSError) -> ConnectionFailed:
    """Convert an error on an established connection."""
    kind = HungUp if error.errno in (errno.ECONNRESET, errno.EPIPE) else ConnectionFailed
    return kind(_text(error))


@contextlib.contextmanager
def mapped(what: str | None = None) -> Iterator[None]:
    """Convert the operating system's exceptions to :class:`ConnectionFailed`."""
    try:
        yield
    except OSError as error:  # socket.gaierror and TimeoutError are OSErrors
        text = _text(error)
        raise ConnectionFailed(text if what is None else f"{what}: {text}") from error
    except UnicodeError as error:  # a label of the host name is empty or too long
        raise ConnectionFailed(f"{what}: {error}") from error
