"""Compare what producers reported about transactions with what can be read: a pure function."""

from __future__ import annotations

import enum
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from chaos.audit import LATENESS, Findings
from chaos.transactions.history import (
    NONE,
    NOT_WRITTEN,
    TWICE,
    Instance,
    Name,
    Reported,
    Source,
    Transaction,
    Value,
)
from chaos.transactions.skipped import Skipped, affected

#: The resolution of timestamps in the log (seconds).
_TICK = 0.001


class TransactionDefect(enum.Enum):
    """The kinds of defects."""

    TORN = "a transaction of which some messages are readable and others are not"
    LOST_COMMIT = "reported as COMMITTED, but not readable"
    GHOST = "reported as NOT_COMMITTED, or its commit never requested, but readable"
    DOUBLED = "readable more than once, or an input with more than one readable output"
    REORDERED = "readable, but after a message of its partition that was sent later"
    ZOMBIE = "readable although a successor had taken over; or after its own marker"
    HANGING = "a transaction open 30 s after all timeouts"
    OFFSETS_APART = "the group's offset is not the next one after the inputs of what is readable"
    CALL_STUCK = "a call that took longer than its bound + 1 s"
    UNSURE_TOO_OFTEN = "reported as POSSIBLY_COMMITTED although nothing prevented an answer"
    UNREPORTED = "a call for the end of a transaction returned, and its outcome is not known"
    LOST = "a message reported as delivered, but not in the log at that offset"
    WRITTEN_TWICE = "a message in the log more than once"
    DENIED = "a message reported NOT_PERSISTED, but in the log"
    UNSETTLED = "a message without an outcome when its producer was closed"
    SETTLED_TWICE = "a message with more than one outcome"
    LATE = "a message with an outcome later than the deadline + 1 s"
    FOREIGN = "in the log, but never sent to that partition"
    THREAD_LEFT = "a thread left after close()"
    SOCKET_LEFT = "a socket left after close()"
    STUCK = "no transaction committed for 30 s, all brokers in sync"
    FAILED = "the run did not finish"
    BROKERS = "not judged: a broker has skipped markers, so what is readable is not the client's"


class Entry(NamedTuple):
    """A message in the log of a partition."""

    offset: int
    #: None: not one of ours.
    value: Value | None
    producer_id: int = -1
    epoch: int = -1
    #: Wall clock (seconds).
    timestamp: float = 0.0


class Marker(NamedTuple):
    """The end of a transaction in the log of a partition."""

    offset: int
    producer_id: int
    epoch: int
    commit: bool


@dataclass
class Log:
    """A partition, read twice."""

    #: Everything.
    raw: list[Entry | Marker] = field(default_factory=list)
    #: As a reader of committed messages sees it.
    readable: list[Entry] = field(default_factory=list)
    end: int = 0
    #: The last stable offset, 30 s after all timeouts or earlier.
    stable: int = 0


class Stop(NamedTuple):
    """When a process was stopped, and when it continued (monotonic seconds)."""

    begin: float
    end: float
    process: int


class Window(NamedTuple):
    """A fault, and when it began and was over (monotonic seconds)."""

    kind: str
    begin: float
    end: float


@dataclass
class Evidence:
    """The input of the audit."""

    instances: Sequence[Instance]
    logs: Mapping[int, Log]
    #: Of each input partition, by group: the committed offset.
    offsets: Mapping[int, int] = field(default_factory=dict)
    #: Whether outputs have inputs, and the offsets are to be compared.
    group: bool = False
    #: Seconds; None: the client promises no deadline.
    delivery_timeout: float | None = None
    #: Whether messages of this client have a status, and transactions an outcome.
    has_status: bool = True
    #: When processes under load were stopped.
    stopped: Sequence[Stop] = ()
    #: When an answer to EndTxn may have been lost.
    silent: Sequence[Window] = ()
    #: Markers that brokers have not written.
    skipped: Sequence[Skipped] = ()


