"""Scenarios from Sarama's tests, scenarios that they lack, and bugs found in Sarama, in our terms.

Sarama's names in the docstrings: HWM is the high-watermark of retry levels, a chaser is its "fin"
message, and a muter is the rule of one in-flight batch per partition.
"""

from __future__ import annotations

import functools
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest

from pykaproducer import BufferFullError, Delivery, Status
from pykaproducer._errors.codes import ErrorCode
from pykaproducer.testing.scripted import Action, Drop, Mangle, Omit, Refuse, garbage

from .helper import (
    FAST,
    SOON,
    Before,
    Frozen,
    Held,
    RefuseIf,
    Told,
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
    outcomes,
    running,
    send,
    sent,
    warm_up,
)

pytestmark = pytest.mark.usefixtures("at_any_depth")

BOTH = pytest.mark.parametrize("idempotent", [True, False], ids=["idempotent", "plain"])

MOVED = ErrorCode.NOT_LEADER_OR_FOLLOWER
TEMPORARY = ErrorCode.NOT_ENOUGH_REPLICAS

#: Batches of five, as Flush.Messages=5.
FIVES: dict[str, Any] = batches_of(5)


# The producer's own suite


def test_three_groups_of_five_are_three_batches_with_outcomes_in_order() -> None:
    """Sarama 2 and 3: Flush.Messages=5, three times five; one response each."""
    told = Told()
    with running(**FIVES) as (cluster, producer):
        for start in (0, 5, 10):
            # Not flush(): it would send those that are in the broker's buffer by then.
            values = numbers(5, start)
            found = [producer.send("t", v, partition=0, on_delivery=told) for v in values]
            assert offsets(found) == list(range(start, start + 5))
        assert [batch.count for batch in cluster.batches("t")] == [5, 5, 5]
        assert attempts(cluster) == 3
        producer.flush(SOON)
        assert told.values == numbers(15)


def test_two_leaders_get_five_each() -> None:
    """Sarama 4: two partitions on two leaders, round robin."""
    with running(2, topics={"t": 2}, partitioner="round_robin", **FAST) as (cluster, producer):
        assert None not in offsets([producer.send("t", value) for value in numbers(10)])
        assert [len(log(cluster, "t", i)) for i in range(2)] == [5, 5]
        assert {(batch.broker, batch.partition) for batch in sent(cluster)} == {(0, 0), (1, 1)}


@pytest.mark.parametrize("versions", [None, {"produce": (3, 9)}], ids=["hints", "no hints"])
@BOTH
def test_the_leader_has_moved(idempotent: bool, versions: Any) -> None:
    """Sarama 6: ten go to the new leader after a rejection; the next ten go straight to it.

    Before version 10 of Produce, the rejection does not name the new leader.
    """
    settings = {"enable_idempotence": idempotent, "retries": 1, **FAST}
    with running(2, versions=versions, **settings) as (cluster, producer):
        warm_up(producer)
        cluster.move_leader("t", 0, 1)
        assert offsets(send(producer, numbers(10))) == list(range(1, 11))
        cluster.stop(0)
        before = attempts(cluster)
        assert offsets(send(producer, numbers(10, 10))) == list(range(11, 21))
        assert log(cluster) == [b"first", *numbers(20)]
        assert {received.broker for received in cluster.received("produce")[before:]} == {1}


def test_with_a_hint_nobody_waits_for_metadata_or_a_backoff() -> None:
    """KIP-951: time stands still, Metadata is not answered, and the message arrives."""
    with frozen(2, retries=1) as (cluster, _, producer):
        warm_up(producer)
        cluster.next("metadata", *[Held()] * 9)
        cluster.move_leader("t", 0, 1)
        assert offsets(send(producer, [b"value"])) == [1]
        assert sent(cluster)[-1].broker == 1


