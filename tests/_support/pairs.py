"""A part of a long list or of a matrix for the default tier, and the rest in ``tox -e full``.

Most defects that a matrix finds need one or two of its parameters. A pairwise cover has each pair
of values of two parameters at least once, in a fraction of the combinations.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

#: A value of two parameters: (column, value), (column, value), by index.
Pair = tuple[tuple[int, int], tuple[int, int]]


def _pairs_of(row: Sequence[int]) -> set[Pair]:
    return set(itertools.combinations(enumerate(row), 2))


def cover(rows: Iterable[Sequence[Any]]) -> list[int]:
    """Return the indexes of the *rows* that cover each pair of values at least once, in order.

    *rows* may be a product, or any part of one: pairs that no row has need no cover. Greedy, and
    the same for the same rows in each process, as pytest-xdist requires.
    """
    rows = list(rows)
    if rows and (
        len(rows[0]) < 2 or any(len(set(column)) == len(rows) for column in zip(*rows, strict=True))
    ):
        return list(range(len(rows)))  # each row has a unique value
    numbers: list[dict[Any, int]] = [{} for _ in range(max(map(len, rows), default=0))]
    coded = [[numbers[c].setdefault(v, len(numbers[c])) for c, v in enumerate(r)] for r in rows]
    open_pairs = set().union(*map(_pairs_of, coded))
    found = []
    while open_pairs:
        best = max(range(len(rows)), key=lambda n: len(_pairs_of(coded[n]) & open_pairs))
        open_pairs -= _pairs_of(coded[best])
        found.append(best)
    return sorted(found)


def pairwise(rows: Iterable[Sequence[Any]]) -> list[Any]:
    """Return *rows* for ``parametrize``, with the mark ``full`` for those outside the cover."""
    rows = list(rows)
    kept = set(cover(rows))
    return [
        pytest.param(*row, marks=() if number in kept else pytest.mark.full)
        for number, row in enumerate(rows)
    ]


def partly(values: Iterable[Any], kept: Iterable[Any]) -> list[Any]:
    """Return *values* for ``parametrize``, with the mark ``full`` for those that are not *kept*.

    Raises :class:`ValueError` if a value to keep does not exist.
    """
    values, kept = list(values), list(kept)
    if missing := [value for value in kept if value not in values]:
        raise ValueError(f"{missing} are not among {values}")
    return [
        value if value in kept else pytest.param(value, marks=pytest.mark.full) for value in values
    ]


def first(count: int, rows: Iterable[Sequence[Any]]) -> list[Any]:
    """Return *rows* for ``parametrize``; those after the first *count* have the mark ``full``."""
    return [
        pytest.param(*row, marks=() if number < count else pytest.mark.full)
        for number, row in enumerate(rows)
    ]
