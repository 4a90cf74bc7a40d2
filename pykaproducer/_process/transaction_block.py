"""The ``with`` block of a transaction: it begins one, and commits or aborts it at its end.

A program may also end the transaction within the block, by mistake. The block then says that this
has been done, and how: without the note of it, the end of the block would fail as if nothing had
been committed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from pykaproducer._machines.transaction_states import (
    TransactionCall,
    TransactionFailure,
    TransactionState,
)
from pykaproducer.errors import (
    CommitOutcome,
    ProducerClosedError,
    TransactionAbortableError,
    TransactionError,
    TransactionStateError,
)

if TYPE_CHECKING:
    from pykaproducer.config import Config

#: Before the first transaction.
BEFORE_FIRST: Final = frozenset({TransactionState.UNINITIALIZED, TransactionState.INITIALIZING})
#: For each call that can end the transaction of a ``with`` block early: its effect, the outcome
#: after it, and the advice for the user.
_ENDED: Final = {
    TransactionCall.COMMIT: "committed",
    TransactionCall.ABORT: "aborted",
    TransactionCall.PREPARE: "prepared",
}
_OUTCOMES: Final = {
    TransactionCall.COMMIT: CommitOutcome.COMMITTED,
    TransactionCall.ABORT: CommitOutcome.NOT_COMMITTED,
}
_INSTEAD: Final = {
    TransactionCall.COMMIT: "remove that call",
    TransactionCall.ABORT: "call abort() of the block's transaction instead",
    TransactionCall.PREPARE: "use begin_transaction() instead of the block",
}


class Transaction:
    """The transaction of a ``with producer.transaction()`` block."""

    def __init__(self, producer: TransactionBlocks) -> None:
        self._producer = producer
        #: Whether :meth:`abort` was called.
        self.aborted = False
        #: The call of the program that has ended the transaction within the block.
        self.ended_by: TransactionCall | None = None

    def send_offsets(self, offsets: object, group: object) -> None:
        """Commit offsets of a consumer together with the messages.

        Equivalent to ``producer.send_offsets_to_transaction(offsets, group, wait=False)``, so it
        does not wait for the brokers. If they refuse the offsets, the end of the block raises.
        """
        self._producer.send_offsets_to_transaction(offsets, group, wait=False)

    def abort(self) -> None:
        """End the block with an abort instead of a commit, without an error."""
        self.aborted = True


class TransactionBlocks:
    """The method :meth:`transaction`. The methods for transactions derive from this class."""

    #: The innermost ``with`` block, None: there is none. Assigned and changed without calls, so
    #: that no interrupt can strike between the end of a transaction and the note of it.
    _block: Transaction | None = None

    if TYPE_CHECKING:
        config: Config
        _refused: TransactionFailure | None

        def init_transactions(self) -> None: ...
        def begin_transaction(self) -> None: ...
        def commit_transaction(self, timeout: float | None = None) -> None: ...
        def abort_transaction(self, timeout: float | None = None) -> None: ...
        def send_offsets_to_transaction(
            self, offsets: object, group: object, *, wait: bool
        ) -> None: ...
        def _current_id(self) -> str | None: ...
        def _check_may_control(self, what: str) -> None: ...

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Begin a transaction; commit it at the end of the block, or abort it on an exception.

        Calls ``init_transactions()`` before the first transaction. If the transaction cannot be
        committed, it is aborted, and the error is raised. If it cannot be aborted after an
        exception in the block, that exception gets a note about it.

        Raises:
            CallbackThreadError: called from a callback, serializer, partitioner or interceptor.
            TransactionStateError: a transaction is open; or the block has ended its transaction
                itself, and ``outcome`` says how.
        """
        refused = self._refused
        if refused is None:
            self._check_may_control("transaction()")
            advice = (
                "call commit_transaction() or abort_transaction() first"
                if self._block is None
                else "leave its with block first"
            )
            raise self._state_error(f"transaction(): a transaction is open; {advice}")
        if refused.state in BEFORE_FIRST:
            self.init_transactions()
        transaction, outer = Transaction(self), self._block
        try:
            self.begin_transaction()
        except (KeyboardInterrupt, SystemExit):
            self._abort_if_open(self.config.exit_flush_timeout_ms / 1000)
            raise
        self._block = transaction
        try:
            yield transaction
        except BaseException as error:
            self._block = outer
            if transaction.ended_by is not None:
                error.add_note(_ended_before(transaction.ended_by))
                raise
            try:
                self.abort_transaction(self.config.exit_flush_timeout_ms / 1000)
            except (TransactionError, ProducerClosedError) as failed:
                error.add_note(f"the transaction was not aborted: {failed}")
            except (KeyboardInterrupt, SystemExit):
                self._abort_if_open(0.0)
                raise
            else:
                _note_abort(error)
            raise
        self._block = outer
        if (call := transaction.ended_by) is not None:
            raise self._state_error(
                f"{_ended_before(call)}; {_INSTEAD[call]}", outcome=_OUTCOMES.get(call)
            )
        try:
            if transaction.aborted:
                self.abort_transaction()
            else:
                self._commit_or_abort()
        except (KeyboardInterrupt, SystemExit):
            # It may have come before the stage was asked for the end.
            self._abort_if_open(self.config.exit_flush_timeout_ms / 1000)
            raise

    def _commit_or_abort(self) -> None:
        try:
            self.commit_transaction()
        except TransactionAbortableError as error:
            self.abort_transaction()
            _note_abort(error)
            raise
        except TransactionStateError as error:
            error.add_note("commit_transaction() was called by the end of the with block")
            raise

    def _state_error(
        self, text: str, *, outcome: CommitOutcome | None = None
    ) -> TransactionStateError:
        name = self._current_id()
        return TransactionStateError(
            f"transactional id {name!r}: {text}" if name else text,
            transactional_id=name or None,
            outcome=outcome,
        )

    def _abort_if_open(self, timeout: float) -> None:
        """Abort the transaction of an interrupted block; no other call would end it.

        The coordinator's stage refuses that at once if it was asked for a commit before. The abort
        continues after *timeout*, in seconds.
        """
        with suppress(TransactionError, ProducerClosedError):
            self.abort_transaction(timeout)


def _note_abort(error: BaseException) -> None:
    """Add to an error which says that the transaction must be aborted that this has been done."""
    if isinstance(error, TransactionAbortableError):
        error.add_note("the with block has aborted the transaction; the next one can begin")


def _ended_before(call: TransactionCall) -> str:
    """Return that *call* within a ``with`` block has ended its transaction."""
    return f"the transaction of the with block was already {_ENDED[call]} by {call.value}()"
