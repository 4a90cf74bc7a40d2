"""The state of a transactional producer, its moves, and what other threads see of it.

See :mod:`pykaproducer._machines.transactions`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pykaproducer._machines.coordination import TV1, TV2, CommitOutcome, Coordination, Delays
from pykaproducer._machines.introduction_hold import IntroductionHold
from pykaproducer._machines.sequencing import ProducerId
from pykaproducer._machines.transaction_calls import ControlCalls
from pykaproducer._machines.transaction_effects import (
    Effect,
    OpenAdmission,
    PublishView,
    Request,
    ShutAdmission,
)
from pykaproducer._machines.transaction_record import TransactionRecord, TransactionView
from pykaproducer._machines.transaction_states import (
    ENDING,
    OPEN,
    TRANSITIONS,
    FailureKind,
    IllegalTransactionMove,
    TransactionCall,
    TransactionFailure,
    TransactionMove,
    TransactionState,
    about,
)

_S = TransactionState


class TransactionBase:
    """The state and its moves."""

    def __init__(
        self,
        transactional_id: str,
        *,
        timeout: float,
        max_block: float,
        backoff_first: float,
        backoff_most: float,
        random: Callable[[], float],
        waits_for_callbacks: bool = False,
    ) -> None:
        """Begin uninitialized. All times are in seconds; *random* returns numbers in [0, 1).

        *waits_for_callbacks*: callers get the end of a transaction after ``all_reported``.
        """
        self.transactional_id = transactional_id
        self.state = TransactionState.UNINITIALIZED
        self.serial = 0
        #: Of the transaction that is open, or of the next one.
        self.protocol = TV1
        self.producer: ProducerId | None = None
        #: Replaced as a whole; may be read from any thread.
        self.view = TransactionView()
        #: Led to ABORTABLE or FATAL, or back to UNINITIALIZED.
        self.failure: TransactionFailure | None = None
        #: The outcome of the last transaction that has ended.
        self.outcome: CommitOutcome | None = None
        self.hold = IntroductionHold()
        self._timeout, self._max_block, self._random = timeout, max_block, random
        self._waits_for_callbacks = waits_for_callbacks
        self._effects: list[Effect] = []
        self._calls = ControlCalls(self._effects)
        self._transaction = TransactionRecord()
        # The coordinator, and the request to it.
        self._offered = TV1
        # The least protocol that a leader of a partition has turned out to support.
        self._leaders_offer = TV2
        self._connected = False
        self._request: Request | None = None
        self._delays = Delays(backoff_first, backoff_most)
        self._retry_at: float | None = None
        self._times: dict[int | None, int] = {}
        # The last transaction was of TV2, which does not wait for answers before an abort.
        self._had_tv2 = False

    @property
    def retries(self) -> bool:
        """Whether the next request repeats one that has failed."""
        return self._delays.are_retries

    def _take(self) -> list[Effect]:
        effects = self._effects[:]
        self._effects.clear()
        return effects

    def _describe(
        self,
        kind: FailureKind,
        now: float,
        *,
        call: TransactionCall | None = None,
        found: Coordination | None = None,
        code: int | None = None,
        outcome: CommitOutcome | None = None,
        cause: Any = None,
    ) -> TransactionFailure:
        since = self._transaction.touch.at
        late = since is not None and now >= since + self._timeout
        groups = tuple(self._transaction.groups)
        failure = TransactionFailure(
            kind, self.state, call, None, None, code, outcome, cause, late, groups
        )
        return failure if found is None else about(failure, found)

    # Moves ---------------------------------------------------------------------------------------

    def _move(self, move: TransactionMove) -> None:
        found = TRANSITIONS[self.state].get(move)
        if found is None:
            raise IllegalTransactionMove(f"{move.name} while {self.state.name}")
        self.state = found
        self._retry_at = None
        self._delays.reset()
        self._times.clear()
        self._publish()
        failure = self.refusal()
        self._effects.append(OpenAdmission() if failure is None else ShutAdmission(failure))
        if self.state not in OPEN | ENDING | {_S.ABORTABLE}:
            self._calls.closed(self.outcome, self.failure if self.state is _S.FATAL else None)

    def _publish(self) -> None:
        view = TransactionView(
            self.serial,
            self.state in OPEN,
            self.producer,
            self.protocol,
            self._transaction.added,
            self.hold.not_before if self.protocol == TV2 else 0.0,
            self._transaction.touch,
            self.transactional_id,
            self._transaction.turn,
        )
        if view != self.view:
            self.view = view
            self._effects.append(PublishView(view))

    def refusal(self) -> TransactionFailure | None:
        """Return why ``send()`` is refused, None if it is accepted."""
        if self.state is _S.IN_TRANSACTION:
            return None
        if self.state in (_S.ABORTABLE, _S.FATAL):
            return self.failure
        return self._refusal(TransactionCall.SEND)

    def _refusal(self, call: TransactionCall) -> TransactionFailure:
        return TransactionFailure(FailureKind.STATE, self.state, call, cause=self.failure)
