"""TLS and SASL settings: fill in settings from Java's forms, and reject conflicting ones."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from typing import Any, Final

from pykaproducer._config import jaas
from pykaproducer._config.security import MECHANISMS, NAMES, SecuritySettings
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
}
#: The settings that each mechanism requires.
_NEEDS: Final[dict[str, tuple[str, ...]]] = {
    **dict.fromkeys(_WITH_PASSWORD, ("sasl_plain_username", "sasl_plain_password")),
    "OAUTHBEARER": ("sasl_oauth_token_provider",),
}
#: Packages that mechanisms require: (module, how to install it).
_PACKAGES: Final = {
    "GSSAPI": ("gssapi", "pip install gssapi, which requires the Kerberos libraries"),
    "AWS_MSK_IAM": ("botocore", "pip install botocore"),
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
    "OAuthBearerLoginModule": (("OAUTHBEARER",), {}),
    "Krb5LoginModule": (("GSSAPI",), {"serviceName": "sasl_kerberos_service_name"}),
    "IAMLoginModule": (("AWS_MSK_IAM",), {}),
}
#: The replacement for options of login modules that have no equivalent here.
_INSTEAD: Final = {
    "OAuthBearerLoginModule": "tokens come from sasl_oauth_token_provider",
    "Krb5LoginModule": "keys and tickets come from Kerberos itself: kinit, or KRB5_CLIENT_KTNAME",
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
    for store, own in (("ssl_truststore", "ssl_cafile"), ("ssl_keystore", "ssl_certfile")):
        location, kind = getattr(config, f"{store}_location"), getattr(config, f"{store}_type")
        if location is None:
            if kind is not None:
                raise ConfigurationError(
                    f"setting {store}_type: it requires {store}_location, which is not set"
                )
            continue
        if kind != "PEM":
            raise UnsupportedFeatureError(
                f"setting {store}_location: Java keystores are not read; convert the store to PEM "
                f"(keytool -exportcert -rfc, openssl pkcs12), and set {own}, or set "
                f"{store}_type=PEM"
            )
        config.fill_in(own, location, f"{store}_location")


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
    others = sorted(name for name in module.options if name not in settings)
    if others:
        instead = _INSTEAD.get(module.name, f"allowed: {' and '.join(settings)}")
        raise UnsupportedFeatureError(
            f"setting sasl_jaas_config: its option {others[0]!r} is not supported; {instead}"
        )
    return {settings[name]: value for name, value in module.options.items()}


# Conflicts ------------------------------------------------------------------------------------


def check(config: SecuritySettings) -> None:
    """Raise ConfigurationError for conflicting settings and for unusable files."""
    given = {
        name
        for name, field in config.__dataclass_fields__.items()
        if name in NAMES and getattr(config, name) != field.default
    }
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
    for name in ("ssl_keyfile", "ssl_password"):
        if name in given and config.ssl_certfile is None:
            raise ConfigurationError(
                f"setting {name}: it belongs to a certificate, but ssl_certfile is not set"
            )
    tls_context(config, to_check=True)


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
