"""The Java client's settings that are not settings of this producer.

Settings that request what the producer does anyway, or that concern only Java, are accepted without
effect. Settings with an equivalent are translated. The others are rejected: the producer cannot run
a Java class, and to ignore its name could change what the program does.

The names are those of ``ProducerConfig`` 4.3, and some of older versions. Class names may have
the prefix of a shaded copy, such as Databricks' ``kafkashaded.org.apache.kafka...``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from pykaproducer._config.schema import Setting, shown

_KAFKA: Final = "org.apache.kafka."
_SERIALIZATION: Final = f"{_KAFKA}common.serialization."
_OAUTH: Final = f"{_KAFKA}common.security.oauthbearer."
_MSK: Final = "software.amazon.msk.auth.iam."

#: Java's partitioners with ours. Those of older versions were removed in 4.0.
_PARTITIONERS: Final = {
    f"{_KAFKA}clients.producer.RoundRobinPartitioner": "round_robin",
    f"{_KAFKA}clients.producer.UniformStickyPartitioner": "sticky",
    f"{_KAFKA}clients.producer.internals.DefaultPartitioner": "murmur2",
}
_SSL: Final = "Python's ssl and its OpenSSL are used"
_VALIDATION: Final = "brokers validate tokens"
_REFRESH: Final = "tokens are renewed after 80 to 85 % of their lifetime"
_KERBEROS: Final = "the Kerberos library requests tickets with the keytab, and renews them"
_SERVERS: Final = "known brokers are tried first, then bootstrap.servers, repeatedly"
_NOT_RUN: Final = "Java classes cannot be run; remove it"

#: Reason -> names that have no effect, with any value.
_NO_EFFECT: Final = {
    "metrics are not pushed to the brokers": "enable.metrics.push",
    "there is no JMX; use metrics() or stats()": "auto.include.jmx.reporter",
    "there is only one level": "metrics.recording.level",
    _SERVERS: "metadata.recovery.strategy metadata.recovery.rebootstrap.trigger.ms",
    "it concerns consumers only": "client.rack",
    "partitioner_adaptive_partitioning_enable avoids partitions with a long queue": ""
    "partitioner.availability.timeout.ms",
    _SSL: "ssl.provider ssl.keymanager.algorithm ssl.trustmanager.algorithm "
    "ssl.secure.random.implementation",
    _REFRESH: "sasl.login.refresh.window.factor sasl.login.refresh.window.jitter "
    "sasl.login.refresh.min.period.seconds sasl.login.refresh.buffer.seconds",
    _VALIDATION: "sasl.oauthbearer.clock.skew.seconds sasl.oauthbearer.expected.audience "
    "sasl.oauthbearer.expected.issuer sasl.oauthbearer.jwks.endpoint.url "
    "sasl.oauthbearer.jwks.endpoint.refresh.ms sasl.oauthbearer.jwks.endpoint.retry.backoff.ms "
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms sasl.oauthbearer.scope.claim.name "
    "sasl.oauthbearer.sub.claim.name",
    _KERBEROS: "sasl.kerberos.kinit.cmd sasl.kerberos.min.time.before.relogin "
    "sasl.kerberos.ticket.renew.window.factor sasl.kerberos.ticket.renew.jitter",
}


class _Limited(NamedTuple):
    """A setting that has no effect with some values, and is rejected with others."""

    #: The values without effect, besides the empty one. Those with a dot are classes.
    harmless: tuple[str, ...]
    #: Why they have none.
    reason: str
    #: The end of the error for any other value.
    refused: str


_SERIALIZER: Final = _Limited(
    tuple(f"{_SERIALIZATION}{each}Serializer" for each in ("ByteArray", "Bytes", "String")),
    "keys and values are bytes; Spark's strings are sent as UTF-8",
    f"{_NOT_RUN}, and convert keys and values to bytes or strings yourself",
)
_LIMITED: Final = {
    "key.serializer": _SERIALIZER,
    "value.serializer": _SERIALIZER,
    "config.providers": _Limited(
        (),
        "there are none",
        "references to secrets are not resolved; remove it, and give the values themselves",
    ),
    "interceptor.classes": _Limited((), "there are none", _NOT_RUN),
    "metric.reporters": _Limited(
        (f"{_KAFKA}common.metrics.JmxReporter",),
        "there is no JMX; use metrics() or stats()",
        f"{_NOT_RUN}, and use metrics() or stats()",
    ),
    "security.providers": _Limited((), _SSL, f"{_SSL}; remove it"),
    "ssl.engine.factory.class": _Limited(
        (f"{_KAFKA}common.security.ssl.DefaultSslEngineFactory",),
        _SSL,
        f"{_NOT_RUN}, and set the ssl.* settings for certificates",
    ),
    "sasl.login.class": _Limited((), "there is none", f"{_NOT_RUN}, and set sasl.jaas.config"),
    "sasl.client.callback.handler.class": _Limited(
        (
            f"{_MSK}IAMClientCallbackHandler",
            f"{_OAUTH}internals.OAuthBearerSaslClientCallbackHandler",
            f"{_KAFKA}common.security.authenticator.SaslClientCallbackHandler",
        ),
        "sasl.mechanism implies it",
        f"{_NOT_RUN}, and set sasl.mechanism and sasl.jaas.config",
    ),
    "sasl.login.callback.handler.class": _Limited(
        (
            f"{_OAUTH}OAuthBearerLoginCallbackHandler",
            f"{_OAUTH}secured.OAuthBearerLoginCallbackHandler",
            f"{_KAFKA}common.security.authenticator.AbstractLogin$DefaultLoginCallbackHandler",
        ),
        "tokens come from sasl.oauthbearer.token.endpoint.url",
        f"{_NOT_RUN}, and for OAUTHBEARER set sasl.oauthbearer.token.endpoint.url, with the "
        "client's id and secret, or "
        "sasl.oauthbearer.metadata.authentication.type=azure_imds for a managed identity of Azure",
    ),
    "sasl.oauthbearer.jwt.validator.class": _Limited(
        tuple(f"{_OAUTH}{each}JwtValidator" for each in ("Default", "Client", "Broker")),
        _VALIDATION,
        f"{_NOT_RUN}; brokers validate tokens",
    ),
    "transaction.two.phase.commit.enable": _Limited(
        ("false",),
        "it is not used",
        "two-phase commit (KIP-939) is not supported; set it to false",
    ),
}
#: Texts for values that another setting replaces.
_INSTEAD: Final = {
    f"{_MSK}IAMOAuthBearerLoginCallbackHandler": f"{_NOT_RUN}; set sasl.mechanism=AWS_MSK_IAM, "
    f"sasl.jaas.config={_MSK}IAMLoginModule required; and the same security.protocol: brokers "
    "with IAM accept both mechanisms",
}

_LEVELS: Final = {f"compression.{name}.level": name for name in ("gzip", "lz4", "zstd")}
#: Java's highest levels of codecs that have fewer here, with ours: both are the smallest output.
_HIGHEST: Final = {"lz4": (17, 12)}
#: Values of ``ssl.protocol`` that allow TLS 1.2 and 1.3.
_ANY_TLS: Final = ("TLSv1.3", "TLS", "SSL", "")
_ENABLED: Final = "ssl_enabled_protocols"
#: How the other settings are translated, for the documentation.
_TRANSLATED: Final = {
    **{
        name: f"``compression_level``, if ``compression.type`` is {codec}; otherwise no effect."
        for name, codec in _LEVELS.items()
    },
    "partitioner.class": "``partitioner``: "
    + ", ".join(f"``{name.rpartition('.')[2]}`` is {ours}" for name, ours in _PARTITIONERS.items())
    + f". Other classes: {_NOT_RUN}.",
    "partitioner.ignore.keys": "``partitioner=sticky`` if it is true and ``partitioner.class`` is "
    "not set; otherwise no effect.",
    "ssl.cipher.suites": "``ssl_ciphers``, with the names of the standard "
    "(``TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256``) or OpenSSL's. Those of TLS 1.3 are always "
    "enabled.",
    "ssl.protocol": "``ssl_enabled_protocols=TLSv1.2`` if it is ``TLSv1.2``. ``TLSv1.3``, ``TLS`` "
    "and ``SSL``: no effect. Older versions are refused.",
}


@dataclass(frozen=True)
class Translation:
    """A program's settings without those that only the Java client has."""

    #: Name as given, our name or an alias of it, value as given or translated.
    settings: list[tuple[Any, Any, Any]] = field(repr=False)
    #: Name -> why it has no effect.
    without_effect: dict[str, str]
    #: Name -> the predicate that says why it is refused, and what to do.
    refused: dict[str, str]


