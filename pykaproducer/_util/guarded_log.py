"""Log lines, which run the program's logging filters and handlers: user code.

A stage never runs user code of that kind. It passes the line to the LogWriter of its producer. If
the stage wrote the line itself, the program could stop it:

1. A user thread logs, and its handler, which holds its own lock, sends the record to Kafka and
   waits for the result.
2. A stage logs to the same handler, and would wait for the lock.
3. The result that the handler waits for would never come, and would not even expire.

Any other thread writes its lines itself: a user thread, or one that ``close()`` starts.
``logging.handlers.QueueHandler`` is not used, because the handlers belong to the program, and only
lines of stages must change threads.

A handler's exception is caught by the logging module; a filter's is not. Both are printed and never
reach the caller (P9, P11).

A program that configures logging disables the loggers that exist by then, unless it says otherwise
(``disable_existing_loggers`` of ``fileConfig()`` and ``dictConfig()``). It does not mean ours, so
errors are printed then: no loss is silent (P7).

A fork waits while a line is being written (P8). Otherwise the child could wait forever:

1. a thread writes a line to ``stderr``, and holds the lock of that file;
2. another thread forks; in the child the lock is held by a thread that does not exist there;
3. the child writes to ``stderr``.

The logging module renews its own locks in the child, but not those of files.
"""

from __future__ import annotations

import _thread
import contextlib
import logging
import os
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from pykaproducer._kernel import monotonic
from pykaproducer._util.clock import held_lock, wake_all
from pykaproducer._util.memory import NO_MEMORY

#: Maximum time that a fork waits for lines, and lines for a fork (seconds).
_PATIENCE: Final = 1.0


class LogLine(NamedTuple):
    """A line, with what the logging module would note about the caller."""

    logger: logging.Logger
    level: int
    text: str
    args: tuple[Any, ...]
    #: The exception, and its traceback, which may be removed from it before the line is written.
    error: BaseException | None
    traceback: types.TracebackType | None
    created: float
    thread: int
    thread_name: str
    #: File, line, function.
    caller: tuple[str, int, str]

    def write(self) -> None:
        """Pass the line to the program's filters and handlers. Print an Exception that they raise.

        Others are raised: in a user thread, a KeyboardInterrupt may strike here.
        """
        with _being_written.line():
            try:
                record = self._record()
                self.logger.handle(record)
                if self.logger.disabled and self.level >= logging.ERROR and logging.lastResort:
                    logging.lastResort.handle(record)
            except Exception:  # from user code (P9)
                self.print_exception()

    def print_exception(self) -> None:
        """Print the exception that is being handled, which a filter or handler has raised."""
        if logging.raiseExceptions and sys.stderr is not None:
            with contextlib.suppress(Exception):  # stderr may be closed
                text = f"a logging filter or handler raised at {self.text!r}:"
                print(text, file=sys.stderr)
                traceback.print_exc()

    def _record(self) -> logging.LogRecord:
        error = self.error
        record = self.logger.makeRecord(
            self.logger.name,
            self.level,
            *self.caller[:2],
            self.text,
            self.args,
            None if error is None else (type(error), error, self.traceback),
            self.caller[2],
        )
        record.relativeCreated -= (record.created - self.created) * 1000
        record.created, record.msecs = self.created, int(self.created * 1000) % 1000
        record.thread, record.threadName = self.thread, self.thread_name
        return record


