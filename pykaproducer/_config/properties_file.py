"""Properties files in the format of ``java.util.Properties``, such as ``client.properties``.

Java's rules apply with four exceptions, each of which reports a mistake that would otherwise be
found much later. A line without a key, a name given twice with different values, and half of a
surrogate pair are errors. Characters beyond ASCII are UTF-8; Java reads them as Latin-1, so that
portable files write them as ``\\uXXXX``. No error text contains a value, which may be a password.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from pykaproducer.errors import ConfigurationError

#: Separators of name and value besides ``=`` and ``:``; also ignored at the start of a line.
_BLANKS = " \t\f"

_END_OF_LINE = re.compile(r"\r\n|\r|\n")
_BACKSLASHES_AT_END = re.compile(r"\\+\Z")
#: A name: everything up to the first unescaped separator.
_NAME = re.compile(r"(?:[^\\=: \t\f]|\\.)*", re.DOTALL)
_SEPARATOR = re.compile(r"[ \t\f]*(?:[=:][ \t\f]*)?")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_LETTERS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def read_properties(path: str | os.PathLike[str]) -> dict[str, str]:
    """Return the names and values of a properties file.

    Raises:
        ConfigurationError: the file cannot be read or a line is invalid; the text names both.
    """
    found: dict[str, str] = {}
    lines: dict[str, int] = {}
    for number, raw in _logical_lines(_content(path)):
        where = f"{os.fspath(path)}, line {number}"
        name, value = _pair(raw, where)
        if found.setdefault(name, value) != value:
            raise ConfigurationError(
                f"{where}: {name} is already set in line {lines[name]}, to another value; "
                f"remove one of them"
            )
        lines.setdefault(name, number)
    return found


def _content(path: str | os.PathLike[str]) -> str:
    """Return the file as Latin-1; each line is decoded separately, so that errors name it."""
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
    return content.removeprefix(b"\xef\xbb\xbf").decode("latin-1")


def _logical_lines(content: str) -> Iterator[tuple[int, str]]:
    """Yield lines that are neither blank nor comments, continued ones joined, with numbers."""
    begun, number = "", 0
    for here, line in enumerate(_END_OF_LINE.split(content), start=1):
        text = line.lstrip(_BLANKS)
        if not begun:
            if not text or text[0] in "#!":
                continue
            number = here
        end = _BACKSLASHES_AT_END.search(text)
        if end is not None and len(end.group()) % 2:
            begun += text[:-1]
            continue
        yield number, begun + text
        begun = ""
    if begun:
        yield number, begun


def _pair(raw: str, where: str) -> tuple[str, str]:
    try:
        line = raw.encode("latin-1").decode("utf-8")
    except UnicodeDecodeError:
        raise ConfigurationError(
            f"{where}: it is not UTF-8; save the file as UTF-8, or write such characters as \\uXXXX"
        ) from None
    if "\0" in line:
        raise ConfigurationError(
            f"{where}: it contains a zero byte; save the file as UTF-8 (is it UTF-16?)"
        )
    match = _NAME.match(line)
    assert match is not None, "it may be empty"
    name = _plain(match.group(), where)
    if not name:
        raise ConfigurationError(f"{where}: there is no name before the separator")
    separator = _SEPARATOR.match(line, match.end())
    assert separator is not None, "it may be empty"
    return name, _plain(line[separator.end() :], f"{where}: {name}")


def _plain(escaped: str, where: str) -> str:
    """Return *escaped* without escapes; a backslash before any other character is dropped."""

    def character(match: re.Match[str]) -> str:
        code = match.group(1)
        if len(code) > 1:
            return chr(int(code[1:], 16))
        if code == "u":
            raise ConfigurationError(
                f"{where}: \\u must be followed by four hexadecimal digits (write a backslash "
                f"as \\\\)"
            )
        return _LETTERS.get(code, code)

    text = _ESCAPE.sub(character, escaped)
    try:
        return text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise ConfigurationError(
            f"{where}: a \\u escape is half of a surrogate pair; the other half is missing"
        ) from None
