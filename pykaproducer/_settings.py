"""What a setting is: its names, what values it takes, and how a text becomes such a value.

The settings themselves, with their defaults, stand in :mod:`pykaproducer.config`.
"""

from __future__ import annotations

import math
import operator
import reprlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pykaproducer._serializers import parse_serializer
from pykaproducer.errors import ConfigurationError

#: The largest number that the protocol and the Java client have for most settings.
INT_MAX = 2**31 - 1

Host = tuple[str, int]

#: The compression types, in the order of Kafka's numbers for them (from 1), each with its least
#: and its highest level; None: it has no levels.
COMPRESSION_LEVELS: dict[str, tuple[int, int] | None] = {
    "gzip": (1, 9),
    "snappy": None,
    "lz4": (1, 12),
    "zstd": (-131072, 22),
}


class WrongValueError(ValueError):
    """The value is not what the setting takes; the text says more than the range does."""


class SecretInValueError(WrongValueError):
    """The value holds a secret where none belongs, and is not to be shown."""


@dataclass(frozen=True)
class Kind:
    """What values a setting takes."""

    #: In words, after "allowed: ".
    allowed: str
    #: Returns the value as the rest of the package uses it; TypeError or ValueError if it is
    #: not one. What it returns it takes as well.
    parse: Callable[[Any], Any]
    #: The value that a text stands for; None if no text can stand for one.
    read: Callable[[str], Any] | None = None


@dataclass(frozen=True)
class Setting:
    """One row of the settings table."""

    name: str
    default: Any
    kind: Kind
    doc: str
    unit: str = ""
    #: Other names of the same setting, of the Java client and librdkafka. The name itself with
    #: dots for underscores is one of them in any case.
    aliases: tuple[str, ...] = ()
    #: Names whose value counts in another unit: the factor to ours.
    scaled: Mapping[str, int] = field(default_factory=dict)
    #: Why it changes nothing, if it is accepted and changes nothing.
    no_effect: str = ""
    #: Why it is refused, if any value but the default is.
    refused: str = ""
    #: The value must not appear in a log, an error or a repr.
    secret: bool = False

    @property
    def dotted(self) -> tuple[str, ...]:
        """Every dotted name that stands for this setting, or for it in another unit."""
        own = self.name.replace("_", ".")
        return tuple(name for name in dict.fromkeys((own, *self.aliases, *self.scaled)))

    @property
    def support(self) -> str:
        """Whether it does something, and if not why: a column of the settings table."""
        if self.refused:
            return f"refused: {self.refused}"
        return f"no effect: {self.no_effect}" if self.no_effect else "honoured"

    def parse(self, value: Any, given_as: str = "") -> Any:
        """The value as the rest of the package uses it; :class:`ConfigurationError` if wrong."""
        try:
            if given_as in self.scaled:
                return self.kind.parse(_whole(value) * self.scaled[given_as])
            return self.kind.parse(value)
        except (TypeError, ValueError) as error:
            raise self.wrong(value, given_as, error) from None

    def read(self, text: str, given_as: str = "") -> Any:
        """The value that *text* stands for, as the command line and dotted names have it."""
        if self.kind.read is None:
            raise ConfigurationError(
                f"setting {given_as or self.name}: it cannot be given as text; allowed: "
                f"{self.kind.allowed}"
            )
        try:
            # A space at the end of a password is a part of it.
            value = self.kind.read(text if self.secret else text.strip())
        except ValueError as error:
            raise self.wrong(text, given_as, error) from None
        return self.parse(value, given_as)

    def wrong(self, value: object, given_as: str, error: Exception) -> ConfigurationError:
        """The error that names the setting, what was given and what is allowed."""
        hidden = self.secret or isinstance(error, SecretInValueError)
        given = "a value that is not shown" if hidden else shown(value)
        why = f" ({error})" if isinstance(error, WrongValueError) and not self.secret else ""
        return ConfigurationError(
            f"setting {given_as or self.name}: {given} was given{why}; allowed: {self.kind.allowed}"
        )


def setting(default: Any, kind: Kind, doc: str, **more: Any) -> Any:
    """A field of the configuration, which :func:`named` makes a row of the table from."""
    return field(default=default, metadata={"setting": Setting("", default, kind, doc, **more)})


