"""The options of the sink: those of Spark's Kafka sink, checked when the write is planned.

========================= ==========================================================================
``kafka.NAME``            a producer setting, by its dotted or its Python name;
                          ``kafka.bootstrap.servers`` is required
``topic``                 topic of all rows; without it, column ``topic`` contains it
``onError``               ``fail`` (default), or ``deadletter:TOPIC``
``includeHeaders``        accepted without effect: headers are written if the column exists
``progressDirectory``     streams: the directory of a :class:`ProgressListener`, which sets it
========================= ==========================================================================

Those of exactly-once writes are in :mod:`~pykaproducer.spark.once_options`, those of
values in Avro in :mod:`~pykaproducer.spark.value_options`.

Spark itself adds ``path``, ``checkpointLocation`` and ``queryName``. The latter appears in log
messages. Names are case-insensitive, as in Spark.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pykaproducer._config.file_contents import with_contents
from pykaproducer._config.java import is_java
from pykaproducer._errors.formatting import check_topic
from pykaproducer.config import Config, canonical_name, resolve, resolve_options
from pykaproducer.errors import ConfigurationError, PykaproducerError, UnsupportedFeatureError
from pykaproducer.spark import once_options, value_options
from pykaproducer.spark.once_options import DEFAULT_TIMEOUT_MS, OnceOptions, check_transactional
from pykaproducer.spark.value_options import AvroOptions

log = logging.getLogger("pykaproducer.spark")

#: The lines on options without effect that this process has logged.
_logged: set[str] = set()

_PREFIX = "kafka."
_SERVERS = "bootstrap_servers"
#: Options that Spark adds, and options of its Kafka sink that have no effect here.
_WITHOUT_EFFECT = ("path", "checkpointlocation", "includeheaders")
#: Set by a listener, and not by users.
PROGRESS_DIRECTORY = "progressDirectory"
SPELLED = once_options.SPELLED | value_options.SPELLED
_OWN = ("topic", "onerror", "queryname", PROGRESS_DIRECTORY.lower(), *SPELLED)
#: The spelling for users.
_SPELLED = ("topic", "onError", "includeHeaders", "kafka.bootstrap.servers", *SPELLED.values())
_DEAD_LETTER = "deadletter:"
#: Options of Spark's Kafka source, with which sinks often share their options.
_OF_SOURCES = frozenset(
    (
        *("assign", "subscribe", "subscribepattern", "groupidprefix", "failondataloss"),
        *("startingoffsets", "startingtimestamp", "startingoffsetsbytimestamp"),
        *("startingoffsetsbytimestampstrategy", "endingoffsets", "endingtimestamp"),
        *("endingoffsetsbytimestamp", "fetchoffset.numretries", "fetchoffset.retryintervalms"),
        *("maxoffsetspertrigger", "minoffsetspertrigger", "maxtriggerdelay", "minpartitions"),
        "maxrecordsperpartition",
    )
)
_CREDENTIAL = "databricks.servicecredential"
_NO_SERVERS = (
    'option kafka.bootstrap.servers is missing: set it to the brokers, as "host:9092". (In SQL, '
    "Spark does not pass the OPTIONS of CREATE TABLE to a Python sink; use INSERT INTO t WITH "
    "('kafka.bootstrap.servers' = ...) SELECT ..., or CREATE TEMPORARY VIEW.)"
)


class SinkError(PykaproducerError, ValueError):
    """An option or a column of a write is invalid. Nothing was written."""


@dataclass(frozen=True)
class SinkOptions:
    """The options of a write. Hashable: workers keep a producer for each ``settings``."""

    #: The producer's settings, by canonical name, usually as text. Not shown, as they may hold a
    #: password. Certificates and keys are contents, so that only the driver needs the files.
    settings: tuple[tuple[str, Any], ...] = field(repr=False)
    #: Topic of all rows; None if each row contains it.
    topic: str | None
    #: Topic for rejected rows; None if they fail the write.
    dead_letter: str | None
    #: Name of the streaming query; None if it has no name, or for a batch.
    query: str | None = None
    #: Directory of the query's listener; None if it has none.
    progress_directory: str | None = None
    #: None: at least once.
    once: OnceOptions | None = None
    #: None: the column value is sent as it is.
    avro: AvroOptions | None = None
    #: A log line with the options that have no effect; empty if there are none.
    without_effect: str = ""

    @classmethod
    def of(cls, options: Mapping[str, str]) -> SinkOptions:
        """Parse the options of a write.

        Raises:
            SinkError: an option is unknown, missing or invalid.
        """
        settings: dict[str, str] = {}
        own: dict[str, str] = {}
        for name, text in options.items():
            lower = name.lower()
            if lower.startswith(_PREFIX):
                settings[lower.removeprefix(_PREFIX)] = text
            elif lower in _OWN or lower in _WITHOUT_EFFECT:
                own[lower] = text
            else:
                raise SinkError(_unknown(name))
        return cls.of_settings(settings, own)

    @classmethod
    def of_settings(cls, settings: Mapping[str, Any], own: Mapping[str, str]) -> SinkOptions:
        """Return the options of a write, given the sink's *own* ones and the producer's.

        Args:
            settings: the producer's, by any of their names; texts, or values as ``Producer`` takes.
            own: by their names in lower case.

        Raises:
            SinkError: an option is missing or invalid.
        """
        topic = _topic("topic", own.get("topic"))
        try:
            once = OnceOptions.of(own, topic)
            avro = AvroOptions.of(own, topic)
        except ValueError as error:
            raise SinkError(str(error)) from None
        checked, without_effect = _checked(settings, None if once is None else once.names.driver)
        return cls(
            settings=checked,
            without_effect=without_effect,
            topic=topic,
            dead_letter=_dead_letter(own.get("onerror", "fail")),
            query=own.get("queryname"),
            progress_directory=own.get(PROGRESS_DIRECTORY.lower()),
            once=once,
            avro=avro,
        )

    def for_tasks(self) -> SinkOptions:
        """Return the options without those that only the driver uses."""
        return replace(self, avro=None)

    def producer_settings(self) -> dict[str, Any]:
        """Return the producer's arguments."""
        return resolve({"client_id": "pykaproducer-spark", **dict(self.settings)}, texts=True)

    def log_without_effect(self) -> None:
        """Log the options that have no effect, once for each process."""
        if self.without_effect and self.without_effect not in _logged:
            _logged.add(self.without_effect)
            log.info("%s", self.without_effect)

    @property
    def timeout_ms(self) -> int:
        """The timeout of the tasks' transactions (milliseconds)."""
        return int(Config(**self.producer_settings()).transaction_timeout_ms)


