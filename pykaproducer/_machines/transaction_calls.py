"""The calls of a transactional producer: which one is accepted, who waits, and for how long.

One control call is under way at a time. An equal call joins it and gets the same result; another
one is refused. A call whose caller gave up continues. If it succeeds, the next equal call reads its
result. As long as no caller has read the result of a commit or prepare, the next transaction is
refused, so that the result is not missed. A caller that is interrupted after its result has come,
but before it returns, has not read the result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from pykaproducer._machines.coordination import CommitOutcome
from pykaproducer._machines.transaction_effects import (
    AnswerCaller,
    Effect,
    Preparation,
)
from pykaproducer._machines.transaction_states import (
    ACCEPTED,
    CallRefused,
    FailureKind,
    TransactionCall,
    TransactionFailure,
    TransactionState,
)

_C = TransactionCall
#: Their results must be read before the next transaction.
_IMPORTANT: Final = frozenset({_C.COMMIT, _C.PREPARE})


@dataclass(slots=True)
class ControlCall:
    """A call under way, or one that succeeded after its callers had gone."""

    call: TransactionCall
    #: Distinguishes it from other calls of the same method.
    key: Any = None
    #: Caller -> when it gives up; None: not decided yet.
    callers: dict[Any, float | None] = field(default_factory=dict)
    outcome: CommitOutcome | None = None
    prepared: Preparation | None = None
    #: A caller got its result before its end.
    was_read: bool = False
    #: The callers without a timeout.
    patient: set[Any] = field(default_factory=set)
    #: Only callbacks of the transaction's messages still run.
    awaits_callbacks: bool = False

    @property
    def is_over(self) -> bool:
        """Whether no caller has to learn its result."""
        return self.was_read and not self.callers


class ControlCalls:
    """The call under way, and the callers of ``close()``."""

    def __init__(self, effects: list[Effect]) -> None:
        self._effects = effects
        self.under_way: ControlCall | None = None
        self._unread: ControlCall | None = None
        # The last call that succeeded, and the callers that may not have read its result yet.
        self._succeeded: ControlCall | None = None
        self._readers: set[Any] = set()
        self._closers: dict[Any, tuple[float, bool]] = {}

    # Beginning -----------------------------------------------------------------------------------

    def accept(
        self,
        call: TransactionCall,
        key: Any,
        state: TransactionState,
        failure: TransactionFailure | None,
        *,
        keeps_unread: bool = False,
    ) -> ControlCall | None:
        """Return the call that this one joins, or whose result it reads; None: it is new.

        *failure*: the one that led to the *state*. *keeps_unread*: a result that no caller has read
        can be read after this call, too. Raise :class:`CallRefused` if it does not fit.
        """
        unread, other = self._unread, self.under_way
        if unread is not None and (unread.call, unread.key) == (call, key):
            return unread
        if state is TransactionState.FATAL:
            assert failure is not None, "a fatal state has a reason"
            raise CallRefused(failure._replace(call=call))
        if other is not None and not other.is_over:
            if (other.call, other.key) == (call, key):
                return other
            if call is not _C.ABORT or other.call is not _C.OFFSETS or other.callers:
                self._refuse(FailureKind.CONFLICT, state, call, failure, other.call)
        elif unread is not None and unread.call in _IMPORTANT and not keeps_unread:
            self._refuse(FailureKind.CONFLICT, state, call, failure, unread.call)
        if state is TransactionState.ABORTABLE and call is not _C.ABORT:
            assert failure is not None, "an abortable state has a reason"
            raise CallRefused(failure._replace(call=call))
        if state not in ACCEPTED[call]:
            self._refuse(FailureKind.STATE, state, call, failure)
        return None

    def _refuse(
        self,
        kind: FailureKind,
        state: TransactionState,
        call: TransactionCall,
        cause: TransactionFailure | None,
        other: TransactionCall | None = None,
    ) -> None:
        raise CallRefused(TransactionFailure(kind, state, call, other, cause=cause))

    def begin(
        self,
        call: TransactionCall,
        key: Any,
        caller: Any,
        deadline: float | None,
        *,
        keeps_unread: bool = False,
        patient: bool = False,
    ) -> None:
        """Begin a new call. *keeps_unread*: as in :meth:`accept`.

        *patient*: the caller has given no timeout.
        """
        if not keeps_unread:
            self.forget_unread()
        self.under_way = ControlCall(call, key, {caller: deadline})
        if patient:
            self.under_way.patient.add(caller)

    def join(
        self, other: ControlCall, caller: Any, deadline: float | None, *, patient: bool = False
    ) -> None:
        """Let *caller* wait for *other* too, or give it the result that no caller has read."""
        if other is self._unread:
            self._unread = None
            self._answer(caller, other)
            self._succeeded, self._readers = other, {caller}
        else:
            other.callers[caller] = None if patient and other.awaits_callbacks else deadline
            if patient:
                other.patient.add(caller)

    def forget_unread(self) -> None:
        """Forget a result that no caller has read, as the next transaction begins."""
        self._unread = self._succeeded = None

    # Waiting -------------------------------------------------------------------------------------

    def decide_deadlines(self, deadline: float) -> None:
        """Set the deadline of the callers that have none yet."""
        if self.under_way is not None:
            callers = self.under_way.callers
            callers.update({one: deadline for one, when in callers.items() if when is None})

    def await_callbacks(self) -> None:
        """Record that only callbacks of the user delay the end of the call under way.

        They may take any time, so only the timeouts that callers have given limit the wait.
        """
        call = self.under_way
        if call is not None:
            call.awaits_callbacks = True
            call.callers.update(dict.fromkeys(call.patient & call.callers.keys()))

    def left(self, caller: Any) -> None:
        """Forget *caller*, which no longer waits, and may not have read its result."""
        self._closers.pop(caller, None)
        if self.under_way is not None:
            self.under_way.callers.pop(caller, None)
        if self._succeeded is not None and caller in self._readers:
            self._readers.discard(caller)
            if not self._readers and self._unread is None:
                self._unread, self._succeeded = self._succeeded, None

    def next_due(self) -> float | None:
        """Return when the next caller gives up."""
        due = [when for when, _ in self._closers.values()]
        if self.under_way is not None:
            due += [when for when in self.under_way.callers.values() if when is not None]
        return min(due, default=None)

    def expire(self, now: float, describe: Callable[[TransactionCall], TransactionFailure]) -> None:
        """End the wait of callers whose deadline has passed; *describe* returns their error."""
        call = self.under_way
        if call is not None:
            for caller, when in [*call.callers.items()]:
                if when is None or when > now:
                    continue
                del call.callers[caller]
                if call.outcome is CommitOutcome.COMMITTED and not call.awaits_callbacks:
                    call.was_read = True  # it waits only for what the next transaction needs
                    self._answer(caller, call)
                else:
                    self._answer(caller, call, describe(call.call))
        for caller, (when, _) in [*self._closers.items()]:
            if when <= now:
                del self._closers[caller]
                failure = describe(_C.CLOSE)
                self._effects.append(AnswerCaller(caller, failure, failure.outcome))

    # Ending --------------------------------------------------------------------------------------

    def finish(self, failure: TransactionFailure | None = None) -> None:
        """End the call under way, if any. A commit that has succeeded does not fail later."""
        call, self.under_way = self.under_way, None
        if call is None:
            return
        if failure is not None and (
            call.outcome is CommitOutcome.COMMITTED
            or (failure.kind is FailureKind.CLOSED and call.outcome is not None)
        ):
            failure = None
        for caller in call.callers:
            self._answer(caller, call, failure)
        if failure is None and call.callers:
            self._succeeded, self._readers = call, {*call.callers}
        if failure is None and not call.callers and not call.was_read and self._unread is None:
            self._unread = call

    def _answer(
        self, caller: Any, call: ControlCall, failure: TransactionFailure | None = None
    ) -> None:
        outcome = call.outcome if failure is None else failure.outcome
        prepared = call.prepared if failure is None else None
        if failure is not None and failure.call is not call.call:
            failure = failure._replace(call=call.call)
        self._effects.append(AnswerCaller(caller, failure, outcome, prepared))

    # Closing -------------------------------------------------------------------------------------

    def close(self, caller: Any, deadline: float, *, ends: bool) -> None:
        """Let *caller* of ``close()`` wait. *ends*: it ends a transaction, or waits for its end."""
        self._closers[caller] = (deadline, ends)

    @property
    def are_closing(self) -> bool:
        """Whether a caller of ``close()`` waits."""
        return bool(self._closers)

    def closed(self, outcome: CommitOutcome | None, failure: TransactionFailure | None) -> None:
        """End all calls of ``close()``."""
        for caller, (_, ends) in self._closers.items():
            self._effects.append(AnswerCaller(caller, failure, outcome if ends else None))
        self._closers.clear()

    def stop(self, describe: Callable[[TransactionCall], TransactionFailure]) -> None:
        """End all calls; *describe* returns the error of each."""
        if self.under_way is not None:
            self.finish(describe(self.under_way.call))
        if self._closers:
            failure = describe(_C.CLOSE)
            self.closed(failure.outcome, failure)
