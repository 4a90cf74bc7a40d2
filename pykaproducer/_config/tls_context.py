"""The TLS context for the ``ssl_*`` settings.

It only reads files, so that creating a producer with a missing or malformed file fails immediately
with the setting and the file. No error text contains a password.
"""

from __future__ import annotations

import os
import re
import ssl
from typing import Final, NamedTuple, Protocol

from pykaproducer._config.jks import MAGIC
from pykaproducer._config.key_store import (
    DER,
    JCEKS,
    StoreSettings,
    certificate_and_key,
    read_file,
    trusted_certificates,
)
from pykaproducer._config.memory_file import path_of
from pykaproducer._util.openssl import reason_of
from pykaproducer.errors import ConfigurationError

_CERTIFICATE: Final = b"-----BEGIN CERTIFICATE-----"
_TRUSTED_CERTIFICATE: Final = b"-----BEGIN TRUSTED CERTIFICATE-----"
_KEY: Final = b"PRIVATE KEY-----"
_CRL: Final = b"-----BEGIN X509 CRL-----"
#: The first bytes of a Java keystore.
_JAVA: Final = (MAGIC, JCEKS)
#: The versions of TLS, of which there are two.
_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
#: OpenSSL's reasons for a key of another certificate: of the same kind, or of another (RSA, EC).
_OTHER_KEY: Final = ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED")
#: The settings of the files that a context is made of.
FILES: Final = (
    "ssl_cafile",
    "ssl_certfile",
    "ssl_keyfile",
    "ssl_truststore_location",
    "ssl_keystore_location",
    "ssl_crlfile",
)
#: The name of a file in OpenSSL's layout of a directory.
_HASHED: Final = re.compile(r"[0-9a-f]{8}\.\d+\Z")


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
    def ssl_ca_pem(self) -> str | None: ...
    @property
    def ssl_certificate_pem(self) -> str | None: ...
    @property
    def ssl_key_pem(self) -> str | None: ...
    @property
    def ssl_truststore_location(self) -> str | None: ...
    @property
    def ssl_truststore_type(self) -> str | None: ...
    @property
    def ssl_truststore_password(self) -> str | None: ...
    @property
    def ssl_keystore_location(self) -> str | None: ...
    @property
    def ssl_keystore_type(self) -> str | None: ...
    @property
    def ssl_keystore_password(self) -> str | None: ...
    @property
    def ssl_crlfile(self) -> str | None: ...
    @property
    def ssl_enabled_protocols(self) -> tuple[str, ...] | None: ...
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
    context = client_context()
    context.check_hostname = settings.ssl_check_hostname
    if settings.ssl_enabled_protocols is not None:
        (only,) = (_VERSIONS[name] for name in settings.ssl_enabled_protocols)
        context.minimum_version = context.maximum_version = only
    if settings.ssl_truststore_location is not None and settings.ssl_cafile is None:
        pem = trusted_certificates(_truststore(settings))
        load_authorities(context, None, pem, ("", "ssl_truststore_location"))
    else:
        names = ("ssl_cafile", "ssl_ca_pem")
        load_authorities(
            context, settings.ssl_cafile, settings.ssl_ca_pem, names, to_check=to_check
        )
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


