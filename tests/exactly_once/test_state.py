"""What does not fit: checkpoints, state and options."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from pykaproducer import TopicPartition
from pykaproducer._exactly_once import points, records
from pykaproducer._exactly_once.commit import BatchCommit
from pykaproducer._exactly_once.errors import (
    ExactlyOnceError,
    PartialCommitError,
    StateMismatchError,
)
from pykaproducer._exactly_once.names import Names
from pykaproducer._exactly_once.records import BatchKey, Decision, TaskToken
from pykaproducer._exactly_once.setup import OnPartialCommit, WriteKind
from pykaproducer._exactly_once.state import SinkState
from pykaproducer.transaction_control import CommittedOffset
from tests.exactly_once.helper import ROWS, Query, dies_at, four_tasks, three_tasks

MakeQuery = Callable[..., Query]


def rows(*batches: int) -> Counter[bytes]:
    return Counter(b"%d-%d" % (batch, row) for batch in batches for row in range(ROWS))


def test_a_checkpoint_that_is_older_than_kafka(query: MakeQuery) -> None:
    made = query()
    for batch in range(3):
        made.write(batch)
    with pytest.raises(StateMismatchError, match="batch 1 is to be written, but batch 2 has been"):
        made.task(1, four_tasks, 0)
    with pytest.raises(StateMismatchError, match="checkpoint is older"):
        made.commit(1, [])
    assert made.visible() == rows(0, 1, 2)


def test_state_that_is_gone(query: MakeQuery) -> None:
    made = query()
    with pytest.raises(
        StateMismatchError, match="batch 7 is to be written, and Kafka has no state"
    ):
        made.task(7, four_tasks, 0)
    made.write(0)
    with pytest.raises(StateMismatchError, match="has only that of batch 0"):
        made.task(2, four_tasks, 0)
    with made.twin(start_without_state=True) as trusting:
        trusting.write(7)
    made.write(8)
    assert made.visible() == rows(0, 7, 8)


def test_a_query_that_changes_its_topic(query: MakeQuery) -> None:
    before = query()
    before.write(0)
    prefix = before.setup.names.prefix
    with pytest.raises(StateMismatchError, match=f"set stateTopic to '{before.topic}'"):
        query(prefix=prefix).task(1, four_tasks, 0)
    trusting = query(prefix=prefix, start_without_state=True)
    trusting.write(1)
    assert trusting.visible() == rows(1)
    # One micro-batch to several topics.
    numbered = query(prefix=prefix, kind=WriteKind.NUMBERED)
    numbered.write(1)
    assert numbered.visible() == rows(1)


def test_a_program_in_foreach_batch_may_skip_batches(query: MakeQuery) -> None:
    made = query(kind=WriteKind.NUMBERED)
    made.write(3)
    made.write(7)
    made.write(7)
    assert made.visible() == rows(3, 7)


def test_single_writes_share_a_prefix(query: MakeQuery) -> None:
    made = query(kind=WriteKind.SINGLE, name="first")
    made.write(0)
    made.write(0)  # the same id
    with made.twin(name="second") as second:
        second.write(0)
    assert made.visible() == Counter(dict.fromkeys(rows(0), 2))


def test_an_empty_batch_is_decided(query: MakeQuery) -> None:
    made = query()
    made.commit(0, [])
    made.write(1)
    made.commit(2, [])
    made.write(3)
    assert made.visible() == rows(1, 3)


def test_a_decision_of_several_pieces(query: MakeQuery, monkeypatch: pytest.MonkeyPatch) -> None:
    """A decision that is longer than an offset's metadata, and than those of all partitions."""
    monkeypatch.setattr(records, "PIECE", 20)
    made = query(name="q")
    made.write(0)
    groups = [made.setup.names.decision(piece, 3)[0] for piece in (0, 3)]
    stored = made.control.offsets(groups, {made.topic: range(3)})
    assert [len(stored[group]) for group in groups] == [3, 1]
    with made.twin() as restarted:
        restarted.write(1)
    assert made.visible() == rows(0, 1)


def test_damaged_state_is_reported(query: MakeQuery) -> None:
    made = query()
    made.write(0)
    session = made.control.initialize(made.setup.names.driver, 10_000)
    group, place = made.setup.names.decision(0, 3)
    made.control.commit_offsets(session, {group: {place: CommittedOffset(1, -1, "not ours")}})
    made.control.complete(session, commit=True)
    with pytest.raises(StateMismatchError, match=r"group .*driver.* damaged"):
        made.task(1, four_tasks, 0)


