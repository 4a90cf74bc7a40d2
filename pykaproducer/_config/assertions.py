"""Assertions: the signed JWTs with which a client proves who it is (RFC 7521, RFC 7523).

Keys are loaded, and a first assertion is signed, when the configuration is made, so that a wrong
key or passphrase fails immediately. Files are read again for each assertion, because another
program may renew them. No error text contains a key, a passphrase or an assertion.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from pykaproducer._config.key_store import read_file
from pykaproducer.errors import ConfigurationError

#: The maximum size of a file with an assertion, a template or a token (bytes).
_LARGEST: Final = 1 << 20
_P256_BYTES: Final = 32

_KEY_FILE: Final = "sasl_oauthbearer_assertion_private_key_file"
_KEY_PEM: Final = "sasl_oauthbearer_assertion_private_key_pem"
_PASSPHRASE: Final = "sasl_oauthbearer_assertion_private_key_passphrase"
_ALGORITHM: Final = "sasl_oauthbearer_assertion_algorithm"
_TEMPLATE: Final = "sasl_oauthbearer_assertion_template_file"
_FILE: Final = "sasl_oauthbearer_assertion_file"


class AssertionSettings(Protocol):
    """The settings of assertions."""

    @property
    def sasl_oauthbearer_token_endpoint_url(self) -> str | None: ...
    @property
    def sasl_oauthbearer_client_id(self) -> str | None: ...
    @property
    def sasl_oauthbearer_assertion_file(self) -> str | None: ...
    @property
    def sasl_oauthbearer_assertion_private_key_file(self) -> str | None: ...
    @property
    def sasl_oauthbearer_assertion_private_key_pem(self) -> str | None: ...
    @property
    def sasl_oauthbearer_assertion_private_key_passphrase(self) -> str | None: ...
    @property
    def sasl_oauthbearer_assertion_algorithm(self) -> str: ...
    @property
    def sasl_oauthbearer_assertion_template_file(self) -> str | None: ...
    @property
    def sasl_oauthbearer_assertion_claim_aud(self) -> str | None: ...
    @property
    def sasl_oauthbearer_assertion_claim_iss(self) -> str | None: ...
    @property
    def sasl_oauthbearer_assertion_claim_sub(self) -> str | None: ...
    @property
    def sasl_oauthbearer_assertion_claim_exp_seconds(self) -> int: ...
    @property
    def sasl_oauthbearer_assertion_claim_nbf_seconds(self) -> int: ...
    @property
    def sasl_oauthbearer_assertion_claim_jti_include(self) -> bool: ...


def assertion(settings: AssertionSettings, now: float, unique: str) -> str:
    """Return an assertion: the one in the file, or else one that is signed now.

    Args:
        settings: a configuration with a file or a private key.
        now (float): seconds since the epoch.
        unique (str): an id that no other assertion has.

    Raises:
        ConfigurationError: a file cannot be read, or the key cannot be used.
    """
    if settings.sasl_oauthbearer_assertion_file is not None:
        return read_token_file(_FILE, settings.sasl_oauthbearer_assertion_file)
    sign = _signer(settings)
    template = _template(settings)
    header = {"alg": settings.sasl_oauthbearer_assertion_algorithm, "typ": "JWT"}
    client = settings.sasl_oauthbearer_client_id
    claims = {
        "iss": settings.sasl_oauthbearer_assertion_claim_iss or client,
        "sub": settings.sasl_oauthbearer_assertion_claim_sub or client,
        "aud": settings.sasl_oauthbearer_assertion_claim_aud,
    }
    given = {name: value for name, value in claims.items() if value is not None}
    payload: dict[str, Any] = {
        "aud": settings.sasl_oauthbearer_token_endpoint_url,
        "iat": int(now),
        "exp": int(now) + settings.sasl_oauthbearer_assertion_claim_exp_seconds,
        "nbf": int(now) - settings.sasl_oauthbearer_assertion_claim_nbf_seconds,
        **template.get("payload", {}),
        **given,
    }
    if settings.sasl_oauthbearer_assertion_claim_jti_include:
        payload["jti"] = unique
    signed = f"{_encoded({**template.get('header', {}), **header})}.{_encoded(payload)}"
    try:
        return f"{signed}.{_base64url(sign(signed.encode()))}"
    except ValueError:  # an RSA key of a few hundred bits
        raise ConfigurationError(
            f"setting {_key_setting(settings)}: the key is too small to sign with"
        ) from None


def read_token_file(setting: str, path: str) -> str:
    """Return the token in a file, without white space around it.

    Raises:
        ConfigurationError: it cannot be read, or contains something else.
    """
    text = read_file(setting, path, _LARGEST).decode("latin-1").strip()
    if not text:
        raise ConfigurationError(f"setting {setting}: {path!r} is empty; it must contain a token")
    if not text.isascii() or not text.isprintable() or " " in text:
        raise ConfigurationError(f"setting {setting}: {path!r} contains no token")
    return text


def _template(settings: AssertionSettings) -> Mapping[str, Any]:
    path = settings.sasl_oauthbearer_assertion_template_file
    if path is None:
        return {}
    content, parts = read_file(_TEMPLATE, path, _LARGEST), ("header", "payload")
    why = "must be an object with header and payload only"
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):  # with the contents, which may be a key by mistake
        found, why = None, "is not JSON"
    if not isinstance(found, dict) or not set(found) <= set(parts):
        raise ConfigurationError(f"setting {_TEMPLATE}: {path!r} {why}")
    for name in parts:
        if not isinstance(found.get(name, {}), dict):
            raise ConfigurationError(f"setting {_TEMPLATE}: in {path!r} {name} is not an object")
    return found


def _signer(settings: AssertionSettings) -> Callable[[bytes], bytes]:
    """Return the function that signs with the private key."""
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa, utils
    except ImportError as error:
        raise ConfigurationError(
            f"setting {_key_setting(settings)}: signing needs the package cryptography ({error}): "
            "pip install 'pykaproducer[oauth]'"
        ) from None
    pem, name, where = _key_pem(settings)
    passphrase = settings.sasl_oauthbearer_assertion_private_key_passphrase
    secret = None if passphrase is None else passphrase.encode()
    try:
        key = serialization.load_pem_private_key(pem, secret)
    except TypeError:  # documented: a passphrase is missing, or there is one too many
        if secret is not None:
            raise ConfigurationError(
                f"setting {_PASSPHRASE}: the key{where} is not encrypted; remove the passphrase"
            ) from None
        raise ConfigurationError(
            f"setting {name}: the key{where} is encrypted; set {_PASSPHRASE}"
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        if secret is not None and b"ENCRYPTED" in pem:
            raise ConfigurationError(
                f"setting {_PASSPHRASE}: it does not decrypt the key{where} ({name})"
            ) from None
        raise ConfigurationError(f"setting {name}: the private key{where} is malformed") from None
    algorithm = settings.sasl_oauthbearer_assertion_algorithm
    if algorithm == "RS256" and isinstance(key, rsa.RSAPrivateKey):
        return lambda content: key.sign(content, padding.PKCS1v15(), hashes.SHA256())
    if (
        algorithm == "ES256"
        and isinstance(key, ec.EllipticCurvePrivateKey)
        and isinstance(key.curve, ec.SECP256R1)
    ):

        def sign(content: bytes) -> bytes:
            r, s = utils.decode_dss_signature(key.sign(content, ec.ECDSA(hashes.SHA256())))
            return r.to_bytes(_P256_BYTES, "big") + s.to_bytes(_P256_BYTES, "big")

        return sign
    needed = "an RSA key" if algorithm == "RS256" else "a key on the curve P-256"
    raise ConfigurationError(
        f"setting {name}: {_ALGORITHM} {algorithm!r} requires {needed}, which the key{where} is not"
    )


def _key_setting(settings: AssertionSettings) -> str:
    return _KEY_FILE if settings.sasl_oauthbearer_assertion_private_key_file else _KEY_PEM


def _key_pem(settings: AssertionSettings) -> tuple[bytes, str, str]:
    """Return the key in PEM format, its setting, and " in FILE" for errors."""
    path = settings.sasl_oauthbearer_assertion_private_key_file
    if path is None:
        text = settings.sasl_oauthbearer_assertion_private_key_pem or ""
        return text.encode(), _KEY_PEM, ""
    content = read_file(_KEY_FILE, path, _LARGEST)
    if b"PRIVATE KEY-----" not in content:
        raise ConfigurationError(
            f"setting {_KEY_FILE}: {path!r} contains no private key in PEM format"
        )
    return content, _KEY_FILE, f" in {path!r}"


def _encoded(content: Mapping[str, Any]) -> str:
    return _base64url(json.dumps(content, separators=(",", ":")).encode())


def _base64url(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()
