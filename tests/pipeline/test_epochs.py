"""A broker rejects sequence numbers, or a batch will be missing: a new epoch begins."""

from __future__ import annotations

from typing import Any

import pytest
from kafka.errors import ClusterAuthorizationFailedError

from pykaproducer import Delivery, DeliveryTimeoutError, Producer, Status
from pykaproducer._errors.codes import ErrorCode
from pykaproducer.testing import ScriptedCluster
from pykaproducer.testing._messages import InitProducerIdRequest
from pykaproducer.testing.scripted import Action, Drop, Refuse

from .helper import (
    FAST,
    SOON,
    Amend,
    Held,
    RefuseIf,
    attempts,
    backs_off,
    batches_of,
    came,
    error_of,
    frozen,
    hold,
    let_pass,
    log,
    numbers,
    offsets,
    outcomes,
    pipeline_of,
    running,
    send,
    sent,
    until,
    waits_for,
    warm_up,
)

pytestmark = pytest.mark.usefixtures("at_any_depth")

#: A batch and those after it have a known number of messages.
PAIRS: dict[str, Any] = batches_of(2)

NEW_EPOCH = [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID]
NEW_ID = [
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.PRODUCER_FENCED,
]

#: The answers to a request for a producer id after which it is repeated.
NO_ID_YET = [
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.UNKNOWN_SERVER_ERROR,
]

names = {"ids": lambda code: code.name}


def epochs(cluster: ScriptedCluster, partition: int = 0) -> list[tuple[int, int, int]]:
    """Return (producer id, epoch, number of messages) in log order; no number may be missing."""
    runs: list[tuple[int, int, int]] = []
    for batch in cluster.batches("t", partition):
        producer = batch.producer_id, batch.producer_epoch
        before = runs.pop()[2] if runs and runs[-1][:2] == producer else 0
        assert batch.base_sequence == before
        runs.append((*producer, before + batch.count))
    return runs


def send_later(producer: Producer, values: list[bytes], partition: int = 0) -> list[Delivery]:
    """Send *values* after an error, and flush.

    The stages may be busy with the error still, and take the first message alone.
    """
    deliveries = send(producer, values, partition=partition)
    producer.flush(SOON)
    return deliveries


@pytest.mark.parametrize("code", NEW_EPOCH, **names)
def test_numbers_that_are_refused_with_nothing_older_under_way(code: ErrorCode) -> None:
    """The batch is retried under the next epoch, from sequence 0; retries=1, three times."""
    with running(retries=1, **PAIRS) as (cluster, producer):
        offsets(send(producer, numbers(2)))
        cluster.next("produce", *[Refuse(code)] * 3)
        assert offsets(send(producer, numbers(2, 2))) == [2, 3]
        assert offsets(send_later(producer, numbers(2, 4))) == [4, 5]
        assert log(cluster) == numbers(6)
        assert epochs(cluster) == [(1000, 0, 2), (1000, 3, 4)]
        # The epoch is bumped locally, without a request.
        assert len(cluster.received("init_producer_id")) == 1


@pytest.mark.parametrize("code", NEW_ID, **names)
def test_an_epoch_that_is_refused_takes_a_new_producer_id(code: ErrorCode) -> None:
    with running(retries=1, **PAIRS) as (cluster, producer):
        offsets(send(producer, numbers(2)))
        cluster.next("produce", *[Refuse(code)] * 2)
        assert offsets(send(producer, numbers(2, 2))) == [2, 3]
        assert offsets(send_later(producer, numbers(2, 4))) == [4, 5]
        assert log(cluster) == numbers(6)
        assert epochs(cluster) == [(1000, 0, 2), (1002, 0, 4)]
        assert len(cluster.received("init_producer_id")) == 3


@pytest.mark.parametrize("code", [*NEW_EPOCH, *NEW_ID], **names)
def test_what_was_under_way_behind_it_goes_again_behind_it(code: ErrorCode) -> None:
    with running(retries=1, **PAIRS) as (cluster, producer):
        offsets(send(producer, numbers(2)))
        held, deliveries = hold(cluster, producer, numbers(20, 2), then=Refuse(code))
        held.release()
        assert offsets(deliveries) == list(range(2, 22))
        assert log(cluster) == numbers(22)
        # One epoch bump for one event: the batches after it caused no other.
        assert [count for *_, count in epochs(cluster)] == [2, 20]


@pytest.mark.parametrize("code", [*NEW_EPOCH, *NEW_ID], **names)
@pytest.mark.parametrize("appended", [True, False])
def test_a_batch_that_may_be_in_the_log_is_not_sealed_again(
    code: ErrorCode, appended: bool
) -> None:
    """Its connection was closed before the answer; then its numbers are rejected."""
    with running(retries=1, **PAIRS) as (cluster, producer):
        offsets(send(producer, numbers(2)))
        cluster.next("produce", Drop(appended=appended), Refuse(code))
        deliveries = send(producer, numbers(2, 2))
        errors = [error_of(delivery) for delivery in deliveries]
        assert {error.status for error in errors} == {Status.POSSIBLY_PERSISTED}
        assert "twice" in str(errors[0])
        # The batches after it continue under another epoch or id, and nothing is there twice.
        assert len(offsets(send_later(producer, numbers(2, 4)))) == 2
        there = numbers(2, 2) if appended else []
        assert log(cluster) == [*numbers(2), *there, *numbers(2, 4)]
        assert len(epochs(cluster)) == 2
        assert epochs(cluster)[1][2] == 2


