"""Separate programs, for tests that examine a process as a whole, its exit, its forks."""

from __future__ import annotations

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
