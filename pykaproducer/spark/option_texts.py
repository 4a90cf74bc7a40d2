"""The values of options, which Spark passes as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_BOOLEANS: Final = {"true": True, "false": False}


def boolean(options: Mapping[str, str], key: str, name: str) -> bool:
    """Return the value of the option *key*, in upper or lower case; False if it is not given.

    Args:
        options: by key.
        key: of the option.
        name: the spelling of the option for users, for the error.

    Raises:
        ValueError: it is neither ``true`` nor ``false``.
    """
    text = options.get(key, "false")
    found = _BOOLEANS.get(text.lower())
    if found is None:
        raise ValueError(f"option {name}: {text!r} was given; allowed: true, false")
    return found
