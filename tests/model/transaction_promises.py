"""The promises about transactions (T1 to T7 of the design), checked on logs, groups and outcomes.

T1: a transaction told as committed is readable as a whole, once, in the order of ``send()``.
T2: one told as aborted or as not committed, or never ended, is not readable.
T3: of one told as possibly committed, all is readable or nothing.
T4: nothing becomes readable after another instance has got the transactional id.
T5: no transaction stays open in a log.
T6: no record of a transaction is behind its marker.
T7: each call ends by its deadline, and without a reason no producer becomes unusable.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pykaproducer.errors import CommitOutcome

from .promises import Message, check
from .transactional_log import TransactionalCluster


@dataclass(eq=False)
class Told:
    """A transaction of the user, and what is known about it."""

    serial: int
    messages: list[Message] = field(default_factory=list)
    #: The last offset of each group and partition.
    offsets: dict[tuple[str, int], int] = field(default_factory=dict)
    #: The final outcome. None: none was told.
    outcome: CommitOutcome | None = None

    def __repr__(self) -> str:
        name = "no outcome" if self.outcome is None else self.outcome.name
        numbers = [message.number for message in self.messages]
        return f"transaction {self.serial} ({name}) of {numbers} and {self.offsets}"


def check_transactions(transactions: list[Told], cluster: TransactionalCluster) -> None:
    """Check T1 to T6 when everything is at rest."""
    for log in cluster.logs:
        check(not log.open_since, "T5", f"open since {log.open_since} in {log.records}")
    for name, group in cluster.groups.items():
        check(not group.pending, "T5", f"group {name} has pending offsets {group.pending}")
    _check_markers(transactions, cluster)
    readable = [number for log in cluster.logs for number in log.readable()]
    for transaction in transactions:
        _check_outcome(transaction, set(readable), cluster)
    for log in cluster.logs:
        found = log.readable()
        check(found == sorted(set(found)), "T1", f"{found} is readable, not in order")
    for name, group in cluster.groups.items():
        _check_history(name, group.history)
    if cluster.taken_over is not None:
        now = cluster.visible()
        text = f"{cluster.taken_over} was readable when another instance came, and now {now}"
        check(now == cluster.taken_over, "T4", text)


def _check_outcome(transaction: Told, readable: set[int], cluster: TransactionalCluster) -> None:
    there = [message.number in readable for message in transaction.messages]
    there += [
        (partition, offset) in cluster.group(group).history
        for (group, partition), offset in transaction.offsets.items()
    ]
    match transaction.outcome:
        case CommitOutcome.COMMITTED:
            check(all(there), "T1", f"{transaction}: {there} is readable")
        case CommitOutcome.POSSIBLY_COMMITTED:
            check(all(there) or not any(there), "T3", f"{transaction}: {there} is readable")
        case _:
            check(not any(there), "T2", f"{transaction}: {there} is readable")


def _check_markers(transactions: list[Told], cluster: TransactionalCluster) -> None:
    """Check T6: between two markers of a partition there is one transaction, and all of it."""
    of = {message.number: each.serial for each in transactions for message in each.messages}
    for log in cluster.logs:
        seen: set[int] = set()
        for numbers, _ in log.ended():
            serials = {of[number] for number in numbers}
            check(len(serials) <= 1, "T6", f"one marker ends transactions {serials}")
            check(not serials & seen, "T6", f"transaction {serials} goes on behind its marker")
            seen |= serials


def _check_history(name: str, history: list[tuple[int, int]]) -> None:
    """Check T1: offsets are committed in the order of their transactions."""
    by_partition: dict[int, list[int]] = {}
    for partition, offset in history:
        by_partition.setdefault(partition, []).append(offset)
    for partition, found in by_partition.items():
        check(found == sorted(set(found)), "T1", f"group {name}: {partition} had offsets {found}")
