"""The errors of ``TransactionControl`` for requests that were refused or not answered."""

from __future__ import annotations

from pykaproducer._control.control_request import ControlRequest
from pykaproducer._errors.codes import ErrorCode
from pykaproducer._errors.combined import combined
from pykaproducer._errors.formatting import format_error_code
from pykaproducer._errors.hints import ADVICE
from pykaproducer._machines.coordination import Reaction
from pykaproducer._wire.messages import ApiKey
from pykaproducer.errors import (
    ProducerFencedError,
    PykaproducerError,
    TransactionError,
    TransactionTimeoutError,
    UnsupportedFeatureError,
)

#: The first version of Kafka with a request, or with the version of it that is needed.
_SINCE = {
    ApiKey.INIT_PRODUCER_ID: "2.5",
    ApiKey.TXN_OFFSET_COMMIT: "2.5",
    ApiKey.OFFSET_FETCH: "2.5",
    ApiKey.DESCRIBE_TRANSACTIONS: "3.0",
    ApiKey.LIST_TRANSACTIONS: "3.0",
}
#: Rights that differ from those of a producer.
_RIGHTS: dict[int, dict[int, str]] = {
    ApiKey.FIND_COORDINATOR: {
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: (
            "grant this client Describe on the transactional id"
        ),
        ErrorCode.GROUP_AUTHORIZATION_FAILED: "grant this client Describe on the group",
    },
    ApiKey.OFFSET_FETCH: {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED: "grant this client Describe on the topic",
        ErrorCode.GROUP_AUTHORIZATION_FAILED: "grant this client Describe on the group",
    },
    ApiKey.TXN_OFFSET_COMMIT: {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED: "grant this client Read on the topic",
        ErrorCode.GROUP_AUTHORIZATION_FAILED: "grant this client Read on the group",
    },
}

_USED_SINCE = (
    "another client has used the id since, or the transaction's timeout has passed; it may have "
    "been committed before"
)
#: Why a transaction may be committed although the coordinator refuses to end it.
_UNSURE: dict[int, str] = {
    ErrorCode.INVALID_PRODUCER_EPOCH: _USED_SINCE,
    ErrorCode.PRODUCER_FENCED: _USED_SINCE,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: _USED_SINCE,
    ErrorCode.INVALID_TXN_STATE: "it is not open any more, and may have been committed before",
}


def why_unsure(api_key: int, code: int) -> str:
    """Return the reason why the end of a transaction is unknown after the answer *code*."""
    text = f"{ApiKey(api_key).name} returned {format_error_code(code)}"
    advice = _RIGHTS.get(api_key, {}).get(code) or _UNSURE.get(code) or ADVICE.get(code)
    return text if advice is None else f"{text}; {advice}"


def error_of(call: str, request: ControlRequest, seconds: float) -> PykaproducerError | None:
    """Return the error of a *request* of *call*, None if it has succeeded.

    *seconds*: the time that the call had.
    """
    if request.unsupported is not None:
        return _too_old(call, request)
    found, name = request.found, getattr(request, "transactional_id", None)
    if found is None:
        reason = f": {request.reason}" if request.reason else ""
        return TransactionTimeoutError(
            f"{call}: {request.about}: no answer within {max(0, seconds):.3g} s{reason}",
            transactional_id=name,
        )
    if found.reaction is Reaction.DONE:
        return None
    return refused(call, request.about, found.api_key, found.code or 0, name, found.fenced)


def refused(
    call: str,
    about: str,
    api_key: int,
    code: int,
    transactional_id: str | None,
    fenced: bool = False,
) -> TransactionError:
    """Return the error for the answer *code* of a broker to *call*."""
    text = f"{call}: {about}: {ApiKey(api_key).name} returned {format_error_code(code)}"
    advice = _RIGHTS.get(ApiKey(api_key), {}).get(code) or ADVICE.get(code)
    if advice is not None:
        text += f"; {advice}"
    if code == ErrorCode.INVALID_PRODUCER_EPOCH:
        fenced = True  # by another instance or by the timeout: the session is over
    kind: type[TransactionError] = ProducerFencedError if fenced else TransactionError
    return combined(kind, code)(text, transactional_id=transactional_id, code=code)


def _too_old(call: str, request: ControlRequest) -> UnsupportedFeatureError:
    api = ApiKey(request.api_key)
    # Version 5 has the protocol of KIP-890 part 2, with which the transaction has begun.
    late = api is ApiKey.TXN_OFFSET_COMMIT and request.at_least >= 5
    since = "4.0" if late else _SINCE.get(api)
    need = "" if since is None else f"; that needs Kafka {since} or newer"
    return UnsupportedFeatureError(f"{call}: {request.unsupported}{need}")
