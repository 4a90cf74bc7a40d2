"""A program whose message cannot be delivered; it prints the error as JSON and ends by itself.

The task is read as JSON from standard input, and everything that is logged is written to standard
error.
"""

from __future__ import annotations

import base64
import json
import logging
import pickle
import re
import sys
import threading
import time
import traceback
from typing import Any

from pykaproducer import Producer

#: The failure must be logged before the message's deadline. On a busy machine a handshake may take
#: longer than that: the times of each attempt are longer by these factors.
_FACTORS = (1, 4, 16)
_TIMES = ("delivery_timeout_ms", "request_timeout_ms")
#: How long an outcome may take beyond its deadline on a busy machine (seconds).
_PATIENCE = 30.0


class Listener(logging.Handler):
    """Waits for a log record of at least WARNING that matches a pattern."""

    def __init__(self, pattern: str) -> None:
        super().__init__(logging.WARNING)
        self._pattern = re.compile(pattern)
        self.texts: list[str] = []
        self.told = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())
        if self.matches(self.texts[-1]):
            self.told.set()

    def matches(self, text: str) -> bool:
        return self._pattern.search(text) is not None


def attempt(task: dict[str, Any], factor: int) -> dict[str, Any]:
    """Send one message, with times that are longer by *factor*, and return its outcome."""
    settings = dict(task["settings"])
    for name in _TIMES:
        settings[name] *= factor
    deadline = settings["delivery_timeout_ms"] / 1000
    listener = Listener(task["pattern"])
    logging.getLogger("pykaproducer").addHandler(listener)
    producer = Producer(**settings)
    began = time.monotonic()
    delivery = producer.send(task["topic"], b"never there")
    told = listener.told.wait(deadline)
    error = delivery.exception(deadline + _PATIENCE)
    took = time.monotonic() - began
    assert error is not None
    shown = [repr(producer), str(producer), repr(delivery), repr(error), repr(vars(error))]
    shown += [*traceback.format_exception(error), repr(producer.stats())]
    logging.getLogger("pykaproducer").removeHandler(listener)
    if not (told and listener.matches(str(error))):
        producer.abort()  # before another attempt, whose log lines must not mix with these
    return {
        "told": told,
        "texts": listener.texts,
        "error": str(error),
        "kind": [kind.__name__ for kind in type(error).__mro__],
        "took": took,
        "pickle": base64.b64encode(pickle.dumps(error)).decode(),
        "shown": shown,
    }


def main() -> None:
    """Try until the failure is logged in time, and report the last attempt."""
    logging.basicConfig(level=logging.DEBUG)
    task = json.load(sys.stdin)
    for factor in _FACTORS:
        report = attempt(task, factor)
        if report["told"] and re.search(task["pattern"], report["error"]):
            break
    json.dump(report, sys.stdout)
    # Neither closed nor flushed: the program ends here, and so does the producer.


if __name__ == "__main__":
    main()
