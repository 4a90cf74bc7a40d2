"""Finding the leader, and topics that appear, vanish or lose their ACLs.

Brokers may be out of date, gone, or not name the leader.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy
import pytest
from kafka.errors import TopicAuthorizationFailedError

from pykaproducer import PartitionerError, Producer
from pykaproducer._errors.codes import ErrorCode
from pykaproducer._kernel import MURMUR2, partition_for
from pykaproducer._pipeline.broker import BrokerWorker
from pykaproducer.testing import FakeClock, ScriptedCluster
from pykaproducer.testing._scripted_apis import Partition
from pykaproducer.testing.scripted import Action, Drop, Exchange, Refuse
from tests._support.threads import Call

from .helper import (
    FAST,
    SOON,
    Amend,
    Held,
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
    transactional,
    under_way,
    until,
    waits_for,
    warm_up,
)

MAX_IDLE = 300.0
FIRST_SERVER = "broker-0.scripted:9092"


def always(cluster: ScriptedCluster, choose: Callable[[str, int], Action | None]) -> None:
    """Return *choose(api, broker)* for every request from now on; None means no fault."""
    script = cluster._action_for

    def action_for(api: str, broker: int) -> Action:
        return choose(api, broker) or script(api, broker)

    cluster._action_for = action_for  # type: ignore[method-assign]


def asked(cluster: ScriptedCluster, since: int = 0) -> list[tuple[list[str], bool]]:
    """Return the topics of each Metadata request, and whether they might be created."""
    return [
        (
            sorted(topic.name for topic in received.request.topics),
            received.request.allow_auto_topic_creation,
        )
        for received in cluster.received("metadata")[since:]
    ]


def look_up(producer: Producer, clock: FakeClock, seconds: float = 1.5) -> None:
    """Let *seconds* pass, and have the view refreshed."""
    metadata = pipeline_of(producer).metadata
    until(lambda: not metadata._refresh.under_way)
    clock.jump(seconds)
    metadata.want()
    until(lambda: metadata.refreshed == clock.monotonic())


def use_until(producer: Producer, clock: FakeClock, found: Callable[[], bool]) -> None:
    """Send to topic "t" until *found()* is true."""
    for _ in range(500):
        if found():
            return
        clock.jump(50)
        sent = send(producer, [b"in use"])
        let_pass(clock, sent)
        offsets(sent)
    raise AssertionError("the condition did not become true")


# A leader that cannot serve the partition ---------------------------------------------------------


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.NOT_ENOUGH_REPLICAS,
    ],
)
def test_a_leader_that_fails_for_good_is_left_for_its_successor(code: int) -> None:
    """A broker with a failed disk returns this error until it is restarted."""
    with frozen(2) as (cluster, clock, producer):
        warm_up(producer)
        always(
            cluster, lambda api, broker: Refuse(code) if (api, broker) == ("produce", 0) else None
        )
        cluster.move_leader("t", 0, 1)
        deliveries = send(producer, numbers(3))
        assert offsets(deliveries, clock) == [1, 2, 3]


def test_a_silent_broker_is_left_for_the_leader_in_its_place() -> None:
    """A leader whose disk fails while a batch waits for its replicas does not answer."""
    with frozen(2) as (cluster, clock, producer):
        warm_up(producer)
        _, deliveries = hold(cluster, producer, numbers(3), broker=0)
        cluster.move_leader("t", 0, 1)
        waits_for(clock, 3.0)
        before = len(cluster.received("metadata"))
        clock.jump(3.0)
        came(cluster, "metadata", before + 1)
        waits_for(clock, 2.0)
        until(lambda: pipeline_of(producer).metadata.view.leader("t", 0) == 1)
        clock.jump(2.0)
        assert offsets(deliveries, clock) == [1, 2, 3]
        assert clock.monotonic() < 1_006


def test_partitions_that_wait_behind_a_silent_broker_find_their_new_leader() -> None:
    """Their topics are not those of the request in flight, whose partition stays."""
    topics = {"t": 1, "other": 1}
    settings = {"max_in_flight_requests_per_connection": 1}
    with frozen(2, topics=topics, **settings) as (cluster, clock, producer):
        for topic in topics:
            cluster.move_leader(topic, 0, 0)
            warm_up(producer, topic=topic)
        held, blocked = hold(cluster, producer, [b"in flight"], broker=0)
        waiting = send(producer, [b"behind"], topic="other")
        pipeline = pipeline_of(producer)
        (old,) = pipeline.brokers.all()
        until(lambda: bool(pipeline.dispatcher.held))
        clock.jump(0.1)
        until(lambda: bool(old.batcher.waiting))
        cluster.move_leader("other", 0, 1)
        before = len(cluster.received("metadata"))
        waits_for(clock, 2.9)
        clock.jump(2.9)
        came(cluster, "metadata", before + 1)
        assert offsets(waiting, clock) == [1]
        assert clock.monotonic() < 1_006
        held.release()
        assert offsets(blocked) == [1]
        assert len({r.connection for r in cluster.received("produce") if r.broker == 0}) == 1


def test_a_silent_broker_that_still_leads_is_waited_for() -> None:
    with frozen(2) as (cluster, clock, producer):
        warm_up(producer)
        held, deliveries = hold(cluster, producer, numbers(3), broker=0)
        for _ in range(20):
            clock.jump(1)
        held.release()
        assert offsets(deliveries) == [1, 2, 3]
        assert len({received.connection for received in cluster.received("produce")}) == 1


# Brokers with an old view -------------------------------------------------------------------------


class Stale:
    """Broker 0 claims to lead partition 0 of "t", whatever has happened since."""

    def __init__(self, cluster: ScriptedCluster) -> None:
        self._epoch = cluster._state.topics["t"][0].leader_epoch

    def __call__(self, exchange: Exchange) -> None:
        Amend(self._as_it_was)(exchange)

    def _as_it_was(self, answer: Any) -> None:
        for topic in answer.topics:
            for part in topic.partitions:
                part.leader_id, part.leader_epoch = 0, self._epoch


@pytest.mark.parametrize("how", ["with hints", "without hints", "goes on as the leader"])
def test_one_broker_with_an_old_view_starves_nobody(how: str) -> None:
    versions = {"produce": (3, 9)} if how == "without hints" else {}
    with frozen(3, versions=versions, bootstrap_servers=FIRST_SERVER) as (cluster, clock, producer):
        warm_up(producer)
        stale = Stale(cluster)
        cluster.move_leader("t", 0, 1)

        def choose(api: str, broker: int) -> Action | None:
            if broker == 0 and api == "metadata":
                return stale
            if broker == 0 and api == "produce" and how == "goes on as the leader":
                return Refuse(ErrorCode.NOT_ENOUGH_REPLICAS)
            return None

        always(cluster, choose)
        before = len(cluster.received("metadata"))
        pipeline = pipeline_of(producer)
        deliveries = send(producer, numbers(5))
        assert offsets(deliveries, clock) == [1, 2, 3, 4, 5]

        def another_was_asked() -> bool:
            clock.jump(0.05)
            return any(each.broker != 0 for each in cluster.received("metadata")[before:])

        until(another_was_asked)
        for _ in range(20):  # whatever the old broker answers
            clock.jump(1.0)
            pipeline.metadata.want()
        # The clock may have passed the timeout of a connection that was being set up.
        later = send(producer, numbers(5, 5))
        assert offsets(later, clock) == [6, 7, 8, 9, 10]


@pytest.mark.parametrize("what", ["no topic", "no topic in it", "no leader", "no id", "garbage"])
def test_a_server_without_what_messages_wait_for_is_left(what: str) -> None:
    """It is cut off from the others, or broken."""

    def lacking(answer: Any) -> None:
        if what == "no topic in it":
            answer.topics = []
        for topic in answer.topics:
            if what == "no leader":
                topic.partitions[0].leader_id = -1
            elif what == "garbage":
                topic.partitions[0].partition_index = 11
            else:
                topic.error_code, topic.partitions = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, []

    topics = {"t": 1, "other": 1}
    with running(2, topics, bootstrap_servers=FIRST_SERVER, **FAST) as (cluster, producer):
        producer.partitions_for("other")
        fault = Refuse(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        always(
            cluster,
            lambda api, broker: (
                None
                if broker
                else {"init_producer_id": fault}.get(api)
                if what == "no id"
                else {"metadata": Amend(lacking)}.get(api)
            ),
        )
        assert offsets(send(producer, [b"value"])) == [0]


def test_a_server_that_asks_to_begin_anew_is_left_for_the_configured_ones() -> None:
    """KIP-1102: the brokers of the view belong to another cluster by now."""
    with frozen(
        3, topics={"t": 1, "u": 1}, versions={"metadata": (0, 13)}, bootstrap_servers=FIRST_SERVER
    ) as (cluster, clock, producer):
        warm_up(producer)

        def rebootstrap(answer: Any) -> None:
            answer.error_code = ErrorCode.REBOOTSTRAP_REQUIRED
            answer.brokers, answer.topics = [], []

        always(cluster, lambda api, broker: None)
        pipeline = pipeline_of(producer)
        pipeline.metadata._server = ("broker-1.scripted", 9093)  # as if a known broker were asked
        before = len(cluster.received("metadata"))
        cluster.next("metadata", Amend(rebootstrap))
        delivery = send(producer, [b"value"], topic="u")
        assert offsets(delivery, clock) == [0]
        first, second = cluster.received("metadata")[before : before + 2]
        assert second.broker == 0
        assert second.connection != first.connection


# Many partitions ----------------------------------------------------------------------------------


def test_the_hints_of_an_answer_are_one_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """Handing over many partitions costs each broker's worker one check, not one per partition."""
    looks: list[int] = []
    look = BrokerWorker._check_leaders

    def counted(worker: BrokerWorker) -> None:
        looks.append(len(worker._buffers._to_check))
        look(worker)

    partitions = 200
    with running(2, topics={"t": partitions}, linger_ms=50, **FAST) as (cluster, producer):
        with cluster._changed:
            for partition in cluster._state.topics["t"]:
                partition.leader = 0
        for value in (b"1", b"2"):
            offsets([producer.send("t", value, partition=i) for i in range(partitions)])
        with cluster._changed:
            for partition in cluster._state.topics["t"]:
                partition.leader = 1
                partition.leader_epoch += 1
        monkeypatch.setattr(BrokerWorker, "_check_leaders", counted)
        offsets([producer.send("t", b"3", partition=i) for i in range(partitions)])
        assert sum(looks) < 10 * partitions


