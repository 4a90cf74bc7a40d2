"""Snapshot of the transactions of a producer, for ``stats()``. See ``snapshot.py``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from pykaproducer._machines.coordination import TV1
from pykaproducer._machines.transaction_states import TransactionState
from pykaproducer._pipeline.partition import PartitionWorker
from pykaproducer._pipeline.transaction_errors import error_of
from pykaproducer._pipeline.transaction_observer import IN_PROGRESS, TransactionObserver

if TYPE_CHECKING:
    from pykaproducer._machines.transaction_record import TransactionView
    from pykaproducer._machines.transactions import TransactionMachine
    from pykaproducer._pipeline.metrics import TransactionMetrics
    from pykaproducer._pipeline.wiring import Pipeline

_S = TransactionState

#: The names of the states for users.
STATES = {
    _S.UNINITIALIZED: "uninitialized",
    _S.INITIALIZING: "initializing",
    _S.READY: "ready",
    _S.IN_TRANSACTION: "open",
    _S.FLUSHING: "flushing",
    _S.ENDING_COMMIT: "committing",
    _S.ABORTABLE: "abortable",
    _S.DRAINING: "aborting",
    _S.ENDING_ABORT: "aborting",
    _S.PREPARED: "prepared",
    _S.FATAL: "fatal",
}


class ObservedCoordinator(Protocol):
    """The parts of the stage Coordinator that are used here."""

    @property
    def machine(self) -> TransactionMachine: ...

    @property
    def observer(self) -> TransactionObserver: ...

    @property
    def address(self) -> str | None: ...


def counts(transactional_id: str, metrics: TransactionMetrics) -> dict[str, Any]:
    """Describe the transactions of a producer that is not started, or closed."""
    return {
        "transactional_id": transactional_id,
        "state": STATES[_S.UNINITIALIZED],
        "state_s": None,
        "serial": 0,
        "protocol": None,
        "producer_id": -1,
        "producer_epoch": -1,
        "assigned_s": None,
        "assignments": 0,
        "open_s": None,
        "partitions": 0,
        "coordinator": None,
        "error": None,
        "committed": metrics.commit.count,
        "aborted": metrics.abort.count,
        "fenced": metrics.fenced.count,
    }


def details(
    coordinator: ObservedCoordinator, partitions: Callable[[TransactionView], int], now: float
) -> dict[str, Any]:
    """Return the entries that :func:`counts` lacks. *partitions* counts those of a transaction."""
    machine, observer = coordinator.machine, coordinator.observer
    state, producer, failure = machine.state, machine.producer, machine.failure
    found: dict[str, Any] = {
        "transactional_id": machine.transactional_id,
        "state": STATES[state],
        "state_s": _age(observer.changed_at, now),
        "serial": machine.serial,
        "assignments": observer.assignments,
        "coordinator": coordinator.address,
    }
    if producer is not None:
        found["protocol"] = machine.protocol
        found["producer_id"], found["producer_epoch"] = producer.producer_id, producer.epoch
        found["assigned_s"] = _age(observer.assigned_at, now)
    if state in IN_PROGRESS:
        found["open_s"] = _age(observer.begun_at, now)
        found["partitions"] = partitions(machine.view)
    if failure is not None and state in (_S.ABORTABLE, _S.FATAL):
        found["error"] = str(error_of(failure, machine.transactional_id))
    return found


def _age(since: float | None, now: float) -> float | None:
    return None if since is None else max(0.0, now - since)


def partitions_in(pipeline: Pipeline, view: TransactionView) -> int:
    """Return to how many partitions messages were sent in the transaction *view*."""
    if view.protocol == TV1:
        return len(view.added)
    # The object, not its value, tells this transaction from the last one.
    workers = [each for each in list(pipeline.stages) if isinstance(each, PartitionWorker)]
    buffers = [worker.buffer for worker in workers]
    return sum(each is not None and each.sequencer.producer is view.producer for each in buffers)
