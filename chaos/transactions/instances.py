"""The processes under load, by transactional id, and their successors."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.runner import last_of
from chaos.stage import wait_for
from chaos.transactions.board import Board

_MODULE = "chaos.transactions.load"
#: How long an orderly end may take (seconds); the process prints its tracebacks earlier.
_END = 200.0


class Running:
    """One process under load."""

    def __init__(self, job: Mapping[str, Any], errors: Path) -> None:
        # -P and this path: the child imports exactly what this process would, wherever it runs.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self._errors = errors
        self.killed = False
        with errors.open("w") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", _MODULE, json.dumps(job)],
                env=environment,
                stdin=subprocess.PIPE,
                stderr=file,
                text=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def command(self, **fields: Any) -> None:
        """Send a command to the process: see ``load.py``."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError, ValueError):  # it has ended, or been killed
            self._process.stdin.write(json.dumps(fields) + "\n")
            self._process.stdin.flush()

    def stop(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.killed = True
        self._process.kill()
        self._finish()

    def _finish(self, timeout: float | None = None) -> None:
        """Wait until it has ended, and drop the commands that it has not read."""
        self._process.wait(timeout)
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()

    def dies(self, timeout: float) -> bool:
        """Wait until it has ended at a point; return false if it has not."""
        self.killed = True
        return wait_for(lambda: self.ended, timeout)

    def end(self) -> None:
        """Have it end in an orderly way."""
        self.command(do="end")
        try:
            self._finish(_END)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._finish()

    @property
    def failure(self) -> str | None:
        """Return why it has failed; None: it has not."""
        status = self._process.wait()
        if status == 0 or (self.killed and status == -signal.SIGKILL):
            return None
        return (
            f"a process under load ended with status {status}:\n{last_of(self._errors.read_text())}"
        )


class Line:
    """One transactional id: the process that uses it now, and those before."""

    def __init__(self, job: Mapping[str, Any], directory: Path) -> None:
        self.transactional_id: str = job["settings"]["transactional_id"]
        path = directory / f"board-{self.transactional_id}"
        self.board = Board(path)
        self._job = {**job, "board": str(path)}
        self._directory = directory
        #: All processes; the last one should have the id.
        self.processes: list[Running] = []
        self.succeed()

    @property
    def current(self) -> Running:
        return self.processes[-1]

    def succeed(self, *, die_at: str | None = None) -> Running:
        """Start a process, which takes over. It ends at a point, if one is given."""
        name = f"errors-{self.transactional_id}-{len(self.processes)}"
        running = Running({**self._job, "die_at": die_at}, self._directory / name)
        running.killed = die_at is not None
        self.processes.append(running)
        self.board.process = running.pid
        return running

    def tend(self) -> None:
        """Start a successor if the current process has ended."""
        if self.current.ended:
            self.succeed()

    def commits(self, timeout: float) -> bool:
        """Wait until a transaction that begins from now on is committed."""
        now = time.monotonic()

        def committed() -> bool:
            self.tend()
            return self.board.progress >= now

        return wait_for(committed, timeout)

    def end(self) -> None:
        for running in self.processes:
            running.resume() if not running.ended else None
            running.end()
        self.board.close()

    def kill_all(self) -> None:
        """End every process at once, as the run has failed."""
        for running in self.processes:
            running.kill()