def test_two_brokers_that_name_each_other_are_not_asked_as_fast_as_they_answer() -> None:
    """KIP-951 again: a hint skips the first backoff only."""
    with frozen(2, retries=1) as (cluster, clock, producer):
        warm_up(producer)

        def swap() -> None:
            leader = cluster._state.topics["t"][0].leader
            cluster.move_leader("t", 0, 1 - leader)

        cluster.next("produce", *[Before(swap, lambda e: e.answer(e.apply()))] * 9)
        (delivery,) = send(producer, [b"value"])
        came(cluster, "produce", 3)
        backs_off(clock)
        assert len(cluster.received("produce")) == 3
        assert outcomes([delivery], clock) == [None]
        assert log(cluster) == [b"first", b"value"]


@pytest.mark.parametrize("code", [MOVED, TEMPORARY, ErrorCode.INVALID_RECORD])
def test_after_an_error_without_retries_the_leader_is_still_found(code: ErrorCode) -> None:
    """Sarama 7 and 16, #294, #509: Retry.Max=0, errors, then the leader moves; it recovers."""
    with running(2, enable_idempotence=False, retries=0, **FIVES) as (cluster, producer):
        cluster.next("produce", Refuse(code))
        found = outcomes(send(producer, numbers(5)))
        # A moved leader does not count as a retry.
        assert [error is None for error in found] == [code == MOVED] * 5
        cluster.move_leader("t", 0, 1)
        assert outcomes(send(producer, numbers(5, 5))) == [None] * 5
        assert log(cluster)[-5:] == numbers(5, 5)


@BOTH
def test_a_broker_starts_again_at_its_address(idempotent: bool) -> None:
    """Sarama 9: the next message survives the end of the connection."""
    with running(enable_idempotence=idempotent, retries=1, **FAST) as (cluster, producer):
        for number in range(5):
            assert offsets(send(producer, [b"%d" % number])) == [number]
            cluster.stop(0)
            cluster.start(0)
        assert log(cluster) == numbers(5)


@BOTH
def test_the_leader_dies_and_the_metadata_stays_stale(idempotent: bool) -> None:
    """Sarama 10: the metadata names the dead one twice, then the new one: ten are delivered."""
    with running(2, enable_idempotence=idempotent, retries=1, **FAST) as (cluster, producer):
        warm_up(producer)
        Frozen(cluster, 2)
        cluster.stop(0)
        cluster.move_leader("t", 0, 1)
        assert offsets(send(producer, numbers(10))) == list(range(1, 11))
        assert log(cluster) == [b"first", *numbers(10)]


@BOTH
def test_the_leader_flaps(idempotent: bool) -> None:
    """Sarama 11: four moves, the same leader twice among them: ten, then ten more directly."""
    with running(2, enable_idempotence=idempotent, retries=1, **FAST) as (cluster, producer):
        warm_up(producer)
        for leader in (1, 0, 0, 1):
            move = Before(lambda to=leader: cluster.move_leader("t", 0, to), Refuse(MOVED))
            cluster.next("produce", move)
        assert offsets(send(producer, numbers(10))) == list(range(1, 11))
        assert offsets(send(producer, numbers(10, 10))) == list(range(11, 21))
        assert log(cluster) == [b"first", *numbers(20)]


def test_a_slow_broker_with_five_requests_under_way() -> None:
    """Sarama 14, #2129, #2121: after the read timeout all of them end, and nothing hangs."""
    with frozen(
        topics={"t": 5}, retries=1, request_timeout_ms=1_500, delivery_timeout_ms=2_000
    ) as (cluster, clock, producer):
        cluster.next("produce", *[Held()] * 99)
        deliveries = [
            delivery for number in range(5) for delivery in send(producer, [b"v"], partition=number)
        ]
        came(cluster, "produce", 1)
        clock.jump(1.6)
        clock.jump(0.5)
        for delivery in deliveries:
            assert error_of(delivery).status in Status
        producer.close(0)


