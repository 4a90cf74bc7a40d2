"""Single keys from the terminal, without Enter."""

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

#: What a key sends that is no letter: an arrow, a function key.
_SEQUENCE = re.compile(r"\x1b(?:[\[O][0-9;]*[A-Za-z~]?)?")


class Keys:
    """Waits; on a terminal a key ends the wait."""

    def __init__(self, fd: int | None) -> None:
        self._fd = fd
        self._never = threading.Event()
        self._typed: list[str] = []

    def wait(self, seconds: float) -> str:
        """The next key, if one comes within *seconds*; empty: none came."""
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
            if not read:  # the terminal has gone: do not find it readable again and again
                self._fd = None
            self._typed.extend(_SEQUENCE.sub("", read.decode("ascii", errors="ignore")))
        return self._typed.pop(0) if self._typed else ""


@contextlib.contextmanager
def keys() -> Iterator[Keys]:
    """Keys of standard input, if that is a terminal, which is afterwards as it was before."""
    fd = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
    if fd is None:
        yield Keys(None)
        return
    before = termios.tcgetattr(fd)
    try:
        tty.setcbreak(fd, termios.TCSANOW)
        changed = termios.tcgetattr(fd)
        # Ctrl-Z would leave the terminal as it is now to whoever comes.
        changed[6][termios.VSUSP] = b"\x00"
        termios.tcsetattr(fd, termios.TCSANOW, changed)
        yield Keys(fd)
    finally:
        termios.tcsetattr(fd, termios.TCSANOW, before)
