"""The TLS context for the ``ssl_*`` settings.

It only reads files, so that creating a producer with a missing or malformed file fails immediately
with the setting and the file. No error text contains a password.
"""

from __future__ import annotations

import os
import ssl
from typing import Final, Protocol

from pykaproducer.errors import ConfigurationError

_CERTIFICATE: Final = b"-----BEGIN CERTIFICATE-----"
_TRUSTED_CERTIFICATE: Final = b"-----BEGIN TRUSTED CERTIFICATE-----"
_KEY: Final = b"PRIVATE KEY-----"
_CRL: Final = b"-----BEGIN X509 CRL-----"
#: The first bytes of a Java keystore, and of binary encodings: PKCS12, DER.
_JKS: Final = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")
_DER: Final = b"\x30"


class TlsSettings(Protocol):
    """The settings that concern TLS."""

    @property
    def ssl_context(self) -> ssl.SSLContext | None: ...
    @property
    def ssl_check_hostname(self) -> bool: ...
    @property
    def ssl_cafile(self) -> str | None: ...
    @property
    def ssl_certfile(self) -> str | None: ...
    @property
    def ssl_keyfile(self) -> str | None: ...
    @property
    def ssl_password(self) -> str | None: ...
    @property
    def ssl_crlfile(self) -> str | None: ...
    @property
    def ssl_ciphers(self) -> str | None: ...


def tls_context(settings: TlsSettings, *, to_check: bool = False) -> ssl.SSLContext:
    """Return a context for *settings*, which is the user's if they have one.

    With *to_check*, the system's authorities are not loaded: that takes OpenSSL a while, and their
    files are not the user's.

    Raises:
        ConfigurationError: a file cannot be read or has the wrong content.
    """
    if settings.ssl_context is not None:
        _check_client(settings.ssl_context)
        return settings.ssl_context
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # A broker never needs renegotiation, which would let an attacker cause load.
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.check_hostname = settings.ssl_check_hostname
    if settings.ssl_cafile is not None:
        _load_authorities(context, settings.ssl_cafile)
    elif not to_check:
        context.load_default_certs()
    _load_certificate(context, settings)
    _load_revocations(context, settings)
    if settings.ssl_ciphers is not None:
        try:
            context.set_ciphers(settings.ssl_ciphers)
        except ssl.SSLError:
            raise ConfigurationError(
                f"setting ssl_ciphers: {settings.ssl_ciphers!r} selects no cipher that this "
                "OpenSSL supports; allowed: a list as for 'openssl ciphers' (those of TLS 1.3 are "
                "always enabled)"
            ) from None
    return context


def _check_client(context: ssl.SSLContext) -> None:
    try:
        context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname="localhost")
    except (ssl.SSLError, ValueError) as error:
        raise ConfigurationError(
            f"setting ssl_context: it cannot be used by a client: {error}; create it with "
            "ssl.create_default_context()"
        ) from None


def _load_authorities(context: ssl.SSLContext, path: str) -> None:
    if os.path.isdir(path):
        context.load_verify_locations(capath=path)
        return
    _check_pem("ssl_cafile", path, "certificate", _CERTIFICATE, _TRUSTED_CERTIFICATE)
    _load_file(context, "ssl_cafile", path)


def _load_revocations(context: ssl.SSLContext, settings: TlsSettings) -> None:
    path = settings.ssl_crlfile
    if path is None:
        return
    _check_pem("ssl_crlfile", path, "revocation list", _CRL)
    _load_file(context, "ssl_crlfile", path)
    context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF


def _load_file(context: ssl.SSLContext, setting: str, path: str) -> None:
    try:
        context.load_verify_locations(path)
    except (OSError, ValueError) as error:  # OSError: the file was removed after the check
        raise _garbled(setting, path, error) from None


def _load_certificate(context: ssl.SSLContext, settings: TlsSettings) -> None:
    certificate = settings.ssl_certfile
    if certificate is None:
        return
    key = settings.ssl_keyfile or certificate
    _check_pem("ssl_certfile", certificate, "certificate", _CERTIFICATE, _TRUSTED_CERTIFICATE)
    _check_pem("ssl_keyfile" if settings.ssl_keyfile else "ssl_certfile", key, "private key", _KEY)
    asked = False

    def password() -> str:
        # Always passed: without it, OpenSSL would prompt on the terminal.
        nonlocal asked
        asked = True
        return settings.ssl_password or ""

    try:
        context.load_cert_chain(certificate, key, password)
    except (OSError, ValueError) as error:  # as in _load_file; ssl.SSLError is an OSError
        raise _wrong_pair(settings, certificate, key, error, asked) from None


def _wrong_pair(
    settings: TlsSettings, certificate: str, key: str, error: Exception, asked: bool
) -> ConfigurationError:
    name = "ssl_keyfile" if settings.ssl_keyfile else "ssl_certfile"
    if asked and settings.ssl_password is None:
        return ConfigurationError(
            f"setting {name}: the key in {key!r} is encrypted; set ssl_password"
        )
    if asked:
        return ConfigurationError(
            f"setting ssl_password: it does not decrypt the key in {key!r} ({name})"
        )
    if isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH":
        return ConfigurationError(
            f"setting {name}: the key in {key!r} does not belong to the certificate in "
            f"{certificate!r} (ssl_certfile)"
        )
    return _garbled("ssl_certfile", certificate, error)


def _check_pem(setting: str, path: str, what: str, *marks: bytes) -> None:
    """Raise unless the file contains one of *marks*; the text says what it is instead."""
    try:
        with open(path, "rb") as file:
            content = file.read()
    except (OSError, ValueError) as error:
        text = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigurationError(f"setting {setting}: {path!r} cannot be read: {text}") from None
    if any(mark in content for mark in marks):
        return
    if content.startswith((*_JKS, _DER)):
        kind = "a Java keystore" if content.startswith(_JKS) else "binary (DER or PKCS12)"
        raise ConfigurationError(
            f"setting {setting}: {path!r} is {kind}, but PEM is required; convert it with "
            "keytool -exportcert -rfc or openssl pkcs12"
        )
    raise ConfigurationError(f"setting {setting}: {path!r} contains no {what} in PEM format")


def _garbled(setting: str, path: str, error: Exception) -> ConfigurationError:
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError):
        return ConfigurationError(f"setting {setting}: {path!r} cannot be read: {error.strerror}")
    reason = getattr(error, "reason", None) or str(error)
    return ConfigurationError(
        f"setting {setting}: {path!r} is malformed: {reason.lower().replace('_', ' ')}"
    )
