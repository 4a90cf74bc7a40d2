"""Shared helpers of the pipeline tests: bounded waits, the batches sent, and further faults."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from kafka.record.memory_records import MemoryRecords

from pykaproducer import Delivery, Producer
from pykaproducer._pipeline.metrics import ProducerMetrics
from pykaproducer._pipeline.wiring import Pipeline
from pykaproducer._pipeline.worker import StageContext
from pykaproducer._util.clock import Clock
from pykaproducer.config import Config
from pykaproducer.testing import FakeClock, ScriptedCluster
from pykaproducer.testing.scripted import Action, Exchange, Hold, Received, Refuse, proceed

#: The longest that a test waits for anything (real seconds).
SOON = 30.0

#: For tests on the real clock: retries without noticeable backoff.
FAST: dict[str, Any] = {
    "retry_backoff_ms": 1,
    "retry_backoff_max_ms": 1,
    "reconnect_backoff_ms": 1,
    "reconnect_backoff_max_ms": 1,
}

#: For tests on a clock that stands still: only a full batch or a flush is sent.
LINGERING: dict[str, Any] = {"linger_ms": 3_600_000, "delivery_timeout_ms": 36_000_000}


def batches_of(messages: int) -> dict[str, Any]:
    """Return settings with which a batch is sent when it has so many *messages*, and not before."""
    return {"batch_max_messages": messages, **LINGERING, **FAST}


#: Longer than any backoff with default settings, shorter than any other wait (seconds).
BACKOFF = 1.3


def stage_context(clock: Clock) -> StageContext:
    """Return what a stage needs that a test runs alone."""
    return StageContext("test", clock, ProducerMetrics.of(Config()), lambda worker, error: None)


def pipeline_of(producer: Producer) -> Pipeline:
    assert producer._pipeline is not None
    return producer._pipeline


# Outcomes


def outcome(delivery: Delivery) -> BaseException | None:
    """Return the outcome of *delivery*, bounded by real time whatever clock the producer has."""
    done = threading.Event()
    delivery.add_done_callback(lambda _: done.set())
    assert done.wait(SOON), f"no outcome: {delivery!r}"
    return delivery.exception(0)


def outcomes(
    deliveries: Sequence[Delivery], clock: FakeClock | None = None
) -> list[BaseException | None]:
    """Return the outcomes; with *clock*, let the time pass until there are all of them."""
    if clock is not None:
        let_pass(clock, deliveries)
    return [outcome(delivery) for delivery in deliveries]


def offsets(deliveries: Sequence[Delivery], clock: FakeClock | None = None) -> list[int | None]:
    """As outcomes(), return the offsets in the log; all of *deliveries* must be delivered."""
    found = []
    if clock is not None:
        let_pass(clock, deliveries)
    for delivery in deliveries:
        error = outcome(delivery)
        assert error is None, error
        found.append(delivery.offset)
    return found


def error_of(delivery: Delivery) -> Any:
    """Return the error of *delivery*, which must have failed."""
    error = outcome(delivery)
    assert error is not None, f"{delivery!r} was delivered"
    return error


def numbers(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def send(
    producer: Producer, values: Iterable[bytes], *, topic: str = "t", partition: int = 0
) -> list[Delivery]:
    return [producer.send(topic, value, partition=partition) for value in values]


def warm_up(
    producer: Producer, *, topic: str = "t", partition: int = 0, partitions: int | None = None
) -> None:
    """Deliver a first message, so that connections are open and the broker knows the producer.

    With *partitions*, one to each of that many.
    """
    for number in [partition] if partitions is None else range(partitions):
        offsets(send(producer, [b"first"], topic=topic, partition=number))


class Told:
    """A callback for any number of messages that records the values and errors in order."""

    def __init__(self) -> None:
        self.values: list[bytes | None] = []
        self.errors: list[BaseException] = []

    def __call__(self, error: BaseException | None, delivery: Delivery) -> None:
        self.values.append(delivery.value)
        if error is not None:
            self.errors.append(error)


# The cluster


def log(cluster: ScriptedCluster, topic: str = "t", partition: int = 0) -> list[bytes | None]:
    return [record.value for record in cluster.log(topic, partition)]


def came(
    cluster: ScriptedCluster,
    api: str,
    count: int,
    only: Callable[[Received], bool] = lambda _: True,
) -> list[Received]:
    """Wait until *count* requests of *api* have arrived, and return them."""

    def found() -> list[Received]:
        return [received for received in cluster.received(api) if only(received)]

    with cluster._changed:
        assert cluster._changed.wait_for(lambda: len(found()) >= count, SOON), (
            f"{len(found())} {api} requests have arrived, not {count}"
        )
        return found()


@dataclass(frozen=True)
class Sent:
    """A batch as it arrived at a broker, in the log or not."""

    broker: int
    topic: str
    partition: int
    values: tuple[bytes | None, ...]
    producer: tuple[int, int]
    first_sequence: int


def sent(cluster: ScriptedCluster) -> list[Sent]:
    """Return all batches of all Produce requests, in the order of arrival."""
    return [
        Sent(
            received.broker,
            topic.name,
            part.index,
            tuple(record.value for record in batch),
            (batch.producer_id, batch.producer_epoch),
            batch.base_sequence,
        )
        for received in cluster.received("produce")
        for topic in received.request.topic_data
        for part in topic.partition_data
        for batch in MemoryRecords(bytes(part.records))
    ]


def attempts(cluster: ScriptedCluster) -> int:
    return len(cluster.received("produce"))


#: One partition of topic "t".
ONE_PARTITION = MappingProxyType({"t": 1})


@contextmanager
def running(
    brokers: int = 1,
    topics: Mapping[str, int] = ONE_PARTITION,
    *,
    versions: Mapping[str, tuple[int, int]] | None = None,
    **settings: Any,
) -> Iterator[tuple[ScriptedCluster, Producer]]:
    """Yield a cluster, and a producer with *settings* that is closed at the end of the block."""
    with (
        ScriptedCluster(brokers, topics, versions=versions) as cluster,
        cluster.producer(**settings) as producer,
    ):
        yield cluster, producer


@contextmanager
def frozen(
    brokers: int = 1,
    topics: Mapping[str, int] = ONE_PARTITION,
    *,
    versions: Mapping[str, tuple[int, int]] | None = None,
    auto_create: bool = False,
    **settings: Any,
) -> Iterator[tuple[ScriptedCluster, FakeClock, Producer]]:
    """As running(), on a clock that stands still; the producer is aborted at the end."""
    clock = FakeClock()
    with (
        ScriptedCluster(brokers, topics, versions=versions, auto_create=auto_create) as cluster,
        ended(cluster.producer(clock=clock, **settings)) as producer,
    ):
        yield cluster, clock, producer


@contextmanager
def ended(producer: Producer) -> Iterator[Producer]:
    """Abort *producer* at the end of the block, even if its clock stands still."""
    try:
        yield producer
    finally:
        producer.abort()


@contextmanager
def transactional(
    cluster: ScriptedCluster, clock: Clock, *, begun: bool = True, **settings: Any
) -> Iterator[Producer]:
    """Yield a producer with an open transaction; abort it at the end, whatever the time."""
    producer = cluster.producer(
        clock=clock, **{"transactional_id": "id", "max_block_ms": 600_000, **settings}
    )
    try:
        producer.init_transactions()
        if begun:
            producer.begin_transaction()
        yield producer
    finally:
        producer.abort()


def under_way(producer: Producer, count: int) -> None:
    """Wait until exactly *count* Produce requests have been sent and not answered."""
    deadline = time.monotonic() + SOON
    while True:
        requests = producer.stats()["requests"]
        if requests["sent"] - requests["answered"] - requests["lost"] == count:
            return
        assert time.monotonic() < deadline, requests


def until(found: Callable[[], bool]) -> None:
    """Poll until *found()* is true, for conditions without a request or deadline to wait for."""
    moment = threading.Event()
    for _ in range(3000):
        if found():
            return
        moment.wait(0.01)
    raise AssertionError("the condition did not become true")


def metadata_is_idle(producer: Producer) -> bool:
    """Return whether no metadata request is in flight: it would time out if the clock jumps."""
    connection = pipeline_of(producer).metadata._connection
    return connection is not None and connection.is_idle


# Faults


class Held(Hold):
    """A Hold whose wait is bounded."""

    def wait_until_held(self) -> None:
        assert self._arrived.wait(SOON), "the request has not arrived"


@dataclass(frozen=True)
class Amend:
    """Performs the request and changes the answer."""

    change: Callable[[Any], None]

    def __call__(self, exchange: Exchange) -> None:
        answer = exchange.apply()
        self.change(answer)
        exchange.answer(answer)


@dataclass(frozen=True)
class Before:
    """Runs a function, then continues with another action."""

    do: Callable[[], object]
    then: Callable[[Exchange], None]

    def __call__(self, exchange: Exchange) -> None:
        self.do()
        self.then(exchange)


def hold(
    cluster: ScriptedCluster,
    producer: Producer,
    values: Iterable[bytes],
    *,
    then: Action = proceed,
    broker: int | None = None,
    **where: Any,
) -> tuple[Held, list[Delivery]]:
    """Send *values*, and wait until a broker holds the request with the first of them."""
    held = Held(then)
    cluster.next("produce", held, broker=broker)
    deliveries = send(producer, values, **where)
    held.wait_until_held()
    return held, deliveries


Values = tuple[bytes | None, ...]


@dataclass(frozen=True)
class RefuseIf:
    """Rejects the batches whose values match, and appends the others."""

    code: int
    such: Callable[[Values], bool]
    base_offset: int = -1

    def __call__(self, exchange: Exchange) -> None:
        refused = {
            (topic.name, part.index)
            for topic in exchange.request.topic_data
            for part in topic.partition_data
            for batch in MemoryRecords(bytes(part.records))
            if self.such(tuple(record.value for record in batch))
        }
        Refuse(self.code, only=refused, base_offset=self.base_offset)(exchange)


class Frozen:
    """The metadata as it is now, whatever happens later, for the next *times* requests."""

    def __init__(self, cluster: ScriptedCluster, times: int) -> None:
        self._leaders = {
            (name, index): partition.leader
            for name, partitions in cluster._state.topics.items()
            for index, partition in enumerate(partitions)
        }
        self._brokers = dict(cluster._state.brokers)
        cluster.next("metadata", *[Amend(self._as_it_was)] * times)

    def _as_it_was(self, answer: Any) -> None:
        kind = type(answer).MetadataResponseBroker
        answer.brokers = [
            kind(node_id=i, host=b.host, port=b.port, rack=None) for i, b in self._brokers.items()
        ]
        for topic in answer.topics:
            for part in topic.partitions:
                part.leader_id = self._leaders[topic.name, part.partition_index]
                part.error_code = 0


# Time

#: How long the threads that a jump has woken may take before the next one (seconds).
_PACE = 0.05


def backs_off(clock: FakeClock, waits: int = 1) -> None:
    """Wait until *waits* threads wait for a backoff to end."""
    with clock._changed:
        assert clock._changed.wait_for(lambda: _short_waits(clock) >= waits, SOON), (
            f"{_short_waits(clock)} threads back off"
        )


def _short_waits(clock: FakeClock) -> int:
    return sum(deadline - clock._now <= BACKOFF for deadline, _ in clock._waiting.values())


def waits_for(clock: FakeClock, seconds: float) -> None:
    """Wait until a thread waits for that many *seconds*."""

    def found() -> bool:
        return any(abs(at - clock._now - seconds) < 0.01 for at, _ in clock._waiting.values())

    with clock._changed:
        assert clock._changed.wait_for(found, SOON), f"no thread waits for {seconds} s"


def let_pass(clock: FakeClock, deliveries: Iterable[Delivery]) -> list[float]:
    """Jump from backoff to backoff until *deliveries* are settled, and return the jumps."""
    pending = deque(deliveries)
    jumps: list[float] = []

    def settled(_: Delivery) -> None:
        with clock._changed:
            clock._changed.notify_all()

    for delivery in pending:
        delivery.add_done_callback(settled)
    while True:
        with clock._changed:
            assert clock._changed.wait_for(
                lambda: all(d.done() for d in pending) or _short_waits(clock), SOON
            ), "no thread waits for a backoff, and no outcome has arrived"
            if all(delivery.done() for delivery in pending):
                return jumps
            waits = len(clock._waiting)
            jumps.append(clock.jump_to_next())
            # The threads that it woke have no more time than in reality if the next jump comes at
            # once. Most of them wait again; those that do not are not waited for.
            clock._changed.wait_for(lambda: len(clock._waiting) >= waits, _PACE)  # noqa: B023
