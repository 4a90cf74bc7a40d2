"""The settings of TLS and SASL.

Names and meanings are kafka-python's, and otherwise those of librdkafka. Java's
``sasl.jaas.config`` and stores are accepted too, and are translated to these settings in
``_config/security_validation.py``. That module also rejects combinations that conflict.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pykaproducer._config.oauth_settings import OAuthSettings, sends_secrets_in_clear
from pykaproducer._config.schema import FLAG, TEXT, Kind, differ, optional, setting
from pykaproducer._config.security_kinds import PASSWORD, PATH, PEM, TLS_VERSIONS, path, upper
from pykaproducer.errors import ConfigurationError

if TYPE_CHECKING:
    import ssl

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


def _parse_context(value: Any) -> ssl.SSLContext:
    import ssl  # not for producers without TLS

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


def _read_check(text: str) -> bool:
    # Java's ssl.endpoint.identification.algorithm. librdkafka uses "none" for no check.
    known = {"https": True, "": False, "none": False}
    if text.lower() in known:
        return known[text.lower()]
    assert FLAG.read is not None
    return bool(FLAG.read(text))


_STORE_TYPE = optional(upper(("PEM", "JKS", "PKCS12")))


# Its methods are made once, for Config, which has all fields.
@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class SecuritySettings(OAuthSettings):
    """The part of the configuration that concerns security."""

    security_protocol: str = setting(
        "PLAINTEXT",
        upper(PROTOCOLS),
        "Protocol used to connect to brokers: PLAINTEXT without encryption, SSL with TLS, "
        "SASL_PLAINTEXT and SASL_SSL with SASL authentication on top of either.",
    )
    ssl_context: ssl.SSLContext | None = setting(
        None,
        optional(Kind("an ssl.SSLContext", _parse_context)),
        "A custom context that replaces all other ssl_* settings. A producer that has one cannot "
        "be pickled.",
    )
    ssl_check_hostname: bool = setting(
        True,
        Kind("True or False", FLAG.parse, _read_check, choices=FLAG.choices),
        "Whether to verify that a broker's certificate matches its host name. As a string, https "
        "is true; none and the empty string are false.",
        aliases=("ssl.endpoint.identification.algorithm",),
    )
    ssl_cafile: str | None = setting(
        None,
        path("ssl_ca_pem"),
        "Certificates of the trusted authorities, in PEM format: a file, or a directory in "
        "OpenSSL's layout. None uses the authorities of the system.",
        aliases=("ssl.ca.location",),
    )
    ssl_certfile: str | None = setting(
        None,
        path("ssl_certificate_pem"),
        "Client certificate chain, in PEM format.",
        aliases=("ssl.certificate.location",),
    )
    ssl_keyfile: str | None = setting(
        None,
        path("ssl_key_pem"),
        "Private key of the client certificate, in PEM format. None means that ssl_certfile "
        "contains it.",
        aliases=("ssl.key.location",),
    )
    ssl_password: str | None = setting(
        None,
        PASSWORD,
        "Password of the private key, if it is encrypted.",
        aliases=("ssl.key.password",),
        secret=True,
    )
    ssl_ca_pem: str | None = setting(
        None,
        PEM,
        "Certificates of the trusted authorities as text in PEM format, instead of ssl_cafile.",
        aliases=("ssl.truststore.certificates",),
    )
    ssl_certificate_pem: str | None = setting(
        None,
        PEM,
        "Client certificate chain as text in PEM format, instead of ssl_certfile.",
        aliases=("ssl.keystore.certificate.chain",),
        secret=True,
    )
    ssl_key_pem: str | None = setting(
        None,
        PEM,
        "Private key of ssl_certificate_pem as text in PEM format. None means that "
        "ssl_certificate_pem contains it.",
        aliases=("ssl.keystore.key",),
        secret=True,
    )
    ssl_crlfile: str | None = setting(
        None,
        PATH,
        "Certificate revocation list of the authority, in PEM format.",
        aliases=("ssl.crl.location",),
    )
    ssl_enabled_protocols: tuple[str, ...] | None = setting(
        None,
        TLS_VERSIONS,
        "Versions of TLS that may be used: TLSv1.2, TLSv1.3, or both, which is the default. Older "
        "ones in the list are not used.",
    )
    ssl_ciphers: str | None = setting(
        None,
        optional(TEXT),
        "Ciphers allowed up to TLS 1.2, in OpenSSL's format.",
        aliases=("ssl.cipher.suites",),
    )
    sasl_mechanism: str | None = setting(
        None,
        optional(upper(MECHANISMS)),
        "SASL mechanism used for authentication. GSSAPI requires the package gssapi, AWS_MSK_IAM "
        "the package botocore.",
        aliases=("sasl.mechanisms",),
    )
    sasl_plain_username: str | None = setting(
        None,
        optional(TEXT),
        "User name for PLAIN and SCRAM.",
        aliases=("sasl.username",),
    )
    sasl_plain_password: str | None = setting(
        None,
        PASSWORD,
        "Password for PLAIN and SCRAM.",
        aliases=("sasl.password",),
        secret=True,
    )
    sasl_kerberos_name: Any = setting(
        None,
        optional(Kind("a string, or a gssapi.Name", _parse_kerberos_name, str)),
        "Kerberos name of the brokers for GSSAPI. Replaces the next two settings.",
    )
    sasl_kerberos_service_name: str = setting(
        "kafka", TEXT, "Kerberos service name of the brokers for GSSAPI."
    )
    sasl_kerberos_domain_name: str | None = setting(
        None,
        optional(TEXT),
        "Kerberos host name of the brokers for GSSAPI. None uses the host name of each broker.",
    )
    sasl_kerberos_principal: str | None = setting(
        None,
        optional(TEXT),
        "Kerberos principal of this client for GSSAPI. None is the first one of "
        "sasl_kerberos_keytab, or that of the default credentials cache (kinit).",
    )
    sasl_kerberos_keytab: str | None = setting(
        None,
        PATH,
        "Key table with the key of this client for GSSAPI, with which tickets are requested and "
        "renewed. None uses existing tickets.",
    )
    sasl_oauth_token_provider: Any = setting(
        None,
        optional(Kind("an object with a method token, or a callable", _parse_provider)),
        "Token provider for OAUTHBEARER: an object whose token() returns a str and whose optional "
        "extensions() returns a dict, or a callable that returns a token. Called for each "
        "authentication on the connection's own thread, so it may block. Not needed with "
        "sasl_oauthbearer_token_endpoint_url.",
        secret=True,
    )
    sasl_jaas_config: str | None = setting(
        None,
        PASSWORD,
        "Credentials in Java's format, as found in its client.properties.",
        secret=True,
    )
    ssl_truststore_location: str | None = setting(
        None,
        path("ssl_ca_pem"),
        "Java's trust store, of type JKS, PKCS12 or PEM, instead of ssl_cafile. PKCS12 requires "
        "the extra pykaproducer[pkcs12].",
    )
    ssl_truststore_type: str | None = setting(
        None,
        _STORE_TYPE,
        "Type of ssl_truststore_location. JKS, PKCS12 and None are recognized by the file's "
        "contents.",
    )
    ssl_truststore_password: str | None = setting(
        None, PASSWORD, "Password of ssl_truststore_location.", secret=True
    )
    ssl_keystore_location: str | None = setting(
        None,
        path("ssl_certificate_pem"),
        "Java's key store with the client certificate and its private key, of type JKS, PKCS12 or "
        "PEM, instead of ssl_certfile. PKCS12 requires the extra pykaproducer[pkcs12].",
    )
    ssl_keystore_type: str | None = setting(
        None,
        _STORE_TYPE,
        "Type of ssl_keystore_location. JKS, PKCS12 and None are recognized by the file's "
        "contents.",
    )
    ssl_keystore_password: str | None = setting(
        None,
        PASSWORD,
        "Password of ssl_keystore_location. If a key in a JKS has another password, set "
        "ssl_password to it.",
        secret=True,
    )

    @property
    def uses_tls(self) -> bool:
        """True if connections are encrypted."""
        return self.security_protocol in ("SSL", "SASL_SSL")

    @property
    def uses_sasl(self) -> bool:
        """True if this client authenticates with SASL."""
        return self.security_protocol.startswith("SASL_")

    @property
    def in_the_clear(self) -> str | None:
        """A warning if secrets are sent without encryption, or None."""
        if self.sasl_mechanism == "OAUTHBEARER" and sends_secrets_in_clear(self):
            return (
                "sasl_oauthbearer_token_endpoint_url sends the client's credentials unencrypted; "
                "use https to encrypt them"
            )
        what = {"PLAIN": "the password", "OAUTHBEARER": "the token"}.get(self.sasl_mechanism or "")
        if self.security_protocol != "SASL_PLAINTEXT" or what is None:
            return None
        return (
            f"SASL_PLAINTEXT with {self.sasl_mechanism} sends {what} unencrypted; use SASL_SSL to "
            "encrypt it"
        )

    def given_security(self) -> set[str]:
        """Return the names of these settings whose values are not the defaults."""
        fields = self.__dataclass_fields__
        return {name for name in NAMES if differ(getattr(self, name), fields[name].default)}

    def fill_in(self, name: str, value: Any, given_as: str) -> None:
        """Set *name* to *value*, which the setting *given_as* implies."""
        field = self.__dataclass_fields__[name]
        value = field.metadata["setting"].parse(value, name)
        if getattr(self, name) not in (field.default, value):
            raise ConfigurationError(
                f"settings {given_as} and {name} have conflicting values; remove one of them"
            )
        object.__setattr__(self, name, value)


#: The names of these settings.
NAMES: Final = frozenset(SecuritySettings.__dataclass_fields__)


def without_context(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the picklable state of a configuration.

    Raises:
        ConfigurationError: it has an SSL context, which cannot be pickled.
    """
    if state.get("ssl_context") is not None:
        raise ConfigurationError(
            "setting ssl_context: a context cannot be pickled; set the files (ssl_cafile, "
            "ssl_certfile, ssl_keyfile) instead, or create the producer in the process that uses it"
        )
    return dict(state)
