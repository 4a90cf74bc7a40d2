"""Translation of librdkafka's settings to ours.

The corresponding settings are listed in :mod:`pykaproducer._config.librdkafka`. As in librdkafka,
each value is converted to a string: ``"5"`` and ``5``, ``True`` and ``"true"`` are equivalent.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pykaproducer._config.librdkafka import LIBRDKAFKA, Known, Unfit, is_of_consumers
from pykaproducer._config.schema import INT_MAX
from pykaproducer._util.compression import CODECS
from pykaproducer.confluent.errors import KafkaError, KafkaException, exception
from pykaproducer.errors import UnsupportedFeatureError

log = logging.getLogger("pykaproducer.confluent")

#: The default maximum number of messages without an outcome.
MAX_MESSAGES: Final = 100_000

#: The default of ``transaction.timeout.ms``, librdkafka's and ours.
TRANSACTION_TIMEOUT_MS: Final = 60_000

#: Settings that must be callable, and the exceptions for other values.
_CALLBACKS: Final[dict[str, Callable[[str], Exception]]] = {
    "error_cb": TypeError,
    "stats_cb": TypeError,
    "oauth_cb": TypeError,
    "throttle_cb": ValueError,
}

_PARTITIONERS: Final = {
    "murmur2": "murmur2_consistent",
    "fnv1a": "fnv1a_consistent",
    "fnv1a_random": "fnv1a",
}


@dataclass
class Translated:
    """The meaning of a dictionary of librdkafka's settings."""

    #: Settings of :class:`pykaproducer.Producer`.
    ours: dict[str, Any] = field(default_factory=dict)
    max_messages: int = MAX_MESSAGES
    only_errors: bool = False
    #: Seconds; with 0, stats_cb is never called.
    stats_interval: float = 0.0
    on_delivery: Any = None
    error_cb: Any = None
    stats_cb: Any = None
    throttle_cb: Any = None
    logger: Any = None
    #: Only its presence matters: *logger* then also receives the start-up line.
    debug: str = ""


def translate(given: Mapping[Any, Any]) -> Translated:
    """Translate *given*.

    Raises:
        KafkaException: a name or value is invalid, or requires an unsupported feature.
        TypeError, ValueError: a callback is not callable.
    """
    found = Translated()
    values = _values(_flattened(given), found)
    _complete_for_transactions(values)
    for row in LIBRDKAFKA.values():
        if row.default is not None and not row.alias_of:
            values.setdefault(row.name, row.default)
    _linger_fits(values, given)
    idempotent = values["enable.idempotence"]
    for name, value in values.items():
        row = LIBRDKAFKA[name]
        if row.ours:
            value = _OURS.get(name, _as_it_is)(value)
            if value is not None:
                found.ours[row.ours] = value
    found.max_messages = values.get("queue.buffering.max.messages", MAX_MESSAGES) or INT_MAX
    found.only_errors = values.get("delivery.report.only.error", False)
    found.debug = values.get("debug", "")
    found.stats_interval = values.get("statistics.interval.ms", 0) / 1000
    if not idempotent:
        # It has no effect without idempotence, where one batch at a time preserves ordering.
        found.ours.pop("max_in_flight_requests_per_connection", None)
    _fit_level(found.ours)
    config = values.get("sasl.oauthbearer.config", "")
    if "oauth_cb" not in given:
        if values.get("sasl.oauthbearer.metadata.authentication.type", "none") != "none":
            found.ours["sasl_oauthbearer_config"] = config or None
    else:
        found.ours["sasl_oauth_token_provider"] = TokenProvider(given["oauth_cb"], config)
    # produce() never waits for space.
    found.ours["max_block_ms"] = 0
    return found


def _flattened(given: Mapping[Any, Any]) -> dict[Any, Any]:
    flat = dict(given)
    topic = flat.pop("default.topic.config", None)
    if topic is not None:
        flat.update((name, topic[name]) for name in topic.keys())  # noqa: SIM118 - as there
    return flat


