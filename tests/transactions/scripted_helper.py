"""Producers of scripted brokers, and what their errors must say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kafka import TopicPartition

from pykaproducer import Producer
from pykaproducer._errors.formatting import format_error_code
from pykaproducer._errors.transaction_hints import coordinator_advice
from pykaproducer._wire.messages import ApiKey
from pykaproducer.errors import (
    CommitOutcome,
    ProducerFencedError,
    TransactionAbortableError,
    TransactionError,
    TransactionFatalError,
    TransactionTimeoutError,
)
from pykaproducer.testing import FakeClock, ScriptedCluster
from tests._support.threads import Call
from tests.pipeline.helper import FAST, SOON, ended, until
from tests.transactions.helper import begun as begun
from tests.transactions.helper import calls_of, has_answer

NAME = "orders-0"
PLACE = TopicPartition("t", 0)
#: Codes that Kafka does not define yet.
UNDEFINED = (134, 4711)
#: How long each call may wait (seconds).
BOUND = 5.0
#: Codes whose names say enough.
WITHOUT_ADVICE = {-1, 47, 51, 90, 120, *UNDEFINED}

NOT, POSSIBLY = CommitOutcome.NOT_COMMITTED, CommitOutcome.POSSIBLY_COMMITTED
#: Request -> the name in a script, and the protocols that have it.
NAMES = {
    ApiKey.FIND_COORDINATOR: ("find_coordinator", ("TV1", "TV2")),
    ApiKey.INIT_PRODUCER_ID: ("init_producer_id", ("TV1", "TV2")),
    ApiKey.ADD_PARTITIONS_TO_TXN: ("add_partitions_to_txn", ("TV1",)),
    ApiKey.ADD_OFFSETS_TO_TXN: ("add_offsets_to_txn", ("TV1",)),
    ApiKey.TXN_OFFSET_COMMIT: ("txn_offset_commit", ("TV1", "TV2")),
}


def producer_of(scripted: ScriptedCluster, clock: FakeClock | None = None, **more: Any) -> Any:
    """Return a context manager with a producer.

    Its calls wait for :data:`BOUND` seconds of *clock*, or for long.
    """
    waits = {"max_block_ms": 1000 * (SOON if clock is None else BOUND)}
    settings = FAST | waits | {"transactional_id": NAME, "transaction_timeout_ms": 600_000}
    return ended(scripted.producer(clock=clock, **(settings | more)))


def send_and_commit(producer: Producer) -> None:
    producer.send("t", b"value", partition=0)
    producer.commit_transaction()


def send_offsets(producer: Producer) -> None:
    producer.send_offsets_to_transaction({PLACE: 1}, "readers")
    producer.commit_transaction()


#: Request -> the call that it is part of, after ``begin_transaction()`` except for the first two.
CALLS: dict[ApiKey, Callable[[Producer], None]] = {
    ApiKey.FIND_COORDINATOR: Producer.init_transactions,
    ApiKey.INIT_PRODUCER_ID: Producer.init_transactions,
    ApiKey.ADD_PARTITIONS_TO_TXN: send_and_commit,
    ApiKey.ADD_OFFSETS_TO_TXN: send_offsets,
    ApiKey.TXN_OFFSET_COMMIT: send_offsets,
}
IN_TRANSACTION = list(CALLS)[2:]


def error_of(call: Callable[[], object]) -> TransactionError:
    """Return the error that *call* raises."""
    with pytest.raises(TransactionError) as raised:
        call()
    return raised.value


def error_within_bound(
    clock: FakeClock,
    producer: Producer,
    call: Callable[[], object],
    *,
    answered: bool = False,
) -> TransactionError:
    """Return the error of *call*, which must end at most a second after its bound.

    The clock goes no further than that, whatever the threads have done. It stands still until the
    coordinator's stage has the call, from when the bound is counted; with *answered*, until it has
    the first answer, too; and at the bound, until the stage has seen that it has passed. (A caller
    that hears nothing from a stage ends its wait itself, with an error that says less.)
    """
    limit = clock.monotonic() + BOUND + 1
    made = Call(lambda: error_of(call))
    until(lambda: not made.is_alive() or _next_due(producer) is not None)
    if answered:
        until(lambda: not made.is_alive() or has_answer(producer))
    while made.is_alive() and clock.monotonic() < limit:
        made.join(0.005)
        clock.jump(0.25)
        until(lambda: not made.is_alive() or (_next_due(producer) or limit) > clock.monotonic())
    assert made.error() is None, "it has not ended with an error within its bound and a second"
    error: TransactionError = made.result
    return error


def _next_due(producer: Producer) -> float | None:
    """Return when the call under way ends at the latest; None if the stage does not have it yet."""
    started = producer._pipeline is not None and producer._pipeline.coordinator is not None
    return calls_of(producer).next_due() if started else None


def assert_says(error: TransactionError, api: ApiKey, code: int) -> None:
    """Check the names of the id, of the request and of the code, and what to do."""
    text = str(error)
    assert text.startswith(f"transactional id {NAME!r}: ")
    assert f"{api.name} returned {format_error_code(code)}" in text
    assert error.code == code
    assert error.transactional_id == NAME
    advice = coordinator_advice(api, code)
    assert advice or code in WITHOUT_ADVICE, f"no advice about {code}"
    assert advice in text
    assert_flags(error)


def assert_flags(error: TransactionError) -> None:
    """Check the flags, and that the text says when the producer must be closed."""
    kind, text = type_of(error), str(error)
    assert error.abortable is (kind == "A")
    assert error.fatal is (kind in ("F", "fenced"))
    assert error.retriable is (kind == "T")
    assert text.endswith("; close it, and create a new one") is (kind == "F")
    assert text.endswith("; close this producer") is (kind == "fenced")


def type_of(error: TransactionError) -> str:
    """Return the letter of the contract's table."""
    if isinstance(error, TransactionTimeoutError):
        return "T"
    if isinstance(error, TransactionAbortableError):
        return "A"
    if isinstance(error, ProducerFencedError):
        return "fenced"
    return "F" if isinstance(error, TransactionFatalError) else "U"


def assert_goes_on(producer: Producer, letter: str) -> None:
    """Check that the call that fits an error of this *letter* works, and others do not."""
    if letter in ("F", "fenced"):
        calls = (
            producer.init_transactions,
            producer.begin_transaction,
            producer.abort_transaction,
            producer.commit_transaction,
            lambda: producer.send("t", b"never"),
        )
        for call in calls:
            assert type_of(error_of(call)) == letter
        return
    if letter == "A":
        assert type_of(error_of(producer.commit_transaction)) == "A"
        assert type_of(error_of(producer.begin_transaction)) == "A"
        assert type_of(error_of(lambda: producer.send("t", b"never"))) == "A"
        producer.abort_transaction()
    with producer.transaction():  # initializes again if that has failed
        producer.send("t", b"next", partition=0)


def assert_successor_works(scripted: ScriptedCluster) -> None:
    """Check that the next producer with the id can be used, whatever was left open."""
    with producer_of(scripted) as successor, successor.transaction():
        successor.send("t", b"successor", partition=0)
    assert scripted.transaction_state(NAME) == "CompleteCommit"


def values(scripted: ScriptedCluster, *, committed: bool = True) -> list[bytes | None]:
    """Return what readers of committed messages see in the first partition, or everything."""
    return [each.value for each in scripted.log("t", committed=committed)]
