"""The states, moves, calls and failures of a transactional producer.

:mod:`pykaproducer._machines.transactions` has the machine.
"""

from __future__ import annotations

import enum
from typing import Any, Final, NamedTuple

from pykaproducer._machines.coordination import CommitOutcome, Coordination

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


class TransactionFailure(NamedTuple):
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
    return failure._replace(
        api_key=found.api_key, code=found.code, group=found.group, place=found.place
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
