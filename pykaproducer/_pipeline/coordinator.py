"""Coordinator: takes a producer through its transactions. One per transactional producer.

Owns: the state machine (``_machines/transactions.py``) and a connection to the broker that
coordinates the transactional id. The connection is not the Bridge's to the same broker, so that the
end of a transaction never waits behind a large Produce request.

Guarantees: one request to the coordinator at a time. Each control call gets one result, by its
deadline. No record of a transaction is accepted before the records of the last one have their
outcome. Relies on: a failed row is reported before it counts as settled.

``view`` is read by the BrokerWorkers without a lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from pykaproducer._errors.codes import ErrorCode
from pykaproducer._machines.coordination import TV1, TV2
from pykaproducer._machines.sequencing import ProducerId
from pykaproducer._machines.transaction_effects import (
    CommitOffsets,
    DrainBatches,
    Effect,
    FailRows,
    GiveUpOffsets,
    OpenAdmission,
    PartitionsAdded,
    SendAddOffsets,
    SendAddPartitions,
    SendEndTxn,
    SendFindCoordinator,
    SendInitProducerId,
    ShutAdmission,
    TellCaller,
    WatchRows,
)
from pykaproducer._machines.transaction_states import (
    CallRefused,
    TransactionCall,
    TransactionFailure,
    TransactionView,
)
from pykaproducer._machines.transactions import TransactionMachine
from pykaproducer._net.connection import Answered
from pykaproducer._net.transport import Network
from pykaproducer._pipeline.coordinator_connection import CoordinatorConnection
from pykaproducer._pipeline.coordinator_items import (
    AllSettled,
    BrokerDrained,
    CallerLeft,
    Control,
    CoordinatorItem,
    Drain,
    RowFailed,
    RowsFailed,
    TransactionChanged,
    WantPartition,
)
from pykaproducer._pipeline.group import OffsetsAnswered
from pykaproducer._pipeline.last_errors import LastErrors
from pykaproducer._pipeline.metadata import Metadata
from pykaproducer._pipeline.metadata_events import CoordinatorCame
from pykaproducer._pipeline.worker import StageContext, Worker
from pykaproducer._util.guarded_log import GuardedLogger
from pykaproducer._util.randomness import system_random
from pykaproducer._wire import WireError
from pykaproducer._wire.messages import (
    ApiKey,
    decode_init_producer_id,
    init_producer_id_request,
)
from pykaproducer._wire.transactions import (
    CoordinatorKind,
    add_offsets_to_txn_request,
    add_partitions_to_txn_request,
    decode_add_offsets_to_txn,
    decode_add_partitions_to_txn,
    decode_end_txn,
    end_txn_request,
)
from pykaproducer.config import Config

log = GuardedLogger("pykaproducer.transactions")

#: The feature that turns the protocol of KIP-890 part 2 on, and its least level.
_FEATURE, _TV2_LEVEL = "transaction.version", 2


class Admission(Protocol):
    """The part of the producer that opens and shuts the admission of records."""

    def open_transaction(self) -> None:
        """Accept records from now on."""

    def shut_transaction(self, failure: TransactionFailure) -> None:
        """Accept none; ``send()`` raises the error that *failure* describes."""


@dataclass(frozen=True, slots=True)
class CoordinatorCollaborators:
    """The other objects that the stage uses."""

    config: Config
    network: Network
    metadata: Metadata
    last_errors: LastErrors
    admission: Admission
    #: Returns the BrokerWorkers.
    broker_workers: Callable[[], Iterable[Worker]]
    #: Calls a function when all rows accepted so far have their outcome.
    watch_rows: Callable[[Callable[[], None]], None]
    #: Fails all rows without outcome, and then calls the function.
    fail_rows: Callable[[TransactionFailure, Callable[[], None]], None]
    #: Makes the stage of a group from its name, its ordinal and the function for its results.
    new_group: Callable[[str, int, Callable[[OffsetsAnswered], None]], Worker]


class Coordinator(CoordinatorConnection):
    """Executes what the state machine of the producer's transactions decides."""

    def __init__(self, context: StageContext, collaborators: CoordinatorCollaborators) -> None:
        config = collaborators.config
        super().__init__(
            "coordinator",
            context,
            config,
            collaborators.network,
            collaborators.metadata,
            CoordinatorKind.TRANSACTION,
        )
        assert config.transactional_id is not None, "only a transactional producer has one"
        self._last_errors = collaborators.last_errors
        self._admission = collaborators.admission
        self._broker_workers = collaborators.broker_workers
        self._new_group = collaborators.new_group
        self._watch_rows, self._fail_rows = collaborators.watch_rows, collaborators.fail_rows
        self.machine = TransactionMachine(
            config.transactional_id,
            timeout=config.transaction_timeout_ms / 1000,
            max_block=config.max_block_ms / 1000,
            backoff_first=config.retry_backoff_ms / 1000,
            backoff_most=config.retry_backoff_max_ms / 1000,
            random=system_random.random,
        )
        # Rows are being failed. Control calls wait, so that no new row is among them, and so do
        # results, so that the rows have their outcome when the call returns.
        self._failing: int | None = None
        self._held_up_calls: list[Control] = []
        self._held_up_results: list[TellCaller] = []
        # The stages of the groups whose offsets were sent, by name.
        self._groups: dict[str, Worker] = {}
        # The BrokerWorkers that still have batches in flight.
        self._draining: set[Worker] = set()

    @property
    def view(self) -> TransactionView:
        """The transaction that is open, or was the last one. May be read from any thread."""
        return self.machine.view

    @property
    def current(self) -> tuple[int, int]:
        """The producer id and epoch of the transaction in :attr:`view`."""
        producer = self.view.producer
        return (-1, -1) if producer is None else (producer.producer_id, producer.epoch)

    def row_failed(self, error: BaseException) -> None:
        """Report the failure of a row, before it counts as settled. From any stage."""
        self.put(RowFailed(self.view.serial, error))

    # Events --------------------------------------------------------------------------------------

    def handle(self, item: CoordinatorItem) -> None:
        now, machine = self.clock.monotonic(), self.machine
        match item:
            case Control():
                if self._failing is None:
                    self._control(item, now)
                else:
                    self._held_up_calls.append(item)
            case CallerLeft():
                machine.caller_left(item.caller)
            case CoordinatorCame():
                self.coordinator_came(item, now)
            case OffsetsAnswered():
                self._perform(machine.offsets_answered(item.serial, item.number, item.found, now))
            case WantPartition():
                self._perform(
                    machine.partition_wanted(item.serial, item.topic, item.partition, now)
                )
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
            case RowsFailed():
                self._rows_failed(item.serial)
            case BrokerDrained():
                self._draining.discard(item.worker)
                if not self._draining:
                    self._perform(machine.drained(item.serial, now, spent=True))

    def _control(self, item: Control, now: float) -> None:
        machine, caller = self.machine, item.caller
        try:
            match item.call:
                case TransactionCall.INIT:
                    effects = machine.init(
                        caller, now, item.deadline, transactional_id=item.transactional_id
                    )
                case TransactionCall.BEGIN:
                    effects = [*machine.begin(now), TellCaller(caller)]
                case TransactionCall.OFFSETS:
                    assert item.asked is not None, "there are offsets"
                    effects = machine.offsets(
                        caller, item.asked.group.group_id, item.asked, now, item.deadline
                    )
                case TransactionCall.COMMIT:
                    effects = machine.commit(caller, now, item.deadline)
                case TransactionCall.ABORT:
                    effects = machine.abort(caller, now, item.deadline)
                case TransactionCall.CLOSE:
                    assert item.deadline is not None, "close() has a limit"
                    effects = machine.close(caller, now, item.deadline)
                case call:
                    raise AssertionError(f"{call} is no control call")
        except CallRefused as refused:
            effects = [TellCaller(caller, refused.failure)]
        self._perform(effects)

    def _rows_failed(self, serial: int) -> None:
        if serial != self._failing:
            return
        self._failing = None
        results, self._held_up_results = self._held_up_results, []
        for result in results:
            result.caller.tell(result)
        calls, self._held_up_calls = self._held_up_calls, []
        for call in calls:
            self.handle(call)

    def deadline(self) -> float | None:
        return self.machine.next_due()

    def on_time(self, now: float) -> None:
        due = self.machine.next_due()
        if due is not None and due <= now:
            self._perform(self.machine.time_passed(now))

    def on_stop(self) -> None:
        self._perform(self.machine.stop(self.clock.monotonic()))

    # Effects -------------------------------------------------------------------------------------

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case TellCaller() if self._failing is not None:
                    self._held_up_results.append(effect)
                case TellCaller():
                    effect.caller.tell(effect)
                case OpenAdmission():
                    self._admission.open_transaction()
                case ShutAdmission():
                    self._admission.shut_transaction(effect.failure)
                case WatchRows(serial):
                    self._watch_rows(lambda serial=serial: self.put(AllSettled(serial)))  # type: ignore[misc]
                case FailRows(serial):
                    self._failing = serial
                    self._fail_rows(
                        effect.failure,
                        lambda serial=serial: self.put(RowsFailed(serial)),  # type: ignore[misc]
                    )
                case DrainBatches():
                    self._drain(effect.serial)
                case PartitionsAdded():
                    for worker in self._broker_workers():
                        worker.put(TransactionChanged())
                case SendFindCoordinator():
                    self.look_up(effect.transactional_id)
                case SendAddOffsets():
                    self._add_offsets(effect)
                case CommitOffsets():
                    self._group_stage(effect.group).put(effect)
                case GiveUpOffsets():
                    for stage in self._groups.values():
                        stage.put(effect)
                case SendInitProducerId():
                    self._init_producer_id(effect)
                case SendAddPartitions():
                    self._add_partitions(effect)
                case SendEndTxn():
                    self._end(effect)

    def _drain(self, serial: int) -> None:
        workers = list(self._broker_workers())
        self._draining = set(workers)
        for worker in workers:
            worker.put(Drain(serial, self.put))
        if not workers:
            now = self.clock.monotonic()
            self._perform(self.machine.drained(serial, now, spent=False))

    def _group_stage(self, group: str) -> Worker:
        stage = self._groups.get(group)
        if stage is None:
            stage = self._groups[group] = self._new_group(group, len(self._groups), self.put)
        return stage

    # Requests ------------------------------------------------------------------------------------

    def _init_producer_id(self, effect: SendInitProducerId) -> None:
        producer = effect.producer or ProducerId(-1, -1)

        def encode(version: int, correlation_id: int, client_id: str | None) -> bytes:
            return init_producer_id_request(
                version,
                correlation_id,
                client_id,
                effect.transactional_id,
                int(effect.timeout * 1000),
                producer.producer_id,
                producer.epoch,
            )

        # From version 3 on it takes a producer id and an epoch (KIP-360).
        self.send(ApiKey.INIT_PRODUCER_ID, encode, at_least=3)

    def _add_partitions(self, effect: SendAddPartitions) -> None:
        def encode(version: int, correlation_id: int, client_id: str | None) -> bytes:
            return add_partitions_to_txn_request(
                version,
                correlation_id,
                client_id,
                effect.transactional_id,
                effect.producer.producer_id,
                effect.producer.epoch,
                effect.partitions,
            )

        self.send(ApiKey.ADD_PARTITIONS_TO_TXN, encode)

    def _add_offsets(self, effect: SendAddOffsets) -> None:
        def encode(version: int, correlation_id: int, client_id: str | None) -> bytes:
            return add_offsets_to_txn_request(
                version,
                correlation_id,
                client_id,
                effect.transactional_id,
                effect.producer.producer_id,
                effect.producer.epoch,
                effect.group,
            )

        self.send(ApiKey.ADD_OFFSETS_TO_TXN, encode)

    def _end(self, effect: SendEndTxn) -> None:
        def encode(version: int, correlation_id: int, client_id: str | None) -> bytes:
            return end_txn_request(
                version,
                correlation_id,
                client_id,
                effect.transactional_id,
                effect.producer.producer_id,
                effect.producer.epoch,
                commit=effect.commit,
            )

        # Version 5 ends a transaction of the second protocol, and bumps the epoch (KIP-890).
        if effect.protocol == TV2:
            self.send(ApiKey.END_TXN, encode, at_least=5)
        else:
            self.send(ApiKey.END_TXN, encode, at_most=4)

    def unsupported(self, api_key: int, now: float) -> None:
        self._perform(self.machine.answered(api_key, ErrorCode.UNSUPPORTED_VERSION, now))

    def on_answer(self, event: Answered) -> None:
        now, version, payload = self.clock.monotonic(), event.request.version, event.payload
        try:
            match event.request.api_key:
                case ApiKey.INIT_PRODUCER_ID:
                    given = decode_init_producer_id(version, payload)
                    producer = ProducerId(given.producer_id, given.producer_epoch)
                    effects = self.machine.answered(
                        ApiKey.INIT_PRODUCER_ID, given.error_code, now, producer=producer
                    )
                case ApiKey.ADD_PARTITIONS_TO_TXN:
                    added = decode_add_partitions_to_txn(version, payload)
                    effects = self.machine.partitions_answered(added.errors, now)
                case ApiKey.ADD_OFFSETS_TO_TXN:
                    group = decode_add_offsets_to_txn(version, payload)
                    effects = self.machine.answered(
                        ApiKey.ADD_OFFSETS_TO_TXN, group.error_code, now
                    )
                case _:
                    ended = decode_end_txn(version, payload)
                    next_one = ProducerId(ended.producer_id, ended.producer_epoch)
                    effects = self.machine.answered(
                        ApiKey.END_TXN,
                        ended.error_code,
                        now,
                        producer=next_one if ended.producer_id >= 0 else None,
                    )
        except WireError as error:
            self.drop(f"malformed response: {error}")
            return
        self._perform(effects)

    # The connection ------------------------------------------------------------------------------

    def found(self, now: float) -> None:
        level = self.features.get(_FEATURE, 0)
        self._perform(self.machine.coordinator_found(TV2 if level >= _TV2_LEVEL else TV1, now))

    def not_found(self, code: int | None, now: float) -> None:
        self._perform(self.machine.coordinator_not_found(code, now))

    def lost(self, now: float, *, written: bool) -> None:
        self._perform(self.machine.connection_lost(now, written=written))
