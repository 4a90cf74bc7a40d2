"""Loggers that raise nothing, for the threads of the stages.

The program's logging filters and handlers are user code. A handler's exception is printed by the
logging module itself. A filter's exception leaves the logging call: it would end the stage that
wrote the line, and with it the producer (P9, P11).
"""

from __future__ import annotations

import logging
import sys
import traceback
from typing import Any


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
            # The line's place is that of the caller of the public method.
            self._logger.log(level, text, *args, exc_info=exc_info, stacklevel=3)
        except Exception:  # from user code (P9)
            if logging.raiseExceptions and sys.stderr is not None:
                print(f"a logging filter or handler raised at {text % args!r}:", file=sys.stderr)
                traceback.print_exc()
