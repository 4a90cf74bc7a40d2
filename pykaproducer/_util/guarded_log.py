"""Log lines, which run the program's logging filters and handlers: user code.

A stage never runs user code of that kind. It puts the line into a queue, and a thread that exists
only while there are lines writes it. If a stage wrote the line itself, the program could stop it:

1. A user thread logs, and its handler, which holds its own lock, sends the record to Kafka and
   waits for the result.
2. A stage logs to the same handler, and would wait for the lock.
3. The result that the handler waits for would never come, and would not even expire.

A user thread writes its lines itself.

An exception of a handler is caught by the logging module, one of a filter is not. Both are printed,
and never reach the caller (P9, P11).

No line is overlooked: a stage (1) appends the line, (2) starts a writer unless one is active; a
writer (1) finds no line, (2) is no longer active, (3) looks once more.

A fork waits while a line is being written (P8). Otherwise the child could wait forever:

1. the writer writes a line to ``stderr``, and holds the lock of that file;
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
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

#: Maximum time that a fork waits for a line, and that close() waits for the last ones (seconds).
_PATIENCE: Final = 1.0
#: Maximum number of lines that wait. The handlers are too slow for more, which are dropped.
_MOST: Final = 1000


class _ThisThread(threading.local):
    """State of the current thread."""

    #: Whether it runs a stage.
    is_stage = False
    #: Whether it is a writer.
    is_writer = False


_this_thread = _ThisThread()


def runs_a_stage(yes: bool) -> None:
    """Record whether the calling thread runs a stage, so that it must not write its lines."""
    _this_thread.is_stage = yes


@dataclass(frozen=True, slots=True)
class _Line:
    """A line, with what the logging module would note about the caller."""

    logger: logging.Logger
    level: int
    text: str
    args: tuple[Any, ...]
    error: BaseException | None
    #: The error with its traceback, as text: it may be removed before the line is written.
    error_text: str | None
    created: float
    thread: int | None
    thread_name: str
    place: tuple[str, int, str]

    def write(self) -> None:
        """Pass the line to the program's filters and handlers."""
        if not self.logger.isEnabledFor(self.level):
            return
        error = self.error
        record = self.logger.makeRecord(
            self.logger.name,
            self.level,
            *self.place[:2],
            self.text,
            self.args,
            None if error is None else (type(error), error, error.__traceback__),
            self.place[2],
        )
        record.exc_text = self.error_text
        record.relativeCreated -= (record.created - self.created) * 1000
        record.created, record.msecs = self.created, int(self.created * 1000) % 1000
        record.thread, record.threadName = self.thread, self.thread_name
        self.logger.handle(record)


class _Mark:
    """An item of the queue that is not written: those before it have been."""

    def __init__(self) -> None:
        self.passed = threading.Lock()
        self.passed.acquire()


class _BeingWritten:
    """The lines that threads other than the main thread are writing, so that a fork can wait.

    Only a fork waits for another thread's line.
    """

    def __init__(self) -> None:
        # The thread of each line, by a lock that is held while the line is written.
        self._threads: dict[_thread.LockType, int] = {}

    @contextlib.contextmanager
    def line(self) -> Iterator[None]:
        """Have a fork wait for the end of the block."""
        if threading.current_thread() is threading.main_thread():
            # A signal handler may interrupt it here. It usually is the thread that forks.
            yield
            return
        line = _thread.allocate_lock()
        line.acquire()
        self._threads[line] = _thread.get_ident()
        try:
            yield
        finally:
            self._threads.pop(line, None)
            line.release()

    def before_fork(self) -> None:
        """Wait until no other thread writes a line, for at most :data:`_PATIENCE`."""
        deadline = time.monotonic() + _PATIENCE
        me = _thread.get_ident()
        while others := [line for line, it in self._threads.copy().items() if it != me]:
            for line in others:
                if not line.acquire(timeout=max(0.0, deadline - time.monotonic())):
                    return
                line.release()

    def after_in_child(self) -> None:
        """Forget the lines of threads that do not exist here."""
        self._threads = {}