def test_a_broker_is_replaced_while_four_threads_send() -> None:
    """Sarama 15, #2150: all forty arrive, and no control message reaches the log."""
    with running(2, retries=1, **FAST) as (cluster, producer):
        cluster.next("produce", Drop(), Refuse(MOVED), broker=0)
        deliveries: list[list[Delivery]] = [[] for _ in range(4)]

        def work(number: int) -> None:
            for value in numbers(10, number * 10):
                deliveries[number] += send(producer, [value])
                if value == b"15":
                    cluster.move_leader("t", 0, 1)
                    cluster.stop(0)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SOON)
        for each in deliveries:
            found = offsets(each)
            assert found == sorted(found)  # type: ignore[type-var]
        assert sorted(log(cluster), key=_number) == numbers(40)


def test_a_partition_that_does_not_send_does_not_hold_on_to_a_dead_broker() -> None:
    """Sarama 17: two partitions, the broker restarts, one sends; then the other; clean close."""
    with running(topics={"t": 2}, retries=1, **FAST) as (cluster, producer):
        warm_up(producer, partitions=2)
        cluster.stop(0)
        cluster.start(0)
        assert offsets(send(producer, numbers(5))) == list(range(1, 6))
        assert offsets(send(producer, numbers(5), partition=1)) == list(range(1, 6))


@BOTH
def test_one_partition_fails_and_its_neighbour_does_not_notice(idempotent: bool) -> None:
    """Sarama 18: the other is delivered; the one succeeds on the same broker, and five after it."""
    settings = {"enable_idempotence": idempotent, "retries": 1}
    with running(topics={"t": 2}, **settings, **FAST) as (cluster, producer):
        warm_up(producer, partitions=2)
        cluster.next("produce", *[Refuse(MOVED, only=[("t", 0)])] * 3)
        both = [send(producer, numbers(5), partition=partition) for partition in range(2)]
        assert offsets(both[0]) == offsets(both[1]) == list(range(1, 6))
        assert offsets(send(producer, numbers(5, 5))) == list(range(6, 11))
        assert log(cluster) == [b"first", *numbers(10)]
        assert log(cluster, "t", 1) == [b"first", *numbers(5)]


def test_every_other_batch_fails_before_or_behind_the_append() -> None:
    """Sarama 22: a retried batch has the same first sequence and the same messages."""
    faults: list[Action] = []
    for number in range(10):
        fault = Refuse(TEMPORARY) if number % 2 else Drop(appended=True)
        faults += [fault, lambda exchange: exchange.answer(exchange.apply())]
    with running(**FIVES) as (cluster, producer):
        cluster.next("produce", *faults)
        assert offsets(send(producer, numbers(50))) == list(range(50))
        assert log(cluster) == numbers(50)
        by_sequence: dict[int, set[Any]] = {}
        for batch in sent(cluster):
            by_sequence.setdefault(batch.first_sequence, set()).add(batch)
        assert sorted(by_sequence) == list(range(0, 50, 5))
        assert all(len(batches) == 1 for batches in by_sequence.values())


@BOTH
@pytest.mark.parametrize("fault", [Refuse(TEMPORARY), Refuse(MOVED), Drop()], ids=repr)
def test_exactly_three_requests_in_order(fault: Action, idempotent: bool) -> None:
    """Sarama 48, #2619: batch 0 fails once, then 0, then 1; not 1 before 0."""
    with running(enable_idempotence=idempotent, **batches_of(1)) as (cluster, producer):
        warm_up(producer)
        held, (first,) = hold(cluster, producer, [b"0"], then=fault)
        (second,) = send(producer, [b"1"])
        held.release()
        assert offsets([first, second]) == [1, 2]
        assert log(cluster) == [b"first", b"0", b"1"]
        if not idempotent:
            # One at a time: the second was not written before the first had its outcome.
            assert [batch.values for batch in sent(cluster)[1:]] == [(b"0",), (b"0",), (b"1",)]


