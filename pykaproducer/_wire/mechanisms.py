"""What client and broker say to each other in each SASL mechanism.

PLAIN (RFC 4616), SCRAM (RFC 5802 and 7677) and OAUTHBEARER (RFC 7628) are written here;
kafka-python's GSSAPI and AWS_MSK_IAM are used as they are. A mechanism is made anew for every
authentication. What goes wrong in one is a :class:`MechanismError`, whose text has no secret.
:class:`Borrowed` and a token provider are somebody else's code, which may raise anything: it is
made a MechanismError here.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import hmac
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Protocol

from kafka.net.sasl import get_sasl_mechanism

#: What a broker may ask for: fewer is what an attacker in its place would ask for (and RFC 7677
#: forbids), more would keep us busy.
_ITERATIONS: Final = range(4096, 1_000_001)

#: The hash of each SCRAM mechanism.
SCRAM_HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}


class MechanismError(Exception):
    """The exchange cannot go on; the text says why."""


class Mechanism(Protocol):
    """One exchange, seen from the client."""

    def first(self) -> bytes:
        """What the client says first."""

    def respond(self, challenge: bytes) -> bytes | None:
        """What the client says to *challenge*; None: it is content with it, that was the last."""


class Plain:
    """User name and password as they are."""

    def __init__(self, username: str, password: str) -> None:
        self._token = f"\0{username}\0{password}".encode()

    def first(self) -> bytes:
        return self._token

    def respond(self, challenge: bytes) -> bytes | None:
        return None


class Scram:
    """Both sides show that they know the password, and neither says it.

    *nonce*: printable ASCII without commas that nobody can guess.
    """

    def __init__(self, name: str, username: str, password: str, nonce: str) -> None:
        self._hash = SCRAM_HASHES[name]
        self._nonce = nonce
        # RFC 5802 wants both prepared (RFC 4013) first; Kafka takes them as they are.
        self._password = password.encode()
        user = username.replace("=", "=3D").replace(",", "=2C")
        self._bare = f"n={user},r={nonce}"
        self._signature: bytes | None = None

    def first(self) -> bytes:
        return f"n,,{self._bare}".encode()

    def respond(self, challenge: bytes) -> bytes | None:
        fields = _scram_fields(challenge)
        if self._signature is None:
            return self._prove(challenge.decode(), fields)
        if "e" in fields:
            raise MechanismError(f"the broker says {fields['e']}")
        if not hmac.compare_digest(_decoded(fields.get("v", "")), self._signature):
            raise MechanismError("the broker does not know the password: it may be another's")
        return None

    def _prove(self, server_first: str, fields: Mapping[str, str]) -> bytes:
        nonce, salt = fields.get("r", ""), _decoded(fields.get("s", ""))
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):
            raise MechanismError("the broker answered to somebody else's nonce")
        if not salt:
            raise MechanismError("the broker's answer is not SCRAM")
        iterations = fields.get("i", "")
        is_number = iterations.isascii() and iterations.isdigit() and len(iterations) < 10
        if not is_number or int(iterations) not in _ITERATIONS:
            raise MechanismError(
                f"the broker asks for {iterations[:20]!r} iterations; allowed: "
                f"{_ITERATIONS.start} to {_ITERATIONS.stop - 1}"
            )
        salted = hashlib.pbkdf2_hmac(self._hash, self._password, salt, int(iterations))
        client_key = self._hmac(salted, b"Client Key")
        without_proof = f"c=biws,r={nonce}"
        signed = f"{self._bare},{server_first},{without_proof}".encode()
        client_signature = self._hmac(hashlib.new(self._hash, client_key).digest(), signed)
        self._signature = self._hmac(self._hmac(salted, b"Server Key"), signed)
        proof = bytes(a ^ b for a, b in zip(client_key, client_signature, strict=True))
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def _hmac(self, key: bytes, text: bytes) -> bytes:
        return hmac.digest(key, text, self._hash)


def _scram_fields(message: bytes) -> dict[str, str]:
    try:
        pairs = [field.split("=", 1) for field in message.decode().split(",")]
        return {name: value for name, value in pairs}  # noqa: C416 - it checks their number
    except ValueError:  # UnicodeDecodeError is one
        raise MechanismError("the broker's answer is not SCRAM") from None


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise MechanismError("the broker's answer is not SCRAM") from None


class OAuthBearer:
    """A token that the user's provider has got from somewhere."""

    def __init__(self, provider: Any) -> None:
        self._provider = provider

    def first(self) -> bytes:
        token = _provided(getattr(self._provider, "token", self._provider))
        if not isinstance(token, str) or not token or "\1" in token:
            what = type(token).__name__ if not isinstance(token, str) else "a text that is no token"
            raise MechanismError(f"sasl_oauth_token_provider returned {what}, not a token as str")
        more = ""
        extensions = getattr(self._provider, "extensions", None)
        if extensions is not None:
            more = "".join(f"{name}={value}\1" for name, value in _extensions(extensions).items())
        return f"n,,\1auth=Bearer {token}\1{more}\1".encode()

    def respond(self, challenge: bytes) -> bytes | None:
        # With a challenge the broker refuses; it does so for good once that has been noticed.
        return b"\1" if challenge else None


def _provided(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except BaseException as error:
        # The user's: it is told as it is, and asked again. Also asyncio.CancelledError, SystemExit:
        # in a stage's thread they would break the producer.
        raise MechanismError(f"sasl_oauth_token_provider raised {_named(error)}") from error


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")


def _extensions(ask: Callable[[], Any]) -> Mapping[str, Any]:
    found = _provided(ask)
    if not isinstance(found, Mapping | None):
        raise MechanismError(
            f"extensions() of sasl_oauth_token_provider returned {type(found).__name__}, no dict"
        )
    return found or {}


class Borrowed:
    """A mechanism of kafka-python: GSSAPI, AWS_MSK_IAM. *settings* as it knows them."""

    def __init__(self, name: str, settings: Mapping[str, Any]) -> None:
        with _mapped():
            self._mechanism = get_sasl_mechanism(name)(**settings)

    def first(self) -> bytes:
        with _mapped():
            return bytes(self._mechanism.auth_bytes())

    def respond(self, challenge: bytes) -> bytes | None:
        with _mapped():
            self._mechanism.receive(challenge)
            if not self._mechanism.is_done():
                return bytes(self._mechanism.auth_bytes())
            confirmed = self._mechanism.is_authenticated()
        if not confirmed:
            raise MechanismError("the broker did not confirm it")
        return None


@contextlib.contextmanager
def _mapped() -> Iterator[None]:
    try:
        yield
    except Exception as error:  # of kafka-python, and of the Kerberos and AWS that it stands on
        raise MechanismError(_named(error)) from error
