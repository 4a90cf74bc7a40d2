"""The part of the machine of a transactional producer that deals with its coordinator.

One request is under way at a time: a coordinator refuses a second one. See
:mod:`pykaproducer._machines.transactions`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pykaproducer._errors.codes import ErrorCode
from pykaproducer._machines.coordination import (
    NO_ANSWER,
    TV1,
    TV2,
    CommitOutcome,
    Coordination,
    Ending,
    Reaction,
    coordinate,
    coordinate_all,
)
from pykaproducer._machines.sequencing import ProducerId
from pykaproducer._machines.transaction_base import TransactionBase
from pykaproducer._machines.transaction_effects import (
    CommitOffsets,
    DrainBatches,
    Effect,
    EndHold,
    FailRows,
    GiveUpOffsets,
    LeaveCoordinator,
    PartitionsAdded,
    Preparation,
    Request,
    SendAddOffsets,
    SendAddPartitions,
    SendDescribeTransactions,
    SendEndTxn,
    SendFindCoordinator,
    SendInitProducerId,
    WatchReports,
)
from pykaproducer._machines.transaction_states import (
    ENDS,
    OPEN,
    FailureKind,
    IllegalTransactionMove,
    Place,
    TransactionCall,
    TransactionFailure,
    TransactionMove,
    TransactionState,
)

_C, _M, _S = TransactionCall, TransactionMove, TransactionState

#: No request is sent in these states, and answers to earlier ones decide nothing: the abort does.
_WITHOUT_REQUESTS: Final = frozenset({_S.ABORTABLE, _S.DRAINING, _S.FATAL})
#: In these states the coordinator may be asked whether the last transaction has ended.
_ASKS: Final = OPEN | {_S.READY}


class TransactionCore(TransactionBase):
    """The requests to the coordinator, and the ends of transactions."""

    # Events of the coordinator -------------------------------------------------------------------

    def coordinator_found(self, protocol: int, now: float) -> list[Effect]:
        """Handle a new connection to the coordinator, which offers *protocol*."""
        self._connected = True
        self._offered = protocol
        if isinstance(self._request, SendFindCoordinator):
            self._request = None
        if self.state is _S.READY:
            self._renew_if_protocol_changed()
        return self._run(now)

    def leader_without_tv2(self) -> None:
        """Use ``TV1`` from the next transaction on: a leader does not support ``TV2``."""
        self._leaders_offer = TV1

    def coordinator_not_found(self, code: int | None, now: float) -> list[Effect]:
        """Handle a FindCoordinator response with an error, None: no response or no connection."""
        request = self._expect(SendFindCoordinator.api_key)
        return self._handle(request, self._judge(request, code, written=True), now)

    def answered(
        self, api_key: int, code: int, now: float, *, producer: ProducerId | None = None
    ) -> list[Effect]:
        """Handle the answer to the request under way. *producer*: the one in it, if any."""
        request = self._expect(api_key)
        if isinstance(request, SendDescribeTransactions):
            return self._not_described(now, refused=True)
        self._note_write(request)
        return self._handle(request, self._judge(request, code, written=True), now, producer)

    def partitions_answered(self, codes: Mapping[Place, int], now: float) -> list[Effect]:
        """Handle the answer to AddPartitionsToTxn, with a code for each partition."""
        request = self._expect(SendAddPartitions.api_key)
        assert isinstance(request, SendAddPartitions)
        self._note_write(request)
        found = {
            place: codes.get(place, ErrorCode.UNKNOWN_SERVER_ERROR) for place in request.partitions
        }
        added = tuple(place for place, code in found.items() if code == ErrorCode.NONE)
        if added and self.state in OPEN:
            self._transaction.added |= frozenset(added)
            for place in added:
                self._transaction.wanted.pop(place, None)
            self._publish()
            self._effects.append(PartitionsAdded(added))
        judged = coordinate_all(request.api_key, found.values(), places=found)
        return self._handle(request, judged, now)

    def connection_lost(self, now: float, *, written: bool) -> list[Effect]:
        """Handle the loss of the connection. *written*: a part of the request may be written."""
        self._connected = False
        request = self._request
        if request is None or isinstance(request, SendFindCoordinator):
            return self._run(now)
        if isinstance(request, SendDescribeTransactions):
            return self._not_described(now, refused=False)
        if written:
            self._note_write(request)
            if isinstance(request, SendAddPartitions | SendAddOffsets):
                # It may be carried out after EndTxn, and then begin a transaction.
                self._transaction.spent = True
        return self._handle(request, self._judge(request, NO_ANSWER, written=written), now)

    def described(self, *, complete: bool, now: float) -> list[Effect]:
        """Handle the answer to DescribeTransactions: whether the last transaction has ended."""
        self._expect(SendDescribeTransactions.api_key)
        self._request = None
        self.hold.answered(now, complete=complete)
        self._publish_hold()
        return self._run(now)

    def _not_described(self, now: float, *, refused: bool) -> list[Effect]:
        self._request = None
        if refused:
            self.hold.refused(now)
        else:
            self.hold.lost(now)
        self._publish_hold()
        return self._run(now)

    def _expect(self, api_key: int) -> Request:
        request = self._request
        if request is None or request.api_key != api_key:
            raise IllegalTransactionMove(f"an answer to request {api_key}, not to {request}")
        return request

    def _note_write(self, request: Request) -> None:
        if isinstance(request, SendAddPartitions | SendAddOffsets):
            self._transaction.touch.set(self._transaction.asked_at)

    def _judge(self, request: Request, code: int | None, *, written: bool) -> Coordination:
        found = coordinate(
            request.api_key,
            code,
            initializing=self.state is _S.INITIALIZING,
            ending=self._ending(),
            times=self._times.get(code, 0),
            written=written,
        )
        return found._replace(group=getattr(request, "group", None))

    def _ending(self) -> Ending | None:
        if self.state not in (_S.ENDING_COMMIT, _S.ENDING_ABORT):
            return None
        commit = self.state is _S.ENDING_COMMIT
        return Ending(commit, self._ending_protocol(), self._transaction.unconfirmed)

    def _ending_protocol(self) -> int:
        """Return the protocol of EndTxn.

        A coordinator that has left ``TV2`` still ends its transactions, but only as those of
        ``TV1``. After a refusal of the other version, Kafka 4.3 blocks the transactional id. If
        such an end may have been carried out, it is repeated as it was:

        1. EndTxn(commit) of ``TV1`` is carried out, which bumps no epoch; the answer is lost.
        2. The cluster returns to ``TV2``, and the producer connects again.
        3. EndTxn(commit) of ``TV2`` is answered as if there were nothing to commit.
        """
        return min(self.protocol, self._offered, self._transaction.ends_as)

    def _handle(
        self, request: Request, found: Coordination, now: float, producer: ProducerId | None = None
    ) -> list[Effect]:
        self._request = None
        if found.reaction is Reaction.FIND:
            self._connected = False
        if self.state in _WITHOUT_REQUESTS:
            return self._run(now)
        if found.again:
            if isinstance(request, SendEndTxn) and request.commit and found.unconfirmed:
                self._transaction.unconfirmed = True
                self._transaction.ends_as = request.protocol
            self._times[found.code] = self._times.pop(found.code, 0) + 1  # the last one is last
            self._retry_at = now + self._delays.after(found.reaction, self._random())
        elif found.reaction is Reaction.DONE:
            self._delays.reset()
            self._done(request, found, now, producer)
        elif found.reaction is Reaction.RENEW:
            self._calls_know(found.outcome)
            self._move(_M.INITIALIZE)
        else:
            self._fail(found, now)
        return self._run(now)

    def _done(
        self, request: Request, found: Coordination, now: float, producer: ProducerId | None
    ) -> None:
        match request:
            case SendInitProducerId():
                assert producer is not None, "InitProducerId returns a producer id"
                self.producer = producer
                self._had_tv2 = self.protocol == TV2
                self.protocol = min(self._offered, self._leaders_offer)
                self.failure = None
                self._move(_M.INITIALIZED)
                self._tell_end()
            case SendAddOffsets():
                self._transaction.added_groups.add(request.group)
            case SendEndTxn():
                self._transaction.unconfirmed = False
                self._ended(found.outcome, now, producer)

    # The next request ----------------------------------------------------------------------------

    def _run(self, now: float) -> list[Effect]:
        """Make the moves that are due, send what is needed, and return all effects.

        With each event, the timeout of the transaction is looked at before anything is sent:

        1. The process is paused, and the coordinator aborts the transaction.
        2. The process continues. The program commits before the timer has been looked at.
        3. In TV1, EndTxn would be answered as if another producer had the id, which is final.
        """
        if self.state in OPEN:
            self._look_at_timeout(now)
        if self.state in OPEN:
            self._give_offsets()
        self._make_due_moves(now)
        if self._request is None and (self._retry_at is None or now >= self._retry_at):
            request = self._needed() or self._question(now)
            if request is not None and not self._connected:
                request = SendFindCoordinator(self.transactional_id)
            if request is not None:
                self._retry_at = None
                self._transaction.asked_at = now
                self._request = request
                self._effects.append(request)
        return self._take()

    def _times_out_at(self) -> float:
        """Return when the coordinator aborts the transaction, or when to look again."""
        transaction = self._transaction
        since = transaction.begun_at if transaction.touch.at is None else transaction.touch.at
        return since + self._timeout

    def _look_at_timeout(self, now: float) -> None:
        if now < self._times_out_at():
            return
        if self._transaction.touch.at is None:
            self._transaction.begun_at = now  # it does not time out before its first write
        else:
            outcome = CommitOutcome.NOT_COMMITTED
            self._give_up(_M.SPOIL, self._describe(FailureKind.ABORTABLE, now, outcome=outcome))

    def _needed(self) -> Request | None:
        name, producer, transaction = self.transactional_id, self.producer, self._transaction
        if self.state is _S.INITIALIZING:
            return SendInitProducerId(name, self._timeout, producer)
        if producer is None:
            return None
        if self.state in (_S.ENDING_COMMIT, _S.ENDING_ABORT):
            commit = self.state is _S.ENDING_COMMIT
            return SendEndTxn(name, producer, commit, self._ending_protocol())
        if self.state in OPEN and self.protocol == TV1:
            if transaction.wanted:
                return SendAddPartitions(name, producer, tuple(transaction.wanted))
            for pending in transaction.pending_offsets.values():
                if pending.group not in transaction.added_groups:
                    return SendAddOffsets(name, producer, pending.group)
        return None

    def _make_due_moves(self, now: float) -> None:
        transaction = self._transaction
        if self.state is _S.ABORTABLE and self._calls.are_closing:
            self._start_abort(now)
        if self._request is not None and not isinstance(self._request, SendDescribeTransactions):
            return  # a transaction does not end while AddPartitionsToTxn is unanswered
        if self.state is _S.FLUSHING and transaction.settled and not transaction.pending_offsets:
            if transaction.preparing:
                self._prepared()
            elif transaction.touch.at is None:
                self._ended(CommitOutcome.COMMITTED, now)
            else:
                self._move(_M.END_COMMIT)
        elif self.state is _S.DRAINING and transaction.drained:
            if transaction.touch.at is None:
                self._ended(CommitOutcome.NOT_COMMITTED, now)
            else:
                self._move(_M.END_ABORT)

    def _give_offsets(self) -> None:
        """Give the groups the offsets that they may commit now."""
        transaction = self._transaction
        assert self.producer is not None, "there is no transaction without a producer id"
        for number, pending in transaction.pending_offsets.items():
            if pending.given or (
                self.protocol == TV1 and pending.group not in transaction.added_groups
            ):
                continue
            pending.given = True
            transaction.touch.set(pending.asked_at)
            self._effects.append(
                CommitOffsets(
                    self.serial,
                    number,
                    self.transactional_id,
                    pending.group,
                    pending.offsets,
                    self.producer,
                    self.protocol,
                    pending.deadline,
                )
            )

    # Ends ----------------------------------------------------------------------------------------

    def _ended(
        self, outcome: CommitOutcome | None, now: float, producer: ProducerId | None = None
    ) -> None:
        """End the transaction, with what is known about it."""
        if producer is not None and producer.producer_id >= 0:
            self.producer = producer
        if self.protocol == TV2:
            self._end_for_hold(now)
        self._calls_know(outcome)
        aborted = self.state in (_S.DRAINING, _S.ENDING_ABORT)
        if aborted and self.protocol == TV1 and self._transaction.spent:
            self._move(_M.INITIALIZE)
            return
        self.failure = None
        self._move(_M.ENDED)
        if self._transaction.ends_as < self.protocol:
            self._move(_M.INITIALIZE)  # EndTxn of TV1 has bumped no epoch
        elif not self._renew_if_protocol_changed():
            self._tell_end()

    def _renew_if_protocol_changed(self) -> bool:
        """Get a new epoch before the first transaction with another protocol (KIP-890)."""
        if min(self._offered, self._leaders_offer) == self.protocol:
            return False
        self._move(_M.INITIALIZE)
        return True

    def _prepared(self) -> None:
        assert self.producer is not None, "there is no transaction without a producer id"
        empty = self._transaction.touch.at is None
        call = self._calls.under_way
        if call is not None:
            call.prepared = Preparation(self.transactional_id, self.producer, self.protocol, empty)
        self._move(_M.PREPARE)
        self._tell_end()

    def _tell_end(self) -> None:
        """End the call under way, unless callbacks of the transaction have to run before that."""
        call = self._calls.under_way
        ends = call is not None and call.call in ENDS
        if ends and self._waits_for_callbacks and not self._transaction.reported:
            self._transaction.has_ended = True
            self._calls.await_callbacks()
        else:
            self._calls.finish()

    def _calls_know(self, outcome: CommitOutcome | None) -> None:
        self.outcome = outcome
        if self._calls.under_way is not None:
            self._calls.under_way.outcome = outcome

    def _start_abort(self, now: float) -> None:
        was_open = self.state in OPEN
        call = _C.CLOSE if self._calls.are_closing else _C.ABORT
        outcome = CommitOutcome.NOT_COMMITTED
        failure = self._describe(FailureKind.ABORTABLE, now, call=call, outcome=outcome)
        self._move(_M.DRAIN if self.protocol == TV1 else _M.END_ABORT)
        if was_open:
            self._give_up_rows(failure)
        self._watch_reports()
        if self.protocol == TV1:
            self._effects.append(DrainBatches(self.serial))
        elif self._transaction.touch.at is None:  # read after the view was replaced
            self._ended(CommitOutcome.NOT_COMMITTED, now)

    def _watch_reports(self) -> None:
        if self._waits_for_callbacks:
            self._transaction.reported = False
            self._effects.append(WatchReports(self.serial))

    # Failures ------------------------------------------------------------------------------------

    def _fail(self, found: Coordination, now: float) -> None:
        """Handle an answer after which the transaction, or the producer, cannot be used."""
        kind, move = {
            Reaction.ABORTABLE: (FailureKind.ABORTABLE, _M.SPOIL),
            Reaction.UNINITIALIZED: (FailureKind.INITIALIZATION, _M.GIVE_UP),
            Reaction.FATAL: (FailureKind.FATAL, _M.BREAK),
        }[found.reaction]
        if found.fenced:
            kind = FailureKind.FENCED
        outcome = found.outcome
        if outcome is None and self.state in OPEN:
            outcome = CommitOutcome.NOT_COMMITTED
        if self.state is _S.INITIALIZING:
            outcome = None if self._calls.under_way is None else self._calls.under_way.outcome
        elif outcome is CommitOutcome.NOT_COMMITTED:
            self._transaction.unconfirmed = False
            self._transaction.ends_as = TV2
        failure = self._describe(kind, now, found=found, outcome=outcome)
        if move is _M.GIVE_UP:
            self.producer = None
        self._give_up(move, failure)

    def _give_up(self, move: TransactionMove, failure: TransactionFailure) -> None:
        was_open = self.state in OPEN
        if self.state is not _S.INITIALIZING:
            self.outcome = failure.outcome
        self.failure = failure
        self._move(move)
        if was_open:
            self._give_up_rows(failure)
        self._calls.finish(failure)

    def _give_up_rows(self, failure: TransactionFailure) -> None:
        transaction = self._transaction
        self._effects.append(FailRows(self.serial, failure))
        if any(pending.given for pending in transaction.pending_offsets.values()):
            self._effects.append(GiveUpOffsets(self.serial))
            transaction.spent = True  # a TxnOffsetCommit may still arrive
        transaction.pending_offsets.clear()

    # Whether the last transaction has ended ------------------------------------------------------
    #
    # EndTxn is answered before the brokers have written the markers of the transaction. See
    # introduction_hold.py. The answer to the question decides nothing but when the first Produce
    # request of the next transaction is written, and no other request depends on it.

    def _end_for_hold(self, now: float) -> None:
        """Decide when the first Produce of the next transaction may be written."""
        touch = self._transaction.touch
        if touch.took is not None:
            self.hold.observed(touch.took)
        if touch.at is not None:
            self.hold.ended(now)

    def _may_ask(self) -> bool:
        """Return whether to ask at ``hold.ask_at``. A connection is not made for that."""
        return self._connected and self.state in _ASKS and self.hold.ask_at is not None

    def _question(self, now: float) -> SendDescribeTransactions | None:
        ask_at = self.hold.ask_at
        if ask_at is None or now < ask_at or not self._may_ask():
            return None
        self.hold.asks()
        return SendDescribeTransactions(self.transactional_id)

    def _forget_last(self, now: float) -> None:
        """Forget the last transaction, because of another id, which must not wait for its end.

        A question about it may be under way. Its connection is of no more use.
        """
        self.hold.forget(now)
        if isinstance(self._request, SendDescribeTransactions):
            self._request = None
            self._effects.append(LeaveCoordinator())

    def _publish_hold(self) -> None:
        """Publish when the first Produce may be written, after an answer or its loss."""
        before = self.view.not_before
        self._publish()
        if self.hold.not_before < before and self.state in OPEN:
            self._effects.append(EndHold())
