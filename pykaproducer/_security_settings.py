"""The settings of TLS and SASL.

Names and meanings are kafka-python's. What Java has in another form, ``sasl.jaas.config`` and
stores of type PEM, stands beside them and fills them in (``_security_checks.py``, which also has
what cannot be had together).
"""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass
from typing import Any, Final

from pykaproducer._settings import FLAG, TEXT, Kind, WrongValueError, optional, setting
from pykaproducer.errors import ConfigurationError

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS: Final = (
    "PLAIN",
    "SCRAM-SHA-256",
    "SCRAM-SHA-512",
    "OAUTHBEARER",
    "GSSAPI",
    "AWS_MSK_IAM",
)

# The kinds ------------------------------------------------------------------------------------


def _upper(names: tuple[str, ...]) -> Kind:
    """One of some names, in any case."""

    def parse(value: Any) -> str:
        if not isinstance(value, str):
            raise TypeError
        if value.upper() not in names:
            raise ValueError
        return value.upper()

    return Kind(", ".join(map(repr, names)), parse, str)


def _parse_path(value: Any) -> str:
    path = os.fspath(value)
    if not isinstance(path, str) or not path:
        raise TypeError
    return path


def _parse_context(value: Any) -> ssl.SSLContext:
    if not isinstance(value, ssl.SSLContext):
        raise TypeError
    return value


def _parse_provider(value: Any) -> Any:
    if not callable(getattr(value, "token", None)) and (
        not callable(value) or isinstance(value, type)
    ):
        raise TypeError
    return value


def _parse_kerberos_name(value: Any) -> Any:
    if isinstance(value, bool | int | float) or not value:
        raise TypeError
    return value


