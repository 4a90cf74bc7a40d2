"""``pykaproducer top``: watch a producer live, through the stats socket of its process."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import stat
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pykaproducer.cli import _signals
from pykaproducer.cli._keys import Keys, keys
from pykaproducer.cli._progress import has_rich
from pykaproducer.cli._top_command import WatchedCommand, started
from pykaproducer.cli._top_history import History
from pykaproducer.cli.common import CommandError, UserError, notify, parser_like
from pykaproducer.stats import read_stats, running, runtime_directory

if TYPE_CHECKING:
    from rich.console import Console

#: Interval between checks for a new terminal size (seconds).
_LOOK = 0.25
#: Time without an answer after which the process is shown as not responding (seconds).
_PATIENCE = 1.0
_SHORTEST, _LONGEST = 0.1, 3600.0
#: Maximum number of characters of a command line that are shown.
_COMMAND = 60

_FOOTER = "q quits   p pauses"
_PAUSED = "PAUSED   q quits   p resumes"

_EXAMPLES = """\
examples:
  pykaproducer top                      the one command that is running
  pykaproducer top 4711                 the one with this process id
  pykaproducer top /run/app/4711.sock   any program with the setting
                                        stats_socket=/run/app/%p.sock
  pykaproducer top --once               show one snapshot and exit
  pykaproducer top --command load trips.parquet -t trips
                                        start a command and watch it
  pykaproducer top --json | jq .messages
                                        one line of JSON per second

keys: q quits, p pauses the display (not the producer).

exit status:
  0  you quit, or the watched process ended
  1  no process answers at the socket    2  invalid command line
  with --command: the exit status of the command
"""


def add_parser(commands: Any) -> None:
    """Add ``top`` and its options."""
    parser = commands.add_parser(
        "top",
        help="watch a running producer",
        description="Show a producer's stages, brokers, partitions, rates and latencies, live.",
        epilog=_EXAMPLES,
        **parser_like,
    )
    parser.add_argument(
        "target",
        nargs="?",
        metavar="SOCKET|PID",
        help="what to watch (default: the only running command)",
    )
    parser.add_argument(
        "--interval", type=_interval, default=1.0, metavar="SECONDS", help="interval (default 1)"
    )
    parser.add_argument("--once", action="store_true", help="show one snapshot and exit")
    parser.add_argument("--json", action="store_true", help="print each snapshot as JSON")
    parser.add_argument(
        "--command",
        nargs=argparse.REMAINDER,
        metavar="COMMAND ...",
        help="start produce, load, perf or verify with the arguments that follow, and watch it",
    )
    parser.set_defaults(run=run)


def _interval(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not _SHORTEST <= seconds <= _LONGEST:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds >= {_SHORTEST}")
    return seconds


def run(options: argparse.Namespace) -> int:
    """Watch until the process ends, or the user quits."""
    if not options.json and not has_rich():
        raise CommandError(
            "top needs the package rich: pip install 'pykaproducer[cli]', or use --json"
        )
    if options.command is not None:
        return _with_command(options)
    feed = _Feed(_socket_of(options.target))
    with contextlib.suppress(KeyboardInterrupt), _signals.raised():
        try:
            feed.first()
            _watch(options, feed)
        except _EndedError:
            _report_end(feed)
    return 0


def _with_command(options: argparse.Namespace) -> int:
    """Start a command and watch it. Either ending ends the other."""
    if options.target is not None:
        raise UserError("--command cannot be combined with a SOCKET or PID")
    with _signals.raised(), started(options.command) as command:
        # The command may outlive its producer: verify closes it before reading back.
        with contextlib.suppress(_EndedError):
            with contextlib.suppress(KeyboardInterrupt):
                _watch_command(options, command)
            command.interrupt()
        return command.end()


def _watch_command(options: argparse.Namespace, command: WatchedCommand) -> None:
    """Watch a command until the user quits."""
    if not command.listens():
        raise _EndedError
    feed = _Feed(command.path)
    try:
        feed.first()
    except CommandError:
        raise _EndedError from None  # the command ended before its first snapshot
    _watch(options, feed)


# Target selection ---------------------------------------------------------------------------------


def _socket_of(target: str | None) -> str:
    """Return the path of the socket to watch."""
    if target is None or target.isdecimal():
        return _found(None if target is None else int(target))
    try:
        if not stat.S_ISSOCK(os.stat(target).st_mode):
            raise UserError(f"{target}: not a socket")
    except (OSError, ValueError) as error:
        raise UserError(f"{target}: {getattr(error, 'strerror', None) or error}") from None
    return target


def _found(pid: int | None) -> str:
    """Return the socket of the only listening process, or of process *pid*."""
    there = [each for each in running() if pid in (None, each.pid)]
    if not there:
        who = "no producer" if pid is None else f"no producer of process {pid}"
        raise CommandError(
            f"{who} listens in {runtime_directory()}; start produce, load, perf or verify, or set "
            f'stats_socket="PATH" in a program and run: pykaproducer top PATH'
        )
    if pid is None and len(there) > 1:
        raise UserError(
            "\n".join(
                [
                    "several producers; name one by its process id, or by its socket:",
                    *(f"  {each.pid}  {_command_of(each.pid)}{each.path}" for each in there),
                ]
            )
        )
    return there[-1].path


def _command_of(pid: int) -> str:
    """Return the beginning of a process's command line, for a list, or "" if it is unknown."""
    try:
        content = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return ""  # not Linux, or the process has ended
    words = content.decode(errors="replace").split("\0")
    if "python" in os.path.basename(words[0]):
        words = words[2:] if words[1:2] == ["-m"] else words[1:]
    words[:1] = [os.path.basename(word) for word in words[:1]]
    line = "".join(letter if letter.isprintable() else "?" for letter in " ".join(words).strip())
    if len(line) > _COMMAND:
        line = f"{line[: _COMMAND - 3]}..."
    return f"{line}  " if line else ""


