"""The sample of ``tox -e mutants``, and how it is drawn and applied."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

ROOT = pathlib.Path(__file__).parents[2]
SAMPLE = json.loads((ROOT / "tools" / "mutants.json").read_text())["mutants"]

SOURCE = '''\
class Counter:
    def add(self, by: int = 1) -> None:
        """Add 1."""
        if by > 0:
            self.sum += by

    def remove(self, by: int = 1) -> None:
        if by > 0:
            self.sum -= by
'''
KERNEL = '''\
# 1 comment
cdef class Row:
    """Has size < 1."""
    cdef int sizes[4]

    cdef int fits(self, int size) except -1:
        if size < 3:    # 7
            raise ValueError("2 > 1")
        self.size = 0x10
        return True
'''


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the modules ``mutants_copy`` and ``mutants_draw``."""
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import mutants_copy
    import mutants_draw

    return mutants_copy, mutants_draw


def test_the_sample_is_three_quarters_python() -> None:
    assert len(SAMPLE) == 200
    assert sum(mutant["file"].endswith(".py") for mutant in SAMPLE) == 150
    assert len({json.dumps(mutant) for mutant in SAMPLE}) == 200


def test_mutants_change_the_lines_that_they_name(tools: Any) -> None:
    applied, found = tools[0].applied, 0
    for mutant in SAMPLE:
        path = ROOT / mutant["file"]
        new = applied(mutant, path.read_text()) if path.exists() else None
        if new is None:
            continue  # the package has changed there
        assert new != path.read_text()
        if path.suffix == ".py":
            compile(new, mutant["file"], "exec")
        found += 1
    assert found, "draw a new sample: tox -e mutants -- --draw"


def test_a_mutant_is_found_again_where_other_lines_have_changed(tools: Any) -> None:
    copy, draw = tools
    new = SOURCE.replace(
        "if by > 0:\n            self.sum -=", "if by < 0:\n            self.sum -="
    )
    mutant = draw.as_mutant("counter.py", SOURCE, new, "comparison", 1)
    assert (mutant["line"], mutant["scope"]) == (8, "Counter.remove")
    assert copy.applied(mutant, SOURCE) == new
    added = f"import os\n\n\n{SOURCE}"
    assert copy.applied(mutant, added) == f"import os\n\n\n{new}"
    assert copy.applied(mutant, SOURCE.replace("def remove", "def subtract")) is None
    assert copy.statement_of(SOURCE, mutant) == range(8, 9)


def test_what_an_import_executes_has_no_statement(tools: Any) -> None:
    copy, draw = tools
    new = SOURCE.replace("remove(self, by: int = 1)", "remove(self, by: int = 2)")
    mutant = draw.as_mutant("counter.py", SOURCE, new, "number", 1)
    assert copy.statement_of(SOURCE, mutant) is None


def test_the_changes_of_a_kernel_file(tools: Any) -> None:
    found = tools[1].kernel_changes(KERNEL.splitlines())
    assert [(index, operator, text.strip()) for index, operator, text in found] == [
        *((6, "comparison", f"if size {each} 3:    # 7") for each in ("==", "!=", "<=", ">", ">=")),
        (6, "constant", "if size < 4:    # 7"),
        (7, "removed statement", "pass"),
        (8, "constant", "self.size = 17"),
        (8, "removed statement", "pass"),
        (9, "constant", "return False"),
        (9, "removed statement", "pass"),
    ]


def test_the_same_seed_draws_the_same_mutants(tools: Any) -> None:
    def drawn(seed: int) -> list[Any]:
        found: list[Any] = tools[1].draw_kernel(ROOT, 10, seed, lambda mutant: True)
        return found

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)
