"""Code shared by the commands: errors, settings, logging and number formatting."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import re
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

from pykaproducer._config.properties_file import read_properties
from pykaproducer._config.security_validation import login_settings
from pykaproducer._errors.formatting import check_topic
from pykaproducer.config import Config, canonical_name, resolve
from pykaproducer.errors import ConfigurationError, UnsupportedFeatureError


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Names the value of an option once, after its last name, as Python 3.13 does."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        value = self._format_args(action, action.dest.upper())
        return f"{', '.join(action.option_strings)} {value}"


#: Maximum number of partitions in a summary.
_MOST_PARTITIONS = 24
#: Arguments common to all parsers. Abbreviations are off because an abbreviated option would change
#: its meaning when a new option with the same prefix is added.
parser_like: dict[str, Any] = {
    "formatter_class": _HelpFormatter,
    "allow_abbrev": False,
}


_TRUSTSTORE = ["ssl_truststore_location", "ssl_truststore_type", "ssl_truststore_password"]
_KEYSTORE = ["ssl_keystore_location", "ssl_keystore_type", "ssl_keystore_password"]
_CERTIFICATE_PEM = ["ssl_certificate_pem", "ssl_key_pem"]
#: (Settings, equivalents in another form): the former, given by -X, replace the latter in a file.
_REPLACED = (
    ({"sasl_plain_username", "sasl_plain_password"}, ["sasl_jaas_config"]),
    ({"sasl_jaas_config"}, ["sasl_plain_username", "sasl_plain_password"]),
    ({"ssl_cafile"}, ["ssl_ca_pem", *_TRUSTSTORE]),
    ({"ssl_ca_pem"}, ["ssl_cafile", *_TRUSTSTORE]),
    ({"ssl_truststore_location"}, ["ssl_cafile", "ssl_ca_pem"]),
    ({"ssl_certfile"}, [*_CERTIFICATE_PEM, *_KEYSTORE]),
    ({"ssl_certificate_pem"}, ["ssl_certfile", "ssl_keyfile", *_KEYSTORE]),
    ({"ssl_keystore_location"}, ["ssl_certfile", "ssl_keyfile", *_CERTIFICATE_PEM]),
)
#: Environment variable with the servers, used if neither an option nor a file names them.
SERVERS_VARIABLE = "PYKAPRODUCER_BOOTSTRAP_SERVERS"
#: Maximum length of a value that ``-X NAME@FILE`` reads from a file (characters).
_LONGEST_VALUE = 1 << 20


class CommandError(Exception):
    """An error that ends a command. Only its text is printed, so it must say what to do."""

    #: The exit status of the process.
    status = 1


class UserError(CommandError):
    """A mistake in the command line, which the user can correct."""

    status = 2


def notify(text: str) -> None:
    """Write one or more lines for the user to standard error."""
    if sys.stderr is None:
        return
    try:
        print(f"pykaproducer: {text}", file=sys.stderr, flush=True)
    except OSError:
        pass  # standard error is closed or full; the exit status still reports the result


# Options ------------------------------------------------------------------------------------------


def number_from(least: int, most: int = 2**31 - 1) -> Callable[[str], int]:
    """Return an argparse type for an integer from *least* to *most*."""

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if not least <= number <= most:
            bound = f">= {least}" if number < least else f"<= {most}"
            raise argparse.ArgumentTypeError(f"{text!r} is not an integer {bound}")
        return number

    return parse


def rate_of(text: str) -> float | None:
    """Parse messages per second (an argparse type). Return None for -1, which means no limit."""
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if rate != -1 and not 0 < rate < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a rate in messages/s nor -1")
    return None if rate == -1 else rate


def add_servers(
    parser: argparse.ArgumentParser,
    about: str = f"brokers (default: ${SERVERS_VARIABLE}, or localhost:9092)",
) -> None:
    """Add ``--bootstrap-servers``, also as ``-b`` and under the name that Kafka's tools use."""
    parser.add_argument(
        *("-b", "--bootstrap-servers", "--bootstrap-server"), metavar="HOST:PORT,...", help=about
    )


def add_headers(parser: argparse.ArgumentParser) -> None:
    """Add ``--header NAME=VALUE``, which may be repeated. :func:`header_of` parses each value."""
    parser.add_argument(
        "--header",
        dest="headers",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="add a header to every message; may be repeated",
    )