class _Reading:
    """The content of the logs, by transaction."""

    def __init__(self, evidence: Evidence) -> None:
        #: How often each message of a transaction is readable.
        self.numbers: dict[Name, Counter[int]] = defaultdict(Counter)
        #: How often an input has led to readable outputs.
        self.sources: Counter[Source] = Counter()
        #: The latest timestamp of what is readable.
        self.latest: dict[Name, float] = {}
        partitions: dict[Name, set[int]] = defaultdict(set)
        for partition, log in evidence.logs.items():
            for entry in log.raw:
                if isinstance(entry, Entry) and entry.value is not None:
                    partitions[entry.value.name].add(partition)
            for entry in log.readable:
                if entry.value is not None:
                    name = entry.value.name
                    self.numbers[name][entry.value.number] += 1
                    self.latest[name] = max(self.latest.get(name, 0.0), entry.timestamp)
                    if entry.value.source is not None:
                        self.sources[entry.value.source] += 1
        #: The transactions that a broker has not ended in all partitions.
        self.not_ended = affected(evidence.skipped, evidence.instances, partitions)


def audit(evidence: Evidence) -> Findings:
    """Return all defects."""
    findings = Findings()
    reading = _Reading(evidence)
    known = {
        transaction.name: transaction
        for instance in evidence.instances
        for transaction in instance.transactions.values()
    }
    _check_ends(findings, evidence, known, reading)
    _check_order(findings, evidence)
    _check_successors(findings, evidence, reading)
    _check_logs(findings, evidence, known)
    _check_offsets(findings, evidence, reading)
    places = _places(evidence.logs)
    for instance in evidence.instances:
        _check_calls(findings, evidence, instance)
        _check_messages(findings, evidence, instance, places)
    return findings


# Transactions -------------------------------------------------------------------------------------


def _check_ends(
    findings: Findings,
    evidence: Evidence,
    known: Mapping[Name, Transaction],
    reading: _Reading,
) -> None:
    """Check that each transaction is readable as a whole or not at all, as was reported."""
    for name, transaction in known.items():
        numbers = reading.numbers.get(name, Counter())
        requested = transaction.requested == "commit"
        expected = transaction.size if requested else len(transaction.partitions)
        reported = transaction.reported
        what = f"{name}, {len(numbers)} of {expected} readable, {_story(transaction)}"
        defect = None
        if numbers and (not requested or reported is Reported.NOT_COMMITTED):
            defect = TransactionDefect.GHOST
        elif reported is Reported.COMMITTED and expected and not numbers:
            defect = TransactionDefect.LOST_COMMIT
        elif numbers and set(numbers) != set(range(expected)):
            defect = TransactionDefect.TORN
        if defect is not None:
            judged = name not in reading.not_ended
            findings.add(defect if judged else TransactionDefect.BROKERS, what)
        doubled = sum(count - 1 for count in numbers.values())
        if doubled:
            findings.add(TransactionDefect.DOUBLED, f"{what}, {doubled} again", doubled)
        unsure = reported is Reported.POSSIBLY_COMMITTED and evidence.has_status
        if unsure and not any(
            window.begin <= transaction.reported_at and window.end >= transaction.requested_at
            for window in evidence.silent
        ):
            findings.add(TransactionDefect.UNSURE_TOO_OFTEN, what)


def _story(transaction: Transaction) -> str:
    requested = f"{transaction.requested or 'no end'} requested"
    reported = transaction.reported.value if transaction.reported else "nothing"
    return f"{requested}, reported: {reported}"


def _check_order(findings: Findings, evidence: Evidence) -> None:
    """Check that the readable messages of an id are in the order in which they were sent."""
    ids = {each.number: each.transactional_id for each in evidence.instances}
    places = {each.number: (each.ready_at or 0.0, each.number) for each in evidence.instances}
    for partition, log in evidence.logs.items():
        last: dict[str, tuple[tuple[float, int], int, int]] = {}
        for entry in log.readable:
            value = entry.value
            if value is None or value.name.instance not in ids:
                continue
            place = places[value.name.instance], value.name.serial, value.number
            before = last.setdefault(ids[value.name.instance], place)
            if place < before:
                findings.add(
                    TransactionDefect.REORDERED,
                    f"{value.name}, message {value.number} at {entry.offset} of partition "
                    f"{partition}, after message {before[2]} of transaction {before[1]} of "
                    f"instance {before[0][1]}",
                )
            else:
                last[ids[value.name.instance]] = place


