"""The documentation names what there is: every extra, command and option."""

from __future__ import annotations

import argparse
import configparser
import pathlib
import re

import pytest

from pykaproducer import cli
from pykaproducer.cli._completion import command_of

ROOT = pathlib.Path(__file__).parent.parent.parent


def extras() -> list[str]:
    """Return the extras that the package declares."""
    metadata = configparser.ConfigParser()
    metadata.read(ROOT / "setup.cfg")
    return list(metadata["options.extras_require"])


@pytest.mark.parametrize("extra", extras())
def test_every_extra_has_a_row(extra: str) -> None:
    table = (ROOT / "docs" / "install.rst").read_text().partition(".. list-table::")[2]
    names = {
        name for row in re.findall(r"\* - (.*)", table) for name in re.findall("``(.*?)``", row)
    }
    assert extra in names


def test_no_row_is_about_an_extra_that_does_not_exist() -> None:
    table = (ROOT / "docs" / "install.rst").read_text().partition(".. list-table::")[2]
    for row in re.findall(r"\* - (.*)", table):
        assert set(re.findall("``(.*?)``", row)) <= set(extras())


@pytest.mark.parametrize("page", ["README.rst", "docs/tutorial.rst", "docs/command-line.rst"])
def test_commands_on_a_page_exist_with_their_options(page: str) -> None:
    """Every line that runs ``pykaproducer COMMAND`` uses options that the command has."""
    parser = argparse.ArgumentParser()
    below = parser.add_subparsers()
    for module in cli.COMMANDS:
        module.add_parser(below)
    commands = {each.path: each for each in command_of(parser).all()}
    lines = re.findall(
        r"^ {4}(?:\$ )?(?:\.venv/bin/)?pykaproducer ([a-z].*)$", (ROOT / page).read_text(), re.M
    )
    assert lines
    for line in lines:
        words = re.sub(r"'[^']*'|#.*|<\(.*?\)", "x", line).split()
        path = tuple(words[:2]) if tuple(words[:2]) in commands else tuple(words[:1])
        assert path in commands, line
        known = {name for option in commands[path].options for name in option.names}
        if "--command" not in words:
            assert {word.partition("=")[0] for word in words if word.startswith("--")} <= known, (
                line
            )
