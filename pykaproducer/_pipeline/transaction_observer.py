"""TransactionObserver: counts and logs what happens to transactions. Part of Coordinator.

It looks at the state machine after each event, and before the effects of the event are performed.
So a transaction is counted before the call that ends it returns. It changes nothing.

It logs changes, not each transaction: the initialization; that transactions cannot be committed,
once for each reason; that they are committed again; and a fatal error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from pykaproducer._machines.coordination import CommitOutcome
from pykaproducer._machines.transaction_states import (
    ENDING,
    FailureKind,
    TransactionFailure,
    TransactionState,
)
from pykaproducer._pipeline.transaction_errors import error_of
from pykaproducer._util.guarded_log import GuardedLogger

if TYPE_CHECKING:
    from pykaproducer._machines.transactions import TransactionMachine
    from pykaproducer._pipeline.metrics import TransactionMetrics

log = GuardedLogger("pykaproducer.transactions")

_S = TransactionState

#: A transaction that was begun has not ended yet.
IN_PROGRESS: Final = ENDING | {_S.IN_TRANSACTION, _S.ABORTABLE}


class TransactionObserver:
    """Looks at the *machine* of one producer. Used by its stage, and read by any thread.

    *coordinator* returns the address of the coordinator, None if it is not known.
    """

    def __init__(
        self,
        machine: TransactionMachine,
        metrics: TransactionMetrics,
        coordinator: Callable[[], str | None],
    ) -> None:
        self._machine = machine
        self._metrics = metrics
        self._coordinator = coordinator
        self._state = machine.state
        self._serial = 0
        self._producer: object = None
        # Monotonic seconds, for any thread. None: not yet.
        #: When the state has changed.
        self.changed_at: float | None = None
        #: When the last transaction was begun.
        self.begun_at: float | None = None
        #: When the producer id or the epoch was assigned.
        self.assigned_at: float | None = None
        #: How often that has happened.
        self.assignments = 0
        # When an initialization, a commit or an abort has begun.
        self._since = 0.0
        # The id and the protocol that were logged; and why transactions cannot be committed.
        self._initialized: tuple[str, int] | None = None
        self._reason: Any = None

    def look(self, now: float) -> None:
        """Count and log what has changed since the last look."""
        machine = self._machine
        if machine.serial != self._serial:
            self._serial, self.begun_at = machine.serial, now
        state = machine.state
        if state is self._state:
            return
        before, self._state, self.changed_at = self._state, state, now
        if machine.producer is not None and machine.producer != self._producer:
            self.assignments += 1
            self.assigned_at = now
        self._producer = machine.producer
        if before not in ENDING | {_S.INITIALIZING}:
            self._since = now
        if before in IN_PROGRESS and state not in IN_PROGRESS:
            self._ended(state, now)
        match state:
            case _S.READY:
                self._initialized_as(now)
            case _S.UNINITIALIZED | _S.PREPARED:
                self._initialized = None
            case _S.ABORTABLE:
                assert machine.failure is not None, "an abortable state has a reason"
                self._log_abortable(machine.failure)
            case _S.FATAL:
                assert machine.failure is not None, "a fatal state has a reason"
                if machine.failure.kind is FailureKind.FENCED:
                    self._metrics.fenced.add(now, 1)
                log.error("%s", error_of(machine.failure, machine.transactional_id))

    def _ended(self, state: TransactionState, now: float) -> None:
        """Count a transaction, unless it is prepared or its end is not known."""
        if self._machine.outcome is CommitOutcome.COMMITTED:
            self._metrics.commit.add(now, now - self._since)
            if self._reason is not None:
                self._reason = None
                log.info(
                    "transactional id %r: transactions are committed again",
                    self._machine.transactional_id,
                )
        elif state in (_S.READY, _S.INITIALIZING):
            self._metrics.abort.add(now, now - self._since)

    def _initialized_as(self, now: float) -> None:
        """Count and log an initialization, unless it was only for a new epoch after an abort."""
        machine, producer = self._machine, self._machine.producer
        assert producer is not None, "READY has a producer id"
        done = (machine.transactional_id, machine.protocol)
        if done == self._initialized:
            return
        name, protocol = self._initialized or (None, None)
        self._initialized = done
        if name == machine.transactional_id:
            log.info(
                "transactional id %r: the transaction protocol is now %d, it was %d",
                *(name, machine.protocol, protocol),
            )
            return
        self._metrics.init.add(now, now - self._since)
        log.info(
            "transactional id %r: initialized, with producer id %d and epoch %d; the coordinator "
            "is %s, the transaction protocol %d",
            machine.transactional_id,
            producer.producer_id,
            producer.epoch,
            self._coordinator() or "not known",
            machine.protocol,
        )

    def _log_abortable(self, failure: TransactionFailure) -> None:
        reason = (failure.code, failure.timed_out, type(failure.cause))
        if reason != self._reason:
            self._reason = reason
            log.warning("%s", error_of(failure, self._machine.transactional_id))
