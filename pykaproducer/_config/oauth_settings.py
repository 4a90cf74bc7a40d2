"""The settings with which a producer gets its tokens for OAUTHBEARER by itself.

The dotted names are those of the Java client (KIP-768, KIP-1025, KIP-1139, KIP-1258) and of
librdkafka. ``_config/oauth_validation.py`` rejects combinations that conflict.
"""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pykaproducer._config.schema import (
    FLAG,
    TEXT,
    Kind,
    SecretInValueError,
    WrongValueError,
    choice,
    integer,
    milliseconds,
    optional,
    setting,
)
from pykaproducer._config.security_kinds import PASSWORD, PATH, PEM, path, upper

CLIENT_CREDENTIALS: Final = "client_credentials"
JWT_BEARER: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"
ALGORITHMS: Final = ("RS256", "ES256")
AZURE: Final = "azure_imds"
#: The instance metadata service of Azure. It is link-local, so plain HTTP is usual.
AZURE_ENDPOINT: Final = "http://169.254.169.254/metadata/identity/oauth2/token"

#: Java's classes, and short names, for each grant. Java's default class decides as None does.
_GRANTS: Final[dict[str, str | None]] = {
    CLIENT_CREDENTIALS: CLIENT_CREDENTIALS,
    "ClientCredentialsJwtRetriever": CLIENT_CREDENTIALS,
    JWT_BEARER: JWT_BEARER,
    "jwt-bearer": JWT_BEARER,
    "JwtBearerJwtRetriever": JWT_BEARER,
    "DefaultJwtRetriever": None,
    "FileJwtRetriever": None,
}
#: Hosts to which a secret may travel unencrypted.
_LOOPBACK: Final = re.compile(r"localhost|127(\.\d+){3}|::1")
#: SASL extensions (RFC 7628): names are letters; values are printable and contain no comma here.
_EXTENSION: Final = re.compile(r"[A-Za-z]+=[\x21-\x2b\x2d-\x7e][\x20-\x2b\x2d-\x7e]*")


def _parse_url(value: Any) -> str:
    if not isinstance(value, str):
        raise SecretInValueError(f"a URL is a string, not {type(value).__name__}")
    try:
        parts = urllib.parse.urlsplit(value)
        port = parts.port
    except ValueError:  # what is not a port may be a password without its host
        raise SecretInValueError("its host or port is malformed") from None
    if parts.username is not None:
        raise SecretInValueError("it contains a user name; use sasl_oauthbearer_client_id")
    if parts.scheme == "file" and parts.path.startswith("/") and not parts.netloc:
        return value
    if parts.scheme not in ("https", "http") or not parts.hostname or port == 0:
        raise WrongValueError("it is not a URL")
    if not (value.isascii() and value.isprintable()) or " " in value:
        raise WrongValueError("it contains characters that a URL must escape")
    return value


def _parse_grant(value: Any) -> str | None:
    if not isinstance(value, str):
        raise TypeError
    name = value.rpartition(".")[2]
    if name not in _GRANTS:
        raise ValueError
    return _GRANTS[name]


def _parse_extensions(value: Any) -> str:
    if isinstance(value, Mapping):
        value = ",".join(f"{name}={text}" for name, text in value.items())
    if not isinstance(value, str):
        raise TypeError
    found = [each.strip() for each in value.split(",")]
    if any(each.startswith("auth=") for each in found):
        raise WrongValueError("the extension auth is the token itself, which SASL adds")
    if not all(map(_EXTENSION.fullmatch, found)):
        raise ValueError
    return ",".join(found)


def _without_query(value: Any) -> Any:
    """Return a URL without the text before an @, and without its query, which may have a key."""
    if not isinstance(value, str):
        return value
    without = re.sub(r"([?#]).*", r"\1...", value, flags=re.DOTALL)
    return re.sub(r".*@", "...@", without, flags=re.DOTALL)


