"""The audit finds each defect, and no false ones.

Every log here is fabricated, and correct except for one defect of one kind.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from chaos import ledger
from chaos.audit import Defect, Findings, Message, Outcome, Record, Status, audit

#: Seconds.
DELIVERY_TIMEOUT = 8.0

FAILED = Outcome(Status.NOT_PERSISTED, -1, DELIVERY_TIMEOUT + 0.05)
POSSIBLY = Outcome(Status.POSSIBLY_PERSISTED, -1, 8.0)
#: A record of something else.
NOT_OURS = (-1, -1)


def at(offset: int, after: float = 0.1) -> Outcome:
    return Outcome(Status.PERSISTED, offset, after)


#: Two partitions with four messages each: all delivered except the last, which failed.
OUTCOMES = {
    (partition, number): (FAILED,) if number == 3 else (at(number),)
    for partition in (0, 1)
    for number in range(4)
}


def found(
    outcomes: dict[tuple[int, int], tuple[Outcome, ...]], logs: dict[int, str | list[str]]
) -> dict[str, int]:
    """Audit the messages with other *outcomes* and other *logs*.

    A log has the numbers of the messages in the order of their offsets, "2 of 0" for that of
    another partition.
    """
    messages = [Message(*name, told) for name, told in (OUTCOMES | outcomes).items()]
    records = {}
    for partition, log in ({0: "012", 1: "012"} | logs).items():
        names = [NOT_OURS if each == "-" else _name(each, partition) for each in log]
        records[partition] = [Record(offset, *name) for offset, name in enumerate(names)]
    findings = audit(messages, records, DELIVERY_TIMEOUT)
    for defect, examples in findings.examples.items():
        assert 0 < len(examples) <= min(5, findings.counts[defect])
    return {defect.name: count for defect, count in findings.counts.items()}


def _name(text: str, partition: int) -> tuple[int, int]:
    number, _, other = text.partition(" of ")
    return int(other or partition), int(number)


SOUND = {
    "a sound log": ({}, {}),
    "what is possibly written may be there or not": (
        {(0, 3): (POSSIBLY,), (1, 3): (POSSIBLY,)},
        {0: "0123"},
    ),
    "a broker need not say where a message is": ({(0, 1): (at(-1),)}, {}),
    # A batch that reached the broker after its deadline is stored after later messages.
    "what was not delivered has no place to keep": (
        {(0, 0): (POSSIBLY,), (0, 1): (at(0),), (0, 2): (at(1),)},
        {0: "120"},
    ),
    "an outcome at the last moment": ({(0, 3): (FAILED._replace(after=9.0),)}, {}),
    "partitions have no order between them": ({}, {1: "012", 0: "012"}),
}


@pytest.mark.parametrize(("outcomes", "logs"), SOUND.values(), ids=SOUND)
def test_nothing_is_found(outcomes: dict, logs: dict) -> None:
    assert found(outcomes, logs) == {}


def test_nothing_sent_and_nothing_in_the_log() -> None:
    assert not audit([], {0: [], 1: []}, DELIVERY_TIMEOUT).counts


DEFECTS = {
    "lost at the end": ({}, {0: "01"}, {"LOST": 1}),
    # Its offset is in the log, but it belongs to another message.
    "lost in the middle": ({(0, 1): (at(0),), (0, 2): (at(1),)}, {0: "02"}, {"LOST": 1}),
    "reported where it is not": ({(1, 2): (at(7),)}, {}, {"LOST": 1}),
    "lost without an offset": ({(0, 2): (at(-1),)}, {0: "01"}, {"LOST": 1}),
    "doubled": ({}, {1: "0122"}, {"DOUBLED": 1}),
    "each surplus copy counts": ({}, {1: "012212"}, {"DOUBLED": 3}),
    "doubled though not delivered": ({(0, 3): (POSSIBLY,)}, {0: "01233"}, {"DOUBLED": 1}),
    "reordered": ({(0, 1): (at(2),), (0, 2): (at(1),)}, {0: "021"}, {"REORDERED": 1}),
    # Readers see the first copy first, so its position counts.
    "reordered though a copy is in the right place": (
        {(0, 1): (at(2),), (0, 2): (at(3),)},
        {0: "0212"},
        {"REORDERED": 1, "DOUBLED": 1},
    ),
    "denied": ({}, {1: "0123"}, {"DENIED": 1}),
    "without outcome": ({(0, 3): ()}, {}, {"UNSETTLED": 1}),
    "failed, then possibly": ({(0, 3): (FAILED, POSSIBLY)}, {}, {"SETTLED_TWICE": 1}),
    "failed twice": ({(0, 3): (FAILED, FAILED)}, {}, {"SETTLED_TWICE": 1}),
    "failed, then delivered": (
        {(0, 3): (FAILED, at(-1, 8.1))},
        {0: "0123"},
        {"SETTLED_TWICE": 1, "DENIED": 1},
    ),
    "delivered twice": ({(0, 1): (at(1), at(1))}, {}, {"SETTLED_TWICE": 1}),
    "delivered late": ({(1, 2): (at(2, 9.01),)}, {}, {"LATE": 1}),
    "failed late": ({(1, 3): (FAILED._replace(after=9.01),)}, {}, {"LATE": 1}),
    "never sent": ({}, {0: "0124"}, {"FOREIGN": 1}),
    "no message of ours": ({}, {0: "012-"}, {"FOREIGN": 1}),
    "in the wrong partition": (
        {(0, 3): (POSSIBLY,)},
        {1: ["0", "1", "2", "3 of 0"]},
        {"FOREIGN": 1},
    ),
}


@pytest.mark.parametrize(("outcomes", "logs", "expected"), DEFECTS.values(), ids=DEFECTS)
def test_a_defect_is_found(outcomes: dict, logs: dict, expected: dict[str, int]) -> None:
    assert found(outcomes, logs) == expected


def test_findings_of_several_acts_add_up() -> None:
    first, second = Findings(), Findings()
    for number in range(4):
        first.add(Defect.LATE, f"first {number}")
        second.add(Defect.LATE, f"second {number}")
    second.add(Defect.LOST, "one")
    first |= second
    assert first.counts == {Defect.LATE: 8, Defect.LOST: 1}
    assert first.examples[Defect.LATE] == [*(f"first {n}" for n in range(4)), "second 0"]
    assert first.examples[Defect.LOST] == ["one"]


# Communication between the processes


def test_the_ledger_gives_back_what_was_written(tmp_path: Path) -> None:
    with ledger.watching(tmp_path, 2) as counters:
        book = ledger.Ledger(tmp_path, 2)
        for partition, number in ((0, 0), (1, 0), (1, 1)):
            book.sent(partition, number, 0.0)
        book.settled(1, 0, Status.PERSISTED, 7)
        book.settled(1, 0, Status.POSSIBLY_PERSISTED, -1)
        book.settled(0, 0, Status.NOT_PERSISTED, -1)
        assert (counters.sent, counters.settled, counters.delivered) == ([1, 2], [1, 2], [0, 1])
        book.close()
        book.counters.close()
    told = {each[:2]: [outcome[:2] for outcome in each[2]] for each in ledger.messages(tmp_path)}
    assert told == {
        (0, 0): [(Status.NOT_PERSISTED, -1)],
        (1, 0): [(Status.PERSISTED, 7), (Status.POSSIBLY_PERSISTED, -1)],
        (1, 1): [],
    }


def test_time_in_which_the_process_was_stopped_is_not_lateness(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ledger.watching(tmp_path, 1) as counters:
        book = ledger.Ledger(tmp_path, 1)
        assert counters.process == os.getpid()
        book.sent(0, 0, 100.0)
        monkeypatch.setattr(ledger.time, "monotonic", lambda: 120.0)
        book.settled(0, 0, Status.NOT_PERSISTED, -1)
        book.close()
        book.counters.close()
    stopped = [(90.0, 101.0), (105.0, 110.0), (119.0, 130.0)]
    ((message,),) = [ledger.messages(tmp_path, stopped)]
    assert message.outcomes[0].after == 20.0 - 1.0 - 5.0 - 1.0


@pytest.mark.parametrize("size", [1, 6, 100])
def test_a_value_says_which_message_it_is(size: int) -> None:
    value = ledger.value(3, 1234, size)
    assert ledger.read_value(value) == (3, 1234)
    assert len(value) == max(size, len(b"3:1234:"))


@pytest.mark.parametrize("value", [None, b"", b"1:2", b"x:2:", b"-1:2:", b"1:2:3:4"])
def test_a_value_of_another_program(value: bytes | None) -> None:
    assert ledger.read_value(value) == NOT_OURS
