"""The end of a transaction is told when the callbacks of its messages have run."""

from __future__ import annotations

from pykaproducer._machines.coordination import TV1, TV2, CommitOutcome
from pykaproducer._machines.transaction_effects import (
    AnswerCaller,
    DrainBatches,
    FailRows,
    SendEndTxn,
    WatchReports,
    WatchRows,
)
from pykaproducer._machines.transaction_states import FailureKind
from pykaproducer._machines.transaction_states import TransactionState as S

from .transaction_helper import BOTH, MAX_BLOCK, TIMEOUT, Driver, refused


def begun(protocol: int, *, write: bool = True) -> Driver:
    return Driver(protocol, waits_for_callbacks=True).initialize().begin(write=write)


def report(driver: Driver) -> None:
    driver.do(driver.machine.all_reported(driver.machine.serial, driver.now))


def commit(driver: Driver, deadline: float | None = None) -> Driver:
    driver.do(driver.machine.commit("commit", driver.now, deadline))
    assert driver.has(WatchRows)
    assert driver.has(WatchReports)
    return driver


@BOTH
def test_a_commit_is_told_after_callbacks_and_end(protocol: int) -> None:
    driver = commit(begun(protocol)).settle()
    assert isinstance(driver.request, SendEndTxn)
    driver.end()
    assert driver.machine.state is S.READY
    assert not driver.has(AnswerCaller)
    assert refused(lambda: driver.machine.begin(driver.now)).kind is FailureKind.CONFLICT
    report(driver)
    assert driver.answers["commit"].outcome is CommitOutcome.COMMITTED
    driver.begin()


@BOTH
def test_callbacks_that_have_run_before_the_end(protocol: int) -> None:
    driver = commit(begun(protocol)).settle()
    report(driver)
    assert not driver.has(AnswerCaller)
    driver.end()
    assert driver.answers["commit"].failure is None


@BOTH
def test_a_patient_caller_waits_as_long_as_callbacks_take(protocol: int) -> None:
    driver = commit(begun(protocol)).settle()
    driver.end()
    assert driver.machine.next_due() is None
    driver.now += 10 * (MAX_BLOCK + TIMEOUT)
    driver.do(driver.machine.time_passed(driver.now))
    assert not driver.has(AnswerCaller)
    report(driver)
    assert driver.answers["commit"].failure is None


@BOTH
def test_a_caller_with_a_timeout_is_told_that_it_is_committed(protocol: int) -> None:
    driver = commit(begun(protocol), 5.0).settle()
    driver.end()
    driver.wait()
    assert driver.failed("commit") == (FailureKind.TIMEOUT, CommitOutcome.COMMITTED)
    driver.do(driver.machine.commit("again", driver.now))
    assert not driver.has(AnswerCaller)
    report(driver)
    assert driver.answers["again"].failure is None
    driver.begin()


@BOTH
def test_an_abort_waits_for_the_callbacks_of_the_failures(protocol: int) -> None:
    driver = begun(protocol)
    driver.do(driver.machine.abort("abort", driver.now))
    assert driver.has(FailRows)
    assert driver.has(WatchReports)
    kinds = [type(effect) for effect in driver.effects]
    assert kinds.index(FailRows) < kinds.index(WatchReports), "it watches rows that have failed"
    assert driver.has(DrainBatches) == (protocol == TV1)
    driver.drain().end()
    assert driver.machine.state is S.READY
    assert "abort" not in driver.answers
    report(driver)
    assert driver.answers["abort"].failure is None


@BOTH
def test_an_abort_of_nothing_waits_for_callbacks_as_well(protocol: int) -> None:
    driver = begun(protocol, write=False)
    driver.abort()
    assert driver.machine.state is S.READY
    assert "abort" not in driver.answers
    report(driver)
    assert driver.answers["abort"].failure is None


@BOTH
def test_a_failure_is_told_at_once(protocol: int) -> None:
    driver = commit(begun(protocol)).spoil()
    assert driver.failure("commit").kind is FailureKind.ABORTABLE
    # Callbacks of the failed commit do not count for the abort.
    driver.abort()
    driver.end()
    assert "abort" not in driver.answers
    report(driver)
    assert driver.answers["abort"].failure is None


@BOTH
def test_a_prepared_transaction_is_told_after_callbacks(protocol: int) -> None:
    driver = begun(protocol)
    driver.do(driver.machine.prepare("prepare", driver.now))
    driver.settle()
    assert driver.machine.state is S.PREPARED
    assert "prepare" not in driver.answers
    report(driver)
    assert driver.answers["prepare"].prepared is not None


@BOTH
def test_callbacks_of_another_transaction_mean_nothing(protocol: int) -> None:
    driver = commit(begun(protocol)).settle()
    driver.end()
    assert not driver.machine.all_reported(driver.machine.serial - 1, driver.now)
    assert "commit" not in driver.answers


# Callers that are interrupted ---------------------------------------------------------------------


@BOTH
def test_a_caller_that_did_not_read_its_result(protocol: int) -> None:
    """It was interrupted between being told and its return."""
    driver = commit(begun(protocol)).settle()
    driver.end()
    report(driver)
    assert driver.answers["commit"].failure is None
    driver.machine.caller_left("commit")
    assert refused(lambda: driver.machine.begin(driver.now)).kind is FailureKind.CONFLICT
    driver.do(driver.machine.commit("again", driver.now))
    assert driver.answers["again"].outcome is CommitOutcome.COMMITTED
    driver.begin()


@BOTH
def test_one_of_two_callers_has_read_the_result(protocol: int) -> None:
    driver = commit(begun(protocol)).settle()
    driver.do(driver.machine.commit("other", driver.now))
    driver.end()
    report(driver)
    driver.machine.caller_left("commit")
    driver.begin()
    # Too late: it belongs to a transaction that is over.
    driver.machine.caller_left("other")
    driver.do(driver.machine.commit("next", driver.now))
    assert "next" not in driver.answers


@BOTH
def test_an_interrupted_reader_leaves_the_result_to_the_next_one(protocol: int) -> None:
    driver = commit(begun(protocol)).settle()
    driver.machine.caller_left("commit")
    driver.end()
    report(driver)
    for name in ("second", "third"):
        driver.do(driver.machine.commit(name, driver.now))
        assert driver.answers[name].failure is None
        driver.machine.caller_left(name)
    driver.do(driver.machine.commit("fourth", driver.now))
    assert driver.answers["fourth"].failure is None


# TV1: an epoch continues --------------------------------------------------------------------------


def test_after_the_second_protocol_an_abort_takes_another_epoch_once() -> None:
    """An answer of the second protocol may be late, and hide a batch that is missing."""
    driver = Driver(TV2).initialize().begin()
    driver.do(driver.machine.commit("commit", driver.now))
    driver.settle()
    driver.protocol = TV1
    driver.lose(written=True)
    driver.retry()
    driver.answer()
    driver.retry()
    driver.answer()
    assert (driver.machine.state, driver.machine.protocol) == (S.READY, TV1)
    for bumps in (True, False):
        driver.answers.clear()
        driver.begin().abort()
        driver.end()
        assert (driver.machine.state is S.INITIALIZING) == bumps
        if bumps:
            driver.answer()
        assert driver.machine.state is S.READY
