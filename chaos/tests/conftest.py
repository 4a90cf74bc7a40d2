"""The fixtures of ``tests``, and what the runs with real faults have in common."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

# For the processes under load, and the fixtures; an installed pykaproducer takes precedence.
sys.path.append(str(Path(__file__).parents[2]))

pytest_plugins = importlib.import_module("tests.conftest").pytest_plugins


@pytest.fixture
def patient_audit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let only what is far too late count, as a machine may pause for a second."""
    # All are imported first: the second one copies the value.
    names = ("chaos.audit", "chaos.transactions.audit")
    for module in [importlib.import_module(name) for name in names]:
        monkeypatch.setattr(module, "LATENESS", 30.0)