def test_a_partition_without_leader_is_not_asked_for_when_nobody_waits() -> None:
    with frozen(2, topics={"t": 2}, delivery_timeout_ms=5_000) as (cluster, clock, producer):
        cluster.stop(1)
        warm_up(producer)
        (delivery,) = send(producer, [b"value"], partition=1)
        let_pass(clock, [delivery])
        assert "no leader" in str(error_of(delivery))
        for _ in range(5):
            clock.jump(1.3)
            warm_up(producer)
        before = len(cluster.received("metadata"))
        for _ in range(20):
            clock.jump(1.3)
            warm_up(producer)
        assert len(cluster.received("metadata")) - before <= 1
        # Another message triggers a lookup.
        cluster.move_leader("t", 1, 0)
        (delivery,) = send(producer, [b"value"], partition=1)
        assert outcomes([delivery], clock) == [None]


# Unused topics ------------------------------------------------------------------------------------


def forgotten(producer: Producer, topic: str) -> bool:
    """Return whether no state of *topic* is left."""
    pipeline = pipeline_of(producer)
    stages = [stage for stage in list(pipeline.stages) if getattr(stage, "topic", None) == topic]
    metrics = pipeline.metrics
    counted = topic in metrics.topics or any(name == topic for name, _ in metrics.partitions)
    return not (stages or counted or topic in pipeline.metadata.view.topics)