def named(fields: Iterable[Any]) -> tuple[Setting, ...]:
    """The rows of the table for a configuration's fields."""
    return tuple(replace(field.metadata["setting"], name=field.name) for field in fields)


def shown(value: object) -> str:
    """A value for an error's text: short, whatever it is."""
    short = reprlib.Repr()
    short.maxstring = short.maxother = 60
    return short.repr(value)


def settings_table(rows: Iterable[Setting]) -> str:
    """The settings table of the README, in reStructuredText."""
    lines = [
        ".. list-table::",
        "   :header-rows: 1",
        "   :widths: auto",
        "",
        "   * - Setting",
        "     - Default",
        "     - What it does",
        "     - Other dotted names",
    ]
    for row in rows:
        others = (name for name in row.dotted if name != row.name.replace("_", "."))
        does = row.doc if row.support == "honoured" else f"{row.doc} {row.support}".strip()
        lines += [
            f"   * - ``{row.name}``",
            f"     - {_default_text(row)}",
            f"     - {does[0].upper()}{does[1:].rstrip('.')}.",
            f"     - {', '.join(f'``{name}``' for name in others)}".rstrip(),
        ]
    return "\n".join(lines) + "\n"


def _default_text(row: Setting) -> str:
    text = f"``{row.default!r}``"
    return f"{text} {row.unit}" if row.unit and row.default is not None else text


# The kinds ------------------------------------------------------------------------------------