def is_java(name: str) -> bool:
    """Return whether *name* is a setting of the Java client that this module handles."""
    return name in _RULES


def translate(settings: Mapping[Any, Any], known: Mapping[str, Setting]) -> Translation:
    """Translate the Java client's settings in *settings*.

    Settings of this producer are returned unchanged. *known* has them by each of their names.
    """
    found = Translation([], {}, {})
    others = dict(_by_our_names(settings, known))
    for name, value in settings.items():
        rule = _RULES.get(name) if isinstance(name, str) else None
        if rule is None or (name in known and not isinstance(value, str)):
            found.settings.append((name, name, value))
        else:
            rule(found, name, _text(value), others)
    _limit_versions(found, known)
    return found


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    text = "" if value is None else str(value)
    return (text.lower() if isinstance(value, bool) else text).strip()


def _by_our_names(
    settings: Mapping[Any, Any], known: Mapping[str, Setting]
) -> Iterator[tuple[str, Any]]:
    """Yield all settings by the names that translations look for: ours, if there is one."""
    for name, value in settings.items():
        if isinstance(name, str):
            yield known[name].name if name in known else name, value


def java_support() -> dict[str, str]:
    """Return the support of each of these settings, as reStructuredText, by name."""
    found = {
        name: f"No effect: {reason}."
        for reason, names in _NO_EFFECT.items()
        for name in names.split()
    }
    found |= {name: _support(limits) for name, limits in _LIMITED.items()} | _TRANSLATED
    return dict(sorted(found.items()))