def test_a_topic_without_messages_is_forgotten_and_found_again() -> None:
    settings = {"delivery_timeout_ms": 10**7}
    with frozen(2, topics={"once": 3, "t": 1}, **settings) as (cluster, clock, producer):
        warm_up(producer, topic="once", partitions=3)
        warm_up(producer)
        use_until(producer, clock, lambda: forgotten(producer, "once"))
        # Its counters stay in the totals.
        stats = producer.stats()
        messages = stats["messages"]["delivered"]
        assert stats["requests"]["batches"] == messages
        assert stats["bytes"]["delivered"] == 4 * len(b"first") + (messages - 4) * len(b"in use")
        until(lambda: not any("topic-once" in each.name for each in threading.enumerate()))
        assert not forgotten(producer, "t")
        before = len(cluster.received("metadata"))
        look_up(producer, clock)
        assert all("once" not in topics for topics, _ in asked(cluster, before))
        # Numbering restarts under another id: no new message is mistaken for an old duplicate.
        for value in (b"second", b"third"):
            offsets(send(producer, [value], topic="once", partition=1))
        assert log(cluster, "once", 1) == [b"first", b"second", b"third"]


@pytest.mark.parametrize("case", ["TV1", "TV2", "TV2, in one transaction"])
def test_a_transactional_producer_forgets_a_topic_of_an_earlier_epoch(case: str) -> None:
    """In the same one its batches would be numbered from 0 again, and seem duplicates."""
    features = {"transaction.version": 0 if case == "TV1" else 2}
    settings = {"transaction_timeout_ms": 900_000, "delivery_timeout_ms": 10**7}
    clock, is_open = FakeClock(), "in one" in case
    with (
        ScriptedCluster(1, {"once": 1, "t": 1}, features=features) as cluster,
        transactional(cluster, clock, begun=is_open, **settings) as producer,
    ):

        def use(topic: str) -> None:
            with contextlib.nullcontext() if is_open else producer.transaction():
                offsets(send(producer, [b"value"], topic=topic), clock)

        use("once")
        if case == "TV2":
            until(lambda: clock.jump(50) or use("t") or forgotten(producer, "once"))
        else:
            for _ in range(14):
                clock.jump(50)
                use("t")
            assert not forgotten(producer, "once")
        use("once")
        assert [batch for batch in log(cluster, "once") if batch == b"value"] == [b"value"] * 2


