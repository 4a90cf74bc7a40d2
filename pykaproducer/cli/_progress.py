"""A progress bar on standard error where that is a terminal (and rich is there), else nothing."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Iterator
from typing import Any


class Progress:
    """How far the input has been read. This one shows nothing."""

    def advance(self, size: int) -> None:
        """*size* bytes more were read."""

    def waiting(self, messages: int) -> None:
        """All is read, and so many messages have no outcome."""


class _Bar(Progress):
    def __init__(self, bar: Any, task: Any) -> None:
        self._bar = bar
        self._task = task

    def advance(self, size: int) -> None:
        self._bar.update(self._task, advance=size)

    def waiting(self, messages: int) -> None:
        self._bar.update(self._task, description=f"{messages:,} messages still on their way")


@contextlib.contextmanager
def progress(title: str, total: int | None) -> Iterator[Progress]:
    """Show how far it has got, in bytes; *total* None: nobody knows how much there is."""
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
    """Whether rich is installed (it comes with the extra ``demo``)."""
    return importlib.util.find_spec("rich") is not None
