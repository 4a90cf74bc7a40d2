"""``top --command``: a command that is started to be watched."""

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

#: Those that have the option ``--stats-socket``.
_WATCHABLE = ("produce", "load", "perf", "verify")
#: How often we look whether it listens (seconds).
_LOOK = 0.05


class Command:
    """A command that runs; what it prints is kept until it has ended."""

    def __init__(self, arguments: Sequence[str], directory: str, output: IO[bytes]) -> None:
        self.path = os.path.join(directory, "sock")
        name, *more = arguments
        self._output = output
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pykaproducer", name, "--stats-socket", self.path, *more],
            # Of a terminal the keys are ours; and its Ctrl-C comes through us, once.
            stdin=subprocess.DEVNULL if sys.stdin is None or sys.stdin.isatty() else None,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )

    def listens(self) -> bool:
        """Wait until there is something to watch; false: it has ended before."""
        pause = threading.Event()
        while not os.path.exists(self.path):
            if self._process.poll() is not None:
                return False
            pause.wait(_LOOK)
        return True

    def interrupt(self) -> None:
        """End it as Ctrl-C would."""
        self._process.send_signal(signal.SIGINT)

    def end(self) -> int:
        """Wait for its end, and print what it has said."""
        while True:
            try:
                status = self._process.wait()
                break
            except KeyboardInterrupt:
                self.interrupt()  # the second: it gives up what it has
        self._output.seek(0)
        sys.stderr.write(self._output.read().decode(errors="replace"))
        sys.stderr.flush()
        return status if status >= 0 else 128 - status


@contextlib.contextmanager
def started(arguments: Sequence[str]) -> Iterator[Command]:
    """Run ``pykaproducer`` with *arguments* meanwhile."""
    if not arguments or arguments[0] not in _WATCHABLE:
        raise UserError(f"--command: name one of {', '.join(_WATCHABLE)}, with its own options")
    with (
        tempfile.TemporaryDirectory(prefix="pykaproducer-top-") as directory,
        tempfile.TemporaryFile() as output,
    ):
        yield Command(arguments, directory, output)