def test_a_message_at_the_moment_in_which_its_topic_is_forgotten() -> None:
    """In either order of the two events it is delivered, in order."""

    def until_sent() -> None:
        settled = threading.Event()
        sent[-1].add_done_callback(lambda _: settled.set())
        for _ in range(60):
            if settled.wait(0.5):
                return
            # The jump has ended an attempt to connect, and the next one waits for its back-off.
            clock.jump(1)
        raise AssertionError("no outcome")

    with frozen(delivery_timeout_ms=10**7) as (cluster, clock, producer):
        sent = send(producer, [b"0"])
        for number in range(1, 60):
            until_sent()
            clock.jump(MAX_IDLE + number % 3)
            sent += send(producer, [b"%d" % number])
        until_sent()
        assert outcomes(sent) == [None] * 60
        assert log(cluster) == numbers(60)


def test_a_topic_is_forgotten_between_the_look_for_its_slot_and_the_append() -> None:

    def forget(value: bytes) -> bytes:
        # send() has already looked up the slot; the slot is released before the message is
        # appended.
        if value == b"late":
            assert producer._let_go("t")
        return value

    with frozen(value_serializer=forget) as (cluster, _, producer):
        assert offsets([producer.send("t", b"early")]) == [0]
        assert offsets([producer.send("t", b"late")]) == [1]
        assert offsets([producer.send("t", b"last")]) == [2]
        producer.flush(SOON)
        assert log(cluster) == [b"early", b"late", b"last"]


