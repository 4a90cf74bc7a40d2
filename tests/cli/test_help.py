"""Every ``--help`` has examples, and fits a terminal of 80 columns."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import pytest

from pykaproducer import cli
from pykaproducer.cli._completion import command_of

from .helper import status_of

COLUMNS = 80


def _paths() -> Iterator[tuple[str, ...]]:
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers()
    for module in cli.COMMANDS:
        module.add_parser(commands)
    for command in command_of(parser).all():
        yield command.path


@pytest.mark.parametrize("path", list(_paths()), ids=" ".join)
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
