"""Asking a proxy to connect to a broker: SOCKS5 (RFC 1928, RFC 1929) and HTTP CONNECT (RFC 9110).

The machines are pure: they take the bytes that the proxy has sent, and return the bytes to send.
The socket is in ``_net.tunnel``. A broker never speaks first, and neither does TLS: any byte
after the proxy's last answer is an error.
"""

from __future__ import annotations

import base64
import ipaddress
import struct
from collections.abc import Callable
from typing import Final, Protocol

#: The most that a proxy may send before the broker's first byte.
_MOST: Final = 16 * 1024

_SOCKS: Final = 5
_NO_AUTHENTICATION: Final = 0
_PASSWORD: Final = 2
#: Address type -> length of the address in a SOCKS5 answer. A name has its own length byte.
_LENGTHS: Final = {1: 4, 4: 16}
_NAME: Final = 3
_MOST_NAME: Final = 255

#: The replies of SOCKS5 that are failures (RFC 1928, section 6).
_REPLIES: Final = {
    1: "it has failed (general SOCKS server failure)",
    2: "its rules do not allow this connection",
    3: "the network is unreachable from it",
    4: "the host is unreachable from it",
    5: "the broker refused its connection",
    6: "the connection timed out (TTL expired)",
    7: "it does not support the command CONNECT",
    8: "it does not support this type of address",
}


class ProxyRefused(Exception):
    """The proxy did not connect to the broker. The text follows "the proxy socks5://...: "."""


class ProxyHandshake(Protocol):
    """The conversation with a proxy."""

    @property
    def done(self) -> bool:
        """Whether the bytes that follow are those of the broker."""

    def begin(self) -> bytes:
        """Return the bytes to send first."""

    def received(self, data: bytes) -> bytes:
        """Take *data* from the proxy; return the bytes to send, perhaps none.

        Raises:
            ProxyRefused: it refuses, or does not speak this protocol.
        """


class Socks5Handshake:
    """A conversation with a SOCKS5 proxy: the method, the password if it asks for one, CONNECT.

    *host*: an address, or a name that the proxy looks up.
    """

    def __init__(
        self, host: str, port: int, user: str | None = None, password: str | None = None
    ) -> None:
        self._request = struct.pack(">BBB", _SOCKS, 1, 0) + _address(host) + struct.pack(">H", port)
        self._credentials: bytes | None = None
        if user is not None:
            name, secret = user.encode(), (password or "").encode()
            self._credentials = b"".join(
                (b"\1", bytes([len(name)]), name, bytes([len(secret)]), secret)
            )
        self._data = b""
        self._step: Callable[[], bytes | None] = self._method
        self.done = False

    def begin(self) -> bytes:
        # Without a password only if none is given: a proxy that chose it would not know the user.
        methods = [_NO_AUTHENTICATION]
        if self._credentials is not None:
            methods.append(_PASSWORD)
        return bytes([_SOCKS, len(methods), *methods])

    def received(self, data: bytes) -> bytes:
        self._data += data
        answer = b""
        while not self.done:
            step = self._step()
            if step is None:
                return answer
            answer += step
        if self._data:
            raise ProxyRefused(_extra(self._data))
        return answer

    def _method(self) -> bytes | None:
        if self._data[:1] not in (b"", b"\5"):
            raise ProxyRefused(f"it does not speak SOCKS5: it sent {_shown(self._data)}")
        if (answer := self._take(2)) is None:
            return None
        if answer[1] == _PASSWORD and self._credentials is not None:
            self._step = self._authenticated
            return self._credentials
        if answer[1] != _NO_AUTHENTICATION:
            raise ProxyRefused(
                "it requires authentication; put user:password@ before its host in proxy_url"
                if self._credentials is None
                else "it accepts neither a user name and password nor a client without them"
            )
        self._step = self._reply
        return self._request

    def _authenticated(self) -> bytes | None:
        if (answer := self._take(2)) is None:
            return None
        if answer[1] != 0:
            raise ProxyRefused("it rejected the user name or password in proxy_url")
        self._step = self._reply
        return self._request

    def _reply(self) -> bytes | None:
        if len(self._data) < 2:
            return None
        version, code = self._data[:2]
        if version != _SOCKS:
            raise ProxyRefused(f"its answer is not SOCKS5: {_shown(self._data)}")
        if code != 0:  # some proxies send no address after a failure
            raise ProxyRefused(_REPLIES.get(code, f"it failed with the unknown code {code}"))
        if len(self._data) < 5:
            return None
        kind, first = self._data[3:5]
        length = 1 + first if kind == _NAME else _LENGTHS.get(kind)
        if length is None:
            raise ProxyRefused(f"its answer is not SOCKS5: {_shown(self._data)}")
        if self._take(4 + length + 2) is None:
            return None
        self.done = True
        return b""

    def _take(self, count: int) -> bytes | None:
        """Return and remove *count* bytes, or None if there are not so many yet."""
        if len(self._data) < count:
            return None
        taken, self._data = self._data[:count], self._data[count:]
        return taken


