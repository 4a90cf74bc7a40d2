"""The size of each room of the house. ``python -m tests.house.budgets`` prints the table as it is.

A room is a directory of the package with all below it, the package's top-level modules, the kernel,
or a directory beside the package. ``test_budgets.py`` compares the rooms with ``budgets.toml``.
"""

from __future__ import annotations

import pathlib
import tomllib
from collections.abc import Iterator
from typing import NamedTuple

ROOT = pathlib.Path(__file__).parents[2]
PACKAGE = ROOT / "pykaproducer"
TABLE = pathlib.Path(__file__).with_name("budgets.toml")

#: The suffixes of source code. Generated C code is not counted.
_SUFFIXES = {".py", ".pyi", ".pyx", ".pxi", ".go", ".java"}
#: The rooms beside the package, if they exist.
_BESIDE = ("pyspark_pykaproducer", "pytest_pykaproducer", "tests", "chaos", "benchmarks", "tools")

_HEADER = """\
# The most files and lines of source code that each room may have: see tests/house/budgets.py.
# A budget only falls, or rises in a commit that says which promise needs it.
# Printed by: python -m tests.house.budgets > tests/house/budgets.toml
"""


class Size(NamedTuple):
    """The size of a room, or its budget."""

    files: int
    lines: int

    def __str__(self) -> str:
        return f"{self.lines:,} lines in {self.files:,} files"


def rooms() -> dict[str, Size]:
    """Return the size of each room."""
    within = sorted(each for each in PACKAGE.iterdir() if each.is_dir())
    found = {
        "pykaproducer/*.py": _size(PACKAGE.glob("*.py")),
        "pykaproducer/_kernel*": _size(
            PACKAGE.glob("_kernel.*"), PACKAGE.glob("_kernel_parts/**/*")
        ),
    }
    for room in (*within, *(ROOT / name for name in _BESIDE)):
        size = _size(room.rglob("*"))
        if size.files and room.name != "_kernel_parts":
            found[room.relative_to(ROOT).as_posix()] = size
    return found


def _size(*paths: Iterator[pathlib.Path]) -> Size:
    files = [path for found in paths for path in found if path.suffix in _SUFFIXES]
    return Size(len(files), sum(len(path.read_text().splitlines()) for path in files))


def budgets() -> dict[str, Size]:
    """Return the budget of each room."""
    return {room: Size(**budget) for room, budget in tomllib.loads(TABLE.read_text()).items()}


def table(sizes: dict[str, Size]) -> str:
    """Return *sizes* as the text of ``budgets.toml``."""
    quoted = {f'"{room}"': size for room, size in sizes.items()}
    width = max(map(len, quoted))
    lines = [
        f"{room:{width}} = {{ files = {size.files:3}, lines = {size.lines:5} }}\n"
        for room, size in quoted.items()
    ]
    return _HEADER + "".join(lines)


def complaints(sizes: dict[str, Size], allowed: dict[str, Size]) -> list[str]:
    """Return a text for each room that is larger than its budget, or much smaller."""
    found = []
    for room in sorted({*sizes, *allowed}):
        size, budget = sizes.get(room), allowed.get(room)
        if budget is None:
            found.append(
                f"{room} is a new room of {size}: add its budget, and say why it is needed"
            )
        elif size is None:
            found.append(f"{room} is gone: remove its budget")
        elif size.files > budget.files or size.lines > budget.lines:
            found.append(
                f"{room} has {size}, and a budget of {budget}: remove what is no longer needed, or "
                "raise the budget in a commit that says which promise needs it"
            )
        elif _is_much_less(size.lines, budget.lines, 20) or _is_much_less(
            size.files, budget.files, 2
        ):
            found.append(f"{room} has {size}, and a budget of {budget}: lower the budget")
    return found


def _is_much_less(size: int, budget: int, spare: int) -> bool:
    return size < budget * 0.98 - spare


if __name__ == "__main__":
    print(table(rooms()), end="")
