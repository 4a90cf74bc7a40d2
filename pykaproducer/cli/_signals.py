"""Signals as the commands want them: counted, so that no line is lost, or raised, to end at once.

Installed while a command runs and removed after it, in the main thread only. A process that was
started in the background ignores SIGINT; a command that was told to listen does so all the same.
SIGHUP stays ignored where somebody wants the command to outlive the terminal (nohup).
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

Handler = Callable[[int, FrameType | None], None]

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def _handled_by(handler: Handler) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    if before[signal.SIGHUP] is signal.SIG_IGN:
        del before[signal.SIGHUP]
    try:
        for number in before:
            signal.signal(number, handler)
        yield
    finally:
        for number, old in before.items():
            # None: what was there was not installed from Python.
            signal.signal(number, signal.SIG_DFL if old is None else old)


@contextlib.contextmanager
def raised() -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP raise KeyboardInterrupt in the main thread."""
    with _handled_by(signal.default_int_handler):
        yield


class Signals:
    """Counts SIGINT, SIGTERM and SIGHUP, and ends the waits for input.

    Nothing is raised, because between any two steps an exception could lose what was just read:
    1. read() returns a piece of the input. 2. The signal comes, and the handler raises. 3. The
    piece was never assigned: its lines are neither sent nor kept.
    """

    def __init__(self) -> None:
        self.count = 0
        #: The first that came.
        self.number = 0
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._wake, False)

    def readable(self, fd: int) -> bool:
        """Wait until *fd* can be read; false: a signal has come.

        1. We find no signal counted. 2. One comes; Python notes it and calls its handler when we
        run on. 3. We wait in select(), and do not run on. So Python also writes to a pipe, at 2.
        """
        while not self.count:
            ready = select.select([fd, self._woken], [], [])[0]
            if self._woken in ready:
                os.read(self._woken, 512)  # the handler has run when this returns
            elif fd in ready:
                return True
        return False

    def _came(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        self.number = self.number or number


@contextlib.contextmanager
def counted() -> Iterator[Signals]:
    """Count the signals meanwhile."""
    signals = Signals()
    in_main = threading.current_thread() is threading.main_thread()
    try:
        with _handled_by(signals._came):
            before = (
                signal.set_wakeup_fd(signals._wake, warn_on_full_buffer=False) if in_main else -1
            )
            try:
                yield signals
            finally:
                if in_main:
                    signal.set_wakeup_fd(before)
        if signals.count and in_main:
            # The command ends by it: once more, in the middle of the end, changes nothing.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
    finally:
        os.close(signals._woken)
        os.close(signals._wake)
