"""The table of docs/guarantees.rst names tests that exist, and that the default tier runs."""

from __future__ import annotations

import ast
import pathlib
import re

import pytest

from tests._support.fixtures.tiers import tier_of

TESTS = pathlib.Path(__file__).parents[1]
TABLE = (TESTS.parent / "docs" / "guarantees.rst").read_text()
#: For each row of the table: the promise, the tests in one process, the tests on real Kafka.
ROWS = [
    [" ".join(cell.split()) for cell in re.split(r"\n {5}- ", row)]
    for row in re.split(r"\n {3}\* - ", TABLE.partition("\n\nThe paths are in")[0])[2:]
]
TEST = re.compile(r"``([a-z_]+/test_\w+\.py)(?:::(\w+))?``")


def functions_of(path: str) -> dict[str, ast.FunctionDef]:
    """Return the tests of a file of the default tier by name; empty if all are full."""
    tree = ast.parse((TESTS / path).read_text())
    if any(ast.unparse(node) == "pytestmark = pytest.mark.full" for node in tree.body):
        return {}
    return {
        node.name: node
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        and "pytest.mark.full" not in map(ast.unparse, node.decorator_list)
    }


def test_the_table_has_each_promise() -> None:
    promises = [row[0].split()[0] for row in ROWS]
    assert promises[:16] == [f"P{number}" for number in range(1, 17)]
    assert all(len(row) == 3 for row in ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:40])
def test_each_test_exists_and_runs_by_default(row: list[str]) -> None:
    pure, real = (TEST.findall(cell) for cell in row[1:])
    assert pure
    assert real
    for path, name in [*pure, *real]:
        found = functions_of(path)
        assert found, f"{path} is not in the default tier"
        assert not name or name in found, f"{path} has no {name} in the default tier"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:40])
def test_each_promise_is_tested_on_real_kafka(row: list[str]) -> None:
    for path, name in TEST.findall(row[2]):
        arguments = [each.arg for each in functions_of(path)[name].args.args]
        # tests/exactly_once has its broker by way of this fixture.
        arguments = ["sink_cluster" if each == "query" else each for each in arguments]
        tier = tier_of(f"tests/{path}", arguments)
        assert tier in ("kafka", "web", "spark"), f"{path}::{name} is {tier}"
