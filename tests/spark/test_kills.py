"""Processes that are killed in a write that is exactly once, at points of its protocol.

These are some of the cases. ``python -m benchmarks spark-kills`` runs all, with more rows.
"""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from tests._support.effort import NIGHTLY
from tests._support.fixtures.spark import spark_environment

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[2]
#: The driver makes two cases.
BATCH_VICTIMS, BATCH_CASES = (["driver", "worker"], 3) if NIGHTLY else (["worker"], 1)


@pytest.fixture(autouse=True)
def _benchmarks_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    for name, value in spark_environment().items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("words", "cases"),
    [
        # The driver is restarted with the same layout, and with another one.
        (["--kind", "stream", "--victim", "driver", "--point", "ended"], 2),
        (["--kind", "stream", "--victim", "executor", "--point", "prepared"], 1),
        (["--kind", "batch", "--victim", *BATCH_VICTIMS, "--point", "marked"], BATCH_CASES),
        (["--kind", "batch", "--victim", "broker", "--point", "written"], 1),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else "",
)
def test_each_row_is_there_once(
    words: list[str], cases: int, capsys: pytest.CaptureFixture[str]
) -> None:
    main = importlib.import_module("benchmarks.__main__").main
    status = main(["spark-kills", "--rows", "8000", *words])
    said = capsys.readouterr().out
    assert status == 0, said
    assert f"{cases} cases of 8,000 rows: 0 lost, 0 doubled, 0 cases failed" in said
