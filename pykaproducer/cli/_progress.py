"""A progress bar on standard error if it is a terminal and rich is installed; else nothing."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Iterator
from typing import Any


class Progress:
    """Progress of reading the input. This base class shows nothing."""

    def advance(self, size: int) -> None:
        """Record that *size* more bytes were read."""

    def waiting(self, messages: int) -> None:
        """Record that all input was read and that *messages* messages are pending."""


class _Bar(Progress):
    def __init__(self, bar: Any, task: Any) -> None:
        self._bar = bar
        self._task = task

    def advance(self, size: int) -> None:
        self._bar.update(self._task, advance=size)

    def waiting(self, messages: int) -> None:
        self._bar.update(self._task, description=f"{messages:,} messages pending")


@contextlib.contextmanager
def progress(title: str, total: int | None) -> Iterator[Progress]:
    """Show progress in bytes; *total* is None if the size of the input is unknown."""
    if not has_rich() or sys.stderr is None or not sys.stderr.isatty():
        yield Progress()
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        TextColumn,
        TimeElapsedColumn,
        TransferSpeedColumn,
    )
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeElapsedColumn(),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        yield _Bar(bar, bar.add_task(title, total=total))


def has_rich() -> bool:
    """Return whether rich is installed (the extras ``cli`` and ``demo`` require it)."""
    return importlib.util.find_spec("rich") is not None
