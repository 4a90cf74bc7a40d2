"""A run in a free-threaded interpreter fails if the GIL has been enabled."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

from tests._support.fixtures import gil

ROOT = pathlib.Path(__file__).parents[2]
#: How long a run of pytest may take (seconds).
SOON = 60.0

#: Replaces the interpreter's answer.
ENABLE = """
from tests._support.fixtures import gil
gil.is_enabled = lambda: True
"""


def run(
    directory: pathlib.Path, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run pytest in *directory*, with the check and without any other part of this suite."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests._support.fixtures.gil", *arguments],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=SOON,
        check=False,
    )


def test_the_gil_is_not_enabled_here() -> None:
    assert not gil.is_enabled()


def test_the_gil_stays_disabled(tmp_path: pathlib.Path) -> None:
    (tmp_path / "test_fine.py").write_text("def test_fine(): pass\n")
    done = run(tmp_path)
    assert done.returncode == pytest.ExitCode.OK, done.stdout
    assert "GIL" not in done.stdout


def test_an_import_in_a_module_enables_it(tmp_path: pathlib.Path) -> None:
    (tmp_path / "test_a.py").write_text("def test_a(): pass\n")
    (tmp_path / "test_b.py").write_text(f"{ENABLE}\ndef test_b(): pass\n")
    done = run(tmp_path)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout
    assert "as was found after the import of test_b.py: " in done.stdout
    assert "2 passed, 1 error" in done.stdout


def test_a_test_enables_it(tmp_path: pathlib.Path) -> None:
    lines = "\n    ".join(ENABLE.split("\n"))
    (tmp_path / "test_a.py").write_text(f"def test_a():{lines}\n")
    (tmp_path / "test_b.py").write_text("def test_b(): pass\n")
    done = run(tmp_path)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout
    assert "as was found after the tests of test_a.py: " in done.stdout
    assert "2 passed, 1 error" in done.stdout


def test_the_end_of_the_session_enables_it(tmp_path: pathlib.Path) -> None:
    (tmp_path / "test_a.py").write_text("def test_a(): pass\n")
    lines = "\n    ".join(ENABLE.split("\n"))
    (tmp_path / "conftest.py").write_text(
        "import pytest\n"
        "@pytest.fixture(scope='session', autouse=True)\n"
        f"def late():\n    yield{lines}\n"
    )
    done = run(tmp_path)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout
    assert "as was found after the last test: " in done.stdout
    assert "1 passed" in done.stdout


@pytest.mark.skipif(not gil.FREE_THREADED, reason="needs a free-threaded interpreter")
def test_the_interpreter_enables_it(tmp_path: pathlib.Path) -> None:
    (tmp_path / "test_a.py").write_text("def test_a(): pass\n")
    done = run(tmp_path, PYTHON_GIL="1")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout
    assert "as was found after pytest had loaded its plugins: " in done.stdout
