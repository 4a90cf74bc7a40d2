"""Transactions: messages that readers see all together, or not at all.

:class:`TransactionalMethods` has the methods of a producer with ``transactional_id``. They hand
calls to the stage Coordinator and wait for the results. ``docs/transactions.rst`` is the guide.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from pykaproducer._machines.transaction_states import (
    ENDS,
    FailureKind,
    TransactionCall,
    TransactionFailure,
    TransactionState,
    reports_failed_messages,
)
from pykaproducer._pipeline.transaction_errors import error_of
from pykaproducer._process.transaction_block import BEFORE_FIRST, TransactionBlocks
from pykaproducer._process.transaction_block import Transaction as Transaction
from pykaproducer._util.group_offsets import group_metadata, group_offsets
from pykaproducer.config import resolve
from pykaproducer.errors import (
    CommitOutcome,
    ProducerBrokenError,
    ProducerClosedError,
    TransactionStateError,
)

if TYPE_CHECKING:
    from pykaproducer._machines.transaction_effects import AnswerCaller
    from pykaproducer._pipeline.buffer_space import BufferSpaceWaiters
    from pykaproducer._pipeline.coordinator_items import OffsetsToSend
    from pykaproducer._pipeline.wiring import Pipeline
    from pykaproducer._util.clock import Clock
    from pykaproducer.config import Config

_UNINITIALIZED = TransactionFailure(
    FailureKind.STATE, TransactionState.UNINITIALIZED, TransactionCall.SEND
)
#: ``init_transactions()`` is needed before the next transaction.
NEEDS_INIT = BEFORE_FIRST | {TransactionState.PREPARED}
#: Calls that an interrupt does not stop, and whose result the program must read.
_CONTINUE = (TransactionCall.COMMIT, TransactionCall.PREPARE)


class PreparedTransaction(NamedTuple):
    """A transaction that any process can commit or abort, with :class:`TransactionControl`.

    It can be pickled. Every client with the right *Write* on the transactional id can end the
    transaction with it, until the coordinator aborts it because of its timeout.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    #: The transaction protocol: 2 with KIP-890 part 2 (``transaction.version`` 2), else 1.
    protocol: int
    #: Nothing was written in it, so there is nothing to end.
    empty: bool = False