def _whole(value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError
    return operator.index(value)


def _in_range(number: int, least: int, most: int) -> int:
    if not least <= number <= most:
        raise ValueError
    return number


def integer(least: int, most: int = INT_MAX, *, also: str = "") -> Kind:
    """Whole numbers in a range."""

    def parse(value: Any) -> int:
        return _in_range(_whole(value), least, most)

    return Kind(f"a whole number from {least} to {most}{also}", parse, int)


def milliseconds(least: int = 0) -> Kind:
    """Times; a part of a millisecond may be given."""

    def parse(value: Any) -> float:
        number = value if isinstance(value, float) else _whole(value)
        if not least <= number <= INT_MAX:
            raise ValueError
        return number

    def read(text: str) -> float:
        try:
            return int(text)
        except ValueError:
            return float(text)

    return Kind(f"a number of milliseconds from {least} to {INT_MAX}", parse, read)


def optional(kind: Kind, none: str = "None") -> Kind:
    """Either a value of *kind* or None; *none* says what that means."""

    def parse(value: Any) -> Any:
        return None if value is None else kind.parse(value)

    read_one = kind.read

    def read(text: str) -> Any:
        return None if read_one is None or text.lower() in ("", "none", "null") else read_one(text)

    return Kind(f"{kind.allowed}, or {none}", parse, read if read_one else None)


def choice(*names: str) -> Kind:
    """One of some names."""

    def parse(value: Any) -> str:
        if value not in names:
            raise ValueError
        return str(value)

    return Kind(", ".join(map(repr, names)), parse, str)


def _parse_flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _read_flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise WrongValueError("as text: true or false")
    return text.lower() == "true"


def _parse_text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError
    if "\0" in value:
        raise WrongValueError("it has a NUL in it")
    try:
        value.encode()
    except UnicodeEncodeError:  # whose text would show a part of a secret
        raise WrongValueError(
            "it is no Unicode text: half of a surrogate pair is missing"
        ) from None
    return value


def _parse_acks(value: Any) -> int:
    if isinstance(value, str):
        value = -1 if value == "all" else int(value)
    return _in_range(_whole(value), -1, 1)


def _parse_retries(value: Any) -> int:
    # kafka-python's own default is float("inf").
    return INT_MAX if value == math.inf else _in_range(_whole(value), 0, INT_MAX)


def _parse_compression(value: Any) -> str | None:
    if value is None or value == "none":
        return None
    if value not in tuple(COMPRESSION_LEVELS):  # what cannot be hashed is no key of a dict
        raise ValueError
    return str(value)


def _parse_socket_options(value: Any) -> tuple[tuple[int, int, int], ...]:
    # What does not fit into C's int would raise OverflowError when a connection is made.
    return tuple((_of_c(level), _of_c(option), _of_c(number)) for level, option, number in value)


def _of_c(number: Any) -> int:
    return _in_range(_whole(number), -INT_MAX - 1, INT_MAX)


def _parse_interceptors(value: Any) -> tuple[Any, ...]:
    if value is None:
        return ()
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise TypeError("not a list")
    found = tuple(value)
    for each in found:
        if not callable(getattr(each, "on_send", None)) and not callable(
            getattr(each, "on_acknowledgement", None)
        ):
            raise WrongValueError(f"{shown(each)} has neither")
    return found


def _parse_servers(value: Any) -> tuple[Host, ...]:
    if isinstance(value, str):
        value = [one for one in value.split(",") if one.strip()]
    servers = tuple(dict.fromkeys(_server(one) for one in value))
    if not servers:
        raise WrongValueError("no server is named")
    return servers


def _server(one: Any) -> Host:
    """``host``, ``host:port``, ``[::1]:port``, a bare ``::1``, also with a protocol in front."""
    if isinstance(one, tuple):
        host, port = one
    else:
        text = _parse_text(one).strip()
        if "@" in text or "?" in text:
            raise SecretInValueError(
                "an address is host:port; a user and a password belong to "
                "sasl_plain_username and sasl_plain_password"
            )
        protocol, _, text = text.rpartition("://")
        if protocol.lower() in ("http", "https"):
            raise WrongValueError(f"{one!r} is a web address; a Kafka server is host:port")
        if text.startswith("["):
            host, closed, port = text[1:].partition("]")
            if not closed or (port and not port.startswith(":")):
                raise WrongValueError(f"{text!r} is not [address]:port")
            port = port[1:] if port else 9092
        elif text.count(":") > 1:
            host, port = text, 9092
        else:
            host, colon, port = text.partition(":")
            port = port if colon else 9092
    if not isinstance(host, str) or not host or any(letter in host for letter in " /@"):
        raise WrongValueError(f"{one!r} has no host")
    return host, _port(port, one)


def _port(port: Any, one: Any) -> int:
    try:
        return _in_range(int(port) if isinstance(port, str) else _whole(port), 1, 65535)
    except (TypeError, ValueError):
        raise WrongValueError(f"the port of {one!r} is not a number from 1 to 65535") from None


def named_or_callable(names: tuple[str, ...]) -> Kind:
    """A name that is known, or the user's own callable."""

    def parse(value: Any) -> Any:
        if isinstance(value, str):
            if value not in names:
                raise ValueError
            return value
        if callable(getattr(value, "partition", None)) and not callable(value):
            raise WrongValueError("it has a method partition: pykaproducer.KafkaProducer takes it")
        if not callable(value):
            raise TypeError
        return value

    return Kind(f"a callable, or one of {', '.join(map(repr, names))}", parse, str)


FLAG = Kind("True or False", _parse_flag, _read_flag)
TEXT = Kind("a text that is not empty", _parse_text, str)
ANYTHING = Kind("anything", lambda value: value, str)
BYTES = optional(integer(1), "None: as the system has it")
ACKS = Kind("0, 1 or 'all' (also as -1)", _parse_acks, str)
RETRIES = Kind(f"a whole number from 0 to {INT_MAX}", _parse_retries, int)
COMPRESSION = Kind(f"{', '.join(map(repr, COMPRESSION_LEVELS))} or None", _parse_compression, str)
_LEVELS = {name: levels for name, levels in COMPRESSION_LEVELS.items() if levels}
COMPRESSION_LEVEL = optional(
    integer(
        min(least for least, _ in _LEVELS.values()),
        max(most for _, most in _LEVELS.values()),
        also=f" ({', '.join(f'{name} {a} to {b}' for name, (a, b) in _LEVELS.items())})",
    )
)
SERIALIZER = Kind("a callable, or an object with a method serialize", parse_serializer)
SERVERS = Kind(
    "'host:port' (9092 if no port is given), several separated by commas, or a list of them",
    _parse_servers,
    str,
)
SOCKET_OPTIONS = Kind(
    "a list of (level, option, value), all three whole numbers", _parse_socket_options
)
#: What ``pykaproducer.interceptors`` describes.
INTERCEPTORS = Kind(
    "a list of objects, or classes, with on_send() or on_acknowledgement()", _parse_interceptors
)