def client_context() -> ssl.SSLContext:
    """Return a new context for clients, without any certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # A server never needs renegotiation, which would let an attacker cause load.
    context.options |= ssl.OP_NO_RENEGOTIATION
    return context


def _truststore(settings: TlsSettings) -> StoreSettings:
    return StoreSettings(
        "ssl_truststore",
        settings.ssl_truststore_location or "",
        settings.ssl_truststore_type,
        settings.ssl_truststore_password,
    )


def _check_client(context: ssl.SSLContext) -> None:
    try:
        context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname="localhost")
    except (ssl.SSLError, ValueError) as error:
        raise ConfigurationError(
            f"setting ssl_context: it cannot be used by a client: {error}; create it with "
            "ssl.create_default_context()"
        ) from None


def load_authorities(
    context: ssl.SSLContext,
    path: str | None,
    pem: str | None,
    names: tuple[str, str],
    *,
    to_check: bool = False,
) -> None:
    """Load the trusted certificates: of a file or directory, or of a text, or else the system's.

    *names* are the settings of *path* and *pem*. With *to_check*, the system's are not loaded.

    Raises:
        ConfigurationError: the file cannot be read, or has the wrong content.
    """
    if path is None and pem is None:
        if not to_check:
            context.load_default_certs()
        return
    if path is None:
        try:
            context.load_verify_locations(cadata=pem)
        except (ssl.SSLError, ValueError) as error:
            raise ConfigurationError(
                f"setting {names[1]}: it contains no valid certificate: {reason_of(error)}"
            ) from None
        return
    if os.path.isdir(path):
        _check_directory(names[0], path)
        context.load_verify_locations(capath=path)
        return
    _check_pem(names[0], path, "certificate", _CERTIFICATE, _TRUSTED_CERTIFICATE)
    _load_file(context, names[0], path)


def _check_directory(setting: str, path: str) -> None:
    # OpenSSL looks for a certificate by the hash of its subject, and not before it needs one.
    try:
        names = os.listdir(path)
    except OSError as error:
        raise _garbled(setting, path, error) from None
    if not any(_HASHED.match(name) for name in names):
        raise ConfigurationError(
            f"setting {setting}: the directory {path!r} contains no certificates in OpenSSL's "
            f"layout; run 'openssl rehash' on it, or give a file"
        )


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


class _Pair(NamedTuple):
    """A certificate and its key: two files, or one text; and what errors call them."""

    certificate: str
    key: str
    #: The settings of both.
    names: tuple[str, str]
    #: " in FILE", or nothing.
    places: tuple[str, str]
    password: str | None

    def load(self, context: ssl.SSLContext) -> None:
        asked = False

        def password() -> str:
            # Always passed: without it, OpenSSL would prompt on the terminal.
            nonlocal asked
            asked = True
            return self.password or ""

        try:
            context.load_cert_chain(self.certificate, self.key, password)
        except (OSError, ValueError) as error:  # as in _load_file; ssl.SSLError is an OSError
            raise self._error(error, asked) from None

    def _error(self, error: Exception, asked: bool) -> ConfigurationError:
        (_, name), (where, key_where) = self.names, self.places
        if asked and self.password is None:
            return ConfigurationError(
                f"setting {name}: the key{key_where} is encrypted; set ssl_password"
            )
        if asked:
            return ConfigurationError(
                f"setting ssl_password: it does not decrypt the key{key_where} ({name})"
            )
        if isinstance(error, ssl.SSLError) and error.reason in _OTHER_KEY:
            return ConfigurationError(
                f"setting {name}: the key{key_where} does not belong to the certificate{where} "
                f"({self.names[0]})"
            )
        if not where:
            return ConfigurationError(
                f"setting {self.names[0]}: the certificate or its key is malformed: "
                f"{reason_of(error)}"
            )
        return _garbled(self.names[0], self.certificate, error)


def _load_certificate(context: ssl.SSLContext, settings: TlsSettings) -> None:
    certificate = settings.ssl_certfile
    if certificate is not None:
        key = settings.ssl_keyfile or certificate
        name = "ssl_keyfile" if settings.ssl_keyfile else "ssl_certfile"
        _check_pem("ssl_certfile", certificate, "certificate", _CERTIFICATE, _TRUSTED_CERTIFICATE)
        _check_pem(name, key, "private key", _KEY)
        places = (f" in {certificate!r}", f" in {key!r}")
        names = ("ssl_certfile", name)
        _Pair(certificate, key, names, places, settings.ssl_password).load(context)
    elif settings.ssl_certificate_pem is not None:
        pem, key_pem = settings.ssl_certificate_pem, settings.ssl_key_pem
        name = "ssl_certificate_pem" if key_pem is None else "ssl_key_pem"
        _check_text("ssl_certificate_pem", pem, "certificate", _CERTIFICATE, _TRUSTED_CERTIFICATE)
        _check_text(name, key_pem or pem, "private key", _KEY)
        names = ("ssl_certificate_pem", name)
        _load_text(context, f"{pem}\n{key_pem or ''}", names, settings.ssl_password)
    elif settings.ssl_keystore_location is not None:
        keystore = StoreSettings(
            "ssl_keystore",
            settings.ssl_keystore_location,
            settings.ssl_keystore_type,
            settings.ssl_keystore_password,
            settings.ssl_password,
        )
        names = ("ssl_keystore_location", "ssl_keystore_location")
        _load_text(context, certificate_and_key(keystore), names, None)


def _load_text(
    context: ssl.SSLContext, pem: str, names: tuple[str, str], password: str | None
) -> None:
    # OpenSSL's interface in Python reads certificates and keys only from files.
    try:
        with path_of(pem.encode()) as path:
            _Pair(path, path, names, ("", ""), password).load(context)
    except OSError as error:
        raise ConfigurationError(
            f"setting {names[0]}: the system refuses a file to load it from: {error.strerror}"
        ) from None


def _check_text(setting: str, text: str, what: str, *marks: bytes) -> None:
    if not any(mark.decode() in text for mark in marks):
        raise ConfigurationError(f"setting {setting}: it contains no {what} in PEM format")


def _check_pem(setting: str, path: str, what: str, *marks: bytes) -> None:
    """Raise unless the file contains one of *marks*; the text says what it is instead."""
    content = read_file(setting, path)
    if any(mark in content for mark in marks):
        return
    if content.startswith((*_JAVA, DER)):
        kind = "a Java keystore" if content.startswith(_JAVA) else "binary (DER or PKCS12)"
        store = "ssl_truststore_location" if what == "certificate" else "ssl_keystore_location"
        raise ConfigurationError(
            f"setting {setting}: {path!r} is {kind}, but PEM is required; set {store} for a store"
        )
    raise ConfigurationError(f"setting {setting}: {path!r} contains no {what} in PEM format")


def _garbled(setting: str, path: str, error: Exception) -> ConfigurationError:
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError):
        return ConfigurationError(f"setting {setting}: {path!r} cannot be read: {error.strerror}")
    return ConfigurationError(f"setting {setting}: {path!r} is malformed: {reason_of(error)}")
