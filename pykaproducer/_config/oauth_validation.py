"""Tokens for OAUTHBEARER: fill in settings from Java's login module, and reject conflicts."""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from pykaproducer._config.assertions import assertion, read_token_file
from pykaproducer._config.oauth_settings import AZURE, JWT_BEARER, OAuthSettings
from pykaproducer.errors import ConfigurationError

if TYPE_CHECKING:
    import ssl

_URL: Final = "sasl_oauthbearer_token_endpoint_url"
_PREFIX: Final = "sasl_oauthbearer_"
_ASSERTION: Final = "sasl_oauthbearer_assertion_"
_METADATA: Final = "sasl_oauthbearer_metadata_authentication_type"
#: Settings that have an effect with a private key only.
_OF_KEYS: Final = re.compile(_ASSERTION + "(private_key_passphrase|algorithm|template_file|claim_)")
#: Settings that are also valid for the metadata service and for a file.
_COMMON: Final = ("sasl_oauthbearer_extensions", "sasl_oauthbearer_method", _URL)
_AZURE_ONLY: Final = ("sasl_oauthbearer_config", _METADATA)
_TLS: Final = ("sasl_oauthbearer_ca_file", "sasl_oauthbearer_ca_pem")

#: Options of Java's OAuthBearerLoginModule with our settings for them.
LOGIN_OPTIONS: Final = {
    "clientId": "sasl_oauthbearer_client_id",
    "clientSecret": "sasl_oauthbearer_client_secret",
    "scope": "sasl_oauthbearer_scope",
}
_EXTENSION: Final = "extension_"


def login_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options of Java's login module without extensions, which become one option."""
    extensions = {
        name.removeprefix(_EXTENSION): value
        for name, value in options.items()
        if name.startswith(_EXTENSION)
    }
    rest = {name: value for name, value in options.items() if not name.startswith(_EXTENSION)}
    if extensions:
        rest["extensions"] = ",".join(f"{name}={value}" for name, value in extensions.items())
    return rest


def check_tokens(config: OAuthSettings, given: Iterable[str]) -> None:
    """Raise ConfigurationError for conflicting settings and unusable keys.

    Args:
        config: the configuration, whose mechanism is OAUTHBEARER.
        given: the names of the settings that differ from their defaults.
    """
    names = sorted(name for name in given if name.startswith(_PREFIX))
    if not config.fetches_tokens:
        if config.sasl_oauthbearer_method == "oidc":
            raise ConfigurationError(f"setting {_URL}: sasl_oauthbearer_method 'oidc' requires it")
        _refuse(names, f"{_URL} is not set")
        return
    if "sasl_oauth_token_provider" in given:
        name = _METADATA if _METADATA in names else _URL
        raise ConfigurationError(
            f"settings {name} and sasl_oauth_token_provider are both given; remove one of them"
        )
    if config.sasl_oauthbearer_method == "default":
        raise ConfigurationError(
            "setting sasl_oauthbearer_method: 'default' means no token endpoint, but one is given; "
            "set it to 'oidc'"
        )
    if config.sasl_oauthbearer_metadata_authentication_type == AZURE:
        kept = (*_COMMON, *_AZURE_ONLY, *_TLS)
        _refuse([name for name in names if name not in kept], f"{_METADATA} is {AZURE!r}")
        _check_query(config)
        return
    _refuse([name for name in names if name in _AZURE_ONLY], f"{_METADATA} is not set")
    url = config.sasl_oauthbearer_token_endpoint_url or ""
    if url.startswith("file:"):
        _refuse([name for name in names if name not in _COMMON], f"{_URL} is a file")
        read_token_file(_URL, file_url_path(url))
        return
    _check_grant(config, names)
    endpoint_context(config, to_check=True)


def _check_grant(config: OAuthSettings, names: list[str]) -> None:
    if "sasl_oauthbearer_assertion_file" in names:
        others = [
            n for n in names if n.startswith(_ASSERTION) and not n.endswith("_assertion_file")
        ]
        _refuse(others, "sasl_oauthbearer_assertion_file is given and replaces it")
    key_file, key_pem = f"{_ASSERTION}private_key_file", f"{_ASSERTION}private_key_pem"
    if key_file in names and key_pem in names:
        raise ConfigurationError(
            f"settings {key_file} and {key_pem} are both given; remove one of them"
        )
    if not config.sends_assertions:
        _refuse([name for name in names if _OF_KEYS.match(name)], f"{key_file} is not set")
        if config.sasl_oauthbearer_grant_type == JWT_BEARER:
            raise ConfigurationError(
                f"setting {key_file}: sasl_oauthbearer_grant_type {JWT_BEARER!r} requires it, or "
                "sasl_oauthbearer_assertion_file"
            )
    else:
        assertion(config, 0.0, "")
    if config.sasl_oauthbearer_grant_type != JWT_BEARER:
        _check_client(config)


def _check_client(config: OAuthSettings) -> None:
    named = config.sasl_oauthbearer_client_id is not None
    # An assertion may contain the client's name.
    may_be_named = config.sasl_oauthbearer_assertion_file or (
        config.signs_assertions
        and (
            config.sasl_oauthbearer_assertion_claim_iss
            or config.sasl_oauthbearer_assertion_template_file
        )
    )
    if not named and not may_be_named:
        raise ConfigurationError(f"setting {_PREFIX}client_id: {_URL} requires it")
    if config.sasl_oauthbearer_client_secret is None and not config.sends_assertions:
        raise ConfigurationError(
            f"setting {_PREFIX}client_secret: {_URL} requires it, or an assertion: "
            f"{_ASSERTION}private_key_file, {_ASSERTION}private_key_pem or {_ASSERTION}file"
        )


def _refuse(names: Iterable[str], why: str) -> None:
    for name in names:
        raise ConfigurationError(f"setting {name}: it was given, but {why}; remove {name}")


def _check_query(config: OAuthSettings) -> None:
    if not metadata_query(config):
        raise ConfigurationError(
            "setting sasl_oauthbearer_config: a value that is not shown was given; allowed with "
            "'azure_imds': 'query=api-version=2018-02-01&resource=RESOURCE', with other than ASCII "
            "characters and spaces quoted, as %20 for a space"
        )


def metadata_query(config: OAuthSettings) -> str:
    """Return the query for the metadata service; empty if the settings have none."""
    text = config.sasl_oauthbearer_config
    url = config.sasl_oauthbearer_token_endpoint_url or ""
    if text is None:
        return url.partition("?")[2]
    name, _, query = text.strip().partition("=")
    # HTTP allows nothing else in its first line.
    is_valid = query.isascii() and query.isprintable() and " " not in query
    return query if name == "query" and "=" in query and is_valid else ""


def file_url_path(url: str) -> str:
    """Return the path that a file URL names."""
    return urllib.parse.unquote(urllib.parse.urlsplit(url).path)


def endpoint_context(config: OAuthSettings, *, to_check: bool = False) -> ssl.SSLContext:
    """Return the TLS context for the token endpoint; *to_check*: without the system's authorities.

    Raises:
        ConfigurationError: a file cannot be read or has the wrong content.
    """
    from pykaproducer._config.tls_context import client_context, load_authorities  # needs OpenSSL

    context = client_context()
    load_authorities(
        context,
        config.sasl_oauthbearer_ca_file,
        config.sasl_oauthbearer_ca_pem,
        ("sasl_oauthbearer_ca_file", "sasl_oauthbearer_ca_pem"),
        to_check=to_check,
    )
    return context
