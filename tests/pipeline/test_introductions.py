"""The first Produce requests of transactions of the second protocol, on a clock of the test's."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pykaproducer import Delivery, Producer, TopicPartition
from pykaproducer._errors.codes import ErrorCode
from pykaproducer._machines.introduction_hold import IntroductionHold
from pykaproducer._machines.introduction_turn import IntroductionTurn
from pykaproducer._pipeline.coordinator import Coordinator
from pykaproducer.errors import (
    ProducerClosedError,
    TransactionAbortableError,
    TransactionAbortedError,
)
from pykaproducer.testing import FakeClock, ScriptedCluster
from pykaproducer.testing.scripted import Action, Drop, Refuse, proceed
from tests._support.threads import Call

from .helper import (
    FAST,
    Amend,
    Held,
    attempts,
    came,
    hold,
    outcome,
    outcomes,
    pipeline_of,
    send,
    sent,
    transactional,
    until,
    waits_for,
)

#: How long a leader has a turn (seconds).
TURN = 0.02


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    """Yield three brokers, each of which leads a partition. Broker 0 is the coordinator."""
    with ScriptedCluster(3, topics={"t": 3}) as made:
        yield made


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@contextmanager
def connected(cluster: ScriptedCluster, clock: FakeClock) -> Iterator[Producer]:
    """Yield a producer that is connected to all brokers, with an open transaction."""
    with transactional(cluster, clock, **FAST) as producer:
        for partition in range(3):
            assert outcomes(send(producer, [b"warm"], partition=partition)) == [None]
        producer.commit_transaction()
        producer.begin_transaction()
        yield producer


def committed(cluster: ScriptedCluster, partition: int) -> list[bytes | None]:
    records = cluster.log("t", partition, committed=True)
    return [record.value for record in records if record.value != b"warm"]


# Turns --------------------------------------------------------------------------------------------


def has_turn(
    cluster: ScriptedCluster, producer: Producer, then: Action = proceed
) -> tuple[Held, Delivery]:
    """Let broker 0 have the turn, and hold its answer; return its message."""
    held, (first,) = hold(cluster, producer, [b"0"], then=then, broker=0)
    return held, first


def waiting(cluster: ScriptedCluster, clock: FakeClock, producer: Producer) -> Any:
    """Send a message to broker 1, which has to wait for its turn; return the message."""
    before = attempts(cluster)
    (second,) = send(producer, [b"1"], partition=1)
    waits_for(clock, TURN)
    assert attempts(cluster) == before
    return second


def test_one_leader_at_a_time_adds_partitions(cluster: ScriptedCluster, clock: FakeClock) -> None:
    with connected(cluster, clock) as producer:
        held, first = has_turn(cluster, producer)
        others = [waiting(cluster, clock, producer), *send(producer, [b"2"], partition=2)]
        held.release()
        assert outcomes([first, *others]) == [None, None, None]
        producer.commit_transaction()
    assert [committed(cluster, partition) for partition in range(3)] == [[b"0"], [b"1"], [b"2"]]


@pytest.mark.parametrize(
    "then",
    [
        Refuse(ErrorCode.CONCURRENT_TRANSACTIONS),
        Refuse(ErrorCode.NOT_LEADER_OR_FOLLOWER),
        Refuse(ErrorCode.NOT_ENOUGH_REPLICAS),
        Drop(),
        Drop(appended=True),
    ],
    ids=["refused", "moved", "too few replicas", "lost", "lost after it was appended"],
)
def test_a_turn_ends_with_any_end_of_its_request(
    cluster: ScriptedCluster, clock: FakeClock, then: Any
) -> None:
    with connected(cluster, clock) as producer:
        held, _ = has_turn(cluster, producer, then)
        second = waiting(cluster, clock, producer)
        held.release()
        assert outcome(second) is None


def test_a_turn_ends_after_a_time(cluster: ScriptedCluster, clock: FakeClock) -> None:
    """The broker does not answer, and the connection stays."""
    with connected(cluster, clock) as producer:
        held, first = has_turn(cluster, producer)
        second = waiting(cluster, clock, producer)
        clock.jump(TURN)
        assert outcome(second) is None
        assert not first.done()
        held.release()
        assert outcome(first) is None
        producer.commit_transaction()


@pytest.mark.parametrize("silently", [False, True])
def test_the_broker_that_has_the_turn_dies(
    cluster: ScriptedCluster, clock: FakeClock, silently: bool
) -> None:
    cluster.move_coordinator("transaction", "id", 2)
    with connected(cluster, clock) as producer:
        held, _ = has_turn(cluster, producer)
        second = waiting(cluster, clock, producer)
        cluster.stop(0, silently=silently)
        if silently:
            clock.jump(TURN)
        assert outcome(second) is None
        held.release()


def test_a_leader_moves_to_a_broker_that_waits(cluster: ScriptedCluster, clock: FakeClock) -> None:
    with connected(cluster, clock) as producer:
        held, first = has_turn(cluster, producer, Refuse(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        second = waiting(cluster, clock, producer)
        cluster.move_leader("t", 0, 1)
        held.release()
        assert outcome(second) is None
        until(lambda: first.done() or clock.jump(0.1) or False)
        assert outcome(first) is None
        producer.commit_transaction()
    assert (committed(cluster, 0), committed(cluster, 1)) == ([b"0"], [b"1"])


def test_no_turn_outlives_its_transaction(cluster: ScriptedCluster, clock: FakeClock) -> None:
    with connected(cluster, clock) as producer:
        held, first = has_turn(cluster, producer)
        second = waiting(cluster, clock, producer)
        producer.abort_transaction()
        assert isinstance(outcome(first), TransactionAbortedError)
        assert isinstance(outcome(second), TransactionAbortedError)
        producer.begin_transaction()
        assert outcomes(send(producer, [b"next"], partition=1)) == [None]
        held.release()
        assert outcomes(send(producer, [b"next"], partition=2)) == [None]
        producer.commit_transaction()
    assert committed(cluster, 1) == committed(cluster, 2) == [b"next"]


def test_a_refusal_ends_the_transaction_and_the_wait(
    cluster: ScriptedCluster, clock: FakeClock
) -> None:
    """The epoch is not that of the coordinator, for example after a timeout."""
    with connected(cluster, clock) as producer:
        held, first = has_turn(cluster, producer, Refuse(ErrorCode.INVALID_PRODUCER_EPOCH))
        second = waiting(cluster, clock, producer)
        held.release()
        assert outcome(first) is not None
        with pytest.raises(TransactionAbortableError):
            producer.commit_transaction()
        producer.abort_transaction()
        assert second.done()
        with producer.transaction():
            assert outcomes(send(producer, [b"next"], partition=1)) == [None]


def test_partitions_of_the_transaction_do_not_wait(
    cluster: ScriptedCluster, clock: FakeClock
) -> None:
    with connected(cluster, clock) as producer:
        assert outcomes(send(producer, [b"added"], partition=1)) == [None]
        held, first = has_turn(cluster, producer)
        assert outcomes(send(producer, [b"more"], partition=1)) == [None]
        held.release()
        assert outcome(first) is None
        producer.commit_transaction()


def test_the_first_protocol_has_no_turns(clock: FakeClock) -> None:
    with (
        ScriptedCluster(3, topics={"t": 3}, features={"transaction.version": 0}) as cluster,
        connected(cluster, clock) as producer,
    ):
        held, first = has_turn(cluster, producer)
        assert outcomes(send(producer, [b"1"], partition=1)) == [None]
        held.release()
        assert outcome(first) is None


# Questions ----------------------------------------------------------------------------------------


def hold_of(producer: Producer) -> IntroductionHold:
    coordinator = pipeline_of(producer).coordinator
    assert coordinator is not None
    return coordinator.machine.hold


@contextmanager
def asking(cluster: ScriptedCluster, clock: FakeClock) -> Iterator[Producer]:
    """Return a producer that is about to ask about its last transaction."""
    with connected(cluster, clock) as producer:
        hold_of(producer).guesses = False
        assert outcomes(send(producer, [b"before"])) == [None]
        producer.commit_transaction()
        producer.begin_transaction()
        yield producer


def unended(answer: Any) -> None:
    answer.transaction_states[0].transaction_state = "PrepareCommit"


def asked(cluster: ScriptedCluster, clock: FakeClock, times: int) -> None:
    """Let the question be asked once more."""
    waits_for(clock, 0.001)
    clock.jump(0.001)
    came(cluster, "describe_transactions", times)


def test_the_first_produce_waits_until_the_last_transaction_has_ended(
    cluster: ScriptedCluster, clock: FakeClock
) -> None:
    cluster.next("describe_transactions", Amend(unended), Amend(unended))
    with asking(cluster, clock) as producer:
        before = attempts(cluster)
        messages = send(producer, [b"value"])
        for times in (1, 2):
            asked(cluster, clock, times)
            until(lambda: hold_of(producer).ask_at is not None)
        assert attempts(cluster) == before
        clock.jump(0.001)
        assert outcomes(messages) == [None]
        producer.commit_transaction()
        (request, *_) = cluster.received("describe_transactions")
        assert request.request.transactional_ids == ["id"]
    assert committed(cluster, 0) == [b"before", b"value"]


@pytest.mark.parametrize(
    ("answer", "stops"),
    [
        (Refuse(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED), True),
        (Drop(), False),
        (Drop(appended=True), False),
    ],
    ids=["no rights", "lost", "lost with its answer"],
)
def test_without_an_answer_nothing_waits(
    cluster: ScriptedCluster, clock: FakeClock, answer: Any, stops: bool
) -> None:
    cluster.next("describe_transactions", answer)
    with asking(cluster, clock) as producer:
        messages = send(producer, [b"value"])
        asked(cluster, clock, 1)
        assert outcomes(messages) == [None]
        assert hold_of(producer).guesses == stops


def send_unanswered(producer: Producer, clock: FakeClock, held: Held) -> None:
    """Send a message whose question is answered after it was delivered."""
    answered_late(clock, held, send(producer, [b"value"]))


def answered_late(clock: FakeClock, held: Held, messages: list[Any]) -> None:
    """Let the question be answered after *messages* were delivered."""
    waits_for(clock, 0.001)
    clock.jump(0.001)
    held.wait_until_held()
    clock.jump(TURN)
    assert outcomes(messages) == [None]
    held.release()


def test_a_coordinator_that_does_not_answer(cluster: ScriptedCluster, clock: FakeClock) -> None:
    """The messages are sent after 20 ms. EndTxn would not be answered either."""
    held = Held()
    cluster.next("describe_transactions", held)
    with asking(cluster, clock) as producer:
        send_unanswered(producer, clock, held)
        producer.commit_transaction()
    assert committed(cluster, 0) == [b"before", b"value"]


def malformed(answer: Any) -> None:
    answer.transaction_states = []


def test_an_answer_that_is_malformed_closes_the_connection(
    cluster: ScriptedCluster, clock: FakeClock
) -> None:
    cluster.next("describe_transactions", Amend(malformed))
    with asking(cluster, clock) as producer:
        messages = send(producer, [b"value"])
        asked(cluster, clock, 1)
        assert outcomes(messages) == [None]
        assert not hold_of(producer).guesses, "it counts as a loss"


def test_offsets_before_the_first_produce_do_not_hide_its_time(
    cluster: ScriptedCluster, clock: FakeClock
) -> None:
    """Otherwise each transaction of a consumer would wait for a coordinator that is too slow."""
    with asking(cluster, clock) as producer:
        for number in range(5):
            held = Held()
            cluster.next("describe_transactions", held)
            messages = send(producer, [b"value"])
            producer.send_offsets_to_transaction({TopicPartition("t", 0): number + 1}, "group")
            answered_late(clock, held, messages)
            producer.commit_transaction()
            producer.begin_transaction()
        assert hold_of(producer).guesses, "it has given up asking"
        assert outcomes(send(producer, [b"not held"])) == [None]


def test_another_id_does_not_wait_for_the_last_coordinator(
    cluster: ScriptedCluster, clock: FakeClock
) -> None:
    """Its own coordinator is a broker that answers."""
    cluster.move_coordinator("transaction", "other", 1)
    with connected(cluster, clock) as producer:
        hold_of(producer).guesses = False
        assert outcomes(send(producer, [b"value"])) == [None]
        producer.commit_transaction()
        held = Held()
        cluster.next("describe_transactions", held)
        waits_for(clock, 0.001)
        clock.jump(0.001)
        held.wait_until_held()
        producer.init_transactions(transactional_id="other")
        held.release()
        with producer.transaction():
            assert outcomes(send(producer, [b"other"])) == [None]


def nowhere(answer: Any) -> None:
    answer.coordinators[0].port = 1


def test_a_coordinator_that_is_not_reachable_is_tried_with_backoff(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each attempt follows a lookup, which must not skip the backoff."""
    settings = {"reconnect_backoff_ms": 10_000, "reconnect_backoff_max_ms": 10_000}
    with ScriptedCluster(topics={"t": 1}) as cluster:
        cluster.next("find_coordinator", *[Amend(nowhere)] * 999)
        producer = cluster.producer(
            clock=clock, transactional_id="id", max_block_ms=600_000, **{**FAST, **settings}
        )
        connect, times = Coordinator.next_address, []

        def next_address(coordinator: Coordinator) -> Any:
            times.append(clock.monotonic())
            return connect(coordinator)

        monkeypatch.setattr(Coordinator, "next_address", next_address)

        call = Call(producer.init_transactions)
        until(lambda: len(times) >= 4 or clock.jump(0.5) or False)
        producer.abort()
        assert isinstance(call.error(), ProducerClosedError)
    assert min(later - at for at, later in itertools.pairwise(times)) > 5