def test_a_topic_is_left_while_an_expired_batch_is_still_needed() -> None:
    """A younger batch is in the log under the same numbers: the broker must know the older one.

    The partition is released while that batch, already retried, waits for its broker.
    """
    settings = {"delivery_timeout_ms": 5_000, "reconnect_backoff_max_ms": 1_000}
    with frozen(2, topics={"u": 1, "t": 2}, **settings) as (cluster, clock, producer):
        cluster.move_leader("u", 0, 1)
        cluster.move_leader("t", 0, 0)
        warm_up(producer)
        warm_up(producer, topic="u")
        held, (older,) = hold(
            cluster,
            producer,
            [b"older"],
            topic="u",
            then=Refuse(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, appended=True),
            broker=1,
        )
        (younger,) = send(producer, [b"younger"], topic="u")
        under_way(producer, 2)
        held.release()
        offsets([younger])
        is_cut_off = True
        always(cluster, lambda api, _: Drop() if is_cut_off and api == "metadata" else None)
        cluster.stop(1)
        let_pass(clock, [older])
        assert error_of(older)
        for _ in range(12):
            clock.jump(50)
            offsets(send(producer, [b"in use"]))
        is_cut_off = False
        cluster.start(1)
        sent = [producer.send("u", b"last", delivery_timeout_ms=10**7)]
        let_pass(clock, sent)
        offsets(sent)
        assert log(cluster, "u") == [b"first", b"older", b"younger", b"last"]
        assert pipeline_of(producer).broken is None


def test_an_answer_after_a_topic_with_a_stray_message_was_forgotten() -> None:
    """The topic's stage still waits for a view that might contain its partition."""
    is_cut_off = False
    # The time jumps from one failed lookup to the next, also while a broker is answering: the
    # timeouts must be far longer than these jumps.
    long = {"delivery_timeout_ms": 600_000, "request_timeout_ms": 300_000}
    with frozen(topics={"u": 1, "t": 1}, **long) as (cluster, clock, producer):
        warm_up(producer)
        warm_up(producer, topic="u")
        always(cluster, lambda api, _: Drop() if is_cut_off and api == "metadata" else None)
        is_cut_off = True
        stray = producer.send("u", b"value", partition=7, delivery_timeout_ms=60_000)
        let_pass(clock, [stray])
        assert error_of(stray)
        use_until(producer, clock, lambda: forgotten(producer, "u"))
        is_cut_off = False
        metadata = pipeline_of(producer).metadata
        before = metadata.refreshed
        use_until(producer, clock, lambda: metadata.refreshed != before)
        sent = send(producer, [b"last"], topic="u")
        assert offsets(sent, clock) == [1]
        assert pipeline_of(producer).broken is None


def test_nothing_grows_with_the_number_of_topic_names() -> None:
    topics = {f"topic-{number}": 1 for number in range(40)}
    settings = {"delivery_timeout_ms": 1_000_000}
    with frozen(topics={**topics, "t": 1}, **settings) as (_cluster, clock, producer):
        offsets([producer.send(topic, b"value") for topic in topics])
        missing = [producer.send(f"gone-{n}", b"", delivery_timeout_ms=5_000) for n in range(40)]
        let_pass(clock, missing)
        pipeline = pipeline_of(producer)
        refresh = pipeline.metadata._refresh

        def left() -> set[str]:
            stages = {getattr(stage, "topic", "t") for stage in list(pipeline.stages)}
            tables = (pipeline.metadata.view.topics, pipeline.dispatcher._used)
            return stages.union(refresh.known, refresh.missing, *tables)

        use_until(producer, clock, lambda: left() == {"t"})


