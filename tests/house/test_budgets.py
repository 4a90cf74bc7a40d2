"""Each room of the house keeps to its budget of files and lines (``budgets.toml``)."""

from __future__ import annotations

import tomllib

import pytest

from tests.house.budgets import Size, budgets, complaints, rooms, table

COMMAND = "python -m tests.house.budgets > tests/house/budgets.toml"


def test_each_room_keeps_to_its_budget() -> None:
    found = complaints(rooms(), budgets())
    assert not found, "\n".join([*found, f"(This prints the table as it is now: {COMMAND})"])


@pytest.mark.parametrize(
    ("size", "complaint"),
    [
        (Size(10, 1000), None),
        (Size(9, 960), None),
        (Size(10, 959), "lower the budget"),
        (Size(7, 1000), "lower the budget"),
        (Size(10, 1001), "remove what is no longer needed, or raise the budget"),
        (Size(11, 900), "remove what is no longer needed, or raise the budget"),
    ],
)
def test_a_budget_is_kept_and_follows_downwards(size: Size, complaint: str | None) -> None:
    found = complaints({"room": size}, {"room": Size(10, 1000)})
    assert len(found) == (complaint is not None)
    assert complaint is None or complaint in found[0]


def test_each_room_has_a_budget_and_each_budget_a_room() -> None:
    new, gone = complaints({"a": Size(1, 1)}, {"b": Size(1, 1)})
    assert "a is a new room" in new
    assert "b is gone" in gone


def test_the_printed_table_is_one_that_holds() -> None:
    sizes = rooms()
    read = {room: Size(**size) for room, size in tomllib.loads(table(sizes)).items()}
    assert read == sizes
