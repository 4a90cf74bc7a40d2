"""The settings of connections: their sockets, their time limits, and a proxy.

``proxy_url`` and the names of the setup timeouts are those of kafka-python 3. The module for the
settings of TLS and SASL is ``_config/security.py``.
"""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import SplitResult, unquote, urlsplit

from pykaproducer._config.schema import (
    BYTES,
    SOCKET_OPTIONS,
    Kind,
    SecretInValueError,
    milliseconds,
    optional,
    setting,
)
from pykaproducer.errors import ConfigurationError

#: Scheme -> the port of a URL without one.
_SCHEMES: Final = {"socks5": 1080, "socks5h": 1080, "http": 80}
#: A SOCKS5 user name or password has a length of one byte (RFC 1929).
_MOST_BYTES: Final = 255
_QUOTING: Final = "quote special characters of a password (/ is %2F, # is %23, ? is %3F)"


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy through which every connection is made. Its text has no password."""

    #: ``socks5``, ``socks5h`` (the proxy resolves the names of brokers) or ``http`` (CONNECT).
    scheme: str
    host: str
    port: int
    user: str | None = None
    password: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"

    @property
    def resolves(self) -> bool:
        """Whether the proxy looks up the names of brokers."""
        return self.scheme != "socks5"


def _parse_proxy(value: Any) -> Proxy:
    if isinstance(value, Proxy):
        return value
    if not isinstance(value, str):
        raise TypeError
    # No error may show a part of the URL: it may contain a password, also one that was not quoted.
    try:
        url = urlsplit(value.strip())
        port = url.port
    except ValueError:
        raise SecretInValueError(f"its host or port is malformed; {_QUOTING}") from None
    if url.scheme not in _SCHEMES:
        known = ", ".join(f"{scheme}://" for scheme in _SCHEMES)
        scheme = url.scheme if url.scheme.isalnum() and "://" in value else ""
        found = f"the scheme {scheme}:// is not supported" if scheme else "it has no scheme"
        raise SecretInValueError(f"{found}; choose one of {known}")
    host = url.hostname
    if not host or any(letter.isspace() or not letter.isprintable() for letter in host):
        raise SecretInValueError("it has no valid host name")
    if url.path not in ("", "/") or url.query or url.fragment:
        raise SecretInValueError(f"something follows the port; {_QUOTING}")
    user, password = _credentials(url)
    return Proxy(url.scheme, host, _SCHEMES[url.scheme] if port is None else port, user, password)


def _credentials(url: SplitResult) -> tuple[str | None, str | None]:
    if url.username is None:
        return None, None
    user, password = unquote(url.username), unquote(url.password or "")
    if not user:
        raise SecretInValueError("its user name is empty")
    size = _bytes_of(user, password)
    if size is None:
        raise SecretInValueError("its user name or password is not valid Unicode")
    if url.scheme == "http":
        if ":" in user:
            raise SecretInValueError("its user name contains a colon, which HTTP does not allow")
    elif not password:
        raise SecretInValueError("it has a user name without a password")
    elif size > _MOST_BYTES:
        raise SecretInValueError(
            f"its user name or password is longer than {_MOST_BYTES} bytes, the maximum of SOCKS5"
        )
    return user, password


def _bytes_of(*texts: str) -> int | None:
    """Return the size of the longest text, None if one cannot be encoded.

    The caller raises, because an error raised while the UnicodeEncodeError is handled would keep
    it, and with it the text.
    """
    try:
        return max(len(text.encode()) for text in texts)
    except UnicodeEncodeError:
        return None


PROXY: Final = Kind(
    "a URL socks5://host:port, socks5h://host:port or http://host:port, with user:password@ before "
    "the host if the proxy requires it",
    _parse_proxy,
    str,
)


# Its methods are made once, for Config, which has all fields.
@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class NetworkSettings:
    """The settings of connections."""

    socket_connection_setup_timeout_ms: float = setting(
        10_000,
        milliseconds(1),
        "How long setting up a connection may take: the addresses of the host, a proxy, TLS and "
        "the first request. Doubles with each failed attempt in a row for the host (with jitter), "
        "up to socket_connection_setup_timeout_max_ms. request_timeout_ms is a limit too.",
        unit="ms",
    )
    socket_connection_setup_timeout_max_ms: float = setting(
        30_000,
        milliseconds(1),
        "Maximum of that timeout. At least socket_connection_setup_timeout_ms.",
        unit="ms",
    )
    connections_max_idle_ms: float = setting(
        # Less than the four minutes of Azure, and the six minutes of AWS.
        180_000,
        milliseconds(-1),
        "Close a connection that has been unused for this long; the next message opens a new one. "
        "Less than the idle timeout of a NAT or load balancer that drops connections silently. "
        "0 or -1: never.",
        unit="ms",
    )
    connections_check_idle_ms: float = setting(
        5_000,
        milliseconds(0),
        "Before a connection is used again after this time, check it with an ApiVersions request. "
        "If the broker does not answer within 2 seconds, a new connection is opened, and nothing "
        "was written to the old one. 0: never check.",
        unit="ms",
    )
    tcp_user_timeout_ms: float = setting(
        10_000,
        milliseconds(0),
        "If the broker's host acknowledges nothing of what was sent for this long, the connection "
        "is considered lost (Linux). A broker that is slow is not affected, even if it reads "
        "nothing, because its host still acknowledges. 0: only request_timeout_ms counts.",
        unit="ms",
    )
    proxy_url: Proxy | None = setting(
        None,
        optional(PROXY, "None for direct connections"),
        "Proxy for all connections to brokers (not to a token endpoint): socks5://host:port, "
        "socks5h://host:port (the proxy looks up the names of brokers) or http://host:port "
        "(CONNECT; the proxy looks them up). With user:password@ before the host if the proxy "
        "requires it; special characters are quoted, as %40 for @.",
        secret=True,
    )
    socks5_proxy: Proxy | None = setting(
        None,
        optional(PROXY),
        "kafka-python's former name of proxy_url.",
        secret=True,
    )
    send_buffer_bytes: int | None = setting(
        None,
        BYTES,
        "The socket's send buffer size (SO_SNDBUF).",
        unit="bytes",
        aliases=("socket.send.buffer.bytes",),
    )
    receive_buffer_bytes: int | None = setting(
        None,
        BYTES,
        "The socket's receive buffer size (SO_RCVBUF).",
        unit="bytes",
        aliases=("socket.receive.buffer.bytes",),
    )
    socket_options: tuple[tuple[int, int, int], ...] = setting(
        ((socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),),
        SOCKET_OPTIONS,
        "Socket options for each connection, as arguments of socket.setsockopt().",
    )

    def choose_proxy(self) -> None:
        """Set ``proxy_url`` if it was given by its former name."""
        if self.socks5_proxy is None:
            return
        if self.proxy_url not in (None, self.socks5_proxy):
            raise ConfigurationError(
                "settings socks5_proxy and proxy_url have conflicting values; remove socks5_proxy"
            )
        object.__setattr__(self, "proxy_url", self.socks5_proxy)


#: The names of these settings.
NAMES: Final = frozenset(NetworkSettings.__dataclass_fields__)


def in_order(fields: Iterable[dataclasses.Field[Any]], last: frozenset[str]) -> list[Any]:
    """Return *fields* in the order of the settings table: these settings before those in *last*."""
    return sorted(fields, key=lambda each: (each.name in last, each.name in NAMES))
