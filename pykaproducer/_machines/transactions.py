"""The state machine of a transactional producer, for both transaction protocols.

``TV1`` is the protocol before, ``TV2`` the one with KIP-890 part 2. The protocol of a transaction
is that of the coordinator when the last one ended, as in the Java client. The states and moves are
in :data:`~pykaproducer._machines.transaction_states.TRANSITIONS`; any other one raises
:class:`IllegalTransactionMove` and changes nothing. Codes are classified by
:mod:`pykaproducer._machines.coordination` alone.

One stage owns a machine. It gives each event to a method, with ``now`` (monotonic seconds), and
performs the effects returned, in their order. Events are:

=====================================  =============================================================
``init``, ``begin``, ``commit``,       A call of the program. ``CallRefused``: it does not fit the
``prepare``, ``abort``, ``offsets``,   state, nothing has changed, and the stage gives the caller
``close``, ``caller_left``             its failure. Otherwise one ``AnswerCaller`` follows, at
                                       once or later; none after ``caller_left``, and none for
                                       ``begin``.
``unsupported``                        In place of an answer, while it initializes.
``coordinator_found``,                 The answer to ``SendFindCoordinator``. Found: the connection
``coordinator_not_found``              to it is ready, and offers a protocol. Also when the stage
                                       has connected for another reason. Not found: a code, or None
                                       if the connection failed.
``answered``, ``partitions_answered``  The answer to the request under way.
``described``                          The answer to ``SendDescribeTransactions``; ``answered`` if
                                       it is an error.
``connection_lost``                    The connection to the coordinator found last, not one that
                                       the stage has closed. *written*: a part of the request under
                                       way may have been written.
``partition_wanted``                   ``TV1``: a batch is to be sealed for a partition which is not
                                       in the view.
``offsets_answered``                   The result of ``CommitOffsets``, after its retries.
``row_failed``                         A row failed, or a broker refused the producer. Reported
                                       before the row counts as settled.
``all_settled``, ``all_reported``,     The answers to ``WatchRows``, ``WatchReports`` and
``drained``                            ``DrainBatches``.
``time_passed``                        ``next_due()`` is over.
=====================================  =============================================================

Events that belong to a transaction carry its serial; those of another one are ignored.

``view`` is replaced in place, before ``PublishView`` is returned, and read by other threads without
a lock. A transaction in which nothing was written ends without EndTxn, so no batch may be sealed or
written after that was decided:

1. A worker sees that the view is open, and that it may seal a batch.
2. ``TV2``: it sets ``view.touch``. (With ``TV1`` the machine does, when partitions are added.)
3. It looks at the view again. If that is not open, or has another serial, it seals nothing.
4. It seals the batch, and gives it to the connection.

The machine replaces the view before it reads ``touch``. So either it sees step 2, and sends EndTxn,
which bumps the epoch, or the worker sees in step 3 that the view was replaced. The numbers of a
batch that is sealed and never written would be a gap in an epoch that continues, therefore step 2
precedes step 4. With ``TV1`` an abort waits for ``drained``, which reports such a batch.
"""

from __future__ import annotations

from typing import Any

from pykaproducer._machines.coordination import CommitOutcome, Coordination, Reaction
from pykaproducer._machines.sequencing import ProducerId
from pykaproducer._machines.transaction_core import TransactionCore
from pykaproducer._machines.transaction_effects import (
    AnswerCaller,
    Effect,
    SendEndTxn,
    WatchRows,
)
from pykaproducer._machines.transaction_record import PendingOffsets, TransactionRecord
from pykaproducer._machines.transaction_states import (
    ENDING,
    OPEN,
    CallRefused,
    FailureKind,
    IllegalTransactionMove,
    TransactionCall,
    TransactionFailure,
    TransactionMove,
    TransactionState,
)

_C, _M, _S = TransactionCall, TransactionMove, TransactionState