@pytest.mark.parametrize("choice", [OnPartialCommit.DUPLICATE, OnPartialCommit.SKIP])
def test_what_to_do_about_a_partial_commit(
    query: MakeQuery, choice: OnPartialCommit, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = query()
    made.write(0)
    results = made.stage(1, four_tasks)
    with dies_at(made, "ended", 2, monkeypatch, killed=True):
        made.commit(1, results)
    with made.twin() as other:  # as if they had timed out
        other.control.fence([made.setup.names.task(task, 0) for task in (2, 3)])
    visible = made.visible()
    assert sum(visible.values()) == ROWS + ROWS // 2
    with made.twin(on_partial_commit=choice) as decided:
        decided.write(1, three_tasks)
        found = decided.visible()
        if choice is OnPartialCommit.SKIP:
            assert found == visible
        else:
            assert found == visible + rows(1)
        decided.write(2)
        assert decided.visible() == found + rows(2)
        assert decided.open_transactions() == []


def test_a_partial_commit_is_named(query: MakeQuery, monkeypatch: pytest.MonkeyPatch) -> None:
    made = query()
    results = made.stage(0, four_tasks)

    def reached(point: str, task: int = 0, attempt: int = 0) -> None:
        if point == "decided":
            with made.twin() as other:
                other.control.fence([made.setup.names.task(2, 0)])

    with monkeypatch.context() as patched:
        patched.setattr(points, "reached", reached)
        with pytest.raises(PartialCommitError, match=r"task 2 \(6 rows\) are missing"):
            made.commit(0, results)
    made.write(0)  # as the error says
    made.write(1)
    assert made.visible() == rows(0, 1)


def test_a_state_topic_that_does_not_exist_is_not_created(query: MakeQuery) -> None:
    made = query()
    names = replace(made.setup.names, state_topic=f"state-of-{made.topic}")
    made.setup = replace(made.setup, names=names, may_create_state_topic=False)
    for _ in range(2):
        with pytest.raises(ExactlyOnceError, match=r"option stateTopic: topic '.*' does not exist"):
            made.task(0, four_tasks, 0)
    assert made.visible() == Counter()
    made.setup = replace(made.setup, names=replace(names, state_topic=made.topic))
    made.write(0)
    assert made.visible() == rows(0)


def test_an_empty_first_batch_creates_the_topic(query: MakeQuery) -> None:
    made = query()
    names = replace(made.setup.names, state_topic=f"new-{made.topic}")
    made.setup = replace(made.setup, names=names)
    BatchCommit(made.setup, made.key(0), made.control, is_first=True).commit([])
    made.write(1)
    assert made.visible() == rows(1)


@pytest.mark.parametrize(
    ("name", "is_task"),
    [
        *[(f"shop.{end}", True) for end in ("0", "12.3")],
        *[(f"shop.{end}", False) for end in ("driver", "", "0.", "0.1.2", "daily.0", "1a")],
        *[(name, False) for name in ("shop", "0", "shopping.0")],
    ],
)
def test_an_id_of_a_task(name: str, is_task: bool) -> None:
    """Ids of other queries, and of other programs, are not aborted."""
    assert Names("shop", "orders").is_task(name) == is_task


def test_places_of_markers_beyond_the_partitions() -> None:
    names = Names("X", "t")
    assert names.marker(2, 3) == ("X.tasks", TopicPartition("t", 2))
    assert names.marker(7, 3) == ("X.tasks.2", TopicPartition("t", 1))
    assert names.decision(0, 0) == ("X.driver", TopicPartition("t", 0))
    assert (names.task(3, 0), names.task(3, 2)) == ("X.3", "X.3.2")


# Reads, of offsets that a test provides -----------------------------------------------------------

NAMES = Names("X", "t")


class Stored:
    """The committed offsets that each call of ``TransactionControl.offsets()`` finds, in order."""

    def __init__(self, *calls: Mapping[tuple[str, TopicPartition], str]) -> None:
        self._calls = iter(calls)

    def offsets(
        self,
        groups: Iterable[str],
        topics: Mapping[str, Iterable[int]],
        stable: bool,
        *,
        timeout: float,
    ) -> dict[str, dict[TopicPartition, CommittedOffset]]:
        found = next(self._calls)
        return {
            group: {
                place: CommittedOffset(1, -1, found[group, place])
                for place in (TopicPartition("t", each) for each in topics["t"])
                if (group, place) in found
            }
            for group in groups
        }


def state_of(*calls: Mapping[tuple[str, TopicPartition], str]) -> SinkState:
    control: Any = Stored(*calls)
    return SinkState(control, NAMES, 1)


def decision_of(batch: int) -> Decision:
    """Return a decision of two pieces."""
    tokens = tuple(TaskToken(task, 0, 10**12 + batch, 5, 2) for task in range(500))
    return Decision(BatchKey("q", batch), 3, 500, 500, 0, 100, 0, tokens)


def stored(decision: Decision) -> dict[tuple[str, TopicPartition], str]:
    pieces = decision.pieces()
    assert len(pieces) == 2
    return {NAMES.decision(piece, 3): text for piece, text in enumerate(pieces)}


def test_a_decision_that_is_replaced_while_it_is_read() -> None:
    old, new = decision_of(1), decision_of(2)
    state = state_of(stored(old), stored(new), stored(new), stored(new))
    assert state.decision() == new


def test_a_decision_that_is_damaged() -> None:
    mixed = {**stored(decision_of(1)), NAMES.decision(1, 3): "AAAA"}
    with pytest.raises(
        StateMismatchError, match=r"group 'X\.driver': the decision is damaged\. If another program"
    ):
        state_of(*[mixed] * 10).decision()


def test_a_decision_of_a_newer_version(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as newer:
        newer.setattr(records, "_VERSION", 2)
        found = stored(decision_of(1))
    with pytest.raises(StateMismatchError, match="the decision has version 2; update pykaproducer"):
        state_of(*[found] * 10).decision()


def test_a_marker_that_is_damaged() -> None:
    with pytest.raises(
        StateMismatchError, match=r"group 'X\.tasks': the marker 'not ours' is damaged\. If another"
    ):
        state_of({NAMES.marker(1, 3): "not ours"}).markers([0, 1], 3)