@pytest.mark.parametrize("code", [*NEW_EPOCH, *NEW_ID], **names)
def test_without_idempotence_an_answer_about_sequence_numbers_is_final(code: ErrorCode) -> None:
    with running(enable_idempotence=False, **PAIRS) as (cluster, producer):
        cluster.next("produce", Refuse(code))
        errors = [error_of(delivery) for delivery in send(producer, numbers(2))]
        assert {error.code for error in errors} == {code}
        assert attempts(cluster) == 1


def test_an_epoch_is_one_partition_s_own() -> None:
    with running(topics={"t": 2}, retries=1, **PAIRS) as (cluster, producer):
        for partition in range(2):
            offsets(send(producer, numbers(2), partition=partition))
        cluster.next("produce", Refuse(ErrorCode.UNKNOWN_PRODUCER_ID, only=[("t", 0)]))
        offsets(send(producer, numbers(2, 2)))
        for partition in range(2):
            offsets(send_later(producer, numbers(2, 4), partition=partition))
        assert epochs(cluster, 0) == [(1000, 0, 2), (1000, 1, 4)]
        assert epochs(cluster, 1) == [(1000, 0, 4)]


@pytest.mark.parametrize(
    "code", [ErrorCode.INVALID_RECORD, ErrorCode.UNKNOWN_SERVER_ERROR], **names
)
def test_behind_a_batch_that_has_failed_comes_a_new_epoch(code: ErrorCode) -> None:
    """Its numbers are a gap in the log: the next batch would be out of order forever."""
    with running(retries=1, **PAIRS) as (cluster, producer):
        offsets(send(producer, numbers(2)))
        cluster.next("produce", RefuseIf(code, lambda values: b"2" in values))
        deliveries = send(producer, numbers(20, 2))
        assert [error is None for error in outcomes(deliveries)] == [False] * 2 + [True] * 18
        assert log(cluster) == [*numbers(2), *numbers(18, 4)]
        assert epochs(cluster) == [(1000, 0, 2), (1000, 1, 18)]


def test_a_new_epoch_waits_for_the_answers_of_the_old_one() -> None:
    """No batch of the new epoch reaches the broker while one of the old is in flight.

    1. Batches A and B are in flight; A fails permanently.
    2. B is rejected (its numbers have a gap before them), and is retried under a new epoch.
    3. If it were sent before the answer, the answer to its first attempt might be "delivered".
    """
    first, second = Held(then=Refuse(ErrorCode.INVALID_RECORD)), Held()
    settings = {"retries": 1, "max_in_flight_requests_per_connection": 5}
    with running(**settings, **PAIRS) as (cluster, producer):
        offsets(send(producer, numbers(2)))
        cluster.next("produce", first, second)
        deliveries = send(producer, numbers(4, 2))
        first.wait_until_held()
        first.release()
        outcomes(deliveries[:2])
        second.wait_until_held()
        assert {batch.producer for batch in sent(cluster)} == {(1000, 0)}
        second.release()
        assert offsets(deliveries[2:]) == [2, 3]
        assert log(cluster) == [*numbers(2), *numbers(2, 4)]
        assert sent(cluster)[-1].producer == (1000, 1)


def test_after_the_last_epoch_comes_a_new_producer_id() -> None:
    """Epochs are 16-bit integers, and a broker rejects the last one."""

    def nearly_spent(answer: Any) -> None:
        answer.producer_epoch = 2**15 - 3

    with running(retries=1, **PAIRS) as (cluster, producer):
        cluster.next("init_producer_id", Amend(nearly_spent))
        offsets(send(producer, numbers(2)))
        for start in (2, 4, 6):
            cluster.next("produce", Refuse(ErrorCode.UNKNOWN_PRODUCER_ID))
            offsets(send_later(producer, numbers(2, start)))
        assert log(cluster) == numbers(8)
        assert epochs(cluster) == [
            (1000, 2**15 - 3, 2),
            (1000, 2**15 - 2, 2),
            (1001, 0, 2),
            (1001, 1, 2),
        ]


