"""What the producer promises (P3 to P7 of the design), checked on the log and on what was told."""

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
    """A promise is not kept."""


@dataclass(eq=False)
class Message:
    """One accepted message, and what its callback was told."""

    number: int
    partition: int
    deadline: float
    handle: Delivery | None = None
    #: (error, offset, when)
    told: list[tuple[BaseException | None, int | None, float]] = field(default_factory=list)

    @property
    def offset(self) -> int | None:
        """Where it is said to be; None if it was not delivered, -1 if that is not known."""
        return self.told[0][1] if self.told and self.told[0][0] is None else None

    @property
    def status(self) -> Status | None:
        """What its error says, None if there is none."""
        error = self.told[0][0] if self.told else None
        return None if error is None else getattr(error, "status", None)


def check(condition: bool, promise: str, what: str) -> None:
    """Raise unless *condition*."""
    if not condition:
        raise ViolationError(f"{promise}: {what}")


def check_expired(messages: Iterable[Message], now: float) -> None:
    """P3, whenever the dispatcher has had its turn: the deadline is kept wherever a row waits."""
    for message in messages:
        if message.deadline + GRAIN < now and message.handle is not None:
            check(message.handle.settled(), "P3", f"{message} has no outcome at {now}")


def check_told(message: Message) -> None:
    """P3: no second outcome, and no timeout before its time."""
    check(len(message.told) == 1, "P3", f"{message} has two outcomes")
    error, _, when = message.told[0]
    early = isinstance(error, DeliveryTimeoutError) and when < message.deadline
    check(not early, "P3", f"{message} has timed out too early")


def check_log(messages: list[Message], cluster: Cluster, *, idempotent: bool) -> None:
    """P4, P5, P6 for all that has an outcome."""
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
    """P4 and P6: what was delivered is where it is said to be, in the order of send()."""
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
