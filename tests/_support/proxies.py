"""SOCKS5 and HTTP CONNECT proxies: one that works, and one that follows a script."""

from __future__ import annotations

import base64
import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

#: Patience with a peer (seconds).
PATIENCE = 30.0


class _Listener:
    """A server on loopback with a thread for each connection."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family)
        self.host = host
        self.port: int = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end(self._listener)
        self._threads[0].join(PATIENCE)
        for each in list(self._open):
            self._end(each)
        for thread in self._threads:  # one that serves may still start one that pumps
            thread.join(PATIENCE)
        for each in (self._listener, *self._open):
            each.close()

    @staticmethod
    def _end(sock: socket.socket) -> None:
        with contextlib.suppress(OSError):  # it has ended already
            sock.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._start(self._serve, client)

    def _start(self, work: Callable[[socket.socket], None], *sockets: socket.socket) -> None:
        self._open += [each for each in sockets if each not in self._open]
        thread = threading.Thread(target=self._safely, args=(work, *sockets))
        self._threads.append(thread)
        thread.start()

    def _safely(self, work: Callable[..., None], *sockets: socket.socket) -> None:
        with contextlib.suppress(OSError, EOFError):
            work(*sockets)
        self._end(sockets[0])

    def _serve(self, client: socket.socket) -> None:
        raise NotImplementedError


class ScriptedProxy(_Listener):
    """A proxy that sends *answers*, one after each piece of data, and then closes or waits."""

    def __init__(self, *answers: bytes, then_close: bool = True) -> None:
        super().__init__()
        self._answers = answers
        self._then_close = then_close

    def _serve(self, client: socket.socket) -> None:
        for answer in self._answers:
            if not client.recv(4096):
                return
            client.sendall(answer)
        if not self._then_close:
            while client.recv(4096):
                pass


class Proxy(_Listener):
    """A proxy that speaks SOCKS5 and HTTP CONNECT, whichever the client begins with.

    *credentials*: the required user name and password. *names*: what this proxy resolves, and
    nothing else but addresses.
    """

    def __init__(
        self,
        credentials: tuple[str, str] | None = None,
        names: dict[str, str] | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        super().__init__(host)
        self._credentials = credentials
        self._names = names or {}
        #: The hosts and ports that clients have asked for.
        self.asked: list[tuple[str, int]] = []

    def url(self, scheme: str, credentials: str = "") -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme}://{credentials}{host}:{self.port}"

    def _serve(self, client: socket.socket) -> None:
        first = _exactly(client, 1)
        target = self._socks(client) if first == b"\5" else self._http(client, first)
        if target is None:
            return
        # Not closed here: the other thread may be about to wait for this descriptor, and another
        # connection would get its number.
        self._start(_pump(target), client, target)
        try:
            _pump(client)(target)
        finally:
            self._end(target)

    # SOCKS5 --------------------------------------------------------------------------------------

    def _socks(self, client: socket.socket) -> socket.socket | None:
        methods = _exactly(client, _exactly(client, 1)[0])
        method = 0 if self._credentials is None else 2
        if method not in methods:
            client.sendall(b"\5\xff")
            return None
        client.sendall(bytes([5, method]))
        if self._credentials is not None:
            assert _exactly(client, 1) == b"\1"
            given = tuple(_exactly(client, _exactly(client, 1)[0]).decode() for _ in range(2))
            client.sendall(b"\1\0" if given == self._credentials else b"\1\1")
            if given != self._credentials:
                return None
        _, _, _, kind = _exactly(client, 4)
        if kind == 3:
            host = _exactly(client, _exactly(client, 1)[0]).decode()
        else:
            family = socket.AF_INET if kind == 1 else socket.AF_INET6
            host = socket.inet_ntop(family, _exactly(client, 4 if kind == 1 else 16))
        (port,) = struct.unpack(">H", _exactly(client, 2))
        target, code = self._connect(host, port)
        # One byte at a time, as a slow network might.
        for byte in bytes([5, code, 0, 1, 127, 0, 0, 1, 0, 0]):
            client.sendall(bytes([byte]))
        return target

    # HTTP ----------------------------------------------------------------------------------------

    def _http(self, client: socket.socket, first: bytes) -> socket.socket | None:
        head = first
        while not head.endswith(b"\r\n\r\n"):
            head += _exactly(client, 1)
        request, *headers = head.decode().split("\r\n")
        method, where, _ = request.split(" ")
        assert method == "CONNECT"
        if self._credentials is not None:
            token = base64.b64encode(":".join(self._credentials).encode()).decode()
            if f"Proxy-Authorization: Basic {token}" not in headers:
                client.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
                return None
        host, _, port = where.rpartition(":")
        target, _ = self._connect(host.strip("[]"), int(port))
        if target is None:
            client.sendall(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 4\r\n\r\noops")
        else:
            client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        return target

    def _connect(self, host: str, port: int) -> tuple[socket.socket | None, int]:
        """Return a connection and a reply of SOCKS5."""
        self.asked.append((host, port))
        try:
            return socket.create_connection((self._names.get(host, host), port), PATIENCE), 0
        except ConnectionRefusedError:
            return None, 5
        except OSError:
            return None, 4


def _exactly(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = sock.recv(count - len(data))
        if not more:
            raise EOFError
        data += more
    return data


def _pump(source: socket.socket) -> Callable[[socket.socket], None]:
    """Return a function that passes on what *source* sends, until it ends."""

    def pump(sink: socket.socket, *_: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                sink.sendall(data)
        finally:
            with contextlib.suppress(OSError):
                sink.shutdown(socket.SHUT_RDWR)

    return pump