def java_table() -> str:
    """Return the table of these settings for the documentation."""
    lines = [".. list-table::", "   :header-rows: 1", "   :widths: auto", ""]
    lines += ["   * - Java's setting", "     - Support"]
    for name, text in java_support().items():
        lines += [f"   * - ``{name}``", f"     - {text}"]
    return "\n".join(lines) + "\n"


def _support(limits: _Limited) -> str:
    names = dict.fromkeys(f"``{each.rpartition('.')[2]}``" for each in limits.harmless)
    harmless = ", ".join(["The empty string", *names])
    return f"{harmless}: no effect, {limits.reason}. Other values: {limits.refused}."


# Rules ------------------------------------------------------------------------------------------

_Rule = Callable[[Translation, str, str, dict[str, Any]], None]


def _class_in(text: str, names: tuple[str, ...] | Mapping[str, str]) -> str | None:
    """Return the one of *names* that *text* is, or is a shaded copy of."""
    return next((each for each in names if text == each or text.endswith(f".{each}")), None)


def _refuse(found: Translation, name: str, text: str, what_to_do: str) -> None:
    """Reject the value *text* of the setting *name*."""
    found.refused[name] = f"cannot be {shown(text)} here: {what_to_do}"


def _without_effect(reason: str) -> _Rule:
    def rule(found: Translation, name: str, _text: str, _others: dict[str, Any]) -> None:
        found.without_effect[name] = reason

    return rule


def _limited(limits: _Limited) -> _Rule:
    def rule(found: Translation, name: str, text: str, _others: dict[str, Any]) -> None:
        refused = [
            each
            for each in map(str.strip, text.split(","))
            if each and each.lower() not in limits.harmless and not _class_in(each, limits.harmless)
        ]
        if not refused:
            found.without_effect[name] = limits.reason
            return
        replaced = _class_in(refused[0], _INSTEAD)
        what_to_do = limits.refused if replaced is None else _INSTEAD[replaced]
        _refuse(found, name, refused[0], what_to_do)

    return rule


