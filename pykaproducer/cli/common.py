"""What the commands share: settings from the command line, numbers for people, a progress line."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from pykaproducer.config import Config, resolve
from pykaproducer.errors import ConfigurationError, UnsupportedFeatureError

DEFAULT_SERVERS = "localhost:9092"


class UserError(Exception):
    """The user can repair it; the text says how. Printed as one line, without a traceback."""


def add_settings(parser: argparse.ArgumentParser) -> None:
    """``-X name=value``, for any setting of the producer."""
    parser.add_argument(
        "-X",
        dest="settings",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="any setting of the producer, by its name or its dotted name; may be repeated",
    )


def settings_of(pairs: Sequence[str], servers: str | None = None) -> dict[str, Any]:
    """The producer's settings that ``-X`` and ``--bootstrap-servers`` ask for."""
    texts: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise UserError(f"-X {pair}: write it as name=value")
        texts[name.strip()] = value
    if servers is not None:
        texts["bootstrap_servers"] = servers
    try:
        settings = resolve(texts, texts=True)
        Config(**settings)
    except (ConfigurationError, UnsupportedFeatureError) as error:
        raise UserError(str(error)) from None
    return settings


def human_bytes(count: float) -> str:
    """1234567 -> '1.2 MB'."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError("unreachable")


class Progress:
    """A progress bar on standard error where it is a terminal (and rich is there), else nothing."""

    def __init__(self, bar: Any = None, task: Any = None) -> None:
        self._bar = bar
        self._task = task

    def advance(self, size: int) -> None:
        """*size* bytes more."""
        if self._bar is not None:
            self._bar.update(self._task, advance=size)


@contextlib.contextmanager
def progress(title: str, total: int | None) -> Iterator[Progress]:
    """Show how far it has got, in bytes; *total* None: nobody knows how much there is."""
    if not sys.stderr.isatty() or importlib.util.find_spec("rich") is None:
        yield Progress()
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        yield Progress(bar, bar.add_task(title, total=total))