@BOTH
def test_endless_refusals_do_not_grow_memory_and_everything_has_an_outcome(
    idempotent: bool,
) -> None:
    """Sarama 47, #1358, #840: the buffer is bounded at admission; no message is dropped for it."""
    with frozen(
        enable_idempotence=idempotent,
        buffer_memory=200_000,
        max_block_ms=0,
        delivery_timeout_ms=8_000,
    ) as (cluster, clock, producer):
        cluster.next("produce", *[Refuse(MOVED)] * 9999)
        accepted: list[Delivery] = []
        full: list[BufferFullError] = []
        while not full:
            try:
                accepted += send(producer, [bytes(100)])
            except BufferFullError as error:
                full.append(error)
        assert len(accepted) > 500
        assert producer._budget.used <= 200_000
        clock.jump(8.1)
        found = outcomes(accepted)
        assert len(found) == len(accepted)
        assert None not in found


# Not tested by Sarama (section 3.4 of the notes)


@BOTH
def test_what_came_to_the_old_path_goes_before_what_is_fresh(idempotent: bool) -> None:
    """Sarama's trace: 1 fails, 2 reaches the failed path, and 3 is sent after both.

    1. Message 1 is rejected, and waits for its backoff.
    2. Message 2 reaches the failed buffer, and is handed back, with a separate backoff.
    3. Message 1 is retried. Message 3 is sent: its level is lower, so it waits for the chaser.
    """
    with frozen(topics={"t": 2}, enable_idempotence=idempotent) as (cluster, clock, producer):
        warm_up(producer, partitions=2)
        cluster.next("produce", Refuse(TEMPORARY))
        deliveries = send(producer, [b"1"])
        came(cluster, "produce", 3)
        backs_off(clock)
        clock.jump(0.07)
        deliveries += send(producer, [b"2"])
        # Sent after it: when this one is delivered, the other has been handed back.
        offsets(send(producer, [b"other"], partition=1))
        clock.jump(0.052)
        assert offsets(deliveries[:1]) == [1]
        deliveries += send(producer, [b"3"])
        offsets(send(producer, [b"other"], partition=1))
        assert offsets(deliveries, clock) == [1, 2, 3]
        assert log(cluster) == [b"first", b"1", b"2", b"3"]


@BOTH
def test_the_watermark_rises_by_more_than_one(idempotent: bool) -> None:
    """3.4: a batch that fails three times while later ones wait at lower levels.

    1. Batch A (0-4) and the batches after it fail: level 1.
    2. A fails twice more: levels 2 and 3. Messages sent in between are at level 0, and wait.
    """
    held = Held(then=Refuse(MOVED))
    with running(enable_idempotence=idempotent, retries=1, **FIVES) as (cluster, producer):
        offsets(send(producer, numbers(5)))
        again = [Held(then=Refuse(MOVED)) for _ in range(3)]
        cluster.next("produce", held, *again)
        deliveries = send(producer, numbers(10, 5))
        start = 15
        for each in (held, *again):
            each.wait_until_held()
            deliveries += send(producer, numbers(10, start))
            start += 10
            each.release()
        assert offsets(deliveries) == list(range(5, start))
        assert log(cluster) == numbers(start)


@BOTH
def test_two_levels_of_chasers(idempotent: bool) -> None:
    """3.4: the second batch of a pipeline fails after the first was retried."""
    with running(2, enable_idempotence=idempotent, retries=9, **FIVES) as (cluster, producer):
        offsets(send(producer, numbers(5)))
        fails = RefuseIf(TEMPORARY, lambda values: b"10" in values)
        cluster.next("produce", Refuse(MOVED), fails, fails, fails, Refuse(MOVED), Drop())
        deliveries = send(producer, numbers(60, 5))
        producer.flush(SOON)
        assert offsets(deliveries) == list(range(5, 65))
        assert log(cluster) == numbers(65)


