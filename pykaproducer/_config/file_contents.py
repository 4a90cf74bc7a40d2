"""The contents of the files that settings name, for processes on machines without these files.

Spark's driver reads the files and passes the contents to its tasks. The contents of Java's stores
and of PEM files become settings with text in PEM format. There are no such settings for files that
are read again while a producer runs (tokens, assertions), for key tables and for revocation lists.
These files must exist where the producer runs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, Final

from pykaproducer._config.key_store import (
    StoreSettings,
    certificate_and_key,
    read_file,
    trusted_certificates,
)
from pykaproducer._config.security import SecuritySettings

#: The certificates of a PEM file, whose other lines are comments.
_CERTIFICATE: Final = re.compile(
    rb"^-----BEGIN CERTIFICATE-----$.*?^-----END CERTIFICATE-----$", re.DOTALL | re.MULTILINE
)
#: The name of a certificate's file in OpenSSL's layout of a directory.
_HASHED: Final = re.compile(r"[0-9a-f]{8}\.\d+")
_KEY_FILE: Final = "sasl_oauthbearer_assertion_private_key_file"
#: The endings of the names of a store's settings.
_STORE: Final = ("location", "type", "password")


def with_contents(settings: Mapping[str, Any], config: SecuritySettings) -> dict[str, Any]:
    """Return *settings* with the contents of files instead of their paths.

    Args:
        settings: the producer's, by their Python names.
        config: made of *settings*; has the paths, whichever of their names was used.

    Raises:
        ConfigurationError: a file cannot be read.
    """
    found = {**settings, **_replaced(config)}
    return {name: value for name, value in found.items() if value is not None}


def _replaced(config: SecuritySettings) -> dict[str, str | None]:
    """Return the settings to be added or replaced; the value None means: remove it."""
    found: dict[str, str | None] = {}
    if config.uses_tls:
        found |= _authorities(config) | _certificate(config)
    if config.uses_sasl:
        found |= _certificates_of(
            "sasl_oauthbearer_ca_file", config.sasl_oauthbearer_ca_file, "sasl_oauthbearer_ca_pem"
        )
        key = config.sasl_oauthbearer_assertion_private_key_file
        if key is not None:
            found[_KEY_FILE] = None
            found["sasl_oauthbearer_assertion_private_key_pem"] = _text(_KEY_FILE, key)
    return found


def _authorities(config: SecuritySettings) -> dict[str, str | None]:
    """Return the settings for trusted certificates.

    If the trust store is a PEM file, ``ssl_cafile`` of *config* is its path.
    """
    location = config.ssl_truststore_location
    if location is None or config.ssl_cafile is not None:
        found = _certificates_of("ssl_cafile", config.ssl_cafile, "ssl_ca_pem")
    else:
        store = StoreSettings(
            "ssl_truststore", location, config.ssl_truststore_type, config.ssl_truststore_password
        )
        found = {"ssl_ca_pem": trusted_certificates(store)}
    if location is not None and found:
        found |= dict.fromkeys(f"ssl_truststore_{each}" for each in _STORE)
    return found


def _certificate(config: SecuritySettings) -> dict[str, str | None]:
    """Return the settings for the client's certificate and its key.

    If the key store is a PEM file, ``ssl_certfile`` of *config* is its path.
    """
    location = config.ssl_keystore_location
    found: dict[str, str | None] = {}
    if config.ssl_certfile is not None:
        name = "ssl_certfile" if location is None else "ssl_keystore_location"
        found = {"ssl_certfile": None, "ssl_certificate_pem": _text(name, config.ssl_certfile)}
        if config.ssl_keyfile is not None:
            found |= {"ssl_keyfile": None, "ssl_key_pem": _text("ssl_keyfile", config.ssl_keyfile)}
    elif location is not None:
        store = StoreSettings(
            "ssl_keystore",
            location,
            config.ssl_keystore_type,
            config.ssl_keystore_password,
            config.ssl_password,
        )
        # The key is decrypted, so its password is no longer needed.
        found = {"ssl_certificate_pem": certificate_and_key(store), "ssl_password": None}
    if location is not None:
        found |= dict.fromkeys(f"ssl_keystore_{each}" for each in _STORE)
    return found


def _certificates_of(name: str, path: str | None, instead: str) -> dict[str, str | None]:
    """Return settings that replace *name*, with the certificates of the file or directory *path*.

    The setting *instead* is their text.
    """
    if path is None:
        return {}
    paths = [path]
    if os.path.isdir(path):
        names = sorted(filter(_HASHED.fullmatch, os.listdir(path)))
        paths = [os.path.join(path, each) for each in names]
    content = b"\n".join(read_file(name, each).replace(b"\r\n", b"\n") for each in paths)
    found = _CERTIFICATE.findall(content)
    # OpenSSL reads its format TRUSTED CERTIFICATE from files only, so the path is kept.
    return {name: None, instead: b"\n".join(found).decode() + "\n"} if found else {}


def _text(name: str, path: str) -> str:
    # PEM is ASCII. Other characters can only be in comments.
    return read_file(name, path).decode("ascii", "replace")