#: An escape sequence in a separator, and what some of them mean.
_ESCAPE = re.compile(rb"\\(x[0-9a-fA-F]{2}|.?)", re.DOTALL)
_ESCAPES = {b"0": b"\0", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"\\": b"\\"}


def separator_of(option: str, text: str) -> bytes:
    r"""Return the bytes of a separator; ``\0 \n \r \t \\`` and ``\xHH`` are escape sequences."""

    def meaning(found: re.Match[bytes]) -> bytes:
        name = found[1]
        if len(name) == 3:
            return bytes.fromhex(name[1:].decode())
        if name not in _ESCAPES:
            raise UserError(
                rf"{option} {text}: \{os.fsdecode(name)} is not an escape sequence; there are "
                r"\0, \n, \r, \t, \xHH, and \\ for a backslash"
            )
        return _ESCAPES[name]

    if not text:
        raise UserError(f"{option}: must not be empty")
    return _ESCAPE.sub(meaning, os.fsencode(text))


def refuse_odd_topic(option: str, name: str) -> None:
    """Raise :class:`UserError` if *name*, given by *option*, is not a valid topic name."""
    try:
        check_topic(name)
    except ValueError as error:
        raise UserError(f"{option}: {error}") from None


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add ``-X name=value``, for any producer setting, and ``--config FILE``."""
    parser.add_argument(
        "-X",
        dest="settings",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="any producer setting, as linger_ms=50 or linger.ms=50; may be repeated. "
        "NAME@FILE reads the value from a file, which hides it from other users",
    )
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="file of settings in the format of Java's client.properties; -X takes precedence",
    )


def settings_from(
    options: argparse.Namespace, *, environment: bool = True, sends: bool = True
) -> dict[str, Any]:
    """Return the validated producer settings from a command's options.

    With *environment*, :data:`SERVERS_VARIABLE` applies if the options name no servers. A command
    that *sends* messages refuses a transactional id. The others ignore that of a file, which may be
    the configuration of a program, and refuse it as an option.
    """
    settings = resolve_settings(
        options.settings, options.bootstrap_servers, options.config, sends=sends
    )
    if environment and "bootstrap_servers" not in settings:
        settings |= _environment()
    return settings


def _environment() -> dict[str, Any]:
    """Return the servers that the environment names."""
    servers = os.environ.get(SERVERS_VARIABLE, "").strip()
    if not servers:
        return {}
    try:
        return resolve({"bootstrap_servers": servers}, texts=True)
    except ConfigurationError as error:
        raise UserError(f"environment variable {SERVERS_VARIABLE}: {error}") from None


def resolve_settings(
    pairs: Sequence[str],
    servers: str | None = None,
    config: str | None = None,
    *,
    sends: bool = True,
) -> dict[str, Any]:
    """Return the producer settings from ``-X``, ``--bootstrap-servers`` and ``--config``."""
    texts = dict(_setting_of(pair) for pair in pairs)
    if servers is not None:
        if "bootstrap_servers" in map(canonical_name, texts):
            raise UserError(
                "bootstrap servers are given twice: by --bootstrap-servers and by -X; remove one"
            )
        texts["bootstrap_servers"] = servers
    given = {canonical_name(name) for name in texts}
    given |= {other for names, others in _REPLACED if names <= given for other in others}
    try:
        file = {} if config is None else read_properties(config)
        # The whole file is validated, including settings that -X overrides.
        resolved = _resolved(file, config or "", sends)
        resolved = {name: value for name, value in resolved.items() if name not in given}
        resolved = _with_login_options(resolved, given)
        own = resolve(texts, texts=True)
        if not sends and own.get("transactional_id") is not None:
            raise UserError(
                "setting transactional_id: it has no effect in a command that sends no messages; "
                "remove -X transactional_id"
            )
        own = _without_transactions(own, sends)
        settings = {"client_id": "pykaproducer-cli", **resolved, **own}
        Config(**settings)
    except (ConfigurationError, UnsupportedFeatureError) as error:
        raise UserError(str(error)) from None
    return settings


def _with_login_options(file: dict[str, Any], given: Container[str | None]) -> dict[str, Any]:
    """Split a file's ``sasl.jaas.config`` into settings if -X gives one of them, as a password."""
    module = file.get("sasl_jaas_config")
    options = {} if module is None else login_settings(module)
    if not any(name in given for name in options):
        return file
    kept = {name: value for name, value in options.items() if name not in given}
    return kept | {name: value for name, value in file.items() if name != "sasl_jaas_config"}


