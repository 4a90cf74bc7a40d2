"""The schema of a setting: its names, its allowed values, and how to parse strings.

The settings themselves, with their defaults, are in :mod:`pykaproducer.config`.
"""

from __future__ import annotations

import ipaddress
import math
import operator
import reprlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from types import MappingProxyType
from typing import Any, NamedTuple

from pykaproducer._config.serializers import parse_serializer
from pykaproducer._util.compression import CODECS
from pykaproducer.errors import ConfigurationError

#: The upper limit of most settings in the protocol and the Java client.
INT_MAX = 2**31 - 1
#: The upper limit of the length of a string in the protocol's older versions (bytes).
_LONGEST_STRING = 2**15 - 1

Host = tuple[str, int]


class WrongValueError(ValueError):
    """The value is not allowed for the setting; the text says why."""


class SecretInValueError(WrongValueError):
    """The value contains a secret and must not be shown. The text says why it is wrong."""


class Kind(NamedTuple):
    """The values that a setting accepts."""

    #: Description that follows "allowed: ".
    allowed: str
    #: Converts a value to the form that the rest of the package uses. Raises TypeError or
    #: ValueError if it is invalid. Accepts its own results.
    parse: Callable[[Any], Any]
    #: Converts a string to a value; None if strings are not accepted.
    read: Callable[[str], Any] | None = None
    #: The allowed strings, if they are few; shells complete them.
    choices: tuple[str, ...] = ()
    #: Whether it is the path of a file.
    is_path: bool = False
    #: Whether an invalid value is never shown, because it may be a secret.
    hides: bool = False
    #: Returns a value without a part that must not appear in a log, an error or a repr.
    without_secrets: Callable[[Any], Any] = lambda value: value


class Setting(NamedTuple):
    """One row of the settings table."""

    name: str
    default: Any
    kind: Kind
    doc: str
    unit: str = ""
    #: Other names of the same setting, used by the Java client and librdkafka. The name with dots
    #: instead of underscores always counts as one and is not listed.
    aliases: tuple[str, ...] = ()
    #: Names whose values are in another unit, with the factor to ours.
    scaled: Mapping[str, int] = MappingProxyType({})
    #: Why the setting is accepted without effect; "" if it has an effect.
    no_effect: str = ""
    #: Why any value except the default is rejected; "" if the setting is supported.
    refused: str = ""
    #: The value must not appear in a log, an error or a repr.
    secret: bool = False

    @property
    def dotted(self) -> tuple[str, ...]:
        """All dotted names of this setting, including those with another unit."""
        own = self.name.replace("_", ".")
        return tuple(name for name in dict.fromkeys((own, *self.aliases, *self.scaled)))

    @property
    def support(self) -> str:
        """How far the setting is supported, with the reason, for the settings table."""
        if self.refused:
            return f"Rejected: {self.refused}"
        return f"No effect: {self.no_effect}" if self.no_effect else "honoured"

    def parse(self, value: Any, given_as: str = "") -> Any:
        """Convert *value* to the package's form; raise :class:`ConfigurationError` if invalid."""
        try:
            if given_as in self.scaled:
                return self.kind.parse(_whole(value) * self.scaled[given_as])
            return self.kind.parse(value)
        except (TypeError, ValueError) as error:
            wrong = self.wrong(value, given_as, error)
        # Not while that error is handled, because it may contain a secret, and would be kept.
        raise wrong

    def read(self, text: str, given_as: str = "") -> Any:
        """Convert the string *text*, given on a command line or under a dotted name."""
        if self.kind.read is None:
            raise ConfigurationError(
                f"setting {given_as or self.name}: it cannot be given as a string; allowed: "
                f"{self.kind.allowed}"
            )
        try:
            # Trailing whitespace in a password is significant.
            value = self.kind.read(text if self.secret else text.strip())
        except ValueError as error:
            wrong = self.wrong(text, given_as, error)
        else:
            return self.parse(value, given_as)
        raise wrong

    def shown(self, value: object) -> str:
        """Return a shortened repr of *value*, without secrets, for an error message."""
        return shown(self.kind.without_secrets(value))

    def wrong(self, value: object, given_as: str, error: Exception) -> ConfigurationError:
        """Return the error that names the setting, the given value and the allowed values."""
        hidden = self.secret or self.kind.hides or isinstance(error, SecretInValueError)
        given = "a value that is not shown" if hidden else self.shown(value)
        may_tell = isinstance(error, WrongValueError) and not self.secret
        # The text of this one never quotes the value.
        why = f" ({error})" if may_tell or isinstance(error, SecretInValueError) else ""
        return ConfigurationError(
            f"setting {given_as or self.name}: {given} was given{why}; allowed: {self.kind.allowed}"
        )


