"""Who may call what, who waits, and what each caller of a transactional producer gets."""

from __future__ import annotations

import pytest

from pykaproducer._machines.coordination import TV1, TV2, CommitOutcome
from pykaproducer._machines.transaction_effects import CommitOffsets
from pykaproducer._machines.transaction_states import FailureKind
from pykaproducer._machines.transaction_states import TransactionCall as C
from pykaproducer._machines.transaction_states import TransactionState as S

from .transaction_helper import (
    BOTH,
    COMMITTED,
    MAX_BLOCK,
    NOT,
    POSSIBLY,
    TIMEOUT,
    Driver,
    at,
    refused,
)

# Joining ----------------------------------------------------------------------------------------


@BOTH
def test_equal_calls_share_the_outcome(protocol: int) -> None:
    driver = at(S.ENDING_COMMIT, protocol)
    driver.do(driver.machine.commit("other", 0.0))
    assert not driver.effects
    driver.end()
    assert {driver.answers[caller].outcome for caller in ("commit", "other")} == {COMMITTED}
    driver.begin().abort()
    driver.do(driver.machine.abort("other abort", 0.0))
    driver.end(49)
    for caller in ("abort", "other abort"):
        failure = driver.failure(caller)
        assert (failure.kind, failure.call) == (FailureKind.FATAL, C.ABORT)


@BOTH
def test_each_caller_waits_until_its_own_deadline(protocol: int) -> None:
    driver = at(S.IN_TRANSACTION, protocol)
    driver.do(driver.machine.commit("late", 0.0, 5.0))
    driver.do(driver.machine.commit("soon", 0.0, 1.0))
    driver.settle()
    driver.wait()
    assert driver.failure("soon").kind is FailureKind.TIMEOUT
    assert "late" not in driver.answers
    driver.end()
    assert driver.answers["late"].outcome is COMMITTED


@BOTH
def test_offsets_are_a_call_like_the_others(protocol: int) -> None:
    driver = at(S.IN_TRANSACTION, protocol)
    machine = driver.machine
    number = driver.offsets("a")
    driver.do(machine.offsets("b", "g", {"t": 1}, 0.0))
    assert not driver.effects, "they are the same"
    for call in (
        lambda: machine.offsets("c", "g", {"t": 2}, 0.0),
        lambda: machine.offsets("c", "h", {"t": 1}, 0.0),
        lambda: machine.commit("c", 0.0),
        lambda: machine.abort("c", 0.0),
    ):
        assert refused(call).kind is FailureKind.CONFLICT
    driver.offsets_answered(number)
    assert {driver.answers[caller].failure for caller in "ab"} == {None}
    driver.do(machine.commit("c", 0.0))


@BOTH
def test_equal_offsets_have_results_of_their_own(protocol: int) -> None:
    driver = at(S.IN_TRANSACTION, protocol)
    first, second = driver.offsets(None), driver.offsets("a")
    driver.offsets_answered(first)
    assert "a" not in driver.answers
    driver.offsets_answered(second)
    assert driver.answers["a"].failure is None


# Time -------------------------------------------------------------------------------------------


@BOTH
def test_init_goes_on_after_its_time(protocol: int) -> None:
    driver = Driver(protocol)
    driver.do(driver.machine.init("a", 0.0, 5.0))
    driver.wait()
    assert driver.now == 5.0
    assert driver.failed("a") == (FailureKind.TIMEOUT, None)
    driver.do(driver.machine.init("b", 6.0))
    driver.answer()
    driver.answer()
    assert driver.answers["b"].failure is None


@BOTH
def test_a_commit_waits_for_its_rows_and_then_for_the_coordinator(protocol: int) -> None:
    driver = at(S.FLUSHING, protocol)
    assert driver.machine.next_due() == TIMEOUT, "that of the transaction, not of the call"
    driver.now = 50.0
    driver.settle()
    assert driver.machine.next_due() == 50.0 + MAX_BLOCK
    driver.do(driver.machine.commit("late", 60.0))
    driver.wait()
    assert set(driver.answers) == {"init", "commit"}
    driver.wait()
    assert (set(driver.answers), driver.now) == ({"init", "commit", "late"}, 60.0 + MAX_BLOCK)


@BOTH
@pytest.mark.parametrize(
    ("state", "lost", "outcome"),
    [
        (S.FLUSHING, "", NOT),
        (S.ENDING_COMMIT, "", POSSIBLY),
        (S.ENDING_COMMIT, "written", POSSIBLY),
        (S.ENDING_COMMIT, "unwritten", NOT),
    ],
)
def test_a_commit_goes_on_after_its_time(
    protocol: int, state: S, lost: str, outcome: CommitOutcome
) -> None:
    """It is possibly committed from the moment when EndTxn may have been written."""
    driver = at(S.IN_TRANSACTION, protocol)
    driver.do(driver.machine.commit("commit", 0.0, 5.0))
    if state is S.ENDING_COMMIT:
        driver.settle()
    if lost:
        driver.lose(written=lost == "written")
    driver.wait()
    assert driver.failed("commit") == (FailureKind.TIMEOUT, outcome)
    driver.do(driver.machine.commit("again", 6.0))
    if state is S.FLUSHING:
        driver.settle()
    driver.retry()
    driver.end()
    assert driver.answers["again"].outcome is COMMITTED


