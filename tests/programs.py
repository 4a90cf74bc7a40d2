"""Programs of their own: what is looked at is a process as a whole, its exit, its forks."""

from __future__ import annotations

import subprocess
import sys
import textwrap

#: How long one may take before the test fails (seconds).
PATIENCE = 60.0


def run(script: str, *arguments: str, timeout: float = PATIENCE) -> str:
    """What the script prints; it must end by itself, and well."""
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout
