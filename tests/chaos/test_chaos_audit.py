"""The audit of ``python -m benchmarks chaos`` finds each defect, and no false ones.

Every log here is fabricated, and correct except for one defect of one kind.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

#: Seconds.
DELIVERY_TIMEOUT = 8.0


@pytest.fixture(autouse=True)
def _benchmarks_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the suite importable from the tree; an installed pykaproducer takes precedence."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT)])


class World:
    """Two partitions with four messages each: all delivered except the last, which failed."""

    def __init__(self) -> None:
        self.audit = importlib.import_module("benchmarks.chaos.audit")
        status = self.audit.Status
        self.delivered, self.possibly, self.not_written = (
            status.PERSISTED,
            status.POSSIBLY_PERSISTED,
            status.NOT_PERSISTED,
        )
        #: Outcomes by partition and number: (status, offset, seconds after send()).
        self.outcomes: dict[tuple[int, int], list[tuple[Any, int, float]]] = {}
        #: Partition and number of each record, by partition, in the order of the offsets.
        self.logs: dict[int, list[tuple[int, int]]] = {0: [], 1: []}
        for partition in self.logs:
            for number in range(3):
                self.outcomes[partition, number] = [(self.delivered, number, 0.1)]
                self.logs[partition].append((partition, number))
            self.outcomes[partition, 3] = [(self.not_written, -1, DELIVERY_TIMEOUT + 0.05)]

    def found(self) -> dict[str, int]:
        messages = [
            self.audit.Message(*name, tuple(self.audit.Outcome(*each) for each in told))
            for name, told in self.outcomes.items()
        ]
        logs = {
            partition: [self.audit.Record(offset, *name) for offset, name in enumerate(records)]
            for partition, records in self.logs.items()
        }
        findings = self.audit.audit(messages, logs, DELIVERY_TIMEOUT)
        for defect, examples in findings.examples.items():
            assert 0 < len(examples) <= min(5, findings.counts[defect])
        return {defect.name: count for defect, count in findings.counts.items()}


@pytest.fixture
def world() -> Iterator[World]:
    return World()


# Correct logs


def test_a_sound_log_has_no_finding(world: World) -> None:
    assert world.found() == {}


def test_nothing_sent_and_nothing_in_the_log(world: World) -> None:
    world.outcomes.clear()
    world.logs = {0: [], 1: []}
    assert world.found() == {}


def test_what_is_possibly_written_may_be_in_the_log_or_not(world: World) -> None:
    world.outcomes[0, 3] = world.outcomes[1, 3] = [(world.possibly, -1, 8.0)]
    world.logs[0].append((0, 3))
    assert world.found() == {}


def test_a_broker_need_not_say_where_a_message_is(world: World) -> None:
    world.outcomes[0, 1] = [(world.delivered, -1, 0.1)]
    assert world.found() == {}


def test_a_message_that_was_not_delivered_has_no_place_to_keep(world: World) -> None:
    """A batch that reached the broker after its deadline is stored after later messages."""
    world.outcomes[0, 0] = [(world.possibly, -1, 8.0)]
    world.outcomes[0, 1] = [(world.delivered, 0, 0.1)]
    world.outcomes[0, 2] = [(world.delivered, 1, 0.1)]
    world.logs[0] = [(0, 1), (0, 2), (0, 0)]
    assert world.found() == {}


def test_an_outcome_at_the_last_moment_is_not_late(world: World) -> None:
    world.outcomes[0, 3] = [(world.not_written, -1, DELIVERY_TIMEOUT + 1.0)]
    assert world.found() == {}


# One defect of each kind


def test_lost_at_the_end(world: World) -> None:
    del world.logs[0][2]
    assert world.found() == {"LOST": 1}


def test_lost_in_the_middle(world: World) -> None:
    """Its offset is in the log, but it belongs to another message."""
    world.outcomes[0, 1] = [(world.delivered, 0, 0.1)]
    del world.logs[0][1]
    world.outcomes[0, 2] = [(world.delivered, 1, 0.1)]
    assert world.found() == {"LOST": 1}


def test_reported_at_an_offset_where_it_does_not_stand(world: World) -> None:
    world.outcomes[1, 2] = [(world.delivered, 7, 0.1)]
    assert world.found() == {"LOST": 1}


def test_lost_without_an_offset(world: World) -> None:
    world.outcomes[0, 2] = [(world.delivered, -1, 0.1)]
    del world.logs[0][2]
    assert world.found() == {"LOST": 1}


def test_doubled(world: World) -> None:
    world.logs[1].append((1, 2))
    assert world.found() == {"DOUBLED": 1}


def test_each_surplus_copy_counts(world: World) -> None:
    world.logs[1] += [(1, 2), (1, 1), (1, 2)]
    assert world.found() == {"DOUBLED": 3}


def test_doubled_though_it_was_not_delivered(world: World) -> None:
    world.outcomes[0, 3] = [(world.possibly, -1, 8.0)]
    world.logs[0] += [(0, 3), (0, 3)]
    assert world.found() == {"DOUBLED": 1}


def test_reordered(world: World) -> None:
    world.logs[0] = [(0, 0), (0, 2), (0, 1)]
    world.outcomes[0, 1] = [(world.delivered, 2, 0.1)]
    world.outcomes[0, 2] = [(world.delivered, 1, 0.1)]
    assert world.found() == {"REORDERED": 1}


def test_reordered_though_a_copy_stands_in_the_right_place(world: World) -> None:
    """Readers see the first copy first, so its position counts."""
    world.logs[0] = [(0, 0), (0, 2), (0, 1), (0, 2)]
    world.outcomes[0, 1] = [(world.delivered, 2, 0.1)]
    world.outcomes[0, 2] = [(world.delivered, 3, 0.1)]
    assert world.found() == {"REORDERED": 1, "DOUBLED": 1}


def test_partitions_have_no_order_between_them(world: World) -> None:
    world.logs = {1: world.logs[1], 0: world.logs[0]}
    assert world.found() == {}


def test_reported_not_written_and_yet_in_the_log(world: World) -> None:
    world.logs[1].append((1, 3))
    assert world.found() == {"DENIED": 1}


def test_without_outcome(world: World) -> None:
    world.outcomes[0, 3] = []
    assert world.found() == {"UNSETTLED": 1}


@pytest.mark.parametrize("second", ["delivered", "possibly", "not_written"])
def test_with_two_outcomes(world: World, second: str) -> None:
    world.outcomes[0, 3].append((getattr(world, second), -1, 8.1))
    if second == "delivered":
        world.logs[0].append((0, 3))
        assert world.found() == {"SETTLED_TWICE": 1, "DENIED": 1}
    else:
        assert world.found() == {"SETTLED_TWICE": 1}


def test_delivered_twice(world: World) -> None:
    world.outcomes[0, 1] *= 2
    assert world.found() == {"SETTLED_TWICE": 1}


@pytest.mark.parametrize("status", ["delivered", "not_written"])
def test_late(world: World, status: str) -> None:
    last = 2 if status == "delivered" else 3
    offset = 2 if status == "delivered" else -1
    world.outcomes[1, last] = [(getattr(world, status), offset, DELIVERY_TIMEOUT + 1.01)]
    assert world.found() == {"LATE": 1}


def test_a_message_that_nobody_sent(world: World) -> None:
    world.logs[0].append((0, 4))
    assert world.found() == {"FOREIGN": 1}


def test_a_record_that_is_no_message_of_ours(world: World) -> None:
    world.logs[0].append((-1, -1))
    assert world.found() == {"FOREIGN": 1}


def test_a_message_in_the_wrong_partition(world: World) -> None:
    world.outcomes[0, 3] = [(world.possibly, -1, 8.0)]
    world.logs[1].append((0, 3))
    assert world.found() == {"FOREIGN": 1}


def test_findings_of_several_acts_add_up(world: World) -> None:
    defect = world.audit.Defect
    first, second = world.audit.Findings(), world.audit.Findings()
    for number in range(4):
        first.add(defect.LATE, f"first {number}")
        second.add(defect.LATE, f"second {number}")
    second.add(defect.LOST, "one")
    first |= second
    assert first.counts == {defect.LATE: 8, defect.LOST: 1}
    assert first.examples[defect.LATE] == [*(f"first {n}" for n in range(4)), "second 0"]
    assert first.examples[defect.LOST] == ["one"]


# Communication between the processes


def test_the_ledger_gives_back_what_was_written(world: World, tmp_path: Path) -> None:
    ledger = importlib.import_module("benchmarks.chaos.ledger")
    with ledger.watching(tmp_path, 2) as counters:
        book = ledger.Ledger(tmp_path, 2)
        for partition, number in ((0, 0), (1, 0), (1, 1)):
            book.sent(partition, number, 0.0)
        book.settled(1, 0, world.delivered, 7)
        book.settled(1, 0, world.possibly, -1)
        book.settled(0, 0, world.not_written, -1)
        assert counters.sent == [1, 2]
        assert counters.settled == [1, 2]
        assert counters.delivered == [0, 1]
        book.close()
        book.counters.close()
    told = {
        (message.partition, message.number): [each[:2] for each in message.outcomes]
        for message in ledger.messages(tmp_path)
    }
    assert told == {
        (0, 0): [(world.not_written, -1)],
        (1, 0): [(world.delivered, 7), (world.possibly, -1)],
        (1, 1): [],
    }


def test_time_in_which_the_process_was_stopped_is_not_lateness(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = importlib.import_module("benchmarks.chaos.ledger")
    with ledger.watching(tmp_path, 1) as counters:
        book = ledger.Ledger(tmp_path, 1)
        assert counters.process == os.getpid()
        book.sent(0, 0, 100.0)
        monkeypatch.setattr(ledger.time, "monotonic", lambda: 120.0)
        book.settled(0, 0, world.not_written, -1)
        book.close()
        book.counters.close()
    stopped = [(90.0, 101.0), (105.0, 110.0), (119.0, 130.0)]
    ((message,),) = [ledger.messages(tmp_path, stopped)]
    assert message.outcomes[0].after == 20.0 - 1.0 - 5.0 - 1.0


@pytest.mark.parametrize("size", [1, 6, 100])
def test_a_value_says_which_message_it_is(size: int) -> None:
    ledger = importlib.import_module("benchmarks.chaos.ledger")
    value = ledger.value(3, 1234, size)
    assert ledger.read_value(value) == (3, 1234)
    assert len(value) == max(size, len(b"3:1234:"))


@pytest.mark.parametrize("value", [None, b"", b"1:2", b"x:2:", b"-1:2:", b"1:2:3:4"])
def test_a_value_of_somebody_else(value: bytes | None) -> None:
    ledger = importlib.import_module("benchmarks.chaos.ledger")
    assert ledger.read_value(value) == (-1, -1)
