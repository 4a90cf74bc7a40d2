"""Resolve user-supplied names and values to settings, and report the unknown ones.

An unknown name is an error, and all unknown names are reported together. In a properties file it
is a warning, as in the Java client, because such files are shared with other programs and contain
their settings. A name that requires an unsupported feature is an error there, too.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pykaproducer._config.librdkafka import LIBRDKAFKA, is_of_consumers
from pykaproducer._config.schema import Setting, shown
from pykaproducer.errors import ConfigurationError, UnsupportedFeatureError

log = logging.getLogger("pykaproducer.config")

#: The minimum similarity of a name that is suggested instead of an unknown one.
_NEAR = 0.72

_CONSUMER = "it is a consumer setting"
_REGISTRY = "it is a serializer setting; configure the serializer itself"
_CLASS = "it names a Java class; use a callable instead"

#: Reason -> names of the Java client, and of programs that share its files, accepted in a file.
_NOT_MEANT_FOR_US = {
    _CONSUMER: "group_id auto_offset_reset consumer_timeout_ms max.poll.records "
    "auto.include.jmx.reporter default.api.timeout.ms exclude.internal.topics "
    "enable_auto_commit key_deserializer value_deserializer key.deserializer value.deserializer",
    _REGISTRY: "schema.registry.url basic.auth.credentials.source basic.auth.user.info "
    "schema.registry.basic.auth.user.info auto.register.schemas use.latest.version",
    _CLASS: "partitioner.class interceptor.classes config.providers security.providers "
    "sasl.client.callback.handler.class sasl.login.class sasl.oauthbearer.jwt.validator.class "
    "ssl.engine.factory.class",
    "set compression_level, which applies to every compression_type": "compression.gzip.level "
    "compression.lz4.level compression.zstd.level",
    "the partitioner sticky ignores keys": "partitioner.ignore.keys",
    "use partitioner_adaptive_partitioning_enable": "partitioner.availability.timeout.ms",
    "there is only one level": "metrics.recording.level",
    "two-phase commit (KIP-939) is not supported": "transaction.two.phase.commit.enable",
    "Python's ssl and its OpenSSL decide": "ssl.protocol ssl.provider ssl.enabled.protocols "
    "ssl.keymanager.algorithm ssl.trustmanager.algorithm ssl.secure.random.implementation",
    "tokens are renewed after 80 to 85 % of their lifetime": "sasl.login.refresh.window.factor "
    "sasl.login.refresh.window.jitter sasl.login.refresh.min.period.seconds "
    "sasl.login.refresh.buffer.seconds",
    "brokers validate tokens": "sasl.oauthbearer.clock.skew.seconds "
    "sasl.oauthbearer.expected.audience sasl.oauthbearer.expected.issuer "
    "sasl.oauthbearer.jwks.endpoint.url sasl.oauthbearer.jwks.endpoint.refresh.ms "
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms "
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms sasl.oauthbearer.scope.claim.name "
    "sasl.oauthbearer.sub.claim.name",
    "the Kerberos library renews tickets": ""
    "sasl.kerberos.ticket.renew.window.factor sasl.kerberos.ticket.renew.jitter",
}

#: Name -> why it is not a producer setting.
_FOREIGN = {name: reason for reason, names in _NOT_MEANT_FOR_US.items() for name in names.split()}


def resolve_settings(
    settings: Mapping[str, Any],
    known: Mapping[str, Setting],
    *,
    texts: bool,
    file: bool,
) -> dict[str, Any]:
    """Return *settings* by our own names, validated; *known* has the rows by every name."""
    found: dict[str, Any] = {}
    given_as: dict[str, str] = {}
    unknown = [name for name in settings if name not in known]
    if file:
        unknown += [name for name in settings if name not in unknown and not known[name].kind.read]
    _report_unknown(unknown, known, file=file)
    for name, given in settings.items():
        if name in unknown:
            continue
        row = known[name]
        as_text = isinstance(given, str) and (texts or name != row.name)
        value = row.read(given, name) if as_text else row.parse(given, name)
        if row.name in found and found[row.name] != value:
            _refuse_two(row, given_as[row.name], name, found[row.name], value)
        if row.refused and value != row.default:
            raise UnsupportedFeatureError(f"setting {name}: {row.refused}")
        found[row.name] = value
        given_as[row.name] = name
    return found


def _refuse_two(row: Setting, first: str, second: str, one: Any, other: Any) -> None:
    values = "" if row.secret else f", {row.shown(one)} and {row.shown(other)}"
    raise ConfigurationError(
        f"settings {first} and {second} are the same setting, {row.name}, and were given "
        f"different values{values}: keep one of them"
    )


# Unknown names ------------------------------------------------------------------------------------


def _report_unknown(names: Iterable[Any], known: Mapping[str, Setting], *, file: bool) -> None:
    reasons = {name: _reason(name, known) for name in names}
    wrong = {name: text for name, (text, may_stay) in reasons.items() if not (file and may_stay)}
    if wrong:
        raise ConfigurationError(_sentence(wrong))
    consumers = [name for name, (text, _) in reasons.items() if text.endswith(_CONSUMER)]
    rest = {name: text for name, (text, _) in reasons.items() if name not in consumers}
    if consumers:
        log.info("ignored consumer settings: %s", ", ".join(consumers))
    if rest:
        log.warning("ignored: %s", _sentence(rest))


def _sentence(reasons: Mapping[Any, str]) -> str:
    texts = [f"{_shown(name)} {text}" for name, text in reasons.items()]
    if len(texts) == 1:
        return f"setting {texts[0]}"
    return f"{len(texts)} unknown producer settings: {'; '.join(texts)}"


def _shown(name: Any) -> str:
    """Return the name on one line, shortened if it is long."""
    if isinstance(name, str) and name.isprintable() and 0 < len(name) <= 80:
        return name
    return shown(name)


def _reason(name: Any, known: Mapping[str, Setting]) -> tuple[str, bool]:
    """Return the predicate that says why *name* is rejected, and whether a file may have it."""
    if not isinstance(name, str):
        return f"is unknown: a name is a string, not {type(name).__name__}", False
    if name in known:
        return f"is ignored: {_CLASS}", True
    bare = name.removeprefix("kafka.").removeprefix("producer.")
    if bare in known:
        return f"is unknown; without the prefix it is a setting: {bare}", True
    foreign = _foreign(name)
    if foreign is not None:
        return foreign
    near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=_NEAR)
    if not near:
        return "is unknown, and no setting has a similar name", True
    own = known[near[0]].name
    also = f" (that is {own})" if "." in near[0] and near[0] != own else ""
    return f"is unknown; the most similar setting is {near[0]}{also}", True


def _foreign(name: str) -> tuple[str, bool] | None:
    """Return the same for a name of another library, or None if it is not one."""
    for spelling in (name, name.replace("_", ".")):
        if spelling in _FOREIGN:
            return f"is not a producer setting: {_FOREIGN[spelling]}", True
        row = LIBRDKAFKA.get(spelling)
        if row is None:
            continue
        if is_of_consumers(row):
            return f"is not a producer setting: {_CONSUMER}", True
        if row.ours:
            return f"is librdkafka's name; here it is {row.ours}", False
        if row.here:
            return "is supported by pykaproducer.confluent.Producer only", True
        if row.no_effect:
            return f"is a librdkafka setting that is not needed here: {_plain(row.no_effect)}", True
        return f"is a librdkafka setting that is not supported: {_plain(row.refused)}", False
    return None


def _plain(text: str) -> str:
    """Return a reason from LIBRDKAFKA without the words for users of pykaproducer.confluent."""
    text = text.replace("oauth_cb", "sasl_oauth_token_provider").replace("our own Producer ", "")
    return text.replace("``", "")


# Known settings without effect --------------------------------------------------------------------

#: Prefix of a group -> the setting that turns the group on, and the test of its value. (Unused
#: security settings are errors: see ``_config/security_validation.py``.)
_GROUPS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "metrics_": ("metrics_enabled", bool),
    "transaction_": ("transactional_id", bool),
}


def ignored_settings(
    found: Mapping[str, Any], known: Mapping[str, Setting], value_of: Callable[[str], Any]
) -> list[str]:
    """Return warnings for settings without effect, because the feature they belong to is off."""
    warnings = []
    for prefix, (switch, is_on) in _GROUPS.items():
        names = [
            name
            for name, value in found.items()
            if name.startswith(prefix) and name != switch and value != known[name].default
        ]
        if names and not is_on(value_of(switch)):
            setting = "setting" if len(names) == 1 else "settings"
            warnings.append(
                f"{setting} {', '.join(names)}: no effect, because {switch} is {value_of(switch)!r}"
            )
    return warnings
