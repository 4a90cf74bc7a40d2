"""The audit of ``chaos --transactions`` finds each defect, and no false ones.

Every history and every log here is fabricated, and correct except for one defect of one kind.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos._world import World

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _benchmarks_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the suite importable from the tree; an installed pykaproducer takes precedence."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT)])


@pytest.fixture
def world() -> Iterator[World]:
    return World()


# Correct histories


def test_a_sound_history_has_no_finding(world: World) -> None:
    assert world.found() == {}


def test_a_commit_of_a_process_that_was_killed_may_have_been_carried_out_or_not(
    world: World,
) -> None:
    world.hide(world.killed, 0, 1)
    assert world.found(group=False) == {}


def test_a_commit_whose_answer_was_lost_may_have_been_carried_out_or_not(world: World) -> None:
    world.last.reported = world.reported.POSSIBLY_COMMITTED
    silent = [world.audit.Window("EndTxn", 111.5, 111.9)]
    assert world.found(silent=silent) == {}
    world.hide(world.last, 0, 1)
    assert world.found(silent=silent, group=False) == {}


def test_a_process_that_was_killed_has_not_written_how_many_messages_it_sent(
    world: World,
) -> None:
    world.killed.requested = None
    world.killed.partitions = []
    world.hide(world.killed, 0, 1)
    assert world.found(group=False) == {}


def test_a_call_at_the_last_moment_and_one_while_the_process_was_stopped(world: World) -> None:
    world.call(4.0)
    assert world.found() == {}
    world.call(9.0)
    assert world.found(stopped=[world.audit.Stop(121.0, 126.5, 0)]) == {}


def test_the_markers_of_the_first_protocol_have_the_epoch_of_their_transaction(
    world: World,
) -> None:
    for log in world.logs.values():
        log.raw = [
            each._replace(epoch=each.epoch - 1) if isinstance(each, world.audit.Marker) else each
            for each in log.raw
        ]
    assert world.found() == {}


# One defect of each kind


def test_torn(world: World) -> None:
    world.hide(world.committed, 1)
    assert world.found(group=False) == {"TORN": 1}


def test_torn_though_nobody_was_told(world: World) -> None:
    world.logs[0].readable.remove(world.find(0, world.killed)[1])
    assert world.found(group=False) == {"TORN": 1}


def test_a_lost_commit(world: World) -> None:
    world.hide(world.committed, 0, 1)
    assert world.found(group=False) == {"LOST_COMMIT": 1}


@pytest.mark.parametrize("partitions", [(0, 1), (1,)])
def test_a_ghost(world: World, partitions: tuple[int, ...]) -> None:
    world.show(world.aborted, *partitions)
    assert world.found() == {"GHOST": 1}


def test_a_ghost_that_failed_to_commit(world: World) -> None:
    world.last.reported = world.reported.NOT_COMMITTED
    assert world.found() == {"GHOST": 1}


def test_a_ghost_that_nobody_committed(world: World) -> None:
    world.killed.requested = None
    assert world.found() == {"GHOST": 1}


def test_doubled(world: World) -> None:
    log = world.logs[1]
    log.readable.append(log.readable[-1])
    assert world.found(group=False) == {"DOUBLED": 1}


def test_an_input_with_two_outputs(world: World) -> None:
    log = world.logs[1]
    entry = log.readable[-1]
    source = world.history.Source(7, 0)
    log.readable[-1] = entry._replace(value=entry.value._replace(source=source))
    assert world.found(offsets={7: world.inputs - 1}) == {"DOUBLED": 1}


@pytest.mark.parametrize(("one", "other"), [(0, 1), (1, 2), (3, 4)])
def test_reordered(world: World, one: int, other: int) -> None:
    """In a transaction, between two, and between two instances."""
    readable = world.logs[0].readable
    readable[one], readable[other] = readable[other], readable[one]
    assert set(world.found()) == {"REORDERED"}


def test_a_zombie_that_commits_after_its_successor_has_taken_over(world: World) -> None:
    world.killed.requested_at = 100.5
    assert world.found() == {"ZOMBIE": 1}


def test_a_zombie_whose_message_was_sent_after_its_successor_had_taken_over(world: World) -> None:
    log = world.logs[0]
    (entry, _) = world.find(0, world.killed)
    log.readable[log.readable.index(entry)] = entry._replace(timestamp=100.1)
    assert world.found() == {"ZOMBIE": 1}


def test_a_message_behind_the_marker_of_its_transaction(world: World) -> None:
    raw = world.logs[0].raw
    place = next(i for i, each in enumerate(raw) if isinstance(each, world.audit.Marker))
    message, marker = raw[place - 1 : place + 1]
    raw[place - 1 : place + 1] = [
        marker._replace(offset=message.offset),
        message._replace(offset=marker.offset),
    ]
    world.committed.outcomes[2] = marker.offset
    assert world.found() == {"ZOMBIE": 1}


def test_all_messages_behind_the_marker_of_their_transaction(world: World) -> None:
    """They have its epoch, which is over."""
    raw = world.logs[0].raw
    raw.append(raw[0]._replace(offset=len(raw), value=None))
    assert world.found() == {"FOREIGN": 1}
    entry = raw.pop()
    value = raw[0].value
    raw.append(entry._replace(value=value))
    assert world.found() == {"ZOMBIE": 1, "WRITTEN_TWICE": 1}


def test_hanging(world: World) -> None:
    world.logs[1].stable = 3
    assert world.found() == {"HANGING": 1}


@pytest.mark.parametrize(("step", "count"), [(1, 1), (-2, 2)])
def test_offsets_apart(world: World, step: int, count: int) -> None:
    assert world.found(offsets={7: world.inputs + step}) == {"OFFSETS_APART": count}


def test_offsets_without_any_output(world: World) -> None:
    assert world.found(offsets={7: world.inputs, 3: 2}) == {"OFFSETS_APART": 2}


def test_outputs_whose_offsets_were_not_committed(world: World) -> None:
    assert world.found(offsets={}) == {"OFFSETS_APART": world.inputs}


def test_a_stuck_call(world: World) -> None:
    world.call(4.1)
    assert world.found() == {"CALL_STUCK": 1}


def test_a_call_that_is_stuck_although_the_process_was_stopped(world: World) -> None:
    world.call(9.0)
    assert world.found(stopped=[world.audit.Stop(121.0, 125.9, 0)]) == {"CALL_STUCK": 1}


def test_a_call_that_is_stuck_while_another_process_was_stopped(world: World) -> None:
    world.call(9.0)
    assert world.found(stopped=[world.audit.Stop(121.0, 126.5, 7)]) == {"CALL_STUCK": 1}


@pytest.mark.parametrize("silent", [[], [(100.0, 110.9)], [(112.1, 120.0)]])
def test_unsure_without_a_reason(world: World, silent: list[tuple[float, float]]) -> None:
    world.last.reported = world.reported.POSSIBLY_COMMITTED
    windows = [world.audit.Window("EndTxn", *each) for each in silent]
    assert world.found(silent=windows) == {"UNSURE_TOO_OFTEN": 1}


def test_a_client_that_is_never_sure_is_not_judged_by_that(world: World) -> None:
    world.last.reported = world.reported.POSSIBLY_COMMITTED
    assert world.found(has_status=False) == {}


def test_a_call_that_does_not_tell(world: World) -> None:
    world.last.reported = None
    assert world.found() == {"UNREPORTED": 1}


def test_lost(world: World) -> None:
    world.aborted.outcomes[1] += 7
    assert world.found() == {"LOST": 1}


def test_written_twice(world: World) -> None:
    raw = world.logs[0].raw
    raw.append(raw[-2]._replace(offset=len(raw), epoch=99))
    raw[-3] = raw[-3]._replace(epoch=99)
    raw[-2] = raw[-2]._replace(producer_id=6)
    assert world.found() == {"WRITTEN_TWICE": 1}


def test_denied(world: World) -> None:
    world.aborted.outcomes[2] = world.history.NOT_WRITTEN
    assert world.found() == {"DENIED": 1}
    assert world.found(has_status=False) == {}


def test_without_outcome(world: World) -> None:
    world.last.outcomes[0] = world.history.NONE
    assert world.found() == {"UNSETTLED": 1}


def test_with_two_outcomes(world: World) -> None:
    world.last.outcomes[0] = world.history.TWICE
    assert world.found() == {"SETTLED_TWICE": 1}


def test_late(world: World) -> None:
    world.last.slowest = (110.0, 115.1)
    assert world.found() == {"LATE": 1}
    assert world.found(stopped=[world.audit.Stop(110.0, 111.0, 0)]) == {}
    assert world.found(delivery_timeout=None) == {}


@pytest.mark.parametrize("change", ["number", "serial", "partition"])
def test_a_message_that_nobody_sent(world: World, change: str) -> None:
    raw = world.logs[0].raw
    value = raw[-2].value
    name = value.name
    raw.append(
        raw[-2]._replace(
            offset=len(raw),
            epoch=99,
            value={
                "number": value._replace(number=4),
                "serial": value._replace(name=name._replace(serial=9)),
                "partition": value._replace(partition=1),
            }[change],
        )
    )
    raw[-3] = raw[-3]._replace(epoch=99)
    raw[-2] = raw[-2]._replace(producer_id=6)
    assert world.found() == {"FOREIGN": 1}


def test_something_is_left(world: World) -> None:
    world.second.threads_left, world.second.sockets_left = 2, 1
    assert world.found() == {"THREAD_LEFT": 2, "SOCKET_LEFT": 1}


# Communication between the processes


def test_the_journal_gives_back_what_was_written(world: World, tmp_path: Path) -> None:
    history = world.history
    journals = [history.Journal(tmp_path, "id") for _ in range(2)]
    assert [journal.number for journal in journals] == [1, 2]
    journal = journals[1]
    journal.called(history.Call("init_transactions", 1.0, 0.5, 3.0, "SomeError"))
    journal.ready()
    journal.begun(1)
    messages = history.Messages(1)
    status = importlib.import_module("benchmarks.chaos.audit").Status
    for partition in (3, 0, 5, 2, 2):
        messages.add(partition)
    messages.remove()
    assert not messages.complete
    for number, outcome in enumerate(
        [(status.PERSISTED, 7), (status.PERSISTED, -1), (status.NOT_PERSISTED, -1)]
    ):
        messages.settle(number, *outcome)
    messages.settle(2, status.PERSISTED, 8)
    messages.settle(3, status.POSSIBLY_PERSISTED, -1)
    assert messages.complete
    journal.requested(1, "commit", 4)
    journal.reported(1, history.Reported.POSSIBLY_COMMITTED)
    journal.outcomes(messages)
    journal.begun(2)
    journal.note("fenced")
    journal.closed(1, 2)
    for each in journals:
        each.close()
    with (tmp_path / "instance-000002").open("a") as file:
        file.write('["begun", 3')  # the process was killed
    empty, found = history.instances(tmp_path)
    assert (empty.number, empty.ready_at, empty.transactions) == (1, None, {})
    assert (found.number, found.transactional_id, found.notes) == (2, "id", ["fenced"])
    assert found.calls == [("init_transactions", 1.0, 0.5, 3.0, "SomeError")]
    assert (found.threads_left, found.sockets_left) == (1, 2)
    assert found.ready_at <= found.closed_at
    first, second = found.transactions.values()
    assert (first.requested, first.size, first.reported) == (
        "commit",
        4,
        history.Reported.POSSIBLY_COMMITTED,
    )
    assert first.outcomes == [7, history.SOMEWHERE, history.TWICE, history.POSSIBLY]
    assert first.partitions == [3, 0, 5, 2]
    assert (second.requested, second.reported, second.outcomes) == (None, None, None)


@pytest.mark.parametrize("size", [1, 100])
@pytest.mark.parametrize("source", [None, (4, 12)])
def test_a_value_says_what_it_is(world: World, size: int, source: tuple[int, int] | None) -> None:
    history = world.history
    given = None if source is None else history.Source(*source)
    value = history.Value(history.Name(3, 14), 159, 2, given)
    data = history.encode(value, size)
    assert history.decode(data) == value
    assert len(data) >= size


@pytest.mark.parametrize("data", [None, b"", b"1:2:3", b"1:2:3:4:5:", b"a:2:3:4:", b"1:2:3:4:x"])
def test_a_value_of_somebody_else(world: World, data: bytes | None) -> None:
    assert world.history.decode(data) is None


def test_the_board_is_shared(tmp_path: Path) -> None:
    board = importlib.import_module("benchmarks.chaos.transactions.board")
    one, other = board.Board(tmp_path / "board"), board.Board(tmp_path / "board")
    one.process, one.begun, one.progress = 77, 3, 12.5
    one.begun += 1
    assert (other.process, other.begun, other.committed, other.progress) == (77, 4, 0, 12.5)
    one.close()
    other.close()
