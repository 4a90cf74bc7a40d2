"""The fresh process in which a measurement runs: ``python -m benchmarks.child MODULE JOB``.

It calls ``MODULE.measure(job, parent)`` and writes the result. Standard output carries one JSON
object per line: ``{"at": NAME}`` when the parent must act before the measurement continues (it
answers with an empty line), and at the end ``{"measures": {...}}``. An exception ends the process
with a traceback on standard error, which becomes the reason of the failed run.

Programs that are not Python (:mod:`benchmarks.peers`) use the same protocol, but with ``{"failed":
REASON}`` in place of an exception.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import sys
from collections.abc import Mapping
from typing import Any, TextIO


class RunFailed(Exception):
    """A run without a valid figure; the text gives the reason."""


class Parent:
    """The process that started this one."""

    def __init__(self, commands: TextIO, answers: TextIO) -> None:
        self._commands = commands
        self._answers = answers

    def reach(self, name: str) -> None:
        """Report that this point is reached, and wait until the parent has acted."""
        self._write({"at": name})
        if not self._commands.readline():
            raise RunFailed(f"the parent ended at {name!r}")

    def finish(self, measures: Mapping[str, Any]) -> None:
        self._write({"measures": measures})

    def _write(self, line: Mapping[str, Any]) -> None:
        self._answers.write(json.dumps(line) + "\n")
        self._answers.flush()


def main() -> None:
    module, job = sys.argv[1], json.loads(sys.argv[2])
    # A hang ends the process with the tracebacks of all threads.
    faulthandler.dump_traceback_later(job["limit"], exit=True)
    parent = Parent(sys.stdin, sys.stdout)
    # A client's own output must not mix with the lines of the protocol.
    sys.stdout = sys.stderr
    parent.finish(importlib.import_module(module).measure(job, parent))


if __name__ == "__main__":
    main()
