"""Checks and conversions of the arguments of ``produce()`` and ``produce_batch()``."""

from __future__ import annotations

from typing import Any

from pykaproducer._errors.formatting import check_topic

#: The arguments of produce() after the topic.
Row = tuple[Any, Any, int, Any, None, int, Any]


def check_batch(topic: object, messages: object, partition: object) -> None:
    """Raise TypeError if an argument of a batch has a wrong type."""
    if not isinstance(topic, str):
        raise TypeError(f"argument 1 must be str, not {type(topic).__name__}")
    if not isinstance(messages, list):
        raise TypeError("messages must be a list")
    if not isinstance(partition, int):
        raise TypeError("partition must be int")


def checked_rows(
    messages: list[Any], partition: int, callbacks: tuple[object, object]
) -> list[Row]:
    """Return the arguments of produce() for each message, with the batch's values as defaults.

    Raises:
        TypeError: something has a wrong type.
        NotImplementedError: a message has a timestamp.
    """
    return [_row(at, one, partition, callbacks) for at, one in enumerate(messages)]


def _row(at: int, message: object, partition: int, callbacks: tuple[object, object]) -> Row:
    if not isinstance(message, dict):
        raise TypeError(f"Message at index {at} must be a dict")
    for field in ("value", "key"):
        if not isinstance(message.get(field), (bytes, str, type(None))):
            raise TypeError(f"Message {field} at index {at} must be bytes or str")
    place = message.get("partition", partition)
    if not isinstance(place, int):
        raise TypeError(f"Message partition at index {at} must be int")
    if message.get("timestamp"):
        raise NotImplementedError(
            "Message timestamps are not currently supported in batch mode: use produce()"
        )
    own = [message.get("on_delivery"), message.get("callback"), *callbacks]
    callback = next((one for one in own if one is not None), None)
    headers = message.get("headers")
    return (message.get("value"), message.get("key"), place, callback, None, 0, headers)


def seconds(timeout: object) -> float | None:
    """Return a timeout in seconds, or None if it is negative."""
    if not isinstance(timeout, (int, float)):
        raise TypeError(f"must be real number, not {type(timeout).__name__}")
    return None if timeout < 0 else timeout


def is_topic(topic: object) -> bool:
    """Return whether *topic* is a valid topic name."""
    try:
        check_topic(topic)
    except ValueError:
        return False
    return True


def headers_of(given: Any) -> list[tuple[str, bytes | None]]:
    """Return headers in the form that our producer accepts."""
    if isinstance(given, dict):
        pairs: Any = given.items()
    elif isinstance(given, list):
        pairs = given
    else:
        kind = type(given).__name__
        raise TypeError(f"expected headers to be dict or list of (key, value) tuples, not {kind}")
    found = []
    for pair in pairs:
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise TypeError("Headers are expected to be a list of (key, value) tuples")
        name, value = pair
        if isinstance(value, str):
            value = value.encode()
        elif value is not None and not isinstance(value, bytes):
            kind = type(value).__name__
            raise TypeError(
                f"expected header value to be None, binary, or unicode string, not {kind}"
            )
        found.append((name.decode() if isinstance(name, bytes) else str(name), value))
    return found
