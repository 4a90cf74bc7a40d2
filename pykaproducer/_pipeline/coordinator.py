"""Coordinator: takes a producer through its transactions. One per transactional producer.

Owns: the state machine (``_machines/transactions.py``) and a connection to the broker that
coordinates the transactional id. It does not share the Bridge's connection to that broker, so that
the end of a transaction never waits for a large Produce request.

Guarantees: one request to the coordinator at a time. Each control call gets one result, by its
deadline. No record of a transaction is accepted before the records of the last one have their
outcome. Relies on: a failed row is reported before it counts as settled.

``view`` is read by the BrokerWorkers without a lock.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Protocol

from pykaproducer._errors.codes import ErrorCode
from pykaproducer._machines.batch_tally import BatchTallies
from pykaproducer._machines.coordination import CommitOutcome
from pykaproducer._machines.coordinator_queries import protocol_of
from pykaproducer._machines.transaction_effects import (
    AnswerCaller,
    CommitOffsets,
    DrainBatches,
    Effect,
    EndHold,
    FailRows,
    GiveUpOffsets,
    LeaveCoordinator,
    OpenAdmission,
    PartitionsAdded,
    SendAddOffsets,
    SendAddPartitions,
    SendDescribeTransactions,
    SendEndTxn,
    SendFindCoordinator,
    SendInitProducerId,
    ShutAdmission,
    WatchReports,
    WatchRows,
)
from pykaproducer._machines.transaction_record import TransactionView
from pykaproducer._machines.transaction_states import (
    CallRefused,
    FailureKind,
    TransactionCall,
    TransactionFailure,
    TransactionState,
)
from pykaproducer._machines.transactions import TransactionMachine
from pykaproducer._net.connection import Answered
from pykaproducer._net.transport import Network
from pykaproducer._pipeline.broker_events import Drain, TransactionChanged
from pykaproducer._pipeline.coordinator_connection import CoordinatorConnection
from pykaproducer._pipeline.coordinator_items import (
    AllReported,
    AllSettled,
    BrokerDrained,
    CallerLeft,
    CallerWaits,
    Control,
    ControlCaller,
    LeaderWithoutTv2,
    RowFailed,
    RowsFailed,
    WantPartition,
)
from pykaproducer._pipeline.coordinator_requests import CoordinatorRequest, request_of, tell_answer
from pykaproducer._pipeline.group import GroupUnused, OffsetsAnswered
from pykaproducer._pipeline.last_errors import LastErrors
from pykaproducer._pipeline.metadata import Metadata
from pykaproducer._pipeline.metadata_events import CoordinatorCame
from pykaproducer._pipeline.transaction_observer import TransactionObserver
from pykaproducer._pipeline.waiting_callers import WaitingCallers
from pykaproducer._pipeline.worker import AnyWorker, StageContext, Worker
from pykaproducer._util.guarded_log import GuardedLogger
from pykaproducer._util.randomness import system_random
from pykaproducer._wire.messages import ApiKey
from pykaproducer._wire.transactions import CoordinatorKind
from pykaproducer.config import Config

log = GuardedLogger("pykaproducer.transactions")

#: The least versions that transactions need: with a producer id and epoch (KIP-360), and with the
#: member of a group (KIP-447). Both came with Kafka 2.5.
_REQUIRED = ((ApiKey.INIT_PRODUCER_ID, 3), (ApiKey.TXN_OFFSET_COMMIT, 3))

#: The most stages for groups. Each has a thread, a connection and three descriptors.
_MOST_GROUP_STAGES = 4

#: The calls that may have committed a transaction.
_COMMITS = frozenset({TransactionCall.COMMIT, TransactionCall.CLOSE})
#: The states in which a commit may be sent at any moment.
_COMMITTING = frozenset({TransactionState.FLUSHING, TransactionState.ENDING_COMMIT})


CoordinatorItem = (
    Control
    | CallerLeft
    | CallerWaits
    | WantPartition
    | LeaderWithoutTv2
    | RowFailed
    | AllSettled
    | AllReported
    | RowsFailed
    | BrokerDrained
    | CoordinatorCame
    | OffsetsAnswered
    | GroupUnused
)


class Admission(Protocol):
    """The part of the producer that opens and shuts the admission of records."""

    def open_transaction(self, serial: int) -> None:
        """Accept records of transaction *serial* from now on."""

    def shut_transaction(self, failure: TransactionFailure) -> None:
        """Accept none; ``send()`` raises the error that *failure* describes."""


class Coordinator(CoordinatorConnection[CoordinatorItem]):
    """Executes what the state machine of the producer's transactions decides.

    *watch_rows* calls a function when all rows accepted so far have their outcome, *watch_reports*
    when their callbacks have run, too; *fail_rows* fails all rows without outcome, and then calls
    the function. *new_group* makes the stage of a group from its name, its ordinal and the function
    for its results; *release_group* stops one that is not used any more.
    """

    inline_items = (AllSettled, AllReported)  # EndTxn is sent by the thread that settles the rows

    def __init__(
        self,
        context: StageContext,
        *,
        config: Config,
        network: Network,
        metadata: Metadata,
        last_errors: LastErrors,
        admission: Admission,
        broker_workers: Callable[[], Iterable[Worker[TransactionChanged | Drain]]],
        watch_rows: Callable[[Callable[[], None]], None],
        watch_reports: Callable[[Callable[[], None]], None],
        fail_rows: Callable[[TransactionFailure, Callable[[], None]], None],
        new_group: Callable[
            [str, int, Callable[[OffsetsAnswered | GroupUnused], None]],
            Worker[CommitOffsets | GiveUpOffsets],
        ],
        release_group: Callable[[AnyWorker], None],
    ) -> None:
        kind = CoordinatorKind.TRANSACTION
        super().__init__("coordinator", context, config, network, metadata, kind)
        assert config.transactional_id is not None, "only a transactional producer has one"
        self._last_errors = last_errors
        self._admission = admission
        self._broker_workers = broker_workers
        self._new_group = new_group
        self._release_group = release_group
        self._watch_rows, self._fail_rows = watch_rows, fail_rows
        self._watch_reports = watch_reports
        self.machine = TransactionMachine(
            config.transactional_id,
            timeout=config.transaction_timeout_ms / 1000,
            max_block=config.max_block_ms / 1000,
            backoff_first=config.retry_backoff_ms / 1000,
            backoff_most=config.retry_backoff_max_ms / 1000,
            random=system_random.random,
            waits_for_callbacks=True,
        )
        self.observer = TransactionObserver(
            self.machine, self.metrics.transactions, lambda: self.address
        )
        # The transaction whose rows are being failed. In the meantime control calls wait, so that
        # no new row is among them, and so do results, so that the rows have their outcome when the
        # call returns.
        self._failing: int | None = None
        self._held_up_calls: list[Control] = []
        self._held_up_results: list[AnswerCaller] = []
        # The stages of the groups whose offsets were sent, by name; the last used one is last.
        self._groups: dict[str, Worker[CommitOffsets | GiveUpOffsets]] = {}
        self._number_of_groups = 0
        #: Of the batches that the BrokerWorkers seal.
        self.tallies = BatchTallies()
        # The BrokerWorkers that still have batches in flight.
        self._draining: set[AnyWorker] = set()
        self._waiting = WaitingCallers(self.clock, self.put, self._given_up)
        self._has_ended = self._has_forked = False
        # The callers that got a result since the last control call.
        self._answered: list[ControlCaller] = []

    @property
    def view(self) -> TransactionView:
        """The transaction that is open, or was the last one. May be read from any thread."""
        return self.machine.view

    @property
    def state(self) -> TransactionState:
        """The state of the machine. May be read from any thread."""
        return self.machine.state

    @property
    def transactional_id(self) -> str:
        """The id that ``init_transactions()`` was given last. May be read from any thread."""
        return self.machine.transactional_id

    @property
    def current(self) -> tuple[int, int]:
        """The producer id and epoch of the transaction in :attr:`view`."""
        producer = self.view.producer
        return (-1, -1) if producer is None else (producer.producer_id, producer.epoch)

    def want_partition(self, serial: int, topic: str, partition: int) -> None:
        """Have a partition added to a transaction, with TV1. From any thread."""
        self.put(WantPartition(serial, topic, partition))

    def leader_lacks_tv2(self) -> None:
        """Report that a leader does not support the requests of TV2. From any thread."""
        self.put(LeaderWithoutTv2())

    def row_failed(
        self,
        error: BaseException,
        serial: int | None = None,
        code: int | None = None,
        *,
        fatal: bool = False,
        fenced: bool = False,
    ) -> None:
        """Report the failure of a row, before it counts as settled. From any thread.

        *serial*: the ordinal of its transaction; None: the one that is open. For the others see
        :class:`RowFailed`.
        """
        serial = self.view.serial if serial is None else serial
        self.put(RowFailed(serial, error, code, fatal=fatal, fenced=fenced))

    def failure_reporter(self) -> Callable[[BaseException], None]:
        """Return what reports the failure of a row of the present transaction. From any thread.

        So it cannot be reported of the next one:

        1. A stage finds that a row has no outcome, and has expired.
        2. Another one delivers it. The transaction is committed, and the next one is begun.
        3. The first one reports the failure.
        """
        return functools.partial(self.row_failed, serial=self.view.serial)

    # Calls ---------------------------------------------------------------------------------------

    def call(self, control: Control, until: float | None = None) -> AnswerCaller | None:
        """Hand over a control call, and return its result; None if it is late. By its caller.

        The stage keeps the deadline of a call, unless a name server or a token provider blocks it.
        *until* (and a short time) limits the wait then, or ``max_block_ms`` after the stage was
        seen at work.
        """
        return self._waiting.call(control, until, self._config.max_block_ms / 1000)

    def leave(self, caller: ControlCaller) -> None:
        """Record that *caller* was interrupted before its call has returned."""
        self._waiting.leave(caller)

    def give_up(self) -> None:
        """End all calls, as this stage has ended, or any has crashed. From any thread."""
        self._waiting.give_up()

    def forked(self) -> None:
        """End the call within which a signal handler has forked. In the child of the fork."""
        self._has_forked = True
        self.give_up()

    def late(self, call: TransactionCall) -> TransactionFailure:
        """Return the failure of a *call* that the stage has not ended in time. From any thread."""
        return self._without_result(FailureKind.TIMEOUT, call)

    def last_outcome(self) -> CommitOutcome | None:
        """Return what is known about the last transaction. From any thread."""
        if self.is_alive() and self.state in _COMMITTING:
            return CommitOutcome.POSSIBLY_COMMITTED  # the stage may be about to send EndTxn
        return self.machine.known_outcome()

    def _given_up(self, call: TransactionCall) -> TransactionFailure:
        if self._has_forked:
            return TransactionFailure(FailureKind.FORKED, self.state, call)
        return self._without_result(FailureKind.CLOSED, call)

    def _without_result(self, kind: FailureKind, call: TransactionCall) -> TransactionFailure:
        if self._has_ended or not self.is_alive():
            outcome = self.machine.known_outcome()
        else:  # the stage may be about to send EndTxn
            outcome = CommitOutcome.POSSIBLY_COMMITTED if call in _COMMITS else None
        return TransactionFailure(kind, self.state, call, outcome=outcome)

    # Events --------------------------------------------------------------------------------------

    def handle(self, item: CoordinatorItem) -> None:
        now, machine = self.clock.monotonic(), self.machine
        match item:
            case Control():
                self._see_who_left()
                if self._failing is None:
                    self._control(item, now)
                else:
                    self._held_up_calls.append(item)
            case CallerLeft():
                machine.caller_left(item.caller)
            case CallerWaits():
                item.caller.seen = True
            case CoordinatorCame():
                self.coordinator_came(item, now)
            case GroupUnused():
                self._end_groups(item.stage)
            case OffsetsAnswered():
                self._perform(machine.offsets_answered(item.serial, item.number, item.found, now))
            case WantPartition():
                self._perform(
                    machine.partition_wanted(item.serial, item.topic, item.partition, now)
                )
            case LeaderWithoutTv2():
                machine.leader_without_tv2()
            case RowFailed():
                self._perform(
                    machine.row_failed(
                        item.serial,
                        item.error,
                        now,
                        code=item.code,
                        fatal=item.fatal,
                        fenced=item.fenced,
                    )
                )
            case AllSettled():
                self._perform(machine.all_settled(item.serial, now))
            case AllReported():
                self._perform(machine.all_reported(item.serial, now))
            case RowsFailed():
                self._rows_failed(item.serial)
            case BrokerDrained():
                # A worker that has just been stopped may report, too.
                if item.worker in self._draining:
                    self._draining.discard(item.worker)
                    if not self._draining:
                        self._drained(item.serial, now)

    def _control(self, item: Control, now: float) -> None:
        machine, caller = self.machine, item.caller
        try:
            match item.call:
                case TransactionCall.INIT:
                    effects = machine.init(
                        caller, now, item.deadline, transactional_id=item.transactional_id
                    )
                case TransactionCall.BEGIN if caller.left:
                    effects = []  # its call has failed
                case TransactionCall.BEGIN:
                    effects = [*machine.begin(now), AnswerCaller(caller)]
                case TransactionCall.OFFSETS:
                    assert item.asked is not None, "there are offsets"
                    waiting, group = caller if item.waits else None, item.asked.group.group_id
                    effects = machine.offsets(waiting, group, item.asked, now, item.deadline)
                    if waiting is None:
                        effects.append(AnswerCaller(caller))
                case TransactionCall.COMMIT:
                    effects = machine.commit(caller, now, item.deadline)
                case TransactionCall.PREPARE:
                    effects = machine.prepare(caller, now, item.deadline)
                case TransactionCall.ABORT:
                    effects = machine.abort(caller, now, item.deadline)
                case TransactionCall.CLOSE:
                    assert item.deadline is not None, "close() has a limit"
                    effects = machine.close(caller, now, item.deadline)
                case call:
                    raise AssertionError(f"{call} is no control call")
        except CallRefused as refused:
            effects = [AnswerCaller(caller, refused.failure)]
        self._perform(effects)

    def _see_who_left(self) -> None:
        """Report the callers that have not read their result to the machine; see :meth:`leave`."""
        callers, self._answered = self._answered, []
        for caller in callers:
            if caller.left:
                self.machine.caller_left(caller)

    def _answer(self, result: AnswerCaller) -> None:
        self._answered.append(result.caller)
        result.caller.tell(result)

    def _rows_failed(self, serial: int) -> None:
        if serial != self._failing:
            return
        self._end_failing()
        calls, self._held_up_calls = self._held_up_calls, []
        for call in calls:
            self.handle(call)

    def _end_failing(self) -> None:
        self._failing = None
        results, self._held_up_results = self._held_up_results, []
        for result in results:
            self._answer(result)

    def deadline(self) -> float | None:
        return self.machine.next_due()

    def on_time(self, now: float) -> None:
        due = self.machine.next_due()
        if due is not None and due <= now:
            self._perform(self.machine.time_passed(now))

    def on_stop(self) -> None:
        if self.has_crashed:
            # The crash policy ends the calls: it (1) marks the producer as broken, (2) calls
            # give_up(). So each call raises the right error.
            self._has_ended = True
            return
        self._end_failing()
        self._perform(self.machine.stop(self.clock.monotonic()))
        self._has_ended = True
        self.give_up()

    # Effects -------------------------------------------------------------------------------------

    def _perform(self, effects: list[Effect]) -> None:
        self.observer.look(self.clock.monotonic())
        for effect in effects:
            match effect:
                case AnswerCaller() if self._failing is not None:
                    self._held_up_results.append(effect)
                case AnswerCaller():
                    self._answer(effect)
                case OpenAdmission():
                    self._admission.open_transaction(self.machine.serial)
                case ShutAdmission():
                    self._admission.shut_transaction(effect.failure)
                case WatchRows(serial):
                    self._watch_rows(lambda serial=serial: self.put(AllSettled(serial)))  # type: ignore[misc]
                case WatchReports(serial):
                    self._watch_reports(lambda serial=serial: self.put(AllReported(serial)))  # type: ignore[misc]
                case FailRows(serial):
                    self._failing = serial
                    self._fail_rows(
                        effect.failure,
                        lambda serial=serial: self.put(RowsFailed(serial)),  # type: ignore[misc]
                    )
                case DrainBatches():
                    self._drain(effect.serial)
                case PartitionsAdded() | EndHold():
                    for worker in self._broker_workers():
                        worker.put(TransactionChanged())
                case SendFindCoordinator():
                    self.look_up(effect.transactional_id, again=self.machine.retries)
                case LeaveCoordinator():
                    self.disconnect("the transactional id is another one")
                case CommitOffsets():
                    self._group_stage(effect.group).put(effect)
                case GiveUpOffsets():
                    for stage in {*self._groups.values()}:
                        stage.put(effect)
                case (
                    SendInitProducerId()
                    | SendAddPartitions()
                    | SendAddOffsets()
                    | SendEndTxn()
                    | SendDescribeTransactions()
                ):
                    self._send(request_of(effect))

    def _send(self, wanted: CoordinatorRequest) -> None:
        self.send(wanted.api_key, wanted.encode, at_least=wanted.at_least, at_most=wanted.at_most)

    def _drain(self, serial: int) -> None:
        """Wait until no BrokerWorker has a batch in flight.

        A worker that has been stopped has none, and may have ended, so this does not wait for it.
        This method (1) puts Drain, (2) reads ``stopping``; ``stop()`` (1) sets that, (2) ends the
        inbox. So a worker that is not stopping in step 2 handles Drain.
        """
        self._draining = set()
        workers = list(self._broker_workers())
        for worker in workers:
            worker.put(Drain(functools.partial(self._broker_drained, serial)))
            if not worker.stopping:
                self._draining.add(worker)
        if not self._draining:
            self._drained(serial, self.clock.monotonic())

    def _broker_drained(self, serial: int, worker: AnyWorker) -> None:
        """Take the report of a BrokerWorker. By its thread."""
        self.put(BrokerDrained(serial, worker))

    def _drained(self, serial: int, now: float) -> None:
        spent = self.tallies.missed_some()
        self._perform(self.machine.drained(serial, now, spent=spent))

    def _group_stage(self, group: str) -> Worker[CommitOffsets | GiveUpOffsets]:
        """Return the stage of *group*: its own, or that of the group that was used least recently.

        If that one has offsets under way, they share the stage.
        """
        stage = self._groups.pop(group, None)
        if stage is None and len({*self._groups.values()}) == _MOST_GROUP_STAGES:
            oldest = next(iter(self._groups))
            stage = self._groups.pop(oldest)
            if self.machine.has_offsets_of(oldest):
                self._groups[oldest] = stage
        if stage is None:
            stage = self._new_group(group, self._number_of_groups, self.put)
            self._number_of_groups += 1
        self._groups[group] = stage
        return stage

    def _end_groups(self, stage: AnyWorker) -> None:
        """End *stage*, which has reported that it is unused, unless it has got offsets since."""
        groups = [group for group, each in self._groups.items() if each is stage]
        if groups and not any(map(self.machine.has_offsets_of, groups)):
            for group in groups:
                del self._groups[group]
            self._release_group(stage)

    # Requests ------------------------------------------------------------------------------------

    def unsupported(self, api_key: int, now: float) -> None:
        self._perform(self.machine.answered(api_key, ErrorCode.UNSUPPORTED_VERSION, now))

    def on_answer(self, event: Answered) -> None:
        with self.not_answered():
            effects = tell_answer(self.machine, event, self.clock.monotonic())
            self._perform(effects)

    # The connection ------------------------------------------------------------------------------

    def found(self, now: float) -> None:
        if self.state is TransactionState.INITIALIZING:
            for api_key, version in _REQUIRED:
                if (reason := self.refuses(api_key, at_least=version)) is not None:
                    host, port = self._address or ("", 0)
                    reason = f"the broker at {host}:{port} is older: {reason}"
                    self._perform(self.machine.unsupported(reason, now))
                    return
        protocol = protocol_of(self.features, self.versions)
        self._perform(self.machine.coordinator_found(protocol, now))

    def not_found(self, code: int | None, now: float) -> None:
        if code == ErrorCode.UNSUPPORTED_VERSION and self.state is TransactionState.INITIALIZING:
            reason = "the brokers are older: they have no FIND_COORDINATOR requests for it"
            self._perform(self.machine.unsupported(reason, now))
            return
        self._perform(self.machine.coordinator_not_found(code, now))

    def lost(self, now: float, *, written: bool) -> None:
        self._perform(self.machine.connection_lost(now, written=written))