class TransactionMachine(TransactionCore):
    """Decides what a transactional producer sends to its coordinator, and what its calls return."""

    # Calls ---------------------------------------------------------------------------------------

    def init(
        self,
        caller: Any,
        now: float,
        deadline: float | None = None,
        *,
        transactional_id: str | None = None,
    ) -> list[Effect]:
        """Call ``init_transactions()``; *transactional_id*: the new id, None: as before."""
        name = self.transactional_id if transactional_id is None else transactional_id
        other = name != self.transactional_id
        if other and self.state is _S.INITIALIZING:
            raise CallRefused(self._refusal(_C.INIT))
        # The token of a prepared transaction would be lost, and the transaction be left open.
        keeps_unread = not other and self.state is not _S.PREPARED
        if not self._accept(_C.INIT, caller, now, deadline, key=name, keeps_unread=keeps_unread):
            return self._take()
        if self.state is _S.READY and not other:
            self._effects.append(AnswerCaller(caller))
            return self._take()
        until = self._deadline(_C.INIT, deadline, now)
        self._calls.begin(_C.INIT, name, caller, until, keeps_unread=keeps_unread)
        if self.state is not _S.INITIALIZING:
            self.transactional_id = name
            self.producer = self.outcome = None
            if other:
                self._forget_last(now)
                self._connected = False
            self._move(_M.INITIALIZE)
        return self._run(now)

    def begin(self, now: float) -> list[Effect]:
        """Call ``begin_transaction()``."""
        self._calls.accept(_C.BEGIN, None, self.state, self.failure)
        self._calls.forget_unread()
        self.serial += 1
        self.failure = self.outcome = None
        assert self.producer is not None, "READY has a producer id"
        # A new object, by which the stages recognize the transaction: the last one may have had the
        # same id and epoch.
        self.producer = ProducerId(*self.producer)
        # After TV2, answers that are still to come would hide a batch that is not confirmed.
        spent, self._had_tv2 = self._had_tv2, False
        self._transaction = TransactionRecord(begun_at=now, spent=spent)
        self._move(_M.BEGIN)
        return self._take()

    def offsets(
        self, caller: Any, group: str, offsets: Any, now: float, deadline: float | None = None
    ) -> list[Effect]:
        """Call ``send_offsets_to_transaction()``; *caller*: None if it does not wait."""
        key = (group, offsets)
        if not self._accept(_C.OFFSETS, caller, now, deadline, key=key):
            return self._take()
        until = now + self._max_block if deadline is None else deadline
        transaction = self._transaction
        number = transaction.number_of_offsets = transaction.number_of_offsets + 1
        # Wait for an unknown partition for half of the time: then the caller gets the reason.
        known_by = now + min(until - now, self._timeout) / 2
        transaction.pending_offsets[number] = PendingOffsets(group, offsets, known_by, asked_at=now)
        transaction.groups[group] = None
        if caller is not None:
            transaction.waited_for = number
            self._calls.begin(_C.OFFSETS, key, caller, until)
        return self._run(now)

    def commit(self, caller: Any, now: float, deadline: float | None = None) -> list[Effect]:
        """Call ``commit_transaction()``. Without a *deadline*: from the last row's outcome on."""
        return self._flush(_C.COMMIT, caller, now, deadline)

    def prepare(self, caller: Any, now: float, deadline: float | None = None) -> list[Effect]:
        """Call ``prepare_transaction()``."""
        return self._flush(_C.PREPARE, caller, now, deadline)

    def _flush(
        self, call: TransactionCall, caller: Any, now: float, deadline: float | None
    ) -> list[Effect]:
        if not self._accept(call, caller, now, deadline):
            return self._take()
        self._calls.begin(call, None, caller, deadline, patient=deadline is None)
        self._transaction.preparing = call is _C.PREPARE
        self._move(_M.FLUSH)
        self._effects.append(WatchRows(self.serial))
        self._watch_reports()
        return self._run(now)

    def abort(self, caller: Any, now: float, deadline: float | None = None) -> list[Effect]:
        """Call ``abort_transaction()``."""
        if not self._accept(_C.ABORT, caller, now, deadline):
            return self._take()
        until = self._deadline(_C.ABORT, deadline, now)
        self._calls.begin(_C.ABORT, None, caller, until, patient=deadline is None)
        self._start_abort(now)
        return self._run(now)

    def close(self, caller: Any, now: float, deadline: float) -> list[Effect]:
        """Call ``close()``: abort an open transaction, and wait for one that is being ended."""
        aborts = self.state in (_S.IN_TRANSACTION, _S.ABORTABLE)
        self._calls.close(caller, deadline, ends=aborts or self.state in ENDING)
        if aborts or self.state is _S.INITIALIZING:
            self._calls.finish(self._describe(FailureKind.CLOSED, now))
        if aborts:
            self._start_abort(now)
        elif self.state not in ENDING:
            self._calls.closed(None, None)
        return self._run(now)

    def unsupported(self, reason: str, now: float) -> list[Effect]:
        """End ``init_transactions()``: the brokers do not support what transactions need."""
        assert self.state is _S.INITIALIZING, "nothing else is checked later"
        self._request = None
        self.producer = None
        self._give_up(_M.GIVE_UP, self._describe(FailureKind.UNSUPPORTED, now, cause=reason))
        return self._run(now)

    def caller_left(self, caller: Any) -> None:
        """Forget *caller*, which was interrupted. Its call continues."""
        self._calls.left(caller)

    def _accept(
        self,
        call: TransactionCall,
        caller: Any,
        now: float,
        deadline: float | None,
        *,
        key: Any = None,
        keeps_unread: bool = False,
    ) -> bool:
        """Return whether the call begins something. It may join another call, or be refused."""
        other = self._calls.accept(call, key, self.state, self.failure, keeps_unread=keeps_unread)
        if other is not None and caller is not None:
            until = self._deadline(call, deadline, now)
            self._calls.join(other, caller, until, patient=deadline is None)
        return other is None

    def _deadline(self, call: TransactionCall, deadline: float | None, now: float) -> float | None:
        if deadline is not None:
            return deadline
        if self.state is _S.FLUSHING and not self._transaction.settled:
            return None  # the rows have deadlines
        return now + self._max_block

    # The transaction -----------------------------------------------------------------------------

    def partition_wanted(self, serial: int, topic: str, partition: int, now: float) -> list[Effect]:
        """``TV1``: add the partition to the transaction."""
        place = (topic, partition)
        if serial == self.serial and self.state in OPEN and place not in self.view.added:
            self._transaction.wanted[place] = None
        return self._run(now)

    def offsets_answered(
        self, serial: int, number: int, found: Coordination, now: float
    ) -> list[Effect]:
        """Handle the final result of ``CommitOffsets``."""
        pending = self._transaction.pending_offsets
        if serial != self.serial or self.state not in OPEN or number not in pending:
            return []
        assert not found.again, "its stage sends it again"
        del pending[number]
        if found.reaction is Reaction.DONE:
            if number == self._transaction.waited_for:
                self._transaction.waited_for = None
                self._calls.finish()
        else:
            self._fail(found, now)
        return self._run(now)

    def row_failed(
        self,
        serial: int,
        cause: Any,
        now: float,
        *,
        code: int | None = None,
        fatal: bool = False,
        fenced: bool = False,
    ) -> list[Effect]:
        """Handle the first failure of a row. *fatal*, *fenced*: as in the verdict of its code."""
        if serial != self.serial or self.state not in OPEN:
            return []
        kind = FailureKind.ABORTABLE
        if fatal:
            kind = FailureKind.FENCED if fenced else FailureKind.FATAL
        outcome = CommitOutcome.NOT_COMMITTED
        failure = self._describe(kind, now, code=code, cause=cause, outcome=outcome)
        self._give_up(_M.BREAK if fatal else _M.SPOIL, failure)
        return self._run(now)

    def all_settled(self, serial: int, now: float) -> list[Effect]:
        """Handle the answer to ``WatchRows``."""
        if serial != self.serial:
            return []
        if self.state is _S.IN_TRANSACTION:
            raise IllegalTransactionMove("rows are settled that were not watched")
        if self.state is _S.FLUSHING:
            self._transaction.settled = True
            self._calls.decide_deadlines(now + self._max_block)
        return self._run(now)

    def all_reported(self, serial: int, now: float) -> list[Effect]:
        """Handle the answer to ``WatchReports``."""
        if serial != self.serial:
            return []
        self._transaction.reported = True
        if self._transaction.has_ended:
            self._calls.finish()
        return self._run(now)

    def drained(self, serial: int, now: float, *, spent: bool) -> list[Effect]:
        """Handle the answer to ``DrainBatches``. *spent*: a sealed batch was not confirmed."""
        if serial != self.serial:
            return []
        if self.state is not _S.DRAINING:
            raise IllegalTransactionMove(f"drained while {self.state.name}")
        self._transaction.drained = True
        self._transaction.spent |= spent
        return self._run(now)

    # Time ----------------------------------------------------------------------------------------

    def next_due(self) -> float | None:
        """Return when to call :meth:`time_passed`, None: never."""
        due = [self._retry_at if self._request is None else None, self._calls.next_due()]
        if self.state in OPEN:
            due.append(self._times_out_at())
        if self._request is None and self.hold.ask_at is not None and self._may_ask():
            # A request that waits to be retried comes first.
            due.append(max(self.hold.ask_at, self._retry_at or 0.0))
        return min((when for when in due if when is not None), default=None)

    def time_passed(self, now: float) -> list[Effect]:
        """Do what is due at *now*."""
        # First, so that the error of a caller whose deadline has passed names a request sent now.
        effects = self._run(now)
        self._calls.expire(now, lambda call: self._unfinished(FailureKind.TIMEOUT, call, now))
        return effects + self._take()

    def stop(self, now: float) -> list[Effect]:
        """End all calls, as the stage ends. The machine must not be used afterwards."""
        self._calls.stop(lambda call: self._unfinished(FailureKind.CLOSED, call, now))
        return self._take()

    def _unfinished(
        self, kind: FailureKind, call: TransactionCall, now: float
    ) -> TransactionFailure:
        outcome = None if call is _C.INIT else self._known()
        failure = self._describe(kind, now, call=call, outcome=outcome)
        request = None if self._request is None else self._request.api_key
        return failure._replace(api_key=request, last_code=next(reversed(self._times), None))

    def has_offsets_of(self, group: str) -> bool:
        """Return whether offsets of *group* have no result yet."""
        return any(pending.group == group for pending in self._transaction.pending_offsets.values())

    def known_outcome(self) -> CommitOutcome | None:
        """Return what is known about the transaction. From any thread, after the stage's end."""
        return self._known()

    def _known(self) -> CommitOutcome | None:
        """Return what is known about the transaction so far."""
        if self.state in (_S.UNINITIALIZED, _S.INITIALIZING, _S.READY, _S.FATAL):
            return self.outcome
        if self.state is _S.PREPARED:
            return None
        ends = self.state is _S.ENDING_COMMIT and isinstance(self._request, SendEndTxn)
        if ends or self._transaction.unconfirmed:
            return CommitOutcome.POSSIBLY_COMMITTED
        return CommitOutcome.NOT_COMMITTED
