"""The values of the settings key_serializer and value_serializer, and how they are called."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def takes(function: Callable[..., Any], count: int) -> bool:
    """Return whether *function* accepts *count* arguments; True if that cannot be determined."""
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # written in C, without a signature
        return True
    return True


class PlainSerializer:
    """A function that takes only the value, as kafka-python calls its serializers."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function

    def __call__(self, topic: str, headers: Any, data: Any) -> Any:
        return self.function(data)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PlainSerializer) and self.function == other.function

    def __hash__(self) -> int:
        return hash(self.function)

    def __repr__(self) -> str:
        return repr(self.function)


class ObjectSerializer:
    """An object with kafka-python's method ``serialize(topic, headers, data)``."""

    def __init__(self, serializer: Any) -> None:
        self.serializer = serializer
        # kafka-python 2 had serialize(topic, data), without headers.
        self._without_headers = takes(serializer.serialize, 2) and not takes(
            serializer.serialize, 3
        )

    def __call__(self, topic: str, headers: Any, data: Any) -> Any:
        if self._without_headers:
            return self.serializer.serialize(topic, data)
        return self.serializer.serialize(topic, headers, data)

    def close(self) -> None:
        """Close the serializer if it has a method ``close``."""
        close = getattr(self.serializer, "close", None)
        if callable(close):
            close()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectSerializer) and self.serializer == other.serializer

    def __hash__(self) -> int:
        return hash(self.serializer)

    def __repr__(self) -> str:
        return repr(self.serializer)


Serializer = PlainSerializer | ObjectSerializer


def parse_serializer(value: Any) -> Serializer:
    """Wrap a callable or an object as a serializer; raise TypeError for anything else."""
    if isinstance(value, (PlainSerializer, ObjectSerializer)):
        return value
    if callable(getattr(value, "serialize", None)):
        return ObjectSerializer(value)
    if not callable(value):
        raise TypeError
    return PlainSerializer(value)
