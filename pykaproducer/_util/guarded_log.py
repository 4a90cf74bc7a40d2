"""Loggers for the threads of the stages: they raise nothing, and no fork divides a line.

The program's logging filters and handlers are user code. A handler's exception is printed by the
logging module itself. A filter's exception leaves the logging call: it would end the stage that
wrote the line, and with it the producer (P9, P11).

A fork waits until no stage writes a line (P8). Otherwise the child could wait forever:

1. a stage writes a line to ``stderr``, and holds the lock of that file;
2. another thread forks; in the child the lock is held by a thread that does not exist there;
3. the child writes to ``stderr``.

The logging module renews its own locks in the child, but not those of files. A line that begins
between the end of the wait and the fork is not prevented: stages that had to wait for a fork, or
for one another, could deadlock in a handler.
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
from collections.abc import Iterator
from typing import Any

#: How long a fork waits for lines that are being written (seconds). A handler may be slow, or wait
#: for the forking thread itself.
_PATIENCE = 1.0


class _Lines:
    """The lines that threads other than the main thread are writing.

    A thread never waits for another one's line, except in a fork: a handler may wait for a second
    producer, whose stages log too.
    """

    def __init__(self) -> None:
        # The thread of each line, by a lock that is held while the line is written.
        self._threads: dict[_thread.LockType, int] = {}

    @contextlib.contextmanager
    def written(self) -> Iterator[None]:
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


_lines = _Lines()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_lines.before_fork, after_in_child=_lines.after_in_child)


class GuardedLogger:
    """The logger *name*. An exception of the program's filters or handlers is printed instead."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def debug(self, text: str, *args: Any) -> None:
        """Log at DEBUG."""
        self._log(logging.DEBUG, text, args)

    def info(self, text: str, *args: Any) -> None:
        """Log at INFO."""
        self._log(logging.INFO, text, args)

    def warning(self, text: str, *args: Any, exc_info: Any = None) -> None:
        """Log at WARNING."""
        self._log(logging.WARNING, text, args, exc_info)

    def error(self, text: str, *args: Any, exc_info: Any = None) -> None:
        """Log at ERROR."""
        self._log(logging.ERROR, text, args, exc_info)

    def log(self, level: int, text: str, *args: Any) -> None:
        """Log at *level*."""
        self._log(level, text, args)

    def _log(self, level: int, text: str, args: tuple[Any, ...], exc_info: Any = None) -> None:
        try:
            with _lines.written():
                # The line's place is that of the caller of the public method.
                self._logger.log(level, text, *args, exc_info=exc_info, stacklevel=3)
        except Exception:  # from user code (P9)
            if logging.raiseExceptions and sys.stderr is not None:
                print(f"a logging filter or handler raised at {text % args!r}:", file=sys.stderr)
                traceback.print_exc()
