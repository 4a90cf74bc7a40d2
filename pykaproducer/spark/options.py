"""The options of the sink: those of Spark's Kafka sink, checked where the write is planned.

========================= ==========================================================================
``kafka.NAME``            a setting of the producer, by its dotted name or our own; of them
                          ``kafka.bootstrap.servers`` must be given
``topic``                 where all rows go; without it, column ``topic`` says it for each
``onError``               ``fail`` (default), or ``deadletter:TOPIC``
``includeHeaders``        accepted: headers are written whenever the column is there
========================= ==========================================================================

Spark adds ``path``, ``checkpointLocation`` and ``queryName`` by itself; the last of them names the
lines of the log. Names are without regard to case, as in Spark.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pykaproducer._texts import check_topic
from pykaproducer.config import Config, own_name, resolve
from pykaproducer.errors import ConfigurationError, PykaproducerError, UnsupportedFeatureError

_PREFIX = "kafka."
_SERVERS = "bootstrap_servers"
#: What Spark adds to the user's options, and what its Kafka sink takes without an effect here.
_WITHOUT_EFFECT = ("path", "checkpointlocation", "includeheaders")
_OWN = ("topic", "onerror", "queryname")
#: As users write them.
_SPELLED = ("topic", "onError", "includeHeaders", "kafka.bootstrap.servers")
_DEAD_LETTER = "deadletter:"
_NO_SERVERS = (
    'option kafka.bootstrap.servers is missing: name the brokers, as "host:9092". (In SQL: Spark '
    "does not hand the OPTIONS of a CREATE TABLE to a sink in Python; write INSERT INTO t WITH "
    "('kafka.bootstrap.servers' = ...) SELECT ..., or use CREATE TEMPORARY VIEW.)"
)


class SinkError(PykaproducerError, ValueError):
    """An option or a column of a write is wrong; it is named. Nothing was written."""


@dataclass(frozen=True)
class SinkOptions:
    """What a write was asked for. Hashable: workers keep a producer for each ``settings``."""

    #: The producer's settings, by their own names, as texts.
    settings: tuple[tuple[str, str], ...]
    #: Where all rows go; None: each row says it.
    topic: str | None
    #: Where rows go that are refused; None: they fail the write.
    dead_letter: str | None
    #: How the streaming query is called; None: it has no name, or this is a batch.
    query: str | None = None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> SinkOptions:
        """The options of a write.

        Raises:
            SinkError: one is unknown, missing or impossible.
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
        """What the producer is made with."""
        return resolve({"client_id": "pykaproducer-spark", **dict(self.settings)}, texts=True)


def _checked(settings: dict[str, str]) -> tuple[tuple[str, str], ...]:
    """*settings* by their own names, if a producer can be made of them."""
    try:
        Config(**resolve(settings, texts=True))
    except (ConfigurationError, UnsupportedFeatureError) as error:
        text = str(error)
        if text.startswith("setting "):
            text = f"option {_PREFIX}{text.removeprefix('setting ')}"
        raise SinkError(text) from None
    found = {own_name(name) or name: text for name, text in settings.items()}
    if _SERVERS not in found:
        raise SinkError(_NO_SERVERS)
    return tuple(sorted(found.items()))


def _unknown(name: str) -> str:
    if own_name(name.lower()) is not None:
        return f"option {name} is a setting of the producer: write it as {_PREFIX}{name}"
    near = difflib.get_close_matches(name, _SPELLED, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]}?" if near else "."
    return f"option {name} is not known{hint} Options are topic, onError and kafka.SETTING"


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
