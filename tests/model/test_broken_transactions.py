"""The model detects broken rules of transactions: each one is removed in turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pykaproducer._machines.batch import Batch
from pykaproducer._machines.coordination import CommitOutcome, Ending
from pykaproducer._machines.partition_buffer import PartitionBuffer
from pykaproducer._machines.sequencing import ProducerId, Sequencer
from pykaproducer._machines.transaction_effects import Effect, OpenAdmission
from pykaproducer._machines.transaction_record import Touch
from pykaproducer._machines.transaction_states import TransactionCall, TransactionState
from pykaproducer._machines.transactions import TransactionMachine
from pykaproducer._pipeline.broker import BrokerWorker

from .coordinator_stages import ModelCoordinator, TransactionalPipeline
from .test_broken_rules import assert_found
from .transactional_machine import TransactionalModel, TransactionalModelBefore
from .watched_machine import WatchedMachine

#: Some need a rare sequence: a fault between two answers, and no other one before.
_SEQUENCES = 6_000

# The end of a transaction -------------------------------------------------------------------------


class HastyMachine(TransactionMachine):
    """Sends EndTxn(abort) although AddPartitionsToTxn has not been answered."""

    def _make_due_moves(self, now: float) -> None:
        if self.state is TransactionState.DRAINING:
            self._request = None
        super()._make_due_moves(now)


class ThriftyMachine(TransactionMachine):
    """Keeps the epoch after an abort although a sealed batch was not confirmed."""

    def drained(self, serial: int, now: float, *, spent: bool) -> list[Effect]:
        return super().drained(serial, now, spent=False)


class ImpatientMachine(TransactionMachine):
    """Sends EndTxn(commit) without waiting for the rows."""

    def _flush(self, *args: Any) -> list[Effect]:
        effects = super()._flush(*args)
        if self.state is TransactionState.FLUSHING:
            self._transaction.settled = True
        return [*effects, *self._run(args[2])]


class CarelessMachine(TransactionMachine):
    """Returns from send_offsets_to_transaction() before the group has answered."""

    def offsets(self, *args: Any, **options: Any) -> list[Effect]:
        effects = super().offsets(*args, **options)
        self._transaction.pending_offsets.clear()
        self._calls.finish()
        return [*effects, *self._take()]


class Blind(Touch):
    """Does not record that a transaction was written to."""

    def set(self, now: float) -> None:
        pass


class BlindMachine(TransactionMachine):
    """Ends each transaction as if nothing was written in it."""

    def _publish(self) -> None:
        self._transaction.touch = Blind()
        super()._publish()


# What is told -------------------------------------------------------------------------------------


class SureMachine(TransactionMachine):
    """Tells a commit as failed although an EndTxn without an answer may have committed it."""

    def _ending(self) -> Ending | None:
        ending = super()._ending()
        return None if ending is None else ending._replace(unconfirmed=False)


class HopefulMachine(TransactionMachine):
    """Tells a commit as done although EndTxn was answered with an error."""

    def _fail(self, found: Any, now: float) -> None:
        if self.state is TransactionState.ENDING_COMMIT:
            self._ended(CommitOutcome.COMMITTED, now)
        else:
            super()._fail(found, now)


# The next transaction -----------------------------------------------------------------------------


class HoardingBuffer(PartitionBuffer):
    """Keeps the sealed batches of the transaction before."""

    def drop_batches(self) -> None:
        self.unpack()
        self.sweep()

    def _drop_if_unneeded(self, batch: Batch) -> bool:
        return False


class HoardingPipeline(TransactionalPipeline):
    """Writes batches although their epoch has ended."""

    def _new_broker_worker(self, broker_id: int) -> BrokerWorker:
        worker = super()._new_broker_worker(broker_id)
        worker._builder._sealed_before = lambda buffer, batch: batch  # type: ignore[method-assign]
        return worker


class StubbornMachine(TransactionMachine):
    """Ignores the epoch in the answer to EndTxn."""

    def _ended(
        self, outcome: CommitOutcome | None, now: float, producer: ProducerId | None = None
    ) -> None:
        super()._ended(outcome, now)


class ContinuingSequencer(Sequencer):
    """Continues the sequence numbers in the next epoch."""

    def adopt_transaction(self, producer: ProducerId) -> bool:
        following = self.next_sequence
        changed = super().adopt_transaction(producer)
        self.next_sequence = following
        return changed


class LenientCoordinator(ModelCoordinator):
    """Does not fail the rows without outcome when a transaction is aborted."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)

        def fail_nothing(failure: object, done: Callable[[], None]) -> None:
            done()

        self._fail_rows = fail_nothing


# The protocols ------------------------------------------------------------------------------------


class ForgetfulMachine(TransactionMachine):
    """Forgets a partition that is wanted while a request is under way."""

    def partition_wanted(self, serial: int, topic: str, partition: int, now: float) -> list[Effect]:
        if self._request is not None:
            return []
        return super().partition_wanted(serial, topic, partition, now)


