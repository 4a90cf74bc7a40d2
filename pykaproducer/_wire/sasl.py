"""SaslHandshake and SaslAuthenticate (KIP-43, KIP-152, KIP-368).

A payload is the part of a response after the correlation id. A malformed payload raises a
:class:`WireError`.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from pykaproducer._wire import WireError
from pykaproducer._wire.reader import Reader
from pykaproducer._wire.writer import RequestWriter

if TYPE_CHECKING:
    from typing_extensions import Buffer

#: API keys, and the versions supported by this package.
SASL_HANDSHAKE: Final = 17
SASL_AUTHENTICATE: Final = 36
HANDSHAKE_VERSIONS: Final = (0, 1)
AUTHENTICATE_VERSIONS: Final = (0, 2)

#: The most mechanisms that a broker may list. Fewer than 10 are in use.
_MOST_MECHANISMS: Final = 100


class HandshakeAnswer(NamedTuple):
    """The response to SaslHandshake: an error code and the enabled mechanisms."""

    error_code: int
    mechanisms: tuple[str, ...]


class AuthenticateAnswer(NamedTuple):
    """The response to SaslAuthenticate: the broker's part of the exchange."""

    error_code: int
    message: str | None
    token: bytes
    #: Lifetime of the session; 0 means as long as the connection.
    lifetime_ms: int


def handshake_request(
    version: int, correlation_id: int, client_id: str | None, mechanism: str
) -> bytes:
    """Encode a framed SaslHandshake request."""
    out = RequestWriter(SASL_HANDSHAKE, version, correlation_id, client_id, flexible=False)
    out.string(mechanism)
    return out.frame()


def decode_handshake(payload: Buffer) -> HandshakeAnswer:
    """Decode a SaslHandshake response of any version."""
    reader = Reader(payload, flexible=False)
    (error_code,) = reader.fields(_int16)
    names = [reader.text() for _ in range(reader.array(_MOST_MECHANISMS))]
    return HandshakeAnswer(error_code, tuple(name for name in names if name))


def authenticate_request(
    version: int, correlation_id: int, client_id: str | None, token: bytes
) -> bytes:
    """Encode a framed SaslAuthenticate request."""
    out = RequestWriter(
        SASL_AUTHENTICATE, version, correlation_id, client_id, flexible=version >= 2
    )
    out.blob(token)
    out.no_tags()
    return out.frame()


def decode_authenticate(version: int, payload: Buffer) -> AuthenticateAnswer:
    """Decode a SaslAuthenticate response."""
    reader = Reader(payload, flexible=version >= 2)
    reader.skip_tags()  # the header's
    (error_code,) = reader.fields(_int16)
    message = reader.text()
    token = reader.blob()
    (lifetime_ms,) = reader.fields(_int64) if version >= 1 else (0,)
    reader.skip_tags()
    if lifetime_ms < 0:
        raise WireError(f"a session has a lifetime of {lifetime_ms} ms")
    return AuthenticateAnswer(error_code, message, token, lifetime_ms)


_int16 = struct.Struct(">h")
_int64 = struct.Struct(">q")
