"""How the texts of this library call things: topics, partitions, Kafka's error codes."""

from __future__ import annotations

from typing import Any

from kafka import errors as kafka_errors


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