def setting(default: Any, kind: Kind, doc: str, **more: Any) -> Any:
    """Return a field of the configuration, from which :func:`named` makes a table row."""
    return field(default=default, metadata={"setting": Setting("", default, kind, doc, **more)})


def named(fields: Iterable[Any]) -> tuple[Setting, ...]:
    """Return the table rows for a configuration's fields."""
    return tuple(field.metadata["setting"]._replace(name=field.name) for field in fields)


def shown(value: object) -> str:
    """Return a shortened repr of *value*, in one line, for an error message."""
    short = reprlib.Repr()
    short.maxstring = short.maxother = 60
    return " ".join(map(str.strip, short.repr(value).splitlines()))  # an array's repr has several


def differ(one: Any, other: Any) -> bool:
    """Return whether two values of a setting differ; those that cannot be compared do."""
    if one is other:
        return False
    try:
        return bool(one != other)
    except (TypeError, ValueError, ArithmeticError):  # arrays, and decimal's sNaN
        return True


def settings_table(rows: Iterable[Setting]) -> str:
    """Return the settings table of the documentation as reStructuredText."""
    lines = [
        ".. list-table::",
        "   :header-rows: 1",
        "   :widths: auto",
        "",
        "   * - Setting",
        "     - Default",
        "     - What it does",
    ]
    for row in rows:
        others = (name for name in row.dotted if name != row.name.replace("_", "."))
        does = row.doc if row.support == "honoured" else f"{row.doc} {row.support}".strip()
        also = ", ".join(f"``{name}``" for name in others)
        lines += [
            f"   * - ``{row.name}``",
            f"     - {_default_text(row)}",
            f"     - {does[0].upper()}{does[1:].rstrip('.')}." + (f" Also {also}." if also else ""),
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
    """Return a kind for integers in a range."""

    def parse(value: Any) -> int:
        return _in_range(_whole(value), least, most)

    return Kind(f"an integer from {least} to {most}{also}", parse, int)


def milliseconds(least: int = 0) -> Kind:
    """Return a kind for times, which may have fractions of a millisecond."""

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
    """Return a kind that accepts a value of *kind* or None; *none* says what None means."""

    def parse(value: Any) -> Any:
        return None if value is None else kind.parse(value)

    read_one = kind.read

    def read(text: str) -> Any:
        return None if read_one is None or text.lower() in ("", "none", "null") else read_one(text)

    allowed = f"{kind.allowed}, or {none}"
    return kind._replace(allowed=allowed, parse=parse, read=read if read_one else None)


def choice(*names: str) -> Kind:
    """Return a kind that accepts one of *names*."""

    def parse(value: Any) -> str:
        if not isinstance(value, str) or value not in names:
            raise ValueError
        return str(value)

    return Kind(", ".join(map(repr, names)), parse, str, choices=names)


def _parse_flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _read_flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise WrongValueError("as a string it must be true or false")
    return text.lower() == "true"


def parse_text(value: Any) -> str:
    """Return *value*, a non-empty string. Errors do not show it, because it may be a secret."""
    if not isinstance(value, str) or not value:
        raise TypeError
    if "\0" in value:
        raise WrongValueError("it contains a NUL character")
    try:
        value.encode()
    except UnicodeEncodeError:  # its own text would show a part of a secret
        raise WrongValueError(
            "it is not valid Unicode: half of a surrogate pair is missing"
        ) from None
    return value


def _parse_wire_text(value: Any) -> str:
    text = parse_text(value)
    if (size := len(text.encode())) > _LONGEST_STRING:
        raise WrongValueError(f"it has {size} bytes")
    return text


def _parse_client_id(value: Any) -> str | None:
    return None if value == "" else _parse_wire_text(value)  # "" is the Java client's default


def _parse_acks(value: Any) -> int:
    if isinstance(value, str):
        value = -1 if value == "all" else int(value)
    return _in_range(_whole(value), -1, 1)


def _parse_retries(value: Any) -> int:
    # kafka-python's default is float("inf").
    if isinstance(value, float) and value == math.inf:
        return INT_MAX
    return _in_range(_whole(value), 0, INT_MAX)


_parse_codec = choice(*CODECS).parse


def _parse_compression(value: Any) -> str | None:
    if value is None or (isinstance(value, str) and value == "none"):
        return None
    return str(_parse_codec(value))


def _parse_socket_options(value: Any) -> tuple[tuple[int, int, int], ...]:
    # A number that does not fit into a C int would raise OverflowError when connecting.
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
            raise WrongValueError(f"{shown(each)} has neither method")
    return found


def _parse_servers(value: Any) -> tuple[Host, ...]:
    if any(mark in str(value) for mark in "@?"):  # an error would show all of it
        raise SecretInValueError(
            "an address has the form host:port; use sasl_plain_username and sasl_plain_password "
            "for a user name and password"
        )
    if isinstance(value, str):
        value = [one for one in value.split(",") if one.strip()]
    servers = tuple(dict.fromkeys(_server(one) for one in value))
    if not servers:
        raise WrongValueError("it contains no server")
    return servers


def _server(one: Any) -> Host:
    """Parse ``host``, ``host:port``, ``[::1]:port`` or ``::1``, also with a protocol prefix."""
    if isinstance(one, tuple):
        host, port = one
    elif not isinstance(one, str):  # it is not shown, as a list may contain such an address
        raise SecretInValueError(f"an address is a string, not {type(one).__name__}")
    else:
        text = parse_text(one).strip()
        protocol, _, text = text.rpartition("://")
        if protocol.lower() in ("http", "https"):
            raise WrongValueError(f"{one!r} is a web address; give host:port of a broker")
        if text.startswith("["):
            host, closed, port = text[1:].partition("]")
            if not closed or (port and not port.startswith(":")):
                raise WrongValueError(f"{text!r} is not [address]:port")
            port = port[1:] if port else 9092
        elif text.count(":") > 1:
            host, port = _ipv6(text), 9092
        else:
            host, colon, port = text.partition(":")
            port = port if colon else 9092
    if not isinstance(host, str) or not host or any(letter in host for letter in " /@;"):
        hint = "; addresses are separated by commas" if ";" in str(host) else ""
        raise WrongValueError(f"{shown(one)} has no valid host name{hint}")
    return host, _port(port, one)


def _ipv6(text: str) -> str:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        raise WrongValueError(
            f"{text!r} is neither host:port nor an IPv6 address; addresses are separated by commas"
        ) from None
    return text


def _port(port: Any, one: Any) -> int:
    try:
        return _in_range(int(port) if isinstance(port, str) else _whole(port), 1, 65535)
    except (TypeError, ValueError):
        raise WrongValueError(f"the port of {shown(one)} is not a number from 1 to 65535") from None


def named_or_callable(names: tuple[str, ...]) -> Kind:
    """Return a kind that accepts one of *names* or a callable."""

    def parse(value: Any) -> Any:
        if isinstance(value, str):
            if value not in names:
                raise ValueError
            return value
        if callable(getattr(value, "partition", None)) and not callable(value):
            raise WrongValueError(
                "an object with a method partition() requires pykaproducer.KafkaProducer"
            )
        if not callable(value):
            raise TypeError
        return value

    return Kind(f"a callable, or one of {', '.join(map(repr, names))}", parse, str, choices=names)


FLAG = Kind("True or False", _parse_flag, _read_flag, choices=("true", "false"))
TEXT = Kind("a non-empty string", parse_text, str)
#: A string that requests contain. In Kafka its length has two bytes.
WIRE_TEXT = Kind("a non-empty string of at most 32767 bytes in UTF-8", _parse_wire_text, str)
CLIENT_ID = optional(
    Kind("a string of at most 32767 bytes in UTF-8", _parse_client_id, str),
    "None: pykaproducer-N",
)
ANYTHING = Kind("anything", lambda value: value, str)
#: -1 is the system's default, as in the Java client.
BYTES = optional(
    integer(1)._replace(
        parse=lambda value: None if _whole(value) == -1 else integer(1).parse(value),
        allowed=f"an integer from 1 to {INT_MAX}, -1",
    ),
    "None for the system's default",
)
ACKS = Kind("0, 1 or 'all' (also as -1)", _parse_acks, str, choices=("0", "1", "all"))
RETRIES = Kind(f"an integer from 0 to {INT_MAX}", _parse_retries, int)
COMPRESSION = Kind(
    f"{', '.join(map(repr, CODECS))} or None",
    _parse_compression,
    str,
    choices=("none", *CODECS),
)
_LEVELS = {name: codec.levels for name, codec in CODECS.items() if codec.levels}
#: The range of each codec is checked together with compression_type.
COMPRESSION_LEVEL = optional(
    integer(
        min(least for least, _ in _LEVELS.values()), max(most for _, most in _LEVELS.values())
    )._replace(
        allowed=f"an integer: {', '.join(f'{n} {a} to {b}' for n, (a, b) in _LEVELS.items())}",
    )
)
SERIALIZER = Kind("a callable, or an object with a method serialize", parse_serializer)
SERVERS = Kind(
    "'host:port' (default port 9092), several separated by commas, or a list of them",
    _parse_servers,
    str,
)
SOCKET_OPTIONS = Kind("a list of (level, option, value), all three integers", _parse_socket_options)
#: See ``pykaproducer.interceptors``.
INTERCEPTORS = Kind(
    "a list of objects, or classes, with on_send() or on_acknowledgement()", _parse_interceptors
)
