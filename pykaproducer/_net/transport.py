"""Bytes to and from one address, behind an interface that tests (and TLS) can replace.

The boundary to the operating system: its exceptions are mapped here, and only here, to
:class:`ConnectionFailed`.
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

from pykaproducer import _kernel
from pykaproducer._machines.authentication import Authentication

#: How long a write may wait for a full socket before its owner looks at its inbox again.
PATIENCE_MS = 20

# The resolver's codec, which Python otherwise imports at the first look-up, in a thread of ours:
# 1. that thread imports, and holds the module's import lock; 2. another thread forks; 3. in the
# child nobody is left to release the lock, and the first look-up there waits for ever.
codecs.lookup("idna")


class ConnectionFailed(Exception):
    """A connection could not be made or is lost; the text says why, without the address."""


class HandshakeFailed(ConnectionFailed):
    """There is somebody, and no agreement with them on TLS."""


class HungUp(ConnectionFailed):
    """The broker ended a connection that stood, and did not say why."""


class Endpoint(NamedTuple):
    """One of the addresses that a host name stands for."""

    family: int
    address: tuple[object, ...]
    #: The name itself, if it matters who answers there: with TLS.
    host: str = ""

    def __str__(self) -> str:
        host, port = self.address[:2]
        return f"[{host}]:{port}" if self.family == socket.AF_INET6 else f"{host}:{port}"


class SocketSettings(Protocol):
    """The settings that concern the socket, as in the configuration."""

    @property
    def send_buffer_bytes(self) -> int | None: ...

    @property
    def receive_buffer_bytes(self) -> int | None: ...

    @property
    def socket_options(self) -> Sequence[tuple[int, int, int]]: ...


class Transport(Protocol):
    """Bytes to and from one address; used by one thread at a time.

    Nothing blocks, but that ``send`` may wait a little for a full socket: a wait without the GIL
    costs less than to come back for every piece of a large request. Every method but ``close``
    and ``fileno`` raises :class:`ConnectionFailed`.
    """

    def fileno(self) -> int:
        """What to wait for."""

    @property
    def doing(self) -> str:
        """What ``finish_connect`` is at, in words that go on "... took too long"."""

    def finish_connect(self) -> int:
        """Go on with connecting: 0 when done, else the selector's events to wait for first."""

    def send(self, buffers: Sequence[memoryview], *, patient: bool = True) -> int:
        """Send from the beginning of *buffers*: how many bytes were taken, 0 for none now.

        *patient*: wait a moment for room; else not at all.
        """

    def receive(self, into: memoryview) -> int:
        """Receive: how many bytes came; fewer than there is room for: there are no more now.

        The end of the stream is ConnectionFailed.
        """

    def close(self) -> None:
        """Close it; twice does no harm."""


class Network:
    """Where connections come from: TCP. ``secure.SecureNetwork`` adds TLS and SASL; a test puts a
    subclass in its place."""

    #: What errors call it: the setting ``security_protocol``.
    protocol = "PLAINTEXT"

    def __init__(self, settings: SocketSettings) -> None:
        self._settings = settings
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()

    def resolve(self, host: str, port: int) -> list[Endpoint]:
        """The addresses of *host*, to be tried in turn. Asks the resolver, so it may block."""
        if not 0 < port < 65536 or "\0" in host:
            # The resolver would take a part of either for the whole.
            raise ConnectionFailed(f"a broker cannot be at {host!r}, port {port}")
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
            undo.pop_all()  # it has begun: from here on it is the transport's to close
        return sock

    def sign_in(self, host: str) -> Callable[[], Authentication] | None:
        """What makes the authentication of a connection to *host*; None: there is none."""
        return None

    def forsake(self) -> None:
        """In the child of a fork: close this process's duplicates of the parent's sockets.

        The parent's connections stay as they are; but if it closed one, its broker would not
        learn of it as long as a child had it open.
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
                    break  # what was taken must be known; the next call tells the error
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


#: Probe an idle connection after a minute, not after the system's two hours: that keeps it in the
#: tables of most NATs and load balancers, and detects a dead peer. ``socket_options`` overrides it.
_KEEPALIVE = tuple(
    (getattr(socket, name), value)
    for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 6))
    if hasattr(socket, name)
)

_UNDER_WAY = (0, errno.EINPROGRESS, errno.EWOULDBLOCK, errno.EALREADY)

#: What is said of the end of a stream.
CLOSED = "the broker closed the connection"

#: What people understand; the system's own words for everything else.
_TEXTS: dict[int | None, str] = {
    errno.ECONNREFUSED: "connection refused: nothing listens there",
    errno.ECONNRESET: "the broker reset the connection",
    errno.EPIPE: CLOSED,
    errno.ETIMEDOUT: "the network gave up waiting for the broker",
    errno.EHOSTUNREACH: "there is no route to the host",
    errno.ENETUNREACH: "the network is unreachable",
    errno.EMFILE: "this process has too many open files; raise its limit (ulimit -n)",
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
    """Return whether the system refused a resource that it may grant later."""
    cause = error if isinstance(error, OSError) else error.__cause__
    return isinstance(cause, OSError) and cause.errno in _SHORTAGES


def failure(error: OSError) -> ConnectionFailed:
    """What an error on a connection that stood becomes."""
    kind = HungUp if error.errno in (errno.ECONNRESET, errno.EPIPE) else ConnectionFailed
    return kind(_text(error))


@contextlib.contextmanager
def mapped(what: str | None = None) -> Iterator[None]:
    """Turn what the operating system raises into :class:`ConnectionFailed`."""
    try:
        yield
    except OSError as error:  # socket.gaierror and TimeoutError are OSErrors
        text = _text(error)
        raise ConnectionFailed(text if what is None else f"{what}: {text}") from error
    except UnicodeError as error:  # a label of the host name is empty or too long
        raise ConnectionFailed(f"{what}: {error}") from error
