"""Waiting for the library's log lines."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def told_by_log(text: str) -> Iterator[threading.Event]:
    """Yield an event that is set as soon as the library logs *text*."""
    told = threading.Event()

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if text in record.getMessage():
                told.set()

    listener = Listener()
    logging.getLogger("pykaproducer").addHandler(listener)
    try:
        yield told
    finally:
        logging.getLogger("pykaproducer").removeHandler(listener)
