"""The framework-independent part of the command ``kafka_send``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import IO

from pykaproducer.delivery import Delivery
from pykaproducer.errors import PykaproducerError
from pykaproducer.producer import Producer


class SendError(Exception):
    """Not everything was delivered; the text is one line for the user of the command."""


def lines(stream: IO[bytes]) -> Iterator[bytes]:
    """Yield the lines of *stream* without their line feeds."""
    return (line.removesuffix(b"\n") for line in stream)


def headers_of(given: Sequence[str]) -> list[tuple[str, bytes]]:
    """Return headers for strings of the form ``name=value``."""
    found = []
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise SendError(f"--header {text!r}: use the form NAME=VALUE")
        found.append((name, value.encode()))
    return found


def send_lines(
    producer: Producer,
    topic: str,
    values: Iterable[bytes],
    *,
    key: str | None = None,
    headers: Sequence[str] = (),
    timeout: float | None = None,
) -> str:
    """Send each of *values*, wait until they are delivered, and return a summary.

    They are sent unchanged, or passed as str to a serializer if one is configured.

    Raises:
        SendError: a message could not be sent, or was not delivered within *timeout* seconds.
    """
    outcome = _Outcome()
    parsed = headers_of(headers)
    as_text = producer.config.value_serializer is not None
    own_key = key if producer.config.key_serializer or key is None else key.encode()
    try:
        for value in values:
            message = value.decode() if as_text else value
            producer.send(topic, message, own_key, parsed, on_delivery=outcome.add)
            outcome.sent += 1
        producer.flush(timeout)
    except (PykaproducerError, TypeError, ValueError) as error:
        raise SendError(f"after {outcome.delivered} delivered messages: {error}") from error
    if outcome.first_error is not None:
        failed = outcome.sent - outcome.delivered
        raise SendError(
            f"{failed} of {outcome.sent} messages were not delivered; first: {outcome.first_error}"
        )
    count = outcome.delivered
    return f"{count} message{'' if count == 1 else 's'} delivered to {topic}"


class _Outcome:
    """Counts of outcomes. ``add`` is called on the producer's Reports thread."""

    def __init__(self) -> None:
        self.sent = 0
        self.delivered = 0
        self.first_error: BaseException | None = None

    def add(self, error: BaseException | None, delivery: Delivery) -> None:
        if error is None:
            self.delivered += 1
        elif self.first_error is None:
            self.first_error = error
