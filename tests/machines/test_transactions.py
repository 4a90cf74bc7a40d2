"""Each row of the table of a transactional producer's states, for both protocols."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest

from pykaproducer._machines.coordination import TV1, TV2, CommitOutcome, coordinate
from pykaproducer._machines.sequencing import ProducerId
from pykaproducer._machines.transaction_effects import (
    CommitOffsets,
    DrainBatches,
    FailRows,
    GiveUpOffsets,
    OpenAdmission,
    PartitionsAdded,
    Preparation,
    PublishView,
    SendAddOffsets,
    SendAddPartitions,
    SendEndTxn,
    SendFindCoordinator,
    SendInitProducerId,
    ShutAdmission,
    WatchRows,
)
from pykaproducer._machines.transaction_states import FailureKind, IllegalTransactionMove
from pykaproducer._machines.transaction_states import TransactionCall as C
from pykaproducer._machines.transaction_states import TransactionState as S
from pykaproducer._wire.messages import ApiKey
from tests.transactions.table import METHODS, TABLE, UNDER_WAY

from .transaction_helper import (
    BOTH,
    COMMITTED,
    DONE,
    END_TXN,
    GIVEN,
    INIT,
    MAX_BLOCK,
    NOT,
    POSSIBLY,
    TIMEOUT,
    Driver,
    at,
    contents,
    refused,
)

# UNINITIALIZED, INITIALIZING --------------------------------------------------------------------


@BOTH
def test_init_finds_the_coordinator_and_gets_a_producer_id(protocol: int) -> None:
    driver = Driver(protocol)
    driver.do(driver.machine.init("caller", 0.0))
    assert driver.machine.state is S.INITIALIZING
    assert driver.only(SendFindCoordinator).transactional_id == "orders"
    driver.answer()
    assert driver.only(SendInitProducerId) == SendInitProducerId("orders", TIMEOUT, None)
    driver.answer()
    assert driver.machine.state is S.READY
    assert driver.answers["caller"].failure is None
    view = driver.only(PublishView).view
    assert (view.producer, view.protocol, view.is_open) == (GIVEN, protocol, False)


@BOTH
@pytest.mark.parametrize("code", [14, 15, 16, 51, 7, 13])
def test_init_is_repeated_after_a_temporary_error(protocol: int, code: int) -> None:
    driver = at(S.INITIALIZING, protocol)
    driver.answer()
    for _ in range(3):
        driver.answer(code)
        assert driver.machine.state is S.INITIALIZING
        driver.retry()
        assert isinstance(driver.request, SendInitProducerId)
    assert not driver.answers
    driver.answer()
    assert driver.machine.state is S.READY


@BOTH
@pytest.mark.parametrize("code", [53, 31, 50, 42, 59, 120])
def test_init_may_be_called_again_after_it_was_refused(protocol: int, code: int) -> None:
    driver = at(S.INITIALIZING, protocol)
    driver.answer()
    driver.answer(code)
    assert driver.machine.state is S.UNINITIALIZED
    found = driver.failure("init")
    assert (found.kind, found.code, found.api_key) == (FailureKind.INITIALIZATION, code, INIT)
    failure = refused(lambda: driver.machine.begin(0.0))
    assert failure.cause.code == code, "why the producer is not initialized"
    driver.do(driver.machine.init("again", 0.0))
    driver.answer()
    assert driver.answers["again"].failure is None


@BOTH
@pytest.mark.parametrize(
    ("code", "kind"), [(90, FailureKind.FENCED), (47, FailureKind.FENCED), (35, FailureKind.FATAL)]
)
def test_init_may_end_the_producer(protocol: int, code: int, kind: FailureKind) -> None:
    driver = at(S.INITIALIZING, protocol)
    driver.answer()
    driver.answer(code)
    assert driver.machine.state is S.FATAL
    assert driver.failed("init") == (kind, None)


@BOTH
def test_the_coordinator_is_looked_for_with_backoff(protocol: int) -> None:
    driver = at(S.INITIALIZING, protocol)
    for delay in (0.1, 0.2, 0.4):
        driver.answer(15)
        before = driver.now
        driver.wait()
        assert driver.now - before == pytest.approx(delay)
        assert isinstance(driver.request, SendFindCoordinator)


@BOTH
def test_a_lost_connection_does_not_matter_while_another_one_is_made(protocol: int) -> None:
    driver = at(S.INITIALIZING, protocol)
    driver.do(driver.machine.connection_lost(0.0, written=False))
    assert driver.effects == []
    driver.answer()
    assert isinstance(driver.request, SendInitProducerId)
    driver.lose()
    assert isinstance(driver.request, SendFindCoordinator)


@BOTH
def test_an_unused_connection_is_made_again_when_it_is_needed(protocol: int) -> None:
    driver = at(S.IN_TRANSACTION, protocol)
    driver.do(driver.machine.connection_lost(0.0, written=False))
    assert driver.effects == []
    driver.do(driver.machine.commit("commit", 0.0))
    driver.settle()
    assert isinstance(driver.request, SendFindCoordinator)
    driver.answer()
    driver.end()
    assert driver.answers["commit"].outcome is COMMITTED


# READY ------------------------------------------------------------------------------------------


@BOTH
def test_begin_opens_admission(protocol: int) -> None:
    driver = at(S.READY, protocol)
    driver.do(driver.machine.begin(1.0))
    kinds = [type(effect) for effect in driver.effects]
    assert kinds == [PublishView, OpenAdmission]
    view = driver.machine.view
    assert (view.serial, view.is_open, view.added, view.touch.at) == (1, True, frozenset(), None)
    assert driver.machine.refusal() is None


@BOTH
def test_init_again_has_no_effect(protocol: int) -> None:
    driver = at(S.READY, protocol)
    driver.do(driver.machine.init("again", 1.0))
    assert driver.answers["again"].failure is None
    assert (driver.machine.state, driver.request) == (S.READY, None)


@BOTH
@pytest.mark.parametrize("state", [S.UNINITIALIZED, S.READY, S.PREPARED])
def test_init_with_another_id_is_another_producer(protocol: int, state: S) -> None:
    driver = at(state, protocol)
    driver.do(driver.machine.init("again", 1.0, transactional_id="other"))
    assert driver.only(SendFindCoordinator).transactional_id == "other"
    driver.answer()
    assert driver.only(SendInitProducerId) == SendInitProducerId("other", TIMEOUT, None)
    driver.answer()
    assert driver.answers["again"].failure is None


@pytest.mark.parametrize(("before", "after"), [(TV1, TV2), (TV2, TV1)])
def test_a_new_connection_with_another_protocol_needs_a_new_epoch(before: int, after: int) -> None:
    driver = at(S.READY, before)
    driver.protocol = after
    driver.do(driver.machine.coordinator_found(after, 1.0))
    assert driver.machine.state is S.INITIALIZING
    assert driver.only(SendInitProducerId).producer == GIVEN
    driver.answer()
    assert (driver.machine.state, driver.machine.protocol) == (S.READY, after)
    assert driver.machine.view.producer == ProducerId(7, 1)


@pytest.mark.parametrize(("before", "after"), [(TV1, TV2), (TV2, TV1)])
@pytest.mark.parametrize("commit", [True, False])
def test_the_protocol_does_not_change_within_a_transaction(
    before: int, after: int, commit: bool
) -> None:
    driver = at(S.ENDING_COMMIT if commit else S.ENDING_ABORT, before)
    driver.lose(written=False)
    assert isinstance(driver.request, SendFindCoordinator)
    driver.request = None
    driver.do(driver.machine.coordinator_found(after, driver.now))
    # A coordinator that has left the second protocol refuses its EndTxn.
    assert driver.only(SendEndTxn).protocol == TV1
    driver.protocol = TV1
    driver.end()
    # The callers wait until the next transaction can begin.
    assert driver.machine.state is S.INITIALIZING
    assert set(driver.answers) == {"init"}
    driver.answer()
    assert (driver.machine.state, driver.machine.protocol) == (S.READY, after)
    caller = "commit" if commit else "abort"
    assert driver.answers[caller].failure is None


def test_an_unconfirmed_commit_is_repeated_as_it_was() -> None:
    """In a cluster that has left the second protocol for a while.

    Otherwise it would be answered as if nothing had been written, although it is committed.
    """
    driver = at(S.ENDING_COMMIT, TV2)
    driver.lose(written=False)
    driver.protocol = TV1
    driver.retry()
    assert driver.request == SendEndTxn("orders", GIVEN, True, TV1)
    driver.lose()
    driver.protocol = TV2
    driver.retry()
    assert driver.request == SendEndTxn("orders", GIVEN, True, TV1)
    driver.answer()
    assert driver.machine.outcome is COMMITTED
    # No epoch was bumped, and a batch of the transaction may still arrive.
    assert driver.request == SendInitProducerId("orders", TIMEOUT, GIVEN)
    driver.answer()
    assert driver.machine.state is S.READY
    assert driver.machine.view.producer == ProducerId(7, 1)
    assert driver.answers["commit"].failure is None
    driver.begin()
    driver.do(driver.machine.abort("abort", driver.now))
    assert driver.request == SendEndTxn("orders", ProducerId(7, 1), False, TV2)
    driver.end()
    assert driver.machine.state is S.READY


def test_a_refused_commit_is_not_in_doubt_any_more() -> None:
    """The abort is one of the protocol in use, whatever the commit was."""
    driver = at(S.ENDING_COMMIT, TV2)
    driver.lose(written=False)
    driver.protocol = TV1
    driver.retry()
    driver.lose()
    driver.protocol = TV2
    driver.retry()
    assert driver.request == SendEndTxn("orders", GIVEN, True, TV1)
    driver.answer(48)
    assert driver.machine.state is S.ABORTABLE
    assert driver.answers["commit"].outcome is NOT
    driver.do(driver.machine.abort("abort", driver.now))
    assert driver.request == SendEndTxn("orders", GIVEN, False, TV2)


def test_a_commit_does_not_fail_because_the_next_epoch_is_refused() -> None:
    driver = at(S.ENDING_COMMIT, TV1)
    driver.do(driver.machine.coordinator_found(TV2, driver.now))
    driver.end()
    driver.answer(53)
    assert driver.machine.state is S.UNINITIALIZED
    assert (driver.answers["commit"].failure, driver.answers["commit"].outcome) == (None, COMMITTED)


# IN_TRANSACTION ---------------------------------------------------------------------------------


def test_partitions_are_added_in_one_request_for_all_that_came_in_the_meantime() -> None:
    driver = at(S.READY, TV1).begin(write=False)
    machine = driver.machine
    driver.do(machine.partition_wanted(1, "t", 0, 1.0))
    assert driver.only(SendAddPartitions).partitions == (("t", 0),)
    for partition in (1, 2, 1, 0):
        driver.do(machine.partition_wanted(1, "t", partition, 1.0))
        assert not driver.effects
    assert machine.view.touch.at is None, "it has not been written yet, for all we know"
    driver.answer()
    assert driver.only(PartitionsAdded).partitions == (("t", 0),)
    assert machine.view.added == {("t", 0)}
    assert machine.view.touch.at == 1.0
    assert driver.only(SendAddPartitions).partitions == (("t", 1), ("t", 2))
    driver.answer()
    assert machine.view.added == {("t", 0), ("t", 1), ("t", 2)}
    driver.do(machine.partition_wanted(1, "t", 0, 1.0))
    assert not driver.effects


def test_some_partitions_may_be_added_and_others_refused_for_now() -> None:
    driver = at(S.READY, TV1).begin(write=False)
    machine = driver.machine
    driver.do(machine.partition_wanted(1, "t", 0, 0.0))
    driver.request = None
    driver.do(machine.partitions_answered({("t", 0): 3}, 0.0))
    assert not driver.effects
    driver.do(machine.partition_wanted(1, "t", 1, 0.0))
    driver.wait()
    driver.request = None
    driver.do(machine.partitions_answered({("t", 0): 3, ("t", 1): 0}, driver.now))
    assert machine.view.added == {("t", 1)}
    driver.wait()
    assert driver.only(SendAddPartitions).partitions == (("t", 0),)


def test_an_answer_without_a_partition_is_not_trusted() -> None:
    driver = at(S.READY, TV1).begin(write=False)
    driver.do(driver.machine.partition_wanted(1, "t", 0, 0.0))
    driver.request = None
    driver.do(driver.machine.partitions_answered({}, 0.0))
    assert driver.machine.state is S.FATAL


@pytest.mark.parametrize(
    ("code", "state"), [(29, S.ABORTABLE), (120, S.ABORTABLE), (90, S.FATAL), (48, S.FATAL)]
)
def test_a_refused_partition_ends_the_transaction(code: int, state: S) -> None:
    driver = at(S.READY, TV1).begin(write=False)
    driver.do(driver.machine.partition_wanted(1, "t", 0, 0.0))
    driver.answer(code)
    assert driver.machine.state is state
    assert driver.only(FailRows).failure.code == code


@BOTH
def test_offsets_are_committed_by_the_group(protocol: int) -> None:
    driver = at(S.READY, protocol).begin(write=False)
    driver.do(driver.machine.offsets("caller", "g", {"t": 1}, 5.0))
    if protocol == TV1:
        assert driver.only(SendAddOffsets).group == "g"
        assert not driver.has(CommitOffsets)
        driver.answer()
    given = driver.only(CommitOffsets)
    assert (given.group, given.offsets, given.producer) == ("g", {"t": 1}, GIVEN)
    # An unknown partition is waited for in half of the time that the call has.
    assert (given.protocol, given.deadline) == (protocol, 5.0 + MAX_BLOCK / 2)
    assert driver.machine.view.touch.at is not None
    assert "caller" not in driver.answers
    driver.do(driver.machine.offsets_answered(1, given.number, DONE, 6.0))
    assert driver.answers["caller"].failure is None
    # A group is added once.
    driver.do(driver.machine.offsets(None, "g", {"t": 2}, 7.0))
    assert (driver.has(CommitOffsets), driver.has(SendAddOffsets)) == (True, False)


@BOTH
def test_offsets_that_are_refused_make_it_abortable(protocol: int) -> None:
    driver = at(S.IN_TRANSACTION, protocol)
    number = driver.offsets("caller")
    found = coordinate(ApiKey.TXN_OFFSET_COMMIT, 22)
    driver.offsets_answered(number, found)
    assert driver.machine.state is S.ABORTABLE
    failure = driver.failure("caller")
    assert (failure.kind, failure.code, failure.groups) == (FailureKind.ABORTABLE, 22, ("g",))
    assert not driver.has(GiveUpOffsets)


@BOTH
@pytest.mark.parametrize("state", [S.IN_TRANSACTION, S.FLUSHING])
def test_a_failed_row_makes_it_abortable(protocol: int, state: S) -> None:
    driver = at(state, protocol)
    driver.do(driver.machine.row_failed(1, "the cause", 1.0, code=10))
    assert driver.machine.state is S.ABORTABLE
    kinds = [type(effect) for effect in driver.effects]
    assert kinds[:3] == [PublishView, ShutAdmission, FailRows]
    assert not driver.machine.view.is_open
    failure = driver.only(FailRows).failure
    assert (failure.kind, failure.cause, failure.code) == (FailureKind.ABORTABLE, "the cause", 10)
    if state is S.FLUSHING:
        assert driver.failed("commit") == (FailureKind.ABORTABLE, NOT)
    driver.do(driver.machine.row_failed(1, "another", 1.0, fatal=True))
    assert driver.machine.failure is not None
    assert driver.machine.failure.cause == "the cause", "the first one is kept"


@BOTH
@pytest.mark.parametrize("fenced", [True, False])
def test_a_row_that_was_refused_for_the_producer_is_fatal(protocol: int, fenced: bool) -> None:
    driver = at(S.FLUSHING, protocol)
    driver.do(driver.machine.row_failed(1, "cause", 1.0, fatal=True, fenced=fenced))
    assert driver.machine.state is S.FATAL
    kind = FailureKind.FENCED if fenced else FailureKind.FATAL
    assert driver.failed("commit") == (kind, NOT)


@BOTH
@pytest.mark.parametrize("state", [S.IN_TRANSACTION, S.FLUSHING])
def test_the_timeout_of_the_transaction_is_watched(protocol: int, state: S) -> None:
    driver = at(state, protocol)
    driver.now = TIMEOUT - 0.001
    driver.do(driver.machine.time_passed(driver.now))
    assert driver.machine.state is state
    driver.now = TIMEOUT
    driver.do(driver.machine.time_passed(driver.now))
    assert driver.machine.state is S.ABORTABLE
    assert driver.machine.failure is not None
    assert driver.machine.failure.timed_out


@BOTH
@pytest.mark.parametrize("event", ["commit", "prepare", "offsets", "partition_wanted", "settled"])
def test_the_timeout_is_looked_at_before_anything_is_sent(protocol: int, event: str) -> None:
    """The process was paused, so an event may come before the timer, which is due by now."""
    driver = Driver(protocol).initialize().begin()
    machine = driver.machine
    if event == "settled":
        driver.do(machine.commit("caller", driver.now))
    driver.now += TIMEOUT
    match event:
        case "commit" | "prepare":
            driver.do(getattr(machine, event)("caller", driver.now))
        case "offsets":
            driver.do(machine.offsets("caller", "g", "offsets", driver.now))
        case "partition_wanted":
            driver.do(machine.partition_wanted(machine.serial, "t", 1, driver.now))
        case _:
            driver.settle()
    assert machine.state is S.ABORTABLE
    assert driver.request is None
    assert driver.has(FailRows)
    assert not driver.has(CommitOffsets)
    if event != "partition_wanted":
        assert driver.failed("caller") == (FailureKind.ABORTABLE, NOT)
        assert driver.failure("caller").timed_out


@BOTH
def test_a_transaction_without_a_write_does_not_time_out(protocol: int) -> None:
    driver = at(S.READY, protocol).begin(write=False)
    for _ in range(3):
        driver.wait()
        assert driver.machine.state is S.IN_TRANSACTION
    assert driver.now == 3 * TIMEOUT
    driver.machine.view.touch.set(driver.now - 1)
    driver.wait()
    assert (driver.machine.state, driver.now) == (S.ABORTABLE, 4 * TIMEOUT - 1)


@BOTH
@pytest.mark.parametrize("prepare", [True, False])
def test_commit_and_prepare_shut_admission_and_then_watch_the_rows(
    protocol: int, prepare: bool
) -> None:
    driver = at(S.IN_TRANSACTION, protocol)
    call = driver.machine.prepare if prepare else driver.machine.commit
    driver.do(call("caller", 1.0))
    assert driver.machine.state is S.FLUSHING
    assert [type(effect) for effect in driver.effects] == [ShutAdmission, WatchRows]
    assert driver.machine.view.is_open, "what was accepted is still sealed and written"


@BOTH
@pytest.mark.parametrize("state", [S.IN_TRANSACTION, S.ABORTABLE])
@pytest.mark.parametrize("close", [True, False])
def test_abort_and_close_fail_the_rows_and_drain_or_end(
    protocol: int, state: S, close: bool
) -> None:
    driver = at(state, protocol)
    if close:
        driver.do(driver.machine.close("caller", 1.0, 10.0))
    else:
        driver.do(driver.machine.abort("caller", 1.0))
    assert driver.machine.state is (S.DRAINING if protocol == TV1 else S.ENDING_ABORT)
    assert driver.has(DrainBatches) is (protocol == TV1)
    assert driver.has(SendEndTxn) is (protocol == TV2)
    assert driver.has(FailRows) is (state is S.IN_TRANSACTION), "once"
    driver.drain()
    assert driver.only(SendEndTxn) == SendEndTxn("orders", GIVEN, False, protocol)
    driver.end()
    assert driver.machine.state is S.READY
    assert (driver.answers["caller"].failure, driver.answers["caller"].outcome) == (None, NOT)
    assert driver.machine.producer == ProducerId(7, 0 if protocol == TV1 else 1)


# FLUSHING ---------------------------------------------------------------------------------------


@BOTH
def test_a_commit_ends_when_all_rows_are_settled_and_all_offsets_answered(protocol: int) -> None:
    driver = at(S.IN_TRANSACTION, protocol)
    number = driver.offsets(None)
    driver.do(driver.machine.commit("commit", 0.0))
    driver.settle()
    assert (driver.machine.state, driver.effects) == (S.FLUSHING, [])
    driver.offsets_answered(number)
    assert driver.machine.state is S.ENDING_COMMIT
    assert driver.only(SendEndTxn) == SendEndTxn("orders", GIVEN, True, protocol)


@BOTH
def test_a_transaction_without_a_write_is_not_ended(protocol: int) -> None:
    driver = at(S.READY, protocol).begin(write=False)
    driver.do(driver.machine.commit("commit", 0.0))
    driver.settle()
    assert (driver.machine.state, driver.request) == (S.READY, None)
    assert driver.answers["commit"].failure is None
    driver.begin(write=False)
    driver.abort()
    assert (driver.machine.state, driver.request) == (S.READY, None)
    assert driver.answers["abort"].failure is None
    assert driver.machine.producer == GIVEN


@BOTH
@pytest.mark.parametrize("empty", [True, False])
def test_a_prepared_transaction_is_left_to_others(protocol: int, empty: bool) -> None:
    driver = at(S.READY, protocol).begin(write=not empty)
    driver.do(driver.machine.prepare("prepare", 0.0))
    driver.settle()
    assert (driver.machine.state, driver.request) == (S.PREPARED, None)
    assert driver.answers["prepare"].prepared == Preparation("orders", GIVEN, protocol, empty)
    driver.do(driver.machine.init("again", 0.0))
    assert driver.only(SendInitProducerId).producer is None
    driver.answer()
    assert driver.machine.state is S.READY


def test_partitions_are_added_while_the_rows_are_flushed() -> None:
    driver = at(S.FLUSHING, TV1)
    driver.do(driver.machine.partition_wanted(1, "t", 1, 0.0))
    assert driver.has(SendAddPartitions)
    driver.settle()
    assert driver.machine.state is S.FLUSHING, "an Add is unanswered"
    driver.answer()
    assert driver.machine.state is S.ENDING_COMMIT


# ENDING_COMMIT ----------------------------------------------------------------------------------


@BOTH
def test_a_commit_is_over_when_it_is_confirmed(protocol: int) -> None:
    driver = at(S.ENDING_COMMIT, protocol)
    driver.end()
    assert driver.machine.state is S.READY
    assert (driver.answers["commit"].failure, driver.answers["commit"].outcome) == (None, COMMITTED)
    epoch = 0 if protocol == TV1 else 1
    assert driver.machine.view.producer == ProducerId(7, epoch)
    assert not driver.machine.view.is_open


#: Code, state, kind of error, and the outcome without and with an earlier unanswered EndTxn.
AFTER_COMMIT = [
    (48, S.ABORTABLE, FailureKind.ABORTABLE, NOT, NOT),
    (120, S.ABORTABLE, FailureKind.ABORTABLE, NOT, POSSIBLY),
    (59, S.ABORTABLE, FailureKind.ABORTABLE, NOT, POSSIBLY),
    (47, S.FATAL, FailureKind.FENCED, NOT, POSSIBLY),
    (90, S.FATAL, FailureKind.FENCED, NOT, POSSIBLY),
    (49, S.FATAL, FailureKind.FATAL, NOT, POSSIBLY),
    (53, S.FATAL, FailureKind.FATAL, NOT, POSSIBLY),
    (999, S.FATAL, FailureKind.FATAL, NOT, POSSIBLY),
]


@BOTH
@pytest.mark.parametrize("lost", ["", "unwritten", "written", "timed out"])
@pytest.mark.parametrize(("code", "state", "kind", "first", "again"), AFTER_COMMIT)
def test_what_is_known_after_a_commit_was_refused(
    protocol: int,
    lost: str,
    code: int,
    state: S,
    kind: FailureKind,
    first: CommitOutcome,
    again: CommitOutcome,
) -> None:
    driver = at(S.ENDING_COMMIT, protocol)
    if lost == "timed out":
        driver.answer(7)
        driver.wait()
    elif lost:
        driver.lose(written=lost == "written")
        driver.retry()
    driver.end(code)
    assert driver.machine.state is state
    outcome = again if lost in ("written", "timed out") else first
    assert driver.failed("commit") == (kind, outcome)


@BOTH
@pytest.mark.parametrize("code", [14, 15, 16, 51, 7, 13, -1])
def test_a_commit_is_repeated(protocol: int, code: int) -> None:
    driver = at(S.ENDING_COMMIT, protocol)
    driver.answer(code)
    assert driver.machine.state is S.ENDING_COMMIT
    driver.retry()
    driver.end()
    assert driver.answers["commit"].outcome is COMMITTED


# ABORTABLE, DRAINING, ENDING_ABORT --------------------------------------------------------------


def test_an_abort_waits_for_what_is_unanswered() -> None:
    """A transaction is not ended before the coordinator has answered a request that adds to it."""
    driver = at(S.IN_TRANSACTION, TV1)
    driver.do(driver.machine.partition_wanted(1, "t", 1, 0.0))
    driver.do(driver.machine.abort("abort", 0.0))
    driver.drain()
    assert driver.machine.state is S.DRAINING
    driver.answer(90)  # the abort decides, not this answer
    assert driver.machine.state is S.ENDING_ABORT
    driver.end()
    assert driver.machine.state is S.READY
    assert driver.machine.producer == GIVEN


def test_an_abort_after_a_lost_add_bumps_the_epoch() -> None:
    driver = at(S.READY, TV1).begin(write=False)
    driver.do(driver.machine.partition_wanted(1, "t", 1, 0.0))
    driver.abort()
    driver.lose(written=True)
    assert driver.machine.state is S.ENDING_ABORT
    driver.answer()
    driver.end()
    assert driver.only(SendInitProducerId).producer == GIVEN
    assert "abort" not in driver.answers
    driver.answer()
    assert driver.answers["abort"].failure is None


def test_an_abort_after_an_add_that_was_not_written_has_nothing_to_end() -> None:
    driver = at(S.READY, TV1).begin(write=False)
    driver.do(driver.machine.partition_wanted(1, "t", 1, 0.0))
    driver.abort()
    driver.lose(written=False)
    assert (driver.machine.state, driver.request) == (S.READY, None)


@pytest.mark.parametrize("state", [S.IN_TRANSACTION, S.ABORTABLE])
def test_an_abort_with_an_unconfirmed_batch_bumps_the_epoch(state: S) -> None:
    driver = at(state, TV1).abort(spent=True)
    driver.end()
    assert driver.machine.state is S.INITIALIZING
    assert driver.only(SendInitProducerId).producer == GIVEN
    driver.answer()
    assert (driver.machine.state, driver.machine.producer) == (S.READY, ProducerId(7, 1))


def test_an_abort_with_unanswered_offsets_gives_them_up() -> None:
    driver = at(S.IN_TRANSACTION, TV1)
    driver.offsets(None)
    driver.do(driver.machine.abort("abort", 0.0))
    assert driver.only(GiveUpOffsets).serial == 1
    driver.drain().end()
    assert driver.machine.state is S.INITIALIZING, "they may still arrive"


@pytest.mark.parametrize("code", [47, 90, 48])
def test_a_timeout_is_told_from_another_instance_by_a_new_epoch(code: int) -> None:
    driver = at(S.ENDING_ABORT, TV1)
    driver.end(code)
    assert driver.machine.state is S.INITIALIZING
    assert driver.only(SendInitProducerId).producer == GIVEN
    driver.answer()
    assert (driver.machine.state, driver.answers["abort"].failure) == (S.READY, None)
    driver = at(S.ENDING_ABORT, TV1)
    driver.end(code)
    driver.answer(90)
    assert driver.machine.state is S.FATAL
    assert driver.failed("abort") == (FailureKind.FENCED, NOT)


@pytest.mark.parametrize(
    ("code", "kind"), [(47, FailureKind.FENCED), (90, FailureKind.FENCED), (48, FailureKind.FATAL)]
)
def test_a_refused_abort_is_fatal(code: int, kind: FailureKind) -> None:
    driver = at(S.ENDING_ABORT, TV2)
    driver.end(code)
    assert driver.machine.state is S.FATAL
    assert driver.failed("abort") == (kind, NOT)


@BOTH
@pytest.mark.parametrize(("code", "most"), [(120, 1), (59, 1), (-1, 3)])
def test_an_abort_is_repeated_a_few_times(protocol: int, code: int, most: int) -> None:
    driver = at(S.ENDING_ABORT, protocol)
    for _ in range(most):
        driver.answer(code)
        driver.wait()
        assert isinstance(driver.request, SendEndTxn)
    driver.answer(code)
    assert driver.machine.state is S.FATAL


def test_what_a_fence_and_the_clock_say_together() -> None:
    driver = at(S.ENDING_COMMIT, TV1)
    driver.now = TIMEOUT + 1
    driver.end(90)
    failure = driver.failure("commit")
    assert (failure.kind, failure.timed_out) == (FailureKind.FENCED, True)


# All states -------------------------------------------------------------------------------------

#: The states of the machine, by their names in the table of all producers.
STATES: list[tuple[str, S]] = [
    ("new", S.UNINITIALIZED),
    ("initializing", S.INITIALIZING),
    ("ready", S.READY),
    ("open", S.IN_TRANSACTION),
    ("flushing", S.FLUSHING),
    ("committing", S.ENDING_COMMIT),
    ("aborting", S.DRAINING),
    ("aborting", S.ENDING_ABORT),
    ("failed", S.ABORTABLE),
    ("prepared", S.PREPARED),
    ("fenced", S.FATAL),
]
CALLS: dict[str, Callable[[Driver], object]] = {
    "init": lambda driver: driver.machine.init("x", driver.now),
    "begin": lambda driver: driver.machine.begin(driver.now),
    "offsets": lambda driver: driver.machine.offsets("x", "g", {}, driver.now),
    "commit": lambda driver: driver.machine.commit("x", driver.now),
    "prepare": lambda driver: driver.machine.prepare("x", driver.now),
    "abort": lambda driver: driver.machine.abort("x", driver.now),
}
KINDS = {
    "S": FailureKind.STATE,
    "C": FailureKind.CONFLICT,
    "A": FailureKind.ABORTABLE,
    "F": FailureKind.FATAL,
}


def reachable(protocol: int) -> list[S]:
    return [state for state in S if protocol == TV1 or state is not S.DRAINING]


@BOTH
@pytest.mark.parametrize(("name", "state"), STATES)
def test_each_call_in_each_state(protocol: int, name: str, state: S) -> None:
    if state not in reachable(protocol):
        return
    refusal = at(state, protocol).machine.refusal()  # of send()
    assert KINDS.get(TABLE[name]["send"]) is (None if refusal is None else refusal.kind)
    for call, make in CALLS.items():
        driver = at(state, protocol)
        before = contents(driver.machine)
        letter = TABLE[name][call]
        if letter in ".+":
            make(driver)
            continue
        failure = refused(functools.partial(make, driver))
        assert (failure.kind, failure.call) == (KINDS[letter], C(METHODS[call]))
        assert failure.other == (C(METHODS[UNDER_WAY[name]]) if letter == "C" else None)
        assert contents(driver.machine) == before, f"{call} has changed it"


#: Events that need a state, which the stage must not give in any other one.
EVENTS: dict[str, Callable[[Driver], object]] = {
    "FindCoordinator": lambda driver: driver.machine.coordinator_not_found(15, driver.now),
    "InitProducerId": lambda driver: driver.machine.answered(INIT, 0, 0.0, producer=GIVEN),
    "EndTxn": lambda driver: driver.machine.answered(END_TXN, 0, 0.0),
    "AddPartitionsToTxn": lambda driver: driver.machine.partitions_answered({}, 0.0),
    "AddOffsetsToTxn": lambda driver: driver.machine.answered(25, 0, 0.0),
    "drained": lambda driver: driver.machine.drained(driver.machine.serial, 0.0, spent=False),
}
FITTING_EVENTS: dict[str, set[S]] = {
    "FindCoordinator": {S.INITIALIZING},
    "InitProducerId": set(),
    "EndTxn": {S.ENDING_COMMIT, S.ENDING_ABORT},
    "AddPartitionsToTxn": set(),
    "AddOffsetsToTxn": set(),
    "drained": {S.DRAINING},
}


@BOTH
@pytest.mark.parametrize("event", EVENTS)
def test_an_event_that_does_not_fit_changes_nothing(protocol: int, event: str) -> None:
    for state in reachable(protocol):
        if state in FITTING_EVENTS[event]:
            continue
        driver = at(state, protocol)
        before = contents(driver.machine)
        with pytest.raises(IllegalTransactionMove):
            EVENTS[event](driver)
        assert contents(driver.machine) == before, f"changed in {state}"


def test_rows_are_not_settled_before_they_are_watched() -> None:
    driver = at(S.IN_TRANSACTION, TV2)
    before = contents(driver.machine)
    with pytest.raises(IllegalTransactionMove):
        driver.machine.all_settled(1, 0.0)
    assert contents(driver.machine) == before


@BOTH
def test_what_belongs_to_another_transaction_is_ignored(protocol: int) -> None:
    for state in reachable(protocol):
        driver = at(state, protocol)
        machine = driver.machine
        before = contents(machine)
        assert not machine.row_failed(99, "cause", 0.0)
        assert not machine.all_settled(99, 0.0)
        assert not machine.drained(99, 0.0, spent=True)
        assert not machine.offsets_answered(99, 1, DONE, 0.0)
        assert not machine.partition_wanted(99, "t", 5, 0.0)
        assert contents(machine) == before
