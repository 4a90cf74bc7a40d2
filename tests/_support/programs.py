"""Separate programs, for tests that examine a process as a whole, its exit, its forks."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import textwrap

#: How long a program may take before the test fails (seconds).
PATIENCE = 60.0


def run(script: str, *arguments: str, timeout: float = PATIENCE, code: int = 0) -> str:
    """Return the output of the script, which must end by itself, with the exit *code*."""
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert ended.returncode == code, ended.stderr
    return ended.stdout


def exists(pid: int) -> bool:
    """Return whether a process runs; a zombie does not count."""
    if sys.platform == "linux":
        try:
            status = pathlib.Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return False
        return status.rpartition(")")[2].split()[0] not in "ZX"
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
