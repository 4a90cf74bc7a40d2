"""Calls serializers, and says which one an error comes from."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any


def serialized(
    setting: str,
    serializer: Callable[..., Any] | None,
    topic: str,
    headers: Any,
    data: Any,
    row: int | None = None,
) -> Any:
    """Return what the *serializer* makes of a key or a value.

    *setting*, and the *row* of a block, are for its errors.
    """
    if serializer is None:
        return data
    try:
        made = serializer(topic, headers, data)
    except Exception as error:
        which = "a message" if row is None else f"row {row}"
        error.add_note(f"raised by {setting} for {which} to topic {topic!r}")
        if row is not None:
            with contextlib.suppress(AttributeError):  # of a class without a __dict__
                error.row = row  # type: ignore[attr-defined]
        raise
    if made is not None and not isinstance(made, bytes | bytearray | memoryview):
        wrong = TypeError(
            ("" if row is None else f"row {row}: ")
            + f"{setting} returned {type(made).__name__}; it must return bytes, bytearray, "
            f"memoryview or None (encode a str with .encode())"
        )
        if row is not None:
            wrong.row = row  # type: ignore[attr-defined]
        raise wrong
    return made