def test_topics_that_were_only_looked_up_are_forgotten() -> None:
    """Also by a producer that never sends."""
    topics = {f"topic-{number}": 1 for number in range(5)}
    with frozen(topics=topics) as (_, clock, producer):
        for topic in topics:
            assert producer.partitions_for(topic) == {0}
        pipeline = pipeline_of(producer)
        assert set(pipeline.metadata.view.topics) == set(topics)
        deadline = time.monotonic() + SOON
        while pipeline.metadata.view.topics or pipeline.metadata._refresh.known:
            assert time.monotonic() < deadline
            clock.jump(60)


def test_a_topic_that_is_forgotten_while_a_thread_waits_for_it_is_found_later() -> None:
    with frozen(max_block_ms=300_000) as (cluster, clock, producer):
        warm_up(producer)
        metadata = pipeline_of(producer).metadata
        asking = Call(lambda: producer.partitions_for("u"))
        until(lambda: "u" in metadata.view.topics and "u" in metadata._refresh._waited_for)
        is_forgotten = threading.Event()
        metadata.forget("u", lambda topic: is_forgotten.set())
        assert is_forgotten.wait(SOON)
        cluster.add_topic("u", 3)
        waits = time.monotonic() + SOON
        while asking.is_alive() and time.monotonic() < waits:
            clock.jump(0.5)
            asking.join(0.05)
        assert asking.outcome() == {0, 1, 2}


def test_a_topic_that_was_deleted_is_not_created_again() -> None:
    with frozen(topics={"stays": 1, "goes": 1}, auto_create=True, metadata_max_age_ms=1_000) as (
        cluster,
        clock,
        producer,
    ):
        for topic in ("stays", "goes"):
            warm_up(producer, topic=topic)
        with cluster._changed:
            del cluster._state.topics["goes"]
        before = len(cluster.received("metadata"))
        for _ in range(3):
            look_up(producer, clock)
            offsets(send(producer, [b"value"], topic="stays"))
        assert "goes" not in cluster._state.topics
        assert {may_create for _, may_create in asked(cluster, before)} == {False}
        # A message for it triggers a lookup.
        late = send(producer, [b"value"], topic="goes")
        assert offsets(late, clock) == [0]


def test_a_deleted_topic_is_named_as_the_reason() -> None:
    with frozen(delivery_timeout_ms=60_000) as (cluster, clock, producer):
        warm_up(producer)
        with cluster._changed:
            del cluster._state.topics["t"]
        (delivery,) = send(producer, [b"value"])
        let_pass(clock, [delivery])
        assert "no such topic any more: UNKNOWN_TOPIC_OR_PARTITION" in str(error_of(delivery))


def test_a_mistyped_topic_is_not_asked_for_once_its_message_has_failed() -> None:
    with frozen(delivery_timeout_ms=5_000) as (cluster, clock, producer):
        warm_up(producer)
        (delivery,) = send(producer, [b"value"], topic="mistyped")
        let_pass(clock, [delivery])
        for _ in range(2):
            clock.jump(1.3)
            warm_up(producer)
        before = len(cluster.received("metadata"))
        for _ in range(20):
            clock.jump(1.3)
            warm_up(producer)
        assert len(asked(cluster, before)) <= 1


# Revoked ACLs -------------------------------------------------------------------------------------


def no_right(answer: Any) -> None:
    for topic in answer.topics:
        if topic.name == "t":
            topic.error_code, topic.partitions = ErrorCode.TOPIC_AUTHORIZATION_FAILED, []


@pytest.mark.parametrize("what_failed", ["the view", "a message"])
def test_a_right_that_is_taken_away_and_granted_again(what_failed: str) -> None:
    allowed = False

    def choose(api: str, broker: int) -> Action | None:
        if allowed:
            return None
        if api == "metadata":
            return Amend(no_right)
        refusal = Refuse(ErrorCode.TOPIC_AUTHORIZATION_FAILED, only=[("t", 0)])
        return refusal if api == "produce" else None

    with frozen(topics={"t": 1, "other": 1}) as (cluster, clock, producer):
        warm_up(producer)
        warm_up(producer, topic="other")
        always(cluster, choose)
        if what_failed == "the view":
            look_up(producer, clock)
        for _ in range(3):
            delivery = producer.send("t", b"value")
            let_pass(clock, [delivery])
            assert isinstance(error_of(delivery), TopicAuthorizationFailedError)
        warm_up(producer, topic="other")
        allowed = True
        clock.jump(2)
        granted = send(producer, [b"granted"])
        assert offsets(granted, clock) == [1]