class _EndedError(Exception):
    """The watched process has ended."""


class _Feed:
    """Snapshots from a socket."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.history = History()

    def first(self) -> None:
        """Take the first snapshot.

        Raises:
            CommandError: the process does not answer.
        """
        try:
            self._take()
        except ValueError as error:
            raise CommandError(str(error)) from None
        except OSError as error:
            text = error.strerror or "no answer"
            raise CommandError(f"{self.path}: {text}; has its process ended?") from None

    def next(self) -> None:
        """Take another snapshot; count it as missed if the process does not answer in time."""
        try:
            self._take()
        except TimeoutError:
            self.history.missed(time.monotonic())
        except (OSError, ValueError):
            raise _EndedError from None

    def _take(self) -> None:
        snapshot = _clean(read_stats(self.path, _PATIENCE))
        if snapshot["state"] == "closed":
            raise _EndedError
        self.history.add(snapshot, time.monotonic())


def _clean(value: Any) -> Any:
    """Replace unprintable characters, which a terminal could interpret as commands."""
    if isinstance(value, str):
        return "".join(letter if letter.isprintable() else "?" for letter in value)
    if isinstance(value, list):
        return [_clean(each) for each in value]
    if isinstance(value, dict):
        return {name: _clean(each) for name, each in value.items()}
    return value


def _report_end(feed: _Feed) -> None:
    if not feed.history.now:
        notify(f"{feed.path}: the producer is closed")
        return
    now = feed.history.now
    messages = now["messages"]
    notify(
        f"{now['client_id']} (process {now['pid']}) has ended; when it last answered, "
        f"{messages['delivered']:,} of {messages['accepted']:,} messages were delivered"
    )


# Display ------------------------------------------------------------------------------------------


def _watch(options: argparse.Namespace, feed: _Feed) -> None:
    if options.json:
        _print_json(options, feed)
        return
    from rich.console import Console

    console = Console(highlight=False)
    if options.once or not console.is_terminal or console.is_dumb_terminal:
        _print_frames(options, feed, console)
    else:
        _live(options, feed, console)


def _print_json(options: argparse.Namespace, feed: _Feed) -> None:
    pause = Keys(None)
    while True:
        print(json.dumps(feed.history.now), flush=True)
        if options.once:
            return
        pause.wait(options.interval)
        feed.next()


def _print_frames(options: argparse.Namespace, feed: _Feed, console: Console) -> None:
    """Print one frame after another, for a file or a pipe. The first one already has rates."""
    from rich.rule import Rule

    pause = Keys(None)
    while True:
        pause.wait(options.interval)
        feed.next()
        console.print(_picture(feed.history, console, None))
        sys.stdout.flush()
        if options.once:
            return
        console.print(Rule(style="dim"))


def _live(options: argparse.Namespace, feed: _Feed, console: Console) -> None:
    from rich.live import Live

    with keys() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
        paused = False
        shown: tuple[object, ...] = ()
        for fresh in _ticks(options.interval, feed, pressed):
            if fresh == "q":
                return
            if fresh == "p":
                paused = not paused
            state = (console.size, paused, feed.history.looks, feed.history.silent)
            if paused and fresh != "p" and shown and shown[0] == console.size:
                continue
            if state != shown:
                footer = _PAUSED if paused else _FOOTER
                live.update(_picture(feed.history, console, footer), refresh=True)
                shown = state


def _ticks(interval: float, feed: _Feed, pressed: Keys) -> Iterator[str]:
    """Take a snapshot each *interval*; yield a key, or "" when the display may need a redraw."""
    due = time.monotonic() + interval
    yield ""
    while True:
        now = time.monotonic()
        if now >= due:
            feed.next()
            due = max(due + interval, time.monotonic())
            yield ""
        yield pressed.wait(min(_LOOK, due - time.monotonic()))


def _picture(history: History, console: Console, footer: str | None) -> Any:
    from pykaproducer.cli._top_view import Room, frame

    size, ascii_only = console.size, console.options.ascii_only
    return frame(
        history,
        Room(size.width, None if footer is None else size.height, ascii_only),
        footer or "",
    )
