"""Interleavings that once lost or doubled rows, or ended in a wrong error."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from pykaproducer import TransactionTimeoutError
from pykaproducer._errors.codes import ErrorCode
from pykaproducer._exactly_once import fates, points
from pykaproducer._exactly_once.commit import BatchCommit
from pykaproducer._exactly_once.errors import (
    ExactlyOnceError,
    PartialCommitError,
    PrefixInUseError,
    StateMismatchError,
    TransactionsExpiredError,
)
from pykaproducer._exactly_once.fates import prepared
from pykaproducer._exactly_once.records import BatchKey
from pykaproducer._exactly_once.setup import OnPartialCommit, WriteKind
from pykaproducer.transaction_control import Ended, EndState
from tests.exactly_once.helper import ROWS, Layout, Paused, Query, dies_at, four_tasks, three_tasks
from tests.transactions.helper import PATIENCE

MakeQuery = Callable[..., Query]


def rows(*batches: int) -> Counter[bytes]:
    return Counter(b"%d-%d" % (batch, row) for batch in batches for row in range(ROWS))


def first_and_third(row: int) -> int:
    """Distribute rows to three tasks, of which the second has none; the first has the fewest."""
    return 0 if row < 4 else 2


def all_three(row: int) -> int:
    """As above, but the second has half of the rows of the third."""
    return 0 if row < 4 else 1 + row % 2


def fence(query: Query, *tasks: int) -> None:
    """Abort transactions, as their timeout does, and let their producers be fenced."""
    with query.twin() as other:
        other.control.fence([query.setup.names.task(task, 0) for task in tasks])


def half_committed(
    query: Query, monkeypatch: pytest.MonkeyPatch, layout: Layout, ended: int
) -> None:
    """Commit batch 0 in part: the driver dies, and the other transactions end."""
    results = query.stage(0, layout)
    with dies_at(query, "ended", ended, monkeypatch, killed=True):
        query.commit(0, results)
    fence(query, *[each.task for each in results if each.token is not None][ended:])


# Rows that are lost or doubled --------------------------------------------------------------------


def test_rows_that_moved_to_a_task_which_had_none(
    query: MakeQuery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. Task 0 of two with rows is committed, task 2 is lost. 2. In the replay, which has as many
    tasks and rows, a part of what is missing is in task 1. It must not be left out.
    """
    made = query()
    half_committed(made, monkeypatch, first_and_third, 1)
    visible = made.visible()
    with pytest.raises(PartialCommitError, match="has another layout"):
        made.write(0, all_three)
    assert made.visible() == visible
    made.write(0, first_and_third)
    assert made.visible() == rows(0)


