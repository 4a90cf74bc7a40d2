"""Transactions at the moments when something else happens, on a clock that the test controls."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kafka import TopicPartition

from pykaproducer import Delivery, Producer
from pykaproducer._errors.codes import ErrorCode
from pykaproducer._machines.transaction_states import TransactionCall
from pykaproducer._pipeline import coordinator
from pykaproducer._pipeline.coordinator import Coordinator
from pykaproducer._pipeline.dispatcher_items import FailAll
from pykaproducer._util.clock import Clock
from pykaproducer._wire.messages import ApiKey
from pykaproducer.errors import (
    CommitOutcome,
    DeliveryError,
    DeliveryTimeoutError,
    ProducerBrokenError,
    ProducerClosedError,
    TransactionAbortableError,
    TransactionAbortedError,
    TransactionError,
    TransactionStateError,
    TransactionTimeoutError,
)
from pykaproducer.interceptors import ProducerRecord
from pykaproducer.testing import FakeClock, ScriptedCluster
from pykaproducer.testing.scripted import Drop, Refuse
from tests._support.threads import Call

from .helper import (
    FAST,
    LINGERING,
    SOON,
    Held,
    RefuseIf,
    attempts,
    backs_off,
    came,
    hold,
    let_pass,
    numbers,
    outcome,
    outcomes,
    pipeline_of,
    send,
    sent,
    transactional,
    until,
    waits_for,
)

#: The levels of ``transaction.version``, by protocol.
LEVELS = {"TV1": 0, "TV2": 2}


@pytest.fixture(params=LEVELS)
def cluster(request: pytest.FixtureRequest) -> Iterator[ScriptedCluster]:
    with ScriptedCluster(
        2, topics={"t": 2}, features={"transaction.version": LEVELS[request.param]}
    ) as made:
        yield made


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def committed(cluster: ScriptedCluster, partition: int = 0) -> list[bytes | None]:
    return [record.value for record in cluster.log("t", partition, committed=True)]


def deliver_each(producer: Producer, values: list[bytes]) -> list[Delivery]:
    """Send *values*, and let no two of them be in one batch."""
    return [delivery for value in values for delivery in delivered(producer, value)]


def delivered(producer: Producer, value: bytes) -> list[Delivery]:
    deliveries = send(producer, [value])
    assert outcomes(deliveries) == [None]
    return deliveries


# The coordinator is busy --------------------------------------------------------------------------


def test_a_busy_coordinator_is_asked_again_soon(cluster: ScriptedCluster, clock: FakeClock) -> None:
    """After 1, 2, 4 .. 20 ms, and no retry is counted."""
    with transactional(cluster, clock, retries=1) as producer:
        cluster.next("produce", *[Refuse(ErrorCode.CONCURRENT_TRANSACTIONS)] * 7)
        jumps = let_pass(clock, send(producer, [b"value"]))
        assert jumps == pytest.approx([0.001, 0.002, 0.004, 0.008, 0.016, 0.02, 0.02])
        producer.commit_transaction()
    assert committed(cluster) == [b"value"]
    assert len({each.first_sequence for each in sent(cluster)}) == 1


def test_a_leader_that_asks_the_coordinator_is_asked_again_soon_once(
    cluster: ScriptedCluster, clock: FakeClock
) -> None:
    """Then the code means that replicas are missing: the retry is counted, and waits longer."""
    with transactional(cluster, clock, retries=1, retry_backoff_ms=400) as producer:
        cluster.next("produce", *[Refuse(ErrorCode.NOT_ENOUGH_REPLICAS)] * 3)
        (delivery,) = send(producer, [b"value"])
        first, second = let_pass(clock, [delivery])
        assert first == pytest.approx(0.001)
        assert 0.3 < second < 0.5
        assert isinstance(outcome(delivery), DeliveryError)
        assert attempts(cluster) == 3
        with pytest.raises(TransactionAbortableError):
            producer.commit_transaction()


def test_attempts_that_are_repeated_soon_do_not_lengthen_the_next_backoff(
    cluster: ScriptedCluster, clock: FakeClock
) -> None:
    with transactional(cluster, clock, retry_backoff_ms=100, retry_backoff_max_ms=9000) as producer:
        busy = [Refuse(ErrorCode.CONCURRENT_TRANSACTIONS)] * 5
        cluster.next("produce", *busy, Refuse(ErrorCode.COORDINATOR_NOT_AVAILABLE))
        jumps = let_pass(clock, send(producer, [b"value"]))
        assert 0.03 < sum(jumps) - 0.031 < 0.15
        producer.commit_transaction()


# A batch that is too large ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code", [ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE], ids=lambda c: c.name
)
def test_a_batch_that_is_too_large_is_split_in_place(
    cluster: ScriptedCluster, clock: FakeClock, code: ErrorCode
) -> None:
    """Its parts have its numbers, so that the transaction needs no new epoch."""
    with transactional(cluster, clock, **LINGERING) as producer:
        cluster.always("produce", RefuseIf(code, lambda each: len(each) > 2))
        deliveries = send(producer, numbers(11))
        producer.commit_transaction()
        assert [delivery.offset for delivery in deliveries] == list(range(11))
        assert committed(cluster) == numbers(11)
        batches = cluster.batches("t")
        assert [batch.base_sequence for batch in batches] == [
            batch.base_offset for batch in batches
        ]
        assert len({batch.producer_epoch for batch in batches}) == 1
        with producer.transaction():
            send(producer, [b"next"])
    assert max(batch.count for batch in batches) == 2
    assert len(cluster.received("init_producer_id")) == 1


def test_batches_behind_one_that_is_split_follow_it(
    cluster: ScriptedCluster, clock: FakeClock
) -> None:
    with transactional(cluster, clock, batch_max_messages=4, **LINGERING) as producer:
        assert not outcomes(send(producer, numbers(4)))[0]
        held, _ = hold(cluster, producer, numbers(20), then=Refuse(ErrorCode.MESSAGE_TOO_LARGE))
        held.release()
        producer.commit_transaction()
        assert committed(cluster) == numbers(4) + numbers(20)
        assert {batch.count for batch in cluster.batches("t")} == {2, 4}


def test_one_message_that_is_too_large_fails(cluster: ScriptedCluster, clock: FakeClock) -> None:
    with transactional(cluster, clock) as producer:
        cluster.always(
            "produce", RefuseIf(ErrorCode.MESSAGE_TOO_LARGE, lambda each: b"large" in each)
        )
        deliveries = [*send(producer, [b"large", b"small"])]
        with pytest.raises(TransactionAbortableError) as raised:
            producer.commit_transaction()
        assert raised.value.outcome is CommitOutcome.NOT_COMMITTED
        assert getattr(outcome(deliveries[0]), "code", None) == ErrorCode.MESSAGE_TOO_LARGE
        producer.abort_transaction()
        cluster.always("produce", lambda exchange: exchange.answer(exchange.apply()))
        with producer.transaction():
            send(producer, [b"next"])
    assert committed(cluster) == [b"next"]


def test_a_batch_with_an_expired_message_is_not_split(
    cluster: ScriptedCluster, clock: FakeClock
) -> None:
    with transactional(cluster, clock, **LINGERING) as producer:
        held = Held(then=Refuse(ErrorCode.MESSAGE_TOO_LARGE))
        cluster.next("produce", held)
        late = producer.send("t", b"late", partition=0, delivery_timeout_ms=2000)
        others = send(producer, numbers(3))
        committing = Call(producer.commit_transaction)
        held.wait_until_held()
        clock.jump(3)
        assert isinstance(outcome(late), DeliveryTimeoutError)
        held.release()
        error = committing.error()
        assert isinstance(error, TransactionAbortableError)
        assert isinstance(error.__cause__, DeliveryTimeoutError)
        assert all(isinstance(each, TransactionAbortedError) for each in outcomes(others))
        producer.abort_transaction()
    assert committed(cluster) == []
    assert attempts(cluster) == 1


# The first Produce of a transaction ---------------------------------------------------------------


def slow_transaction(cluster: ScriptedCluster, producer: Producer, clock: FakeClock) -> None:
    """Commit a transaction whose first Produce takes 20 ms."""
    held, (delivery,) = hold(cluster, producer, [b"slow"])
    clock.jump(0.02)
    held.release()
    assert outcome(delivery) is None
    producer.commit_transaction()


def test_the_first_produce_waits_if_the_last_one_came_too_early(clock: FakeClock) -> None:
    with (
        ScriptedCluster(topics={"t": 2}) as cluster,
        transactional(cluster, clock) as producer,
    ):
        slow_transaction(cluster, producer, clock)
        producer.begin_transaction()
        deliveries = send(producer, [b"held"])
        waits_for(clock, 0.001)
        assert attempts(cluster) == 1
        clock.jump(0.001)
        assert outcomes(deliveries) == [None]
        # The others of the transaction do not wait.
        assert outcomes(send(producer, [b"not held"])) == [None]
        producer.commit_transaction()


@pytest.mark.parametrize(
    ("level", "later"), [(LEVELS["TV2"], 0.001), (LEVELS["TV1"], 0.0)], ids=["later", "TV1"]
)
def test_nothing_waits_later_or_with_the_first_protocol(
    clock: FakeClock, level: int, later: float
) -> None:
    """With the first protocol, the partitions are added by a separate request."""
    with (
        ScriptedCluster(topics={"t": 2}, features={"transaction.version": level}) as cluster,
        transactional(cluster, clock) as producer,
    ):
        slow_transaction(cluster, producer, clock)
        clock.jump(later)
        with producer.transaction():
            assert outcomes(send(producer, [b"value"])) == [None]


# Commit -------------------------------------------------------------------------------------------


def test_the_end_does_not_wait_for_callbacks(cluster: ScriptedCluster, clock: FakeClock) -> None:
    go_on = threading.Event()
    with transactional(cluster, clock) as producer:
        producer.send("t", b"value", partition=0, on_delivery=lambda *_: go_on.wait(SOON))
        committing = Call(producer.commit_transaction)
        came(cluster, "end_txn", 1)
        until(lambda: committed(cluster) == [b"value"])
        assert committing.is_alive()
        with pytest.raises(TransactionStateError, match=r"commit_transaction\(\) is under way"):
            producer.begin_transaction()
        go_on.set()
        assert committing.error() is None


def test_a_timeout_while_a_callback_runs_says_that_it_is_committed(
    cluster: ScriptedCluster, clock: FakeClock
) -> None:
    go_on = threading.Event()
    with transactional(cluster, clock) as producer:
        producer.send("t", b"value", partition=0, on_delivery=lambda *_: go_on.wait(SOON))
        committing = Call(lambda: producer.commit_transaction(5))
        until(lambda: committed(cluster) == [b"value"])
        coordinator = pipeline_of(producer).coordinator
        assert coordinator is not None
        until(lambda: coordinator.state.name == "READY")  # it has the answer
        clock.jump(5.1)
        error = committing.error()
        assert isinstance(error, TransactionTimeoutError)
        assert error.outcome is CommitOutcome.COMMITTED
        assert "the transaction is committed, but callbacks" in str(error)
        go_on.set()
        producer.commit_transaction()


def test_a_flush_beside_a_commit(cluster: ScriptedCluster, clock: FakeClock) -> None:
    with transactional(cluster, clock, **LINGERING) as producer:
        held = Held()
        cluster.next("produce", held)
        send(producer, numbers(3))
        committing, flushing = Call(producer.commit_transaction), Call(producer.flush)
        held.wait_until_held()
        held.release()
        assert (committing.error(), flushing.error()) == (None, None)
        # Both have ended, and messages linger again.
        assert not pipeline_of(producer).is_flushing()


def test_messages_linger_in_each_transaction(cluster: ScriptedCluster, clock: FakeClock) -> None:
    with transactional(cluster, clock, begun=False, **LINGERING) as producer:
        for _ in range(3):
            producer.begin_transaction()
            before = attempts(cluster)
            (delivery,) = send(producer, [b"value"])
            assert not pipeline_of(producer).is_flushing()
            assert not delivery.done()
            assert attempts(cluster) == before
            producer.commit_transaction()
        for _ in range(2):
            producer.begin_transaction()
            send(producer, [b"value"])
            producer.abort_transaction()
            assert not pipeline_of(producer).is_flushing()


def test_two_threads_commit(cluster: ScriptedCluster, clock: FakeClock) -> None:
    with transactional(cluster, clock) as producer:
        held = Held()
        cluster.next("end_txn", held)
        send(producer, [b"value"])
        calls = [Call(producer.commit_transaction) for _ in range(2)]
        held.wait_until_held()
        with pytest.raises(TransactionStateError, match=r"commit_transaction\(\) is under way"):
            producer.abort_transaction()
        held.release()
        # One that comes when the other has returned has nothing to commit.
        errors = [call.error() for call in calls]
        assert None in errors
        assert all(each is None or "there is no transaction" in str(each) for each in errors)
    assert committed(cluster) == [b"value"]


def test_a_failure_that_is_reported_late_is_not_one_of_the_next_transaction(
    cluster: ScriptedCluster, clock: FakeClock
) -> None:
    """A row is delivered, and its transaction committed, while another stage fails it."""

    class Late:
        topic, partition = "t", 0

        @property
        def is_settled(self) -> bool:
            producer.commit_transaction()
            producer.begin_transaction()
            return False

        def fail(self, *_errors: DeliveryError, wake: bool) -> None:
            """Fail nothing: it is delivered."""

    with transactional(cluster, clock) as producer:
        delivered(producer, b"value")
        pipeline_of(producer).settler.fail(
            [Late()],  # type: ignore[list-item]
            lambda status: DeliveryError("it has expired", status=status, topic="t"),
        )
        delivered(producer, b"next")
        producer.commit_transaction()
    assert committed(cluster) == [b"value", b"next"]


def test_the_coordinator_moves_while_it_is_asked(cluster: ScriptedCluster) -> None:
    with transactional(cluster, Clock(), **FAST) as producer:
        held = Held(then=Drop(appended=True))
        cluster.next("end_txn", held)
        send(producer, [b"value"])
        committing = Call(producer.commit_transaction)
        held.wait_until_held()
        cluster.move_coordinator("transaction", "id", 1)
        held.release()
        assert committing.error() is None
        assert [each.broker for each in cluster.received("end_txn")][-1] == 1
        with producer.transaction():
            send(producer, [b"next"])
    assert committed(cluster) == [b"value", b"next"]


def test_the_transaction_times_out_while_its_messages_are_sent(
    cluster: ScriptedCluster, clock: FakeClock
) -> None:
    with transactional(cluster, clock, transaction_timeout_ms=20_000) as producer:
        held, (delivery,) = hold(cluster, producer, [b"value"])
        committing = Call(producer.commit_transaction)
        until(lambda: pipeline_of(producer).coordinator.state.name == "FLUSHING")  # type: ignore[union-attr]
        clock.jump(20)
        error = committing.error()
        assert isinstance(error, TransactionAbortableError)
        assert error.outcome is CommitOutcome.NOT_COMMITTED
        assert isinstance(outcome(delivery), TransactionAbortedError)
        held.release()
        producer.abort_transaction()
    assert committed(cluster) == []


def test_a_callback_that_sends_after_a_commit_is_refused(
    cluster: ScriptedCluster, clock: FakeClock
) -> None:
    """Its message is in no transaction, and not in the next one."""
    refused: list[BaseException] = []

    def again(_error: Any, delivery: Delivery) -> None:
        assert pipeline_of(producer).coordinator.state.name != "IN_TRANSACTION"  # type: ignore[union-attr]
        try:
            producer.send("t", delivery.value, partition=0)
        except TransactionError as error:
            refused.append(error)

    with transactional(cluster, clock, begun=False, **LINGERING) as producer:
        for number in range(3):
            with producer.transaction():
                producer.send("t", b"%d" % number, partition=0, on_delivery=again)
            assert len(refused) == number + 1
            assert isinstance(refused[-1], TransactionStateError)
    assert committed(cluster) == numbers(3)


# User code that takes long -----------------------------------------------------------------------


class Slow:
    """An interceptor, or a serializer, that runs something once."""

    def __init__(self) -> None:
        self.meanwhile: Callable[[], object] | None = None

    def run(self) -> None:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            assert Call(meanwhile).error() is None

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        self.run()
        return record

    def serialize(self, value: bytes) -> bytes:
        self.run()
        return value


@pytest.mark.parametrize("block", [False, True], ids=["send", "send_many"])
@pytest.mark.parametrize("how", ["interceptor", "serializer"])
def test_user_code_that_ends_in_the_next_transaction(
    cluster: ScriptedCluster, clock: FakeClock, how: str, block: bool
) -> None:
    """Its message is refused, and neither transaction has it."""
    slow = Slow()
    settings: dict[str, Any] = {"value_serializer": slow.serialize}
    if how == "interceptor":
        settings = {"interceptors": [slow]}
    with transactional(cluster, clock, **settings) as producer:

        def next_one() -> None:
            producer.commit_transaction()
            producer.begin_transaction()

        send(producer, [b"first"])
        slow.meanwhile = next_one
        call: Any = (producer.send_many, [b"late"]) if block else (producer.send, b"late")
        with pytest.raises(TransactionStateError, match="in which it was called has ended"):
            call[0]("t", call[1])
        send(producer, [b"second"])
        producer.commit_transaction()
    assert committed(cluster) == [b"first", b"second"]


# Abort --------------------------------------------------------------------------------------------


def test_what_waits_for_a_retry_does_not_delay_the_next_transaction(
    cluster: ScriptedCluster, clock: FakeClock
) -> None:
    """The time stands still from the refusal on."""
    with transactional(cluster, clock, retry_backoff_ms=1000) as producer:
        cluster.next("produce", Refuse(ErrorCode.COORDINATOR_NOT_AVAILABLE))
        (delivery,) = send(producer, [b"refused"])
        backs_off(clock)
        producer.abort_transaction()
        assert isinstance(outcome(delivery), TransactionAbortedError)
        # It is no write of the next one either, which is empty, and ends without EndTxn.
        ends = len(cluster.received("end_txn"))
        producer.begin_transaction()
        clock.jump(2)
        producer.commit_transaction()
        assert len(cluster.received("end_txn")) == ends
        with producer.transaction():
            assert outcomes(send(producer, [b"next"])) == [None]
    assert committed(cluster) == [b"next"]


def test_a_batch_keeps_its_number_at_the_next_leader(
    cluster: ScriptedCluster, clock: FakeClock
) -> None:
    """It knows nothing of the batch, and the batches after it have the next numbers."""
    with transactional(cluster, clock) as producer:
        deliver_each(producer, [b"0"])
        cluster.move_leader("t", 0, 1)
        assert outcomes(send(producer, [b"1"]), clock) == [None]
        deliver_each(producer, [b"2"])
        producer.commit_transaction()
        found = [(each.broker, each.first_sequence) for each in sent(cluster)]
        assert found == [(0, 0), (0, 1), (1, 1), (1, 2)]
    assert committed(cluster) == [b"0", b"1", b"2"]


def test_a_request_that_is_lost_after_the_abort(cluster: ScriptedCluster, clock: FakeClock) -> None:
    """Its batches are not sent again, whatever comes behind them."""
    with transactional(cluster, clock, batch_max_messages=1, reconnect_backoff_ms=1) as producer:
        deliver_each(producer, [b"first"])
        held, deliveries = hold(cluster, producer, numbers(3), then=Drop())
        aborting = Call(producer.abort_transaction)
        assert all(isinstance(each, TransactionAbortedError) for each in outcomes(deliveries))
        before = attempts(cluster)
        held.release()
        assert aborting.error() is None
        producer.begin_transaction()
        next_one = send(producer, [b"next"])
        assert outcomes(next_one, clock) == [None]
        producer.commit_transaction()
        assert {each.values for each in sent(cluster)[before:]} == {(b"next",)}
    assert committed(cluster) == [b"next"]


def ends_with_abort(producer: Producer, cluster: ScriptedCluster) -> int:
    """Abort, commit a message, and return how often a producer id was asked for."""
    producer.abort_transaction()
    with producer.transaction():
        send(producer, [b"next"])
    assert committed(cluster) == [b"next"]
    return len(cluster.received("init_producer_id"))


def test_an_abort_with_all_batches_answered_keeps_the_epoch(
    cluster: ScriptedCluster, clock: FakeClock
) -> None:
    with transactional(cluster, clock) as producer:
        deliver_each(producer, numbers(3))
        assert ends_with_abort(producer, cluster) == 1


def test_an_abort_of_nothing_keeps_the_epoch(cluster: ScriptedCluster, clock: FakeClock) -> None:
    with transactional(cluster, clock, **LINGERING) as producer:
        send(producer, numbers(3))
        assert ends_with_abort(producer, cluster) == 1


def test_an_abort_after_a_batch_that_is_not_in_the_log_takes_another_epoch(
    cluster: ScriptedCluster, clock: FakeClock
) -> None:
    """With the first protocol; with the second one EndTxn does that."""
    with transactional(cluster, clock) as producer:
        deliver_each(producer, [b"first"])
        cluster.next("produce", Refuse(ErrorCode.INVALID_RECORD))
        assert outcome(send(producer, [b"refused"])[0]) is not None
        first_protocol = cluster.received("end_txn") == [] and _is_tv1(producer)
        assert ends_with_abort(producer, cluster) == (2 if first_protocol else 1)


def test_a_later_abort_does_not_count_that_batch_again(
    cluster: ScriptedCluster, clock: FakeClock
) -> None:
    with transactional(cluster, clock) as producer:
        cluster.next("produce", Refuse(ErrorCode.INVALID_RECORD))
        assert outcome(send(producer, [b"refused"])[0]) is not None
        producer.abort_transaction()
        asked = len(cluster.received("init_producer_id"))
        producer.begin_transaction()
        deliver_each(producer, [b"delivered"])
        assert ends_with_abort(producer, cluster) == asked


def _is_tv1(producer: Producer) -> bool:
    coordinator = pipeline_of(producer).coordinator
    assert coordinator is not None
    return coordinator.view.protocol == 1


# Groups -------------------------------------------------------------------------------------------


def groups(producer: Producer) -> list[str]:
    return [stage.name for stage in pipeline_of(producer).stages if "-group-" in stage.name]


def test_the_stage_of_a_group_ends_when_it_is_not_used(
    cluster: ScriptedCluster, clock: FakeClock
) -> None:
    with transactional(cluster, clock, connections_max_idle_ms=60_000) as producer:
        for number in range(2):
            producer.send_offsets_to_transaction({TopicPartition("t", 0): number + 1}, "g")
            producer.commit_transaction()
            assert cluster.offsets("g") == {("t", 0): number + 1}
            (name,) = groups(producer)
            assert name.endswith(f"-group-{number}")
            clock.jump(70)
            until(lambda: not groups(producer))
            producer.begin_transaction()


@pytest.mark.parametrize("together", [False, True])
def test_many_groups_share_stages(
    cluster: ScriptedCluster, clock: FakeClock, together: bool
) -> None:
    with transactional(cluster, clock) as producer:
        for number in range(12):
            place = {TopicPartition("t", 0): number + 1}
            producer.send_offsets_to_transaction(place, f"g{number}", wait=not together)
            if not together:
                producer.commit_transaction()
                producer.begin_transaction()
        producer.commit_transaction()
        assert len(groups(producer)) == 4
        for number in range(12):
            assert cluster.offsets(f"g{number}") == {("t", 0): number + 1}


def test_a_silent_coordinator_of_one_group_does_not_hold_up_others(
    cluster: ScriptedCluster, clock: FakeClock
) -> None:
    """Not even in the next transaction, and if they share its stage."""
    with transactional(cluster, clock) as producer:
        held = Held()
        for number in range(8):
            if number == 0:
                cluster.next("txn_offset_commit", held)
            place = {TopicPartition("t", 0): number + 1}
            producer.send_offsets_to_transaction(place, f"g{number}", wait=number > 0)
            if number == 0:
                held.wait_until_held()
                producer.abort_transaction()
            else:
                producer.commit_transaction()
            producer.begin_transaction()
        assert all(cluster.offsets(f"g{number}") for number in range(1, 8))
        held.release()


# Whatever dies ------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["commit_transaction", "abort_transaction"])
def test_the_dispatcher_dies_in_a_call(
    cluster: ScriptedCluster, clock: FakeClock, call: str
) -> None:
    with transactional(cluster, clock) as producer:
        held = Held()
        cluster.next("end_txn", held)
        assert outcomes(send(producer, [b"value"])) == [None]
        ending = Call(getattr(producer, call))
        held.wait_until_held()
        pipeline_of(producer).dispatcher.put(FailAll(None, None))  # type: ignore[arg-type]
        error = ending.error()
        assert isinstance(error, ProducerBrokenError)
        doubtful = CommitOutcome.POSSIBLY_COMMITTED if call == "commit_transaction" else None
        assert error.outcome is doubtful
        held.release()
        with pytest.raises(ProducerBrokenError):
            producer.commit_transaction()


def test_the_stage_of_the_coordinator_dies_in_a_commit(
    cluster: ScriptedCluster, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell = coordinator.tell_answer

    def crash(machine: Any, event: Any, now: float) -> Any:
        if event.request.api_key == ApiKey.END_TXN:
            raise AssertionError("a defect")
        return tell(machine, event, now)

    with transactional(cluster, clock) as producer:
        send(producer, [b"value"])
        monkeypatch.setattr(coordinator, "tell_answer", crash)
        with pytest.raises(ProducerBrokenError) as raised:
            producer.commit_transaction()
        assert raised.value.outcome is CommitOutcome.POSSIBLY_COMMITTED
        stage = pipeline_of(producer).coordinator
        assert stage is not None
        assert stage.thread is not None
        stage.thread.join(SOON)
        # What a call is told that reads it after the end of the stage.
        assert stage.late(TransactionCall.COMMIT).outcome is CommitOutcome.POSSIBLY_COMMITTED


@pytest.mark.parametrize(
    ("held_back", "outcome"),
    [
        ("end_txn", CommitOutcome.POSSIBLY_COMMITTED),
        ("produce", CommitOutcome.NOT_COMMITTED),
    ],
)
def test_close_beside_a_commit(
    cluster: ScriptedCluster, clock: FakeClock, held_back: str, outcome: CommitOutcome
) -> None:
    """close() gives up at its timeout, and the commit is told its outcome as far as it is known."""
    with transactional(cluster, clock) as producer:
        held = Held()
        cluster.next(held_back, held)
        send(producer, [b"value"])
        committing = Call(producer.commit_transaction)
        held.wait_until_held()
        closing = Call(lambda: producer.close(5))
        waits_for(clock, 5.5)
        clock.jump(6)
        error = committing.error()
        assert error.outcome is outcome
        if held_back == "end_txn":
            assert isinstance(error, ProducerClosedError)
            assert "read the topic" in str(error)
        else:
            assert isinstance(error, ProducerClosedError | TransactionAbortableError)
        assert closing.error() is None
        with pytest.raises(ProducerClosedError):
            producer.commit_transaction()
        held.release()


def test_a_call_that_begins_when_the_producer_is_closed(
    cluster: ScriptedCluster, clock: FakeClock
) -> None:
    """It has read the pipeline before it was stopped."""
    with transactional(cluster, clock) as producer:
        pipeline = pipeline_of(producer)
        producer.close(0)
        producer._pipeline = pipeline
        producer._ensure_started = lambda: None  # type: ignore[method-assign]
        for call in (producer.commit_transaction, producer.begin_transaction):
            assert isinstance(Call(call).error(), ProducerClosedError)


def test_a_stage_that_is_blocked_does_not_block_its_caller(
    cluster: ScriptedCluster, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example by a name server that does not answer."""
    blocked, go_on = threading.Event(), threading.Event()
    handle = Coordinator.handle

    def block(self: Coordinator, item: Any) -> None:
        blocked.set()
        assert go_on.wait(SOON)
        handle(self, item)

    with transactional(cluster, clock) as producer:
        send(producer, [b"value"])
        monkeypatch.setattr(Coordinator, "handle", block)
        committing = Call(lambda: producer.commit_transaction(5))
        assert blocked.wait(SOON)
        clock.jump(5.5)
        error = committing.error()
        assert isinstance(error, TransactionTimeoutError)
        assert error.outcome is CommitOutcome.POSSIBLY_COMMITTED
        monkeypatch.setattr(Coordinator, "handle", handle)
        go_on.set()
        producer.commit_transaction()
    assert committed(cluster) == [b"value"]
