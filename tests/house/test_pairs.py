"""The cover of a matrix has each pair of values, and the default tier little more."""

from __future__ import annotations

import itertools

import pytest

from tests._support.pairs import cover, pairwise, partly


def pairs(rows: list[tuple[int, ...]]) -> set[object]:
    return {pair for row in rows for pair in itertools.combinations(enumerate(row), 2)}


@pytest.mark.parametrize("sizes", [(2, 2, 2), (5, 4, 3, 2), (3, 3, 3, 3, 3)])
def test_each_pair_is_covered_by_a_part_of_the_product(sizes: tuple[int, ...]) -> None:
    rows = list(itertools.product(*map(range, sizes)))
    kept = [rows[number] for number in cover(rows)]
    assert pairs(kept) == pairs(rows)
    assert len(kept) < len(rows)


def test_pairs_that_no_row_has_need_no_cover() -> None:
    rows = [(0, 0, 0), (0, 1, 1), (1, 0, 1), (0, 0, 1)]
    assert pairs([rows[number] for number in cover(rows)]) == pairs(rows)


def test_rows_that_cannot_be_spared_stay() -> None:
    assert cover([]) == []
    assert cover([(1,), (2,)]) == [0, 1]
    assert cover([(1, 0, 0), (2, 0, 0)]) == [0, 1]


def test_the_rest_is_full() -> None:
    rows = list(itertools.product(range(3), range(3), range(3)))
    full = [row for row in pairwise(rows) if row.marks]
    assert 0 < len(full) == len(rows) - len(cover(rows))
    assert [getattr(each, "marks", ()) != () for each in partly("abc", "b")] == [True, False, True]
    with pytest.raises(ValueError, match="'d'"):
        partly("abc", "d")
