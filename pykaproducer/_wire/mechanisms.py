"""The SASL mechanisms: the tokens exchanged between client and broker.

PLAIN (RFC 4616), SCRAM (RFC 5802 and 7677) and OAUTHBEARER (RFC 7628) are implemented here, GSSAPI
in ``kerberos`` and AWS_MSK_IAM in ``msk_iam``. Every authentication uses a new
mechanism object. A failure raises a :class:`MechanismError`, whose text contains no secret. A token
provider may raise any exception, which is converted to a MechanismError.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import hmac
from collections.abc import Callable, Mapping
from typing import Any, Final

from pykaproducer._errors.formatting import without_secrets
from pykaproducer._wire.mechanism import MechanismError
from pykaproducer._wire.token_bearer import client_response

#: Accepted numbers of SCRAM iterations. An attacker might request fewer (RFC 7677 requires 4096),
#: and each takes this client up to 1 µs of CPU. Kafka sets up at most 16384.
_ITERATIONS: Final = range(4096, 131_073)

#: The most fields of a SCRAM message that are read. They have 3, and extensions.
_MOST_FIELDS: Final = 100

#: The hash of each SCRAM mechanism.
SCRAM_HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}


class Plain:
    """User name and password in clear text."""

    def __init__(self, username: str, password: str) -> None:
        self.secrets = (password,)
        self._token = f"\0{username}\0{password}".encode()

    def first(self) -> bytes:
        return self._token

    def respond(self, challenge: bytes) -> bytes | None:
        return None


class Scram:
    """Both sides prove that they know the password, without sending it.

    *nonce*: unpredictable printable ASCII without commas.
    """

    def __init__(self, name: str, username: str, password: str, nonce: str) -> None:
        self.secrets = (password,)
        self._hash = SCRAM_HASHES[name]
        self._nonce = nonce
        # RFC 5802 requires both to be prepared with SASLprep (RFC 4013). Kafka does not do that.
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
            text = without_secrets(fields["e"], self.secrets)
            raise MechanismError(f"the broker reported {text}")
        if not hmac.compare_digest(_decoded(fields.get("v", "")), self._signature):
            raise MechanismError(
                "the broker did not prove that it knows the password; it may be an impostor"
            )
        return None

    def _prove(self, server_first: str, fields: Mapping[str, str]) -> bytes:
        nonce, salt = fields.get("r", ""), _decoded(fields.get("s", ""))
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):
            raise MechanismError("the broker answered with a wrong nonce")
        if not salt:
            raise MechanismError("the broker's response is not valid SCRAM")
        iterations = fields.get("i", "")
        is_number = iterations.isascii() and iterations.isdigit() and len(iterations) < 10
        if not is_number or int(iterations) not in _ITERATIONS:
            raise MechanismError(
                f"the broker requested {iterations[:20]!r} iterations; allowed: "
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
        pairs = [field.split("=", 1) for field in message.decode().split(",", _MOST_FIELDS)]
        return {name: value for name, value in pairs}  # noqa: C416 - it checks their number
    except ValueError:  # UnicodeDecodeError is one
        raise MechanismError("the broker's response is not valid SCRAM") from None


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise MechanismError("the broker's response is not valid SCRAM") from None


class OAuthBearer:
    """A token from the user's token provider."""

    def __init__(self, provider: Any) -> None:
        self.secrets: tuple[str, ...] = ()
        self._provider = provider

    def first(self) -> bytes:
        token = _provided(getattr(self._provider, "token", self._provider))
        if not isinstance(token, str) or not token or "\1" in token:
            what = type(token).__name__ if not isinstance(token, str) else "an invalid str"
            raise MechanismError(f"sasl_oauth_token_provider returned {what}, not a token as str")
        self.secrets = (token,)
        extensions = getattr(self._provider, "extensions", None)
        given = {} if extensions is None else _extensions(extensions)
        with contextlib.suppress(UnicodeEncodeError):
            return client_response(token, (f"{name}={value}" for name, value in given.items()))
        # Not while that error is handled, because it contains the token.
        raise MechanismError(
            "sasl_oauth_token_provider returned a token or extensions that are not valid Unicode"
        )

    def respond(self, challenge: bytes) -> bytes | None:
        # A challenge is a rejection, which the broker completes once the client acknowledges it.
        return b"\1" if challenge else None


def _provided(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except BaseException as error:
        # An error of the user's code is reported as it is, and the provider is called again later.
        # BaseException, because asyncio.CancelledError or SystemExit would break the producer in
        # one of its threads.
        raise MechanismError(f"sasl_oauth_token_provider raised {named(error)}") from error


def named(error: BaseException) -> str:
    """Return the type and the text of *error*."""
    return f"{type(error).__name__}: {error}".rstrip(": ")


def _extensions(ask: Callable[[], Any]) -> Mapping[str, Any]:
    found = _provided(ask)
    if not isinstance(found, Mapping | None):
        raise MechanismError(
            f"extensions() of sasl_oauth_token_provider returned {type(found).__name__}, not a dict"
        )
    return found or {}
