"""What the processes under load did, and what their producers reported, for the audit.

Each instance, which is one producer object, has its own file, with a JSON list in each line. A line
is one call of ``write()``: it is complete even if the process is killed right after it.

Processes of other clients write these files as well, so nothing of pykaproducer is imported.
"""

from __future__ import annotations

import enum
import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from chaos.audit import Status


class Reported(enum.Enum):
    """The outcome of a transaction, as the producer reported it."""

    COMMITTED = "COMMITTED"
    NOT_COMMITTED = "NOT_COMMITTED"
    POSSIBLY_COMMITTED = "POSSIBLY_COMMITTED"


#: Outcomes of messages beside offsets, which are delivered: with a status, none, or two of them.
POSSIBLY, NOT_WRITTEN, NONE, TWICE = -1, -2, -3, -4
#: Delivered, by a client that does not know where.
SOMEWHERE = -5

_STATUS = {Status.POSSIBLY_PERSISTED: POSSIBLY, Status.NOT_PERSISTED: NOT_WRITTEN}


class Name(NamedTuple):
    """The name of a transaction; all messages of it carry it."""

    instance: int
    serial: int

    def __str__(self) -> str:
        return f"transaction {self.serial} of instance {self.instance}"


class Source(NamedTuple):
    """The input from which a message was computed."""

    partition: int
    offset: int


class Call(NamedTuple):
    """One control call. All times are monotonic seconds, the same for all processes."""

    what: str
    at: float
    took: float
    #: How long it may take; beyond it the call is stuck.
    bound: float
    #: The class of the error; "" if it succeeded.
    error: str = ""


@dataclass
class Transaction:
    """One transaction; all times are monotonic seconds."""

    name: Name
    begun_at: float
    #: "commit" or "abort"; None: the process ended before it called either.
    requested: str | None = None
    requested_at: float = 0.0
    #: How many messages it has, if a commit was requested.
    size: int = 0
    #: None: nothing.
    reported: Reported | None = None
    reported_at: float = 0.0
    #: The outcome and the partition of each message; None: the process ended before it wrote them.
    outcomes: list[int] | None = None
    partitions: list[int] = field(default_factory=list)
    #: Of the message whose outcome took longest: when it was sent, and when it had the outcome.
    slowest: tuple[float, float] = (0.0, 0.0)


@dataclass
class Instance:
    """One producer object."""

    number: int
    transactional_id: str
    #: When ``init_transactions()`` had returned; None: it has not.
    ready_at: float | None = None
    #: The wall clock minus the monotonic one (seconds).
    clock: float = 0.0
    #: The identifier of its process.
    process: int = 0
    #: When it was closed in an orderly way; None: it was not.
    closed_at: float | None = None
    calls: list[Call] = field(default_factory=list)
    transactions: dict[int, Transaction] = field(default_factory=dict)
    #: Texts of fatal errors, and the like.
    notes: list[str] = field(default_factory=list)
    threads_left: int = 0
    sockets_left: int = 0


class Journal:
    """The writer of one instance's file. Its number is the next that is free in the directory."""

    def __init__(self, directory: Path, transactional_id: str) -> None:
        number = 0
        while True:
            number += 1
            try:
                self._file = os.open(
                    directory / f"instance-{number:06}",
                    os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL,
                )
            except FileExistsError:
                continue
            break
        self.number = number
        self._write(
            "instance", number, transactional_id, time.time() - time.monotonic(), os.getpid()
        )

    def called(self, call: Call) -> None:
        self._write("call", *call)

    def ready(self) -> None:
        self._write("ready", time.monotonic())

    def begun(self, serial: int) -> None:
        self._write("begun", serial, time.monotonic())

    def requested(self, serial: int, what: str, size: int) -> None:
        self._write("requested", serial, what, size, time.monotonic())

    def reported(self, serial: int, reported: Reported) -> None:
        self._write("reported", serial, reported.value, time.monotonic())

    def outcomes(self, messages: Messages) -> None:
        self._write(
            "outcomes",
            messages.serial,
            messages.outcomes,
            "".join(map(str, messages.partitions)),
            *messages.slowest,
        )

    def note(self, text: str) -> None:
        self._write("note", text)

    def closed(self, threads_left: int, sockets_left: int) -> None:
        self._write("closed", time.monotonic(), threads_left, sockets_left)

    def close(self) -> None:
        os.close(self._file)

    def _write(self, *row: Any) -> None:
        os.write(self._file, json.dumps(row).encode() + b"\n")