def test_the_first_request_after_a_wait_has_all_messages(clock: FakeClock) -> None:
    with ScriptedCluster(1, topics={"t": 3}) as cluster, asking(cluster, clock) as producer:
        first = send(producer, [b"1"])
        waits_for(clock, 0.001)
        waits_for(clock, TURN)
        rest = send(producer, [b"2", b"3", b"4"])
        until(lambda: pipeline_of(producer).dispatcher.held.nbytes() > 0)
        clock.jump(0.001)
        assert outcomes([*first, *rest]) == [None] * 4
        assert len(sent(cluster)[-1].values) == 4


def test_a_buffer_that_waits_is_tried_again_though_another_one_got_the_turn(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of the other one's request would wake it, but may be far away.

    1. A worker finds for one of its partitions that another one has the turn.
    2. The other one gives it back.
    3. The worker gets it for its next partition, so it does not wait any more.
    4. The other one reads who waits.
    """
    calls = []
    take = IntroductionTurn.take

    def interleaved(turn: IntroductionTurn, worker: Any, now: float) -> float | None:
        calls.append(now)
        if len(calls) == 1:
            turn._holder, turn._until = object(), now + TURN
        elif len(calls) == 2:
            turn._holder = None
        return take(turn, worker, now)

    with (
        ScriptedCluster(3, topics={"t": 6}) as cluster,
        asking(cluster, clock) as producer,
    ):
        monkeypatch.setattr(IntroductionTurn, "take", interleaved)
        held = Held()
        cluster.next("produce", held)
        messages = [*send(producer, [b"0"]), *send(producer, [b"3"], partition=3)]
        asked(cluster, clock, 1)
        held.wait_until_held()
        assert len(calls) == 2
        waits_for(clock, TURN)
        clock.jump(TURN)
        worker = next(each for each in pipeline_of(producer).brokers.all() if each.broker_id == 0)
        until(lambda: worker._requests == 2)
        held.release()
        assert outcomes(messages) == [None, None]


def test_a_retry_of_sent_batches_is_not_held_up(cluster: ScriptedCluster, clock: FakeClock) -> None:
    """A question that is answered late does not replace what was decided before."""
    held = Held(then=Amend(unended))
    cluster.next("describe_transactions", held)
    with asking(cluster, clock) as producer:
        send_unanswered(producer, clock, held)
        assert outcomes(send(producer, [b"more"])) == [None]
        producer.commit_transaction()
    values = [b"".join(value or b"" for value in each.values) for each in sent(cluster)]
    assert values[-2:] == [b"value", b"more"]
