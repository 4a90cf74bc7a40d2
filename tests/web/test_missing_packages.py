"""An integration whose package is missing names the package to install."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.cli.helper import PATIENCE


@pytest.mark.parametrize(
    ("module", "missing", "text"),
    [
        ("flask", "flask", "needs Flask: pip install 'pykaproducer[flask]'"),
        ("flask", "click", "needs Flask: pip install 'pykaproducer[flask]'"),
        ("django", "django", "needs Django: pip install 'pykaproducer[django]'"),
    ],
)
def test_the_error_says_what_to_install(module: str, missing: str, text: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; import pykaproducer.contrib.{module}"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"ImportError: pykaproducer.contrib.{module} {text}"
