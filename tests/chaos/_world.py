"""A fabricated history of transactions, and the logs that fit to it."""

from __future__ import annotations

import importlib
from typing import Any

#: Seconds.
DELIVERY_TIMEOUT = 4.0


class World:
    """Two instances of an id, and two partitions.

    Instance 1 has committed transaction 1, aborted transaction 2, and was killed while it committed
    transaction 3, which is readable. Instance 2 took over at 100 s and committed transaction 1.
    Each has two messages in each partition, computed from the inputs of one partition in turn.
    """

    def __init__(self) -> None:
        self.audit = importlib.import_module("benchmarks.chaos.transactions.audit")
        self.history = importlib.import_module("benchmarks.chaos.transactions.history")
        self.reported = self.history.Reported
        self.first = self.history.Instance(1, "id", ready_at=10.0)
        self.second = self.history.Instance(2, "id", ready_at=100.0, closed_at=200.0)
        self.logs: dict[int, Any] = {0: self.audit.Log(), 1: self.audit.Log()}
        self.inputs = 0
        self.committed = self.add(self.first, 1, 20.0, "commit", self.reported.COMMITTED)
        self.aborted = self.add(self.first, 2, 30.0, "abort", self.reported.NOT_COMMITTED)
        self.killed = self.add(self.first, 3, 40.0, "commit", None)
        self.killed.outcomes = None
        self.last = self.add(self.second, 1, 110.0, "commit", self.reported.COMMITTED)
        self.evidence: dict[str, Any] = {
            "offsets": {7: self.inputs},
            "group": True,
            "delivery_timeout": DELIVERY_TIMEOUT,
        }

    def add(self, instance: Any, serial: int, at: float, requested: str, reported: Any) -> Any:
        """Add a transaction with an epoch of its own."""
        name = self.history.Name(instance.number, serial)
        transaction = self.history.Transaction(
            name, at, requested, at + 1.0, 4, reported, at + 2.0, [], [], (at, at + 0.5)
        )
        instance.transactions[serial] = transaction
        readable = requested == "commit"
        epoch = 10 * instance.number + serial
        for number in range(4):
            log, partition = self.logs[number % 2], number % 2
            source = self.history.Source(7, self.inputs) if readable else None
            self.inputs += readable
            value = self.history.Value(name, number, partition, source)
            entry = self.audit.Entry(len(log.raw), value, 5, epoch, at)
            transaction.outcomes.append(len(log.raw))
            transaction.partitions.append(partition)
            log.raw.append(entry)
            if readable:
                log.readable.append(entry)
        for log in self.logs.values():
            log.raw.append(self.audit.Marker(len(log.raw), 5, epoch + 1, readable))
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
                if isinstance(entry, self.audit.Entry) and entry.value.name == transaction.name
            ]
            log.readable.sort()

    def call(self, took: float, bound: float = 3.0) -> None:
        self.second.calls.append(self.history.Call("commit_transaction", 120.0, took, bound))

    def found(self, **changes: Any) -> dict[str, int]:
        for log in self.logs.values():
            log.end = log.end or len(log.raw)
            log.stable = log.stable or log.end
        evidence = self.audit.Evidence(
            [self.first, self.second], self.logs, **{**self.evidence, **changes}
        )
        findings = self.audit.audit(evidence)
        for defect, examples in findings.examples.items():
            assert 0 < len(examples) <= min(5, findings.counts[defect])
        return {defect.name: count for defect, count in findings.counts.items()}
