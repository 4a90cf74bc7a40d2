"""SASL on one connection: who says what, and what a refusal means.

Pure: payloads come in, what to send goes out; a token provider is called from here, because what
is said depends on it, but the thread that it may hold up is the caller's.

::

    begin ──SaslHandshake──▶ handshaken ──SaslAuthenticate──▶ exchanging ──▶ Authenticated
                                                                ▲    │ as often as the
                                                                └────┘ mechanism needs

A broker before Kafka 1.0 knows no SaslAuthenticate: the tokens then go as bare frames.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from pykaproducer._texts import code_text
from pykaproducer._wire import sasl
from pykaproducer._wire.error_codes import ErrorCode
from pykaproducer._wire.mechanisms import Mechanism, MechanismError

T = TypeVar("T")

#: Mechanisms whose last word is the broker's, also in bare frames.
_BARE: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
#: No mechanism takes more turns; a broker that wants more is up to no good.
_MOST_TURNS: Final = 16


class AuthenticationFailed(Exception):
    """The broker does not take us for who we say we are, or we do not take it for itself.

    The text says why; it has no secret.
    """


@dataclass(frozen=True, slots=True)
class Say:
    """Send this."""

    #: correlation id -> the frame.
    encode: Callable[[int], bytes]
    #: Neither the frame nor the answer to it has a header.
    bare: bool = False


@dataclass(frozen=True, slots=True)
class Authenticated:
    """It is done."""

    #: How long it is good for; 0: for as long as the connection stands.
    lifetime_ms: int


@dataclass(frozen=True, slots=True)
class Credentials:
    """Who we are, for one connection; an exchange is made from it for each authentication."""

    #: ``sasl_mechanism``.
    mechanism: str
    make: Callable[[], Mechanism]
    #: ``security_protocol``, for errors.
    protocol: str
    #: The user name, for errors; None: it has none that we know.
    user: str | None = None


class Authentication:
    """One authentication, from the handshake to its end. Made anew for each."""

    def __init__(self, credentials: Credentials, client_id: str | None) -> None:
        self._credentials = credentials
        self._client_id = client_id
        self._mechanism: Mechanism | None = None
        # The version of SaslAuthenticate; None: bare frames.
        self._version: int | None = None
        self._turns = 0

    def begin(self, ranges: Mapping[int, tuple[int, int]]) -> Say:
        """What to send first to a broker that takes requests in these versions."""
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
        return Say(lambda number: sasl.handshake_request(version, number, self._client_id, name))

    def answered(self, payload: bytes) -> Say | Authenticated:
        """The broker has answered to what was sent last."""
        if self._mechanism is None:
            return self._handshaken(sasl.decode_handshake(payload))
        if self._version is None:
            return self._go_on(payload, 0)
        answer = sasl.decode_authenticate(self._version, payload)
        if answer.error_code:
            raise self._failed(answer.message or code_text(answer.error_code))
        return self._go_on(answer.token, answer.lifetime_ms)

    def _handshaken(self, answer: sasl.HandshakeAnswer) -> Say | Authenticated:
        name = self._credentials.mechanism
        if answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
            there = ", ".join(answer.mechanisms) or "none"
            raise self._failed(f"the broker has not enabled {name}; it has: {there}")
        if answer.error_code == ErrorCode.ILLEGAL_SASL_STATE:
            raise self._failed(
                f"this listener does not ask for SASL; is security_protocol "
                f"{self._credentials.protocol!r} right?"
            )
        if answer.error_code:
            raise self._failed(code_text(answer.error_code))
        if self._version is None and name not in _BARE:
            raise self._failed(f"the broker is too old for {name}")
        made = self._mechanism = self._ask(self._credentials.make)
        return self._say(self._ask(made.first))

    def _go_on(self, challenge: bytes, lifetime_ms: int) -> Say | Authenticated:
        assert self._mechanism is not None
        self._turns += 1
        if self._turns > _MOST_TURNS:
            raise self._failed("the broker's questions do not end")
        mechanism = self._mechanism
        token = self._ask(lambda: mechanism.respond(challenge))
        return Authenticated(lifetime_ms) if token is None else self._say(token)

    def _say(self, token: bytes) -> Say:
        version = self._version
        if version is None:
            return Say(lambda _: len(token).to_bytes(4, "big") + token, bare=True)
        return Say(
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
    """The last version that both sides speak."""
    if theirs is None or max(ours[0], theirs[0]) > min(ours[1], theirs[1]):
        return None
    return min(ours[1], theirs[1])
