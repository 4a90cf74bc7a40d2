"""The kinds of values that the settings of TLS and SASL accept."""

from __future__ import annotations

import os
from typing import Any, Final

from pykaproducer._config.schema import Kind, WrongValueError, optional, parse_text


def upper(names: tuple[str, ...]) -> Kind:
    """Return a kind that accepts one of *names*, case-insensitively."""

    def parse(value: Any) -> str:
        if not isinstance(value, str):
            raise TypeError
        if value.upper() not in names:
            raise ValueError
        return value.upper()

    return Kind(", ".join(map(repr, names)), parse, str, choices=names)


def _parse_path(value: Any) -> str:
    path = os.fspath(value)
    if not isinstance(path, str) or not path:
        raise TypeError
    return path


def _parse_pem(value: Any) -> str:
    text = parse_text(value)
    if "-----BEGIN " not in text:
        raise WrongValueError("it contains no '-----BEGIN ...-----'")
    return text


#: The path of a file, or None.
PATH: Final = optional(Kind("the path of a file", _parse_path, str, is_path=True))
#: Does not use optional(), because a password may be the string "none".
PASSWORD: Final = Kind(
    "a non-empty string, or None",
    lambda value: None if value is None else parse_text(value),
    lambda text: text or None,
)
#: Certificates or a key in PEM format, as text.
PEM: Final = optional(Kind("text in PEM format", _parse_pem, str))
