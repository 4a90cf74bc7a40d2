"""``top --command``: start a command in order to watch it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from typing import IO

from pykaproducer.cli.common import UserError

#: Commands that have the option ``--stats-socket``.
_WATCHABLE = ("produce", "load", "perf", "verify")
#: Interval between checks for the command's socket (seconds).
_LOOK = 0.05


class WatchedCommand:
    """A running command. Its output is held back until it ends."""

    def __init__(self, arguments: Sequence[str], directory: str, output: IO[bytes]) -> None:
        self.path = os.path.join(directory, "sock")
        name, *more = arguments
        self._output = output
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pykaproducer", name, "--stats-socket", self.path, *more],
            # Keys and Ctrl-C on the terminal are for this process, which forwards the latter once.
            stdin=subprocess.DEVNULL if sys.stdin is None or sys.stdin.isatty() else None,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )

    def listens(self) -> bool:
        """Wait for the command's socket. Return false if the command ends first."""
        pause = threading.Event()
        while not os.path.exists(self.path):
            if self._process.poll() is not None:
                return False
            pause.wait(_LOOK)
        return True

    def interrupt(self) -> None:
        """Interrupt the command, as Ctrl-C would."""
        self._process.send_signal(signal.SIGINT)

    def end(self) -> int:
        """Wait for the command to end, print its output and return its exit status."""
        while True:
            try:
                status = self._process.wait()
                break
            except KeyboardInterrupt:
                self.interrupt()  # the second interrupt: the command abandons pending messages
        self._output.seek(0)
        sys.stderr.write(self._output.read().decode(errors="replace"))
        sys.stderr.flush()
        return status if status >= 0 else 128 - status


@contextlib.contextmanager
def started(arguments: Sequence[str]) -> Iterator[WatchedCommand]:
    """Run ``pykaproducer`` with *arguments* within the block."""
    if not arguments or arguments[0] not in _WATCHABLE:
        raise UserError(f"--command: give one of {', '.join(_WATCHABLE)}, followed by its options")
    with (
        tempfile.TemporaryDirectory(prefix="pykaproducer-top-") as directory,
        tempfile.TemporaryFile() as output,
    ):
        yield WatchedCommand(arguments, directory, output)
