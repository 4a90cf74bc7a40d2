"""Private keys for tests, made once, because an RSA key takes a while."""

from __future__ import annotations

import functools
from typing import Any


@functools.cache
def rsa_key() -> Any:
    """Return an RSA key."""
    from cryptography.hazmat.primitives.asymmetric import rsa

    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


@functools.cache
def ec_key() -> Any:
    """Return a key on the curve P-256."""
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def pem_of(key: Any, password: str | None = None) -> bytes:
    """Return a key in PKCS #8, encrypted if there is a password."""
    from cryptography.hazmat.primitives import serialization

    secret: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if password is not None:
        secret = serialization.BestAvailableEncryption(password.encode())
    pkcs8 = serialization.PrivateFormat.PKCS8
    return bytes(key.private_bytes(serialization.Encoding.PEM, pkcs8, secret))


def public_pem(key: Any) -> str:
    """Return the public key."""
    from cryptography.hazmat.primitives import serialization

    kind = serialization.PublicFormat.SubjectPublicKeyInfo
    text = key.public_key().public_bytes(serialization.Encoding.PEM, kind)
    return str(text.decode())


def decrypted(pem: str, password: str) -> str:
    """Return an encrypted key without its password."""
    from cryptography.hazmat.primitives import serialization

    return pem_of(serialization.load_pem_private_key(pem.encode(), password.encode())).decode()