def _address(host: str) -> bytes:
    """Return the type and the bytes of an address or a name."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        try:
            name = host.encode("ascii") if host.isascii() else host.encode("idna")
        except UnicodeError:
            name = b""
        if not 0 < len(name) <= _MOST_NAME:
            raise ProxyRefused(f"SOCKS5 cannot express the host name {host!r}") from None
        return bytes([_NAME, len(name)]) + name
    return bytes([1 if address.version == 4 else 4]) + address.packed


class HttpConnectHandshake:
    """A conversation with an HTTP proxy: one request CONNECT, with Basic authentication."""

    def __init__(
        self, host: str, port: int, user: str | None = None, password: str | None = None
    ) -> None:
        try:
            name = host if host.isascii() else host.encode("idna").decode()
        except UnicodeError:
            name = ""
        if not name or not name.isprintable() or " " in name:
            raise ProxyRefused(f"HTTP cannot express the host name {host!r}")
        where = f"[{name}]:{port}" if ":" in name else f"{name}:{port}"
        lines = [f"CONNECT {where} HTTP/1.1", f"Host: {where}"]
        self._has_credentials = user is not None
        if user is not None:
            secret = base64.b64encode(f"{user}:{password or ''}".encode()).decode()
            lines.append(f"Proxy-Authorization: Basic {secret}")
        self._request = "\r\n".join([*lines, "", ""]).encode()
        self._data = b""
        self._interim = 0  # bytes of interim answers
        self.done = False

    def begin(self) -> bytes:
        return self._request

    def received(self, data: bytes) -> bytes:
        self._data += data
        if not self._data.startswith(b"HTTP/"[: len(self._data)]):
            raise ProxyRefused(f"it does not speak HTTP: it sent {_shown(self._data)}")
        head, end, rest = self._data.partition(b"\r\n\r\n")
        if not end:
            if self._interim + len(self._data) > _MOST:
                raise ProxyRefused(f"its answer is longer than {_MOST} bytes")
            return b""
        status, reason = _status(head)
        if 100 <= status < 200:  # an interim answer; the final one follows
            self._data = b""
            self._interim += len(head) + len(end)
            if self._interim > _MOST:
                raise ProxyRefused(f"its answer is longer than {_MOST} bytes")
            return self.received(rest) if rest else b""
        if status == 407:
            raise ProxyRefused(
                "it rejected the user name or password in proxy_url"
                if self._has_credentials
                else "it requires authentication; put user:password@ before its host in proxy_url"
            )
        if not 200 <= status < 300:
            raise ProxyRefused(f"it answered {status} {reason}".rstrip())
        if rest:
            raise ProxyRefused(_extra(rest))
        self.done = True
        return b""


def _status(head: bytes) -> tuple[int, str]:
    """Return the status of an HTTP answer, and its reason in printable characters."""
    line = head.partition(b"\r\n")[0]
    parts = line.split(None, 2)
    if len(parts) < 2 or len(parts[1]) != 3 or not parts[1].isdigit():
        raise ProxyRefused(f"its answer is not HTTP: {_shown(line)}")
    reason = parts[2].decode("latin-1") if len(parts) > 2 else ""
    return int(parts[1]), "".join(filter(str.isprintable, reason))[:80]


def _shown(data: bytes) -> str:
    """Return the beginning of *data*, printable."""
    return repr(data[:24])[1:] + ("..." if len(data) > 24 else "")


def _extra(data: bytes) -> str:
    return f"it sent {len(data)} bytes after its answer: {_shown(data)}"
