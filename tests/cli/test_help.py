"""Every ``--help`` has examples, and fits a terminal of 80 columns."""

from __future__ import annotations

import pytest

from .helper import all_commands, status_of

COLUMNS = 80


@pytest.mark.parametrize("path", [each.path for each in all_commands()], ids=" ".join)
def test_the_help_fits_and_has_examples(
    path: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    assert status_of([*path, "--help"]) == 0
    told = capsys.readouterr().out
    wide = [line for line in told.splitlines() if len(line) > COLUMNS]
    assert not wide
    assert told.startswith("usage: pykaproducer")
    if path not in (("cluster",), ("topics",), ("transactions",)):  # these only have subcommands
        assert " ".join(("pykaproducer", *path)) in told.partition("\nexample")[2]
