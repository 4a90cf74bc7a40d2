"""Resolve user-supplied names and values to settings, and report the unknown ones.

An unknown name is an error, and all unknown names are reported together. In a properties file it
is a warning, as in the Java client, because such files are shared with other programs and contain
their settings. A name that requires an unsupported feature is an error there, too. Settings that
only the Java client has are in ``_config/java.py``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pykaproducer._config.java import translate
from pykaproducer._config.librdkafka import LIBRDKAFKA, is_of_consumers
from pykaproducer._config.schema import Setting, differ, shown
from pykaproducer.errors import ConfigurationError, UnsupportedFeatureError

log = logging.getLogger("pykaproducer.config")

#: The minimum similarity of a name that is suggested instead of an unknown one.
_NEAR = 0.72

_CONSUMER = "it is a consumer setting"
_REGISTRY = "it is a serializer setting; configure the serializer itself"

#: Reason -> names of the Java client, and of programs that share its files, accepted in a file.
_NOT_MEANT_FOR_US = {
    _CONSUMER: "group_id auto_offset_reset consumer_timeout_ms max.poll.records "
    "default.api.timeout.ms exclude.internal.topics "
    "enable_auto_commit key_deserializer value_deserializer key.deserializer value.deserializer",
    _REGISTRY: "schema.registry.url basic.auth.credentials.source basic.auth.user.info "
    "schema.registry.basic.auth.user.info auto.register.schemas use.latest.version",
}

#: Name -> why it is not a producer setting.
_FOREIGN = {name: reason for reason, names in _NOT_MEANT_FOR_US.items() for name in names.split()}


@dataclass(frozen=True)
class Resolved:
    """A program's settings, by our own names."""

    #: Validated.
    values: dict[str, Any] = field(default_factory=dict, repr=False)
    #: As given, or translated, for :func:`resolve_settings`.
    given: dict[str, Any] = field(default_factory=dict, repr=False)
    #: Settings of the Java client that have no effect, by the name that was given, with the reason.
    without_effect: dict[str, str] = field(default_factory=dict)

    def log_line(self, what: str = "settings", prefix: str = "") -> str:
        """Return the line that lists the settings without effect; empty if there are none.

        Args:
            what: what the program calls them.
            prefix: of their names.
        """
        names: dict[str, list[str]] = {}
        for name, reason in self.without_effect.items():
            names.setdefault(reason, []).append(prefix + name)
        texts = [f"{', '.join(each)} ({reason})" for reason, each in names.items()]
        return f"{what} without effect: {'; '.join(texts)}" if texts else ""

    def log_without_effect(self, who: str = "") -> None:
        """Log the line, if there is one; it begins with *who*."""
        if self.without_effect:
            log.info("%s%s", who, self.log_line())


def resolve_settings(
    settings: Mapping[str, Any],
    known: Mapping[str, Setting],
    *,
    texts: bool,
    file: bool,
) -> Resolved:
    """Return *settings* by our own names, validated; *known* has the rows by every name."""
    java = translate(settings, known)
    found = Resolved(without_effect=java.without_effect)
    given_as: dict[str, str] = {}
    unknown = [name for _, name, _ in java.settings if name not in known]
    if file:
        unknown += [name for _, name, _ in java.settings if _is_object(known.get(name))]
    _report_unknown(unknown, java.refused, known, file=file)
    for name, own, given in java.settings:
        if own in unknown:
            continue
        row = known[own]
        as_text = isinstance(given, str) and (texts or name != row.name)
        value = row.read(given, name) if as_text else row.parse(given, name)
        if row.name in found.values and differ(found.values[row.name], value):
            _refuse_two(row, given_as[row.name], name, found.values[row.name], value)
        if row.refused and differ(value, row.default):
            raise UnsupportedFeatureError(f"setting {name}: {row.refused}")
        if row.no_effect and name != row.name:
            found.without_effect[name] = row.no_effect
        found.values[row.name] = value
        found.given[row.name] = given
        given_as[row.name] = name
    return found


def _is_object(row: Setting | None) -> bool:
    """Return whether the values of a setting cannot be given as strings."""
    return row is not None and row.kind.read is None


def _refuse_two(row: Setting, first: str, second: str, one: Any, other: Any) -> None:
    values = "" if row.secret else f", {row.shown(one)} and {row.shown(other)}"
    raise ConfigurationError(
        f"settings {first} and {second} are the same setting, {row.name}, and were given "
        f"different values{values}: keep one of them"
    )


# Unknown names ------------------------------------------------------------------------------------


def _report_unknown(
    names: Iterable[Any],
    refused: Mapping[str, str],
    known: Mapping[str, Setting],
    *,
    file: bool,
) -> None:
    """Raise for *names*, and for Java's that are *refused*; in a file, log those that may stay."""
    reasons = {name: _reason(name, known) for name in names}
    reasons |= {name: (text, True) for name, text in refused.items()}
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
        return "is ignored: it cannot be given as a string", True
    bare = name.removeprefix("kafka.").removeprefix("producer.")
    if bare in known:
        return f"is unknown; without the prefix it is a setting: {bare}", True
    foreign = _foreign(name)
    if foreign is not None:
        return foreign
    import difflib  # only for an error

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
