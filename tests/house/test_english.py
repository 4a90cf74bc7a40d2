"""The words of the project: plain English, Kafka's terms, no former names."""

from __future__ import annotations

import pathlib
import re

import pytest

from tests._support.english import KINDS, MOST, ROOT, ROWS, count, prose_of

CODE = [
    *(path for path in (ROOT / "pykaproducer").rglob("*.py")),
    *(path for path in (ROOT / "pykaproducer").rglob("*.p[yx][xi]")),
]


@pytest.mark.parametrize("kind", KINDS)
def test_prose_avoids_what_reads_as_a_translation(kind: str) -> None:
    words, found, places = count(KINDS[kind]())
    rates = {row: found[row] * 10_000 / words for row in ROWS}
    too_often = [row for row, rate in rates.items() if rate > MOST]
    shown = [place for place in places if any(f": {row}: " in place for row in too_often)]
    assert not too_often, "\n".join(shown)


def former_names() -> list[str]:
    """Return the left column of the glossary's table of former names."""
    text = (ROOT / "docs" / "glossary.rst").read_text()
    rows = re.findall(r"(?m)^   \* - (``.*)$", text[text.index("Former names") :])
    return [name for row in rows for name in re.findall(r"``(\w+)``", row)]


def test_the_glossary_has_former_names() -> None:
    assert {"Lane", "take_along", "hand_back"} <= set(former_names())


def test_former_names_are_gone() -> None:
    words = re.compile(rf"(?<![\w.])(?:{'|'.join(former_names())})(?!\w)")
    found = {path.name: words.findall(path.read_text()) for path in CODE}
    assert not {name: uses for name, uses in found.items() if uses}


def test_prose_of_python_is_its_comments_and_docstrings(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "sample.py"
    path.write_text('"""A docstring."""\n\n#: A comment.\nTEXT = "no prose"\n')
    assert prose_of(path) == "A comment.\nA docstring."
