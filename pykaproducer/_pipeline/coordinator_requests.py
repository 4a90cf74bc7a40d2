"""The requests of Coordinator: encoding them, and passing the answers to its machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pykaproducer._machines.coordination import TV2
from pykaproducer._machines.sequencing import ProducerId
from pykaproducer._machines.session import LAST_VERSION
from pykaproducer._machines.transaction_effects import (
    Effect,
    SendAddOffsets,
    SendAddPartitions,
    SendDescribeTransactions,
    SendEndTxn,
    SendInitProducerId,
)
from pykaproducer._machines.transactions import TransactionMachine
from pykaproducer._net.connection import Answered
from pykaproducer._wire import WireError
from pykaproducer._wire.messages import (
    ApiKey,
    decode_init_producer_id,
    init_producer_id_request,
)
from pykaproducer._wire.transaction_queries import (
    DescribeTransactionsAnswer,
    decode_describe_transactions,
    describe_transactions_request,
)
from pykaproducer._wire.transactions import (
    add_offsets_to_txn_request,
    add_partitions_to_txn_request,
    decode_add_offsets_to_txn,
    decode_add_partitions_to_txn,
    decode_end_txn,
    end_txn_request,
)

#: The states of a transaction whose markers are being written begin with this.
_UNENDED = "Prepare"

#: Returns the bytes for a version, a correlation id and a client id.
Encode = Callable[[int, int, str | None], bytes]


@dataclass(frozen=True, slots=True)
class CoordinatorRequest:
    """A request to the coordinator, and the versions in which it may be sent."""

    api_key: int
    encode: Encode
    at_least: int = 0
    at_most: int = LAST_VERSION


def request_of(
    effect: SendInitProducerId
    | SendAddPartitions
    | SendAddOffsets
    | SendEndTxn
    | SendDescribeTransactions,
) -> CoordinatorRequest:
    """Return the request for *effect*."""
    match effect:
        case SendInitProducerId():
            # From version 3 on it takes a producer id and an epoch (KIP-360).
            return CoordinatorRequest(effect.api_key, _init_producer_id(effect), 3)
        case SendAddPartitions():
            return CoordinatorRequest(effect.api_key, _add_partitions(effect))
        case SendAddOffsets():
            return CoordinatorRequest(effect.api_key, _add_offsets(effect))
        case SendDescribeTransactions():
            return CoordinatorRequest(effect.api_key, _describe(effect))
        case _ if effect.protocol == TV2:
            # Version 5 ends a transaction of the second protocol, and bumps the epoch (KIP-890).
            return CoordinatorRequest(effect.api_key, _end(effect), 5)
        case _:
            return CoordinatorRequest(effect.api_key, _end(effect), at_most=4)


def _init_producer_id(effect: SendInitProducerId) -> Encode:
    producer = effect.producer or ProducerId(-1, -1)
    return lambda version, correlation_id, client_id: init_producer_id_request(
        version,
        correlation_id,
        client_id,
        effect.transactional_id,
        int(effect.timeout * 1000),
        producer.producer_id,
        producer.epoch,
    )


def _add_partitions(effect: SendAddPartitions) -> Encode:
    return lambda version, correlation_id, client_id: add_partitions_to_txn_request(
        version,
        correlation_id,
        client_id,
        effect.transactional_id,
        effect.producer.producer_id,
        effect.producer.epoch,
        effect.partitions,
    )


def _add_offsets(effect: SendAddOffsets) -> Encode:
    return lambda version, correlation_id, client_id: add_offsets_to_txn_request(
        version,
        correlation_id,
        client_id,
        effect.transactional_id,
        effect.producer.producer_id,
        effect.producer.epoch,
        effect.group,
    )


def _describe(effect: SendDescribeTransactions) -> Encode:
    return lambda version, correlation_id, client_id: describe_transactions_request(
        version, correlation_id, client_id, [effect.transactional_id]
    )


def _end(effect: SendEndTxn) -> Encode:
    return lambda version, correlation_id, client_id: end_txn_request(
        version,
        correlation_id,
        client_id,
        effect.transactional_id,
        effect.producer.producer_id,
        effect.producer.epoch,
        commit=effect.commit,
    )


def tell_answer(machine: TransactionMachine, event: Answered, now: float) -> list[Effect]:
    """Pass the answer to *machine*. Raises WireError if it is malformed."""
    api_key, version, payload = event.request.api_key, event.request.version, event.payload
    if api_key == ApiKey.INIT_PRODUCER_ID:
        given = decode_init_producer_id(version, payload)
        producer = ProducerId(given.producer_id, given.producer_epoch)
        return machine.answered(api_key, given.error_code, now, producer=producer)
    if api_key == ApiKey.ADD_PARTITIONS_TO_TXN:
        return machine.partitions_answered(
            decode_add_partitions_to_txn(version, payload).errors, now
        )
    if api_key == ApiKey.ADD_OFFSETS_TO_TXN:
        return machine.answered(
            api_key, decode_add_offsets_to_txn(version, payload).error_code, now
        )
    if api_key == ApiKey.DESCRIBE_TRANSACTIONS:
        return _tell_description(machine, decode_describe_transactions(version, payload), now)
    ended = decode_end_txn(version, payload)
    next_one = ProducerId(ended.producer_id, ended.producer_epoch)
    return machine.answered(
        api_key, ended.error_code, now, producer=next_one if ended.producer_id >= 0 else None
    )


def _tell_description(
    machine: TransactionMachine, answer: DescribeTransactionsAnswer, now: float
) -> list[Effect]:
    names = [each.transactional_id for each in answer.transactions]
    if names != [machine.transactional_id]:
        raise WireError(f"{len(names)} descriptions, none or not only of the transactional id")
    (found,) = answer.transactions
    if found.error_code:
        return machine.answered(ApiKey.DESCRIBE_TRANSACTIONS, found.error_code, now)
    return machine.described(complete=not found.state.startswith(_UNENDED), now=now)
