"""The answers to requests that inspect transactions, and the protocol that a cluster supports.

The requests of a transaction itself are in :mod:`pykaproducer._machines.coordination`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pykaproducer._errors.codes import ErrorCode
from pykaproducer._machines.coordination import (
    COORDINATION,
    NO_ANSWER,
    TV1,
    TV2,
    Coordination,
    Reaction,
    coordinate,
)
from pykaproducer._wire.messages import ApiKey

_E, _R = ErrorCode, Reaction

#: The feature that turns the protocol of KIP-890 part 2 on, and its least level.
_FEATURE, _TV2_LEVEL = "transaction.version", 2
#: The least versions of the requests of that protocol.
TV2_VERSIONS: Final = {ApiKey.PRODUCE: 12, ApiKey.END_TXN: 5, ApiKey.TXN_OFFSET_COMMIT: 5}

#: Requests that any broker, or a given one, answers.
_ANY: Final[dict[int | None, Reaction]] = {
    _E.NONE: _R.DONE,
    NO_ANSWER: _R.RETRY,
    _E.COORDINATOR_LOAD_IN_PROGRESS: _R.RETRY,
    _E.REQUEST_TIMED_OUT: _R.RETRY,
    _E.NETWORK_EXCEPTION: _R.RETRY,
    _E.COORDINATOR_NOT_AVAILABLE: _R.RETRY,
}

#: Requests that a coordinator answers.
_COORDINATOR: Final[dict[int | None, Reaction]] = {
    **_ANY,
    NO_ANSWER: _R.FIND,
    _E.COORDINATOR_NOT_AVAILABLE: _R.FIND,
    _E.NOT_COORDINATOR: _R.FIND,
}

_QUERIES: Final[dict[int, dict[int | None, Reaction]]] = {
    ApiKey.METADATA: {**_ANY, _E.REBOOTSTRAP_REQUIRED: _R.RETRY},
    ApiKey.LIST_TRANSACTIONS: _ANY,
    ApiKey.DESCRIBE_TRANSACTIONS: {
        **_COORDINATOR,
        # These are results: other ids of the same request have descriptions.
        _E.TRANSACTIONAL_ID_NOT_FOUND: _R.DONE,
        _E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: _R.DONE,
    },
    # UNSTABLE_OFFSET_COMMIT: an open transaction has an offset of the group (KIP-447).
    ApiKey.OFFSET_FETCH: {**_COORDINATOR, _E.UNSTABLE_OFFSET_COMMIT: _R.SOON},
}


def query_reaction(api_key: int, code: int | None) -> Coordination:
    """Return how to handle the answer *code*; FATAL for one that is not in the table.

    Requests that are also part of a transaction (FindCoordinator, InitProducerId ...), except
    EndTxn, are handled as while a producer initializes: no transaction is open.
    """
    if api_key in COORDINATION:
        return coordinate(api_key, code, initializing=True)
    return Coordination(_QUERIES[api_key].get(code, Reaction.FATAL), api_key, code)


def protocol_of(features: Mapping[str, int], versions: Mapping[int, int]) -> int:
    """Return the transaction protocol of a cluster with these finalized features.

    *versions*: the newest common version of each request. A proxy may offer older ones than the
    brokers behind it, and pass their features on. Such brokers also support ``TV1``.
    """
    offered = all(versions.get(key, 0) >= least for key, least in TV2_VERSIONS.items())
    return TV2 if offered and features.get(_FEATURE, 0) >= _TV2_LEVEL else TV1
