"""The errors of transactions, made from the failures of the state machine."""

from __future__ import annotations

from pykaproducer._errors.codes import ErrorCode
from pykaproducer._errors.combined import combined
from pykaproducer._errors.formatting import format_error_code, format_partition
from pykaproducer._errors.transaction_hints import coordinator_advice
from pykaproducer._machines.transaction_states import (
    ACCEPTED,
    ENDING,
    FailureKind,
    TransactionCall,
    TransactionFailure,
    TransactionState,
)
from pykaproducer._wire.messages import ApiKey
from pykaproducer.errors import (
    BrokerRejectedError,
    CommitOutcome,
    ProducerClosedError,
    ProducerFencedError,
    Status,
    TransactionAbortableError,
    TransactionAbortedError,
    TransactionError,
    TransactionFatalError,
    TransactionStateError,
    TransactionTimeoutError,
    UnsupportedFeatureError,
)

_S, _C = TransactionState, TransactionCall

_STATES = {
    _S.UNINITIALIZED: "init_transactions() has not been called",
    _S.INITIALIZING: "init_transactions() is under way",
    _S.READY: "there is no transaction",
    _S.IN_TRANSACTION: "a transaction is open",
    _S.FLUSHING: "the transaction is being committed",
    _S.ENDING_COMMIT: "the transaction is being committed",
    _S.ABORTABLE: "the transaction has failed",
    _S.DRAINING: "the transaction is being aborted",
    _S.ENDING_ABORT: "the transaction is being aborted",
    _S.PREPARED: "the last transaction was prepared",
    _S.FATAL: "the producer cannot be used any more",
}
#: The call that continues in a state, for those in which a call may be missing.
_NEXT = {
    _S.UNINITIALIZED: _C.INIT,
    _S.READY: _C.BEGIN,
    _S.ABORTABLE: _C.ABORT,
}
#: ``send()`` does not fit, until a call under way has ended.
_PASSING = ENDING | {_S.INITIALIZING}
#: Error codes that are about one partition. Others are about the group or the transaction.
_ABOUT_PARTITIONS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.OFFSET_METADATA_TOO_LARGE,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.OPERATION_NOT_ATTEMPTED,
}
#: What to do after errors that end the use of the producer.
_REMEDY = {
    FailureKind.FENCED: "; close this producer",
    FailureKind.FATAL: "; close it, and create a new one",
}
_TOO_OLD = "transactions need Kafka 2.5 or newer"
_NOT_COMMITTED = CommitOutcome.NOT_COMMITTED
_KINDS: dict[FailureKind, type[TransactionError]] = {
    FailureKind.STATE: TransactionStateError,
    FailureKind.CONFLICT: TransactionStateError,
    FailureKind.FORKED: TransactionStateError,
    FailureKind.TIMEOUT: TransactionTimeoutError,
    FailureKind.INITIALIZATION: TransactionError,
    FailureKind.ABORTABLE: TransactionAbortableError,
    FailureKind.FENCED: ProducerFencedError,
    FailureKind.FATAL: TransactionFatalError,
}


def error_of(
    failure: TransactionFailure, transactional_id: str, unreachable: str | None = None
) -> Exception:
    """Return the error for the caller to whom *failure* happened.

    *unreachable*: why no server of the cluster can be reached.
    """
    if failure.kind is FailureKind.CLOSED:
        text = f"{_call(failure.call)}: the producer was closed{_outcome(failure)}"
        closed = ProducerClosedError(text)
        closed.outcome = failure.outcome
        return closed
    if failure.kind is FailureKind.UNSUPPORTED:
        return UnsupportedFeatureError(
            f"transactional id {transactional_id!r}: {_TOO_OLD}; {failure.cause}; "
            f"upgrade the brokers, or remove transactional_id"
        )
    kind, cause, code = _KINDS[failure.kind], failure.cause, failure.code
    if isinstance(cause, TransactionFailure):
        cause = error_of(cause, transactional_id)
    if code is None and isinstance(cause, BrokerRejectedError):
        code = cause.code
    if code is not None:
        kind = combined(kind, code)
    error = kind(
        f"transactional id {transactional_id!r}: {_text(failure, unreachable)}",
        transactional_id=transactional_id,
        code=code,
        outcome=failure.outcome,
        cause=cause if isinstance(cause, BaseException) else None,
    )
    if isinstance(error, TransactionStateError) and failure.other is not None:
        error.under_way = failure.other.value
    return error