def _level(found: Translation, name: str, text: str, others: dict[str, Any]) -> None:
    codec = _LEVELS[name]
    if others.get("compression_type") != codec:
        found.without_effect[name] = f"compression.type is not {codec}"
    elif codec == "gzip" and text == "-1":
        found.without_effect[name] = "it is the codec's default"
    else:
        javas, ours = _HIGHEST.get(codec, (0, 0))
        if text.isdecimal() and ours < int(text) <= javas:
            text = str(ours)
        found.settings.append((name, "compression_level", text))


def _partitioner(found: Translation, name: str, text: str, _others: dict[str, Any]) -> None:
    known = _class_in(text, _PARTITIONERS)
    if known is not None:
        found.settings.append((name, "partitioner", _PARTITIONERS[known]))
    elif text:
        _refuse(
            found,
            name,
            text,
            f"{_NOT_RUN}, and set partitioner to a name such as murmur2, or give each message its "
            "partition",
        )
    else:
        found.without_effect[name] = "the default is Java's"


def _ignore_keys(found: Translation, name: str, text: str, others: dict[str, Any]) -> None:
    if text.lower() != "true":
        found.without_effect[name] = "keys are not ignored"
    elif others.get("partitioner.class"):
        found.without_effect[name] = "partitioner.class is set; it has no effect in Java either"
    else:
        found.settings.append((name, "partitioner", "sticky"))


def _ciphers(found: Translation, name: str, text: str, _others: dict[str, Any]) -> None:
    """Translate the names of the standard, which Java uses, to OpenSSL's."""
    given = [each.strip() for each in re.split("[,:]", text) if each.strip()]
    newest = [each for each in given if each.startswith("TLS_") and "_WITH_" not in each]
    older = [_openssl(each) for each in given if each not in newest]
    if newest and not older:
        what_to_do = "the ciphers of TLS 1.3 are always enabled; set ssl.enabled.protocols=TLSv1.3"
        _refuse(found, name, text, what_to_do)
    else:
        found.settings.append((name, "ssl_ciphers", ":".join(older)))


def _openssl(cipher: str) -> str:
    """Return OpenSSL's name of a TLS 1.2 cipher; a name that is not of the standard is kept."""
    exchange, with_, rest = cipher.removeprefix("TLS_").partition("_WITH_")
    if not with_:
        return cipher
    rest = rest.replace("AES_", "AES").replace("_CBC", "").replace("POLY1305_SHA256", "POLY1305")
    return (rest if exchange == "RSA" else f"{exchange}-{rest}").replace("_", "-")


def _tls_version(found: Translation, name: str, text: str, _others: dict[str, Any]) -> None:
    if text in _ANY_TLS:
        found.without_effect[name] = "TLS 1.2 and 1.3 are enabled by default"
    elif text == "TLSv1.2":
        found.settings.append((name, _ENABLED, text))
    else:
        _refuse(found, name, text, "only TLSv1.2 and TLSv1.3 are supported; remove it")


def _limit_versions(found: Translation, known: Mapping[str, Setting]) -> None:
    """Let ``ssl.protocol=TLSv1.2`` limit the versions that another setting enables, as in Java."""
    given = [row for row in found.settings if row[0] in known and known[row[0]].name == _ENABLED]
    if any(row[0] == "ssl.protocol" for row in found.settings):
        for row in given:
            if "TLSv1.2" in _text(row[2]).split(","):
                found.settings.remove(row)


_RULES: Final[dict[str, _Rule]] = {
    **{
        name: _without_effect(reason)
        for reason, names in _NO_EFFECT.items()
        for name in names.split()
    },
    **{name: _limited(limits) for name, limits in _LIMITED.items()},
    **dict.fromkeys(_LEVELS, _level),
    "partitioner.class": _partitioner,
    "partitioner.ignore.keys": _ignore_keys,
    "ssl.protocol": _tls_version,
    "ssl.cipher.suites": _ciphers,
}
