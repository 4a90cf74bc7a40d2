"""Java's trust stores and key stores: JKS, PKCS12 and PEM, recognized by their first bytes.

A store is read each time that a TLS context is made, so new connections use a renewed store, and no
pickle of a configuration contains its keys. PKCS12 requires the package ``cryptography``. No error
text contains a password.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Final, NamedTuple

from pykaproducer._config.jks import (
    MAGIC,
    KeyEntry,
    Store,
    StoreError,
    WrongKeyPasswordError,
    WrongPasswordError,
    read_jks,
)
from pykaproducer.errors import ConfigurationError

#: The first byte of PKCS12, which is DER, and the magic of JCEKS.
DER: Final = b"\x30"
JCEKS: Final = b"\xce\xce\xce\xce"
#: Characters of a path that an error shows.
_LONGEST: Final = 255

#: Alternative settings for the trusted certificates, and for the client's.
AUTHORITIES: Final = ("ssl_cafile", "ssl_ca_pem", "ssl_truststore_location")
CERTIFICATES: Final = ("ssl_certfile", "ssl_certificate_pem", "ssl_keystore_location")


def given_of(settings: object, names: tuple[str, ...]) -> str | None:
    """Return the first of *names* that is set, None if there is none."""
    return next((name for name in names if getattr(settings, name) is not None), None)


class StoreSettings(NamedTuple):
    """The settings of one store."""

    #: ``ssl_truststore`` or ``ssl_keystore``.
    name: str
    path: str
    #: The type that was given, which is compared with the file's.
    kind: str | None
    password: str | None
    key_password: str | None = None


def read_file(setting: str, path: str, limit: int | None = None) -> bytes:
    """Return the contents of a file, which has at most *limit* bytes. None is no limit.

    Raises:
        ConfigurationError: it cannot be read, or is larger.
    """
    # A text this long is rather the contents, which may be secret, than a path.
    given = repr(path) if len(path) <= _LONGEST else f"a path of {len(path)} characters"
    try:
        with open(path, "rb") as file:
            content = file.read(-1 if limit is None else limit + 1)
    except (OSError, ValueError) as error:
        why = f"cannot be read: {error.strerror if isinstance(error, OSError) else error}"
    else:
        if limit is None or len(content) <= limit:
            return content
        why = f"is larger than {limit} bytes"
    # Not while that error is handled, because it contains the path, and would be kept.
    raise ConfigurationError(f"setting {setting}: {given} {why}")


def is_pem(setting: str, path: str, kind: str | None) -> bool:
    """Return whether a store is PEM, according to its type, or else its contents.

    Raises:
        ConfigurationError: it cannot be read.
    """
    return kind == "PEM" or (kind is None and b"-----BEGIN " in read_file(setting, path))


def trusted_certificates(settings: StoreSettings) -> str:
    """Return the trusted certificates of a store as PEM, which are in order.

    Raises:
        ConfigurationError: it cannot be read, or has none.
    """
    store = _read(settings)
    # Java also trusts the certificates that belong to its keys.
    found = [*store.trusted, *(each for entry in store.keys for each in entry.chain)]
    if not found:
        why = "; set its password" if settings.password is None else ""
        raise ConfigurationError(
            f"setting {settings.name}_location: {settings.path!r} contains no certificate{why}"
        )
    return _pem("CERTIFICATE", found)


def certificate_and_key(settings: StoreSettings) -> str:
    """Return the certificate chain of a store's key, and the key itself, as PEM.

    Raises:
        ConfigurationError: it cannot be read, or does not have exactly one key.
    """
    location = f"{settings.name}_location"
    keys = _read(settings).keys
    if not keys and settings.password is None:
        raise ConfigurationError(
            f"setting {settings.name}_password: {location} requires it, to decrypt the key"
        )
    if len(keys) != 1:
        raise ConfigurationError(
            f"setting {location}: {settings.path!r} contains {len(keys) or 'no'} private keys; it "
            "must contain one"
        )
    entry = keys[0]
    return _pem("CERTIFICATE", entry.chain) + _pem("PRIVATE KEY", [entry.key])


def _read(settings: StoreSettings) -> Store:
    location, password = f"{settings.name}_location", f"{settings.name}_password"
    content = read_file(location, settings.path)
    try:
        if content.startswith(MAGIC):
            return read_jks(content, settings.password, settings.key_password)
        if content.startswith(DER):
            return _read_pkcs12(content, settings)
    except WrongPasswordError as error:
        of_key = isinstance(error, WrongKeyPasswordError) and settings.key_password is not None
        name = "ssl_password" if of_key else password
        if settings.password is None:
            text = f"setting {password}: {settings.path!r} requires it ({location})"
        else:
            text = f"setting {name}: it does not open {settings.path!r} ({location})"
        raise ConfigurationError(text) from None
    except StoreError as error:
        raise ConfigurationError(
            f"setting {location}: {settings.path!r} is malformed: {error}"
        ) from None
    kind = "is a JCEKS store; convert it with keytool -importkeystore to PKCS12"
    if not content.startswith(JCEKS):
        kind = "is neither a PKCS12 nor a JKS store"
        if b"-----BEGIN " in content:
            kind += f", but PEM; set {settings.name}_type=PEM"
    raise ConfigurationError(f"setting {location}: {settings.path!r} {kind}")


def _read_pkcs12(content: bytes, settings: StoreSettings) -> Store:
    try:
        from cryptography.hazmat.primitives.serialization import (
            Encoding,
            NoEncryption,
            PrivateFormat,
            pkcs12,
        )
    except ImportError as error:
        raise ConfigurationError(
            f"setting {settings.name}_location: PKCS12 needs the package cryptography ({error}): "
            "pip install 'pykaproducer[pkcs12]', or convert the store to PEM with openssl pkcs12"
        ) from None
    secret = None if settings.password is None else settings.password.encode()
    try:
        found = pkcs12.load_pkcs12(content, secret)
    except ValueError as error:
        # The only way to tell them apart: a wrong password has these texts in all versions.
        if "password" in str(error).lower():
            raise WrongPasswordError from None
        raise StoreError("it is not PKCS12") from None
    others = [each.certificate.public_bytes(Encoding.DER) for each in found.additional_certs]
    if found.key is None:
        mine = [] if found.cert is None else [found.cert.certificate.public_bytes(Encoding.DER)]
        return Store(trusted=[*mine, *others])
    if found.cert is None:
        raise StoreError("its private key has no certificate")
    key = found.key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
    chain = (found.cert.certificate.public_bytes(Encoding.DER), *others)
    return Store(keys=[KeyEntry(key, chain)])


def _pem(what: str, contents: Sequence[bytes]) -> str:
    """Return DER as PEM (RFC 7468)."""
    parts = []
    for each in contents:
        text = base64.b64encode(each).decode()
        lines = "\n".join(text[at : at + 64] for at in range(0, len(text), 64))
        parts.append(f"-----BEGIN {what}-----\n{lines}\n-----END {what}-----\n")
    return "".join(parts)
