"""The fresh process that a measurement runs in: ``python -m benchmarks.child MODULE JOB``.

It calls ``MODULE.measure(job, parent)`` and writes what that returns. Standard output carries one
JSON object a line: ``{"at": NAME}`` when the parent has something to do before the measurement
goes on (it answers with an empty line), and at the end ``{"measures": {...}}``. An exception ends
the process with a traceback on standard error, and is the reason why the run failed.

Programs that are not Python (:mod:`benchmarks.peers`) answer in the same way, but with
``{"failed": REASON}`` in place of an exception.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import sys
from collections.abc import Mapping
from typing import Any, TextIO


class RunFailed(Exception):
    """A run that gave no valid figure; the text says why."""


class Parent:
    """The process that started this one."""

    def __init__(self, commands: TextIO, answers: TextIO) -> None:
        self._commands = commands
        self._answers = answers

    def reach(self, name: str) -> None:
        """Say that this point is reached, and wait until the parent has done its part."""
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
    # A hang ends by itself, and shows where every thread stood.
    faulthandler.dump_traceback_later(job["limit"], exit=True)
    parent = Parent(sys.stdin, sys.stdout)
    # Whatever a client prints must not get between the lines of the answer.
    sys.stdout = sys.stderr
    parent.finish(importlib.import_module(module).measure(job, parent))


if __name__ == "__main__":
    main()
