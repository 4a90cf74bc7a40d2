"""What the commands share: errors, settings from the command line, the log, numbers for people."""

from __future__ import annotations

import argparse
import contextlib
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from pykaproducer.config import Config, resolve
from pykaproducer.errors import ConfigurationError, UnsupportedFeatureError

#: What all parsers have in common. An abbreviated option would change its meaning with the next
#: option that begins like it.
parser_like: dict[str, Any] = {
    "formatter_class": argparse.RawDescriptionHelpFormatter,
    "allow_abbrev": False,
}


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


def add_settings(parser: argparse.ArgumentParser) -> None:
    """``-X name=value``, for any setting of the producer."""
    parser.add_argument(
        "-X",
        dest="settings",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="any setting of the producer, as linger_ms=50 or linger.ms=50; may be repeated",
    )


def settings_of(pairs: Sequence[str], servers: str | None = None) -> dict[str, Any]:
    """The producer's settings that ``-X`` and ``--bootstrap-servers`` ask for, checked."""
    texts: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise UserError(f"-X {pair}: write it as name=value")
        if not _is_text(pair):
            raise UserError(f"-X {name}: the value is not UTF-8")
        texts[name.strip()] = value
    if servers is not None:
        if "bootstrap_servers" in texts:
            raise UserError(
                "the servers are named twice: --bootstrap-servers, -X bootstrap_servers"
            )
        texts["bootstrap_servers"] = servers
    try:
        settings = {"client_id": "pykaproducer-cli", **resolve(texts, texts=True)}
        Config(**settings)
    except (ConfigurationError, UnsupportedFeatureError) as error:
        raise UserError(str(error)) from None
    return settings


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
def log_shown(show: Callable[[str], None] = tell) -> Iterator[None]:
    """Show the library's warnings, and each step of the test cluster, while it lasts."""
    library, cluster = logging.getLogger("pykaproducer"), logging.getLogger("pykaproducer.testing")
    before, handler = cluster.level, _Teller(show)
    library.addHandler(handler)
    cluster.setLevel(logging.INFO)
    try:
        yield
    finally:
        cluster.setLevel(before)
        library.removeHandler(handler)
