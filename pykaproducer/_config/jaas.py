"""Java's ``sasl.jaas.config``: a login module and its options.

``org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="p";``

No error text contains a value, because values are secrets.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from pykaproducer.errors import ConfigurationError

_FLAGS: Final = ("required", "requisite", "sufficient", "optional")
_SYNTAX: Final = """'LoginModule required name="value" ...;'"""

#: A word, a = or ;, or a quoted string with backslash escapes, as read by Java's StreamTokenizer.
_TOKEN: Final = re.compile(
    r"""(?P<mark>[=;])|"(?P<double>(?:[^"\\\n]|\\.)*+)"|'(?P<single>(?:[^'\\\n]|\\.)*+)'|"""
    r"""(?P<word>[^\s=;"']++)""",
    re.DOTALL,
)
#: Whitespace and comments between tokens.
_NOTHING: Final = re.compile(r"(?:\s++|//[^\n]*+|/\*.*?\*/)*+", re.DOTALL)
#: Java reads up to three octal digits, of which the first is at most 3, as a character.
_ESCAPE: Final = re.compile(r"\\(?:([0-3][0-7]{0,2}|[4-7][0-7]?)|(.))", re.DOTALL)
_ESCAPES: Final = dict(zip("abfnrtv", "\a\b\f\n\r\t\v", strict=True))


@dataclass(frozen=True)
class LoginModule:
    """A login module and its options."""

    #: The class without its package.
    name: str
    options: dict[str, str] = field(repr=False)


def parse(text: str) -> LoginModule:
    """Parse the value of the setting.

    Raises:
        ConfigurationError: it is malformed.
    """
    tokens = _tokens(text)
    if len(tokens) < 3 or tokens[1][1].lower() not in _FLAGS or tokens[-1] != ("mark", ";"):
        raise _wrong("it is malformed")
    options: dict[str, str] = {}
    rest = tokens[2:-1]
    for at in range(0, len(rest), 3):
        if len(rest) < at + 3 or rest[at + 1] != ("mark", "=") or rest[at][0] == "mark":
            raise _wrong(f"option {at // 3 + 1} is not name=value")
        options[rest[at][1]] = rest[at + 2][1]
    return LoginModule(tokens[0][1].rpartition(".")[2], options)


def _tokens(text: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    at = _after_nothing(text, 0)
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise _wrong(f"the quote after character {at} is not closed")
        kind = match.lastgroup or ""
        value = match[kind]
        if kind in ("double", "single"):
            value = _ESCAPE.sub(_unescaped, value)
        found.append((kind, value))
        at = _after_nothing(text, match.end())
    return found


def _unescaped(found: re.Match[str]) -> str:
    octal, other = found.groups()
    return _ESCAPES.get(other, other) if octal is None else chr(int(octal, 8))


def _after_nothing(text: str, at: int) -> int:
    blank = _NOTHING.match(text, at)
    assert blank is not None
    return blank.end()


def _wrong(why: str) -> ConfigurationError:
    return ConfigurationError(
        f"setting sasl_jaas_config: a value that is not shown was given ({why}); allowed: {_SYNTAX}"
    )