class TransactionalMethods(TransactionBlocks):
    """The methods for transactions. ``Producer`` inherits them.

    In addition to the errors that are listed with each method, all of them raise:

    * TransactionStateError: the call does not fit the state, and has changed nothing; the text
      names the state and the call that fits. Also without ``transactional_id``.
    * TransactionAbortableError, TransactionFatalError: an earlier error allows only an abort, or no
      further use of the producer.
    * CallbackThreadError: called from a callback, serializer, partitioner or interceptor.
    * ProducerClosedError, ProducerBrokenError: as ``send()``.
    """

    if TYPE_CHECKING:
        config: Config
        _clock: Clock
        _pipeline: Pipeline | None

        def _ensure_started(self) -> None: ...
        def _check_may_control(self, what: str) -> None: ...
        def _call_began(
            self, call: str, transactional_id: str
        ) -> Callable[[BaseException | None], None] | None: ...
        def _admit(self, transaction: int = 0) -> None: ...
        def _pause(self) -> None: ...
        def _announce_missed_slots(self) -> None: ...

        _space: BufferSpaceWaiters

        def _refuse_broken(self, cause: BaseException) -> NoReturn: ...

    #: Why ``send()`` is refused; None: a transaction is open.
    _refused: TransactionFailure | None = _UNINITIALIZED
    #: What is known about the last transaction, once the producer is closed.
    _last_outcome: CommitOutcome | None = None
    #: The ids of the producer from which this one was forked or copied.
    _inherited_ids: frozenset[str] = frozenset()

    def init_transactions(
        self, timeout: float | None = None, *, transactional_id: str | None = None
    ) -> None:
        """Register the transactional id, and end what an earlier producer with it has left open.

        Other producers with the same id cannot commit any more. Call it once before the first
        transaction, and again after :meth:`prepare_transaction`. Between other transactions it has
        no effect.

        In the child of a fork, and in a producer that was pickled or copied, *transactional_id* is
        required, and must be another one: two producers with one id take it from each other.

        Args:
            timeout (float): seconds; None: ``max_block_ms``.
            transactional_id (str): the id from now on; None: as before. It cannot be changed while
                a transaction is open.

        Raises:
            TransactionTimeoutError: it is still under way; call it again to keep waiting.
            TransactionStateError: a transaction is open; or this is a copy, and no other id was
                given.
            TransactionError: the coordinator refused it, for example because a right is missing.
                Correct what the text names, and call it again.
            UnsupportedFeatureError: the brokers are older than Kafka 2.5.
            ConfigurationError: *transactional_id* is not valid.
        """
        if transactional_id is not None:
            transactional_id = resolve({"transactional_id": transactional_id})["transactional_id"]
        self._check_own_id(transactional_id)
        self._control(TransactionCall.INIT, timeout, transactional_id=transactional_id)

    def begin_transaction(self) -> None:
        """Begin a transaction: messages are accepted from now on.

        Raises:
            TransactionStateError: ``init_transactions()`` has not been called, or a transaction is
                open.
            TransactionTimeoutError: a name server or token provider blocks the producer for longer
                than ``max_block_ms``.
        """
        block = self._block
        if block is not None:
            block.ended_by = None
        self._control(TransactionCall.BEGIN, None)

    def commit_transaction(self, timeout: float | None = None) -> None:
        """Wait until all messages of the transaction are delivered, and commit it.

        ``send()`` is refused from now on. Lingering is ignored.

        Args:
            timeout (float): seconds; None waits for the deadlines of the messages, and then for
                ``max_block_ms``.

        Raises:
            TransactionAbortableError: a message failed: the transaction can only be aborted.
            TransactionTimeoutError: it is still under way; call it again to keep waiting.
            TransactionFatalError: the producer cannot be used any more; ``outcome`` says what is
                known about the transaction.
        """
        self._control(TransactionCall.COMMIT, timeout)
        block = self._block
        if block is not None:
            block.ended_by = TransactionCall.COMMIT

    def abort_transaction(self, timeout: float | None = None) -> None:
        """Fail all messages of the transaction that are not delivered, and abort it.

        Args:
            timeout (float): seconds; None: ``max_block_ms``.

        Raises:
            TransactionTimeoutError: it is still under way; call it again to keep waiting.
            TransactionFatalError: the producer cannot be used any more.
        """
        self._control(TransactionCall.ABORT, timeout)
        block = self._block
        if block is not None:
            block.ended_by = TransactionCall.ABORT

    def prepare_transaction(self, timeout: float | None = None) -> PreparedTransaction:
        """Wait until all messages of the transaction are delivered, and leave its end to others.

        As ``commit_transaction()``, but the transaction stays open, and this producer can no longer
        end it. :meth:`TransactionControl.complete` commits or aborts it, in any process. Before the
        next transaction, call ``init_transactions()`` with another id: with the same one it aborts
        the prepared transaction. ``close()`` leaves it open.

        Args:
            timeout (float): seconds; None waits for the deadlines of the messages.

        Returns:
            PreparedTransaction: what the other process needs.

        Raises:
            TransactionAbortableError: a message failed: the transaction can only be aborted.
            TransactionTimeoutError: it is still under way; call it again to keep waiting.
            TransactionFatalError: the producer cannot be used any more.
        """
        prepared = self._control(TransactionCall.PREPARE, timeout)
        block = self._block
        if block is not None:
            block.ended_by = TransactionCall.PREPARE
        assert prepared is not None, "a prepared transaction is described"
        return prepared

    def send_offsets_to_transaction(
        self,
        offsets: object,
        group: object,
        *,
        timeout: float | None = None,
        wait: bool = True,
    ) -> None:
        """Commit offsets of a consumer together with the messages of the transaction.

        Args:
            offsets: ``{TopicPartition: int or OffsetAndMetadata}``, as kafka-python's consumer
                takes them, or a list of confluent-kafka's ``TopicPartition``. The offset is that of
                the next message to be read. Empty: no effect, in any state. The offset of an
                unknown partition is refused after half of the timeout.
            group: the name of a group; the group metadata of a consumer of kafka-python or
                confluent-kafka, taken anew for each transaction (KIP-447); or the consumer.
            timeout (float): seconds; None: ``max_block_ms``.
            wait: False returns at once, which saves the time of a request. If the group then
                refuses the offsets, ``commit_transaction()`` raises.

        Raises:
            TypeError, ValueError: *offsets* or *group* is something else.
            TransactionAbortableError: the group refused it, for example because the consumer has
                lost its partitions: the transaction can only be aborted.
            TransactionTimeoutError: it is still under way; repeat the same call to keep waiting, or
                abort the transaction.
        """
        from pykaproducer._pipeline.coordinator_items import OffsetsToSend

        asked = OffsetsToSend(group_metadata(group), group_offsets(offsets))
        if asked.offsets:
            self._control(TransactionCall.OFFSETS, timeout, asked, waits=wait)

    # Calls ---------------------------------------------------------------------------------------

    def _control(
        self,
        call: TransactionCall,
        timeout: float | None,
        asked: OffsetsToSend | None = None,
        *,
        transactional_id: str | None = None,
        waits: bool = True,
    ) -> PreparedTransaction | None:
        """Hand *call* to the coordinator's stage, and raise if it fails. PREPARE has a result."""
        if self.config.transactional_id is None:
            raise TransactionStateError(
                f"{call.value}(): the producer has no id; set transactional_id"
            )
        self._check_may_control(f"{call.value}()")
        deadline = self._clock.after(timeout)
        try:
            self._ensure_started()
        except (ProducerClosedError, ProducerBrokenError) as error:
            error.outcome = self._known_outcome()
            raise
        pipeline = self._pipeline
        if pipeline is None:
            raise ProducerClosedError(f"{call.value}(): the producer is closed")
        from pykaproducer._pipeline.coordinator_items import Control, ControlCaller

        coordinator, caller = pipeline.coordinator, ControlCaller()
        assert coordinator is not None, "there is one with a transactional id"
        name = transactional_id or coordinator.transactional_id
        ended = None if call is TransactionCall.BEGIN else self._call_began(call.value, name)
        try:
            control = Control(call, caller, deadline, transactional_id, asked, waits)
            result = coordinator.call(control, self._waits_until(call, deadline))
            failure = coordinator.late(call) if result is None else result.failure
            if ended is not None:
                ended(None if failure is None else error_of(failure, name))
            if reports_failed_messages(call, failure):
                pipeline.unreported.take()
            prepared = None if result is None else prepared_of(result)
            # Nothing from here on to the return of a call that succeeds can be interrupted.
        except BaseException as error:  # KeyboardInterrupt
            caller.left = True  # first: another interrupt may come
            if ended is not None:
                ended(error)
            if call in _CONTINUE:
                error.add_note(f"it continues; call {call.value}() again to learn its outcome")
            coordinator.leave(caller)
            raise
        if failure is None:
            return prepared
        if failure.kind is FailureKind.CLOSED and pipeline.broken is not None:
            try:
                self._refuse_broken(pipeline.broken)
            except ProducerBrokenError as broken:
                broken.outcome = failure.outcome
                raise
        name = coordinator.transactional_id
        raise error_of(failure._replace(call=call), name, pipeline.last_errors.cluster)

    def _known_outcome(self) -> CommitOutcome | None:
        """Return what is known about the last transaction."""
        pipeline = self._pipeline  # _end() sets it to None after the outcome
        if pipeline is None or pipeline.coordinator is None:
            return self._last_outcome
        return pipeline.coordinator.last_outcome()

    def _waits_until(self, call: TransactionCall, deadline: float | None) -> float | None:
        """Return when to stop waiting for the coordinator's stage, which should end *call* before.

        None: the deadlines of messages, and callbacks, decide when the call ends.
        """
        if deadline is None and call in ENDS:
            return None
        if deadline is None:
            deadline = self._clock.monotonic() + self.config.max_block_ms / 1000
        return deadline

    # Copies --------------------------------------------------------------------------------------

    def inherit_ids(self) -> None:
        """Regard the id as that of another producer, of which this one is a copy."""
        current = self._current_id()
        if current is not None and self.config.transactional_id is not None:
            self._inherited_ids |= {current, self.config.transactional_id}

    def _current_id(self) -> str | None:
        """Return the id that ``init_transactions()`` was given last, or that of the settings."""
        pipeline = self._pipeline
        if pipeline is None or pipeline.coordinator is None:
            return self.config.transactional_id
        return pipeline.coordinator.transactional_id

    def _check_own_id(self, given: str | None) -> None:
        name = self._current_id() if given is None else given
        if name in self._inherited_ids:
            raise TransactionStateError(
                f"transactional id {name!r}: init_transactions(): this producer is a copy, made by "
                f"a fork or a pickle, and two producers with one id take it from each other; call "
                f"init_transactions(transactional_id=...) with another id in each process, or "
                f"create the producer there",
                transactional_id=name,
            )

    # For the drop-ins and the stage --------------------------------------------------------------

    def fail_transaction(self, error: Exception) -> None:
        """Fail the messages without an outcome because of *error*, if a transaction is open.

        It can only be aborted then. Called by drop-ins only. Returns before they have failed.
        """
        pipeline = self._pipeline
        if pipeline is not None and pipeline.coordinator is not None:
            pipeline.coordinator.row_failed(error)

    def open_transaction(self, serial: int) -> None:
        """Accept records of transaction *serial*. Called by the coordinator's stage only."""
        self._admit(serial)
        self._refused = None

    def shut_transaction(self, failure: TransactionFailure) -> None:
        """Accept none; ``send()`` raises the error that *failure* describes."""
        self._refused = failure
        self._pause()
        self._space.wake_all()  # a send() that waits for space has to raise
        self._announce_missed_slots()

    def _is_too_late(self) -> NoReturn:
        """Refuse a message whose transaction has ended while it waited, or was serialized."""
        name = self._current_id()
        raise TransactionStateError(
            f"transactional id {name!r}: send(): the transaction in which it was called has ended",
            transactional_id=name,
        )

    def _check_transaction(self) -> None:
        """Raise unless a transaction is open."""
        refused = self._refused
        if refused is not None:
            raise error_of(refused, self._current_id() or "")


def prepared_of(result: AnswerCaller) -> PreparedTransaction | None:
    """Return what ``prepare_transaction()`` returns, None for another call."""
    found = result.prepared
    if found is None:
        return None
    return PreparedTransaction(
        found.transactional_id,
        found.producer.producer_id,
        found.producer.epoch,
        found.protocol,
        found.empty,
    )