def test_a_marker_of_an_earlier_decision_of_the_batch(
    query: MakeQuery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. Tasks 0 and 1 of four are committed, the others are lost. 2. All rows are written again
    (``duplicate``), in another layout, and decided. 3. The driver dies, and the transactions of the
    second decision are lost. 4. The marker of task 0 is still that of the first one.
    """
    made = query(on_partial_commit=OnPartialCommit.DUPLICATE)
    half_committed(made, monkeypatch, four_tasks, 2)
    visible = made.visible()
    assert sum(visible.values()) == ROWS // 2
    results = made.stage(0, lambda row: row // 12)
    with dies_at(made, "decided", 0, monkeypatch, killed=True):
        made.commit(0, results)
    fence(made, 0, 1)
    made.write(0, lambda row: row // 12)
    assert made.visible() == visible + rows(0)


def test_a_marker_of_an_earlier_write_with_the_same_id(
    query: MakeQuery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writes alternate: a, b, a. b has one task, so that the markers of tasks 1 to 3 are a's."""
    made = query(kind=WriteKind.SINGLE, name="a")
    made.write(0)
    with made.twin(name="b") as other:
        other.write(0, lambda row: 0)
    results = made.stage(0, four_tasks)
    with dies_at(made, "decided", 0, monkeypatch, killed=True):
        made.commit(0, results)
    fence(made, 0, 1, 2, 3)
    made.write(0)
    assert made.visible() == Counter(dict.fromkeys(rows(0), 3))


def test_a_batch_that_was_decided_without_tasks(query: MakeQuery) -> None:
    """Another query with the prefix has a micro-batch without tasks; it does not know its id."""
    made = query()
    made.write(0)
    BatchCommit(made.setup, BatchKey("", 1), made.control, is_first=True).commit([])
    made.write(1)
    made.write(2)
    assert made.visible() == rows(0, 1, 2)


def test_a_broker_that_was_replaced_gives_the_state(query: MakeQuery) -> None:
    """1. The batch is written. 2. The replay reads the state from the coordinator before."""
    made = query()
    with made.twin() as late:
        stale = late.control.offsets
        old: dict[str, dict[Any, Any]] = {made.setup.names.decision(0, 1)[0]: {}}

        def offsets(
            groups: Collection[str],
            topics: Mapping[str, Collection[int]] | None = None,
            stable: bool = True,
            **others: Any,
        ) -> Any:
            return old if stable else stale(groups, topics, stable, **others)

        late.control.offsets = offsets  # type: ignore[method-assign, assignment]
        made.write(0)
        results = late.stage(0, four_tasks)
        with pytest.raises(StateMismatchError, match="not up to date"):
            late.commit(0, results)
    assert made.visible() == rows(0)
    made.write(0)
    made.write(1)
    assert made.visible() == rows(0, 1)


@pytest.mark.parametrize("kind", [WriteKind.NUMBERED, WriteKind.SINGLE])
def test_the_next_write_completes_the_one_before(
    query: MakeQuery, kind: WriteKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. The driver dies in the middle of a commit. 2. The program does not write this batch again,
    but the next one, whose tasks use the same ids.
    """
    made = query(kind=kind, name="first")
    results = made.stage(0, four_tasks)
    with dies_at(made, "ended", 2, monkeypatch, killed=True):
        made.commit(0, results)
    numbered = kind is WriteKind.NUMBERED
    with made.twin(name="first" if numbered else "second") as following:
        following.write(5)
        assert made.visible() == rows(0, 5)


def test_the_next_batch_finds_a_part_of_the_one_before(
    query: MakeQuery, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = query(kind=WriteKind.NUMBERED)
    half_committed(made, monkeypatch, four_tasks, 2)
    visible = made.visible()
    with made.twin() as restarted, pytest.raises(PartialCommitError, match=r"batch 0, is visible"):
        restarted.write(5)
    assert made.visible() == visible
    with made.twin(on_partial_commit=OnPartialCommit.SKIP) as skipping:
        skipping.write(5)
    assert made.visible() == visible + rows(5)
    assert made.open_transactions() == []


@pytest.mark.parametrize("second", ["of another write", "while all is written again", "decided"])
def test_a_second_failure(query: MakeQuery, second: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """1. Tasks 0 and 1 of four are committed, the others are lost. 2. A process that is to repeat
    the write, or that writes another one, dies too. 3. The first layout completes the write.
    """
    made = query(kind=WriteKind.SINGLE, name="first")
    half_committed(made, monkeypatch, four_tasks, 2)
    duplicate = OnPartialCommit.DUPLICATE
    with made.restart()(on_partial_commit=duplicate) as other:
        if second == "of another write":
            other.name = "second"
        results = other.stage(0, four_tasks if second == "decided" else three_tasks)
        if second == "decided":
            with dies_at(other, "decided", 0, monkeypatch, killed=True):
                other.commit(0, results)
            assert results[2].token is not None
            made.control.complete(prepared(results[2].token, made.setup.names), commit=True)
            fence(made, 0, 1, 3)
    if second == "decided":
        with made.twin() as other, pytest.raises(PartialCommitError, match="3 tasks instead of 4"):
            other.write(0, three_tasks)
    with made.twin() as restarted:
        restarted.write(0)
        assert restarted.visible() == rows(0)
        assert restarted.open_transactions() == []


# Drivers that were replaced -----------------------------------------------------------------------


@pytest.mark.parametrize("act", ["commit", "abort", "sweep"])
def test_a_replaced_driver_leaves_alone_what_is_decided(
    query: MakeQuery, act: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. A driver pauses. 2. The query is restarted and decides the next batch. 3. The first driver
    cleans up after itself, before the transactions of this decision are committed.
    """
    made = query()
    results = made.stage(0, four_tasks)
    with contextlib.ExitStack() as stack:
        restarted = stack.enter_context(made.twin())
        if act == "sweep":
            paused = stack.enter_context(
                Paused(lambda: made.commit(0, results), "completed", 0, monkeypatch)
            )
        restarted.write(0)
        # Speculative attempts, whose ids are not those of the first driver's tokens.
        attempt = int(act == "sweep")
        following = [restarted.task(1, four_tasks, task, attempt) for task in range(4)]

        def reached(point: str, task: int = 0, attempt: int = 0) -> None:
            if point == "decided" and not acted:
                acted.append(act)
                if act == "sweep":
                    assert paused.finish() is None
                elif act == "abort":
                    made.abort(0, results)
                else:
                    with pytest.raises(StateMismatchError, match="checkpoint is older"):
                        made.commit(0, results)

        acted: list[str] = []
        with monkeypatch.context() as patched:
            patched.setattr(points, "reached", reached)
            restarted.commit(1, following)
        assert acted == [act]
        assert made.visible() == rows(0, 1)


def test_a_query_that_was_refused_does_not_disturb(query: MakeQuery) -> None:
    """Its tasks have failed, so its driver gives the batch up without knowing the query."""
    made = query()
    for batch in range(3):
        made.write(batch)
    results = made.stage(3, four_tasks)
    assert not BatchCommit(made.setup, BatchKey("", 0), made.control, is_first=True).abort([])
    made.commit(3, results)
    assert made.visible() == rows(0, 1, 2, 3)


def test_a_replaced_driver_does_not_miss_what_is_there(
    query: MakeQuery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tasks of the next batch have used the ids and replaced the markers."""
    made = query()
    results = made.stage(0, four_tasks)
    with (
        made.twin() as restarted,
        Paused(lambda: made.commit(0, results), "decided", 0, monkeypatch) as paused,
    ):
        restarted.write(0)
        restarted.write(1)
        error = paused.finish()
    assert isinstance(error, PrefixInUseError)
    assert made.visible() == rows(0, 1)


# Coordinators -------------------------------------------------------------------------------------


@contextlib.contextmanager
def refusing(query: Query, task: int, end: Ended) -> Iterator[None]:
    """Let the coordinator of a task answer *end*, although the transaction is open."""
    control = query.control
    complete_all = control.complete_all
    name = query.setup.names.task(task, 0)

    def refused(prepared: Any, commit: bool, *, timeout: float | None = None) -> list[Ended]:
        (each,) = prepared
        return [end] if each.transactional_id == name else complete_all(prepared, commit)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(control, "complete_all", refused)
        yield


@pytest.mark.parametrize(
    "code", [ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, ErrorCode.UNKNOWN_SERVER_ERROR]
)
def test_a_refusal_does_not_mean_that_rows_are_lost(query: MakeQuery, code: ErrorCode) -> None:
    made = query()
    results = made.stage(0, four_tasks)
    refusal = Ended(EndState.UNSURE, int(code), "the reason")
    with refusing(made, 1, refusal), pytest.raises(ExactlyOnceError) as raised:
        made.commit(0, results)
    assert not isinstance(raised.value, PartialCommitError)
    assert "is to be committed, but" in str(raised.value)
    assert "task 1 (the reason)" in str(raised.value)
    made.write(0, three_tasks)
    assert made.visible() == rows(0)


@pytest.mark.full
def test_a_silent_coordinator_does_not_delay_the_others(query: MakeQuery) -> None:
    """It is the first one, and does not answer until the transactions have timed out."""
    made = query()
    given: list[tuple[str, float]] = []
    complete_all = made.control.complete_all
    silent = made.setup.names.task(0, 0)

    def timed(prepared: Any, commit: bool, *, timeout: float | None = None) -> list[Ended]:
        assert timeout is not None
        (each,) = prepared
        given.append((each.transactional_id, timeout))
        if each.transactional_id == silent:
            return [Ended(EndState.UNSURE, None, "silence")]
        return complete_all(prepared, commit, timeout=PATIENCE)

    results = made.stage(0, four_tasks)
    made.setup = replace(made.setup, timeout_ms=10_000)  # for as long commits are repeated
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(made.control, "complete_all", timed)
        patched.setattr(fates, "_PATIENCE", 0.5)
        with pytest.raises(ExactlyOnceError, match=r"task 0 \(silence\)"):
            made.commit(0, results)
    assert [name for name, _ in given[:4]] == [made.setup.names.task(task, 0) for task in range(4)]
    assert given[0][1] == 0.5
    assert {name for name, _ in given[4:]} == {silent}


# Errors and log lines -----------------------------------------------------------------------------


@pytest.mark.parametrize("ahead", [-3_600, 3_600])
def test_the_clock_of_the_driver(
    query: MakeQuery, ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = query()
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + ahead)
    made.write(0)
    assert made.visible() == rows(0)


def test_old_transactions_are_refused_by_the_clock_of_the_brokers(query: MakeQuery) -> None:
    """They are still open, but would not be for long."""
    made = query(timeout_ms=20_000)
    results = made.stage(0, four_tasks)
    describe = made.control.describe

    def later(*args: Any, **others: Any) -> Any:
        found = describe(*args, **others)
        own = made.setup.names.driver
        if own in found:
            found[own] = replace(found[own], start_ms=found[own].start_ms + 16_000)
        return found

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(made.control, "describe", later)
        with pytest.raises(TransactionsExpiredError, match=r"began its transaction (1[6-9]|2.) s"):
            made.commit(0, results)
    assert made.open_transactions() == []
    assert made.visible() == Counter()


def test_a_completion_that_is_too_slow_says_what_is_visible(
    query: MakeQuery, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = query()
    half_committed(made, monkeypatch, four_tasks, 2)
    results = made.stage(0, four_tasks)
    fence(made, 2, 3)
    with pytest.raises(TransactionsExpiredError) as raised:
        made.commit(0, results)
    assert "Nothing is visible" not in str(raised.value)
    assert "rows that were committed before are" in str(raised.value)
    made.write(0)
    assert made.visible() == rows(0)


def test_a_failure_to_clean_up_is_no_failure_of_the_batch(
    query: MakeQuery, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = query()
    results = made.stage(0, four_tasks)

    def fails(*_: object, **__: object) -> None:
        raise TransactionTimeoutError("no answer")

    with monkeypatch.context() as patched:
        patched.setattr(BatchCommit, "_sweep", fails)
        made.commit(0, results)
    assert "batch 0 is committed. Transactions that other attempts" in caplog.text
    assert made.visible() == rows(0)


def test_an_abort_completes_what_is_decided(
    query: MakeQuery, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = query()
    results = made.stage(0, four_tasks)
    assert made.abort(0, results) is False
    results = made.stage(0, four_tasks)
    with dies_at(made, "decided", 0, monkeypatch, killed=False):
        made.commit(0, results)
    assert made.abort(0, results) is True
    assert made.open_transactions() == []
    assert made.visible() == rows(0)


@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("running", [False, True])
def test_an_abort_ends_transactions_of_all_tasks(
    query: MakeQuery, before: int, running: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None has a result. One begins when the driver has looked for their transactions."""
    made = query()
    for batch in range(before):
        made.write(batch, lambda row: 0)
    with made.twin() as tasks:
        tasks.task(before, four_tasks, 2)
        tasks.task(before, four_tasks, 1, attempt=5)
        fence, fenced = made.control.fence, []

        def fence_and_begin(*arguments: Any, **options: Any) -> Any:
            done = fence(*arguments, **options)
            if done and running and not fenced:
                tasks.task(before, four_tasks, 3)
            fenced.append(done)
            return done

        monkeypatch.setattr(made.control, "fence", fence_and_begin)
        key = BatchKey("", before)
        commit = BatchCommit(made.setup, key, made.control, is_first=True)
        assert not commit.abort([], running=running)
    assert made.open_transactions() == []
    made.write(before)
    assert made.visible() == rows(*range(before + 1))


def test_other_rows_of_a_batch_that_is_committed(
    query: MakeQuery, caplog: pytest.LogCaptureFixture
) -> None:
    """As of a second write in ``foreachBatch`` with the same prefix."""
    made = query()
    made.write(0)
    made.write(0, three_tasks)
    assert not caplog.text
    made.rows = lambda batch: [b"other"]  # type: ignore[method-assign]
    made.write(0, lambda row: 0)
    assert "already committed, with 24 rows. The 1 rows of this run differ" in caplog.text
    assert "a transactionalIdPrefix each" in caplog.text


def test_state_that_is_gone_names_both_batches(query: MakeQuery) -> None:
    with pytest.raises(StateMismatchError, match="batch 6 was written completely, and nothing of"):
        query().task(7, four_tasks, 0)