@BOTH
def test_offsets_go_on_after_their_time(protocol: int) -> None:
    driver = at(S.IN_TRANSACTION, protocol)
    machine = driver.machine
    number = driver.offsets("a", 5.0)
    driver.wait()
    assert driver.failure("a").kind is FailureKind.TIMEOUT
    assert refused(lambda: machine.commit("x", 6.0)).kind is FailureKind.CONFLICT
    driver.offsets_answered(number)
    driver.do(machine.offsets("b", "g", {"t": 1}, 7.0))
    assert driver.answers["b"].failure is None
    assert not driver.has(CommitOffsets), "they are not sent twice"
    driver.do(machine.commit("c", 6.0))


@BOTH
@pytest.mark.parametrize("what", [C.COMMIT, C.PREPARE, C.ABORT])
def test_a_result_that_no_caller_has_read_is_kept(protocol: int, what: C) -> None:
    """The caller was interrupted, or its time was over."""
    driver = at(S.IN_TRANSACTION, protocol)
    call = {
        C.COMMIT: driver.machine.commit,
        C.PREPARE: driver.machine.prepare,
        C.ABORT: driver.machine.abort,
    }[what]
    driver.do(call("a", 0.0))
    driver.machine.caller_left("a")
    if what is not C.ABORT:
        driver.settle()
    if what is not C.PREPARE:
        driver.drain().end()
    assert "a" not in driver.answers
    if what is C.COMMIT:
        failure = refused(lambda: driver.machine.begin(1.0))
        assert (failure.kind, failure.other) == (FailureKind.CONFLICT, what)
        driver.do(driver.machine.init("i", 1.0))
        assert driver.answers["i"].failure is None
    driver.do(call("b", 1.0))
    assert driver.answers["b"].failure is None
    assert (driver.answers["b"].prepared is not None) is (what is C.PREPARE)
    failure = refused(lambda: call("c", 1.0))
    assert failure.kind is FailureKind.STATE, "it is read once"
    if what is not C.PREPARE:
        driver.begin()


@BOTH
@pytest.mark.parametrize("name", [None, "other"])
@pytest.mark.parametrize("what", [C.COMMIT, C.PREPARE])
def test_no_result_is_forgotten_for_another_id(protocol: int, what: C, name: str | None) -> None:
    """The caller could neither end its prepared transaction, nor know that it is committed."""
    driver = at(S.IN_TRANSACTION, protocol)
    machine = driver.machine
    call = machine.prepare if what is C.PREPARE else machine.commit
    driver.do(call("a", 0.0))
    machine.caller_left("a")
    driver.settle()
    if what is C.COMMIT:
        driver.end()
    if what is C.PREPARE or name is not None:
        failure = refused(lambda: machine.init("i", 1.0, transactional_id=name))
        assert (failure.kind, failure.other) == (FailureKind.CONFLICT, what)
    driver.do(call("b", 1.0))
    assert driver.answers["b"].failure is None
    driver.do(machine.init("j", 1.0, transactional_id=name))
    renewed = what is C.PREPARE or name is not None
    assert machine.state is (S.INITIALIZING if renewed else S.READY)


def test_an_abort_that_no_caller_has_read_prevents_nothing() -> None:
    driver = at(S.ENDING_ABORT, TV2)
    driver.machine.caller_left("abort")
    driver.end()
    driver.begin()
    assert refused(lambda: driver.machine.init("x", 0.0)).kind is FailureKind.STATE


def test_a_commit_has_succeeded_while_the_next_epoch_is_awaited() -> None:
    driver = at(S.IN_TRANSACTION, TV1)
    driver.do(driver.machine.commit("commit", 0.0, 5.0))
    driver.settle()
    driver.do(driver.machine.coordinator_found(TV2, 0.0))
    driver.end()
    driver.protocol = TV2
    assert driver.machine.state is S.INITIALIZING
    driver.wait()
    assert (driver.answers["commit"].failure, driver.answers["commit"].outcome) == (None, COMMITTED)
    driver.do(driver.machine.init("i", 6.0))
    driver.answer()
    assert driver.answers["i"].failure is None
    driver.begin()