def test_the_leader_is_gone_while_buffers_are_released() -> None:
    """3.4: looking for the leader fails when the levels' buffers are to be flushed."""
    with running(2, retries=1, **FIVES) as (cluster, producer):
        offsets(send(producer, numbers(5)))
        held, deliveries = hold(cluster, producer, numbers(20, 5), then=Drop())
        asked = len(cluster.received("metadata"))
        cluster.stop(0)
        held.release()
        # The lookups of the leader have been answered: there is none.
        came(cluster, "metadata", asked + 2)
        deliveries += send(producer, numbers(20, 25))
        assert not any(delivery.done() for delivery in deliveries)
        cluster.start(0)
        assert offsets(deliveries) == list(range(5, 45))
        assert log(cluster) == numbers(45)


def test_a_late_error_of_an_old_broker_does_not_harm_its_successor() -> None:
    """3.4: the leader moves away and back while the first broker still owes an answer."""
    with running(2, topics={"t": 2, "u": 1}, retries=1, **FAST) as (cluster, producer):
        for topic in ("t", "u"):
            warm_up(producer, topic=topic)
        late, (owed,) = hold(cluster, producer, [b"owed"], topic="u", then=Drop(), broker=0)
        cluster.move_leader("t", 0, 1)
        moved = send(producer, numbers(5))
        late.release()
        assert offsets(moved) == list(range(1, 6))
        assert offsets([owed]) == [1]
        cluster.move_leader("t", 0, 0)
        assert offsets(send(producer, numbers(5, 5))) == list(range(6, 11))
        assert log(cluster) == [b"first", *numbers(10)]


FAULTS: list[Callable[[], Action]] = [
    lambda: Refuse(TEMPORARY),
    lambda: Refuse(MOVED),
    lambda: Refuse(ErrorCode.REQUEST_TIMED_OUT),
    lambda: Refuse(ErrorCode.REQUEST_TIMED_OUT, appended=True),
    Drop,
    lambda: Drop(appended=True),
    lambda: Mangle(garbage),
    lambda: Omit("t", 0),
    lambda: Omit("t", 1, appended=True),
]


@BOTH
@pytest.mark.parametrize("seed", range(6))
def test_any_faults(seed: int, idempotent: bool) -> None:
    """3.4: order per partition, nothing lost, nothing twice with idempotence, one outcome each."""
    chosen = random.Random(seed)
    told: dict[int, list[bytes | None]] = {0: [], 1: []}
    errors: list[BaseException] = []
    with running(
        2, topics={"t": 2}, enable_idempotence=idempotent, batch_max_messages=3, linger_ms=1, **FAST
    ) as (cluster, producer):

        def report(error: BaseException | None, delivery: Delivery) -> None:
            if error is not None:
                errors.append(error)
            told[delivery.partition or 0].append(delivery.value)

        for value in numbers(300):
            if chosen.random() < 0.2:
                fault = chosen.choice(FAULTS)()
                # Chosen here, because the threads that meet the faults run in any order.
                moved, leader = chosen.randrange(2), chosen.randrange(2)
                move = functools.partial(cluster.move_leader, "t", moved, leader)
                cluster.next("produce", Before(move, fault) if chosen.random() < 0.3 else fault)
            for partition in range(2):
                producer.send("t", value, partition=partition, on_delivery=report)
        producer.flush(SOON)
        assert not errors
        for partition in range(2):
            there = log(cluster, "t", partition)
            if idempotent:
                # With several in flight the answer to a later one may be the first successful one.
                assert sorted(told[partition], key=_number) == numbers(300)
                assert there == numbers(300)
            else:
                assert told[partition] == numbers(300)
                # Duplicates are allowed; a gap, or a message before an older one, is not.
                assert list(dict.fromkeys(there)) == numbers(300)
        assert producer._budget.used == 0


def _number(value: bytes | None) -> int:
    return int(value or b"-1")


# Bugs that were found in Sarama (section 4 of the notes)


