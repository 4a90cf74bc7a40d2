"""From the names and values that somebody gave to the settings that they mean; or what to say.

A name that is no setting here is an error, and all of them are told at once. In a properties file
it is a warning, as with the Java client: such files are shared with other programs, and hold what
is theirs. A name that asks for what cannot be had is an error there, too.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pykaproducer._librdkafka import LIBRDKAFKA, is_of_consumers
from pykaproducer._settings import Setting, shown
from pykaproducer.errors import ConfigurationError, UnsupportedFeatureError

log = logging.getLogger("pykaproducer.config")

#: How like another name one must be to be taken for a slip.
_NEAR = 0.72

_CONSUMER = "a setting of consumers"
_REGISTRY = "a setting of serializers; they are callables here, which know theirs"
_CLASS = "it names a class of Java; give a callable instead"

#: Reason -> names of the Java client, and of what shares its files, that a file may have.
_NOT_MEANT_FOR_US = {
    _CONSUMER: "group_id auto_offset_reset consumer_timeout_ms max.poll.records "
    "auto.include.jmx.reporter default.api.timeout.ms exclude.internal.topics "
    "enable_auto_commit key_deserializer value_deserializer key.deserializer value.deserializer",
    _REGISTRY: "schema.registry.url basic.auth.credentials.source basic.auth.user.info "
    "schema.registry.basic.auth.user.info auto.register.schemas use.latest.version",
    _CLASS: "partitioner.class interceptor.classes config.providers security.providers "
    "sasl.client.callback.handler.class sasl.login.callback.handler.class sasl.login.class "
    "ssl.engine.factory.class",
    "compression_level is the level of whichever compression_type": "compression.gzip.level "
    "compression.lz4.level compression.zstd.level",
    "what is not used is forgotten by itself": "metadata.max.idle.ms",
    "the partitioner sticky ignores keys": "partitioner.ignore.keys",
    "partitioner_adaptive_partitioning_enable looks after it": ""
    "partitioner.availability.timeout.ms",
    "there is one level": "metrics.recording.level",
    "setting up a connection may take 10 s": "socket.connection.setup.timeout.max.ms",
    "it belongs to transactions, which are not built": "transaction.two.phase.commit.enable",
    "Python's ssl and its OpenSSL decide": "ssl.protocol ssl.provider ssl.enabled.protocols "
    "ssl.keymanager.algorithm ssl.trustmanager.algorithm ssl.secure.random.implementation",
    "tokens are asked for when they are needed": "sasl.login.refresh.window.factor "
    "sasl.login.refresh.window.jitter sasl.login.refresh.min.period.seconds "
    "sasl.login.refresh.buffer.seconds sasl.login.connect.timeout.ms sasl.login.read.timeout.ms "
    "sasl.login.retry.backoff.ms sasl.login.retry.backoff.max.ms",
    "tickets are kept by the system's Kerberos: run kinit": ""
    "sasl.kerberos.ticket.renew.window.factor sasl.kerberos.ticket.renew.jitter",
}

#: Name -> why it is none.
_FOREIGN = {name: reason for reason, names in _NOT_MEANT_FOR_US.items() for name in names.split()}


def settings_of(
    settings: Mapping[str, Any],
    known: Mapping[str, Setting],
    *,
    texts: bool,
    file: bool,
) -> dict[str, Any]:
    """What *settings* mean, by our own names, checked; *known*: the rows by every name."""
    found: dict[str, Any] = {}
    given_as: dict[str, str] = {}
    strangers = [name for name in settings if name not in known]
    if file:
        strangers += [
            name for name in settings if name not in strangers and not known[name].kind.read
        ]
    _tell_of_strangers(strangers, known, file=file)
    for name, given in settings.items():
        if name in strangers:
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
    values = "" if row.secret else f", {shown(one)} and {shown(other)}"
    raise ConfigurationError(
        f"settings {first} and {second} are the same setting, {row.name}, and were given "
        f"different values{values}: keep one of them"
    )


# Names that are no settings here -----------------------------------------------------------------


def _tell_of_strangers(names: Iterable[Any], known: Mapping[str, Setting], *, file: bool) -> None:
    told = {name: _reason(name, known) for name in names}
    wrong = {name: text for name, (text, may_stay) in told.items() if not (file and may_stay)}
    if wrong:
        raise ConfigurationError(_sentence(wrong))
    consumers = [name for name, (text, _) in told.items() if text.endswith(_CONSUMER)]
    rest = {name: text for name, (text, _) in told.items() if name not in consumers}
    if consumers:
        log.info("left out, as they are settings of consumers: %s", ", ".join(consumers))
    if rest:
        log.warning("left out: %s", _sentence(rest))


def _sentence(told: Mapping[Any, str]) -> str:
    texts = [f"{_shown(name)} {text}" for name, text in told.items()]
    if len(texts) == 1:
        return f"setting {texts[0]}"
    return f"{len(texts)} settings are none of this producer's: {'; '.join(texts)}"


def _shown(name: Any) -> str:
    """The name, on one line and not too long."""
    if isinstance(name, str) and name.isprintable() and 0 < len(name) <= 80:
        return name
    return shown(name)


def _reason(name: Any, known: Mapping[str, Setting]) -> tuple[str, bool]:
    """Why *name* is no setting, in words that follow it; whether a file may have it."""
    if not isinstance(name, str):
        return f"is not known: a name is a text, not a {type(name).__name__}", False
    if name in known:
        return f"is left out: {_CLASS}", True
    bare = name.removeprefix("kafka.").removeprefix("producer.")
    if bare in known:
        return f"is not known; without the prefix it is: {bare}", True
    foreign = _foreign(name)
    if foreign is not None:
        return foreign
    near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=_NEAR)
    if not near:
        return "is not known, nor is one that is like it", True
    own = known[near[0]].name
    also = f" (that is {own})" if "." in near[0] and near[0] != own else ""
    return f"is not known; the nearest known one is {near[0]}{also}", True


def _foreign(name: str) -> tuple[str, bool] | None:
    """What is known of a name of another library's."""
    for spelling in (name, name.replace("_", ".")):
        if spelling in _FOREIGN:
            return f"is not one of a producer's: {_FOREIGN[spelling]}", True
        row = LIBRDKAFKA.get(spelling)
        if row is None:
            continue
        if is_of_consumers(row):
            return f"is not one of a producer's: {_CONSUMER}", True
        if row.ours:
            return f"is librdkafka's; here it is {row.ours}", False
        if row.here:
            return "is one of pykaproducer.confluent.Producer's only", True
        if row.no_effect:
            return f"is librdkafka's, and not needed here: {_plain(row.no_effect)}", True
        return f"is librdkafka's, and refused here: {_plain(row.refused)}", False
    return None


def _plain(text: str) -> str:
    """A reason of LIBRDKAFKA's, which is told to those who have pykaproducer.confluent."""
    text = text.replace("oauth_cb", "sasl_oauth_token_provider").replace("our own Producer ", "")
    return text.replace("``", "")


# Settings that are known and idle -----------------------------------------------------------------

#: How the names of a group begin -> the setting that turns it on, and whether a value does. (Those
#: of security are refused when they are idle: ``_security_checks.py``.)
_GROUPS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "metrics_": ("metrics_enabled", bool),
    "transaction_": ("transactional_id", bool),
}


def idle(
    found: Mapping[str, Any], known: Mapping[str, Setting], value_of: Callable[[str], Any]
) -> list[str]:
    """What to say of settings that were given and do nothing, for what they belong to is off."""
    said = []
    for prefix, (switch, is_on) in _GROUPS.items():
        names = [
            name
            for name, value in found.items()
            if name.startswith(prefix) and name != switch and value != known[name].default
        ]
        if names and not is_on(value_of(switch)):
            setting = "setting" if len(names) == 1 else "settings"
            said.append(
                f"{setting} {', '.join(names)}: without effect, as {switch} is {value_of(switch)!r}"
            )
    return said
