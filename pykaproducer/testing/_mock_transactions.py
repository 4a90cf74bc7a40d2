"""The transactions of a :class:`~pykaproducer.testing.MockProducer`.

The state machine is the real one, with a coordinator that answers at once. So the accepted calls,
the errors and the outcomes of the messages are those of the real producer.
"""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, cast

from pykaproducer._errors.codes import ErrorCode
from pykaproducer._machines.coordination import TV2, coordinate_all
from pykaproducer._machines.sequencing import ProducerId
from pykaproducer._machines.transaction_effects import (
    AnswerCaller,
    CommitOffsets,
    Effect,
    FailRows,
    OpenAdmission,
    SendEndTxn,
    SendFindCoordinator,
    SendInitProducerId,
    ShutAdmission,
    WatchRows,
)
from pykaproducer._machines.transaction_record import TransactionView
from pykaproducer._machines.transaction_states import (
    OPEN,
    CallRefused,
    FailureKind,
    TransactionCall,
    TransactionFailure,
    TransactionState,
    reports_failed_messages,
)
from pykaproducer._machines.transactions import TransactionMachine
from pykaproducer._pipeline import transaction_snapshot
from pykaproducer._pipeline.coordinator_items import Control, ControlCaller
from pykaproducer._pipeline.transaction_errors import aborted_error, error_of
from pykaproducer._pipeline.transaction_observer import TransactionObserver
from pykaproducer._wire.messages import ApiKey
from pykaproducer.delivery import TopicPartition
from pykaproducer.errors import ProducerClosedError, Status, TransactionStateError
from pykaproducer.transactions import PreparedTransaction, prepared_of

if TYPE_CHECKING:
    from pykaproducer._pipeline.coordinator_items import OffsetsToSend
    from pykaproducer._pipeline.metrics import ProducerMetrics
    from pykaproducer._util.clock import Clock
    from pykaproducer.config import Config
    from pykaproducer.testing._mock_outcomes import MockOutcomes, SentRecord

#: The methods whose requests the coordinator can refuse, and these requests.
RefusedCall = Literal[
    "init_transactions",
    "send_offsets_to_transaction",
    "commit_transaction",
    "abort_transaction",
]
_REQUESTS: Final[Mapping[str, int]] = {
    "init_transactions": ApiKey.INIT_PRODUCER_ID,
    "send_offsets_to_transaction": ApiKey.TXN_OFFSET_COMMIT,
    "commit_transaction": ApiKey.END_TXN,
    "abort_transaction": ApiKey.END_TXN,
}
#: Offsets by partition, by group.
Offsets = dict[str, dict[TopicPartition, int]]

#: The producer id; its value means nothing.
_PRODUCER_ID: Final = 1

#: Takes the time (monotonic seconds), passes an event to the machine, and returns the effects.
_Event = Callable[[float], list[Effect]]


class TransactionalMock(Protocol):
    """The parts of a producer that the coordinator uses."""

    config: Config
    _clock: Clock
    _metrics: ProducerMetrics

    def open_transaction(self, serial: int) -> None: ...

    def shut_transaction(self, failure: TransactionFailure) -> None: ...