# Brokers that are gone ----------------------------------------------------------------------------


def test_the_threads_of_a_broker_that_was_replaced_end_at_once() -> None:
    with frozen(2, bootstrap_servers="broker-1.scripted:9093") as (cluster, clock, producer):
        warm_up(producer)
        cluster.move_leader("t", 0, 1)
        assert offsets(send(producer, [b"value"]), clock) == [1]
        old = next(each for each in pipeline_of(producer).brokers.all() if not each.broker_id)
        look_up(producer, clock)
        assert old.is_alive()  # its broker may be needed again
        cluster.stop(0)
        with cluster._changed:
            del cluster._state.brokers[0]
        look_up(producer, clock)
        until(lambda: not old.is_alive() and not old.bridge.is_alive())
        assert [each["id"] for each in producer.stats()["brokers"]] == [1]
        assert offsets(send(producer, [b"value"]), clock) == [2]


# Partitions that are not in the view yet ----------------------------------------------------------


def test_a_partition_that_was_added_a_moment_ago_can_be_named() -> None:
    with running(**FAST) as (cluster, producer):
        warm_up(producer)
        with cluster._changed:
            cluster._state.topics["t"].append(Partition(0))
        before = len(cluster.received("metadata"))
        assert offsets(send(producer, numbers(20), partition=1)) == list(range(20))
        assert log(cluster, "t", 1) == numbers(20)
        # Messages that come while a request is under way have it repeated once.
        assert 1 <= len(cluster.received("metadata")) - before <= 2


def test_an_answer_that_was_asked_for_before_refuses_no_partition() -> None:
    def as_it_was(answer: Any) -> None:
        for topic in answer.topics:
            del topic.partitions[1:]

    held = Held(then=Amend(as_it_was))
    with running(**FAST) as (cluster, producer):
        warm_up(producer)
        cluster.next("metadata", held)
        pipeline_of(producer).metadata.want()
        held.wait_until_held()
        with cluster._changed:
            cluster._state.topics["t"].append(Partition(0))
        deliveries = send(producer, numbers(3), partition=1)
        topic_worker = pipeline_of(producer).dispatcher._topics["t"]
        until(lambda: len(topic_worker._unknown) > 0)
        held.release()
        assert offsets(deliveries) == [0, 1, 2]


def test_a_partition_that_is_not_there_is_refused_when_every_server_says_so() -> None:
    with frozen(3, bootstrap_servers=FIRST_SERVER) as (cluster, clock, producer):
        warm_up(producer)
        before, began = len(cluster.received("metadata")), clock.monotonic()
        delivery = producer.send("t", b"value", partition=7)
        assert offsets(send(producer, [b"not held up"])) == [1]
        let_pass(clock, [delivery])
        error = error_of(delivery)
        assert isinstance(error, PartitionerError)
        assert "no partition 7; the topic has partitions 0 to 0" in str(error)
        assert clock.monotonic() - began >= 2.0
        assert {each.broker for each in cluster.received("metadata")[before:]} == {0, 1, 2}


@pytest.mark.parametrize("known", [True, False])
def test_a_partition_that_some_servers_do_not_know_yet(known: bool) -> None:
    """They have not heard of it since it was added, and may never do."""

    def lagging(answer: Any) -> None:
        for topic in answer.topics:
            del topic.partitions[1:]

    with running(3, {"t": 2}, bootstrap_servers=FIRST_SERVER, **FAST) as (cluster, producer):
        if known:
            warm_up(producer, partitions=2)
        always(
            cluster,
            lambda api, broker: Amend(lagging) if api == "metadata" and broker < 2 else None,
        )
        if known:
            pipeline = pipeline_of(producer)
            refreshed = pipeline.metadata.refreshed
            pipeline.metadata.want()
            until(lambda: pipeline.metadata.refreshed != refreshed)
            assert producer.partitions_for("t") == {0, 1}
        assert offsets(send(producer, numbers(3), partition=1))[0] == int(known)


