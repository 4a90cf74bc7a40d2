"""The documentation names what there is: every extra, command and option."""

from __future__ import annotations

import configparser
import pathlib
import re

import pytest

from .helper import all_commands

ROOT = pathlib.Path(__file__).parent.parent.parent


def extras() -> list[str]:
    """Return the extras that the package declares."""
    metadata = configparser.ConfigParser()
    metadata.read(ROOT / "setup.cfg")
    return list(metadata["options.extras_require"])


def test_the_table_of_the_extras_names_each_of_them_and_no_other() -> None:
    table = (ROOT / "docs" / "install.rst").read_text().partition(".. list-table::")[2]
    rows = re.findall(r"\* - (.*)", table)
    assert {name for row in rows for name in re.findall("``(.*?)``", row)} == set(extras())


@pytest.mark.parametrize("page", ["README.rst", "docs/tutorial.rst", "docs/command-line.rst"])
def test_commands_on_a_page_exist_with_their_options(page: str) -> None:
    """Every line that runs ``pykaproducer COMMAND`` uses options that the command has."""
    commands = {each.path: each for each in all_commands()}
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
