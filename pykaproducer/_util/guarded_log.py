"""Loggers for the threads of the stages: they raise nothing, and no fork divides a line.

The program's logging filters and handlers are user code. A handler's exception is printed by the
logging module itself. A filter's exception leaves the logging call: it would end the stage that
wrote the line, and with it the producer (P9, P11).

A fork waits until no stage writes a line (P8). Otherwise the child could wait for ever:

1. a stage writes a line to ``stderr``, and holds the lock of that file;
2. the main thread forks; in the child the lock is held, by a thread that does not exist there;
3. the child writes to ``stderr``.

The logging module renews its own locks in the child, but not those of files.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import traceback
from collections.abc import Iterator
from typing import Any

#: How long a fork waits for lines that are being written (seconds). A handler may be slow, or wait
#: for the forking thread itself.
_PATIENCE = 1.0


class _Lines:
    """The lines that are being written by threads other than the main thread."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._forking = threading.local()

    @contextlib.contextmanager
    def written(self) -> Iterator[None]:
        """Let no fork happen in the block."""
        if threading.current_thread() is threading.main_thread():
            # It is the one that forks, usually; an exception of a signal handler could strike
            # between the two steps below.
            yield
            return
        with self._lock:
            yield

    def before_fork(self) -> None:
        self._forking.holds = self._lock.acquire(timeout=_PATIENCE)

    def after_in_parent(self) -> None:
        if self._forking.holds:
            self._lock.release()

    def after_in_child(self) -> None:
        self._lock = threading.RLock()


_lines = _Lines()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_lines.before_fork,
        after_in_parent=_lines.after_in_parent,
        after_in_child=_lines.after_in_child,
    )


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
