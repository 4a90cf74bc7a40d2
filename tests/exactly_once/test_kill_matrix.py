"""Tasks and drivers that die at each point of the protocol, and a query that is then restarted.

A reader of committed messages sees each row once. The exception is documented: a part of a batch
was committed, the rest timed out, and the replay has another layout.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import pytest

from pykaproducer import PykaproducerError
from pykaproducer._exactly_once.errors import PartialCommitError
from tests.exactly_once.helper import (
    LAYOUTS,
    TASK,
    Query,
    dies_at,
    each_driver_point,
    expected,
    four_tasks,
)

DEATHS = {"killed": True, "raised": False}
#: Timeouts of transactions (milliseconds). Shorter ones make the tests faster, but a slow machine
#: may not reach the point before they have passed.
TIMEOUTS = [2_000, 8_000, 32_000]

MakeQuery = Callable[..., Query]

each_death = pytest.mark.parametrize("death", DEATHS)
each_layout = pytest.mark.parametrize("layout", LAYOUTS)


@each_layout
@each_death
@pytest.mark.parametrize("point", TASK)
def test_a_task_dies_and_the_query_is_restarted(
    query: MakeQuery, point: str, death: str, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = query()
    made.write(0)
    with dies_at(made, point, 1, monkeypatch, killed=DEATHS[death]):
        made.stage(1, four_tasks)
    if death == "raised":
        made.abort(1, [])
    made.write(1, LAYOUTS[layout])
    made.write(2)
    assert made.visible() == expected(3)
    assert made.open_transactions() == []


@each_death
@pytest.mark.parametrize("point", TASK)
def test_a_task_dies_and_is_tried_again(
    query: MakeQuery, point: str, death: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = query()
    results = [made.task(0, four_tasks, 0)]
    with dies_at(made, point, 1, monkeypatch, killed=DEATHS[death]):
        made.task(0, four_tasks, 1)
    results += [made.task(0, four_tasks, task, attempt=task == 1) for task in (1, 2, 3)]
    made.commit(0, results)
    assert made.open_transactions() == []  # that of the first attempt is aborted
    made.write(1)
    assert made.visible() == expected(2)


@each_layout
@each_death
@each_driver_point
def test_the_driver_dies_and_is_restarted_in_time(
    query: MakeQuery,
    point: tuple[str, int],
    death: str,
    layout: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = query()
    made.write(0)
    die(made, point, death, monkeypatch)
    made.write(1, LAYOUTS[layout])
    made.write(2)
    assert made.visible() == expected(3)
    assert made.open_transactions() == []


def die(query: Query, point: tuple[str, int], death: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the driver die at *point* of batch 1."""
    results = query.stage(1, four_tasks)
    with dies_at(query, *point, monkeypatch, killed=DEATHS[death]):
        query.commit(1, results)
    if death == "raised":
        query.abort(1, results)


@each_layout
@each_death
@each_driver_point
def test_the_driver_dies_and_is_restarted_after_the_timeout(
    dead: dict[Any, MakeQuery], point: tuple[str, int], death: str, layout: str
) -> None:
    ended = point[1]
    with dead[point, death, layout](timeout_ms=60_000) as made:
        # A driver that lives after an error completes what it has decided.
        if 0 < ended < 4 and layout == "other" and death == "killed":
            before = made.visible()
            with pytest.raises(PartialCommitError) as raised:
                made.write(1, LAYOUTS[layout])
            assert f"{ended * 6} rows" in str(raised.value)
            assert made.visible() == before
            assert made.open_transactions() == []
            layout = "same"  # as the error says
        made.write(1, LAYOUTS[layout])
        made.write(2)
        assert made.visible() == expected(3)
        assert made.open_transactions() == []


@pytest.fixture(scope="module")
def dead(
    request: pytest.FixtureRequest, protocol: str, new_query: MakeQuery
) -> dict[Any, MakeQuery]:
    """Return how to restart each dead query, after its transactions have timed out.

    The cases that this run has selected wait together.
    """
    name = test_the_driver_dies_and_is_restarted_after_the_timeout.__name__
    tests = (each for each in request.session.items if isinstance(each, pytest.Function))
    cases = [each.callspec.params for each in tests if each.originalname == name]
    found = {}
    with pytest.MonkeyPatch.context() as monkeypatch:
        for each in cases:
            if each["protocol"] == protocol:
                point, death = each["point"], each["death"]
                restart = died_in_time(new_query, point, death, monkeypatch)
                found[point, death, each["layout"]] = restart
    for restart in found.values():
        with restart() as waiting:
            waiting.wait_for_timeouts()
    return found


def died_in_time(
    new_query: MakeQuery, point: tuple[str, int], death: str, monkeypatch: pytest.MonkeyPatch
) -> MakeQuery:
    """Return how to restart a query whose driver died at *point*, in time."""
    for timeout_ms in TIMEOUTS:
        with new_query(timeout_ms=timeout_ms) as made, contextlib.suppress(PykaproducerError):
            with made.twin(timeout_ms=60_000) as before:
                before.write(0)
            began = time.monotonic()
            die(made, point, death, monkeypatch)
            if time.monotonic() - began < timeout_ms / 1000:
                return made.restart()
    raise AssertionError(f"the machine is too slow for {TIMEOUTS}")
