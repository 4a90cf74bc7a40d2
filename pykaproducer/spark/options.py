"""The options of the sink: those of Spark's Kafka sink, checked when the write is planned.

========================= ==========================================================================
``kafka.NAME``            a producer setting, by its dotted or its Python name;
                          ``kafka.bootstrap.servers`` is required
``topic``                 topic of all rows; without it, column ``topic`` contains it
``onError``               ``fail`` (default), or ``deadletter:TOPIC``
``includeHeaders``        accepted without effect: headers are written if the column exists
========================= ==========================================================================

Spark itself adds ``path``, ``checkpointLocation`` and ``queryName``. The latter appears in log
messages. Names are case-insensitive, as in Spark.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pykaproducer._errors.formatting import check_topic
from pykaproducer.config import Config, canonical_name, resolve
from pykaproducer.errors import ConfigurationError, PykaproducerError, UnsupportedFeatureError

_PREFIX = "kafka."
_SERVERS = "bootstrap_servers"
#: Options that Spark adds, and options of its Kafka sink that have no effect here.
_WITHOUT_EFFECT = ("path", "checkpointlocation", "includeheaders")
_OWN = ("topic", "onerror", "queryname")
#: The spelling for users.
_SPELLED = ("topic", "onError", "includeHeaders", "kafka.bootstrap.servers")
_DEAD_LETTER = "deadletter:"
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

    #: The producer's settings, by canonical name, as text. Not shown, as they may hold a password.
    settings: tuple[tuple[str, str], ...] = field(repr=False)
    #: Topic of all rows; None if each row contains it.
    topic: str | None
    #: Topic for rejected rows; None if they fail the write.
    dead_letter: str | None
    #: Name of the streaming query; None if it has no name, or for a batch.
    query: str | None = None

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
        return cls(
            settings=_checked(settings),
            topic=_topic("topic", own.get("topic")),
            dead_letter=_dead_letter(own.get("onerror", "fail")),
            query=own.get("queryname"),
        )

    def producer_settings(self) -> dict[str, Any]:
        """Return the producer's arguments."""
        return resolve({"client_id": "pykaproducer-spark", **dict(self.settings)}, texts=True)


def _checked(settings: dict[str, str]) -> tuple[tuple[str, str], ...]:
    """Return validated *settings* by canonical name."""
    try:
        transactional = Config(**resolve(settings, texts=True)).transactional_id is not None
    except (ConfigurationError, UnsupportedFeatureError) as error:
        text = str(error)
        if text.startswith("setting "):
            text = f"option {_PREFIX}{text.removeprefix('setting ')}"
        raise SinkError(text) from None
    if transactional:
        raise SinkError(
            f"option {_PREFIX}transactional.id: the sink does not use transactions; remove it"
        )
    found = {canonical_name(name) or name: text for name, text in settings.items()}
    if _SERVERS not in found:
        raise SinkError(_NO_SERVERS)
    return tuple(sorted(found.items()))


def _unknown(name: str) -> str:
    if canonical_name(name.lower()) is not None:
        return f"option {name} is a producer setting; write it as {_PREFIX}{name}"
    near = difflib.get_close_matches(name, _SPELLED, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]}?" if near else "."
    return f"option {name} is unknown{hint} Options are topic, onError and kafka.SETTING"


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