@pytest.mark.parametrize("hole", [1, 3], ids=["in the middle", "at the end"])
def test_a_key_keeps_its_partition_while_an_answer_has_a_hole(hole: int) -> None:
    def lacking(answer: Any) -> None:
        for topic in answer.topics:
            del topic.partitions[hole : hole + 1]

    keys = [b"%d" % number for number in range(40)]
    with running(1, {"t": 4, "other": 1}, **FAST) as (cluster, producer):
        producer.partitions_for("other" if hole == 1 else "t")
        cluster.next("metadata", *[Amend(lacking)] * 3)
        pipeline_of(producer).metadata.want()
        deliveries = [producer.send("t", b"value", key=key) for key in keys]
        deliveries += [producer.send("t", b"value") for _ in keys]
        assert outcomes(deliveries) == [None] * 80
        found = [delivery.partition for delivery in deliveries[:40]]
        assert found == [partition_for(MURMUR2, key, 4) for key in keys]


def test_a_server_that_does_not_answer_holds_others_up_for_a_fifth_of_the_time() -> None:
    """A message waits for a partition that only the silent server might know."""
    held = Held()
    with frozen(2, bootstrap_servers=FIRST_SERVER) as (cluster, clock, producer):
        warm_up(producer)
        cluster.move_leader("t", 0, 0)
        cluster.next("api_versions", held, broker=1)
        producer.send("t", b"value", partition=7)
        metadata = pipeline_of(producer).metadata
        until(lambda: clock.jump(0.05) or metadata._turned_at is not None)
        began = clock.monotonic()
        until(lambda: clock.jump(0.05) or metadata._turned_at is None)
        assert metadata._may_turn_at - began > 3 * (clock.monotonic() - began)
        held.release()


def test_a_message_for_a_partition_that_is_not_there_expires_in_time() -> None:
    held = Held()
    with frozen(delivery_timeout_ms=5_000) as (cluster, clock, producer):
        warm_up(producer)
        cluster.next("metadata", held)
        delivery = producer.send("t", b"value", partition=7)
        clock.jump(0.2)
        held.wait_until_held()
        clock.jump(5.01)
        assert "the topic has only partition 0" in str(error_of(delivery))


def test_a_topic_that_is_described_without_partitions_is_as_it_was() -> None:
    def empty(answer: Any) -> None:
        for topic in answer.topics:
            topic.partitions = []

    with frozen(topics={"t": 2}) as (cluster, clock, producer):
        warm_up(producer)
        always(cluster, lambda api, broker: Amend(empty) if api == "metadata" else None)
        look_up(producer, clock)
        assert outcomes([producer.send("t", b"value") for _ in range(10)]) == [None] * 10


def test_a_partitioner_may_return_a_number_of_numpy_s() -> None:
    settings = {"partitioner": lambda key, every, there: numpy.int64(2)}
    with running(topics={"t": 3}, **settings) as (cluster, producer):
        assert offsets([producer.send("t", b"value")]) == [0]
        assert log(cluster, "t", 2) == [b"value"]


# The connection -----------------------------------------------------------------------------------


def test_a_connection_that_was_closed_for_being_idle_is_no_news(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with frozen() as (cluster, clock, producer):
        warm_up(producer)
        pipeline = pipeline_of(producer)
        caplog.clear()
        connections = list(cluster._connections)
        for connection in connections:
            connection.hang_up()
        until(lambda: not pipeline.metadata.ready)
        assert [record for record in caplog.records if record.levelname == "WARNING"] == []
        assert pipeline.last_errors.cluster is None
        late = send(producer, [b"value"])
        assert offsets(late, clock) == [1]
