"""What the runs with real faults have in common."""

from __future__ import annotations

import importlib

import pytest


@pytest.fixture
def patient_audit(_benchmarks_can_be_imported: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let only what is far too late count, as a machine may pause for a second."""
    # All are imported first: the second one copies the value.
    names = ("benchmarks.chaos.audit", "benchmarks.chaos.transactions.audit")
    for module in [importlib.import_module(name) for name in names]:
        monkeypatch.setattr(module, "LATENESS", 30.0)
