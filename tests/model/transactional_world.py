"""One transactional producer, its program and its simulated cluster, without anything random."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

from pykaproducer._machines.coordination import TV1, TV2
from pykaproducer._machines.ordering import Transitions
from pykaproducer._machines.transaction_effects import AnswerCaller, Preparation
from pykaproducer._machines.transaction_states import (
    ENDING,
    OPEN,
    FailureKind,
    TransactionCall,
    TransactionFailure,
    TransactionState,
)
from pykaproducer._machines.transactions import TransactionMachine
from pykaproducer._pipeline.coordinator_items import CallerLeft, Control, ControlCaller
from pykaproducer._pipeline.group import OffsetsToSend
from pykaproducer._util.group_offsets import GroupMetadata, GroupOffset
from pykaproducer._wire.messages import ApiKey
from pykaproducer.config import Config
from pykaproducer.errors import CommitOutcome, TransactionError
from tests.kernel.helper import TOPIC

from .cluster import Fate
from .coordinator import State
from .coordinator_requests import answer_call
from .coordinator_stages import Call, ModelConnection, TransactionalDoor, TransactionalPipeline
from .promises import GRAIN, Message, check, check_log
from .stages import ModelBridge
from .transaction_promises import Told, check_transactions
from .transactional_log import TransactionalCluster
from .watched_machine import WatchedMachine
from .world import BROKERS, CALM, WELL, World

_C, _S = TransactionCall, TransactionState
#: The failures of a call that tell the outcome of a transaction.
_FINAL = (FailureKind.ABORTABLE, FailureKind.FENCED, FailureKind.FATAL)
#: The id of the producer.
NAME = "id"


class Caller(ControlCaller):
    """A caller that remembers which of some messages had no outcome when its call ended."""

    def __init__(self, messages: list[Message]) -> None:
        super().__init__()
        self._messages = messages
        #: Those without outcome, and those whose callback had not been called.
        self.open: list[Message] = []
        self.unreported: list[Message] = []

    def tell(self, result: AnswerCaller) -> None:
        self.unreported = [message for message in self._messages if not message.told]
        self.open = [each for each in self.unreported if each.handle and not each.handle.settled()]
        super().tell(result)


@dataclass(eq=False)
class Pending:
    """A control call of the program, which waits for its result."""

    call: TransactionCall
    caller: Caller
    #: The transaction that was open, or the last one.
    told: Told | None
    deadline: float | None
    asked: OffsetsToSend | None = None


@dataclass(eq=False)
class Prepared:
    """A transaction that another process has to end."""

    told: Told
    preparation: Preparation


class TransactionalWorld(World):
    """The program makes one control call at a time, and sends messages meanwhile."""

    pipeline_type: type[TransactionalPipeline] = TransactionalPipeline
    machine_type: type[TransactionMachine] = WatchedMachine
    #: Of the feature ``transaction.version`` at the beginning.
    level = 2
    cluster: TransactionalCluster
    pipeline: TransactionalPipeline
    door: TransactionalDoor

    def begin(self, leaders: list[int], transitions: Transitions, **settings: Any) -> None:
        self.transactions: list[Told] = []
        self.pending: Pending | None = None
        #: The transaction that was prepared last, until another process has ended it.
        self.prepared: Prepared | None = None
        #: The call that has timed out: only the same one, and an abort, are accepted.
        self.unfinished: Pending | None = None
        #: Requests to coordinators that a broker will still handle, on the connections that died.
        self.late_calls: list[tuple[int, Call]] = []
        #: What the coordinators do next.
        self.fates: Iterator[Fate] = itertools.repeat(WELL)
        #: Why the producer may be unusable, and why a transaction may fail.
        self.reasons: list[str] = []
        self.excuses: list[str] = []
        self.offset = 0
        self.closed = False
        chosen = {
            "transactional_id": NAME,
            "max_block_ms": 20_000,
            "transaction_timeout_ms": 600_000,
        }
        self._settings = chosen | settings
        with self._broken_rules():
            super().begin(leaders, transitions, **self._settings)

    @contextlib.contextmanager
    def _broken_rules(self) -> Iterator[None]:
        where = "pykaproducer._pipeline.coordinator.TransactionMachine"
        with mock.patch(where, self.machine_type):
            yield

    def new_cluster(self, leaders: list[int]) -> TransactionalCluster:
        return TransactionalCluster(BROKERS, leaders, self.level)

    def new_door(self) -> TransactionalDoor:
        return TransactionalDoor(Config(transactional_id=NAME))

    # The program -----------------------------------------------------------------------------

    @property
    def machine(self) -> TransactionMachine:
        return self.pipeline.transactions.machine

    def user_sends(self, partition: int, times: int, seconds: float) -> None:
        for _ in range(times):
            before = len(self.messages)
            try:
                super().user_sends(partition, 1, seconds)
            except TransactionError:
                # It was not accepted.
                del self.messages[before:]
                self.open = [message for message in self.open if message.number < before]
                return
            told = self._told(self.machine.serial)
            told.messages.append(self.messages[-1])

    def _told(self, serial: int) -> Told:
        """Return the transaction *serial*, whose beginning may not have been told yet."""
        if not self.transactions or self.transactions[-1].serial != serial:
            self.transactions.append(Told(serial))
        return self.transactions[-1]

    def user_calls(
        self, call: TransactionCall, seconds: float | None, asked: OffsetsToSend | None = None
    ) -> None:
        """Make a control call that waits for *seconds*; None: as long as it takes."""
        deadline = None if seconds is None else self.clock.monotonic() + seconds
        serial = self.machine.serial
        told = self._told(serial) if serial and call is not _C.INIT else None
        messages = [] if told is None else told.messages
        self.pending = Pending(call, Caller(messages), told, deadline, asked)
        control = Control(call, self.pending.caller, deadline, asked=asked)
        self.pipeline.transactions.put(control)

    def user_repeats(self, seconds: float | None) -> None:
        """Make the call again that has timed out."""
        assert self.unfinished is not None
        call = self.unfinished
        self.user_calls(call.call, seconds, call.asked)

    def user_leaves(self) -> None:
        """Interrupt the call."""
        assert self.pending is not None
        self.pipeline.transactions.put(CallerLeft(self.pending.caller))
        self._goes_on(self.pending)
        self.pending = None

    def user_sends_offsets(self, group: str, partition: int, seconds: float | None) -> None:
        """Call send_offsets_to_transaction() with an offset that is greater than all before."""
        self.offset += 1
        asked = OffsetsToSend(GroupMetadata(group), (GroupOffset(TOPIC, partition, self.offset),))
        self.user_calls(_C.OFFSETS, seconds, asked)

    def learn(self) -> None:
        """Read the result of the call, if it is there."""
        pending = self.pending
        if pending is None or pending.caller.result is None:
            return
        self.pending = None
        result = pending.caller.result
        failure = result.failure
        if failure is not None and failure.kind in (FailureKind.STATE, FailureKind.CONFLICT):
            return
        if pending.call is not _C.INIT or self._is_unfinished(_C.INIT):
            self.unfinished = None  # init_transactions() does not read the result of a commit
        if failure is None:
            self._succeeded(pending, result)
        else:
            self._failed(pending, failure)

    def _is_unfinished(self, call: TransactionCall) -> bool:
        return self.unfinished is not None and self.unfinished.call is call

    def _succeeded(self, pending: Pending, result: AnswerCaller) -> None:
        told, outcome = pending.told, result.outcome
        if pending.call in (_C.COMMIT, _C.PREPARE):
            waits = pending.caller.unreported
            check(not waits, "T7", f"{pending.call.value}() has ended before callbacks of {waits}")
        elif pending.call is _C.ABORT:
            check(not pending.caller.open, "T7", f"without outcome: {pending.caller.open}")
        match pending.call:
            case TransactionCall.BEGIN:
                self._told(self.machine.serial)
            case TransactionCall.OFFSETS:
                self._has_offsets(pending)
            case TransactionCall.COMMIT:
                assert told is not None
                check(outcome is CommitOutcome.COMMITTED, "T1", f"{told} has ended as {outcome}")
                self._end(told, CommitOutcome.COMMITTED)
            case TransactionCall.PREPARE:
                assert told is not None
                assert result.prepared is not None
                self.prepared = Prepared(told, result.prepared)
            case TransactionCall.ABORT:
                assert told is not None
                self._end(told, CommitOutcome.NOT_COMMITTED)
            case TransactionCall.CLOSE:
                if told is not None and told.outcome is None and outcome is not None:
                    self._end(told, outcome)

    def _failed(self, pending: Pending, failure: TransactionFailure) -> None:
        told = pending.told
        if failure.kind is FailureKind.TIMEOUT:
            early = pending.deadline is not None and self.clock.monotonic() < pending.deadline
            check(not early, "T7", f"{pending} has timed out too early")
            self._goes_on(pending)
        elif told is not None and failure.kind in _FINAL and failure.outcome is not None:
            self._end(told, failure.outcome)

    def _goes_on(self, pending: Pending) -> None:
        """Record that a call goes on although the program does not wait for it."""
        self.unfinished, told = pending, pending.told
        if pending.call is _C.OFFSETS:
            self._has_offsets(pending)
        elif pending.call is _C.COMMIT and told is not None and told.outcome is None:
            told.outcome = CommitOutcome.POSSIBLY_COMMITTED

    def _has_offsets(self, pending: Pending) -> None:
        assert pending.asked is not None
        assert pending.told is not None
        for each in pending.asked.offsets:
            place = pending.asked.group.group_id, each.partition
            pending.told.offsets[place] = each.offset

    def _end(self, told: Told, outcome: CommitOutcome) -> None:
        known = {told.outcome, outcome}
        contradiction = known == {CommitOutcome.COMMITTED, CommitOutcome.NOT_COMMITTED}
        check(not contradiction, "T2", f"{told} has now ended as {outcome.name}")
        if told.outcome in (None, CommitOutcome.POSSIBLY_COMMITTED):
            told.outcome = outcome

    # The cluster -----------------------------------------------------------------------------

    def serve(self, fates: Iterator[Fate]) -> bool:
        done = super().serve(fates)
        connections = self.pipeline.connections_that
        for connection in connections("wants"):
            connection.connected(True, self.cluster)
            done = True
        for connection in connections("unhandled"):
            connection.taken_by_broker(self.cluster, next(self.fates))
        for connection in connections("handled"):
            connection.answered()
            done = True
        return self.cluster.write_marker() or done

    def go_until(self, request: ApiKey) -> ModelConnection | ModelBridge | None:
        """Let everything go well until *request* is unanswered; return its connection, if any."""
        for _ in range(60):
            self.run_all()
            self.learn()
            for bridge in self.bridges("unhandled"):
                if request is ApiKey.PRODUCE:
                    return bridge
            for connection in self.pipeline.connections_that("unhandled"):
                if connection.wire[0][1].api_key == request:
                    return connection
            if not self._serve_once():
                break
        return None

    def _serve_once(self) -> bool:
        """Let one server do one thing; return whether there was anything to do."""
        connections = self.pipeline.connections_that
        if self.metadata.wire:
            self.metadata.answered(self.cluster)
        elif bridge := next(iter(self.bridges("wants")), None):
            bridge.connected(True)
        elif connection := next(connections("wants"), None):
            connection.connected(True, self.cluster)
        elif bridge := next(iter(self.bridges("handled")), None):
            bridge.answered()
        elif bridge := next(iter(self.bridges("unhandled")), None):
            bridge.taken_by_broker(self.cluster, [WELL])
        elif connection := next(connections("handled"), None):
            connection.answered()
        elif connection := next(connections("unhandled"), None):
            connection.taken_by_broker(self.cluster, WELL)
        else:
            return self.cluster.write_marker()
        return True

    def handle_late_call(self, which: int) -> None:
        """Handle a request to a coordinator of a dead connection after all."""
        broker, call = self.late_calls.pop(which % len(self.late_calls))
        was_open = self.cluster.coordinator.state is State.ONGOING
        answer_call(self.cluster, broker, *call, WELL)
        if not was_open and self.cluster.coordinator.state is State.ONGOING:
            # With the first protocol it has the epoch of the next transaction, too. The next
            # InitProducerId of the producer then fences the producer itself.
            self.reasons.append("a request to add partitions came late, and began a transaction")

    def time_out(self) -> None:
        """Let the coordinator abort the transaction, as its timeout has passed."""
        coordinator = self.cluster.coordinator
        first = coordinator.level < 2 or self.machine.protocol == TV1
        if coordinator.time_out() and first:
            self.reasons.append("its transaction has timed out, with the first protocol")

    def take_over(self) -> bool:
        """Let another instance call init_transactions(); return whether it has succeeded."""
        self.reasons.append("another instance has come")
        return self.cluster.take_over()

    def end_prepared(self, *, commits: bool) -> None:
        """Let another process end the transaction that was prepared."""
        assert self.prepared is not None
        told, found = self.prepared.told, self.prepared.preparation
        self.prepared = None
        if found.empty:
            return
        producer = found.producer
        answer = self.cluster.end(
            producer.producer_id, producer.epoch, commits=commits, bumps=found.protocol == TV2
        )
        if not answer.code:
            self._end(told, CommitOutcome.COMMITTED if commits else CommitOutcome.NOT_COMMITTED)

    # Invariants ------------------------------------------------------------------------------

    def check_now(self) -> None:
        self.learn()
        super().check_now()
        busy = {*self.schedule.busy(), *self.schedule.held_up}
        pending, pipeline = self.pending, self.pipeline
        if pending is None or pending.deadline is None:
            return
        if not busy & {pipeline.dispatcher, pipeline.transactions}:
            late = self.clock.monotonic() > pending.deadline + GRAIN
            check(not late, "T7", f"{pending.call.value}() has not ended in its time")

    def stop_faults(self) -> None:
        super().stop_faults()
        self.fates = itertools.repeat(WELL)
        self.cluster.named = self.cluster.coordinating

    def calm_down(self) -> None:
        super().calm_down()
        if self.pending is not None:
            check(False, "T7", f"{self.pending.call.value}() waits forever")

    def check_the_end(self) -> None:
        self.calm_down()
        if not self.closed:
            self._end_program()
        # The worst case: lingering requests are handled last.
        while self.late:
            self.handle_late(0)
        while self.late_calls:
            self.handle_late_call(0)
        while self.cluster.coordinator.time_out() or self.cluster.write_marker():
            pass
        check_log(self.messages, self.cluster, idempotent=True)
        check_transactions(self.transactions, self.cluster)
        check(not self.pipeline.incomplete.chunks(), "P3", "something counts as in flight")
        check(self.door.budget.used == 0, "P2", f"{self.door.budget.used} bytes are not given back")

    def _end_program(self) -> None:
        """End what is open, and commit one more transaction."""
        if self.machine.state in OPEN and self.machine.serial % 2:
            self.call(_C.COMMIT)
        self.get_ready()
        state = self.machine.state
        if state is _S.FATAL:
            failure, reasons = self.machine.failure, self.reasons
            assert failure is not None
            if failure.outcome is CommitOutcome.POSSIBLY_COMMITTED:
                reasons = reasons or ["a commit was refused"] * self.cluster.has_refused_a_commit
            if self.cluster.has_left_the_protocol:
                reasons = ["the cluster has left the protocol"]
            check(bool(reasons), "T7", f"the producer is unusable: {failure}")
            return
        check(state not in ENDING, "T7", f"{state.name} does not end")
        partitions = range(len(self.cluster.logs))
        if not self.transact(partitions) and self.excuses and not self.reasons:
            self.call(_C.ABORT)
            self.transact(partitions)
        told, reasons = self.transactions[-1], self.reasons
        well = told.outcome is CommitOutcome.COMMITTED and told.messages
        check(bool(well or reasons), "T7", f"{told} is not committed")

    def get_ready(self) -> bool:
        """Let everything go well until the next transaction can begin; return whether it can."""
        self.stop_faults()
        if self.pending is not None:
            self.wait()
        if self.unfinished is not None:
            self.user_repeats(None)
            self.wait()
        if self.machine.state in OPEN | {_S.ABORTABLE}:
            self.call(_C.ABORT)
        if self.machine.state in (_S.UNINITIALIZED, _S.PREPARED):
            self.call(_C.INIT)
        return self.machine.state is _S.READY

    def call(self, call: TransactionCall) -> None:
        """Make a control call, and let everything go well until it has ended."""
        self.user_calls(call, None)
        self.wait()

    def wait(self) -> None:
        """Let everything go well until the call has ended."""
        for _ in range(1_000):
            self.learn()
            if self.pending is None:
                return
            if not (self.run_all() or self.serve(itertools.repeat(WELL))):
                check(self.jump_to_next(CALM), "T7", f"{self.pending.call.value}() waits forever")
        check(False, "T7", "a call waits forever")

    def transact(self, partitions: Iterable[int]) -> bool:
        """Commit a transaction with messages to each of *partitions*, and offsets.

        Return whether that has succeeded.
        """
        self.call(_C.BEGIN)
        for partition in partitions:
            self.user_sends(partition, 2, 2 * CALM)
        self.user_sends_offsets("group", 0, None)
        self.wait()
        self.call(_C.COMMIT)
        return self.transactions[-1].outcome is CommitOutcome.COMMITTED