def _values(given: Mapping[Any, Any], found: Translated) -> dict[str, Any]:
    """Return the parsed values by names that are not aliases, and move callbacks to *found*."""
    values: dict[str, Any] = {}
    given_as: dict[str, str] = {}
    for name, value in given.items():
        row = LIBRDKAFKA.get(name) if isinstance(name, str) else None
        if row is None:
            raise _unknown(name)
        if _is_object(row, value, found):
            continue
        if is_of_consumers(row):
            log.warning("%s is a property of consumers and has no effect on a producer", name)
            continue
        own = row.alias_of or row.name
        read = _read(row, value)
        if own in values and values[own] != read:
            raise exception(
                KafkaError._INVALID_ARG,
                f'Configuration properties "{given_as[own]}" and "{name}" are the same and differ',
            )
        given_as[own] = str(name)
        if read is not None:
            values[own] = read
    return values


def _unknown(name: object) -> KafkaException:
    near = difflib.get_close_matches(str(name).lower().replace("_", "."), LIBRDKAFKA, n=1)
    hint = f', did you mean "{near[0]}"?' if near else ""
    return exception(KafkaError._INVALID_ARG, f'No such configuration property: "{name}"{hint}')


def _is_object(row: Known, value: Any, found: Translated) -> bool:
    """Return whether it is a setting whose value is not a text; if so, store or reject it."""
    name = row.name
    if name in _CALLBACKS:
        if not callable(value):
            raise _CALLBACKS[name](f"expected {name} property as a callable function")
    elif name == "on_delivery":
        if not callable(value):
            raise exception(KafkaError._INVALID_ARG, "on_delivery requires a callable object")
    elif name == "delivery.report.only.error" and not isinstance(value, (bool, str)):
        raise TypeError(f"Expected {name} to be bool type, not {type(value).__name__}")
    elif name != "logger":
        return False
    elif value is not None and not callable(getattr(value, "log", None)):
        raise exception(KafkaError._INVALID_ARG, "logger requires an object with a log() method")
    if name != "oauth_cb":
        setattr(found, name, value)
    return True


def _read(row: Known, value: Any) -> Any:
    """Return the parsed value of a setting, or None to treat it as not given."""
    if row.refused:
        if value is None or str(value).strip().lower() in row.harmless:
            return None
        raise _refused(row)
    if isinstance(value, (list, tuple)):
        value = ",".join(map(str, value))
    text = "" if value is None else str(value).strip()
    if row.read is str:
        return text or None
    try:
        return row.read(text)
    except Unfit as error:
        shown = "" if row.secret else f": {text}"
        raise exception(
            KafkaError._INVALID_ARG,
            f'Invalid value for configuration property "{row.name}"{shown} ({error})',
        ) from None


def _refused(row: Known) -> KafkaException:
    why = row.refused.replace("``", "")
    reason = f'Configuration property "{row.name}" is rejected: {why}'
    made = exception(KafkaError._INVALID_ARG, reason)
    made.__cause__ = UnsupportedFeatureError(reason)
    return made


def _complete_for_transactions(values: dict[str, Any]) -> None:
    """Set what ``transactional.id`` implies; raise if something explicit contradicts it."""
    if "transactional.id" not in values:
        return
    if not values.setdefault("enable.idempotence", True):
        raise exception(
            KafkaError._INVALID_ARG,
            "Failed to create producer: `transactional.id` requires `enable.idempotence=true`",
        )
    timeout = values.get("transaction.timeout.ms", TRANSACTION_TIMEOUT_MS)
    of_message = LIBRDKAFKA["message.timeout.ms"].default
    if values.setdefault("message.timeout.ms", min(timeout, of_message)) > timeout:
        raise exception(
            KafkaError._INVALID_ARG,
            "Failed to create producer: `message.timeout.ms` must be set <= "
            "`transaction.timeout.ms`",
        )