_URL = optional(
    Kind(
        "an https, http or file URL without a user name",
        _parse_url,
        str,
        without_secrets=_without_query,
    )
)
_GRANT = optional(Kind(f"{CLIENT_CREDENTIALS!r} or {JWT_BEARER!r}", _parse_grant, str))
_EXTENSIONS = optional(
    Kind("'name=value,name=value' or a dict", _parse_extensions, str, hides=True)
)
_METHODS = ("default", "oidc")


# Its methods are made once, for Config, which has all fields.
@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class OAuthSettings:
    """The part of the configuration that concerns tokens."""

    sasl_oauthbearer_token_endpoint_url: str | None = setting(
        None,
        _URL,
        "URL at which the producer gets its tokens for OAUTHBEARER. A file URL is a file that "
        "contains a token, and is read again when the token is about to expire.",
    )
    sasl_oauthbearer_method: str | None = setting(
        None,
        optional(choice(*_METHODS)),
        "librdkafka's name for the origin of the tokens: oidc requires "
        "sasl_oauthbearer_token_endpoint_url, which alone is sufficient here.",
    )
    sasl_oauthbearer_grant_type: str | None = setting(
        None,
        _GRANT,
        "OAuth grant: client_credentials, or urn:ietf:params:oauth:grant-type:jwt-bearer "
        "(KIP-1139). None is client_credentials. The names of Java's retriever classes are "
        "accepted.",
        aliases=("sasl.oauthbearer.jwt.retriever.class",),
    )
    sasl_oauthbearer_client_id: str | None = setting(
        None,
        optional(TEXT),
        "Client id for the token endpoint.",
        aliases=("sasl.oauthbearer.client.credentials.client.id",),
    )
    sasl_oauthbearer_client_secret: str | None = setting(
        None,
        PASSWORD,
        "Client secret for the token endpoint. An assertion replaces it, except with the grant "
        "jwt-bearer, where the secret authenticates the client.",
        aliases=("sasl.oauthbearer.client.credentials.client.secret",),
        secret=True,
    )
    sasl_oauthbearer_scope: str | None = setting(
        None, optional(TEXT), "Scope to request, or several separated by spaces."
    )
    sasl_oauthbearer_extensions: str | None = setting(
        None,
        _EXTENSIONS,
        "SASL extensions sent to the brokers with each token: name=value, several separated by "
        "commas.",
    )
    sasl_oauthbearer_header_urlencode: bool = setting(
        False,
        FLAG,
        "URL-encode client id and secret in the Authorization header, as RFC 6749 requires "
        "(KIP-1025).",
    )
    sasl_oauthbearer_assertion_file: str | None = setting(
        None,
        PATH,
        "A file with a signed JWT, sent as assertion instead of a client secret. It is read for "
        "each request.",
    )
    sasl_oauthbearer_assertion_private_key_file: str | None = setting(
        None,
        path("sasl_oauthbearer_assertion_private_key_pem"),
        "Private key that signs assertions, in PEM format. It requires the extra "
        "pykaproducer[oauth].",
    )
    sasl_oauthbearer_assertion_private_key_pem: str | None = setting(
        None,
        PEM,
        "The same as text instead of a file.",
        secret=True,
    )
    sasl_oauthbearer_assertion_private_key_passphrase: str | None = setting(
        None,
        PASSWORD,
        "Passphrase of that private key, if it is encrypted.",
        secret=True,
    )
    sasl_oauthbearer_assertion_algorithm: str = setting(
        "RS256",
        upper(ALGORITHMS),
        "Algorithm that signs assertions. ES256 requires a key on the curve P-256.",
    )
    sasl_oauthbearer_assertion_template_file: str | None = setting(
        None,
        PATH,
        'A JSON file with further fields of assertions: {"header": {...}, "payload": {...}}.',
        aliases=("sasl.oauthbearer.assertion.jwt.template.file",),
    )
    sasl_oauthbearer_assertion_claim_aud: str | None = setting(
        None,
        optional(TEXT),
        "Audience of assertions. None is the URL of the token endpoint.",
    )
    sasl_oauthbearer_assertion_claim_iss: str | None = setting(
        None, optional(TEXT), "Issuer of assertions. None is the client id."
    )
    sasl_oauthbearer_assertion_claim_sub: str | None = setting(
        None, optional(TEXT), "Subject of assertions. None is the client id."
    )
    sasl_oauthbearer_assertion_claim_exp_seconds: int = setting(
        300, integer(1, 86_400), "Lifetime of assertions.", unit="s"
    )
    sasl_oauthbearer_assertion_claim_nbf_seconds: int = setting(
        60,
        integer(0, 3_600),
        "How long before their creation assertions are valid, as clocks may differ.",
        unit="s",
    )
    sasl_oauthbearer_assertion_claim_jti_include: bool = setting(
        False, FLAG, "Give each assertion a unique id, which prevents its reuse."
    )
    sasl_oauthbearer_metadata_authentication_type: str | None = setting(
        None,
        optional(choice(AZURE)),
        "azure_imds gets the tokens of the managed identity of an Azure machine from its instance "
        "metadata service; sasl_oauthbearer_token_endpoint_url replaces the service's address.",
    )
    sasl_oauthbearer_config: str | None = setting(
        None,
        PASSWORD,
        "With azure_imds the parameters of the request: "
        "query=api-version=2018-02-01&resource=api://....",
        secret=True,
    )
    sasl_oauthbearer_ca_file: str | None = setting(
        None,
        path("sasl_oauthbearer_ca_pem"),
        "Certificates of the authorities trusted for the token endpoint, in PEM format. None uses "
        "those of the system; ssl_cafile is for brokers only.",
        aliases=("https.ca.location",),
    )
    sasl_oauthbearer_ca_pem: str | None = setting(
        None, PEM, "The same as text instead of a file.", aliases=("https.ca.pem",)
    )
    sasl_login_connect_timeout_ms: int = setting(
        10_000,
        integer(1),
        "How long the token endpoint may take to accept a connection, including TLS.",
        unit="ms",
    )
    sasl_login_read_timeout_ms: int = setting(
        10_000, integer(1), "How long the token endpoint may take to answer.", unit="ms"
    )
    sasl_login_retry_backoff_ms: float = setting(
        100, milliseconds(1), "First pause after a failed request for a token.", unit="ms"
    )
    sasl_login_retry_backoff_max_ms: float = setting(
        10_000,
        milliseconds(1),
        "Longest pause between requests for a token. At least sasl_login_retry_backoff_ms. Also "
        "the pause after an error that the token endpoint reports as permanent (invalid_client, "
        "for example).",
        unit="ms",
    )

    @property
    def fetches_tokens(self) -> bool:
        """True if the producer gets its tokens by itself."""
        return (
            self.sasl_oauthbearer_token_endpoint_url is not None
            or self.sasl_oauthbearer_metadata_authentication_type is not None
        )

    @property
    def signs_assertions(self) -> bool:
        """True if there is a private key for assertions."""
        return (
            self.sasl_oauthbearer_assertion_private_key_file is not None
            or self.sasl_oauthbearer_assertion_private_key_pem is not None
        )

    @property
    def sends_assertions(self) -> bool:
        """True if assertions are signed here, or read from a file."""
        return self.signs_assertions or self.sasl_oauthbearer_assertion_file is not None

    @property
    def token_origin(self) -> str:
        """The token endpoint without its query, for errors."""
        url = self.sasl_oauthbearer_token_endpoint_url or AZURE_ENDPOINT
        return url.partition("?")[0]


def sends_secrets_in_clear(settings: OAuthSettings) -> bool:
    """Return whether secrets travel unencrypted to a token endpoint on another machine."""
    parts = urllib.parse.urlsplit(settings.sasl_oauthbearer_token_endpoint_url or "")
    is_azure = settings.sasl_oauthbearer_metadata_authentication_type is not None
    host = parts.hostname or ""
    return parts.scheme == "http" and not is_azure and not _LOOPBACK.fullmatch(host)