class MockCoordinator:
    """The coordinator of one producer, which answers at once.

    It takes the place of the stage Coordinator. The thread that puts an event performs its effects,
    unless another thread is performing effects: then that thread does, and a call waits for it.
    """

    #: The coordinator's address: there is none.
    address = None

    def __init__(self, producer: TransactionalMock, outcomes: MockOutcomes) -> None:
        config = producer.config
        assert config.transactional_id is not None, "only a transactional producer has one"
        self._producer = producer
        self._outcomes = outcomes
        self._clock = producer._clock
        self._patience = config.max_block_ms / 1000
        self.machine = TransactionMachine(
            config.transactional_id,
            timeout=config.transaction_timeout_ms / 1000,
            max_block=self._patience,
            backoff_first=config.retry_backoff_ms / 1000,
            backoff_most=config.retry_backoff_max_ms / 1000,
            random=lambda: 0.0,
        )
        self.observer = TransactionObserver(
            self.machine, producer._metrics.transactions, lambda: "a mock"
        )
        self._epoch = -1
        #: Whether another producer has taken over the id.
        self.is_fenced = False
        #: Error codes of the next answers, by request.
        self.refusals: dict[int, deque[int]] = {}
        #: Offsets of the open transaction, and of each committed one that has any.
        self.uncommitted: Offsets = {}
        self.committed: list[Offsets] = []
        # Guarded by the lock of the outcomes, as is the machine.
        self._events: deque[_Event] = deque()
        self._effects: deque[Effect] = deque()
        self._runner: int | None = None

    @property
    def state(self) -> TransactionState:
        """The state of the machine."""
        return self.machine.state

    @property
    def transactional_id(self) -> str:
        """The id of the producer."""
        return self.machine.transactional_id

    def partitions(self, view: TransactionView) -> int:
        """Return how many partitions the open transaction has."""
        records = self._outcomes.uncommitted_records()
        return len({(record.topic, record.partition) for record in records})

    # Events --------------------------------------------------------------------------------------

    def call(self, control: Control, until: float | None = None) -> AnswerCaller:
        """Execute a control call, and return its result."""
        caller, machine = control.caller, self.machine
        self.handle(functools.partial(self._control, control))
        while caller.result is None and not self._is_running_elsewhere():
            # Retries are due at once.
            due = machine.next_due()
            if due is None or machine.state in OPEN:
                break
            self.handle(lambda _, due=due: machine.time_passed(due))  # type: ignore[misc]
        if caller.result is None and self._is_running_elsewhere():
            deadline = until if control.deadline is None else control.deadline
            if deadline is None:
                deadline = self._clock.monotonic() + self._patience
            self._clock.acquire(caller.done, deadline)
        if caller.result is None:
            self.handle(lambda _: machine.caller_left(caller) or [])  # type: ignore[func-returns-value]
            failure = TransactionFailure(FailureKind.TIMEOUT, machine.state, control.call)
            caller.tell(AnswerCaller(caller, failure))
        assert caller.result is not None, "the call has a result"
        return caller.result

    def _is_running_elsewhere(self) -> bool:
        return self._runner not in (None, threading.get_ident())

    def row_failed(self, error: BaseException) -> None:
        """Report the failure of a message; :meth:`run` performs the effects."""
        serial = self.machine.serial
        with self._outcomes.lock:
            self._events.append(lambda now: self.machine.row_failed(serial, error, now))

    def written(self) -> None:
        """Report that the transaction has a message."""
        self.machine.view.touch.set(self._clock.monotonic())

    def handle(self, event: _Event) -> None:
        """Pass an event to the machine, and perform its effects."""
        with self._outcomes.lock:
            self._events.append(event)
        self.run()

    def run(self) -> None:
        """Handle all events and perform their effects, unless another thread is doing so."""
        with self._outcomes.lock:
            if self._runner is not None:
                return
            self._runner = threading.get_ident()
        try:
            while self._step():
                pass
        finally:
            with self._outcomes.lock:
                if self._runner == threading.get_ident():  # an exception ended the loop
                    self._runner = None

    def _step(self) -> bool:
        with self._outcomes.lock:
            if self._effects:
                effect = self._effects.popleft()
            elif self._events:
                now = self._clock.monotonic()
                self._effects.extend(self._events.popleft()(now))
                self.observer.look(now)
                return True
            else:
                self._runner = None
                return False
        try:
            self._perform(effect)
        except BaseException:  # KeyboardInterrupt in a callback: the next call repeats the effect
            with self._outcomes.lock:
                self._effects.appendleft(effect)
            raise
        return True

    def _control(self, item: Control, now: float) -> list[Effect]:
        machine, caller = self.machine, item.caller
        effects: list[Effect]
        try:
            match item.call:
                case TransactionCall.INIT:
                    return machine.init(
                        caller, now, item.deadline, transactional_id=item.transactional_id
                    )
                case TransactionCall.BEGIN:
                    effects = [*machine.begin(now), AnswerCaller(caller)]
                    self._outcomes.drop_uncommitted()
                    self.uncommitted = {}
                    return effects
                case TransactionCall.OFFSETS:
                    assert item.asked is not None, "there are offsets"
                    waiting, group = caller if item.waits else None, item.asked.group.group_id
                    effects = machine.offsets(waiting, group, item.asked, now, item.deadline)
                    return effects if item.waits else [*effects, AnswerCaller(caller)]
                case TransactionCall.COMMIT:
                    return machine.commit(caller, now, item.deadline)
                case TransactionCall.PREPARE:
                    return machine.prepare(caller, now, item.deadline)
                case TransactionCall.ABORT:
                    return machine.abort(caller, now, item.deadline)
                case TransactionCall.CLOSE:
                    assert item.deadline is not None, "close() has a limit"
                    return machine.close(caller, now, item.deadline)
                case call:
                    raise AssertionError(f"{call} is no control call")
        except CallRefused as refused:
            return [AnswerCaller(caller, refused.failure)]

    # Effects -------------------------------------------------------------------------------------

    def _perform(self, effect: Effect) -> None:
        machine, events = self.machine, self._events
        match effect:
            case AnswerCaller():
                effect.caller.tell(effect)
            case OpenAdmission():
                self._producer.open_transaction(machine.serial)
            case ShutAdmission():
                self._producer.shut_transaction(effect.failure)
            case WatchRows(serial):
                self._outcomes.settle_all()
                events.append(lambda now: machine.all_settled(serial, now))
            case FailRows():
                self._outcomes.fail_all(functools.partial(_aborted, effect.failure))
            case SendFindCoordinator():
                events.append(lambda now: machine.coordinator_found(TV2, now))
            case SendInitProducerId():
                self._initialize(effect)
            case SendEndTxn():
                self._end(effect)
            case CommitOffsets():
                self._commit_offsets(effect)

    def _code(self, api_key: int) -> int:
        """Return the error code of the next answer."""
        if refusals := self.refusals.get(api_key):
            return refusals.popleft()
        return ErrorCode.PRODUCER_FENCED if self.is_fenced else ErrorCode.NONE

    def _initialize(self, effect: SendInitProducerId) -> None:
        if effect.producer is None:
            self.is_fenced = False  # now this one takes over the id
        self._answer(ApiKey.INIT_PRODUCER_ID, self._code(ApiKey.INIT_PRODUCER_ID))

    def _end(self, effect: SendEndTxn) -> None:
        code = self._code(ApiKey.END_TXN)
        if code == ErrorCode.NONE:
            if effect.commit:
                self._outcomes.commit()
                if self.uncommitted:
                    self.committed.append(self.uncommitted)
            self._outcomes.drop_uncommitted()
            self.uncommitted = {}
        self._answer(ApiKey.END_TXN, code)

    def _answer(self, api_key: int, code: int) -> None:
        producer = None
        if code == ErrorCode.NONE:
            self._epoch += 1
            producer = ProducerId(_PRODUCER_ID, self._epoch)
        self._events.append(
            lambda now: self.machine.answered(api_key, code, now, producer=producer)
        )

    def _commit_offsets(self, effect: CommitOffsets) -> None:
        api_key = ApiKey.TXN_OFFSET_COMMIT
        found = coordinate_all(api_key, [self._code(api_key)], late=True)
        if found.again:
            found = coordinate_all(api_key, [ErrorCode.NONE])
        if not found.code:
            asked: OffsetsToSend = effect.offsets
            places = self.uncommitted.setdefault(effect.group, {})
            for each in asked.offsets:
                places[TopicPartition(each.topic, each.partition)] = each.offset
        self._events.append(
            lambda now: self.machine.offsets_answered(effect.serial, effect.number, found, now)
        )


