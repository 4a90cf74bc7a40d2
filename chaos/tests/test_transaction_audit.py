"""The audit of transactions finds each defect, and no false ones.

Every history and every log here is fabricated, and correct except for one defect of one kind.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chaos.audit import Status
from chaos.tests._world import World
from chaos.transactions import history
from chaos.transactions.audit import Marker, Stop, Window
from chaos.transactions.board import Board
from chaos.transactions.history import Reported
from chaos.transactions.skipped import Skipped, skipped_markers

#: What is changed in a world that is sound.
Change = Callable[[World], object]


def but(what: str, **values: Any) -> Change:
    """Change attributes of a transaction, or of an instance."""

    def change(world: World) -> None:
        for name, value in values.items():
            setattr(getattr(world, what), name, value)

    return change


def outcome(what: str, number: int, found: int) -> Change:
    return lambda world: getattr(world, what).outcomes.__setitem__(number, found)


def hide(what: str, *partitions: int) -> Change:
    return lambda world: world.hide(getattr(world, what), *partitions)


def show(*partitions: int) -> Change:
    return lambda world: world.show(world.aborted, *partitions)


def call(took: float) -> Change:
    """Make a call of the second instance at 120 s; its bound is 3 s."""
    return lambda world: world.call(took)


def swap(one: int, other: int) -> Change:
    def change(world: World) -> None:
        readable = world.logs[0].readable
        readable[one], readable[other] = readable[other], readable[one]

    return change


def stop(end: float, process: int = 0) -> dict[str, Any]:
    return {"stopped": [Stop(121.0, end, process)]}


def silent(*windows: tuple[float, float]) -> dict[str, Any]:
    return {"silent": [Window("EndTxn", *each) for each in windows]}


def _nothing(world: World) -> None:
    pass


def _first_protocol(world: World) -> None:
    """Its markers have the epoch of their transaction."""
    for log in world.logs.values():
        log.raw = [
            each._replace(epoch=each.epoch - 1) if isinstance(each, Marker) else each
            for each in log.raw
        ]


def _killed_while_sending(world: World) -> None:
    """The process has not written how many messages it sent."""
    world.killed.requested = None
    world.killed.partitions = []
    world.hide(world.killed, 0, 1)


def _in_doubt_and_hidden(world: World) -> None:
    world.last.reported = Reported.POSSIBLY_COMMITTED
    world.hide(world.last, 0, 1)


def _torn_in_a_partition(world: World) -> None:
    world.logs[0].readable.remove(world.find(0, world.killed)[1])


def _readable_twice(world: World) -> None:
    world.logs[1].readable.append(world.logs[1].readable[-1])


def _input_with_two_outputs(world: World) -> None:
    readable = world.logs[1].readable
    value = readable[-1].value._replace(source=history.Source(7, 0))
    readable[-1] = readable[-1]._replace(value=value)


def _sent_after_the_takeover(world: World) -> None:
    readable = world.logs[0].readable
    entry = world.find(0, world.killed)[0]
    readable[readable.index(entry)] = entry._replace(timestamp=100.1)


def _behind_the_marker(world: World) -> None:
    raw = world.logs[0].raw
    place = next(i for i, each in enumerate(raw) if isinstance(each, Marker))
    message, marker = raw[place - 1 : place + 1]
    raw[place - 1 : place + 1] = [
        marker._replace(offset=message.offset),
        message._replace(offset=marker.offset),
    ]
    world.committed.outcomes[2] = marker.offset


def _again_after_all_markers(world: World) -> None:
    """It has the epoch of its transaction, which is over."""
    raw = world.logs[0].raw
    raw.append(raw[0]._replace(offset=len(raw)))


def _append(world: World, **value: Any) -> None:
    """Write the last message again, with another epoch and another value."""
    raw = world.logs[0].raw
    raw.append(raw[-2]._replace(offset=len(raw), epoch=99, value=raw[-2].value._replace(**value)))
    raw[-3] = raw[-3]._replace(epoch=99)
    raw[-2] = raw[-2]._replace(producer_id=6)


POSSIBLY = but("last", reported=Reported.POSSIBLY_COMMITTED)
NO_GROUP: dict[str, Any] = {"group": False}

#: By name: the change, what else differs, and what is found.
CASES: dict[str, tuple[Change, dict[str, Any], dict[str, int]]] = {
    "a sound history": (_nothing, {}, {}),
    "killed while it committed, carried out or not": (hide("killed", 0, 1), NO_GROUP, {}),
    "killed while it sent": (_killed_while_sending, NO_GROUP, {}),
    "in doubt with a reason": (POSSIBLY, silent((111.5, 111.9)), {}),
    "in doubt, and not readable": (
        _in_doubt_and_hidden,
        silent((111.5, 111.9)) | NO_GROUP,
        {},
    ),
    "a call at the last moment": (call(4.0), {}, {}),
    "a call while its process was stopped": (call(9.0), stop(126.5), {}),
    "markers of the first protocol": (_first_protocol, {}, {}),
    # One defect of each kind.
    "torn": (hide("committed", 1), NO_GROUP, {"TORN": 1}),
    "torn, and not reported": (_torn_in_a_partition, NO_GROUP, {"TORN": 1}),
    "a lost commit": (hide("committed", 0, 1), NO_GROUP, {"LOST_COMMIT": 1}),
    "a ghost": (show(0, 1), {}, {"GHOST": 1}),
    "half a ghost": (show(1), {}, {"GHOST": 1}),
    "a ghost whose commit failed": (
        but("last", reported=Reported.NOT_COMMITTED),
        {},
        {"GHOST": 1},
    ),
    "a ghost without a commit": (but("killed", requested=None), {}, {"GHOST": 1}),
    "doubled": (_readable_twice, NO_GROUP, {"DOUBLED": 1}),
    "an input with two outputs": (_input_with_two_outputs, {"offsets": -1}, {"DOUBLED": 1}),
    "reordered in a transaction": (swap(0, 1), {}, {"REORDERED": 1}),
    "reordered between two": (swap(1, 2), {}, {"REORDERED": 1}),
    "reordered between instances": (swap(3, 4), {}, {"REORDERED": 1}),
    "committed after the takeover": (but("killed", requested_at=100.5), {}, {"ZOMBIE": 1}),
    "sent after the takeover": (_sent_after_the_takeover, {}, {"ZOMBIE": 1}),
    "a message behind its marker": (_behind_the_marker, {}, {"ZOMBIE": 1}),
    "all behind their marker": (_again_after_all_markers, {}, {"ZOMBIE": 1, "WRITTEN_TWICE": 1}),
    "hanging": (lambda world: setattr(world.logs[1], "stable", 3), {}, {"HANGING": 1}),
    "an offset too many": (_nothing, {"offsets": 1}, {"OFFSETS_APART": 1}),
    "two offsets too few": (_nothing, {"offsets": -2}, {"OFFSETS_APART": 2}),
    "offsets without outputs": (_nothing, {"more": {3: 2}}, {"OFFSETS_APART": 2}),
    "outputs without offsets": (_nothing, {"offsets": None}, {"OFFSETS_APART": 12}),
    "a stuck call": (call(4.1), {}, {"CALL_STUCK": 1}),
    "stuck although it was stopped": (call(9.0), stop(125.9), {"CALL_STUCK": 1}),
    "stuck while another was stopped": (call(9.0), stop(126.5, 7), {"CALL_STUCK": 1}),
    "unsure without a reason": (POSSIBLY, {}, {"UNSURE_TOO_OFTEN": 1}),
    "unsure, a reason before": (POSSIBLY, silent((100.0, 110.9)), {"UNSURE_TOO_OFTEN": 1}),
    "unsure, a reason after": (POSSIBLY, silent((112.1, 120.0)), {"UNSURE_TOO_OFTEN": 1}),
    "a client that is never sure": (POSSIBLY, {"has_status": False}, {}),
    "unreported": (but("last", reported=None), {}, {"UNREPORTED": 1}),
    "lost": (outcome("aborted", 1, 99), {}, {"LOST": 1}),
    "written twice": (_append, {}, {"WRITTEN_TWICE": 1}),
    "denied": (outcome("aborted", 2, history.NOT_WRITTEN), {}, {"DENIED": 1}),
    "denied by a client without a status": (
        outcome("aborted", 2, history.NOT_WRITTEN),
        {"has_status": False},
        {},
    ),
    "without outcome": (outcome("last", 0, history.NONE), {}, {"UNSETTLED": 1}),
    "two outcomes": (outcome("last", 0, history.TWICE), {}, {"SETTLED_TWICE": 1}),
    "late": (but("last", slowest=(110.0, 115.1)), {}, {"LATE": 1}),
    "late, but stopped": (but("last", slowest=(118.0, 123.1)), stop(122.0), {}),
    "no deadline": (but("last", slowest=(110.0, 115.1)), {"delivery_timeout": None}, {}),
    "a number never sent": (lambda world: _append(world, number=4), {}, {"FOREIGN": 1}),
    "never begun": (
        lambda world: _append(world, name=history.Name(2, 9)),
        {},
        {"FOREIGN": 1},
    ),
    "another partition's": (lambda world: _append(world, partition=1), {}, {"FOREIGN": 1}),
    "something is left": (
        but("second", threads_left=2, sockets_left=1),
        {},
        {"THREAD_LEFT": 2, "SOCKET_LEFT": 1},
    ),
}


@pytest.mark.parametrize(("change", "evidence", "expected"), CASES.values(), ids=CASES)
def test_what_is_found(change: Change, evidence: dict[str, Any], expected: dict[str, int]) -> None:
    world = World()
    change(world)
    assert world.found(**evidence) == expected


# Markers that brokers have skipped are not held against the client


def lost(partitions: set[int], at: float, **others: Any) -> Skipped:
    given = {"transactional_id": "id", "offsets": False, **others}
    return Skipped(partitions=frozenset(partitions), at=at, **given)


def test_a_transaction_without_its_markers_is_not_judged() -> None:
    world = World()
    world.show(world.aborted, 1)
    world.logs[1].stable = 1
    assert world.found() == {"GHOST": 1, "HANGING": 1}
    assert world.found(skipped=[lost({1}, 33.0)]) == {"BROKERS": 2}


def test_a_torn_or_lost_commit_without_its_markers_is_not_judged() -> None:
    world, skipped = World(), [lost({0, 1}, 23.0)]
    world.hide(world.committed, 0)
    assert world.found(skipped=skipped, group=False) == {"BROKERS": 1}
    # With what was computed from two inputs.
    assert world.found(skipped=skipped) == {"BROKERS": 1 + 2}
    world.hide(world.committed, 1)
    assert world.found(skipped=skipped, group=False) == {"BROKERS": 1}


@pytest.mark.parametrize(
    "skipped",
    [lost({1}, 33.0, transactional_id="another"), lost({1}, 29.0), lost({5}, 33.0), lost({1}, 130)],
)
def test_other_transactions_are_judged(skipped: Skipped) -> None:
    """Of another id, or begun later, elsewhere, or ended long before."""
    world = World()
    world.show(world.aborted, 1)
    assert world.found(skipped=[skipped]) == {"GHOST": 1}


def test_offsets_without_their_marker_are_not_judged() -> None:
    assert World().found(offsets=-1) == {"OFFSETS_APART": 1}
    assert World().found(offsets=-1, skipped=[lost(set(), 120.0, offsets=True)]) == {"BROKERS": 1}


_LINE = (
    "{time} [TxnMarkerSenderThread-0] INFO kafka.coordinator.transaction."
    "TransactionMarkerChannelManager - [Transaction Marker Channel Manager 0]: Couldn't find "
    "leader endpoint for partitions {places} while trying to send transaction markers for {id}, "
    "these partitions are likely deleted already and hence can be skipped\n"
)


def test_a_broker_says_which_markers_it_has_skipped(tmp_path: Path) -> None:
    now, wall = time.monotonic(), time.time()

    def stamp(seconds: float) -> str:
        moment = wall + seconds
        return time.strftime("%H:%M:%S", time.localtime(moment)) + f".{int(moment % 1 * 1000):03}"

    (tmp_path / "broker-0.log").write_text(
        "23:59:59.000 [main] INFO kafka.utils - nothing\n"
        + _LINE.format(time=stamp(2), places="Set(chaos-3)", id="chaos-0")
        + _LINE.format(time=stamp(4), places="HashSet(chaos-5, chaos-10, chaos-in-1)", id="other")
    )
    (tmp_path / "broker-1.log").write_text(
        _LINE.format(time=stamp(86_000), places="Set(__consumer_offsets-0)", id="chaos-0")
    )
    found = skipped_markers(sorted(tmp_path.glob("*.log")), "chaos", now)
    assert [each._replace(at=0.0) for each in found] == [
        ("chaos-0", {3}, False, 0.0),
        ("other", {5, 10}, True, 0.0),
        ("chaos-0", set(), True, 0.0),
    ]
    assert [each.at - now for each in found] == pytest.approx([2, 4, 86_000], abs=0.1)


# Communication between the processes


def test_the_journal_gives_back_what_was_written(tmp_path: Path) -> None:
    journals = [history.Journal(tmp_path, "id") for _ in range(2)]
    assert [journal.number for journal in journals] == [1, 2]
    journal = journals[1]
    journal.called(history.Call("init_transactions", 1.0, 0.5, 3.0, "SomeError"))
    journal.ready()
    journal.begun(1)
    messages = history.Messages(1)
    for partition in (3, 0, 5, 2, 2):
        messages.add(partition)
    messages.remove()
    assert not messages.complete
    for number, (status, offset) in (
        (0, (Status.PERSISTED, 7)),
        (1, (Status.PERSISTED, -1)),
        (2, (Status.NOT_PERSISTED, -1)),
        (2, (Status.PERSISTED, 8)),
        (3, (Status.POSSIBLY_PERSISTED, -1)),
    ):
        messages.settle(number, status, offset)
    assert messages.complete
    journal.requested(1, "commit", 4)
    journal.reported(1, Reported.POSSIBLY_COMMITTED)
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
    assert (first.requested, first.size) == ("commit", 4)
    assert first.reported is Reported.POSSIBLY_COMMITTED
    assert first.outcomes == [7, history.SOMEWHERE, history.TWICE, history.POSSIBLY]
    assert first.partitions == [3, 0, 5, 2]
    assert (second.requested, second.reported, second.outcomes) == (None, None, None)


@pytest.mark.parametrize("size", [1, 100])
@pytest.mark.parametrize("source", [None, history.Source(4, 12)])
def test_a_value_says_what_it_is(size: int, source: history.Source | None) -> None:
    value = history.Value(history.Name(3, 14), 159, 2, source)
    data = history.encode(value, size)
    assert history.decode(data) == value
    assert len(data) >= size


@pytest.mark.parametrize("data", [None, b"", b"1:2:3", b"1:2:3:4:5:", b"a:2:3:4:", b"1:2:3:4:x"])
def test_a_value_of_another_program(data: bytes | None) -> None:
    assert history.decode(data) is None


def test_the_board_is_shared(tmp_path: Path) -> None:
    one, other = Board(tmp_path / "board"), Board(tmp_path / "board")
    one.process, one.begun, one.progress = 77, 3, 12.5
    one.begun += 1
    assert (other.process, other.begun, other.committed, other.progress) == (77, 4, 0, 12.5)
    one.close()
    other.close()
