"""SASL authentication on one connection.

The machine is pure: it takes payloads and returns requests to send. A token provider is called from
here, because a request depends on its result, and may block the calling thread.

::

    begin ──SaslHandshake──▶ handshaken ──SaslAuthenticate──▶ exchanging ──▶ Authenticated
                                                                ▲    │ as often as the
                                                                └────┘ mechanism needs

Brokers before Kafka 1.0 have no SaslAuthenticate: the tokens are then sent as raw frames.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, TypeVar

from pykaproducer._errors.codes import ErrorCode
from pykaproducer._errors.formatting import format_error_code, one_line, without_secrets
from pykaproducer._wire import sasl
from pykaproducer._wire.mechanism import Mechanism, MechanismError

T = TypeVar("T")

#: Mechanisms in which the broker sends the last message, also in raw frames.
_RAW: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
#: Maximum number of round trips. No mechanism needs that many; a broker might never stop.
_MOST_TURNS: Final = 16


class AuthenticationFailed(Exception):
    """The broker rejected the credentials, or failed to prove its own identity.

    The text gives the reason. It contains no secrets.
    """


class SaslRequest(NamedTuple):
    """A request to send."""

    #: correlation id -> the frame.
    encode: Callable[[int], bytes]
    #: Neither the frame nor its response has a header.
    raw: bool = False


class Authenticated(NamedTuple):
    """The end of a successful authentication."""

    #: How long the authentication is valid; 0: as long as the connection exists.
    lifetime_ms: int


class Credentials(NamedTuple):
    """The credentials for one connection; each authentication makes a new exchange from them."""

    #: ``sasl_mechanism``.
    mechanism: str
    #: Returns a new exchange of the mechanism.
    make: Callable[[], Mechanism]
    #: ``security_protocol``, for errors.
    protocol: str
    #: The user name, for errors; None: there is none, or it is unknown.
    user: str | None = None


class Authentication:
    """A single authentication, beginning with the handshake."""

    def __init__(self, credentials: Credentials, client_id: str | None) -> None:
        self._credentials = credentials
        self._client_id = client_id
        self._mechanism: Mechanism | None = None
        # The version of SaslAuthenticate; None: raw frames.
        self._version: int | None = None
        self._turns = 0

    def begin(self, ranges: Mapping[int, tuple[int, int]]) -> SaslRequest:
        """Return the first request to a broker; *ranges* has the versions that it supports."""
        handshake = _common(sasl.HANDSHAKE_VERSIONS, ranges.get(sasl.SASL_HANDSHAKE))
        if handshake is None:
            raise self._failed(
                f"the broker does not take SASL at all; is security_protocol "
                f"{self._credentials.protocol!r} right?"
            )
        if handshake > 0:
            self._version = _common(sasl.AUTHENTICATE_VERSIONS, ranges.get(sasl.SASL_AUTHENTICATE))
        version = 0 if self._version is None else handshake
        name = self._credentials.mechanism
        return SaslRequest(
            lambda number: sasl.handshake_request(version, number, self._client_id, name)
        )

    def answered(self, payload: bytes) -> SaslRequest | Authenticated:
        """Handle the response to the last request; return the next request, or the end."""
        if self._mechanism is None:
            return self._handshaken(sasl.decode_handshake(payload))
        if self._version is None:
            return self._go_on(payload, 0)
        answer = sasl.decode_authenticate(self._version, payload)
        if answer.error_code:
            text = without_secrets(answer.message or "", self._mechanism.secrets)
            raise self._failed(text or format_error_code(answer.error_code))
        return self._go_on(answer.token, answer.lifetime_ms)

    def _handshaken(self, answer: sasl.HandshakeAnswer) -> SaslRequest | Authenticated:
        name = self._credentials.mechanism
        if answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
            there = one_line(", ".join(answer.mechanisms)) or "none"
            raise self._failed(f"the broker has not enabled {name}; it has: {there}")
        if answer.error_code == ErrorCode.ILLEGAL_SASL_STATE:
            raise self._failed(
                f"this listener does not ask for SASL; is security_protocol "
                f"{self._credentials.protocol!r} right?"
            )
        if answer.error_code:
            raise self._failed(format_error_code(answer.error_code))
        if self._version is None and name not in _RAW:
            raise self._failed(f"the broker is too old for {name}")
        made = self._mechanism = self._ask(self._credentials.make)
        return self._say(self._ask(made.first))

    def _go_on(self, challenge: bytes, lifetime_ms: int) -> SaslRequest | Authenticated:
        assert self._mechanism is not None
        self._turns += 1
        if self._turns > _MOST_TURNS:
            raise self._failed("too many SASL round trips")
        mechanism = self._mechanism
        token = self._ask(lambda: mechanism.respond(challenge))
        return Authenticated(lifetime_ms) if token is None else self._say(token)

    def _say(self, token: bytes) -> SaslRequest:
        version = self._version
        if version is None:
            return SaslRequest(lambda _: len(token).to_bytes(4, "big") + token, raw=True)
        return SaslRequest(
            lambda number: sasl.authenticate_request(version, number, self._client_id, token)
        )

    def _ask(self, what: Callable[[], T]) -> T:
        try:
            return what()
        except MechanismError as error:
            raise self._failed(str(error)) from error

    def _failed(self, why: str) -> AuthenticationFailed:
        mine = self._credentials
        user = "" if mine.user is None else f" for user {mine.user!r}"
        return AuthenticationFailed(f"authentication failed{user} with {mine.mechanism}: {why}")


def _common(ours: tuple[int, int], theirs: tuple[int, int] | None) -> int | None:
    """Return the highest version that both sides support, None if there is none."""
    if theirs is None or max(ours[0], theirs[0]) > min(ours[1], theirs[1]):
        return None
    return min(ours[1], theirs[1])
