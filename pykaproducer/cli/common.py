"""What the commands share: errors, settings from the command line, the log, numbers for people."""

from __future__ import annotations

import argparse
import contextlib
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from pykaproducer._properties import read_properties
from pykaproducer._texts import check_topic
from pykaproducer.config import Config, own_name, resolve
from pykaproducer.errors import ConfigurationError, UnsupportedFeatureError

#: What all parsers have in common. An abbreviated option would change its meaning with the next
#: option that begins like it.
parser_like: dict[str, Any] = {
    "formatter_class": argparse.RawDescriptionHelpFormatter,
    "allow_abbrev": False,
}


#: (Settings, those that say the same in another form): given by -X, they replace them in a file.
_REPLACED = (
    ({"sasl_plain_username", "sasl_plain_password"}, ["sasl_jaas_config"]),
    ({"sasl_jaas_config"}, ["sasl_plain_username", "sasl_plain_password"]),
    ({"ssl_cafile"}, ["ssl_truststore_location", "ssl_truststore_type"]),
    ({"ssl_certfile"}, ["ssl_keystore_location", "ssl_keystore_type"]),
)
#: A value that ``-X NAME@FILE`` takes from a file is not longer (characters).
_LONGEST_VALUE = 1 << 20


class CommandError(Exception):
    """What ends a command. Its text is all that is printed; it says what to do."""

    #: The exit status of the process.
    status = 1


class UserError(CommandError):
    """A mistake in the command itself, which the user can repair."""

    status = 2


def tell(text: str) -> None:
    """Write a line, or a few, for the person at the keyboard to standard error."""
    if sys.stderr is None:
        return
    try:
        print(f"pykaproducer: {text}", file=sys.stderr, flush=True)
    except OSError:
        pass  # nobody listens there; the exit status says it all


# Options ------------------------------------------------------------------------------------------


def number_from(least: int) -> Callable[[str], int]:
    """An argparse type: a whole number, at least *least*, that Kafka has room for."""

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if not least <= number < 2**31:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least} on")
        return number

    return parse


def rate_of(text: str) -> float | None:
    """An argparse type: messages a second; None for -1, which is no limit."""
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if rate != -1 and not 0 < rate < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of messages a second, or -1")
    return None if rate == -1 else rate


def add_servers(parser: argparse.ArgumentParser) -> None:
    """``--bootstrap-servers``."""
    parser.add_argument(
        "--bootstrap-servers", metavar="HOST:PORT,...", help="default: localhost:9092"
    )


def add_headers(parser: argparse.ArgumentParser) -> None:
    """``--header NAME=VALUE``, as often as there are some; :func:`header_of` reads each."""
    parser.add_argument(
        "--header",
        dest="headers",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="a header for every message; may be repeated",
    )


def refuse_odd_topic(option: str, name: str) -> None:
    """Refuse a name that no topic can have, which *option* gives, before anything else happens."""
    try:
        check_topic(name)
    except ValueError as error:
        raise UserError(f"{option}: {error}") from None


def add_settings(parser: argparse.ArgumentParser) -> None:
    """``-X name=value``, for any setting of the producer, and ``--config FILE``, for many."""
    parser.add_argument(
        "-X",
        dest="settings",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="any setting of the producer, as linger_ms=50 or linger.ms=50; may be repeated. "
        "NAME@FILE takes the value from a file: other users see what stands in a command",
    )
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="settings in the format of Java's client.properties; -X goes before it",
    )


def settings_from(options: argparse.Namespace) -> dict[str, Any]:
    """The producer's settings that a command's options ask for, checked."""
    return settings_of(options.settings, options.bootstrap_servers, options.config)


