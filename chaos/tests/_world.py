"""A fabricated history of transactions, and the logs that fit to it."""

from __future__ import annotations

from typing import Any

from chaos.transactions.audit import Entry, Evidence, Log, Marker, audit
from chaos.transactions.history import Call, Instance, Name, Reported, Source, Transaction, Value

#: Seconds.
DELIVERY_TIMEOUT = 4.0


class World:
    """Two instances of an id, and two partitions.

    Instance 1 has committed transaction 1, aborted transaction 2, and was killed while it committed
    transaction 3, which is readable. Instance 2 took over at 100 s and committed transaction 1.
    Each has two messages in each partition, computed from the inputs of one partition in turn.
    """

    def __init__(self) -> None:
        self.first = Instance(1, "id", ready_at=10.0)
        self.second = Instance(2, "id", ready_at=100.0, closed_at=200.0)
        self.logs: dict[int, Any] = {0: Log(), 1: Log()}
        self.inputs = 0
        self.committed = self.add(self.first, 1, 20.0, "commit", Reported.COMMITTED)
        self.aborted = self.add(self.first, 2, 30.0, "abort", Reported.NOT_COMMITTED)
        self.killed = self.add(self.first, 3, 40.0, "commit", None)
        self.killed.outcomes = None
        self.last = self.add(self.second, 1, 110.0, "commit", Reported.COMMITTED)

    def add(self, instance: Any, serial: int, at: float, requested: str, reported: Any) -> Any:
        """Add a transaction with a new epoch."""
        name = Name(instance.number, serial)
        transaction = Transaction(
            name, at, requested, at + 1.0, 4, reported, at + 2.0, [], [], (at, at + 0.5)
        )
        instance.transactions[serial] = transaction
        readable = requested == "commit"
        epoch = 10 * instance.number + serial
        for number in range(4):
            log, partition = self.logs[number % 2], number % 2
            source = Source(7, self.inputs) if readable else None
            self.inputs += readable
            value = Value(name, number, partition, source)
            entry = Entry(len(log.raw), value, 5, epoch, at)
            transaction.outcomes.append(len(log.raw))
            transaction.partitions.append(partition)
            log.raw.append(entry)
            if readable:
                log.readable.append(entry)
        for log in self.logs.values():
            log.raw.append(Marker(len(log.raw), 5, epoch + 1, readable))
        return transaction

    def find(self, partition: int, transaction: Any) -> list[Any]:
        """Return what is readable of a transaction in a partition."""
        return [
            entry for entry in self.logs[partition].readable if entry.value.name == transaction.name
        ]

    def hide(self, transaction: Any, *partitions: int) -> None:
        for partition in partitions:
            for entry in self.find(partition, transaction):
                self.logs[partition].readable.remove(entry)

    def show(self, transaction: Any, *partitions: int) -> None:
        """Make a transaction readable that is not."""
        for partition in partitions:
            log = self.logs[partition]
            log.readable += [
                entry
                for entry in log.raw
                if isinstance(entry, Entry) and entry.value.name == transaction.name
            ]
            log.readable.sort()

    def call(self, took: float, bound: float = 3.0) -> None:
        self.second.calls.append(Call("commit_transaction", 120.0, took, bound))

    def found(
        self, *, offsets: int | None = 0, more: dict[int, int] | None = None, **changes: Any
    ) -> dict[str, int]:
        """Return what the audit finds if the evidence has these changes.

        *offsets*: how far the group's offset is from the right one; None: there is none. *more*:
        those of other partitions.
        """
        for log in self.logs.values():
            log.end = log.end or len(log.raw)
            log.stable = log.stable or log.end
        given = {} if offsets is None else {7: self.inputs + offsets}
        known: dict[str, Any] = {"group": True, "delivery_timeout": DELIVERY_TIMEOUT}
        evidence = Evidence(
            [self.first, self.second], self.logs, given | (more or {}), **(known | changes)
        )
        findings = audit(evidence)
        for defect, examples in findings.examples.items():
            assert 0 < len(examples) <= min(5, findings.counts[defect])
        return {defect.name: count for defect, count in findings.counts.items()}