def _aborted(
    failure: TransactionFailure, topic: str, partition: int | None, status: Status
) -> BaseException:
    return aborted_error(failure, topic, status)


class MockTransactions:
    """The methods of a ``MockProducer`` for transactions, from which it derives."""

    if TYPE_CHECKING:
        _clock: Clock
        _closed: bool
        _outcomes: MockOutcomes

        def complete_all(self) -> int: ...
        def _check_may_control(self, what: str) -> None: ...
        def _call_began(
            self, call: str, transactional_id: str
        ) -> Callable[[BaseException | None], None] | None: ...
        def _check_not_closed(self) -> None: ...
        def _raise_if_wanted(self, call: str) -> None: ...

    _coordinator: MockCoordinator | None = None

    def uncommitted_records(self) -> list[SentRecord]:
        """Return the messages of the open transaction, in the order of their ``send()``."""
        return self._outcomes.uncommitted_records()

    def uncommitted_offsets(self) -> Offsets:
        """Return the offsets sent in the open transaction: ``{group: {TopicPartition: int}}``."""
        with self._outcomes.lock:
            return _copied(self._transactional().uncommitted)

    def offsets_history(self) -> list[Offsets]:
        """Return the offsets of each committed transaction that has any, in their order."""
        with self._outcomes.lock:
            return [_copied(each) for each in self._transactional().committed]

    def fence_producer(self) -> None:
        """Let another producer take over the transactional id.

        As with a cluster, this producer learns of it from its next request. So
        ``commit_transaction()`` and ``abort_transaction()`` raise ``ProducerFencedError`` if the
        transaction has a message, and so does every call after that.

        Raises:
            TransactionStateError: ``init_transactions()`` has not been called.
        """
        coordinator = self._transactional()
        if coordinator.machine.producer is None:
            raise TransactionStateError(
                "fence_producer(): init_transactions() has not been called, so there is no "
                "producer to be fenced"
            )
        coordinator.is_fenced = True

    def refuse_next(self, call: RefusedCall, code: int) -> None:
        """Let the coordinator answer the next request of a method with Kafka's error *code*.

        The producer then handles the code as the real one does. If it retries the request after
        that code, the call succeeds.

        Args:
            call: ``"init_transactions"``, ``"send_offsets_to_transaction"``,
                ``"commit_transaction"`` or ``"abort_transaction"``.
            code: for example 120 (``TRANSACTION_ABORTABLE``), after which the transaction can only
                be aborted.

        Raises:
            TypeError, ValueError: *code* is not an error code; *call* is another method.
        """
        if call not in _REQUESTS:
            raise ValueError(f"call must be one of {', '.join(map(repr, _REQUESTS))}, not {call!r}")
        if not isinstance(code, int) or isinstance(code, bool):
            raise TypeError(f"code must be an error code of Kafka, not {code!a:.60}")
        if not code:
            raise ValueError("code must be an error code of Kafka, and 0 means that there is none")
        refusals = self._transactional().refusals
        refusals.setdefault(_REQUESTS[call], deque()).append(code)

    def _join_transactions(self) -> None:
        """Begin without transactions, at construction and after ``clear()``."""
        producer = cast("TransactionalMock", self)
        if producer.config.transactional_id is not None:
            self._coordinator = MockCoordinator(producer, self._outcomes)
            self._outcomes.join_transactions(self._coordinator, self.complete_all)

    def _transactional(self) -> MockCoordinator:
        if self._coordinator is None:
            raise TransactionStateError("the mock has no transactions: set transactional_id")
        return self._coordinator

    # As in TransactionalMethods and ObservedProducer ---------------------------------------------

    def _control(
        self,
        call: TransactionCall,
        timeout: float | None,
        asked: OffsetsToSend | None = None,
        *,
        transactional_id: str | None = None,
        waits: bool = True,
    ) -> PreparedTransaction | None:
        """Hand *call* to the coordinator, and raise if it fails. PREPARE has a result."""
        if (coordinator := self._coordinator) is None:
            raise TransactionStateError(
                f"{call.value}(): the producer has no id; set transactional_id"
            )
        self._check_may_control(f"{call.value}()")
        deadline = self._clock.after(timeout)
        try:
            self._check_not_closed()
        except ProducerClosedError as error:
            error.outcome = coordinator.machine.known_outcome()
            raise
        self._raise_if_wanted(call.value)
        name = transactional_id or coordinator.transactional_id
        ended = None if call is TransactionCall.BEGIN else self._call_began(call.value, name)
        control = Control(call, ControlCaller(), deadline, transactional_id, asked, waits)
        result = coordinator.call(control)
        failure = result.failure
        if ended is not None:
            ended(None if failure is None else error_of(failure, name))
        if reports_failed_messages(call, failure):
            self._outcomes.unreported.take()
        if failure is None:
            return prepared_of(result)
        raise error_of(failure._replace(call=call), coordinator.transactional_id)

    def _current_id(self) -> str:
        return "" if self._coordinator is None else self._coordinator.transactional_id

    def _transaction_details(self, now: float) -> dict[str, Any] | None:
        if (coordinator := self._coordinator) is None or self._closed:
            return None
        return transaction_snapshot.details(coordinator, coordinator.partitions, now)


def _copied(offsets: Offsets) -> Offsets:
    return {group: dict(places) for group, places in offsets.items()}