def test_sequence_numbers_start_again_behind_the_last() -> None:
    with running(retries=1, **PAIRS) as (cluster, producer):
        offsets(send(producer, numbers(2)))
        worker = next(stage for stage in producer._pipeline.stages if hasattr(stage, "_sequencer"))
        # As after two thousand million messages; the broker has seen them, too.
        worker._sequencer.next_sequence = 2**31 - 2
        state = cluster._state.topics["t"][0].log._producers[1000]
        state.batches[-1] = (0, 2**31 - 3, 0)
        offsets(send_later(producer, numbers(6, 2)))
        first = [batch.base_sequence for batch in cluster.batches("t")]
        assert first == [0, 2**31 - 2, 0, 2]
        assert log(cluster) == numbers(8)


@pytest.mark.parametrize("code", [*NEW_EPOCH, *NEW_ID], **names)
def test_one_that_is_refused_for_ever_expires(code: ErrorCode) -> None:
    with frozen(retries=1, delivery_timeout_ms=8_000) as (cluster, clock, producer):
        warm_up(producer)
        cluster.next("produce", Refuse(code))
        (delivery,) = send(producer, [b"value"])
        came(cluster, "produce", 2)
        backs_off(clock)
        clock.jump(8.1)
        error = error_of(delivery)
        assert isinstance(error, DeliveryTimeoutError)
        assert error.status is Status.POSSIBLY_PERSISTED
        assert f"({code.value})" in str(error)


def test_an_expired_batch_that_was_written_is_a_gap_too() -> None:
    """Where all its rows have expired, the partition continues under a new epoch, in order.

    1. Batch A is written; the broker does not answer. B waits for it.
    2. A's rows expire; A may or may not be in the log.
    3. B is delivered: after A if A was appended, and in A's place if not.
    """
    for appended in (True, False):
        with frozen() as (cluster, clock, producer):
            warm_up(producer)
            held = Held(then=Drop(appended=appended))
            cluster.next("produce", held)
            early = producer.send("t", b"early", partition=0, delivery_timeout_ms=5_000)
            held.wait_until_held()
            late = producer.send("t", b"late", partition=0, delivery_timeout_ms=60_000)
            clock.jump(5.1)
            assert error_of(early).status is Status.POSSIBLY_PERSISTED
            held.release()
            backs_off(clock)
            let_pass(clock, [late])
            there = log(cluster)
            assert late.error is None
            assert there[-1] == b"late"
            assert there in ([b"first", b"early", b"late"], [b"first", b"late"])


# The producer id


@pytest.mark.parametrize("fault", [*map(Refuse, NO_ID_YET), Drop()], ids=repr)
def test_no_producer_id_yet(fault: Action) -> None:
    with running(retries=1, **FAST) as (cluster, producer):
        cluster.next("init_producer_id", *[fault] * 3)
        assert offsets(send(producer, numbers(3))) == [0, 1, 2]
        assert len(cluster.received("init_producer_id")) == 4


def test_a_cluster_that_does_not_allow_idempotence_says_what_to_set(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It fails at once. An ACL that is granted later applies to later messages."""
    with frozen(topics={"t": 2}, linger_ms=10) as (cluster, clock, producer):
        cluster.next("init_producer_id", Refuse(ErrorCode.CLUSTER_AUTHORIZATION_FAILED))
        refused = producer.send_many("t", numbers(6), partitions=[0, 0, 0, 1, 1, 1])
        brokers = pipeline_of(producer).brokers
        until(lambda: [len(list(worker.held_items())) for worker in brokers.all()] == [2])
        clock.jump(0.01)
        metadata = refused.outcome(SOON)
        assert [row for row, _ in metadata.failed] == [*range(6)]
        for _, error in metadata.failed:
            assert "enable_idempotence=False" in str(error)
            assert isinstance(error, ClusterAuthorizationFailedError)
            assert error.status is Status.NOT_PERSISTED
        (told,) = [r for r in caplog.records if "IdempotentWrite" in r.getMessage()]
        assert told.levelname == "ERROR"
        later = send(producer, numbers(3, 3))
        assert offsets(later, clock) == [0, 1, 2]
        assert log(cluster) == numbers(3, 3)


def test_a_broker_that_gives_no_producer_id_is_named_and_keeps_its_connection() -> None:
    with frozen(delivery_timeout_ms=8_000) as (cluster, clock, producer):
        del cluster._state.versions[InitProducerIdRequest]
        (delivery,) = send(producer, [b"value"])
        backs_off(clock)
        clock.jump(8.1)
        text = str(error_of(delivery))
        assert "broker-0.scripted:9092" in text
        assert "does not support INIT_PRODUCER_ID" in text
        assert "enable_idempotence=False" in text
        assert len({received.connection for received in cluster.received("metadata")}) == 1


def test_metadata_leaves_a_broker_alone_that_throttles_it() -> None:
    """KIP-219: the broker reads no further requests in the meantime."""

    def throttle(answer: Any) -> None:
        answer.throttle_time_ms = 700

    with frozen() as (cluster, clock, producer):
        cluster.next("metadata", Amend(throttle))
        deliveries = send(producer, [b"value"])
        waits_for(clock, 0.7)
        assert cluster.received("init_producer_id") == []
        clock.jump(0.7)
        assert offsets(deliveries) == [0]
