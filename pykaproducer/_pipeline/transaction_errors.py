"""The errors of transactions, made from the failures of the state machine."""

from __future__ import annotations

from pykaproducer._errors.codes import ErrorCode
from pykaproducer._errors.combined import combined
from pykaproducer._errors.formatting import format_error_code, format_partition
from pykaproducer._errors.hints import ADVICE
from pykaproducer._machines.transaction_states import (
    ACCEPTED,
    FailureKind,
    TransactionCall,
    TransactionFailure,
    TransactionState,
)
from pykaproducer._wire.messages import ApiKey
from pykaproducer.errors import (
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
    _S.PREPARED: _C.INIT,
}
#: The offsets of a topic or partition that does not exist.
_NO_PARTITION = (ApiKey.TXN_OFFSET_COMMIT, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
_KINDS: dict[FailureKind, type[TransactionError]] = {
    FailureKind.STATE: TransactionStateError,
    FailureKind.CONFLICT: TransactionStateError,
    FailureKind.TIMEOUT: TransactionTimeoutError,
    FailureKind.INITIALIZATION: TransactionError,
    FailureKind.ABORTABLE: TransactionAbortableError,
    FailureKind.FENCED: ProducerFencedError,
    FailureKind.FATAL: TransactionFatalError,
}


def error_of(failure: TransactionFailure, transactional_id: str) -> Exception:
    """Return the error for the caller to whom *failure* happened."""
    if failure.kind is FailureKind.CLOSED:
        text = f"{_call(failure.call)}: the producer was closed{_outcome(failure)}"
        return ProducerClosedError(text)
    kind = _KINDS[failure.kind]
    if failure.kind is FailureKind.UNSUPPORTED:
        return UnsupportedFeatureError(
            f"transactional id {transactional_id!r}: transactions need Kafka 2.5 or newer; "
            f"{failure.cause}; upgrade the brokers, or remove transactional_id"
        )
    cause = failure.cause
    if isinstance(cause, TransactionFailure):
        cause = error_of(cause, transactional_id)
    if failure.code is not None:
        kind = combined(kind, failure.code)
    error = kind(
        f"transactional id {transactional_id!r}: {_text(failure)}",
        transactional_id=transactional_id,
        code=failure.code,
        outcome=failure.outcome,
        cause=cause if isinstance(cause, BaseException) else None,
    )
    if isinstance(error, TransactionStateError) and failure.other is not None:
        error.under_way = failure.other.value
    return error


def _text(failure: TransactionFailure) -> str:
    call = _call(failure.call)
    match failure.kind:
        case FailureKind.STATE:
            return f"{call}: {_STATES[failure.state]}{_advice(failure.state)}"
        case FailureKind.CONFLICT:
            return f"{call}: {_call(failure.other)} is under way; call that again first"
        case FailureKind.TIMEOUT:
            return f"{call} has not ended within its timeout; it continues{_outcome(failure)}"
        case FailureKind.ABORTABLE:
            text = "the transaction must be aborted"
        case FailureKind.FENCED:
            text = "another producer has taken over the transactional id"
        case FailureKind.INITIALIZATION:
            text = f"{call} failed"
        case _:
            text = "the producer cannot be used any more"
    if failure.timed_out:
        text = f"transaction_timeout_ms has passed; {text}"
    if failure.code is not None:
        request = "a broker" if failure.api_key is None else ApiKey(failure.api_key).name
        text += f": {request} returned {format_error_code(failure.code)}"
        if failure.code in ADVICE:
            text += f"; {ADVICE[failure.code]}"
        elif (failure.api_key, failure.code) == _NO_PARTITION:
            text += "; the cluster does not have all partitions of the offsets"
    elif isinstance(failure.cause, BaseException):
        text += f": {failure.cause}"
    return text + _outcome(failure)


def _call(call: TransactionCall | None) -> str:
    return "the call" if call is None else f"{call.value}()"


def _advice(state: TransactionState) -> str:
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
    return TransactionAbortedError(text, status=status, topic=topic, cause=cause)
