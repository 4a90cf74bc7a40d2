"""Compare the reported outcomes with the log: a pure function, and the defects that it finds."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

#: How late a message's outcome may be after its deadline (seconds).
LATENESS = 1.0
#: How many findings of a kind are described; all are counted.
_EXAMPLES = 5


class Status(enum.IntEnum):
    """The reported status of a message: librdkafka's message status, as a number in a file."""

    NOT_PERSISTED = 0
    POSSIBLY_PERSISTED = 1
    PERSISTED = 2


class Outcome(NamedTuple):
    """One reported outcome of a message."""

    status: Status
    #: -1 where the producer does not know it, and for any status other than PERSISTED.
    offset: int
    #: Seconds from the call of ``send()``.
    after: float


class Message(NamedTuple):
    """A message that ``send()`` has accepted, numbered from 0, without gaps, in each partition."""

    partition: int
    number: int
    outcomes: tuple[Outcome, ...]

    @property
    def delivered(self) -> Outcome | None:
        """Return the first outcome that reports delivery."""
        return next((each for each in self.outcomes if each.status is Status.PERSISTED), None)


class Record(NamedTuple):
    """A record in the log of a partition; -1 and -1 if it does not contain one of our messages."""

    offset: int
    partition: int
    number: int


class Defect(enum.Enum):
    """The kinds of defects."""

    LOST = "reported as delivered, but not in the log at that offset"
    DOUBLED = "in the log more than once"
    REORDERED = "delivered, but in the log after a message that was sent later"
    DENIED = "reported NOT_PERSISTED, but in the log"
    UNSETTLED = "without an outcome"
    SETTLED_TWICE = "with more than one outcome"
    LATE = "outcome later than the deadline + 1 s"
    FOREIGN = "in the log, but never sent to that partition"
    THREAD_LEFT = "a thread left after close()"
    SOCKET_LEFT = "a socket left after close()"
    STUCK = "partition without a delivered message for 30 s, all brokers in sync"
    FAILED = "the run did not finish"


@dataclass
class Findings:
    """The number of defects of each kind, and the first examples of each."""

    counts: Counter[enum.Enum] = field(default_factory=Counter)
    examples: dict[enum.Enum, list[str]] = field(default_factory=dict)

    def add(self, defect: enum.Enum, example: str, count: int = 1) -> None:
        self.counts[defect] += count
        examples = self.examples.setdefault(defect, [])
        if len(examples) < _EXAMPLES:
            examples.append(example)

    def __ior__(self, other: Findings) -> Findings:
        self.counts += other.counts
        for defect, examples in other.examples.items():
            mine = self.examples.setdefault(defect, [])
            mine += examples[: _EXAMPLES - len(mine)]
        return self


def audit(
    messages: Iterable[Message],
    logs: Mapping[int, Sequence[Record]],
    delivery_timeout: float,
) -> Findings:
    """Compare *messages* with *logs* (by partition, each in the order of its offsets)."""
    findings = Findings()
    ordered = sorted(messages, key=lambda message: (message.partition, message.number))
    _check_outcomes(findings, ordered, delivery_timeout)
    places = _places(findings, ordered, logs)
    _check_places(findings, ordered, places)
    _check_order(findings, ordered, places)
    return findings


#: The offsets of each message in the log of its partition, ascending.
_Places = Mapping[tuple[int, int], Sequence[int]]


def _check_outcomes(
    findings: Findings, messages: Iterable[Message], delivery_timeout: float
) -> None:
    """Check that each message has one outcome, in time."""
    for message in messages:
        name = _name(message)
        if not message.outcomes:
            findings.add(Defect.UNSETTLED, name)
            continue
        if len(message.outcomes) > 1:
            told = ", ".join(each.status.name for each in message.outcomes)
            findings.add(Defect.SETTLED_TWICE, f"{name}: {told}")
        first = message.outcomes[0]
        if first.after > delivery_timeout + LATENESS:
            findings.add(
                Defect.LATE, f"{name}: {first.status.name} {first.after:.2f} s after send()"
            )


def _places(
    findings: Findings, messages: Sequence[Message], logs: Mapping[int, Sequence[Record]]
) -> _Places:
    places: dict[tuple[int, int], list[int]] = {
        (message.partition, message.number): [] for message in messages
    }
    for partition, records in logs.items():
        for record in records:
            found = places.get((record.partition, record.number))
            if found is None or record.partition != partition:
                findings.add(
                    Defect.FOREIGN,
                    f"partition {partition} offset {record.offset}: "
                    f"message {record.number} of partition {record.partition}",
                )
            else:
                found.append(record.offset)
    return places


def _check_places(findings: Findings, messages: Iterable[Message], places: _Places) -> None:
    """Check that each message is in the log where reported, once, and not where denied."""
    for message in messages:
        offsets = places[message.partition, message.number]
        outcome = message.delivered
        where = f"{_name(message)}: in the log at {', '.join(map(str, offsets)) or 'no offset'}"
        if outcome is not None and (
            outcome.offset not in offsets if outcome.offset >= 0 else not offsets
        ):
            findings.add(Defect.LOST, f"{where}, reported at {outcome.offset}")
        if len(offsets) > 1:
            findings.add(Defect.DOUBLED, where, len(offsets) - 1)
        if offsets and any(each.status is Status.NOT_PERSISTED for each in message.outcomes):
            findings.add(Defect.DENIED, where)


def _check_order(findings: Findings, messages: Iterable[Message], places: _Places) -> None:
    """Check that a partition's delivered messages are in the log in the order of their numbers.

    The first offset of each counts. Messages that were not delivered are ignored, because the
    caller may have sent them again.
    """
    last: dict[int, tuple[int, int]] = {}
    for message in messages:
        offsets = places[message.partition, message.number]
        if message.delivered is None or not offsets:
            continue
        before, number = last.get(message.partition, (-1, -1))
        if offsets[0] < before:
            findings.add(
                Defect.REORDERED,
                f"{_name(message)} at {offsets[0]}, message {number} at {before}",
            )
        else:
            last[message.partition] = offsets[0], message.number


def _name(message: Message) -> str:
    return f"partition {message.partition} message {message.number}"
