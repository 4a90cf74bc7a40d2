"""The display of ``demo``: plain text, or live with rich on a terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pykaproducer.cli._progress import has_rich
from pykaproducer.cli.common import human_bytes

#: The stages in the order in which a message passes them, with descriptions.
STAGES = (
    ("send()", "appends it to its topic's open chunk and returns immediately"),
    ("Dispatcher", "collects the open chunks and routes them by topic"),
    ("TopicWorker", "waits for the topic's metadata and chooses the partition"),
    ("PartitionWorker", "finds the partition's leader and preserves the order"),
    ("BrokerWorker", "builds batches for one broker and handles its responses"),
    ("Bridge", "owns the socket: sends requests, receives responses"),
    ("RetryHandler", "schedules retries after retriable errors"),
    ("Reports", "runs your callbacks"),
)

_STAGES_TITLE = "The path of a message; each stage has an input queue:"

_BAR = 30
_LABEL = 11


@dataclass
class Board:
    """Message counts and sizes by partition. Written by the command, read by the display."""

    delivered: dict[int, int]
    read_back: dict[int, int]
    sizes: dict[int, int] = field(default_factory=dict)

    def rows(self) -> Iterator[tuple[int, int, int, float]]:
        """Yield (partition, delivered, read back, share of the fullest) for each partition."""
        most = max(self.delivered.values(), default=0) or 1
        for partition, count in sorted(self.delivered.items()):
            yield partition, count, self.read_back.get(partition, 0), count / most


class Display:
    """Plain text output, in chronological order."""

    def title(self, text: str) -> None:
        """Print the first line."""
        print(f"{text}\n", flush=True)

    def row(self, label: str, text: str) -> None:
        """Print a labelled line."""
        print(f"{label:<{_LABEL}}{text}", flush=True)

    def stages(self) -> None:
        """Print the names and descriptions of the stages."""
        print(f"\n{_STAGES_TITLE}\n")
        for name, does in STAGES:
            print(f"    {name:<17}{does}")
        print()

    def verdict(self, good: bool, text: str) -> None:
        """Print the last line."""
        print(f"\n{'SAME' if good else 'FAILED':<{_LABEL}}{text}")

    @contextlib.contextmanager
    def live(self, board: Board) -> Iterator[None]:
        """Show *board* while the block updates it."""
        yield
        print(f"    {'partition':<10}{'delivered':>12}{'size':>10}{'read back':>12}")
        for partition, delivered, same, share in board.rows():
            size = human_bytes(board.sizes.get(partition, 0))
            bar = "#" * round(_BAR * share)
            print(f"    {partition:<10}{delivered:>12,}{size:>10}{same:>12,}  {bar}")
        print()


class RichDisplay(Display):
    """Output with rich, which updates the board live."""

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(highlight=False)

    def _print(self, text: str, style: str = "", *more: tuple[str, str]) -> None:
        from rich.text import Text

        self._console.print(Text.assemble((text, style), *more))

    def title(self, text: str) -> None:
        self._print(f"{text}\n", "bold")

    def row(self, label: str, text: str) -> None:
        self._print(f"{label:<{_LABEL}}", "bold cyan", (text, ""))

    def stages(self) -> None:
        self._print(f"\n{_STAGES_TITLE}\n")
        for name, does in STAGES:
            self._print(f"    {name:<17}", "bold magenta", (does, ""))
        self._print("")

    def verdict(self, good: bool, text: str) -> None:
        label, style = ("SAME", "bold green") if good else ("FAILED", "bold red")
        self._print(f"\n{label:<{_LABEL}}{text}", style)

    @contextlib.contextmanager
    def live(self, board: Board) -> Iterator[None]:
        from rich.live import Live

        def picture() -> Any:
            return _table(board)

        with Live(console=self._console, get_renderable=picture, refresh_per_second=8):
            yield
        self._print("")


def _table(board: Board) -> Any:
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("partition", "delivered", "size", "read back"):
        table.add_column(title, justify="right", min_width=9)
    table.add_column("")
    for partition, delivered, same, share in board.rows():
        size = board.sizes.get(partition)
        whole = round(_BAR * share)
        done = whole * same // delivered if delivered else 0
        table.add_row(
            str(partition),
            f"{delivered:,}",
            "" if size is None else human_bytes(size),
            f"{same:,}",
            Text.assemble(("\u2588" * done, "green"), ("\u2588" * (whole - done), "yellow")),
        )
    return Padding(table, (0, 0, 0, 4))


def display() -> Display:
    """Return the display that suits standard output."""
    terminal = sys.stdout is not None and sys.stdout.isatty()
    return RichDisplay() if terminal and has_rich() else Display()