def settings_of(
    pairs: Sequence[str], servers: str | None = None, config: str | None = None
) -> dict[str, Any]:
    """The producer's settings that ``-X``, ``--bootstrap-servers`` and ``--config`` ask for."""
    texts = dict(_setting_of(pair) for pair in pairs)
    if servers is not None:
        if "bootstrap_servers" in map(own_name, texts):
            raise UserError(
                "the servers are named twice: --bootstrap-servers, -X bootstrap_servers"
            )
        texts["bootstrap_servers"] = servers
    given = {own_name(name) for name in texts}
    given |= {other for names, others in _REPLACED if names <= given for other in others}
    try:
        file = {} if config is None else read_properties(config)
        # All of the file is checked, also what is not used.
        resolved = _resolved(file, config or "")
        resolved = {name: value for name, value in resolved.items() if name not in given}
        settings = {"client_id": "pykaproducer-cli", **resolved, **resolve(texts, texts=True)}
        Config(**settings)
    except (ConfigurationError, UnsupportedFeatureError) as error:
        raise UserError(str(error)) from None
    return settings


def _resolved(texts: dict[str, str], file: str) -> dict[str, Any]:
    """The settings of a properties file; its name goes before what is wrong with them.

    Settings of consumers, which such files often have, are named as well: nobody shall wonder.
    """
    with log_shown(lambda text: tell(f"{file}: {text}"), "pykaproducer.config"):
        try:
            return resolve(texts, texts=True, file=True)
        except (ConfigurationError, UnsupportedFeatureError) as error:
            raise UserError(f"{file}: {error}") from None


def _setting_of(pair: str) -> tuple[str, str]:
    """The name and the value that ``-X`` gives: ``name=value``, or ``name@file``."""
    if not _is_text(pair):
        raise UserError(f"-X {pair.partition('=')[0]}: the value is not UTF-8")
    name, equals, value = pair.partition("=")
    before, at, _ = name.partition("@")
    if at:
        return before.strip(), _content(before, pair[len(before) + 1 :])
    if not equals:
        raise UserError(f"-X {pair}: write it as name=value, or as name@file")
    return name.strip(), value


def _content(name: str, path: str) -> str:
    """The text of a file that holds one value, without the end of its line."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read(_LONGEST_VALUE).removesuffix("\n").removesuffix("\r")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
        raise UserError(f"-X {name}@{path}: {why}") from None


def _is_text(given: str) -> bool:
    """Whether an argument was UTF-8: Python has put what was not into lone surrogates."""
    try:
        given.encode()
    except UnicodeEncodeError:
        return False
    return True


def header_of(text: str) -> tuple[str, bytes]:
    """The header that ``NAME=VALUE`` stands for; the value may be any bytes."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UserError(f"--header {text}: write it as name=value")
    if not _is_text(name):
        raise UserError("--header: the name of a header is not UTF-8")
    return name, value.encode(errors="surrogateescape")


# Output -------------------------------------------------------------------------------------------


def human_bytes(count: float) -> str:
    """1234567 -> '1.2 MB'."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError("unreachable")


def servers_text(servers: Iterable[tuple[str, int]]) -> str:
    """Servers as ``--bootstrap-servers`` takes them."""
    return ",".join(
        f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in servers
    )


class _Teller(logging.Handler):
    """Hands the library's log to a function."""

    def __init__(self, show: Callable[[str], None]) -> None:
        super().__init__()
        self._show = show

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            text += f": {type(error).__name__}: {error}"
        self._show(text)


@contextlib.contextmanager
def log_hidden() -> Iterator[None]:
    """Show nothing of the library's log meanwhile."""
    library, nobody = logging.getLogger("pykaproducer"), logging.NullHandler()
    library.addHandler(nobody)  # without any handler Python shows warnings on standard error
    try:
        yield
    finally:
        library.removeHandler(nobody)


@contextlib.contextmanager
def log_shown(
    show: Callable[[str], None] = tell, steps: str = "pykaproducer.testing"
) -> Iterator[None]:
    """Show the library's warnings while it lasts, and of *steps*, which is a part, each step.

    By default that is the test cluster.
    """
    library, part = logging.getLogger("pykaproducer"), logging.getLogger(steps)
    before, handler = part.level, _Teller(show)
    library.addHandler(handler)
    part.setLevel(logging.INFO)
    try:
        yield
    finally:
        part.setLevel(before)
        library.removeHandler(handler)
