"""Signal handling of the commands: count signals, so that no line is lost, or raise at once.

Handlers are installed while a command runs, in the main thread only. A process started in the
background ignores SIGINT; a command handles it nevertheless. SIGHUP stays ignored if it was
ignored before, as with nohup.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], None]

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: When to raise again, if Python has ignored the exception (seconds).
_AGAIN = 0.1


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
            # None means that the previous handler was not installed from Python.
            signal.signal(number, signal.SIG_DFL if old is None else old)


@contextlib.contextmanager
def raised() -> Iterator[None]:
    """Raise KeyboardInterrupt in the main thread on SIGINT, SIGTERM and SIGHUP."""
    with _handled_by(signal.default_int_handler):
        yield


class Signals:
    """A counter of SIGINT, SIGTERM and SIGHUP that also interrupts waits for input.

    The handlers do not raise unless :attr:`error` is set, because an exception could lose input
    that was just read:

    1. read() returns a piece of the input. 2. A signal arrives, and the handler raises. 3. The
    piece was never assigned, so its lines are neither sent nor kept.
    """

    def __init__(self) -> None:
        self.count = 0
        #: Number of the first signal.
        self.number = 0
        #: What the handlers raise, while what they interrupt may be abandoned; None: nothing.
        self.error: type[Exception] | None = None
        self._has_alarm = False
        self._alarm_before: Any = None
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._wake, False)

    def readable(self, fd: int, timeout: float | None = None) -> bool:
        """Wait until *fd* is readable. Return false if a signal arrives or *timeout* ends first.

        1. No signal is counted yet. 2. A signal arrives; Python notes it and defers the handler to
        the next bytecode. 3. This thread blocks in select(), so the handler does not run. A wake-up
        pipe, to which Python writes at 2, ends select().
        """
        while not self.count:
            ready = select.select([fd, self._woken], [], [], timeout)[0]
            if self._woken in ready:
                os.read(self._woken, 512)  # the handler has run by the time this returns
            else:
                return fd in ready
        return False

    def _came(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        self.number = self.number or number
        self._raise()

    def _raise(self) -> None:
        """Raise the error now, and once more after a while.

        1. A signal arrives while Python calls a finalizer or a weakref's callback, as at the end of
        an import. 2. Python prints what the handler raises there, and goes on. 3. The thread waits
        for a pipe for good. So an alarm raises again, until the error is caught.
        """
        if self.error is not None:
            if not self._has_alarm:
                self._has_alarm = True
                self._alarm_before = signal.signal(signal.SIGALRM, lambda *_: self._raise())
            signal.setitimer(signal.ITIMER_REAL, _AGAIN)
            raise self.error

    def _end_alarm(self) -> None:
        if self._has_alarm:
            signal.setitimer(signal.ITIMER_REAL, 0)
            before = self._alarm_before
            signal.signal(signal.SIGALRM, signal.SIG_DFL if before is None else before)


@contextlib.contextmanager
def counted() -> Iterator[Signals]:
    """Count signals within the block."""
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
                    signals._end_alarm()
                    signal.set_wakeup_fd(before)
        if signals.count and in_main:
            # The command is ending because of a signal; another Ctrl-C must not interrupt that.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
    finally:
        os.close(signals._woken)
        os.close(signals._wake)
