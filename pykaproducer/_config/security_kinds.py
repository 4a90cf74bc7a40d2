"""The kinds of values that the settings of TLS and SASL accept."""

from __future__ import annotations

import os
import re
from typing import Any, Final

from pykaproducer._config.schema import (
    Kind,
    SecretInValueError,
    WrongValueError,
    optional,
    parse_text,
)

#: The beginning of text in PEM format that does not continue on another line.
_ONE_LINE: Final = re.compile(r"-----BEGIN [^-\n]*-----(?![ \t\r]*(?:\n|\Z))")
#: The versions of TLS that may be used, and older ones that Java has.
_VERSIONS: Final = ("TLSv1.2", "TLSv1.3")
_OLD_VERSIONS: Final = ("SSLv2Hello", "SSLv3", "TLSv1", "TLSv1.1")
#: A JWT: three parts in base64, of which the first is a JSON object.
_JWT: Final = re.compile(r"\s*eyJ[\w-]*\.[\w-]+\.[\w-]*\s*\Z")


def upper(names: tuple[str, ...]) -> Kind:
    """Return a kind that accepts one of *names*, case-insensitively."""

    def parse(value: Any) -> str:
        if not isinstance(value, str):
            raise TypeError
        if value.upper() not in names:
            raise ValueError
        return value.upper()

    return Kind(", ".join(map(repr, names)), parse, str, choices=names)


def _contents(given: str) -> str:
    """Return what *given* is if it is the contents of a file rather than a path, else ""."""
    if "-----BEGIN" in given:
        return "PEM text"
    if _JWT.match(given):
        return "a token"
    return "text with line breaks" if "\n" in given else ""


def path(instead: str) -> Kind:
    """Return a kind that accepts the path of a file, or None.

    Its errors never quote a value that looks like the contents of the file, which may be secret.
    They name the setting *instead* for the contents as text; "" if there is none.
    """

    def parse(value: Any) -> str:
        given = os.fspath(value)
        if not isinstance(given, str):
            raise SecretInValueError("a path is a string, not bytes")
        if not given:
            raise TypeError
        what = _contents(given)
        if what:
            other = f"use {instead} for it" if instead else "write it to a file"
            raise SecretInValueError(f"this is {what}, not a path; {other}")
        return given

    return optional(Kind("the path of a file", parse, str, is_path=True))


def _parse_pem(value: Any) -> str:
    text = parse_text(value)
    if "-----BEGIN " not in text:
        raise WrongValueError("it contains no '-----BEGIN ...-----'")
    if _ONE_LINE.search(text):
        # These texts do not quote the value, which may be a key.
        if "\\n" in text:
            raise SecretInValueError(
                r"its lines end with the two characters '\n', not with line breaks; replace them: "
                r"text.replace('\\n', '\n')"
            )
        raise SecretInValueError("it has no line break after '-----BEGIN ...-----'")
    return text


def _parse_versions(value: Any) -> tuple[str, ...] | None:
    given = {*map(str.strip, value.split(",") if isinstance(value, str) else value)}
    if not given <= {*_VERSIONS, *_OLD_VERSIONS}:
        raise ValueError
    used = tuple(each for each in _VERSIONS if each in given)
    if not used:
        raise WrongValueError("older versions are not supported, because they are not secure")
    return None if used == _VERSIONS else used


#: The path of a file, or None.
PATH: Final = path("")
#: Does not use optional(), because a password may be the string "none".
PASSWORD: Final = Kind(
    "a non-empty string, or None",
    lambda value: None if value is None else parse_text(value),
    lambda text: text or None,
)
#: Versions of TLS; None is all that are supported.
TLS_VERSIONS: Final = optional(
    Kind("'TLSv1.2', 'TLSv1.3' or 'TLSv1.2,TLSv1.3'", _parse_versions, str)
)
#: Certificates or a key in PEM format, as text.
PEM: Final = optional(Kind("text in PEM format", _parse_pem, str, hides=True))
