"""Classification of the answers of coordinators: one table, keyed by request and error code.

Only this table decides how a transactional producer handles an error code of FindCoordinator,
InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, TxnOffsetCommit or EndTxn. The codes that a
coordinator can send are those of ``TransactionCoordinator``, ``GroupCoordinator`` and
``KafkaApis``. A code that is not in the table is fatal.

:func:`coordinate` is a function of the request, the code and what is known about the request.
:class:`Delays` says when the next attempt is due.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Final, NamedTuple

from pykaproducer._errors.codes import ErrorCode
from pykaproducer._errors.commit_outcome import CommitOutcome as CommitOutcome
from pykaproducer._machines.cluster import Backoff
from pykaproducer._wire.messages import ApiKey

#: The transaction protocols: before and with KIP-890 part 2 (``transaction.version`` 2).
TV1: Final = 1
TV2: Final = 2

#: In place of a code: the connection was lost before the answer came.
NO_ANSWER: Final = None


class Reaction(enum.Enum):
    """How to handle the answer of a coordinator. The greater value prevails within an answer."""

    DONE = 0
    #: Send it again soon, after 1, 2, 4 .. 20 ms: markers of the last transaction are written.
    SOON = 1
    #: Send it again to the same broker, after a growing ``retry_backoff_ms``.
    RETRY = 2
    #: Find the coordinator again, and send it there.
    FIND = 3
    #: The transaction must be aborted.
    ABORTABLE = 4
    #: EndTxn(abort) only: InitProducerId with this producer id and epoch decides.
    RENEW = 5
    #: Raise; the producer is uninitialized, and ``init_transactions()`` may be called again.
    UNINITIALIZED = 6
    FATAL = 7


class Coordination(NamedTuple):
    """How to handle one answer."""

    reaction: Reaction
    #: The request, and its error code; None: there was no answer.
    api_key: int = -1
    code: int | None = 0
    #: Another producer may use the transactional id.
    fenced: bool = False
    #: EndTxn: it may have been carried out.
    unconfirmed: bool = False
    #: EndTxn: the outcome of the transaction; None until it is decided.
    outcome: CommitOutcome | None = None
    #: The group, and the topic and partition, that the answer is about, if it is about one.
    group: str | None = None
    place: tuple[str, int] | None = None

    @property
    def again(self) -> bool:
        """Whether the request is to be sent again."""
        return self.reaction in _AGAIN


class Ending(NamedTuple):
    """The circumstances that decide, with the code, how to handle an answer to EndTxn."""

    commit: bool
    #: The protocol of the transaction: ``TV1`` or ``TV2``.
    protocol: int
    #: EndTxn(commit) was written before without an answer that decides.
    unconfirmed: bool = False


_AGAIN: Final = frozenset({Reaction.SOON, Reaction.RETRY, Reaction.FIND})

_E, _R = ErrorCode, Reaction
_Table = dict["int | None", Reaction]

#: A coordinator that is loading its partition, or a slow or broken broker.
_BUSY: Final[_Table] = {
    _E.COORDINATOR_LOAD_IN_PROGRESS: _R.RETRY,
    _E.REQUEST_TIMED_OUT: _R.RETRY,
    _E.NETWORK_EXCEPTION: _R.RETRY,
}

#: Common to the requests to a coordinator.
_MOVED: Final[_Table] = {
    _E.NONE: _R.DONE,
    NO_ANSWER: _R.FIND,
    **_BUSY,
    _E.COORDINATOR_NOT_AVAILABLE: _R.FIND,
    _E.NOT_COORDINATOR: _R.FIND,
    _E.CONCURRENT_TRANSACTIONS: _R.SOON,
}

#: Common to the requests within a transaction.
_IN_TRANSACTION: Final[_Table] = {
    **_MOVED,
    _E.UNKNOWN_PRODUCER_ID: _R.ABORTABLE,
    _E.TRANSACTION_ABORTABLE: _R.ABORTABLE,
}

#: The consumer has lost its partitions to another member of the group.
LOST_PARTITIONS: Final = frozenset(
    {
        _E.ILLEGAL_GENERATION,
        _E.UNKNOWN_MEMBER_ID,
        _E.REBALANCE_IN_PROGRESS,
        _E.FENCED_INSTANCE_ID,
        _E.STALE_MEMBER_EPOCH,
    }
)

COORDINATION: Final[dict[int, _Table]] = {
    ApiKey.FIND_COORDINATOR: {
        _E.NONE: _R.DONE,
        NO_ANSWER: _R.RETRY,
        **_BUSY,
        _E.COORDINATOR_NOT_AVAILABLE: _R.RETRY,
        _E.NOT_COORDINATOR: _R.RETRY,
        _E.UNKNOWN_PRODUCER_ID: _R.ABORTABLE,
        _E.TRANSACTION_ABORTABLE: _R.ABORTABLE,
        _E.GROUP_AUTHORIZATION_FAILED: _R.ABORTABLE,
        _E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: _R.UNINITIALIZED,
    },
    ApiKey.INIT_PRODUCER_ID: {
        **_MOVED,
        _E.UNKNOWN_PRODUCER_ID: _R.UNINITIALIZED,
        _E.TRANSACTION_ABORTABLE: _R.UNINITIALIZED,
        _E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: _R.UNINITIALIZED,
        _E.CLUSTER_AUTHORIZATION_FAILED: _R.UNINITIALIZED,
        _E.INVALID_TRANSACTION_TIMEOUT: _R.UNINITIALIZED,
        _E.INVALID_REQUEST: _R.UNINITIALIZED,
    },
    ApiKey.ADD_PARTITIONS_TO_TXN: {
        **_IN_TRANSACTION,
        # Until the deadlines of the rows that wait for it.
        _E.UNKNOWN_TOPIC_OR_PARTITION: _R.RETRY,
        _E.TOPIC_AUTHORIZATION_FAILED: _R.ABORTABLE,
        _E.OPERATION_NOT_ATTEMPTED: _R.ABORTABLE,
    },
    ApiKey.ADD_OFFSETS_TO_TXN: {
        **_IN_TRANSACTION,
        _E.GROUP_AUTHORIZATION_FAILED: _R.ABORTABLE,
    },
    ApiKey.TXN_OFFSET_COMMIT: {
        **_IN_TRANSACTION,
        _E.REQUEST_TIMED_OUT: _R.FIND,
        # Until the deadline of the call.
        _E.UNKNOWN_TOPIC_OR_PARTITION: _R.RETRY,
        _E.TOPIC_AUTHORIZATION_FAILED: _R.ABORTABLE,
        _E.OPERATION_NOT_ATTEMPTED: _R.ABORTABLE,
        _E.GROUP_AUTHORIZATION_FAILED: _R.ABORTABLE,
        **dict.fromkeys(LOST_PARTITIONS, _R.ABORTABLE),
        _E.OFFSET_METADATA_TOO_LARGE: _R.ABORTABLE,
        _E.INVALID_COMMIT_OFFSET_SIZE: _R.ABORTABLE,
        # As in a Produce response: the coordinator of the transaction has aborted it, or another
        # producer has the id. The abort finds out.
        _E.INVALID_PRODUCER_EPOCH: _R.ABORTABLE,
    },
    # EndTxn(commit), and EndTxn(abort) below.
    ApiKey.END_TXN: {
        **_IN_TRANSACTION,
        # A timeout of the transaction, or nothing was written in it. With TV2 the abort gets the
        # next epoch, and the producer can be used further.
        _E.INVALID_TXN_STATE: _R.ABORTABLE,
        _E.UNKNOWN_SERVER_ERROR: _R.RETRY,
    },
}

#: EndTxn(abort) by protocol.
ABORT: Final[dict[int, _Table]] = {
    TV1: {
        **_MOVED,
        _E.UNKNOWN_PRODUCER_ID: _R.RETRY,
        _E.TRANSACTION_ABORTABLE: _R.RETRY,
        _E.UNKNOWN_SERVER_ERROR: _R.RETRY,
        # The coordinator has aborted the transaction because of its timeout, or another producer
        # has the id. Only InitProducerId tells these apart.
        _E.INVALID_PRODUCER_EPOCH: _R.RENEW,
        _E.PRODUCER_FENCED: _R.RENEW,
        # There was nothing to abort.
        _E.INVALID_TXN_STATE: _R.RENEW,
    },
    TV2: {
        **_MOVED,
        _E.UNKNOWN_PRODUCER_ID: _R.RETRY,
        _E.TRANSACTION_ABORTABLE: _R.RETRY,
        _E.UNKNOWN_SERVER_ERROR: _R.RETRY,
    },
}

_FENCED: Final = frozenset({_E.INVALID_PRODUCER_EPOCH, _E.PRODUCER_FENCED})

#: How often EndTxn is sent again after these codes. After that they are fatal.
_ATTEMPTS: Final[dict[int | None, int]] = {
    _E.UNKNOWN_SERVER_ERROR: 3,
    _E.UNKNOWN_PRODUCER_ID: 1,
    _E.TRANSACTION_ABORTABLE: 1,
}

#: Answers to EndTxn after which it may have been carried out, or may still be. A coordinator also
#: answers that it is not available, loading, or not the coordinator, after it has appended the end
#: to its log: if the replicas were slow, or another broker has taken the log over
#: (``TransactionStateManager``).
_UNCONFIRMED: Final = frozenset(
    {
        NO_ANSWER,
        _E.REQUEST_TIMED_OUT,
        _E.UNKNOWN_SERVER_ERROR,
        _E.COORDINATOR_LOAD_IN_PROGRESS,
        _E.COORDINATOR_NOT_AVAILABLE,
        _E.NOT_COORDINATOR,
    }
)


def coordinate(
    api_key: int,
    code: int | None,
    *,
    initializing: bool = False,
    ending: Ending | None = None,
    times: int = 0,
    written: bool = True,
    late: bool = False,
) -> Coordination:
    """Return how to handle the answer *code* to the request *api_key*.

    *code*: ``NO_ANSWER`` if the connection was lost; then *written* says whether a part of the
    request may have been written. *initializing*: the producer has no open transaction.
    *ending*: for EndTxn, and for FindCoordinator before it. *times*: how often this EndTxn was
    sent again because of the same code. *late*: for TxnOffsetCommit, the deadline of the call has
    passed.
    """
    if api_key == ApiKey.END_TXN:
        assert ending is not None, "EndTxn needs to know what it ends"
        return _coordinate_end(code, ending, times, written)
    reaction = COORDINATION[api_key].get(code, Reaction.FATAL)
    if api_key == ApiKey.FIND_COORDINATOR:
        reaction = _find(reaction, initializing, ending, times)
    if late and code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and reaction is Reaction.RETRY:
        reaction = Reaction.ABORTABLE
    fenced = reaction is Reaction.FATAL and code in _FENCED
    found = Coordination(reaction, api_key, code, fenced)
    if ending is None or found.again:
        return found
    return found._replace(outcome=_undecided(ending))


def _find(reaction: Reaction, initializing: bool, ending: Ending | None, times: int) -> Reaction:
    if initializing:
        return Reaction.UNINITIALIZED if reaction is Reaction.ABORTABLE else reaction
    if reaction is Reaction.UNINITIALIZED:
        return Reaction.FATAL
    if reaction is Reaction.ABORTABLE and ending is not None and not ending.commit:
        return Reaction.FATAL if times else Reaction.RETRY  # it is being aborted
    return reaction


def _coordinate_end(code: int | None, ending: Ending, times: int, written: bool) -> Coordination:
    table = COORDINATION[ApiKey.END_TXN] if ending.commit else ABORT[ending.protocol]
    reaction = table.get(code, Reaction.FATAL)
    if reaction is Reaction.RETRY and times >= _ATTEMPTS.get(code, times + 1):
        reaction = Reaction.FATAL
    unconfirmed = written and code in _UNCONFIRMED
    if code == ErrorCode.NONE:
        outcome = CommitOutcome.COMMITTED if ending.commit else CommitOutcome.NOT_COMMITTED
        return Coordination(reaction, ApiKey.END_TXN, code, outcome=outcome)
    found = Coordination(reaction, ApiKey.END_TXN, code, unconfirmed=unconfirmed)
    if found.again:
        return found
    if ending.commit and code == ErrorCode.INVALID_TXN_STATE:
        # No coordinator answers so to the retry of a commit that succeeded.
        return found._replace(outcome=CommitOutcome.NOT_COMMITTED)
    unconfirmed_commit = ending.unconfirmed or (ending.commit and unconfirmed)
    if reaction is Reaction.RENEW and ending.unconfirmed:
        # There may be nothing to abort because the transaction is committed.
        reaction = Reaction.FATAL
    return found._replace(
        reaction=reaction,
        fenced=reaction is Reaction.FATAL and code in _FENCED,
        outcome=_undecided(ending._replace(unconfirmed=unconfirmed_commit)),
    )


def _undecided(ending: Ending) -> CommitOutcome:
    if ending.unconfirmed:
        return CommitOutcome.POSSIBLY_COMMITTED
    return CommitOutcome.NOT_COMMITTED


def coordinate_all(
    api_key: int,
    codes: Iterable[int],
    *,
    late: bool = False,
    places: Iterable[tuple[str, int]] = (),
    group: str | None = None,
) -> Coordination:
    """Return how to handle an answer with a code for each partition; see :func:`coordinate`.

    A broker that refuses some partitions answers OPERATION_NOT_ATTEMPTED for the others. *places*
    are the partitions of *codes*; the result has the first one with the code that decides.
    """
    codes = list(codes)
    found = {coordinate(api_key, code, late=late) for code in codes}
    if any(each.code not in (ErrorCode.NONE, _NOT_ATTEMPTED) for each in found):
        found = {each for each in found if each.code != _NOT_ATTEMPTED}
    default = Coordination(Reaction.DONE, api_key)
    worst = max(found, key=lambda each: (each.reaction.value, -(each.code or 0)), default=default)
    concerned = (place for place, code in zip(places, codes, strict=False) if code == worst.code)
    return worst._replace(group=group, place=next(concerned, None))


_NOT_ATTEMPTED: Final = ErrorCode.OPERATION_NOT_ATTEMPTED


class Delays:
    """The delays before retries. One for each sequence of requests to a coordinator."""

    def __init__(self, first: float, most: float) -> None:
        self._retry = Backoff(first, most)
        self._soon = 0
        self._found = 0

    @property
    def are_retries(self) -> bool:
        """Whether an attempt has failed since the last success, except because of ``SOON``."""
        return bool(self._found or self._retry.failures)

    def after(self, reaction: Reaction, random: float) -> float:
        """Return the seconds to wait before the next attempt; *random* is in [0, 1)."""
        if reaction is Reaction.SOON:
            self._soon += 1
            return soon_delay(self._soon)
        if reaction is Reaction.FIND:
            self._found += 1
            if self._found == 1:
                return 0.0  # usually the coordinator has moved, and the lookup finds it
        return self._retry.next(random)

    def reset(self) -> None:
        """Begin anew, after a success."""
        self._retry.reset()
        self._soon = self._found = 0


def soon_delay(attempt: int) -> float:
    """Return the seconds to wait before *attempt* (from 1) with ``SOON``: 1, 2, 4 .. 20 ms."""
    return min(_SOON_MOST, _SOON_FIRST * 2.0 ** min(attempt - 1, 32))


_SOON_FIRST: Final = 0.001
_SOON_MOST: Final = 0.02
