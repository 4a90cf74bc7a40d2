"""Read Java's own keystore format, JKS.

keytool has written PKCS12 since Java 9, but older stores are common. The format, all integers
big-endian::

    magic FEEDFEED, version 1 or 2, number of entries
    for each entry: tag, alias, time in ms (8 bytes), and
        tag 1: a private key: length, EncryptedPrivateKeyInfo, number of certificates, certificates
        tag 2: a trusted certificate
    certificate: type (from version 2), length, DER
    digest: SHA-1 of the password in UTF-16, "Mighty Aphrodite" and everything above

Texts are 2 bytes of length and UTF-8. A private key is encrypted by XOR with a key stream: each
block is the SHA-1 of the password and the block before, beginning with a salt. The last 20 bytes
are the SHA-1 of the password and the key.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from typing import Final

MAGIC: Final = b"\xfe\xed\xfe\xed"
#: Sun's key protector, the only one of JKS, as a DER object identifier (1.3.6.1.4.1.42.2.17.1.1).
_PROTECTOR: Final = bytes.fromhex("060a2b060104012a02110101")
_DIGEST_BYTES: Final = 20
_PRIVATE_KEY, _TRUSTED = 1, 2


class StoreError(Exception):
    """The store cannot be read; the text says why. It contains no secrets."""


class WrongPasswordError(StoreError):
    """The password of the store is wrong."""


class WrongKeyPasswordError(WrongPasswordError):
    """The password of the store is right, and that of its key is wrong."""


@dataclass(frozen=True)
class KeyEntry:
    """A private key in PKCS #8, and its certificates, the first of which is the client's."""

    key: bytes = field(repr=False)
    chain: tuple[bytes, ...]


@dataclass
class Store:
    """The contents of a store, in DER."""

    keys: list[KeyEntry] = field(default_factory=list)
    trusted: list[bytes] = field(default_factory=list)


def read_jks(content: bytes, password: str | None, key_password: str | None) -> Store:
    """Read a store.

    Args:
        content: the file.
        password (str): without it the integrity is not checked, as in Java, and keys are skipped.
        key_password (str): of the keys; None is the password of the store.

    Raises:
        StoreError: it is malformed, or a password is wrong.
    """
    if len(content) < len(MAGIC) + 8 + _DIGEST_BYTES:
        raise StoreError("it is too short")
    if password is not None:
        signed = password.encode("utf-16-be") + b"Mighty Aphrodite" + content[:-_DIGEST_BYTES]
        if not hmac.compare_digest(hashlib.sha1(signed).digest(), content[-_DIGEST_BYTES:]):
            raise WrongPasswordError
    reader = _StoreReader(content[len(MAGIC) : -_DIGEST_BYTES])
    version = reader.number(4)
    if version not in (1, 2):
        raise StoreError(f"its version is {version}, not 1 or 2")
    found = Store()
    for _ in range(reader.number(4)):
        tag = reader.number(4)
        reader.text()
        reader.take(8)
        if tag == _PRIVATE_KEY:
            encrypted = reader.take(reader.number(4))
            chain = tuple(reader.certificate(version) for _ in range(reader.number(4)))
            secret = password if key_password is None else key_password
            if secret is not None:
                found.keys.append(KeyEntry(_decrypted(encrypted, secret), chain))
        elif tag == _TRUSTED:
            found.trusted.append(reader.certificate(version))
        else:
            raise StoreError(f"it has an entry of the unknown type {tag}")
    return found


class _StoreReader:
    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    def take(self, size: int) -> bytes:
        found = self._content[self._at : self._at + size]
        if len(found) < size:
            raise StoreError("it ends too early")
        self._at += size
        return found

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def text(self) -> bytes:
        return self.take(self.number(2))

    def certificate(self, version: int) -> bytes:
        kind = self.text() if version == 2 else b"X.509"
        if kind != b"X.509":
            raise StoreError("it has a certificate that is not X.509")
        return self.take(self.number(4))


def _decrypted(info: bytes, password: str) -> bytes:
    """Return the PKCS #8 key in an EncryptedPrivateKeyInfo: algorithm, then an octet string."""
    body = _der(info, 0x30)[0]
    algorithm, rest = _der(body, 0x30)
    if not algorithm.startswith(_PROTECTOR):
        raise StoreError("its key is protected in an unknown way")
    protected = _der(rest, 0x04)[0]
    if len(protected) < 2 * _DIGEST_BYTES:
        raise StoreError("its key is too short")
    secret = password.encode("utf-16-be")
    block = protected[:_DIGEST_BYTES]
    encrypted = protected[_DIGEST_BYTES:-_DIGEST_BYTES]
    stream = bytearray()
    while len(stream) < len(encrypted):
        block = hashlib.sha1(secret + block).digest()
        stream += block
    key = bytes(a ^ b for a, b in zip(encrypted, stream, strict=False))
    if not hmac.compare_digest(hashlib.sha1(secret + key).digest(), protected[-_DIGEST_BYTES:]):
        raise WrongKeyPasswordError
    return key


def _der(content: bytes, tag: int) -> tuple[bytes, bytes]:
    """Return the contents of the first element, which has *tag*, and what follows it."""
    if len(content) < 2 or content[0] != tag:
        raise StoreError("its key is malformed")
    size, start = content[1], 2
    if size & 0x80:
        start += size & 0x7F
        size = int.from_bytes(content[2:start], "big")
    if len(content) < start + size:
        raise StoreError("its key is malformed")
    return content[start : start + size], content[start + size :]
