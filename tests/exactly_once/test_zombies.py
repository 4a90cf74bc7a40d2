"""Zombies: attempts and drivers that continue although others have taken their place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from pykaproducer import PykaproducerError
from pykaproducer._exactly_once.errors import PrefixInUseError
from tests.exactly_once.helper import (
    LAYOUTS,
    TASK,
    Paused,
    Query,
    each_driver_point,
    expected,
    four_tasks,
)

MakeQuery = Callable[..., Query]


@pytest.mark.parametrize("until", ["prepared", "committed", "the next batch"])
@pytest.mark.parametrize("point", TASK)
def test_an_attempt_goes_on_after_another_one(
    query: MakeQuery, point: str, until: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = query()
    with (
        made.twin() as other,
        Paused(lambda: other.task(0, four_tasks, 1), point, 1, monkeypatch) as paused,
    ):
        results = [made.task(0, four_tasks, task, attempt=task == 1) for task in range(4)]
        if until == "prepared":
            paused.finish()
        made.commit(0, results)
        if until == "committed":
            paused.finish()
        made.write(1)
        paused.finish()
        made.write(2)
        assert made.visible() == expected(3)
        assert made.open_transactions() == []


@pytest.mark.parametrize("layout", LAYOUTS)
@each_driver_point
def test_a_driver_goes_on_after_another_one(
    query: MakeQuery, point: tuple[str, int], layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = query()
    made.write(0)
    results = made.stage(1, four_tasks)
    with (
        made.twin() as restarted,
        Paused(lambda: made.commit(1, results), *point, monkeypatch) as paused,
    ):
        restarted.write(1, LAYOUTS[layout])
        error = paused.finish()
        assert error is None or isinstance(error, PykaproducerError)
        restarted.write(2)
        assert restarted.visible() == expected(3)
        assert restarted.open_transactions() == []


def test_a_speculative_attempt_loses(query: MakeQuery) -> None:
    made = query()
    with made.twin() as other:
        other.task(0, four_tasks, 2, attempt=1)
        made.commit(0, made.stage(0, four_tasks))
        assert made.open_transactions() == []
        made.write(1)
        assert made.visible() == expected(2)


@pytest.mark.full
@pytest.mark.parametrize("when", ["before", "between", "after"])
def test_tasks_run_beside_an_abort(query: MakeQuery, when: str) -> None:
    made = query()
    made.write(0)
    if when == "before":
        made.abort(1, [])
    results = [made.task(1, four_tasks, task) for task in (0, 1)]
    if when == "between":
        made.abort(1, results)
    results += [made.task(1, four_tasks, task) for task in (2, 3)]
    if when == "after":
        made.abort(1, results)
        assert made.open_transactions() == []
    made.write(1)
    made.write(2)
    assert made.visible() == expected(3)
    assert made.open_transactions() == []


def test_another_query_with_the_same_prefix(query: MakeQuery) -> None:
    made = query()
    made.write(0)
    with (
        made.twin(name="stranger") as stranger,
        pytest.raises(
            PrefixInUseError, match=r"is used by query 'query' .*, this is query 'stranger'"
        ),
    ):
        stranger.task(1, four_tasks, 0)
    made.write(1)
    assert made.visible() == expected(2)


def test_another_query_with_the_same_prefix_and_another_topic(query: MakeQuery) -> None:
    """Their states are apart, but not their transactional ids."""
    made = query()
    stranger = query(prefix=made.setup.names.prefix, name="stranger")
    begun = stranger.stage(0, four_tasks)
    made.write(0)
    with pytest.raises(PrefixInUseError, match=f"'query' .state topic '{made.topic}'"):
        stranger.commit(0, begun)
    with pytest.raises(PrefixInUseError, match=f"'query' .state topic '{made.topic}'"):
        stranger.task(0, four_tasks, 0)
    assert stranger.visible() == Counter()
    made.write(1)
    assert made.visible() == expected(2)
    assert made.open_transactions() == []
