"""A connection without encryption, and the errors of connections.

The operating system's exceptions are converted to :class:`ConnectionFailed` here and nowhere else.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import struct
import sys
from collections.abc import Iterator, Sequence

import pykaproducer._kernel as _kernel

#: Maximum wait of a write for a full socket before the owner checks its inbox again.
PATIENCE_MS = 20

#: The option that returns Linux's ``struct tcp_info``.
_TCP_INFO: int | None = getattr(socket, "TCP_INFO", None) if sys.platform == "linux" else None
#: Its fields retransmits, unacked, and last_ack_recv (milliseconds), among those in between.
_TCP_INFO_HEAD = struct.Struct("=2xB21xI28xI")


class ConnectionFailed(Exception):
    """A connection could not be made or was lost. The text is the reason, without the address."""


class HandshakeFailed(ConnectionFailed):
    """The handshake of a proxy or of TLS failed, or its settings cannot be used."""


class HungUp(ConnectionFailed):
    """The broker closed an established connection without giving a reason."""


class PlainTransport:
    """A connection without encryption, over a non-blocking socket that has begun to connect."""

    stream = None

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self.reached = False

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
        self.reached = True
        return 0

    def unacknowledged(self) -> float | None:
        """See ``Transport.unacknowledged``.

        The system's option TCP_USER_TIMEOUT ends the connection also while the broker's window is
        closed, although its host acknowledges each probe. That is the ordinary state of a broker
        that waits for its replicas, as it reads nothing until then. So the state is read instead:
        if the window is closed, nothing is unacknowledged.
        """
        if _TCP_INFO is None:
            return None
        try:
            info = self._socket.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _TCP_INFO_HEAD.size)
        except OSError:  # not a TCP socket
            return None
        if len(info) < _TCP_INFO_HEAD.size:
            return None
        retransmits, unacked, last_ack_received = _TCP_INFO_HEAD.unpack(info)
        return last_ack_received / 1000 if retransmits and unacked else 0.0

    def send(self, buffers: Sequence[memoryview], *, patient: bool = True) -> int:
        try:
            return _kernel.write_buffers(
                self._socket.fileno(), buffers, PATIENCE_MS if patient else 0
            )
        except OSError as error:
            raise failure(error) from error

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
