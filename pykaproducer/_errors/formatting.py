"""Formatting of topics, partitions and error codes in messages, and the rule for topic names."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from pykaproducer._errors.kafka_python import errors as kafka_errors

#: Kafka's rule for topic names.
_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}\Z")
#: Maximum number of characters that are shown of a text from elsewhere.
_LONGEST = 200
#: A signed JWT in a server's text. It begins with a JSON object in base64, at the start of a word:
#: otherwise a long one would take a time that grows with the square of its length.
_JWT = re.compile(r"(?<![\w-])eyJ[\w-]{5,}\.[\w-]{8,}\.[\w-]+")


def check_topic(topic: object) -> None:
    """Raise if *topic* is not a valid topic name.

    Raises:
        TypeError, ValueError: it is not.
    """
    if not isinstance(topic, str):
        raise TypeError(f"topic must be str, not {type(topic).__name__}")
    if not _TOPIC_NAME.match(topic) or topic in (".", ".."):
        raise ValueError(
            f"topic {topic!r} is not a topic name: 1 to 249 letters, digits, '.', '_' or '-', "
            f"and not '.' or '..'"
        )


def format_partition(topic: str, partition: int | None = None) -> str:
    """Format a topic or a topic-partition, as in every message of this library."""
    if partition is None:
        return f"topic {topic!r}"
    return f"topic {topic!r} partition {partition}"


def one_line(text: str) -> str:
    """Return text from elsewhere in printable characters, on one line, shortened.

    Brokers, proxies and endpoints may send line breaks and escapes, which would forge lines of a
    log or control a terminal.
    """
    start = text[: 10 * _LONGEST]
    found = " ".join("".join(c for c in start if c.isprintable() or c.isspace()).split())
    return _shortened(found if len(start) == len(text) else f"{found}...")


def without_secrets(text: object, secrets: Iterable[str]) -> str:
    """Return a server's text on one line, without *secrets* of ours that it may repeat."""
    found = str(text)
    hidden = [secret for secret in secrets if secret]
    # First as it is, because a secret may contain white space, then as a server folds it.
    for secret in hidden:
        found = found.replace(secret, "<not shown>")
    found = " ".join(found.split())
    for secret in hidden:
        if folded := " ".join(secret.split()):
            found = found.replace(folded, "<not shown>")
    return one_line(_JWT.sub("<not shown>", found))


def name_shown(name: str) -> str:
    """Return a name that another client has chosen as a single printable word, shortened.

    A name that is not one, or might pass for a quoted one, is quoted, with escapes.
    """
    is_word = name.isprintable() and not set(name) & {" ", "'", '"'} and name
    return _shortened(name if is_word else ascii(name))


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def counted(count: int, noun: str) -> str:
    """Format a number and what it counts: ``"1 row"``, ``"2,000 rows"``."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def format_partition_numbers(count: int) -> str:
    """Format the numbers of *count* partitions: ``"only partition 0"``, ``"partitions 0 to 5"``."""
    return "only partition 0" if count == 1 else f"partitions 0 to {count - 1}"


def kafka_class(code: int) -> type[Any]:
    """Return the class of :mod:`kafka.errors` for *code*, or ``UnknownError``."""
    found: type[Any] = kafka_errors.kafka_errors.get(code, kafka_errors.UnknownError)
    return found


def format_error_code(code: int) -> str:
    """Format an error code with Kafka's name for it: ``"NOT_ENOUGH_REPLICAS (19)"``."""
    kind = kafka_class(code)
    name = kind.message if kind.errno == code and kind.message else "unknown error code"
    return f"{name} ({code})"