def _text(failure: TransactionFailure, unreachable: str | None) -> str:
    call = _call(failure.call)
    match failure.kind:
        case FailureKind.STATE:
            return f"{call}: {_state(failure)}{_advice(failure)}"
        case FailureKind.CONFLICT:
            return f"{call}: {_call(failure.other)} is under way; call that again first"
        case FailureKind.FORKED:
            return f"{call}: a signal handler has forked; the call goes on in the parent process"
        case FailureKind.TIMEOUT if failure.outcome is CommitOutcome.COMMITTED:
            return (
                f"{call} has not ended within its timeout: the transaction is committed, but "
                f"callbacks of its messages have not returned; call it again to wait for them"
            )
        case FailureKind.TIMEOUT:
            text = f"{call} has not ended within its timeout; it continues"
            if failure.call is TransactionCall.COMMIT and failure.outcome is _NOT_COMMITTED:
                text += ", and may still commit the transaction"
            text += _outcome(failure)
            reason = f"; {unreachable}" if unreachable else _waiting(failure)
            return f"{text}{reason}; call it again to keep waiting"
        case FailureKind.ABORTABLE:
            text = "the transaction must be aborted"
        case FailureKind.FENCED:
            text = (
                "another producer has taken over the transactional id, or an administrator has "
                "fenced it"
            )
        case FailureKind.INITIALIZATION:
            text = f"{call} failed"
        case _:
            text = "the producer cannot be used any more"
    if failure.timed_out:
        text = f"transaction_timeout_ms has passed; {text}"
    if failure.code is not None:
        request = ApiKey.PRODUCE if failure.api_key is None else ApiKey(failure.api_key)
        text += f": {request.name} returned {format_error_code(failure.code)}{_resource(failure)}"
        if advice := coordinator_advice(failure.api_key, failure.code):
            text += f"; {advice}"
    elif isinstance(failure.cause, BaseException):
        text += f": {failure.cause}"
    text += _outcome(failure)
    if failure.timed_out and failure.kind in (FailureKind.ABORTABLE, FailureKind.FENCED):
        text += "; make transactions smaller, or raise transaction_timeout_ms"
    return text + _REMEDY.get(failure.kind, "")


def _state(failure: TransactionFailure) -> str:
    """Return the state that a call does not fit, with the reason if a failure led to it."""
    cause = failure.cause
    if failure.state is not _S.UNINITIALIZED or not isinstance(cause, TransactionFailure):
        return _STATES[failure.state]
    if cause.kind is FailureKind.UNSUPPORTED:
        return f"init_transactions() failed: {_TOO_OLD}; {cause.cause}"
    return _text(cause._replace(call=_C.INIT), None)


def _resource(failure: TransactionFailure) -> str:
    """Return what the refused request was about."""
    cause = failure.cause
    if isinstance(cause, BrokerRejectedError) and cause.topic is not None:
        return f" for {format_partition(cause.topic, cause.partition)}"
    if failure.place is not None and failure.code in _ABOUT_PARTITIONS:
        return f" for {format_partition(*failure.place)}"
    return "" if failure.group is None else f" for group {failure.group!r}"


def _waiting(failure: TransactionFailure) -> str:
    """Return what a call has waited for."""
    if failure.state is _S.FLUSHING:
        return "; messages or offsets have no outcome yet"
    text = ""
    if failure.api_key is not None:
        text = f"; {ApiKey(failure.api_key).name} has not been answered"
    if failure.last_code is not None:
        text += f"; the last answer was {format_error_code(failure.last_code)}"
    return text


def _call(call: TransactionCall | None) -> str:
    return "the call" if call is None else f"{call.value}()"


def _advice(failure: TransactionFailure) -> str:
    state = failure.state
    if failure.call is _C.SEND and state in _PASSING:
        return "; wait until that call has returned, and send in the next transaction"
    if state is _S.UNINITIALIZED and failure.cause is not None:
        return "; call it again"
    if state is _S.IN_TRANSACTION:
        return "; call commit_transaction() or abort_transaction() first"
    if state is _S.PREPARED:
        return (
            "; call init_transactions() with another transactional_id: with the same one it aborts "
            "the prepared transaction"
        )
    following = _NEXT.get(state)
    if following is None or state not in ACCEPTED.get(following, ()):
        return ""
    return f"; call {following.value}()"


def _outcome(failure: TransactionFailure) -> str:
    if failure.outcome is not CommitOutcome.POSSIBLY_COMMITTED:
        return ""
    where = (
        f"the offsets of group {failure.groups[0]!r}"
        if failure.groups
        else "the topics with isolation.level=read_committed"
    )
    return f"; it may have been committed: read {where} to find out"


def aborted_error(
    failure: TransactionFailure, topic: str, status: Status
) -> TransactionAbortedError:
    """Return the outcome of a message whose transaction was aborted because of *failure*."""
    cause = failure.cause if isinstance(failure.cause, BaseException) else None
    text = f"{format_partition(topic)}: its transaction was aborted"
    if cause is not None:
        text += f", because another message failed: {cause}"
    elif failure.call is _C.CLOSE:
        text += " when the producer was closed; call commit_transaction() before close()"
    return TransactionAbortedError(text, status=status, topic=topic, cause=cause)