class Messages:
    """The messages of one transaction, and their outcomes, while it runs.

    One thread adds messages. Outcomes may come from another one.
    """

    def __init__(self, serial: int) -> None:
        self.serial = serial
        self.outcomes: list[int] = []
        self.partitions: list[int] = []
        self.slowest = (0.0, 0.0)
        self._sent: list[float] = []

    def add(self, partition: int) -> int:
        """Add a message before it is sent; return its number."""
        self._sent.append(time.monotonic())
        self.partitions.append(partition)
        self.outcomes.append(NONE)
        return len(self.outcomes) - 1

    def remove(self) -> None:
        """Remove the last message: it was not accepted."""
        for each in (self._sent, self.partitions, self.outcomes):
            del each[-1]  # type: ignore[attr-defined]

    def settle(self, number: int, status: Status, offset: int) -> None:
        """Record an outcome."""
        if self.outcomes[number] != NONE:
            self.outcomes[number] = TWICE
            return
        delivered = status is Status.PERSISTED
        self.outcomes[number] = (
            (offset if offset >= 0 else SOMEWHERE) if delivered else _STATUS[status]
        )
        sent, now = self._sent[number], time.monotonic()
        if now - sent > self.slowest[1] - self.slowest[0]:
            self.slowest = sent, now

    @property
    def complete(self) -> bool:
        return NONE not in self.outcomes

    @property
    def delivered(self) -> int:
        return sum(each >= 0 or each == SOMEWHERE for each in self.outcomes)


def instances(directory: Path) -> list[Instance]:
    """Return what all instances have written, by their numbers."""
    return [_instance(path.read_bytes()) for path in sorted(directory.glob("instance-*"))]


def _instance(data: bytes) -> Instance:
    # A process that was killed may have left half a line at the end.
    rows = [json.loads(line) for line in data.split(b"\n")[:-1]]
    _, number, transactional_id, clock, process = rows[0]
    found = Instance(number, transactional_id, clock=clock, process=process)
    for what, *values in rows[1:]:
        _note(found, what, values)
    return found


def _note(instance: Instance, what: str, values: Sequence[Any]) -> None:
    match what, *values:
        case "call", *call:
            instance.calls.append(Call(*call))
        case "ready", at:
            instance.ready_at = at
        case "begun", serial, at:
            instance.transactions[serial] = Transaction(Name(instance.number, serial), at)
        case "requested", serial, requested, size, at:
            transaction = instance.transactions[serial]
            transaction.requested, transaction.size, transaction.requested_at = requested, size, at
        case "reported", serial, reported, at:
            transaction = instance.transactions[serial]
            transaction.reported, transaction.reported_at = Reported(reported), at
        case "outcomes", serial, outcomes, partitions, sent, settled:
            transaction = instance.transactions[serial]
            transaction.outcomes, transaction.slowest = outcomes, (sent, settled)
            transaction.partitions = [int(each) for each in partitions]
        case "note", text:
            instance.notes.append(text)
        case "closed", at, threads, sockets:
            instance.closed_at = at
            instance.threads_left, instance.sockets_left = threads, sockets


# The values of messages ---------------------------------------------------------------------------


class Value(NamedTuple):
    """The content of a message: which one it is."""

    name: Name
    number: int
    partition: int
    source: Source | None = None


def encode(value: Value, size: int) -> bytes:
    fields = [*value.name, value.number, value.partition, *(value.source or ())]
    return (":".join(map(str, fields)) + ":").encode().ljust(size, b".")


def decode(data: bytes | None) -> Value | None:
    """Return the value; None if it is not one of ours."""
    *fields, rest = (data or b"").split(b":")
    if len(fields) not in (4, 6) or rest.strip(b".") or not all(each.isdigit() for each in fields):
        return None
    instance, serial, number, partition, *source = map(int, fields)
    return Value(Name(instance, serial), number, partition, Source(*source) if source else None)