def _parse_credential(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError
    if "\0" in value:
        raise WrongValueError("it has a NUL in it")
    return value


def _read_check(text: str) -> bool:
    # Java's ssl.endpoint.identification.algorithm; librdkafka has none for no check.
    known = {"https": True, "": False, "none": False}
    if text.lower() in known:
        return known[text.lower()]
    assert FLAG.read is not None
    return bool(FLAG.read(text))


_PATH = optional(Kind("the path of a file", _parse_path, str))
_CREDENTIAL = Kind("a text that is not empty", _parse_credential, str)
#: Not by optional(): a password may be "none".
_PASSWORD = Kind(
    "a text that is not empty, or None",
    lambda value: None if value is None else _parse_credential(value),
    lambda text: text or None,
)
_STORE_TYPE = optional(_upper(("PEM", "JKS", "PKCS12")))


@dataclass(frozen=True, kw_only=True, repr=False)
class SecuritySettings:
    """The part of the configuration that concerns security."""

    security_protocol: str = setting(
        "PLAINTEXT",
        _upper(PROTOCOLS),
        "How brokers are spoken to: without encryption, with TLS (SSL), and with SASL on top of "
        "either.",
    )
    ssl_context: ssl.SSLContext | None = setting(
        None,
        optional(Kind("an ssl.SSLContext", _parse_context)),
        "A context of your own in place of all other ssl settings. A producer that has one cannot "
        "be pickled.",
    )
    ssl_check_hostname: bool = setting(
        True,
        Kind("True or False", FLAG.parse, _read_check),
        "Whether a broker's certificate must be for its host name. As text also https, and "
        "nothing or none for no check.",
        aliases=("ssl.endpoint.identification.algorithm",),
    )
    ssl_cafile: str | None = setting(
        None,
        _PATH,
        "The certificates of the authorities that are trusted, in PEM: a file, or a directory as "
        "OpenSSL has it. None: those of the system.",
        aliases=("ssl.ca.location",),
    )
    ssl_certfile: str | None = setting(
        None,
        _PATH,
        "The certificate that this client shows, with those between it and the authority, in PEM.",
        aliases=("ssl.certificate.location",),
    )
    ssl_keyfile: str | None = setting(
        None,
        _PATH,
        "Its key, in PEM. None: it is in ssl_certfile.",
        aliases=("ssl.key.location",),
    )
    ssl_password: str | None = setting(
        None,
        _PASSWORD,
        "The password of that key, if it is encrypted.",
        aliases=("ssl.key.password",),
        secret=True,
    )
    ssl_crlfile: str | None = setting(
        None,
        _PATH,
        "The authority's list of certificates that it has revoked, in PEM.",
        aliases=("ssl.crl.location",),
    )
    ssl_ciphers: str | None = setting(
        None,
        optional(TEXT),
        "The ciphers that may be used up to TLS 1.2, by OpenSSL's names.",
        aliases=("ssl.cipher.suites",),
    )
    sasl_mechanism: str | None = setting(
        None,
        optional(_upper(MECHANISMS)),
        "How this client shows who it is, with SASL. GSSAPI needs the package gssapi, AWS_MSK_IAM "
        "botocore.",
        aliases=("sasl.mechanisms",),
    )
    sasl_plain_username: str | None = setting(
        None,
        optional(_CREDENTIAL),
        "The user name, with PLAIN and SCRAM.",
        aliases=("sasl.username",),
    )
    sasl_plain_password: str | None = setting(
        None,
        _PASSWORD,
        "The password, with PLAIN and SCRAM.",
        aliases=("sasl.password",),
        secret=True,
    )
    sasl_kerberos_name: Any = setting(
        None,
        optional(Kind("a text, or a gssapi.Name", _parse_kerberos_name, str)),
        "With GSSAPI: the brokers' name in Kerberos, in place of the next two.",
    )
    sasl_kerberos_service_name: str = setting(
        "kafka", TEXT, "With GSSAPI: the brokers' service in Kerberos."
    )
    sasl_kerberos_domain_name: str | None = setting(
        None,
        optional(TEXT),
        "With GSSAPI: the brokers' host in Kerberos. None: the host name of each.",
    )
    sasl_oauth_token_provider: Any = setting(
        None,
        optional(Kind("an object with a method token, or a callable", _parse_provider)),
        "With OAUTHBEARER: its token() returns a token as str, its extensions(), if there is one, "
        "a dict; or a callable that returns a token. Called for each authentication in a thread of "
        "that connection, and may take its time.",
        secret=True,
    )
    sasl_jaas_config: str | None = setting(
        None,
        _PASSWORD,
        "Java's form of user name and password, as its client.properties have it.",
        secret=True,
    )
    ssl_truststore_location: str | None = setting(
        None, _PATH, "Java's name of ssl_cafile, with ssl_truststore_type PEM."
    )
    ssl_truststore_type: str | None = setting(
        None, _STORE_TYPE, "What ssl_truststore_location is: PEM; other stores are refused."
    )
    ssl_keystore_location: str | None = setting(
        None,
        _PATH,
        "Java's name of an ssl_certfile with the key in it, with ssl_keystore_type PEM.",
    )
    ssl_keystore_type: str | None = setting(
        None, _STORE_TYPE, "What ssl_keystore_location is: PEM; other stores are refused."
    )

    @property
    def uses_tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.security_protocol in ("SSL", "SASL_SSL")

    @property
    def uses_sasl(self) -> bool:
        """Whether this client shows who it is with SASL."""
        return self.security_protocol.startswith("SASL_")

    @property
    def in_the_clear(self) -> str | None:
        """A warning, if what should be secret can be read by everybody on the way."""
        what = {"PLAIN": "the password", "OAUTHBEARER": "the token"}.get(self.sasl_mechanism or "")
        if self.security_protocol != "SASL_PLAINTEXT" or what is None:
            return None
        return (
            f"with SASL_PLAINTEXT and {self.sasl_mechanism} everybody on the way can read {what}; "
            "SASL_SSL encrypts it"
        )

    def fill_in(self, name: str, value: Any, given_as: str) -> None:
        """*given_as* says what *name* is to be."""
        default = self.__dataclass_fields__[name].default
        if getattr(self, name) not in (default, value):
            raise ConfigurationError(
                f"settings {given_as} and {name} say different things: leave one of them out"
            )
        object.__setattr__(self, name, value)


#: The names of the settings above.
NAMES: Final = frozenset(SecuritySettings.__dataclass_fields__)