def _linger_fits(values: dict[str, Any], given: Mapping[Any, Any]) -> None:
    """Reduce a default linger to the message timeout; raise if an explicit one is longer."""
    timeout = values["message.timeout.ms"] or INT_MAX
    if values["linger.ms"] > timeout:
        if any(name in given for name in ("linger.ms", "queue.buffering.max.ms")):
            raise exception(
                KafkaError._INVALID_ARG,
                "Failed to create producer: `message.timeout.ms` must be greater than `linger.ms`",
            )
        values["linger.ms"] = timeout


def _as_it_is(value: Any) -> Any:
    return value


#: Conversions of values that differ from ours.
_OURS: Final[dict[str, Callable[[Any], Any]]] = {
    "acks": lambda value: _known_acks(value),
    "message.timeout.ms": lambda value: value or INT_MAX,
    "partitioner": lambda value: _PARTITIONERS.get(value, value),
    "compression.type": lambda value: None if value == "none" else value,
    "compression.level": lambda value: None if value < 1 else value,
    "queue.buffering.max.kbytes": lambda value: value * 1024,
    # librdkafka checks it once per second, and does not apply it to connecting.
    "socket.timeout.ms": lambda value: max(1000, value),
    "topic.metadata.refresh.interval.ms": lambda value: value if value > 0 else INT_MAX,
    "socket.send.buffer.bytes": lambda value: value or None,
    "socket.receive.buffer.bytes": lambda value: value or None,
    "security.protocol": str.upper,
    "sasl.mechanism": str.upper,
    "sasl.oauthbearer.metadata.authentication.type": lambda value: _unless(value, "none"),
    "ssl.endpoint.identification.algorithm": lambda value: value == "https",
}


def _unless(value: str, none: str) -> str | None:
    return None if value == none else value


def _known_acks(value: int) -> Any:
    if value > 1:
        raise exception(
            KafkaError._INVALID_ARG,
            f'Invalid value for configuration property "acks": {value} (must be 0, 1 or all)',
        )
    return "all" if value < 0 else value


def _fit_level(ours: dict[str, Any]) -> None:
    """Limit a level to the codec's maximum; remove it for a codec without levels."""
    level = ours.pop("compression_level", None)
    codec = CODECS.get(ours.get("compression_type") or "")
    levels = None if codec is None else codec.levels
    if level is not None and levels is not None:
        ours["compression_level"] = min(level, levels[1])


class TokenProvider:
    """``oauth_cb(config) -> (token, expires, ...)`` as our ``sasl_oauth_token_provider``."""

    def __init__(self, oauth_cb: Callable[[str], Any], config: str) -> None:
        self._oauth_cb = oauth_cb
        self._config = config
        self._extensions: dict[str, str] = {}

    def token(self) -> str:
        """Return a token for the next authentication."""
        found = self._oauth_cb(self._config)
        if len(found) > 3:
            self._extensions = dict(found[3])
        return str(found[0])

    def extensions(self) -> dict[str, str]:
        """Return the extensions of the last token."""
        return self._extensions


def librdkafka_table() -> str:
    """Return the documentation's table of all settings as reStructuredText."""
    lines = [".. list-table::", "   :header-rows: 1", "   :widths: auto", "   :class: names", ""]
    lines += ["   * - librdkafka", "     - Values", "     - Default", "     - Here"]
    for name in sorted(LIBRDKAFKA):
        row = LIBRDKAFKA[name]
        if is_of_consumers(row):
            continue
        default = "" if row.default is None or row.alias_of else f"``{row.default}``"
        values = "" if row.alias_of else row.takes
        cells = (f"``{name}``", values, default, row.support)
        lines += [f"   * - {cells[0]}", *(f"     - {cell}".rstrip() for cell in cells[1:])]
    return "\n".join(lines) + "\n"
