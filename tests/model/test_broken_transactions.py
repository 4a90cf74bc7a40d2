"""The model detects broken rules of transactions: each one is removed in turn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from pykaproducer._machines.batch import Batch
from pykaproducer._machines.coordination import CommitOutcome, Ending
from pykaproducer._machines.partition_buffer import PartitionBuffer
from pykaproducer._machines.sequencing import ProducerId, Sequencer
from pykaproducer._machines.transaction_effects import Effect
from pykaproducer._machines.transaction_states import (
    IllegalTransactionMove,
    Touch,
    TransactionCall,
    TransactionState,
)
from pykaproducer._machines.transactions import TransactionMachine
from pykaproducer._pipeline.broker import BrokerWorker

from .coordinator_stages import ModelCoordinator, TransactionalPipeline
from .promises import ViolationError
from .test_broken_rules import BOUNDED
from .test_broken_rules import assert_found as assert_found_within
from .transactional_machine import TransactionalModel, TransactionalModelBefore

#: Some need a rare sequence: a fault between two answers, and no other one before.
_SEQUENCES = 6_000

_BOTH = pytest.mark.parametrize("model", [TransactionalModel, TransactionalModelBefore])


def assert_found(model: type[TransactionalModel], promise: str) -> None:
    assert_found_within(model, promise, within=_SEQUENCES)


def with_machine(
    model: type[TransactionalModel], machine: type[TransactionMachine]
) -> type[TransactionalModel]:
    """Return *model* with another state machine in the product."""
    return type("Broken", (model,), {"machine_type": machine})


# The end of a transaction -------------------------------------------------------------------------


class HastyMachine(TransactionMachine):
    """Sends EndTxn(abort) although AddPartitionsToTxn has not been answered."""

    def _make_due_moves(self, now: float) -> None:
        if self.state is TransactionState.DRAINING:
            self._request = None
        super()._make_due_moves(now)


def test_an_end_before_partitions_are_added_is_found() -> None:
    # The state machine itself may notice the answer to the request that it has forgotten.
    with pytest.raises((ViolationError, IllegalTransactionMove)):
        run_state_machine_as_test(
            with_machine(TransactionalModelBefore, HastyMachine),
            settings=settings(BOUNDED, max_examples=_SEQUENCES),
        )


class ThriftyMachine(TransactionMachine):
    """Keeps the epoch after an abort although a sealed batch was not confirmed."""

    def drained(self, serial: int, now: float, *, spent: bool) -> list[Effect]:
        return super().drained(serial, now, spent=False)


def test_an_abort_that_keeps_the_epoch_of_unconfirmed_batches_is_found() -> None:
    assert_found(with_machine(TransactionalModelBefore, ThriftyMachine), r"T\d|reported")


class ImpatientMachine(TransactionMachine):
    """Sends EndTxn(commit) without waiting for the rows."""

    def _flush(self, *args: Any) -> list[Effect]:
        effects = super()._flush(*args)
        if self.state is TransactionState.FLUSHING:
            self._transaction.settled = True
        return [*effects, *self._run(args[2])]


@_BOTH
def test_a_commit_that_does_not_wait_for_rows_is_found(model: type[TransactionalModel]) -> None:
    assert_found(with_machine(model, ImpatientMachine), r"T\d")


class CarelessMachine(TransactionMachine):
    """Returns from send_offsets_to_transaction() before the group has answered."""

    def offsets(self, *args: Any, **options: Any) -> list[Effect]:
        effects = super().offsets(*args, **options)
        self._transaction.pending_offsets.clear()
        self._calls.finish()
        return [*effects, *self._take()]


def test_a_commit_that_does_not_wait_for_offsets_is_found() -> None:
    assert_found(with_machine(TransactionalModel, CarelessMachine), r"T\d")


class Blind(Touch):
    """Does not record that a transaction was written to."""

    def set(self, now: float) -> None:
        pass


class BlindMachine(TransactionMachine):
    """Ends each transaction as if nothing was written in it."""

    def _publish(self) -> None:
        self._transaction.touch = Blind()
        super()._publish()


@_BOTH
def test_a_commit_without_end_txn_is_found(model: type[TransactionalModel]) -> None:
    assert_found(with_machine(model, BlindMachine), r"T\d")


# What is told -------------------------------------------------------------------------------------


class SureMachine(TransactionMachine):
    """Tells a commit as failed although an EndTxn without an answer may have committed it."""

    def _ending(self) -> Ending | None:
        ending = super()._ending()
        return None if ending is None else replace(ending, unconfirmed=False)


@_BOTH
def test_a_possible_commit_told_as_none_is_found(model: type[TransactionalModel]) -> None:
    assert_found(with_machine(model, SureMachine), r"T\d")


class HopefulMachine(TransactionMachine):
    """Tells a commit as done although EndTxn was answered with an error."""

    def _fail(self, found: Any, now: float) -> None:
        if self.state is TransactionState.ENDING_COMMIT:
            self._ended(CommitOutcome.COMMITTED, now)
        else:
            super()._fail(found, now)


@_BOTH
def test_a_commit_told_after_an_error_is_found(model: type[TransactionalModel]) -> None:
    assert_found(with_machine(model, HopefulMachine), r"T\d")


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


@_BOTH
def test_a_batch_that_is_written_after_the_abort_is_found(model: type[TransactionalModel]) -> None:
    broken = {"pipeline_type": HoardingPipeline, "replaced": {"PartitionBuffer": HoardingBuffer}}
    assert_found(type("Broken", (model,), broken), r"T\d|reported")


class StubbornMachine(TransactionMachine):
    """Ignores the epoch in the answer to EndTxn."""

    def _ended(
        self, outcome: CommitOutcome | None, now: float, producer: ProducerId | None = None
    ) -> None:
        super()._ended(outcome, now)


def test_an_ignored_epoch_is_found() -> None:
    assert_found(with_machine(TransactionalModel, StubbornMachine), "T7")


class ContinuingSequencer(Sequencer):
    """Continues the sequence numbers in the next epoch."""

    def adopt_transaction(self, producer: ProducerId) -> bool:
        following = self.next_sequence
        changed = super().adopt_transaction(producer)
        self.next_sequence = following
        return changed


def test_sequence_numbers_that_continue_in_another_epoch_are_found() -> None:
    class Broken(TransactionalModel):
        replaced: ClassVar[dict[str, Any]] = {"Sequencer": ContinuingSequencer}

    assert_found(Broken, "T7")


class LenientCoordinator(ModelCoordinator):
    """Does not fail the rows without outcome when a transaction is aborted."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)

        def fail_nothing(failure: object, done: Callable[[], None]) -> None:
            done()

        self._fail_rows = fail_nothing


