"""TLS and SASL settings: fill in settings from Java's forms, and reject conflicting ones.

``_config/oauth_validation.py`` does so for tokens.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Final

from pykaproducer._config import jaas
from pykaproducer._config.key_store import AUTHORITIES, CERTIFICATES, is_pem, read_file
from pykaproducer._config.oauth_settings import OAuthSettings
from pykaproducer._config.oauth_validation import LOGIN_OPTIONS, check_tokens, login_options
from pykaproducer._config.security import MECHANISMS, SecuritySettings
from pykaproducer.errors import ConfigurationError, UnsupportedFeatureError

#: The mechanisms to which each setting belongs.
_WITH_PASSWORD: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_BELONGS: Final[dict[str, tuple[str, ...]]] = {
    "sasl_plain_username": _WITH_PASSWORD,
    "sasl_plain_password": _WITH_PASSWORD,
    "sasl_oauth_token_provider": ("OAUTHBEARER",),
    "sasl_kerberos_name": ("GSSAPI",),
    "sasl_kerberos_service_name": ("GSSAPI",),
    "sasl_kerberos_domain_name": ("GSSAPI",),
    "sasl_kerberos_principal": ("GSSAPI",),
    "sasl_kerberos_keytab": ("GSSAPI",),
    **dict.fromkeys(OAuthSettings.__dataclass_fields__, ("OAUTHBEARER",)),
}
#: The settings that each mechanism requires.
_NEEDS: Final[dict[str, tuple[str, ...]]] = {
    **dict.fromkeys(_WITH_PASSWORD, ("sasl_plain_username", "sasl_plain_password")),
}
#: Packages that mechanisms require: (module, how to install it).
_PACKAGES: Final = {
    "GSSAPI": (
        "gssapi",
        "pip install 'pykaproducer[gssapi]', which requires a C compiler and Kerberos's headers",
    ),
    "AWS_MSK_IAM": ("botocore", "pip install 'pykaproducer[msk]'"),
}
#: Java's login modules: the mechanisms of each, and its options with our settings for them.
_LOGIN_MODULES: Final[dict[str, tuple[tuple[str, ...], dict[str, str]]]] = {
    "PlainLoginModule": (
        ("PLAIN",),
        {"username": "sasl_plain_username", "password": "sasl_plain_password"},
    ),
    "ScramLoginModule": (
        ("SCRAM-SHA-256", "SCRAM-SHA-512"),
        {"username": "sasl_plain_username", "password": "sasl_plain_password"},
    ),
    "OAuthBearerLoginModule": (
        ("OAUTHBEARER",),
        {**LOGIN_OPTIONS, "extensions": "sasl_oauthbearer_extensions"},
    ),
    "Krb5LoginModule": (
        ("GSSAPI",),
        {
            "serviceName": "sasl_kerberos_service_name",
            "principal": "sasl_kerberos_principal",
            "keyTab": "sasl_kerberos_keytab",
        },
    ),
    "IAMLoginModule": (("AWS_MSK_IAM",), {}),
}
_EITHER: Final = ("true", "false")
#: Options of login modules that have no effect here, with the values that are accepted.
_WITHOUT_EFFECT: Final[dict[str, dict[str, tuple[str, ...]]]] = {
    "Krb5LoginModule": {
        "useKeyTab": _EITHER,
        "useTicketCache": _EITHER,
        "storeKey": _EITHER,
        "renewTGT": _EITHER,
        "refreshKrb5Config": _EITHER,
        "doNotPrompt": ("true",),
        "debug": ("false",),
        "isInitiator": ("true",),
    },
    # Of the connections to the token endpoint.
    "OAuthBearerLoginModule": {"ssl.protocol": ("ssl", "tls", "tlsv1.2", "tlsv1.3")},
    "IAMLoginModule": {"awsDebugCreds": _EITHER},
}
#: The replacement for options of login modules that have no equivalent here.
_INSTEAD: Final = {
    "OAuthBearerLoginModule": "allowed: clientId, clientSecret, scope and extension_NAME",
    "Krb5LoginModule": "allowed: keyTab, principal and serviceName",
    "IAMLoginModule": "credentials come from the environment, as botocore finds them",
}


def complete(config: SecuritySettings) -> None:
    """Fill in the settings that were given in Java's form.

    Raises:
        ConfigurationError, UnsupportedFeatureError: the value is malformed or not supported.
    """
    if config.sasl_jaas_config is not None:
        for name, value in login_settings(config.sasl_jaas_config, config.sasl_mechanism).items():
            config.fill_in(name, value, "sasl_jaas_config")
    for store, own, text in (
        ("ssl_truststore", "ssl_cafile", "ssl_ca_pem"),
        ("ssl_keystore", "ssl_certfile", "ssl_certificate_pem"),
    ):
        location, kind = getattr(config, f"{store}_location"), getattr(config, f"{store}_type")
        if location is None:
            _check_no_store(config, store, text)
        elif is_pem(f"{store}_location", location, kind):
            config.fill_in(own, location, f"{store}_location")
            if getattr(config, f"{store}_password") is not None:
                raise ConfigurationError(
                    f"setting {store}_password: {store}_location is in PEM format, which has no "
                    "password; the password of a key is ssl_password"
                )


def _check_no_store(config: SecuritySettings, store: str, text: str) -> None:
    """Reject settings of a store that is not set. PEM may also be given as text."""
    kind = getattr(config, f"{store}_type")
    if kind is not None and (kind != "PEM" or getattr(config, text) is None):
        raise ConfigurationError(
            f"setting {store}_type: it requires {store}_location, which is not set"
        )
    if getattr(config, f"{store}_password") is not None:
        raise ConfigurationError(
            f"setting {store}_password: it requires {store}_location, which is not set"
        )


def login_settings(text: str, mechanism: str | None = None) -> dict[str, str]:
    """Return the settings for which ``sasl_jaas_config`` has options.

    Raises:
        ConfigurationError, UnsupportedFeatureError: *text* is malformed or not supported, or its
            login module is not for *mechanism*.
    """
    module = jaas.parse(text)
    if module.name not in _LOGIN_MODULES:
        raise UnsupportedFeatureError(
            f"setting sasl_jaas_config: its login module is unknown; allowed: "
            f"{', '.join(_LOGIN_MODULES)}"
        )
    mechanisms, settings = _LOGIN_MODULES[module.name]
    if mechanism is not None and mechanism not in mechanisms:
        raise ConfigurationError(
            f"setting sasl_jaas_config: its {module.name} is for {' and '.join(mechanisms)}, but "
            f"sasl_mechanism is {mechanism!r}"
        )
    without_effect = _WITHOUT_EFFECT.get(module.name, {})
    options = {
        name: value
        for name, value in module.options.items()
        if value.lower() not in without_effect.get(name, ())
    }
    if module.name == "OAuthBearerLoginModule":
        options = login_options(options)
    elif module.options.get("useKeyTab", "").lower() == "false":
        options.pop("keyTab", None)
    others = sorted(name for name in options if name not in settings)
    if others:
        instead = _INSTEAD.get(module.name, f"allowed: {' and '.join(settings)}")
        raise UnsupportedFeatureError(
            f"setting sasl_jaas_config: its option {others[0]!r} is not supported; {instead}"
        )
    return {settings[name]: value for name, value in options.items()}


# Conflicts ------------------------------------------------------------------------------------


def check(config: SecuritySettings) -> None:
    """Raise ConfigurationError for conflicting settings and for unusable files."""
    given = config.given_security()
    protocol = config.security_protocol
    if not config.uses_tls:
        _refuse(given, "ssl_", f"security_protocol is {protocol!r}, without TLS", "SSL")
    if not config.uses_sasl:
        _refuse(given, "sasl_", f"security_protocol is {protocol!r}, without SASL", "SASL_SSL")
    else:
        _check_sasl(config, given)
    if config.uses_tls:
        _check_tls(config, given)


def _refuse(given: Iterable[str], prefix: str, why: str, instead: str) -> None:
    for name in sorted(given):
        if name.startswith(prefix):
            raise ConfigurationError(
                f"setting {name}: it was given, but {why}; set security_protocol={instead!r}, "
                f"or remove {name}"
            )


def _check_sasl(config: SecuritySettings, given: Iterable[str]) -> None:
    mechanism = config.sasl_mechanism
    if mechanism is None:
        raise ConfigurationError(
            f"setting sasl_mechanism: security_protocol {config.security_protocol!r} requires it; "
            f"allowed: {', '.join(map(repr, MECHANISMS))}"
        )
    for name in _NEEDS.get(mechanism, ()):
        if getattr(config, name) is None:
            raise ConfigurationError(f"setting {name}: sasl_mechanism {mechanism!r} requires it")
    if mechanism == "OAUTHBEARER":
        check_tokens(config, given)
        if config.sasl_oauth_token_provider is None and not config.fetches_tokens:
            raise ConfigurationError(
                "setting sasl_oauthbearer_token_endpoint_url: sasl_mechanism 'OAUTHBEARER' "
                "requires it, or sasl_oauth_token_provider"
            )
    for name in sorted(given):
        if mechanism not in _BELONGS.get(name, (mechanism,)):
            raise ConfigurationError(
                f"setting {name}: it belongs to {' and '.join(_BELONGS[name])}, but sasl_mechanism "
                f"is {mechanism!r}; remove it"
            )
    if mechanism == "AWS_MSK_IAM" and not config.uses_tls:
        raise ConfigurationError("setting sasl_mechanism: 'AWS_MSK_IAM' requires SASL_SSL")
    if mechanism in _PACKAGES:
        _import(mechanism, *_PACKAGES[mechanism])
    if config.sasl_kerberos_keytab is not None:
        _check_keytab(config.sasl_kerberos_keytab)


def _check_keytab(path: str) -> None:
    # The first byte is that of the format, the second one its version.
    if read_file("sasl_kerberos_keytab", path)[:1] != b"\x05":
        raise ConfigurationError(f"setting sasl_kerberos_keytab: {path!r} is not a key table")


def _import(mechanism: str, module: str, install: str) -> None:
    # Imported now and not on first use: one of our threads would hold the module's import lock,
    # and a fork at that moment would leave it locked in the child forever.
    try:
        importlib.import_module(module)
    except (ImportError, OSError) as error:  # OSError: a shared library is missing
        raise ConfigurationError(
            f"setting sasl_mechanism: {mechanism!r} needs the package {module} ({error}): {install}"
        ) from None


def _check_tls(config: SecuritySettings, given: set[str]) -> None:
    from pykaproducer._config.tls_context import tls_context  # not for producers without TLS

    if config.ssl_context is not None:
        others = sorted(name for name in given if name.startswith("ssl_") and name != "ssl_context")
        if others:
            raise ConfigurationError(
                f"setting {others[0]}: ssl_context is given and replaces it; remove one of them"
            )
    _check_sources(given)
    tls_context(config, to_check=True)


#: Settings, and those of which one is required.
_PARTS: Final = {
    "ssl_keyfile": ("ssl_certfile",),
    "ssl_key_pem": ("ssl_certificate_pem",),
    "ssl_password": CERTIFICATES,
}


def _check_sources(given: set[str]) -> None:
    for names in (AUTHORITIES, CERTIFICATES):
        found = [name for name in names if name in given]
        if names[2] in found and names[0] in found:
            del found[0]  # filled in for a store of PEM
        if len(found) > 1:
            raise ConfigurationError(
                f"settings {found[0]} and {found[1]} are both given; remove one of them"
            )
    for name, needed in _PARTS.items():
        if name in given and not given.intersection(needed):
            raise ConfigurationError(
                f"setting {name}: it belongs to a certificate, but {needed[0]} is not set"
            )
