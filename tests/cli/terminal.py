"""A command on a separate terminal."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import struct
import subprocess
import termios
import time
from collections.abc import Iterator

from .helper import PATIENCE, command


class Terminal:
    """The output of a command, and the keys sent to it."""

    def __init__(self, process: subprocess.Popen[bytes], ours: int, theirs: int) -> None:
        self.shown = b""
        self.process = process
        self._ours, self._theirs = ours, theirs
        self._before = termios.tcgetattr(theirs)

    def wait_for(self, text: str) -> None:
        """Read until *text* has been shown since the last call."""
        wanted, deadline = text.encode(), time.monotonic() + PATIENCE
        while wanted not in self.shown:
            left = deadline - time.monotonic()
            ready = left > 0 and select.select([self._ours], [], [], left)[0]
            assert ready, f"{text!r} was not shown: {self.shown[-4000:]!r}"
            self.shown += os.read(self._ours, 65536)
        self.shown = self.shown[self.shown.index(wanted) + len(wanted) :]

    def press(self, key: bytes) -> None:
        os.write(self._ours, key)

    def resize(self, columns: int, lines: int) -> None:
        _resize(self._theirs, columns, lines)

    def end(self) -> int:
        """Return the exit status; the last output is in ``shown``."""
        deadline = time.monotonic() + PATIENCE
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.shown[-2000:]
            # The command blocks if its output is not read.
            if select.select([self._ours], [], [], 0.05)[0]:
                self.shown += os.read(self._ours, 65536)
        while select.select([self._ours], [], [], 0)[0]:
            self.shown += os.read(self._ours, 65536)
        return self.process.wait()

    def is_as_before(self) -> bool:
        """Return whether the terminal modes are the same as before the command."""
        return termios.tcgetattr(self._theirs) == self._before


def _resize(fd: int, columns: int, lines: int) -> None:
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))


@contextlib.contextmanager
def on_a_terminal(*arguments: str, columns: int = 80, lines: int = 24) -> Iterator[Terminal]:
    """Run the command on a terminal, in a separate session, as a shell does."""
    ours, theirs = os.openpty()
    _resize(theirs, columns, lines)
    environment = {**os.environ, "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8"}
    for name in ("COLUMNS", "LINES"):
        environment.pop(name, None)
    process = subprocess.Popen(
        command(*arguments),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    try:
        yield Terminal(process, ours, theirs)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
        os.close(theirs)
