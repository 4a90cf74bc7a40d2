"""Single key presses from the terminal, without Enter."""

from __future__ import annotations

import contextlib
import os
import re
import select
import sys
import termios
import threading
import tty
from collections.abc import Iterator

#: Escape sequence of a key such as an arrow or a function key.
_SEQUENCE = re.compile(r"\x1b(?:[\[O][0-9;]*[A-Za-z~]?)?")


class Keys:
    """A timed wait that a key press on the terminal ends."""

    def __init__(self, fd: int | None) -> None:
        self._fd = fd
        self._never = threading.Event()
        self._typed: list[str] = []

    def wait(self, seconds: float) -> str:
        """Return the next key pressed within *seconds*, or "" if there is none."""
        if self._fd is None:
            self._never.wait(seconds)
            return ""
        if not self._typed:
            if not select.select([self._fd], [], [], max(0.0, seconds))[0]:
                return ""
            try:
                read = os.read(self._fd, 64)
            except OSError:
                read = b""
            if not read:  # the terminal is gone; select() would report it as readable forever
                self._fd = None
            self._typed.extend(_SEQUENCE.sub("", read.decode("ascii", errors="ignore")))
        return self._typed.pop(0) if self._typed else ""


@contextlib.contextmanager
def keys() -> Iterator[Keys]:
    """Read keys from standard input if it is a terminal, and restore its mode afterwards."""
    fd = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
    if fd is None:
        yield Keys(None)
        return
    before = termios.tcgetattr(fd)
    try:
        tty.setcbreak(fd, termios.TCSANOW)
        changed = termios.tcgetattr(fd)
        # Disable Ctrl-Z: it would leave the terminal in this mode to the shell.
        changed[6][termios.VSUSP] = b"\x00"
        termios.tcsetattr(fd, termios.TCSANOW, changed)
        yield Keys(fd)
    finally:
        termios.tcsetattr(fd, termios.TCSANOW, before)
