"""One HTTP request with a bounded answer and bounded time, for token endpoints and the like.

``urllib.request`` is not used: it follows redirects, to which secrets would be sent again, and has
one timeout for each read instead of one for the answer, so that a server that sends a byte now and
then would never end.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import socket
import ssl
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pykaproducer._kernel import monotonic
from pykaproducer._util.openssl import reason_of

#: The largest answer that is accepted, with its head (bytes). Tokens have a few thousand.
LARGEST: Final = 1 << 20
_CHUNK: Final = 1 << 16


class RequestFailed(Exception):
    """There is no complete answer. The text is the reason; it contains no secret."""


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """An answer of any status."""

    status: int
    reason: str
    content_type: str
    body: bytes = field(repr=False)


class _Deadline(io.RawIOBase):
    """Reads a socket until a deadline, however slowly the data arrives, and a bounded answer."""

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        super().__init__()
        self._socket = sock
        self._deadline = deadline
        self._left = LARGEST

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self._deadline - monotonic()
        if left <= 0:
            raise TimeoutError
        self._socket.settimeout(left)
        count = self._socket.recv_into(buffer)
        self._left -= count
        if self._left < 0:
            raise RequestFailed(f"the answer has more than {LARGEST} bytes")
        return count


class _Answering:
    """The part of a socket that ``http.client`` uses for an answer."""

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self._reader = _Deadline(sock, deadline)

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(self._reader)


class HttpRequest:
    """A request to *url*, which is http or https.

    Args:
        context: makes the TLS context; called for https only.
        connect_timeout, read_timeout (float): seconds.
        names: the settings of both timeouts, and of the trusted certificates, for errors. Without
            those of the timeouts these are not mentioned.
    """

    def __init__(
        self,
        url: str,
        context: Callable[[], ssl.SSLContext],
        connect_timeout: float,
        read_timeout: float,
        names: tuple[str | None, str | None, str],
    ) -> None:
        self._parts = urllib.parse.urlsplit(url)
        self._context = context
        self._connect_timeout = connect_timeout
        self._read_timeout = read_timeout
        self._names = names
        self._cancelled = False
        #: The socket while the request is in progress: a fork's child has to close its copy.
        self.socket: socket.socket | None = None

    def send(self, method: str, headers: Mapping[str, str], body: bytes | None) -> HttpAnswer:
        """Send the request once, and return the answer.

        Raises:
            RequestFailed: there is no complete answer.
        """
        try:
            return self._send(method, headers, body)
        except http.client.IncompleteRead:
            reason = "the answer is incomplete"
        except http.client.HTTPException:
            reason = "the answer is not HTTP; is the URL right?"
        finally:
            self.socket = None
        # Not while that error is handled, because it may contain a part of a token.
        raise RequestFailed(reason)

    def cancel(self) -> None:
        """Make :meth:`send`, in another thread, fail soon; it cannot be called again.

        It is not overlooked: (1) ``send`` sets the socket, (2) it looks whether it was cancelled;
        this method (1) cancels, (2) looks for a socket.
        """
        self._cancelled = True
        sock = self.socket
        if sock is not None:
            with contextlib.suppress(OSError):  # it is not connected yet, or not any more
                socket.socket.shutdown(sock, socket.SHUT_RDWR)

    def _send(self, method: str, headers: Mapping[str, str], body: bytes | None) -> HttpAnswer:
        parts = self._parts
        host = parts.hostname or ""
        is_secure = parts.scheme == "https"
        path = urllib.parse.urlunsplit(("", "", parts.path or "/", parts.query, ""))
        usual_port = 443 if is_secure else 80
        # Without a port, it would take the last part of an IPv6 address for one.
        connection = http.client.HTTPConnection(host, parts.port or usual_port)
        connection.default_port = usual_port  # which is not part of the header Host
        with contextlib.closing(connection):
            sock = self._connect(host, connection.port, is_secure)
            connection.sock = sock
            deadline = monotonic() + self._read_timeout
            try:
                sock.settimeout(self._read_timeout)
                connection.auto_open = False
                connection.request(method, path, body, dict(headers))
                answer = http.client.HTTPResponse(_Answering(sock, deadline), method=method)  # type: ignore[arg-type]
                answer.begin()
                content = _bounded(answer)
            except TimeoutError:
                raise RequestFailed(
                    f"it did not answer within {self._read_timeout:g} s{_named(self._names[1])}"
                ) from None
            except OSError as error:
                raise RequestFailed(f"the connection was lost: {_text(error)}") from None
            kind = answer.getheader("Content-Type", "").partition(";")[0].strip()
            return HttpAnswer(answer.status, answer.reason, kind, content)

    def _connect(self, host: str, port: int, is_secure: bool) -> socket.socket:
        where, timeout = f"{host}:{port}", self._connect_timeout
        late = RequestFailed(
            f"it did not accept the connection within {timeout:g} s{_named(self._names[0])}"
        )
        deadline = monotonic() + timeout
        try:
            sock = self._open(host, port, deadline)
        except TimeoutError:
            raise late from None
        except socket.gaierror as error:
            raise RequestFailed(
                f"the host name {host!r} cannot be resolved: {_text(error)}"
            ) from None
        except (OSError, UnicodeError) as error:
            raise RequestFailed(f"{where} cannot be reached: {_text(error)}") from None
        with contextlib.ExitStack() as undo:
            undo.callback(sock.close)
            if is_secure:
                context = self._context()
                sock.settimeout(max(0.001, deadline - monotonic()))
                try:
                    # Wrapping empties the plain socket. The handshake comes after the new one is
                    # set, so that cancel() and a fork's child find it.
                    sock = context.wrap_socket(
                        sock, server_hostname=host, do_handshake_on_connect=False
                    )
                    undo.callback(sock.close)
                    self.socket = sock
                    if self._cancelled:
                        raise RequestFailed("the producer was closed")
                    sock.do_handshake()
                except TimeoutError:
                    raise late from None
                except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
                    raise RequestFailed(self._tls_error(error)) from None
            undo.pop_all()
        return sock

    def _open(self, host: str, port: int, deadline: float) -> socket.socket:
        """Return a connection to one of the host's addresses, each of which gets its share."""
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        failure: OSError = OSError("the host name has no address")
        for number, (family, kind, _, _, address) in enumerate(addresses):
            share = (deadline - monotonic()) / (len(addresses) - number)
            with contextlib.ExitStack() as undo:
                sock = undo.enter_context(socket.socket(family, kind))
                self.socket = sock
                if self._cancelled:
                    raise RequestFailed("the producer was closed")
                sock.settimeout(max(0.001, share))
                try:
                    sock.connect(address)
                except OSError as error:
                    failure = error
                    continue
                undo.pop_all()
                return sock
        raise failure

    def _tls_error(self, error: OSError | ValueError) -> str:
        if isinstance(error, ssl.SSLCertVerificationError):
            return (
                f"its certificate is not accepted: {error.verify_message} (trusted authorities: "
                f"{self._names[2]})"
            )
        return f"the TLS handshake failed: {_text(error)}; does it use https?"


def _bounded(answer: http.client.HTTPResponse) -> bytes:
    content = bytearray()
    while chunk := answer.read(_CHUNK):
        content += chunk
    if answer.length:  # read() with a size does not report it
        raise RequestFailed("the answer is incomplete")
    return bytes(content)


def _named(setting: str | None) -> str:
    return "" if setting is None else f" ({setting})"


def _text(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return reason_of(error)
    strerror = getattr(error, "strerror", None)
    return str(strerror or error or type(error).__name__).lower()