class FickleMachine(TransactionMachine):
    """Changes the protocol within a transaction."""

    def coordinator_found(self, protocol: int, now: float) -> list[Effect]:
        self.protocol = protocol
        return super().coordinator_found(protocol, now)


class TrustingMachine(TransactionMachine):
    """Begins with the protocol of the last transaction whatever the coordinator offers now."""

    def _renew_if_protocol_changed(self) -> bool:
        self.protocol = self._offered
        return False


# Callers ------------------------------------------------------------------------------------------


class ForgottenCallers(TransactionMachine):
    """Forgets to tell the caller of abort_transaction() when nothing had to be ended."""

    def _ended(
        self, outcome: CommitOutcome | None, now: float, producer: ProducerId | None = None
    ) -> None:
        call = self._calls.under_way
        if call is not None and call.call is TransactionCall.ABORT and producer is None:
            call.callers.clear()
        super()._ended(outcome, now, producer)


# What the machine asks for ------------------------------------------------------------------------


class UnsureMachine(WatchedMachine):
    """Tells a commit as possible although the coordinator has refused it."""

    def _ending(self) -> Ending | None:
        ending = super()._ending()
        return None if ending is None else ending._replace(unconfirmed=True)


class OpenMachine(WatchedMachine):
    """Accepts rows until the transaction has ended."""

    def _publish(self) -> None:
        super()._publish()
        if self.state is TransactionState.FLUSHING:
            self._effects.append(OpenAdmission())


class Lenient(TransactionalPipeline):
    coordinator_type = LenientCoordinator


_BOTH, _FIRST, _SECOND = "both", "TV1", "TV2"
_MODELS = {_FIRST: TransactionalModelBefore, _SECOND: TransactionalModel}
#: What is broken: the protocols in which it is found, what is replaced, and the promise.
RULES: dict[str, tuple[str, type[TransactionMachine] | dict[str, Any], str]] = {
    # The state machine itself may notice the answer to the request that it has forgotten.
    "an end before partitions are added": (
        _FIRST,
        HastyMachine,
        r"T\d|an answer to request|one request",
    ),
    "an abort keeps the epoch of unconfirmed batches": (_FIRST, ThriftyMachine, r"T\d|reported"),
    "a commit does not wait for rows": (_BOTH, ImpatientMachine, r"T\d"),
    "a commit does not wait for offsets": (_SECOND, CarelessMachine, r"T\d"),
    "a commit without EndTxn": (_BOTH, BlindMachine, r"T\d"),
    "a possible commit told as none": (_BOTH, SureMachine, r"T\d"),
    "a commit told after an error": (_BOTH, HopefulMachine, r"T\d"),
    "a batch written after the abort": (
        _BOTH,
        {"pipeline_type": HoardingPipeline, "replaced": {"PartitionBuffer": HoardingBuffer}},
        r"T\d|reported",
    ),
    "an ignored epoch": (_SECOND, StubbornMachine, r"T\d"),
    "sequence numbers continue in another epoch": (
        _SECOND,
        {"replaced": {"Sequencer": ContinuingSequencer}},
        "T7",
    ),
    "a row in the next transaction": (_BOTH, {"pipeline_type": Lenient}, r"T\d"),
    "a partition is never added": (_FIRST, ForgetfulMachine, "T7"),
    "another protocol within a transaction": (_BOTH, FickleMachine, "one protocol"),
    "another protocol in the same epoch": (_BOTH, TrustingMachine, r"T\d|one protocol"),
    "a call never ends": (_BOTH, ForgottenCallers, "T7"),
    "a refused commit told as possible": (_BOTH, UnsureMachine, "machine: .* is told although"),
    "rows are accepted while the transaction ends": (_BOTH, OpenMachine, "machine: admission"),
}
#: They need a rare sequence: thousands are tried.
_RARE = {
    "an end before partitions are added, TV1",
    "an abort keeps the epoch of unconfirmed batches, TV1",
    "a possible commit told as none, TV1",
    "a possible commit told as none, TV2",
    "a commit told after an error, TV2",
    "another protocol within a transaction, TV1",
    "another protocol within a transaction, TV2",
    "another protocol in the same epoch, TV1",
    "another protocol in the same epoch, TV2",
    "a refused commit told as possible, TV1",
    "a refused commit told as possible, TV2",
}
_CASES = [
    pytest.param(
        *(model, broken, promise),
        id=f"{name}, {protocol}",
        marks=pytest.mark.full if f"{name}, {protocol}" in _RARE else (),
    )
    for name, (protocols, broken, promise) in RULES.items()
    for protocol, model in _MODELS.items()
    if protocols in (_BOTH, protocol)
]


@pytest.mark.parametrize(("model", "broken", "promise"), _CASES)
def test_a_broken_rule_is_found(
    model: type[TransactionalModel], broken: type[TransactionMachine] | dict[str, Any], promise: str
) -> None:
    changes = broken if isinstance(broken, dict) else {"machine_type": broken}
    assert_found(type("Broken", (model,), changes), promise, within=_SEQUENCES)