def _check_successors(findings: Findings, evidence: Evidence, reading: _Reading) -> None:
    """Check that nothing is readable that was sent, or committed, after a successor's init."""
    for instance in evidence.instances:
        taken_over = min(
            (
                each.ready_at
                for each in evidence.instances
                if each.transactional_id == instance.transactional_id
                and each.ready_at is not None
                and each.number != instance.number
                and (instance.ready_at is None or each.ready_at > instance.ready_at)
            ),
            default=None,
        )
        if taken_over is None:
            continue
        for transaction in instance.transactions.values():
            latest = reading.latest.get(transaction.name)
            if latest is None:
                continue
            sent_later = latest - instance.clock > taken_over + 2 * _TICK
            if sent_later or transaction.requested_at > taken_over:
                findings.add(
                    TransactionDefect.ZOMBIE,
                    f"{transaction.name}, {_story(transaction)} "
                    f"{transaction.requested_at - taken_over:.3f} s after the init of a successor",
                )


# The logs -----------------------------------------------------------------------------------------


def _check_logs(findings: Findings, evidence: Evidence, known: Mapping[Name, Transaction]) -> None:
    for partition, log in evidence.logs.items():
        if log.stable < log.end:
            judged = not any(partition in each.partitions for each in evidence.skipped)
            findings.add(
                TransactionDefect.HANGING if judged else TransactionDefect.BROKERS,
                f"partition {partition}: stable up to {log.stable}, its end is {log.end}",
            )
        _check_markers(findings, partition, log)
        seen: Counter[tuple[Name, int]] = Counter()
        for entry in log.raw:
            if isinstance(entry, Marker):
                continue
            value = entry.value
            if value is None or value.partition != partition or not _was_sent(value, known):
                findings.add(
                    TransactionDefect.FOREIGN,
                    f"partition {partition} offset {entry.offset}: {value}",
                )
                continue
            key = value.name, value.number
            seen[key] += 1
            if seen[key] > 1:
                findings.add(
                    TransactionDefect.WRITTEN_TWICE,
                    f"{value.name}, message {value.number}, again at {entry.offset} of partition "
                    f"{partition}",
                )


def _was_sent(value: Value, known: Mapping[Name, Transaction]) -> bool:
    transaction = known.get(value.name)
    if transaction is None:
        return False
    if transaction.outcomes is None:
        return True  # the process was killed before it wrote how many there are
    return value.number < len(transaction.outcomes)


def _check_markers(findings: Findings, partition: int, log: Log) -> None:
    """Check that no message is after the marker of its transaction."""
    markers: dict[int, Marker] = {}
    #: The last marker of the producer before the first message of a transaction, if any.
    ended: dict[Name, Marker | None] = {}
    for entry in log.raw:
        if isinstance(entry, Marker):
            markers[entry.producer_id] = entry
            continue
        marker = markers.get(entry.producer_id)
        if entry.value is None:
            continue
        name = entry.value.name
        first = ended.setdefault(name, marker)
        # In TV2 a marker has the epoch of the next transaction, in TV1 the same.
        fenced = marker is not None and entry.epoch < marker.epoch
        if fenced or first is not marker:
            assert marker is not None
            findings.add(
                TransactionDefect.ZOMBIE,
                f"{name}, message {entry.value.number} with epoch {entry.epoch} at {entry.offset} "
                f"of partition {partition}, after the marker with epoch {marker.epoch} at "
                f"{marker.offset}",
            )


