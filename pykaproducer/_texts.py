"""How the texts of this library call things: topics, partitions, Kafka's error codes; and what
topics may be called."""

from __future__ import annotations

import re
from typing import Any

from kafka import errors as kafka_errors

#: Kafka's rule for topic names.
_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}\Z")


def check_topic(topic: object) -> None:
    """Raise if a topic cannot be called so.

    Raises:
        TypeError, ValueError: it cannot.
    """
    if not isinstance(topic, str):
        raise TypeError(f"topic must be str, not {type(topic).__name__}")
    if not _TOPIC_NAME.match(topic) or topic in (".", ".."):
        raise ValueError(
            f"topic {topic!r} is not a topic name: 1 to 249 letters, digits, '.', '_' or '-', "
            f"and not '.' or '..'"
        )


def place(topic: str, partition: int | None = None) -> str:
    """A topic or a topic-partition, as every message of this library writes it."""
    if partition is None:
        return f"topic {topic!r}"
    return f"topic {topic!r} partition {partition}"


def kafka_class(code: int) -> type[Any]:
    """The class of :mod:`kafka.errors` for an error code; ``UnknownError`` if it has none."""
    found: type[Any] = kafka_errors.kafka_errors.get(code, kafka_errors.UnknownError)
    return found


def code_text(code: int) -> str:
    """Kafka's name for an error code, and the code: ``"NOT_ENOUGH_REPLICAS (19)"``."""
    kind = kafka_class(code)
    name = kind.message if kind.errno == code and kind.message else "unknown error code"
    return f"{name} ({code})"
