"""The producer's promises (P3 to P7 of the design), checked on the log and on the outcomes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from pykaproducer._kernel import Delivery
from pykaproducer.errors import DeliveryTimeoutError, Status

from .cluster import Cluster

#: Rows whose deadlines are close are expired together (seconds).
GRAIN = 0.02


class ViolationError(AssertionError):
    """A promise was broken."""


@dataclass(eq=False)
class Message:
    """An accepted message, and the outcomes that its callback received."""

    number: int
    partition: int
    deadline: float
    handle: Delivery | None = None
    #: (error, offset, time)
    told: list[tuple[BaseException | None, int | None, float]] = field(default_factory=list)

    @property
    def offset(self) -> int | None:
        """The reported offset; None if it was not delivered, -1 if the offset is unknown."""
        return self.told[0][1] if self.told and self.told[0][0] is None else None

    @property
    def status(self) -> Status | None:
        """The status of the error, or None without an error."""
        error = self.told[0][0] if self.told else None
        return None if error is None else getattr(error, "status", None)


def check(condition: bool, promise: str, what: str) -> None:
    """Raise unless *condition*."""
    if not condition:
        raise ViolationError(f"{promise}: {what}")


def check_expired(messages: Iterable[Message], now: float) -> None:
    """Check P3 after each turn of the dispatcher: no row misses its deadline, wherever it is."""
    for message in messages:
        if message.deadline + GRAIN < now and message.handle is not None:
            check(message.handle.settled(), "P3", f"{message} has no outcome at {now}")


def check_told(message: Message) -> None:
    """Check P3: there is no second outcome, and no early timeout."""
    check(len(message.told) == 1, "P3", f"{message} has two outcomes")
    error, _, when = message.told[0]
    early = isinstance(error, DeliveryTimeoutError) and when < message.deadline
    check(not early, "P3", f"{message} has timed out too early")


def check_log(messages: list[Message], cluster: Cluster, *, idempotent: bool) -> None:
    """Check P4, P5 and P6 for all messages with an outcome."""
    for partition, log in enumerate(cluster.logs):
        mine = [m for m in messages if m.partition == partition]
        times = Counter(log.records)
        if idempotent:
            twice = [number for number, count in times.items() if count > 1]
            check(not twice, "P5", f"twice in the log {log.records}: {twice}")
        for message in mine:
            if message.status is Status.NOT_PERSISTED:
                check(not times[message.number], "P6", f"{message} is in the log {log.records}")
        _check_places(mine, log.records)


def _check_places(messages: list[Message], records: list[int]) -> None:
    """Check P4 and P6: delivered messages are at their reported offsets, in the order of send()."""
    last = -1
    delivered = [message for message in messages if message.offset is not None]
    for message in delivered:
        offset = message.offset
        if offset is None or offset < 0:
            check(message.number in records, "P6", f"{message} is not in the log {records}")
            offset = records.index(message.number)
        there = records[offset] if offset < len(records) else None
        check(there == message.number, "P6", f"{message} is not there in the log {records}")
        check(offset > last, "P4", f"{message} stands before its elder in the log {records}")
        last = offset
    firsts = [records.index(message.number) for message in delivered]
    check(firsts == sorted(firsts), "P4", f"delivered out of order in the log {records}")
