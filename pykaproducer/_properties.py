"""Properties files, in the format of ``java.util.Properties``: a ``client.properties`` as it is.

Java's rules, but for four things, each of which would be found out much later otherwise: a line
without a key is an error; so is a name that is given twice with different values; half of a
surrogate pair; and characters beyond ASCII are UTF-8 (Java reads them as Latin-1, so that
portable files have them as ``\\uXXXX``). No error shows a value: it may be a password.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from pykaproducer.errors import ConfigurationError

#: What separates a name from its value, beside ``=`` and ``:``; and what a line may begin with.
_BLANKS = " \t\f"

_END_OF_LINE = re.compile(r"\r\n|\r|\n")
_BACKSLASHES_AT_END = re.compile(r"\\+\Z")
#: A name: up to the first separator that no backslash escapes.
_NAME = re.compile(r"(?:[^\\=: \t\f]|\\.)*", re.DOTALL)
_SEPARATOR = re.compile(r"[ \t\f]*(?:[=:][ \t\f]*)?")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_LETTERS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def read_properties(path: str | os.PathLike[str]) -> dict[str, str]:
    """The names and values of a properties file.

    Raises:
        ConfigurationError: it cannot be read, or a line is wrong; the text names file and line.
    """
    found: dict[str, str] = {}
    lines: dict[str, int] = {}
    for number, raw in _logical_lines(_content(path)):
        where = f"{os.fspath(path)}, line {number}"
        name, value = _pair(raw, where)
        if found.setdefault(name, value) != value:
            raise ConfigurationError(
                f"{where}: {name} stands in line {lines[name]} already, with another value; "
                f"leave one of them"
            )
        lines.setdefault(name, number)
    return found


def _content(path: str | os.PathLike[str]) -> str:
    """The file, a character per byte; each line becomes text for itself, so that it is named."""
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError as error:
        raise ConfigurationError(
            f"{os.fspath(path)}: the file cannot be read: {error.strerror or error}"
        ) from None
    except ValueError as error:  # no path at all
        raise ConfigurationError(f"{os.fspath(path)!r}: the file cannot be read: {error}") from None
    # What some editors begin a file of UTF-8 with.
    return content.removeprefix(b"\xef\xbb\xbf").decode("latin-1")


def _logical_lines(content: str) -> Iterator[tuple[int, str]]:
    """Lines that are neither blank nor comments, continued ones in one piece, with numbers."""
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
            f"{where}: there is a zero byte in it; save the file as UTF-8 (is it UTF-16?)"
        )
    match = _NAME.match(line)
    assert match is not None, "it may be empty"
    name = _plain(match.group(), where)
    if not name:
        raise ConfigurationError(f"{where}: there is no name in front of the separator")
    separator = _SEPARATOR.match(line, match.end())
    assert separator is not None, "it may be empty"
    return name, _plain(line[separator.end() :], f"{where}: {name}")


def _plain(escaped: str, where: str) -> str:
    """Without escapes. A backslash in front of any other character is dropped."""

    def character(match: re.Match[str]) -> str:
        code = match.group(1)
        if len(code) > 1:
            return chr(int(code[1:], 16))
        if code == "u":
            raise ConfigurationError(
                f"{where}: \\u wants four hexadecimal digits behind it (a backslash itself is "
                f"written \\\\)"
            )
        return _LETTERS.get(code, code)

    text = _ESCAPE.sub(character, escaped)
    try:
        return text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise ConfigurationError(
            f"{where}: a \\u escape is half of a surrogate pair, without the other half"
        ) from None
