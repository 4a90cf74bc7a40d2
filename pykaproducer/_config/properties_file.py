"""Properties files in the format of ``java.util.Properties``, such as ``client.properties``.

The package ``javaproperties`` reads them by Java's rules. There are four exceptions, each of which
reports a mistake that would otherwise be found much later. A line without a key, a name given twice
with different values, and half of a surrogate pair are errors. Characters beyond ASCII are UTF-8;
Java reads them as Latin-1, so that portable files write them as ``\\uXXXX``. No error text contains
a value, which may be a password.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pykaproducer.errors import ConfigurationError

if TYPE_CHECKING:
    from javaproperties import KeyValue

_END_OF_LINE = re.compile(r"\r\n|\r|\n")
#: The name in a line, if it is one that settings have.
_NAME = re.compile(r"[ \t\f]*([\w.-]+)[ \t\f]*[=: \t\f]")
#: Bytes that are not UTF-8, as the error handler ``surrogateescape`` decodes them.
_NOT_UTF8 = re.compile("[\udc80-\udcff]")
_HALF_A_PAIR = re.compile("[\ud800-\udfff]")


def read_properties(path: str | os.PathLike[str]) -> dict[str, str]:
    """Return the names and values of a properties file.

    Raises:
        ConfigurationError: the file cannot be read or a line is invalid; the text names both.
    """
    found: dict[str, str] = {}
    lines: dict[str, int] = {}
    for number, pair in _pairs(_content(path), os.fspath(path)):
        where = f"{os.fspath(path)}, line {number}"
        _check(pair, where)
        if found.setdefault(pair.key, pair.value) != pair.value:
            raise ConfigurationError(
                f"{where}: {pair.key} is already set in line {lines[pair.key]}, to another value; "
                f"remove one of them"
            )
        lines.setdefault(pair.key, number)
    return found


def _content(path: str | os.PathLike[str]) -> str:
    """Return the file; each line is checked separately for UTF-8, so that errors name it."""
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError as error:
        raise ConfigurationError(
            f"{os.fspath(path)}: the file cannot be read: {error.strerror or error}"
        ) from None
    except ValueError as error:  # not a valid path
        raise ConfigurationError(f"{os.fspath(path)!r}: the file cannot be read: {error}") from None
    # Some editors begin a UTF-8 file with a byte order mark.
    return content.removeprefix(b"\xef\xbb\xbf").decode(errors="surrogateescape")


def _pairs(content: str, path: str | bytes) -> Iterator[tuple[int, KeyValue]]:
    """Yield the names and values, each with the number of its first line."""
    # Imported here, because most producers read no such file.
    from javaproperties import InvalidUEscapeError, KeyValue, parse

    number = 1
    try:
        for element in parse(content):
            if isinstance(element, KeyValue):
                yield number, element
            number += len(_END_OF_LINE.findall(element.source))
    except InvalidUEscapeError:
        name = _NAME.match(_END_OF_LINE.split(content)[number - 1])
        setting = f"{name[1]}: " if name else ""
        raise ConfigurationError(
            f"{path!s}, line {number}: {setting}\\u must be followed by four hexadecimal digits "
            f"(write a backslash as \\\\)"
        ) from None


def _check(pair: KeyValue, where: str) -> None:
    if _NOT_UTF8.search(pair.source):
        raise ConfigurationError(
            f"{where}: it is not UTF-8; save the file as UTF-8, or write such characters as \\uXXXX"
        )
    if "\0" in pair.source:
        raise ConfigurationError(
            f"{where}: it contains a zero byte; save the file as UTF-8 (is it UTF-16?)"
        )
    if not pair.key:
        raise ConfigurationError(f"{where}: there is no name before the separator")
    for text, place in ((pair.key, where), (pair.value, f"{where}: {pair.key}")):
        if _HALF_A_PAIR.search(text):
            raise ConfigurationError(
                f"{place}: a \\u escape is half of a surrogate pair; the other half is missing"
            )
