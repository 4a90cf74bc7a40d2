"""Tasks and drivers that die at each point of the protocol, and a query that is then restarted.

A reader of committed messages sees each row once. The exception is documented: a part of a batch
was committed, the rest timed out, and the replay has another layout.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import pytest

from pykaproducer import PykaproducerError
from pykaproducer._exactly_once.errors import PartialCommitError
from tests.exactly_once.helper import Query, dies_at, expected, four_tasks, three_tasks

#: The points of a task.
TASK = ["read", "initialized", "row", "sent", "marked", "prepared"]
#: The points of the driver before it has decided; after it, (point, number of ended transactions).
UNDECIDED = ["driver-initialized", "driver-read", "checked", "written"]
DECIDED = [("decided", 0), *[("ended", number) for number in range(1, 5)]]
COMPLETED = [("completed", 0), ("swept", 0)]
DRIVER = [*[(point, 0) for point in UNDECIDED], *DECIDED, *COMPLETED]

LAYOUTS = {"same": four_tasks, "other": three_tasks}
DEATHS = {"killed": True, "raised": False}
#: Timeouts of transactions (milliseconds). Shorter ones make the tests faster, but a slow machine
#: may not reach the point before they have passed.
TIMEOUTS = [2_000, 8_000, 32_000]

MakeQuery = Callable[..., Query]

each_driver_death = pytest.mark.parametrize(
    ("point", "death", "layout"),
    [(point, death, layout) for point in DRIVER for death in DEATHS for layout in LAYOUTS],
    ids=lambda each: each if isinstance(each, str) else f"{each[0]}-{each[1]}",
)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("death", DEATHS)
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


@pytest.mark.parametrize("death", DEATHS)
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


@each_driver_death
def test_the_driver_dies_and_is_restarted_in_time(
    query: MakeQuery,
    point: tuple[str, int],
    death: str,
    layout: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = query()
    made.write(0)
    results = made.stage(1, four_tasks)
    with dies_at(made, *point, monkeypatch, killed=DEATHS[death]):
        made.commit(1, results)
    if death == "raised":
        made.abort(1, results)
    made.write(1, LAYOUTS[layout])
    made.write(2)
    assert made.visible() == expected(3)
    assert made.open_transactions() == []


@each_driver_death
def test_the_driver_dies_and_is_restarted_after_the_timeout(
    query: MakeQuery,
    point: tuple[str, int],
    death: str,
    layout: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    died = died_in_time(query, point, death, monkeypatch)
    died.wait_for_timeouts()
    ended = point[1]
    with died.twin(timeout_ms=60_000) as made:
        if 0 < ended < 4 and layout == "other":
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


def died_in_time(
    query: MakeQuery, point: tuple[str, int], death: str, monkeypatch: pytest.MonkeyPatch
) -> Query:
    """Return a query whose driver died at *point* before its transactions timed out."""
    for timeout_ms in TIMEOUTS:
        made = query(timeout_ms=timeout_ms)
        with contextlib.suppress(PykaproducerError):
            made.write(0)
            began = time.monotonic()
            results = made.stage(1, four_tasks)
            with dies_at(made, *point, monkeypatch, killed=DEATHS[death]):
                made.commit(1, results)
            if death == "raised":
                made.abort(1, results)
            if time.monotonic() - began < timeout_ms / 1000:
                return made
    raise AssertionError(f"the machine is too slow for {TIMEOUTS}")