def _check_offsets(findings: Findings, evidence: Evidence, reading: _Reading) -> None:
    """Check that the inputs of what is readable are those before the committed offsets."""
    if not evidence.group:
        return
    # A skipped marker affects an output and the offset of its input alike.
    judged = not reading.not_ended and not any(each.offsets for each in evidence.skipped)
    again = sum(count - 1 for count in reading.sources.values())
    if again:
        example = next(source for source, count in reading.sources.items() if count > 1)
        findings.add(
            TransactionDefect.DOUBLED if judged else TransactionDefect.BROKERS,
            f"input {example.offset} of partition {example.partition} has "
            f"{reading.sources[example]} readable outputs",
            again,
        )
    done: dict[int, set[int]] = defaultdict(set)
    for source in reading.sources:
        done[source.partition].add(source.offset)
    for partition in sorted({*done, *evidence.offsets}):
        offset = evidence.offsets.get(partition, 0)
        missing = set(range(offset)) - done[partition]
        beyond = done[partition] - set(range(offset))
        if missing or beyond:
            findings.add(
                TransactionDefect.OFFSETS_APART if judged else TransactionDefect.BROKERS,
                f"input partition {partition}: committed up to {offset}, "
                f"without readable outputs: {_some(missing)}; with, after it: {_some(beyond)}",
                len(missing) + len(beyond),
            )


def _some(numbers: Iterable[int]) -> str:
    ordered = sorted(numbers)
    text = ", ".join(map(str, ordered[:5])) or "none"
    return f"{text}, ... ({len(ordered)})" if len(ordered) > 5 else text


# Calls and messages of one instance ---------------------------------------------------------------


def _check_calls(findings: Findings, evidence: Evidence, instance: Instance) -> None:
    for call in instance.calls:
        took = running_time(evidence.stopped, instance, call.at, call.at + call.took)
        if took > call.bound + LATENESS:
            findings.add(
                TransactionDefect.CALL_STUCK,
                f"{call.what} of instance {instance.number} took {took:.2f} s, its bound is "
                f"{call.bound:.2f} s{f'; then {call.error}' if call.error else ''}",
            )
    for defect, count in (
        (TransactionDefect.THREAD_LEFT, instance.threads_left),
        (TransactionDefect.SOCKET_LEFT, instance.sockets_left),
    ):
        if count:
            findings.add(defect, f"{count} after close() of instance {instance.number}", count)


#: The partitions and offsets of each message.
_Places = Mapping[tuple[Name, int], set[tuple[int, int]]]


def _check_messages(
    findings: Findings, evidence: Evidence, instance: Instance, places: _Places
) -> None:
    for transaction in instance.transactions.values():
        if transaction.requested and not transaction.reported and instance.closed_at is not None:
            findings.add(TransactionDefect.UNREPORTED, f"{transaction.name}, {_story(transaction)}")
        sent, settled = transaction.slowest
        took = running_time(evidence.stopped, instance, sent, settled)
        if evidence.delivery_timeout is not None and took > evidence.delivery_timeout + LATENESS:
            findings.add(
                TransactionDefect.LATE,
                f"a message of {transaction.name}: {took:.2f} s after send()",
            )
        for number, outcome in enumerate(transaction.outcomes or ()):
            what = f"{transaction.name}, message {number}"
            found = places.get((transaction.name, number), set())
            if outcome >= 0 and (transaction.partitions[number], outcome) not in found:
                findings.add(TransactionDefect.LOST, f"{what}: reported at {outcome}, at {found}")
            elif outcome == NOT_WRITTEN and found and evidence.has_status:
                findings.add(TransactionDefect.DENIED, f"{what}: at {found}")
            elif outcome == TWICE:
                findings.add(TransactionDefect.SETTLED_TWICE, what)
            elif outcome == NONE and instance.closed_at is not None:
                findings.add(TransactionDefect.UNSETTLED, what)


def _places(logs: Mapping[int, Log]) -> _Places:
    found: dict[tuple[Name, int], set[tuple[int, int]]] = defaultdict(set)
    for partition, log in logs.items():
        for entry in log.raw:
            if isinstance(entry, Entry) and entry.value is not None:
                found[entry.value.name, entry.value.number].add((partition, entry.offset))
    return found


def running_time(stopped: Iterable[Stop], instance: Instance, begin: float, end: float) -> float:
    """Return how long the process of *instance* was not stopped from *begin* to *end* (seconds)."""
    return (end - begin) - sum(
        max(0.0, min(end, stop.end) - max(begin, stop.begin))
        for stop in stopped
        if stop.process == instance.process
    )
