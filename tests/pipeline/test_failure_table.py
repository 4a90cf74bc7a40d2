"""Each row of the contract's failure table, through the whole pipeline.

The tests check the outcome, its status, the order and content of the log, the number of Produce
requests, and the text of the error.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
from kafka import errors as kafka_errors

from pykaproducer import Delivery, DeliveryFailures, DeliveryTimeoutError, Status
from pykaproducer._errors.codes import ErrorCode
from pykaproducer._errors.formatting import format_error_code, kafka_class
from pykaproducer._machines.verdicts import VERDICTS, Action
from pykaproducer.errors import BrokerRejectedError, RetriesExhaustedError
from pykaproducer.testing import FakeClock, ScriptedCluster
from pykaproducer.testing._messages import InitProducerIdRequest, ProduceRequest
from pykaproducer.testing.scripted import Action as Fault
from pykaproducer.testing.scripted import Drop, Omit, Refuse

from .helper import (
    FAST,
    LINGERING,
    SOON,
    Before,
    Frozen,
    Held,
    RefuseIf,
    attempts,
    backs_off,
    batches_of,
    came,
    error_of,
    frozen,
    hold,
    log,
    numbers,
    offsets,
    outcome,
    outcomes,
    running,
    send,
    sent,
    under_way,
    warm_up,
)

pytestmark = pytest.mark.usefixtures("at_any_depth")

BOTH = pytest.mark.parametrize("idempotent", [True, False], ids=["idempotent", "plain"])

MOVED = [
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.REPLICA_NOT_AVAILABLE,
    ErrorCode.LISTENER_NOT_FOUND,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.INCONSISTENT_TOPIC_ID,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.BROKER_NOT_AVAILABLE,
]

#: Temporary errors of the broker, and whether the batch may be in the log all the same.
TEMPORARY = {
    ErrorCode.CORRUPT_MESSAGE: Status.NOT_PERSISTED,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: Status.NOT_PERSISTED,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: Status.NOT_PERSISTED,
    ErrorCode.NOT_COORDINATOR: Status.NOT_PERSISTED,
    ErrorCode.NOT_CONTROLLER: Status.NOT_PERSISTED,
    ErrorCode.CONCURRENT_TRANSACTIONS: Status.NOT_PERSISTED,
    ErrorCode.NOT_ENOUGH_REPLICAS: Status.NOT_PERSISTED,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED: Status.NOT_PERSISTED,
    ErrorCode.REQUEST_TIMED_OUT: Status.POSSIBLY_PERSISTED,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: Status.POSSIBLY_PERSISTED,
}

#: Errors that fail at once, with the advice in their text, if any.
FATAL = {
    ErrorCode.INVALID_TOPIC_EXCEPTION: "does not allow this name",
    ErrorCode.INVALID_REQUIRED_ACKS: "acks",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "grant this client Write",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "enable_idempotence=False",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "",
    ErrorCode.INVALID_TIMESTAMP: "message.timestamp.before.max.ms",
    ErrorCode.UNSUPPORTED_SASL_MECHANISM: "",
    ErrorCode.ILLEGAL_SASL_STATE: "",
    ErrorCode.SASL_AUTHENTICATION_FAILED: "",
    ErrorCode.UNSUPPORTED_VERSION: "too old",
    ErrorCode.INVALID_REQUEST: "",
    ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT: "older than v2",
    ErrorCode.POLICY_VIOLATION: "policy",
    ErrorCode.INVALID_TXN_STATE: "",
    ErrorCode.SECURITY_DISABLED: "",
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE: "compression_type",
    ErrorCode.INVALID_RECORD: "compacted",
    ErrorCode.TRANSACTION_ABORTABLE: "",
}

#: A code that Kafka does not define.
UNHEARD_OF = 4711


def test_no_code_of_the_table_is_left_out_here() -> None:
    """DELIVERED, SPLIT and the codes about sequence numbers have their own tests."""
    own = {Action.DELIVERED, Action.SPLIT, Action.BUMP_EPOCH, Action.RESET_PRODUCER_ID}
    elsewhere = {code for code, verdict in VERDICTS.items() if verdict.action in own}
    assert {*MOVED, *TEMPORARY, *FATAL, ErrorCode.UNKNOWN_SERVER_ERROR} == set(VERDICTS) - elsewhere


# Rows that do not count against `retries`: three times in a row with retries=1


UNCOUNTED: list[tuple[str, Callable[[], list[Fault]]]] = [
    ("closed before", lambda: [Drop()] * 3),
    ("partition missing", lambda: [Omit("t", 0)] * 3),
    *[(code.name, lambda code=code: [Refuse(code)] * 3) for code in MOVED],  # type: ignore[misc]
]


@BOTH
@pytest.mark.parametrize(("name", "faults"), UNCOUNTED, ids=[name for name, _ in UNCOUNTED])
def test_what_does_not_count_as_a_retry_goes_again_until_it_works(
    name: str, faults: Callable[[], list[Fault]], idempotent: bool
) -> None:
    with running(enable_idempotence=idempotent, retries=1, **FAST) as (cluster, producer):
        warm_up(producer)
        asked = len(cluster.received("metadata"))
        cluster.next("produce", *faults())
        deliveries = send(producer, numbers(20))
        assert offsets(deliveries) == list(range(1, 21))
        assert {delivery.status for delivery in deliveries} == {Status.PERSISTED}
        assert log(cluster) == [b"first", *numbers(20)]
        # Each retry has requested metadata.
        came(cluster, "metadata", asked + 1)


@BOTH
@pytest.mark.parametrize("attempt", ["dropped", "refused"])
def test_each_attempt_is_one_request(attempt: str, idempotent: bool) -> None:
    fault = Drop() if attempt == "dropped" else Refuse(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    with running(enable_idempotence=idempotent, retries=1, **FAST) as (cluster, producer):
        cluster.next("produce", *[fault] * 4)
        assert offsets(send(producer, [b"value"])) == [0]
        assert attempts(cluster) == 5


def test_a_connection_closed_behind_the_append_doubles_nothing() -> None:
    """The batch is retried unchanged, and the broker recognises it by its sequence numbers."""
    with running(retries=1, **FAST) as (cluster, producer):
        warm_up(producer)
        cluster.next("produce", *[Drop(appended=True)] * 3)
        deliveries = send(producer, [b"value"])
        assert offsets(deliveries) == [1]
        assert log(cluster) == [b"first", b"value"]
        first, *again = sent(cluster)[1:]
        assert again == [first] * 3


def test_without_idempotence_it_may_be_there_twice_but_in_order() -> None:
    with running(enable_idempotence=False, retries=1, **batches_of(2)) as (cluster, producer):
        cluster.next("produce", Drop(appended=True))
        deliveries = send(producer, numbers(4))
        assert offsets(deliveries) == [2, 3, 4, 5]
        assert log(cluster) == [b"0", b"1", b"0", b"1", b"2", b"3"]


# Temporary errors: they count


@BOTH
@pytest.mark.parametrize("code", TEMPORARY, ids=lambda code: code.name)
def test_a_temporary_error_goes_again_as_often_as_retries_says(
    code: ErrorCode, idempotent: bool
) -> None:
    with running(enable_idempotence=idempotent, retries=2, **batches_of(5)) as (cluster, producer):
        cluster.next("produce", Refuse(code), Refuse(code))
        assert offsets(send(producer, numbers(5))) == list(range(5))
        assert attempts(cluster) == 3
        # The whole batch of the request is retried.
        assert [batch.values for batch in sent(cluster)] == [tuple(numbers(5))] * 3
        assert log(cluster) == numbers(5)


@BOTH
@pytest.mark.parametrize(("code", "status"), TEMPORARY.items(), ids=lambda x: getattr(x, "name", x))
def test_when_the_retries_are_used_up_the_broker_s_error_is_the_outcome(
    code: ErrorCode, status: Status, idempotent: bool
) -> None:
    with running(enable_idempotence=idempotent, retries=2, **batches_of(5)) as (cluster, producer):
        cluster.next("produce", *[Refuse(code)] * 3)
        deliveries = send(producer, numbers(10))
        errors = [error_of(delivery) for delivery in deliveries[:5]]
        assert {type(error) for error in errors} == {type(errors[0])}
        error = errors[0]
        assert isinstance(error, RetriesExhaustedError)
        assert isinstance(error, kafka_class(code))
        assert (error.code, error.status) == (code, status)
        assert (error.topic, error.partition) == ("t", 0)
        assert format_error_code(code) in str(error)
        assert "after 2 retries" in str(error)
        # The messages after them are delivered.
        assert offsets(deliveries[5:]) == list(range(5))
        assert log(cluster) == numbers(5, 5)
        assert attempts(cluster) == 4


def test_retries_0_is_one_attempt() -> None:
    with running(enable_idempotence=False, retries=0, **FAST) as (cluster, producer):
        cluster.next("produce", Refuse(ErrorCode.NOT_ENOUGH_REPLICAS))
        (delivery,) = send(producer, [b"value"])
        assert isinstance(error_of(delivery), kafka_errors.NotEnoughReplicasError)
        assert attempts(cluster) == 1


# Sequence numbers (for the others among these codes see test_epochs.py)


def test_a_duplicate_is_delivered() -> None:
    with running(**FAST) as (cluster, producer):
        warm_up(producer)
        cluster.next("produce", Refuse(ErrorCode.DUPLICATE_SEQUENCE_NUMBER, appended=True))
        (delivery,) = send(producer, [b"value"])
        assert outcome(delivery) is None
        # The broker has it, but does not return the offset.
        assert (delivery.status, delivery.offset) == (Status.PERSISTED, -1)
        assert attempts(cluster) == 2
        assert log(cluster) == [b"first", b"value"]


def test_a_broker_that_remembers_one_batch_has_one_in_flight() -> None:
    """Kafka 0.11 recognises a retry of the last batch only."""
    with running(versions={"produce": (3, 3)}, **batches_of(2)) as (cluster, producer):
        offsets(send(producer, numbers(2)))
        held, deliveries = hold(cluster, producer, numbers(6, 2), then=Drop(appended=True))
        under_way(producer, 1)
        held.release()
        assert None not in offsets(deliveries)
        assert log(cluster) == numbers(8)
        assert [batch.values for batch in sent(cluster)[1:3]] == [(b"2", b"3")] * 2


def test_out_of_order_behind_an_older_batch_goes_again_as_it_was() -> None:
    """Batch 2 of 3 fails; batch 3, which was in flight, is rejected and waits for it: retries=1."""
    with running(retries=1, batch_max_messages=2, linger_ms=60_000, **FAST) as (cluster, producer):
        offsets(send(producer, numbers(2)))
        held, deliveries = hold(
            cluster, producer, numbers(4, 2), then=Refuse(ErrorCode.NOT_ENOUGH_REPLICAS)
        )
        # The second is on its way after it: nothing else shows that it has been sealed.
        held.release()
        assert offsets(deliveries) == [2, 3, 4, 5]
        assert log(cluster) == numbers(6)
        behind = [batch for batch in sent(cluster) if batch.values == (b"4", b"5")]
        assert {batch.first_sequence for batch in behind} == {4}
        assert {batch.producer for batch in sent(cluster)} == {(1000, 0)}


# Too large


@BOTH
@pytest.mark.parametrize("base_offset", [-1, 0])
@pytest.mark.parametrize(
    "code",
    [ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE],
    ids=lambda code: code.name,
)
def test_a_batch_that_is_too_large_is_split_until_it_fits(
    code: ErrorCode, base_offset: int, idempotent: bool
) -> None:
    """Also by a server that leaves the base offset of an error at 0."""
    with running(enable_idempotence=idempotent, retries=1, **batches_of(16)) as (cluster, producer):
        large = RefuseIf(code, lambda values: len(values) > 3, base_offset)
        cluster.next("produce", *[large] * 50)
        deliveries = send(producer, numbers(32))
        assert offsets(deliveries) == list(range(32))
        assert log(cluster) == numbers(32)
        assert max(batch.count for batch in cluster.batches("t")) <= 3


@BOTH
def test_a_single_message_that_is_too_large_fails_alone(idempotent: bool) -> None:
    with running(enable_idempotence=idempotent, retries=1, **batches_of(4)) as (cluster, producer):
        large = RefuseIf(ErrorCode.MESSAGE_TOO_LARGE, lambda values: b"2" in values)
        cluster.next("produce", *[large] * 50)
        deliveries = send(producer, numbers(4))
        assert [error is None for error in outcomes(deliveries)] == [True, True, False, True]
        error = error_of(deliveries[2])
        assert isinstance(error, kafka_errors.MessageSizeTooLargeError)
        assert error.status is Status.NOT_PERSISTED
        assert "the batch of one message has 69 bytes; send smaller messages, or" in str(error)
        assert "raise the topic's max.message.bytes" in str(error)
        assert log(cluster) == [b"0", b"1", b"3"]


# Permanent errors


@BOTH
@pytest.mark.parametrize(("code", "advice"), FATAL.items(), ids=lambda x: getattr(x, "name", ""))
def test_what_no_waiting_mends_fails_at_once(
    code: ErrorCode, advice: str, idempotent: bool
) -> None:
    with running(enable_idempotence=idempotent, **batches_of(3)) as (cluster, producer):
        cluster.next("produce", Refuse(code))
        deliveries = send(producer, numbers(6))
        for delivery in deliveries[:3]:
            error = error_of(delivery)
            assert isinstance(error, BrokerRejectedError)
            assert not isinstance(error, RetriesExhaustedError)
            assert isinstance(error, kafka_class(code))
            assert isinstance(error.__cause__, kafka_class(code))
            assert (error.code, error.status) == (code, Status.NOT_PERSISTED)
            text = str(error)
            assert text.startswith("topic 't' partition 0: ")
            assert format_error_code(code) in text
            assert advice in text
        # It is sent exactly once; the messages after it are delivered.
        assert offsets(deliveries[3:]) == [0, 1, 2]
        assert [batch.values for batch in sent(cluster)].count(tuple(numbers(3))) == 1
        assert log(cluster) == numbers(3, 3)


@pytest.mark.parametrize(
    "code", [ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE]
)
def test_a_server_that_may_not_support_the_compression(code: ErrorCode) -> None:
    with running(compression_type="gzip", **FAST) as (cluster, producer):
        cluster.next("produce", Refuse(code))
        assert "may not support compression_type='gzip'" in str(error_of(send(producer, [b"v"])[0]))


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_zstd_is_not_sent_to_a_broker_without_it(acks: Any) -> None:
    with running(
        versions={"produce": (3, 6)},
        acks=acks,
        enable_idempotence=acks == "all",
        compression_type="zstd",
        **FAST,
    ) as (cluster, producer):
        for value in numbers(3):  # also on the way of a caller that waits
            error = error_of(send(producer, [value])[0])
            assert isinstance(error, kafka_errors.UnsupportedCompressionTypeError)
            assert error.status is Status.NOT_PERSISTED
            assert "broker-0.scripted:9092 is older than Kafka 2.1, which zstd" in str(error)
        assert attempts(cluster) == 0


@BOTH
@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_SERVER_ERROR, UNHEARD_OF])
def test_what_nobody_knows_the_meaning_of_fails_as_possibly_persisted(
    code: int, idempotent: bool
) -> None:
    with running(enable_idempotence=idempotent, **FAST) as (cluster, producer):
        cluster.next("produce", Refuse(code, appended=True))
        (delivery,) = send(producer, [b"value"])
        error = error_of(delivery)
        assert (error.code, error.status) == (code, Status.POSSIBLY_PERSISTED)
        assert f"({code})" in str(error)
        assert attempts(cluster) == 1
        assert outcome(send(producer, [b"next"])[0]) is None
        assert log(cluster) == [b"value", b"next"]


def test_a_refused_partition_does_not_harm_the_others_of_its_request() -> None:
    # They may arrive in several requests.
    with running(topics={"t": 3}, **LINGERING, **FAST) as (cluster, producer):
        cluster.next("produce", *[Refuse(ErrorCode.INVALID_RECORD, only=[("t", 1)])] * 3)
        deliveries = [send(producer, [b"value"], partition=i)[0] for i in range(3)]
        with pytest.raises(DeliveryFailures):
            producer.flush(SOON)
        assert [outcome(delivery) is None for delivery in deliveries] == [True, False, True]
        assert [log(cluster, "t", i) for i in range(3)] == [[b"value"], [], [b"value"]]
        assert sorted(batch.partition for batch in sent(cluster)) == [0, 1, 2]


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (ErrorCode.INVALID_TOPIC_EXCEPTION, "does not allow this name"),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, "grant this client Write"),
    ],
    ids=["INVALID_TOPIC_EXCEPTION", "TOPIC_AUTHORIZATION_FAILED"],
)
def test_a_topic_that_the_metadata_refuses_fails_at_once(code: ErrorCode, advice: str) -> None:
    with running(**FAST) as (cluster, producer):
        cluster.next("metadata", Refuse(code))
        error = error_of(producer.send("t", b"value"))
        assert (error.code, error.status, error.partition) == (code, Status.NOT_PERSISTED, None)
        assert advice in str(error)
        assert attempts(cluster) == 0


# The status is kept


DOUBTS: list[tuple[str, list[Fault], Status]] = [
    ("timed out", [Refuse(ErrorCode.REQUEST_TIMED_OUT)], Status.POSSIBLY_PERSISTED),
    (
        "after append",
        [Refuse(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)],
        Status.POSSIBLY_PERSISTED,
    ),
    ("unanswered", [Drop()], Status.POSSIBLY_PERSISTED),
    ("no sense", [Omit("t", 0)], Status.POSSIBLY_PERSISTED),
    (
        "doubt, then none",
        [Drop(), Refuse(ErrorCode.NOT_ENOUGH_REPLICAS)],
        Status.POSSIBLY_PERSISTED,
    ),
    ("refused", [Refuse(ErrorCode.NOT_ENOUGH_REPLICAS)], Status.NOT_PERSISTED),
    ("moved", [Refuse(ErrorCode.NOT_LEADER_OR_FOLLOWER)], Status.NOT_PERSISTED),
]


@BOTH
@pytest.mark.parametrize(("name", "faults", "status"), DOUBTS, ids=[name for name, *_ in DOUBTS])
def test_an_attempt_that_may_have_been_appended_sticks_to_the_message(
    name: str, faults: list[Fault], status: Status, idempotent: bool
) -> None:
    with running(enable_idempotence=idempotent, **FAST) as (cluster, producer):
        warm_up(producer)
        cluster.next("produce", *faults, Refuse(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
        error = error_of(send(producer, [b"value"])[0])
        assert isinstance(error, kafka_errors.TopicAuthorizationFailedError)
        assert error.status is status
        assert attempts(cluster) == len(faults) + 2
        # The other message was in no such attempt.
        cluster.next("produce", Refuse(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
        assert error_of(send(producer, [b"other"])[0]).status is Status.NOT_PERSISTED


# Expiry: the status at the deadline, and the reason


Arrange = Callable[[ScriptedCluster, FakeClock, Callable[[], Delivery]], Delivery]


def waiting(
    before: Callable[[ScriptedCluster], object], *, came_to: str | None = None, backoffs: int = 1
) -> Arrange:
    """Return a function that sends after *before*, and waits for a request and for backoffs."""

    def arrange(
        cluster: ScriptedCluster, clock: FakeClock, send_it: Callable[[], Delivery]
    ) -> Delivery:
        before(cluster)
        delivery = send_it()
        if came_to is not None:
            came(cluster, came_to, 1)
        backs_off(clock, backoffs)
        return delivery

    return arrange


def stop_all(cluster: ScriptedCluster, *, silently: bool = False) -> None:
    for broker in range(2):
        cluster.stop(broker, silently=silently)


def refused(code: ErrorCode, backoffs: int) -> Arrange:
    return waiting(
        lambda cluster: cluster.next("produce", Refuse(code)), came_to="produce", backoffs=backoffs
    )


def frozen_and(do: Callable[[ScriptedCluster], object]) -> Callable[[ScriptedCluster], object]:
    return lambda cluster: (Frozen(cluster, 99), do(cluster))


def close_before_the_response(cluster: ScriptedCluster) -> None:
    cluster.next("produce", Before(lambda: cluster.stop(0), Drop()))


def no_producer_id(cluster: ScriptedCluster) -> None:
    del cluster._state.versions[InitProducerIdRequest]


def no_response(
    cluster: ScriptedCluster, clock: FakeClock, send_it: Callable[[], Delivery]
) -> Delivery:
    held = Held()
    cluster.next("produce", held)
    delivery = send_it()
    held.wait_until_held()
    return delivery


NOT, POSSIBLY = Status.NOT_PERSISTED, Status.POSSIBLY_PERSISTED
EXPIRING: dict[str, tuple[Arrange, Status, str]] = {
    "no such topic": (
        waiting(lambda cluster: cluster.next("metadata", *[Refuse(3)] * 9)),
        NOT,
        "no such topic: UNKNOWN_TOPIC_OR_PARTITION (3)",
    ),
    "cluster down": (waiting(stop_all), NOT, ".scripted:909"),
    "silent cluster": (
        waiting(functools.partial(stop_all, silently=True), backoffs=0),
        NOT,
        "no metadata of the topic has arrived",
    ),
    "no leader": (
        waiting(lambda cluster: cluster.stop(0), came_to="metadata"),
        NOT,
        "the partition has no leader",
    ),
    "no connection": (
        # The BrokerWorker was notified and requests metadata: that and the connection wait.
        waiting(frozen_and(lambda cluster: cluster.stop(0)), backoffs=2),
        NOT,
        "no connection to broker-0.scripted:9092: connection refused",
    ),
    "no handshake": (
        waiting(lambda cluster: cluster.next("api_versions", *[Refuse(31)] * 99)),
        NOT,
        "answered ApiVersions with error code 31",
    ),
    "no common version": (
        waiting(lambda cluster: cluster._state.versions.update({ProduceRequest: (13, 13)})),
        NOT,
        "it supports PRODUCE requests of version 13",
    ),
    "no producer id": (waiting(no_producer_id), NOT, "set enable_idempotence=False"),
    "closed": (
        waiting(frozen_and(close_before_the_response), came_to="produce", backoffs=2),
        POSSIBLY,
        "no connection to broker-0.scripted:9092",
    ),
    "no response": (no_response, POSSIBLY, "not answer"),
    "no sense": (
        waiting(
            lambda cluster: cluster.next("produce", Omit("t", 0)), came_to="produce", backoffs=2
        ),
        POSSIBLY,
        "malformed response",
    ),
    "moved": (
        refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, 2),
        NOT,
        f"the broker's last response: {format_error_code(6)}",
    ),
    "not enough replicas": (
        refused(ErrorCode.NOT_ENOUGH_REPLICAS, 1),
        NOT,
        "the broker's last response: NOT_ENOUGH_REPLICAS (19)",
    ),
    "timed out": (
        refused(ErrorCode.REQUEST_TIMED_OUT, 1),
        POSSIBLY,
        "the broker's last response: REQUEST_TIMED_OUT (7)",
    ),
}


#: Without idempotence no producer id is needed. With it a sealed batch that was rejected is retried
#: unchanged, including expired rows, which may therefore still reach the log.
NOT_WITH = {("no producer id", False), ("moved", True), ("not enough replicas", True)}


@pytest.mark.parametrize(
    ("name", "idempotent"),
    [(name, flag) for name in EXPIRING for flag in (True, False) if (name, flag) not in NOT_WITH],
)
def test_what_expires_says_why_and_whether_it_may_be_in_the_log(
    name: str, idempotent: bool
) -> None:
    arrange, status, reason = EXPIRING[name]
    settings = {"enable_idempotence": idempotent, "retries": 1, "delivery_timeout_ms": 8_000}
    with frozen(2, **settings) as (cluster, clock, producer):
        delivery = arrange(cluster, clock, lambda: send(producer, [b"value"])[0])
        clock.jump(8.1)
        error = error_of(delivery)
        assert isinstance(error, DeliveryTimeoutError)
        assert error.status is delivery.status is status
        assert reason in str(error)
        assert "not delivered within 8" in str(error)
        producer.close(0)
        # With idempotence sealed batches are retried even after expiry: they may be in the log.
        assert log(cluster) in (([], [b"value"]) if idempotent and status is POSSIBLY else ([],))


# acks=0


def test_without_acks_a_message_is_settled_when_it_is_written() -> None:
    with running(acks=0, **FAST) as (cluster, producer):
        held = Held()
        cluster.next("produce", held)
        (delivery,) = send(producer, [b"value"])
        assert outcome(delivery) is None
        assert (delivery.offset, delivery.status) == (-1, Status.POSSIBLY_PERSISTED)
        held.release()
        send(producer, [b"next"])
        producer.flush(SOON)
        came(cluster, "produce", 2)
        assert {batch.producer for batch in sent(cluster)} == {(-1, -1)}
        assert cluster.received("init_producer_id") == []


def test_without_acks_what_was_not_written_waits_and_goes_again() -> None:
    with running(acks=0, **FAST) as (cluster, producer):
        cluster.stop(0)
        deliveries = send(producer, numbers(10))
        cluster.start(0)
        assert offsets(deliveries) == [-1] * 10
        producer.close()
        cluster.join_connections()
        assert log(cluster) == numbers(10)


def test_without_acks_a_deadline_holds_as_ever() -> None:
    with frozen(acks=0, delivery_timeout_ms=5_000) as (cluster, clock, producer):
        cluster.stop(0)
        (delivery,) = send(producer, [b"value"])
        backs_off(clock)
        clock.jump(5.1)
        assert isinstance(error_of(delivery), DeliveryTimeoutError)