@_BOTH
def test_a_row_in_the_next_transaction_is_found(model: type[TransactionalModel]) -> None:
    class Lenient(TransactionalPipeline):
        coordinator_type = LenientCoordinator

    assert_found(type("Broken", (model,), {"pipeline_type": Lenient}), r"T\d")


# The protocols ------------------------------------------------------------------------------------


class ForgetfulMachine(TransactionMachine):
    """Forgets a partition that is wanted while a request is under way."""

    def partition_wanted(self, serial: int, topic: str, partition: int, now: float) -> list[Effect]:
        if self._request is not None:
            return []
        return super().partition_wanted(serial, topic, partition, now)


def test_a_partition_that_is_never_added_is_found() -> None:
    assert_found(with_machine(TransactionalModelBefore, ForgetfulMachine), "T7")


class FickleMachine(TransactionMachine):
    """Changes the protocol within a transaction."""

    def coordinator_found(self, protocol: int, now: float) -> list[Effect]:
        self.protocol = protocol
        return super().coordinator_found(protocol, now)


@_BOTH
def test_another_protocol_within_a_transaction_is_found(model: type[TransactionalModel]) -> None:
    assert_found(with_machine(model, FickleMachine), "one protocol")


class TrustingMachine(TransactionMachine):
    """Begins with the protocol of the last transaction whatever the coordinator offers now."""

    def _renew_if_protocol_changed(self) -> bool:
        self.protocol = self._offered
        return False


@_BOTH
def test_another_protocol_in_the_same_epoch_is_found(model: type[TransactionalModel]) -> None:
    assert_found(with_machine(model, TrustingMachine), r"T\d|one protocol")


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


@_BOTH
def test_a_call_that_never_ends_is_found(model: type[TransactionalModel]) -> None:
    assert_found(with_machine(model, ForgottenCallers), "T7")