def _checked(
    settings: Mapping[str, Any], transactional_id: str | None
) -> tuple[tuple[tuple[str, Any], ...], str]:
    """Return validated *settings* by canonical name, and a line on those without effect.

    With *transactional_id*, those of an exactly-once write. Each task replaces the id.
    """
    try:
        resolved = resolve_options(settings)
    except (ConfigurationError, UnsupportedFeatureError) as error:
        raise _as_option(error) from None
    found = dict(resolved.given)
    if "transactional_id" in found:
        raise SinkError(
            f"option {_PREFIX}transactional.id: each task needs another id; remove it, and set "
            f"exactlyOnce and transactionalIdPrefix"
        )
    try:
        if transactional_id is not None:
            check_transactional(Config(**resolve(found, texts=True)))
            found["transactional_id"] = transactional_id
            found.setdefault("transaction_timeout_ms", str(DEFAULT_TIMEOUT_MS))
        found = with_contents(found, Config(**resolve(found, texts=True)))
    except (ConfigurationError, UnsupportedFeatureError) as error:
        raise _as_option(error) from None
    except ValueError as error:
        raise SinkError(str(error)) from None
    if transactional_id is None and found.pop("transaction_timeout_ms", None) is not None:
        # Each task's producer would log this with names of settings that Spark does not accept.
        resolved.without_effect["transaction.timeout.ms"] = "exactlyOnce is false"
    if _SERVERS not in found:
        raise SinkError(_NO_SERVERS)
    return tuple(sorted(found.items())), resolved.log_line("options", _PREFIX)


def _as_option(error: PykaproducerError) -> SinkError:
    """Return the error of a setting with the name of the option."""
    first, _, rest = str(error).partition(" ")
    if first != "setting":
        return SinkError(str(error))
    name, space, rest = rest.partition(" ")
    return SinkError(f"option {_PREFIX}{name.replace('_', '.')}{space}{rest}")


def _unknown(name: str) -> str:
    lower = name.lower()
    if canonical_name(lower) is not None or is_java(lower):
        return f"option {name} is a producer setting; write it as {_PREFIX}{name}"
    if lower in _OF_SOURCES or lower.startswith("kafkaconsumer."):
        return f"option {name} is for Spark's Kafka source; a sink does not read: remove it"
    if lower.startswith(_CREDENTIAL):
        return (
            f"option {name} works in Databricks' own connector only; set "
            f"{_PREFIX}sasl.mechanism and the options that belong to it"
        )
    near = difflib.get_close_matches(name, _SPELLED, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]}?" if near else "."
    return (
        f"option {name} is unknown{hint} Options are kafka.SETTING, topic, onError, "
        f"includeHeaders, {', '.join(once_options.SPELLED.values())}, valueFormat and those that "
        f"belong to it"
    )


def _topic(option: str, name: str | None) -> str | None:
    if name is not None:
        try:
            check_topic(name)
        except ValueError as error:
            raise SinkError(f"option {option}: {error}") from None
    return name


def _dead_letter(text: str) -> str | None:
    if text.lower() == "fail":
        return None
    if not text.lower().startswith(_DEAD_LETTER):
        raise SinkError(
            f"option onError: {text!r} was given; allowed: fail, or {_DEAD_LETTER}TOPIC"
        )
    return _topic("onError", text[len(_DEAD_LETTER) :])
