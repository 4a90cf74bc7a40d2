"""``pykaproducer settings [NAME ...]``: describe the settings of the producer."""

from __future__ import annotations

import argparse
import fnmatch
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from pykaproducer._config.java import java_support
from pykaproducer._config.schema import Setting
from pykaproducer.cli.common import UserError, parser_like
from pykaproducer.config import SETTINGS, canonical_name, resolve
from pykaproducer.errors import ConfigurationError

_WIDTH = 79
_INDENT = "    "

_EXAMPLES = """\
examples:
  pykaproducer settings                 all settings
  pykaproducer settings linger.ms       one, by any of its names
  pykaproducer settings 'ssl_*' acks    those that match a pattern, and another

exit status:
  0  success
  2  invalid command line, or an unknown setting
"""


def add_parser(commands: Any) -> None:
    """Add ``settings`` and its arguments."""
    parser = commands.add_parser(
        "settings",
        help="describe the producer's settings",
        description="Print the default, the allowed values and the meaning of each setting.",
        epilog=_EXAMPLES,
        **parser_like,
    )
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="names of settings, or patterns with * (default: all)",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the settings."""
    javas = java_support()
    only_java = [name for name in javas if name in options.names and canonical_name(name) is None]
    names = [name for name in options.names if name not in only_java]
    shown = [_lines(row) for row in _chosen(names)] if names or not only_java else []
    shown += [_java_lines(name, javas[name]) for name in only_java]
    print("\n\n".join("\n".join(each) for each in shown))
    return 0


def _chosen(names: Sequence[str]) -> list[Setting]:
    """Return the settings with these names, or all, in the order of the documentation."""
    if not names:
        return list(SETTINGS)
    chosen: set[str] = set()
    for name in names:
        own = canonical_name(name)
        found = [own] if own is not None else fnmatch.filter([row.name for row in SETTINGS], name)
        if not found:
            raise UserError(_unknown(name))
        chosen.update(found)
    return [row for row in SETTINGS if row.name in chosen]


def _unknown(name: str) -> str:
    if "*" in name or "?" in name:
        return f"no setting matches {name!r}"
    try:
        resolve({name: ""}, texts=True)
    except ConfigurationError as error:  # it names the most similar one
        return str(error)
    return f"setting {name} is unknown"


def _lines(row: Setting) -> Iterator[str]:
    yield row.name
    default = f"{row.default!r} {row.unit}" if row.unit and row.default is not None else row.default
    yield from _wrapped(f"default: {default}")
    yield from _wrapped(f"allowed: {row.kind.allowed}")
    others = [name for name in row.dotted if name != row.name.replace("_", ".")]
    if others:
        yield from _wrapped(f"also: {', '.join(others)}")
    about = row.doc if row.support == "honoured" else f"{row.doc} {row.support}"
    yield from _wrapped(about.replace("``", "").strip().rstrip(".") + ".")


def _java_lines(name: str, support: str) -> Iterator[str]:
    yield name
    yield from _wrapped(f"only in the Java client. {support.replace('``', '')}")


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(
        text, _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT, break_long_words=False
    )
