"""The offsets of one group, in the order in which they were given."""

from __future__ import annotations

import pytest

from pykaproducer._machines.coordination import TV2, Reaction
from pykaproducer._machines.group_offsets import (
    GroupEffect,
    GroupOffsets,
    LeaveGroup,
    ReportOffsets,
    SendFindGroup,
    SendTxnOffsetCommit,
)
from pykaproducer._machines.sequencing import ProducerId
from pykaproducer._machines.transaction_effects import CommitOffsets
from pykaproducer._machines.transaction_states import IllegalTransactionMove


def ask(number: int, serial: int = 1, deadline: float = 30.0, group: str = "g") -> CommitOffsets:
    return CommitOffsets(serial, number, "orders", group, {}, ProducerId(7, 0), TV2, deadline)


def group() -> GroupOffsets:
    return GroupOffsets("g", backoff_first=0.1, backoff_most=1.0, random=lambda: 0.5)


def connected() -> GroupOffsets:
    found = group()
    found.coordinator_found(0.0)
    return found


def reports(effects: list[GroupEffect]) -> list[tuple[int, Reaction]]:
    return [(e.number, e.found.reaction) for e in effects if isinstance(e, ReportOffsets)]


def test_the_coordinator_is_found_first() -> None:
    machine = group()
    assert machine.commit(ask(1), 0.0) == [SendFindGroup("g")]
    assert machine.coordinator_found(0.0) == [SendTxnOffsetCommit(ask(1))]
    assert reports(machine.answered([0, 0], 0.0)) == [(1, Reaction.DONE)]
    assert machine.is_idle


def test_one_request_is_under_way_at_a_time() -> None:
    machine = connected()
    machine.commit(ask(1), 0.0)
    assert machine.commit(ask(2), 0.0) == []
    effects = machine.answered([0], 0.0)
    assert reports(effects) == [(1, Reaction.DONE)]
    assert effects[-1] == SendTxnOffsetCommit(ask(2))


@pytest.mark.parametrize("code", [7, 13, 14, 15, 16, 51, 3])
def test_a_temporary_error_is_not_reported(code: int) -> None:
    machine = connected()
    machine.commit(ask(1), 0.0)
    effects, now = machine.answered([0, code], 0.0), 0.0
    assert not reports(effects)
    if not effects:
        due = machine.next_due()
        assert due is not None
        effects, now = machine.time_passed(due), due
        assert machine.next_due() is None
    if effects == [SendFindGroup("g")]:
        assert code in (7, 15, 16)
        effects = machine.coordinator_found(now)
    assert effects == [SendTxnOffsetCommit(ask(1))]


def test_a_request_whose_connection_was_lost_is_sent_again() -> None:
    machine = connected()
    machine.commit(ask(1), 0.0)
    assert machine.connection_lost(0.0) == [SendFindGroup("g")]
    assert machine.coordinator_found(0.0) == [SendTxnOffsetCommit(ask(1))]
    assert machine.connection_lost(0.0) == []
    assert machine.next_due() == pytest.approx(0.1), "with backoff from the second time on"


def test_an_unused_connection_may_be_lost() -> None:
    machine = connected()
    assert machine.connection_lost(0.0) == []
    assert machine.commit(ask(1), 0.0) == [SendFindGroup("g")]
    assert machine.connection_lost(0.0) == [], "another one is being made"
    assert machine.coordinator_not_found(None, 0.0) == []
    assert machine.next_due() == pytest.approx(0.1)


@pytest.mark.parametrize(("code", "reaction"), [(22, Reaction.ABORTABLE), (90, Reaction.FATAL)])
def test_a_final_error_is_reported(code: int, reaction: Reaction) -> None:
    machine = connected()
    machine.commit(ask(1), 0.0)
    machine.commit(ask(2), 0.0)
    effects = machine.answered([0, code], 0.0)
    assert reports(effects) == [(1, reaction)]


def test_an_unknown_partition_is_waited_for_until_the_deadline() -> None:
    machine = connected()
    machine.commit(ask(1, deadline=1.0), 0.0)
    assert machine.answered([3], 0.99) == []
    machine.time_passed(1.2)
    assert reports(machine.answered([3], 1.2)) == [(1, Reaction.ABORTABLE)]


def test_a_refused_group_is_the_result_of_all_its_offsets() -> None:
    machine = group()
    machine.commit(ask(1), 0.0)
    machine.commit(ask(2), 0.0)
    effects = machine.coordinator_not_found(30, 0.0)
    assert reports(effects) == [(1, Reaction.ABORTABLE), (2, Reaction.ABORTABLE)]
    assert machine.is_idle


def test_offsets_given_up_are_not_reported_and_not_sent() -> None:
    machine = connected()
    machine.commit(ask(1), 0.0)
    machine.commit(ask(2), 0.0)
    assert machine.give_up(1, 0.0) == []
    assert not machine.is_idle, "the answer is waited for"
    assert machine.commit(ask(1, serial=2), 0.0) == []
    assert machine.answered([22], 0.0) == [SendTxnOffsetCommit(ask(1, serial=2))]
    assert reports(machine.answered([0], 0.0)) == [(1, Reaction.DONE)]


def test_an_answer_that_was_not_asked_for_changes_nothing() -> None:
    machine = group()
    machine.commit(ask(1), 0.0)
    with pytest.raises(IllegalTransactionMove):
        machine.answered([0], 0.0)
    assert machine.coordinator_found(0.0) == [SendTxnOffsetCommit(ask(1))]
    with pytest.raises(IllegalTransactionMove):
        machine.coordinator_not_found(15, 0.0)
    assert reports(machine.answered([0], 0.0)) == [(1, Reaction.DONE)]


def test_groups_take_turns() -> None:
    machine, other = connected(), ask(2, group="h")
    machine.commit(ask(1), 0.0)
    assert machine.commit(other, 0.0) == []
    effects = machine.answered([0], 0.0)
    assert reports(effects) == [(1, Reaction.DONE)]
    assert effects[-1] == SendFindGroup("h")
    assert machine.coordinator_found(0.0) == [SendTxnOffsetCommit(other)]
    (report,) = machine.answered([22], 0.0)
    assert isinstance(report, ReportOffsets)
    assert report.found.group == "h"


def test_a_group_without_a_coordinator_fails_alone() -> None:
    machine = group()
    machine.commit(ask(1), 0.0)
    machine.commit(ask(2, group="h"), 0.0)
    effects = machine.coordinator_not_found(30, 0.0)
    assert reports(effects) == [(1, Reaction.ABORTABLE)]
    assert effects[-1] == SendFindGroup("h")


@pytest.mark.parametrize("found", [False, True])
def test_a_request_that_was_given_up_does_not_hold_up_another_group(found: bool) -> None:
    """Its broker may be silent, or not be reachable, for half a minute."""
    machine = connected() if found else group()
    machine.commit(ask(1), 0.0)
    assert machine.give_up(1, 0.0) == []
    other = ask(1, 2, group="h")
    assert machine.commit(other, 0.0) == [LeaveGroup(), SendFindGroup("h")]
    assert machine.coordinator_found(0.0) == [SendTxnOffsetCommit(other)]