@BOTH
def test_a_connection_that_breaks_keeps_the_order_of_what_is_behind_it(idempotent: bool) -> None:
    """#3639, #3644, #3693: a partition stays reserved until the failed batch's final outcome."""
    held = Held(then=Drop())
    with running(2, enable_idempotence=idempotent, retries=1, **FIVES) as (cluster, producer):
        offsets(send(producer, numbers(5)))
        # Lost at the old leader, rejected by the new one, then lost there.
        cluster.next("produce", held, broker=0)
        cluster.next("produce", Refuse(MOVED), Drop(), Refuse(TEMPORARY), broker=1)
        deliveries = send(producer, numbers(25, 5))
        held.wait_until_held()
        cluster.move_leader("t", 0, 1)
        held.release()
        deliveries += send(producer, numbers(25, 30))
        assert offsets(deliveries) == list(range(5, 55))
        assert log(cluster) == numbers(55)


@BOTH
def test_a_message_is_not_stuck_behind_what_nobody_wakes(idempotent: bool) -> None:
    """#3689: one message now and then; the broker closes idle connections; no wake-up is lost."""
    with running(enable_idempotence=idempotent, retries=1, **FAST) as (cluster, producer):
        for number in range(30):
            assert offsets(send(producer, [b"%d" % number])) == [number]
            with cluster._changed:
                connections = list(cluster._connections)
            for connection in connections:
                connection.hang_up()
        assert log(cluster) == numbers(30)


def test_numbers_are_not_burned_while_the_broker_is_down() -> None:
    """#1430, #3354: sequence numbers are assigned once, when a batch is sealed for a connection."""
    with running(retries=1, **FIVES) as (cluster, producer):
        offsets(send(producer, numbers(5)))
        cluster.stop(0)
        deliveries = send(producer, numbers(20, 5))
        cluster.start(0)
        assert offsets(deliveries) == list(range(5, 25))
        assert {batch.producer_epoch for batch in cluster.batches("t")} == {0}
        assert log(cluster) == numbers(25)


def test_a_partition_without_leader_loses_nothing_however_long_it_takes() -> None:
    """#1145, #1126, #2760, #3135: an election longer than three attempts; no breaker opens."""
    # let_pass() may advance the time while metadata is on its way.
    with frozen(2, retries=1, delivery_timeout_ms=86_400_000) as (cluster, clock, producer):
        warm_up(producer)
        cluster.stop(0)
        deliveries = send(producer, numbers(10))
        for _ in range(30):
            backs_off(clock)
            clock.jump_to_next()
            deliveries += send(producer, [b"%d" % len(deliveries)])
        assert not any(delivery.done() for delivery in deliveries)
        cluster.move_leader("t", 0, 1)
        assert outcomes(deliveries, clock) == [None] * 40
        assert log(cluster) == [b"first", *numbers(40)]


def test_new_partitions_are_used() -> None:
    """#1642: the number of partitions is read again."""
    settings = {"metadata_max_age_ms": 60_000, "partitioner": "round_robin"}
    with frozen(**settings) as (cluster, clock, producer):
        warm_up(producer)
        with cluster._changed:
            kind = type(cluster._state.topics["t"][0])
            cluster._state.topics["t"].append(kind(0))
        asked = len(cluster.received("metadata"))
        clock.jump(61)
        came(cluster, "metadata", asked + 1)
        while producer.partitions_for("t") != {0, 1}:
            came(cluster, "metadata", asked + 1)
        assert None not in offsets([producer.send("t", b"value") for _ in range(4)])
        assert len(log(cluster, "t", 1)) == 2


def test_a_burst_of_partitions_that_fail_is_no_burst_of_metadata() -> None:
    """#3224, #3261: a hundred partitions on a broker that dies; requests for metadata coalesce."""
    with frozen(2, topics={"t": 200}) as (cluster, clock, producer):
        warm_up(producer)
        warm_up(producer, partition=1)
        asked = len(cluster.received("metadata"))
        cluster.next("produce", *[Refuse(MOVED)] * 3, broker=1)
        deliveries = [send(producer, [b"value"], partition=i)[0] for i in range(3, 200, 2)]
        assert outcomes(deliveries, clock) == [None] * 99
        assert len(cluster.received("metadata")) - asked <= 12
