"""The states and moves of a transactional producer, and what describes a transaction.

:mod:`pykaproducer._machines.transactions` has the machine.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from dataclasses import replace as with_changes
from typing import Any, Final

from pykaproducer._machines.coordination import TV1, TV2, CommitOutcome, Coordination
from pykaproducer._machines.introduction_turn import IntroductionTurn
from pykaproducer._machines.sequencing import ProducerId

#: A topic and the number of a partition.
Place = tuple[str, int]


class TransactionState(enum.Enum):
    """The state of a transactional producer."""

    UNINITIALIZED = enum.auto()
    #: InitProducerId is needed: a new producer, a new epoch, or another protocol.
    INITIALIZING = enum.auto()
    #: There is no transaction.
    READY = enum.auto()
    #: Records are accepted.
    IN_TRANSACTION = enum.auto()
    #: Commit or prepare: records and offsets are on their way.
    FLUSHING = enum.auto()
    #: EndTxn(commit) is needed.
    ENDING_COMMIT = enum.auto()
    #: Only an abort is possible.
    ABORTABLE = enum.auto()
    #: ``TV1``: an abort waits until nothing is in flight.
    DRAINING = enum.auto()
    #: EndTxn(abort) is needed.
    ENDING_ABORT = enum.auto()
    #: The transaction is left to another process.
    PREPARED = enum.auto()
    FATAL = enum.auto()


class TransactionMove(enum.Enum):
    """The changes of state."""

    INITIALIZE = enum.auto()
    INITIALIZED = enum.auto()
    GIVE_UP = enum.auto()
    BEGIN = enum.auto()
    FLUSH = enum.auto()
    END_COMMIT = enum.auto()
    PREPARE = enum.auto()
    SPOIL = enum.auto()
    DRAIN = enum.auto()
    END_ABORT = enum.auto()
    ENDED = enum.auto()
    BREAK = enum.auto()


_S, _M = TransactionState, TransactionMove

TRANSITIONS: Final[dict[TransactionState, dict[TransactionMove, TransactionState]]] = {
    _S.UNINITIALIZED: {_M.INITIALIZE: _S.INITIALIZING},
    _S.INITIALIZING: {
        _M.INITIALIZED: _S.READY,
        _M.GIVE_UP: _S.UNINITIALIZED,
        _M.BREAK: _S.FATAL,
    },
    _S.READY: {_M.BEGIN: _S.IN_TRANSACTION, _M.INITIALIZE: _S.INITIALIZING},
    _S.IN_TRANSACTION: {
        _M.FLUSH: _S.FLUSHING,
        _M.SPOIL: _S.ABORTABLE,
        _M.DRAIN: _S.DRAINING,
        _M.END_ABORT: _S.ENDING_ABORT,
        _M.BREAK: _S.FATAL,
    },
    _S.FLUSHING: {
        _M.END_COMMIT: _S.ENDING_COMMIT,
        _M.ENDED: _S.READY,
        _M.PREPARE: _S.PREPARED,
        _M.SPOIL: _S.ABORTABLE,
        _M.BREAK: _S.FATAL,
    },
    _S.ENDING_COMMIT: {_M.ENDED: _S.READY, _M.SPOIL: _S.ABORTABLE, _M.BREAK: _S.FATAL},
    _S.ABORTABLE: {_M.DRAIN: _S.DRAINING, _M.END_ABORT: _S.ENDING_ABORT},
    _S.DRAINING: {
        _M.END_ABORT: _S.ENDING_ABORT,
        _M.INITIALIZE: _S.INITIALIZING,
        _M.ENDED: _S.READY,
    },
    _S.ENDING_ABORT: {
        _M.ENDED: _S.READY,
        _M.INITIALIZE: _S.INITIALIZING,
        _M.BREAK: _S.FATAL,
    },
    _S.PREPARED: {_M.INITIALIZE: _S.INITIALIZING},
    _S.FATAL: {},
}

#: Records are sealed, and partitions and offsets are added.
OPEN: Final = frozenset({_S.IN_TRANSACTION, _S.FLUSHING})
#: A transaction is being ended.
ENDING: Final = frozenset({_S.FLUSHING, _S.ENDING_COMMIT, _S.DRAINING, _S.ENDING_ABORT})


class TransactionCall(enum.Enum):
    """The calls of a program, by the names of their methods."""

    INIT = "init_transactions"
    BEGIN = "begin_transaction"
    OFFSETS = "send_offsets_to_transaction"
    COMMIT = "commit_transaction"
    PREPARE = "prepare_transaction"
    ABORT = "abort_transaction"
    CLOSE = "close"
    SEND = "send"


_C = TransactionCall

#: The states in which a call begins something, or has no effect. A call also joins an equal one
#: that is under way, and reads the result of an equal one that no caller has read.
ACCEPTED: Final[dict[TransactionCall, frozenset[TransactionState]]] = {
    _C.INIT: frozenset({_S.UNINITIALIZED, _S.INITIALIZING, _S.READY, _S.PREPARED}),
    _C.BEGIN: frozenset({_S.READY}),
    _C.OFFSETS: frozenset({_S.IN_TRANSACTION}),
    _C.COMMIT: frozenset({_S.IN_TRANSACTION}),
    _C.PREPARE: frozenset({_S.IN_TRANSACTION}),
    _C.ABORT: frozenset({_S.IN_TRANSACTION, _S.ABORTABLE}),
    _C.SEND: frozenset({_S.IN_TRANSACTION}),
}


class IllegalTransactionMove(AssertionError):
    """An event that does not fit the state, which indicates a bug in the stage."""


class FailureKind(enum.Enum):
    """The kind of error that a caller gets."""

    #: The call does not fit the state.
    STATE = enum.auto()
    #: Another call is under way, or its result has not been read.
    CONFLICT = enum.auto()
    #: The time given has passed; the operation continues.
    TIMEOUT = enum.auto()
    #: Raised by ``init_transactions()``, which may be called again.
    INITIALIZATION = enum.auto()
    #: As INITIALIZATION: the brokers are too old.
    UNSUPPORTED = enum.auto()
    #: The producer is being closed.
    CLOSED = enum.auto()
    #: This is the child of a fork, and the call was that of the parent.
    FORKED = enum.auto()
    ABORTABLE = enum.auto()
    #: Fatal: another producer has the transactional id.
    FENCED = enum.auto()
    FATAL = enum.auto()


#: The calls that end a transaction.
ENDS: Final = frozenset({_C.COMMIT, _C.PREPARE, _C.ABORT})
_ABOUT_MESSAGES: Final = frozenset({FailureKind.ABORTABLE, FailureKind.FENCED, FailureKind.FATAL})


@dataclass(frozen=True, slots=True)
class TransactionFailure:
    """The content of an error that a caller gets."""

    kind: FailureKind
    #: The state when it happened.
    state: TransactionState
    #: The call that failed, None if it is not about one call.
    call: TransactionCall | None = None
    #: CONFLICT: the other call.
    other: TransactionCall | None = None
    #: The request that was refused, and its error code.
    api_key: int | None = None
    code: int | None = None
    outcome: CommitOutcome | None = None
    #: The first failure of a row, as given by the stage; or the failure that led to the state; or,
    #: with UNSUPPORTED, the reason as text.
    cause: Any = None
    #: By the local clock the transaction's timeout has passed since its first write.
    timed_out: bool = False
    #: The transaction has offsets of these groups.
    groups: tuple[str, ...] = ()
    #: The group, and the partition, that the refused request was about.
    group: str | None = None
    place: Place | None = None
    #: TIMEOUT: the code of the last answer, None: there was none.
    last_code: int | None = None


def about(failure: TransactionFailure, found: Coordination) -> TransactionFailure:
    """Add the request that was refused, and what it was about."""
    return with_changes(
        failure, api_key=found.api_key, code=found.code, group=found.group, place=found.place
    )


def reports_failed_messages(call: TransactionCall, failure: TransactionFailure | None) -> bool:
    """Return whether the result of *call* reports the failed messages of its transaction.

    Then neither ``flush()`` nor the end of a ``with`` block reports them again.
    """
    return call in ENDS and (failure is None or failure.kind in _ABOUT_MESSAGES)


class CallRefused(Exception):
    """A call does not fit the state; nothing has changed. The caller gets *failure*."""

    def __init__(self, failure: TransactionFailure) -> None:
        super().__init__(failure)
        self.failure = failure


class Touch:
    """When the first record or offset of a transaction may have been written, None: none yet.

    The stages that write set it. Nothing ever clears it.
    """

    __slots__ = ("_is_claimed", "at", "took")

    def __init__(self) -> None:
        self.at: float | None = None
        self._is_claimed = False
        #: ``TV2``: how long the answer to the first Produce took (seconds). Set before rows of that
        #: request are settled, by the stage that has sent it.
        self.took: float | None = None

    def set(self, now: float) -> None:
        """Record a write at *now*. Call this before the connection gets the request."""
        if self.at is None:
            self.at = now

    def claim_produce(self) -> bool:
        """Return whether the next Produce is the first one, also if offsets have been written.

        If two stages call it at the same time, both may get True. Then the later response counts.
        """
        is_first, self._is_claimed = not self._is_claimed, True
        return is_first


@dataclass(frozen=True, slots=True)
class TransactionView:
    """A transaction as seen by the stages that write records. Immutable, replaced as a whole."""

    #: Ordinal of the transaction, that of the last one if none is open.
    serial: int = 0
    #: Whether records may be sealed and written.
    is_open: bool = False
    #: The same object throughout a transaction, and another one in the next.
    producer: ProducerId | None = None
    protocol: int = TV1
    #: ``TV1``: the partitions that the coordinator has added.
    added: frozenset[Place] = frozenset()
    #: Records must not be written before this time (monotonic seconds).
    not_before: float = 0.0
    touch: Touch = field(default_factory=Touch, compare=False)
    transactional_id: str | None = None
    #: ``TV2``: whose Produce may add partitions.
    turn: IntroductionTurn = field(default_factory=IntroductionTurn, compare=False)


@dataclass(slots=True)
class PendingOffsets:
    """Offsets of one ``send_offsets_to_transaction()``. Times are monotonic seconds."""

    group: str
    offsets: Any
    #: When to stop waiting for an unknown partition.
    deadline: float
    #: It was given to the stage of the group.
    given: bool = False
    #: When the program made the call.
    asked_at: float = 0.0


@dataclass(slots=True)
class TransactionRecord:
    """The progress of the transaction that is open, or was the last one."""

    begun_at: float = 0.0
    touch: Touch = field(default_factory=Touch)
    turn: IntroductionTurn = field(default_factory=IntroductionTurn)
    #: ``TV1``: partitions in the order in which they were wanted.
    wanted: dict[Place, None] = field(default_factory=dict)
    #: ``TV1``: the partitions and groups that the coordinator has added.
    added: frozenset[Place] = frozenset()
    added_groups: set[str] = field(default_factory=set)
    #: Number -> offsets without a result.
    pending_offsets: dict[int, PendingOffsets] = field(default_factory=dict)
    #: The number of those for which a call waits.
    waited_for: int | None = None
    number_of_offsets: int = 0
    #: All groups, in the order of their first offsets.
    groups: dict[str, None] = field(default_factory=dict)
    preparing: bool = False
    settled: bool = False
    #: Its callbacks have run.
    reported: bool = False
    #: Its end is known, but the callbacks had not run by then.
    has_ended: bool = False
    drained: bool = False
    #: EndTxn(commit) was written without an answer that decides.
    unconfirmed: bool = False
    #: The greatest protocol of EndTxn: that of the one without such an answer.
    ends_as: int = TV2
    #: ``TV1``: a request of this epoch may still arrive, so an abort is followed by a new epoch.
    spent: bool = False
    #: When the request under way was sent.
    asked_at: float = 0.0
