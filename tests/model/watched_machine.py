"""What holds for a transaction's machine after each event, whatever its surroundings do.

The promises are about logs and outcomes, and cannot see a machine that asks for too much, or that
tells a commit as possible although it is known.
"""

from __future__ import annotations

from typing import Any

from pykaproducer._errors.codes import ErrorCode
from pykaproducer._machines.coordination import TV1, TV2, CommitOutcome
from pykaproducer._machines.transaction_effects import (
    AnswerCaller,
    DrainBatches,
    Effect,
    FailRows,
    OpenAdmission,
    SendAddOffsets,
    SendAddPartitions,
    SendEndTxn,
    ShutAdmission,
    WatchRows,
)
from pykaproducer._machines.transaction_states import OPEN, FailureKind
from pykaproducer._machines.transaction_states import TransactionState as S
from pykaproducer._machines.transactions import TransactionMachine

from .promises import check

#: Answers after which EndTxn may have been carried out, or will be.
DOUBTFUL = (
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)


def _holds(condition: bool, text: str) -> None:
    check(condition, "machine", text)


class WatchedMachine(TransactionMachine):
    """The product's machine; each of its events is followed by these checks."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._is_admitting = False
        #: Caller -> the transaction that was open, or the last one.
        self._called_in: dict[Any, int] = {}
        self._new_transaction()

    def _new_transaction(self) -> None:
        self._watched, self._began_with = self.serial, self.protocol
        #: Rows may be without outcome; the transaction must not be committed any more.
        self._is_unsettled, self._is_spoiled = self.serial > 0, False
        #: An EndTxn(commit) may have been carried out; its protocol. An abort was carried out.
        self._doubt: int | None = None
        self._is_aborted = False

    # Events --------------------------------------------------------------------------------------

    def _accept(self, call: Any, caller: Any, *args: Any, **options: Any) -> Any:
        if caller is not None:
            self._called_in[caller] = self.serial
        return super()._accept(call, caller, *args, **options)

    def close(self, caller: Any, *args: Any) -> list[Effect]:
        self._called_in[caller] = self.serial
        return super().close(caller, *args)

    def prepare(self, *args: Any, **options: Any) -> list[Effect]:
        effects = super().prepare(*args, **options)
        self._is_spoiled |= self.state is S.FLUSHING
        return effects

    def all_settled(self, serial: int, now: float) -> list[Effect]:
        self._is_unsettled &= serial != self.serial
        return super().all_settled(serial, now)

    def answered(self, api_key: int, code: int, *args: Any, **options: Any) -> list[Effect]:
        request = self._request
        if isinstance(request, SendEndTxn) and request.commit:
            if code in DOUBTFUL:
                self._doubt = request.protocol
            elif code == ErrorCode.INVALID_TXN_STATE:
                self._doubt = None
        elif isinstance(request, SendEndTxn):
            self._is_aborted |= code == ErrorCode.NONE
        return super().answered(api_key, code, *args, **options)

    def connection_lost(self, now: float, *, written: bool) -> list[Effect]:
        request = self._request
        if isinstance(request, SendEndTxn) and request.commit and written:
            self._doubt = request.protocol
        return super().connection_lost(now, written=written)

    # Checks --------------------------------------------------------------------------------------

    def _take(self) -> list[Effect]:
        effects = super()._take()
        if self.serial != self._watched:
            self._new_transaction()
        for effect in effects:
            self._check(effect)
        state, request = self.state, self._request
        self._is_spoiled |= state is S.ABORTABLE
        _holds(self.view.is_open is (state in OPEN), f"the view of {state}")
        _holds(self._is_admitting is (state is S.IN_TRANSACTION), f"admission in {state}")
        _holds(not self._is_unsettled or state in OPEN, f"rows are forgotten in {state}")
        if isinstance(request, SendAddPartitions | SendAddOffsets):
            late = state in OPEN | {S.ABORTABLE, S.DRAINING, S.FATAL}
            _holds(late, f"{request} in {state}")
        return effects

    def _check(self, effect: Effect) -> None:
        match effect:
            case SendEndTxn():
                # A coordinator that has left the second protocol refuses its EndTxn. A commit that
                # may have been carried out is repeated as it was.
                protocol = min(self._began_with, self._offered, self._doubt or TV2)
                _holds(effect.protocol == protocol, f"{effect}, not protocol {protocol}")
                _holds(self.view.touch.at is not None, "the end of an empty transaction")
                if effect.commit:
                    _holds(not self._is_spoiled, "a commit of what must not be committed")
                    _holds(not self._transaction.pending_offsets, "a commit before its offsets")
            case SendAddPartitions() | SendAddOffsets():
                _holds(self._began_with == TV1 and self.state in OPEN, f"{effect}")
            case OpenAdmission() | ShutAdmission():
                self._is_admitting = isinstance(effect, OpenAdmission)
            case FailRows() | WatchRows():
                _holds(not self._is_admitting, "rows may be accepted that do not count")
                self._is_unsettled &= isinstance(effect, WatchRows)
            case DrainBatches():
                _holds(not self.view.is_open, "batches are drained that may be sealed")
            case AnswerCaller(outcome=CommitOutcome()):
                self._check_outcome(effect)

    def _check_outcome(self, answer: AnswerCaller) -> None:
        """Check that a commit is possible only if no answer has decided it."""
        if not self.serial or self._called_in.get(answer.caller) != self.serial:
            return
        request, failure = self._request, answer.failure
        in_flight = isinstance(request, SendEndTxn) and request.commit
        in_flight &= failure is not None and failure.kind is FailureKind.TIMEOUT
        if answer.outcome is not CommitOutcome.COMMITTED and not self._is_aborted:
            unsure = answer.outcome is CommitOutcome.POSSIBLY_COMMITTED
            doubtful = self._doubt is not None or in_flight
            _holds(unsure is doubtful, f"{answer} is told although doubt is {doubtful}")