class _Queue:
    """The lines of stages that are not written yet, of all producers of the process."""

    def __init__(self) -> None:
        self._items: deque[_Line | _Mark] = deque()
        # Held while a writer is active.
        self._active = threading.Lock()
        self._dropped = 0

    def put(self, line: _Line) -> None:
        """Have *line* written. Called by stages; never blocks for long."""
        if len(self._items) >= _MOST:
            self._dropped += 1
            return
        self._items.append(line)
        self._start()

    def _start(self) -> None:
        if not self._active.acquire(blocking=False):
            return
        try:
            threading.Thread(target=self._run, name="pykaproducer-log", daemon=True).start()
        except (RuntimeError, MemoryError):
            # The system refuses a thread. The next line, or the end of close(), tries again.
            self._active.release()

    def _run(self) -> None:
        _this_thread.is_writer = active = True
        while active:
            try:
                self._write_all()
            finally:
                self._active.release()
            active = bool(self._items) and self._active.acquire(blocking=False)

    def _write_all(self) -> None:
        while self._items:
            self._pass(self._items.popleft())
            if self._dropped:
                dropped, self._dropped = self._dropped, 0
                log.warning("%d log lines were dropped, as logging handlers are too slow", dropped)

    def _pass(self, item: _Line | _Mark) -> None:
        if isinstance(item, _Mark):
            item.passed.release()
        else:
            _guarded(item)

    def wait(self) -> None:
        """Wait until the lines that are in the queue now are written, but not for long."""
        if _this_thread.is_stage or _this_thread.is_writer:
            return
        # Lines for which the system refused a thread.
        while self._items and not self._active.locked():
            with contextlib.suppress(IndexError):
                self._pass(self._items.popleft())
        if self._active.locked():
            mark = _Mark()
            self._items.append(mark)
            if self._active.locked():
                mark.passed.acquire(timeout=_PATIENCE)

    def forked(self) -> None:
        """Forget the lines, which the parent writes, in the child of a fork."""
        _this_thread.is_stage = _this_thread.is_writer = False
        self._items = deque()
        self._active = threading.Lock()
        _being_written.after_in_child()


def _guarded(line: _Line) -> None:
    with _being_written.line():
        try:
            line.write()
        except Exception:  # from user code (P9)
            if logging.raiseExceptions and sys.stderr is not None:
                with contextlib.suppress(Exception):  # stderr may be closed
                    print(f"a logging filter or handler raised at {line.text!r}:", file=sys.stderr)
                    traceback.print_exc()


def _log(
    logger: logging.Logger,
    level: int,
    text: str,
    args: tuple[Any, ...],
    error: BaseException | None = None,
) -> None:
    # Not isEnabledFor(), which may wait for a lock that is held while a handler is configured.
    if level <= logger.manager.disable or level < logger.getEffectiveLevel():
        return
    try:
        frame = sys._getframe(2)
        line = _Line(
            logger,
            level,
            text,
            args,
            error,
            None if error is None else "".join(traceback.format_exception(error)).rstrip(),
            time.time(),
            threading.get_ident(),
            threading.current_thread().name,
            (frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name),
        )
        if _this_thread.is_stage:
            _queue.put(line)
            return
    except MemoryError:
        return  # a stage must continue
    _guarded(line)


class GuardedLogger:
    """The logger *name*, for lines whose handlers must not stop or end the caller."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def debug(self, text: str, *args: Any) -> None:
        """Log at DEBUG."""
        _log(self._logger, logging.DEBUG, text, args)

    def info(self, text: str, *args: Any) -> None:
        """Log at INFO."""
        _log(self._logger, logging.INFO, text, args)

    def warning(self, text: str, *args: Any, exc_info: BaseException | None = None) -> None:
        """Log at WARNING, with the error *exc_info* and its traceback."""
        _log(self._logger, logging.WARNING, text, args, exc_info)

    def error(self, text: str, *args: Any, exc_info: BaseException | None = None) -> None:
        """Log at ERROR, with the error *exc_info* and its traceback."""
        _log(self._logger, logging.ERROR, text, args, exc_info)

    def log(self, level: int, text: str, *args: Any) -> None:
        """Log at *level*."""
        _log(self._logger, level, text, args)


log = GuardedLogger("pykaproducer.producer")
_being_written = _BeingWritten()
_queue = _Queue()
#: Wait until the lines of stages are written, for one second at most. Not in a stage.
wait_until_written = _queue.wait
#: Forget the lines that wait, in the child of a fork.
forget_lines = _queue.forked

if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_being_written.before_fork, after_in_child=forget_lines)