def _resolved(texts: dict[str, str], file: str, sends: bool) -> dict[str, Any]:
    """Resolve the settings of a properties file, prefixing errors and log lines with its name.

    Such files often contain consumer settings. They are ignored, and a log line names them.
    """
    with log_shown(lambda text: notify(f"{file}: {text}"), "pykaproducer.config"):
        try:
            return _without_transactions(resolve(texts, texts=True, file=True), sends)
        except (ConfigurationError, UnsupportedFeatureError) as error:
            raise UserError(f"{file}: {error}") from None


def _without_transactions(settings: dict[str, Any], sends: bool) -> dict[str, Any]:
    """Return *settings* without a transactional id; raise if a command that *sends* has one."""
    if not sends:
        return {name: each for name, each in settings.items() if name != "transactional_id"}
    if settings.get("transactional_id") is not None:
        raise UnsupportedFeatureError(
            "setting transactional_id: transactions are not supported on the command line; remove "
            "the setting"
        )
    return settings


def _setting_of(pair: str) -> tuple[str, str]:
    """Return the name and the value that ``-X`` gives: ``name=value`` or ``name@file``."""
    if not _is_text(pair):
        raise UserError(f"-X {pair.partition('=')[0]}: the value is not valid UTF-8")
    name, equals, value = pair.partition("=")
    before, at, _ = name.partition("@")
    if at:
        return before.strip(), _content(before, pair[len(before) + 1 :])
    if not equals:
        raise UserError(f"-X {pair}: expected name=value or name@file")
    return name.strip(), value


def _content(name: str, path: str) -> str:
    """Return the text of a file that holds a single value, without the trailing newline."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read(_LONGEST_VALUE).removesuffix("\n").removesuffix("\r")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "the file is not valid UTF-8"
    # Not while that error is handled, because it may contain the value, and would be kept.
    raise UserError(f"-X {name}@{path}: {why}")


def _is_text(given: str) -> bool:
    """Return whether an argument is valid UTF-8; Python decodes other bytes to lone surrogates."""
    try:
        given.encode()
    except UnicodeEncodeError:
        return False
    return True


def header_of(text: str) -> tuple[str, bytes]:
    """Parse ``NAME=VALUE`` into a header; the value may be any bytes."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UserError(f"--header {text}: expected name=value")
    if not _is_text(name):
        raise UserError("--header: the name is not valid UTF-8")
    return name, value.encode(errors="surrogateescape")


# Output -------------------------------------------------------------------------------------------


def by_partition(counts: Mapping[int, int]) -> str:
    """Format the number of messages of each partition, of the first 24."""
    shown = sorted(counts.items())
    more = len(shown) - _MOST_PARTITIONS
    text = ", ".join(f"{partition}: {count:,}" for partition, count in shown[:_MOST_PARTITIONS])
    return f"{text}, and {more} more" if more > 0 else text


def human_bytes(count: float) -> str:
    """Format a number of bytes: 1234567 -> '1.2 MB'."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError("unreachable")


def servers_text(servers: Iterable[tuple[str, int]]) -> str:
    """Format servers as ``--bootstrap-servers`` accepts them."""
    return ",".join(
        f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in servers
    )


class _ForwardingHandler(logging.Handler):
    """A handler that passes the library's log messages to a function."""

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
    """Suppress the library's log within the block."""
    library, silent = logging.getLogger("pykaproducer"), logging.NullHandler()
    library.addHandler(silent)  # without any handler Python prints warnings to standard error
    try:
        yield
    finally:
        library.removeHandler(silent)


@contextlib.contextmanager
def log_shown(
    show: Callable[[str], None] = notify, steps: str = "pykaproducer.testing"
) -> Iterator[None]:
    """Show the library's warnings within the block, and INFO messages of the logger *steps*.

    By default *steps* is the test cluster's logger.
    """
    library, part = logging.getLogger("pykaproducer"), logging.getLogger(steps)
    before, handler = part.level, _ForwardingHandler(show)
    library.addHandler(handler)
    part.setLevel(logging.INFO)
    try:
        yield
    finally:
        part.setLevel(before)
        library.removeHandler(handler)