class _BeingWritten:
    """The lines that threads other than the main thread are writing, so that a fork can wait.

    No line is overlooked: a thread (1) enters its line, (2) looks for a fork; a fork (1) announces
    itself, (2) looks for lines. Lines that follow wait for the fork: a thread with many of them
    would otherwise always be in the middle of one.
    """

    def __init__(self) -> None:
        # The thread of each line, by a lock that is held while the line is written.
        self._threads: dict[_thread.LockType, int] = {}
        # Until when lines wait for a fork, and the locks of the threads that wait.
        self._fork_until = 0.0
        self._paused: dict[_thread.LockType, None] = {}

    @contextlib.contextmanager
    def line(self) -> Iterator[None]:
        """Have a fork wait for the end of the block."""
        if _thread.get_ident() == threading.main_thread().ident:
            # A signal handler may interrupt it here. It usually is the thread that forks.
            yield
            return
        line = self._enter()
        try:
            yield
        finally:
            self._leave(line)

    def _enter(self) -> _thread.LockType:
        while True:
            line = held_lock()
            self._threads[line] = _thread.get_ident()
            if self._fork_until <= monotonic():
                return line
            self._leave(line)
            self._wait_for_fork()

    def _leave(self, line: _thread.LockType) -> None:
        self._threads.pop(line, None)
        line.release()

    def _wait_for_fork(self) -> None:
        lock = held_lock()
        self._paused[lock] = None
        if (left := self._fork_until - monotonic()) > 0:
            lock.acquire(timeout=left)
        self._paused.pop(lock, None)

    def before_fork(self) -> None:
        """Wait until no other thread writes a line, for at most :data:`_PATIENCE`."""
        deadline = self._fork_until = monotonic() + _PATIENCE
        me = _thread.get_ident()
        while others := [line for line, it in self._threads.copy().items() if it != me]:
            for line in others:
                if not line.acquire(timeout=max(0.0, deadline - monotonic())):
                    return
                line.release()

    def after_in_parent(self) -> None:
        """Let the threads continue that have waited for the fork."""
        self._fork_until = 0.0
        wake_all(self._paused)

    def after_in_child(self) -> None:
        """Forget the threads that do not exist here."""
        self._threads, self._paused = {}, {}
        self._fork_until = 0.0


_being_written = _BeingWritten()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_being_written.before_fork,
        after_in_parent=_being_written.after_in_parent,
        after_in_child=_being_written.after_in_child,
    )

#: Forget the threads that do not exist in the child of a fork, also if it ran without hooks.
forget_threads = _being_written.after_in_child


class _ThisThread(threading.local):
    """State of the current thread."""

    #: Takes its lines; None: it writes them itself.
    pass_on: Callable[[LogLine], None] | None = None


_this_thread = _ThisThread()


def pass_lines_to(
    pass_on: Callable[[LogLine], None] | None,
) -> Callable[[LogLine], None] | None:
    """Have the lines of the calling thread passed to *pass_on*; return the former value.

    None: the thread writes them itself.
    """
    former, _this_thread.pass_on = _this_thread.pass_on, pass_on
    return former


class GuardedLogger:
    """The logger *name*, for lines whose handlers must not stop or end the caller."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def debug(self, text: str, *args: Any) -> None:
        """Log at DEBUG."""
        self._log(logging.DEBUG, text, args)

    def info(self, text: str, *args: Any) -> None:
        """Log at INFO."""
        self._log(logging.INFO, text, args)

    def warning(self, text: str, *args: Any, exc_info: BaseException | None = None) -> None:
        """Log at WARNING, with the error *exc_info* and its traceback."""
        self._log(logging.WARNING, text, args, exc_info)

    def error(self, text: str, *args: Any, exc_info: BaseException | None = None) -> None:
        """Log at ERROR, with the error *exc_info* and its traceback."""
        self._log(logging.ERROR, text, args, exc_info)

    def log(self, level: int, text: str, *args: Any) -> None:
        """Log at *level*."""
        self._log(level, text, args)

    def _log(
        self, level: int, text: str, args: tuple[Any, ...], error: BaseException | None = None
    ) -> None:
        logger = self._logger
        # Not isEnabledFor(), which may wait for a lock that is held while a handler is configured.
        if level <= logger.manager.disable or level < logger.getEffectiveLevel():
            return
        try:
            frame = sys._getframe(2)  # the caller of the public method
            line = LogLine(
                logger,
                level,
                text,
                args,
                error,
                None if error is None else error.__traceback__,
                time.time(),
                _thread.get_ident(),
                threading.current_thread().name,
                (frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name),
            )
            pass_on = _this_thread.pass_on or LogLine.write
            pass_on(line)
        except NO_MEMORY:
            pass  # drop the line: a stage must not end for it
