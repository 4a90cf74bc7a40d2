"""A few thousand inputs of the fuzzer: see ``fuzz.py``, which runs any number."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests._support.pairs import partly

from .fuzz import KINDS

ROOT = Path(__file__).parent.parent.parent
#: How long one kind may take before the test fails (seconds).
PATIENCE = 300


@pytest.mark.parametrize("kind", partly(KINDS, ["send", "arrow"]))
def test_any_arguments(kind: str) -> None:
    """Runs in a separate process, which may crash; always with the same inputs."""
    words = ["-m", "tests.kernel.fuzz", "--seed", "1", "--inputs", "1000", "--only", kind]
    ended = subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