def test_a_result_is_not_forgotten_because_of_a_new_epoch() -> None:
    driver = at(S.ENDING_COMMIT, TV1)
    driver.machine.caller_left("commit")
    driver.end()
    driver.do(driver.machine.coordinator_found(TV2, 0.0))
    driver.do(driver.machine.init("i", 0.0))
    driver.answer()
    assert driver.answers["i"].failure is None
    assert refused(lambda: driver.machine.begin(0.0)).kind is FailureKind.CONFLICT
    driver.do(driver.machine.commit("again", 0.0))
    assert driver.answers["again"].outcome is COMMITTED
    driver.protocol = TV2
    driver.begin()


def test_a_result_is_not_forgotten_because_a_new_epoch_is_refused() -> None:
    driver = at(S.ENDING_COMMIT, TV1)
    driver.machine.caller_left("commit")
    driver.do(driver.machine.coordinator_found(TV2, 0.0))
    driver.end()
    driver.answer(53)
    driver.do(driver.machine.init("i", 0.0))
    driver.answer()
    assert refused(lambda: driver.machine.begin(0.0)).kind is FailureKind.CONFLICT
    driver.do(driver.machine.commit("again", 0.0))
    assert driver.answers["again"].outcome is COMMITTED


def test_a_new_epoch_after_an_abort_may_be_refused() -> None:
    driver = at(S.ENDING_ABORT, TV1)
    driver.end(47)
    driver.answer(53)
    assert driver.failed("abort") == (FailureKind.INITIALIZATION, NOT)
    assert driver.machine.state is S.UNINITIALIZED


# close ------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("state", [S.UNINITIALIZED, S.INITIALIZING, S.READY, S.PREPARED, S.FATAL])
def test_close_has_nothing_to_end(protocol: int, state: S) -> None:
    driver = at(state, protocol)
    driver.do(driver.machine.close("close", 0.0, 5.0))
    assert (driver.answers["close"].failure, driver.answers["close"].outcome) == (None, None)
    assert driver.machine.state is state
    if state is S.INITIALIZING:
        assert driver.failure("init").kind is FailureKind.CLOSED


@BOTH
@pytest.mark.parametrize("state", [S.FLUSHING, S.ENDING_COMMIT])
@pytest.mark.parametrize("code", [0, 90])
def test_close_waits_for_a_commit(protocol: int, state: S, code: int) -> None:
    driver = at(state, protocol)
    driver.do(driver.machine.close("close", 0.0, 5.0))
    assert "close" not in driver.answers
    if state is S.FLUSHING:
        driver.settle()
    driver.end(code)
    told = driver.answers["close"]
    assert told.outcome is (NOT if code else COMMITTED)
    assert (told.failure is None) is (code == 0)


@BOTH
@pytest.mark.parametrize("state", [S.FLUSHING, S.ENDING_COMMIT])
def test_what_cannot_be_committed_any_more_is_closed_with_an_abort(protocol: int, state: S) -> None:
    driver = at(state, protocol)
    driver.do(driver.machine.close("close", 0.0, 5.0))
    if state is S.FLUSHING:
        driver.spoil()
    else:
        driver.end(48)
    assert driver.answers["commit"].failure is not None
    driver.drain().end()
    assert (driver.answers["close"].failure, driver.answers["close"].outcome) == (None, NOT)


@BOTH
def test_close_ends_a_call_about_offsets(protocol: int) -> None:
    driver = at(S.IN_TRANSACTION, protocol)
    driver.do(driver.machine.offsets("a", "g", {}, 0.0))
    driver.do(driver.machine.close("close", 0.0, 5.0))
    assert driver.failure("a").kind is FailureKind.CLOSED


@BOTH
@pytest.mark.parametrize(
    ("state", "outcome"),
    [(S.FLUSHING, NOT), (S.ENDING_COMMIT, POSSIBLY), (S.ENDING_ABORT, NOT), (S.ABORTABLE, NOT)],
)
def test_close_waits_no_longer_than_it_may(protocol: int, state: S, outcome: CommitOutcome) -> None:
    driver = at(state, protocol)
    driver.do(driver.machine.close("close", 0.0, 5.0))
    driver.wait()
    told = driver.answers["close"]
    assert told.failure is not None
    assert (told.failure.kind, told.outcome) == (FailureKind.TIMEOUT, outcome)


@BOTH
def test_all_callers_are_told_when_the_stage_ends(protocol: int) -> None:
    for state in S:
        if state is S.DRAINING and protocol == TV2:
            continue
        driver = at(state, protocol)
        waiting = state in (S.INITIALIZING, S.FLUSHING, S.ENDING_COMMIT, S.DRAINING, S.ENDING_ABORT)
        before = set(driver.answers)
        driver.do(driver.machine.stop(1.0))
        assert len(set(driver.answers) - before) == waiting
        if state is S.ENDING_COMMIT:
            assert driver.failed("commit") == (FailureKind.CLOSED, POSSIBLY)
