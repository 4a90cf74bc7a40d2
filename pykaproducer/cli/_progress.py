"""Progress on standard error: a bar if it is a terminal and rich is installed, else some lines."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import time
from collections.abc import Iterator
from typing import Any

from pykaproducer.cli.common import human_bytes, notify

#: Time between two lines (seconds).
_INTERVAL = 10.0


class Progress:
    """Progress of reading the input. This base class shows nothing."""

    def advance(self, size: int, rows: int = 0) -> None:
        """Record that *size* more bytes were read, with so many *rows*."""

    def waiting(self, messages: int) -> None:
        """Record that all input was read and that *messages* messages are pending."""


class _Bar(Progress):
    def __init__(self, bar: Any, task: Any, title: str) -> None:
        self._bar = bar
        self._task = task
        self._title = title
        self._rows = 0

    def advance(self, size: int, rows: int = 0) -> None:
        self._rows += rows
        title = f"{self._rows:,} {self._title}" if self._rows else self._title
        self._bar.update(self._task, advance=size, description=title)

    def waiting(self, messages: int) -> None:
        self._bar.update(self._task, description=f"{messages:,} messages pending")


class _Lines(Progress):
    def __init__(self, title: str, total: int | None) -> None:
        self._title = title
        self._of = "" if total is None else f" of {human_bytes(total)}"
        self._rows = self._size = 0
        self._began = self._told = time.monotonic()

    def advance(self, size: int, rows: int = 0) -> None:
        self._rows += rows
        self._size += size
        now = time.monotonic()
        if now >= self._told + _INTERVAL:
            self._told = now
            rate = self._rows / (now - self._began)
            # Of a table on Spark, only the rows are known.
            read = f" {human_bytes(self._size)}{self._of} read," if self._size else ""
            notify(f"{self._rows:,} {self._title};{read} {rate:,.0f} rows/s")


@contextlib.contextmanager
def progress(title: str, total: int | None, *, in_lines: bool = False) -> Iterator[Progress]:
    """Show progress in bytes; *total* is None if the size of the input is unknown.

    *in_lines*: without a terminal, print a line each ten seconds.
    """
    if not has_rich() or sys.stderr is None or not sys.stderr.isatty():
        yield _Lines(title, total) if in_lines else Progress()
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        yield _Bar(bar, bar.add_task(title, total=total), title)


def has_rich() -> bool:
    """Return whether rich is installed (the extras ``cli`` and ``demo`` require it)."""
    return importlib.util.find_spec("rich") is not None
