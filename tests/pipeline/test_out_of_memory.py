"""Failing allocations: each one of the kernel is refused in turn, and nothing breaks."""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import pykaproducer._kernel as _kernel
from pykaproducer import (
    Delivery,
    DeliveryError,
    DeliveryFailures,
    DeliveryTimeoutError,
    Producer,
    ProducerBrokenError,
    Status,
)
from pykaproducer._errors.codes import ErrorCode
from pykaproducer._net.lendable_connection import LendableConnection
from pykaproducer._net.outbox import Outbox
from pykaproducer._net.poller import Poller
from pykaproducer._pipeline.bridge import Bridge, Down, RequestsLost
from pykaproducer._pipeline.broker import BrokerWorker
from pykaproducer._pipeline.dispatcher import Dispatcher
from pykaproducer._pipeline.metadata import Metadata
from pykaproducer._pipeline.partition import PartitionWorker
from pykaproducer._pipeline.reports import Reports
from pykaproducer._pipeline.retry import RetryHandler
from pykaproducer._pipeline.topic import TopicWorker
from pykaproducer._pipeline.worker import _Thread
from pykaproducer._util import compression
from pykaproducer._util.clock import held_lock
from pykaproducer.testing import ScriptedCluster
from pykaproducer.testing.scripted import Drop, Exchange, Hold, Mangle, Refuse, garbage
from tests._support.callers import needs_callers
from tests._support.no_memory import call_without_memory, needs_hook
from tests._support.pairs import partly
from tests._support.programs import run

from .helper import (
    FAST,
    SOON,
    Told,
    backs_off,
    came,
    ended,
    error_of,
    frozen,
    let_pass,
    log,
    offsets,
    outcomes,
    pipeline_of,
    running,
    send,
    until,
    warm_up,
)


@pytest.fixture(autouse=True)
def memory_comes_back() -> Iterator[None]:
    yield
    _kernel.refuse_memory(0, 0)


def to_the_first(key: bytes | None, everything: list[int], available: list[int]) -> int:
    return 0


#: Settings that lead messages through different allocations, with few of them each.
WAYS: dict[str, dict[str, Any]] = {
    "idempotent": {},
    "plain": {"enable_idempotence": False},
    "compressed": {"compression_type": "gzip"},
    "partitioner": {"partitioner": to_the_first},
}


def send_some(producer: Producer, told: Told) -> list[Delivery]:
    """Send messages to two partitions, some of them large; failed allocations reject messages."""
    accepted = []
    for number in range(12):
        value = b"%d" % number + b"x" * (40_000 if number % 4 == 0 else 10)
        try:
            accepted.append(producer.send("t", value, partition=number % 2, on_delivery=told))
        except MemoryError:
            pass
    return accepted


@pytest.mark.parametrize("way", partly(WAYS, ["plain"]))
def test_each_allocation_is_refused_in_turn(way: str) -> None:
    """Every accepted message is delivered, once and in order; no buffer_memory is lost."""
    with ScriptedCluster(topics={"t": 2}) as cluster:
        for granted in range(0, 40, 3):
            before = [len(log(cluster, "t", partition)) for partition in range(2)]
            told = Told()
            with cluster.producer(**FAST, **WAYS[way]) as producer:
                warm_up(producer)
                _kernel.refuse_memory(granted, 3)
                accepted = send_some(producer, told)
                assert outcomes(accepted) == [None] * len(accepted)
                producer.flush(SOON)
                _kernel.refuse_memory(0, 0)
                assert len(told.values) == len(accepted)
                for partition in range(2):
                    new = log(cluster, "t", partition)[before[partition] :]
                    new = [value for value in new if value != b"first"]
                    assert len(new) == sum(d.partition == partition for d in accepted)
                    assert new == sorted(new, key=lambda value: int((value or b"").rstrip(b"x")))
                del accepted, told
                gc.collect()
                assert producer.stats()["buffer"]["used"] == 0


@pytest.mark.parametrize("settings", [{}, {"enable_idempotence": False}, {"linger_ms": 5}], ids=str)
def test_an_error_of_a_codec_is_that_of_its_messages(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    """It is neither raised by send() nor the end of the producer, and no number is missing."""

    class Gzip(compression.Gzip):
        fails = False

        def compress(self, data: Any) -> bytes:
            if self.fails:
                raise ZeroDivisionError("in the codec")
            return super().compress(data)

    gzip = Gzip()
    monkeypatch.setattr(compression, "compressor", lambda kind, level: gzip)
    with running(compression_type="gzip", **settings) as (cluster, producer):
        warm_up(producer)
        gzip.fails = True
        error = producer.send("t", b"lost", partition=0).exception(SOON)
        gzip.fails = False
        assert isinstance(error, DeliveryError)
        assert error.status is Status.NOT_PERSISTED
        assert isinstance(error.__cause__, ZeroDivisionError)
        assert "compression with gzip failed: ZeroDivisionError: in the codec" in str(error)
        producer.send("t", b"later", partition=0).result(SOON)
        assert log(cluster, "t", 0)[-1] == b"later"
        assert producer.stats()["buffer"]["used"] == 0


def test_without_memory_for_a_batch_messages_expire_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The codec repeatedly fails to allocate; the error names the cause, and sending recovers."""
    real = compression.compressor("gzip", None)
    assert real is not None

    class Gzip:
        attribute = real.attribute
        has_memory = True

        def compress(self, data: Any) -> bytes:
            if not self.has_memory:
                raise MemoryError("no memory for gzip")
            return real.compress(data)

    gzip = Gzip()
    monkeypatch.setattr(compression, "compressor", lambda kind, level: gzip)

    with frozen(compression_type="gzip", delivery_timeout_ms=5_000) as (_, clock, producer):
        warm_up(producer)
        gzip.has_memory = False
        (delivery,) = send(producer, [b"value" * 100])
        for _ in range(49):
            backs_off(clock)
            clock.jump(0.1)
        assert not delivery.done()
        clock.jump(0.2)
        error = error_of(delivery)
        assert isinstance(error, DeliveryTimeoutError)
        assert "no memory for gzip" in str(error)
        assert "was not written" in str(error)
        gzip.has_memory = True
        # The clock is ahead of a broker's thread that the system does not run for a while.
        after = [producer.send("t", b"after", partition=0, delivery_timeout_ms=600_000)]
        assert offsets(after, clock) == [1]


def test_a_shortage_of_memory_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    with frozen() as (_, clock, producer):
        warm_up(producer)
        delivery = producer.send("t", b"x" * 40_000)
        offsets([delivery])
        for _ in range(20):
            _kernel.refuse_memory(1, 1000)
            try:
                delivery = producer.send("t", b"x" * 40_000)
            except MemoryError:
                continue
            finally:
                _kernel.refuse_memory(0, 0)
            let_pass(clock, [delivery])
        lines = [r for r in caplog.records if "no memory for" in r.getMessage()]
        assert len(lines) <= 1


def test_expiry_without_memory_is_tried_again() -> None:
    told = Told()
    with frozen(topics={"t": 2}, delivery_timeout_ms=5_000) as (cluster, clock, producer):
        warm_up(producer)
        cluster.next("produce", *[Refuse(ErrorCode.NOT_ENOUGH_REPLICAS)] * 50)
        deliveries = [
            producer.send("t", b"%d" % number, partition=number % 2, on_delivery=told)
            for number in range(10)
        ]
        backs_off(clock)
        _kernel.refuse_memory(0, 7)
        clock.jump(5.5)
        let_pass(clock, deliveries)
        assert all(isinstance(error_of(each), DeliveryTimeoutError) for each in deliveries)
        cluster._script["produce"].clear()
        after = send(producer, [b"after"])
        let_pass(clock, after)
        assert log(cluster)[-1:] == [b"after"]


def refuse_once(
    monkeypatch: pytest.MonkeyPatch,
    place: Any,
    name: str,
    when: Callable[..., bool],
    error: type[Exception] = MemoryError,
) -> list[str]:
    """Make one call of *name* fail, the first for which *when* is true; return a note of it."""
    real = getattr(place, name)
    refused: list[str] = []

    def call(*args: Any) -> Any:
        if not refused and when(*args):
            refused.append(name)
            raise error
        return real(*args)

    monkeypatch.setattr(place, name, call)
    return refused


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("stage", ["dispatcher", "metadata", "topic-t", "bridge", "reports"])
def test_a_thread_without_memory_for_its_first_steps_is_started_again(
    monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    refused = refuse_once(monkeypatch, _Thread, "run", lambda thread: stage in thread.name)
    told = Told()
    with (
        ScriptedCluster(topics={"t": 1}) as cluster,
        cluster.producer(stage_threads="own") as producer,
    ):
        producer.send("t", b"value", on_delivery=told).result(SOON)
        producer.flush(SOON)
        assert refused
        assert len(told.values) == 1


def runs_a_bridge() -> bool:
    return "bridge" in threading.current_thread().name


@pytest.mark.parametrize(
    ("size", "inline"), [(1, True), (40_000, False)], ids=["inline", "own thread"]
)
@pytest.mark.parametrize("idempotent", [True, False])
def test_no_memory_for_an_encoded_request(
    monkeypatch: pytest.MonkeyPatch, size: int, inline: bool, idempotent: bool
) -> None:
    """Whether the bridge's thread writes it, or that of another stage."""
    # With a partitioner in Python, send() leaves everything to the stages.
    settings = {**FAST, "partitioner": lambda key, everything, available: 0}
    with running(**settings, enable_idempotence=idempotent) as (cluster, producer):
        warm_up(producer)

        def is_the_one(outbox: Outbox, buffers: Any, request: Any = None) -> bool:
            is_produce = request is not None and hasattr(request.tag, "batches")
            return is_produce and runs_a_bridge() != inline

        refused = refuse_once(monkeypatch, Outbox, "add", is_the_one)
        sent = [b"first"]
        for _ in range(1000):
            if refused:
                break
            # One after the other, so that the stages are idle.
            sent.append(b"x" * size)
            assert offsets(send(producer, sent[-1:])) == [len(sent) - 1]
        assert refused
        assert offsets(send(producer, [b"last"])) == [len(sent)]
        assert log(cluster) == [*sent, b"last"]


@pytest.mark.parametrize("step", ["connect", "modify"])
def test_no_memory_to_connect_again(monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    with running(**FAST) as (cluster, producer):
        warm_up(producer)
        place: Any = cluster.network if step == "connect" else Poller
        refused = refuse_once(monkeypatch, place, step, lambda *_: runs_a_bridge())
        cluster.next("produce", Drop())
        assert offsets(send(producer, [b"again"])) == [1]
        assert refused


@pytest.mark.parametrize("error", [MemoryError, SystemError])
@pytest.mark.parametrize("idempotent", [True, False], ids=["idempotent", "plain"])
def test_no_memory_to_give_up_a_connection(
    monkeypatch: pytest.MonkeyPatch, idempotent: bool, error: type[Exception]
) -> None:
    """The response is malformed, and there is no memory to collect the lost requests.

    Nor, with SystemError, for the traceback of that MemoryError.
    """
    with running(**FAST, enable_idempotence=idempotent) as (cluster, producer):
        warm_up(producer)
        refused = refuse_once(monkeypatch, Outbox, "lost", lambda *_: runs_a_bridge(), error)
        cluster.next("produce", Mangle(garbage))
        # A batch without sequence numbers is appended twice.
        assert offsets(send(producer, [b"again"])) == [1 if idempotent else 2]
        assert refused
        assert log(cluster) == [b"first"] + [b"again"] * (1 if idempotent else 2)


class MalformedThenRejected:
    """Appends nothing. Answers two requests when the third arrives: garbage, and a rejection."""

    def __init__(self) -> None:
        self.answers: list[bytes] = []

    def __call__(self, exchange: Exchange) -> None:
        refusal = exchange.encoded(exchange.refusal(ErrorCode.NOT_ENOUGH_REPLICAS))
        if len(self.answers) == 2:
            exchange.send(b"".join(self.answers))
        self.answers.append(refusal if self.answers else garbage(refusal))


@pytest.mark.parametrize("times", [0, 1, 3])
def test_requests_given_up_without_memory_keep_their_order(
    monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """The first response is malformed, the second one a rejection, and the third is missing."""
    real, handle, left = Outbox.lost, BrokerWorker.handle, [None] * times
    events: list[Any] = []

    def lost(self: Outbox, *args: Any) -> Any:
        if left and runs_a_bridge():
            left.pop()
            raise MemoryError
        return real(self, *args)

    def note(self: BrokerWorker, item: Any) -> None:
        if isinstance(item, Down | RequestsLost):
            events.append(item)
        handle(self, item)

    with running(**FAST, max_in_flight_requests_per_connection=3) as (cluster, producer):
        warm_up(producer)
        monkeypatch.setattr(Outbox, "lost", lost)
        monkeypatch.setattr(BrokerWorker, "handle", note)
        cluster.next("produce", *[MalformedThenRejected()] * 3)
        deliveries = []
        for number in range(3):
            deliveries += send(producer, [b"%d" % number])
            came(cluster, "produce", number + 2)
        assert offsets(deliveries) == [1, 2, 3]
        assert not left
        assert log(cluster) == [b"first", b"0", b"1", b"2"]
        # A lost batch must not be sealed again for this connection.
        assert isinstance(events[0], Down)
        assert sum(len(e.unanswered) for e in events if isinstance(e, RequestsLost)) == 2


def test_no_memory_to_give_up_the_connection_of_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    with running(**FAST) as (cluster, producer):
        refused = refuse_once(monkeypatch, Outbox, "lost", lambda *_: not runs_a_bridge())
        cluster.next("metadata", Mangle(garbage))
        assert offsets(send(producer, [b"value"])) == [0]
        assert refused


def test_no_memory_to_close_an_idle_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    with frozen(connections_max_idle_ms=10_000) as (cluster, clock, producer):
        warm_up(producer)
        refused = refuse_once(monkeypatch, Outbox, "lost", lambda *_: runs_a_bridge())
        clock.jump(10.1)
        cluster.join_connections()
        (delivery,) = send(producer, [b"second"])
        assert offsets([delivery], clock) == [1]
        assert refused
        assert log(cluster) == [b"first", b"second"]


def test_a_loss_without_memory_is_not_repeated_without_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also if items wake the bridge in the meantime."""
    attempts: list[float] = []
    begun = threading.Event()
    real = Outbox.lost

    def lost(self: Outbox, *args: Any) -> Any:
        if runs_a_bridge() and len(attempts) < 100:
            attempts.append(clock.monotonic())
            begun.set()
            raise MemoryError
        return real(self, *args)

    with frozen() as (cluster, clock, producer):
        warm_up(producer)
        monkeypatch.setattr(Outbox, "lost", lost)
        cluster.next("produce", Drop())
        deliveries = send(producer, [b"second"])
        assert begun.wait(SOON)
        deliveries += send(producer, [b"third"])
        assert offsets(deliveries, clock) == [1, 2]
        # At each time: two per wait, and those for which an item has woken it.
        assert max(Counter(attempts).values()) < 20


@needs_hook
@pytest.mark.parametrize("kind", ["dispatcher", "reports", "topic"])
@pytest.mark.parametrize("first", partly(range(24), [0]))
def test_the_crash_policy_settles_without_memory(kind: str, first: int) -> None:
    """Each allocation of it is refused in turn: every message has its outcome, and is reported."""
    for number in range(first, 96, 24):
        with ScriptedCluster(topics={"t": 1}) as cluster:
            told = Told()
            with cluster.producer(**FAST) as producer:
                warm_up(producer)
                hold = Hold()
                cluster.next("produce", hold)
                deliveries = [producer.send("t", b"in flight"), producer.send("t", b"b")]
                deliveries.append(producer.send("t", b"c", on_delivery=told))
                hold.wait_until_held()
                pipeline = producer._pipeline
                assert pipeline is not None
                worker = getattr(pipeline, kind, None) or pipeline.dispatcher._topics["t"]
                bug = LookupError("a bug")
                call_without_memory(number, worker._crash, bug)
                if pipeline.broken is None:  # it was refused before the function began
                    worker._crash(bug)
                hold.release()
                for delivery in deliveries:
                    error = delivery.exception(SOON)
                    assert isinstance(error, ProducerBrokenError)
                    assert isinstance(error.__cause__, LookupError)
                producer.flush(SOON)
            assert kind == "reports" or len(told.values) == 1


def test_a_stage_pauses_before_a_step_without_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing has changed, so it goes on; and messages expire in the meantime."""
    short = threading.Event()
    monkeypatch.setattr(_kernel, "lacks_memory", short.is_set)
    # With a partitioner in Python, send() leaves everything to the stages.
    settings = {"delivery_timeout_ms": 5_000, "partitioner": to_the_first}
    with frozen(**settings) as (cluster, clock, producer):
        warm_up(producer)
        hold = Hold()
        cluster.next("produce", hold)
        delivery = producer.send("t", b"in flight")
        hold.wait_until_held()
        short.set()
        clock.jump(5.5)
        let_pass(clock, [delivery])
        assert isinstance(error_of(delivery), DeliveryTimeoutError)
        hold.release()
        after = producer.send("t", b"after", delivery_timeout_ms=600_000)
        backs_off(clock)
        assert not after.done()
        short.clear()
        let_pass(clock, [after])
        assert after.succeeded()
        stages = pipeline_of(producer).stages
        until(lambda: clock.jump(0.1) or all(each.shortage.until is None for each in stages))


#: The stages, by what their threads are called.
STEPS: dict[str, tuple[type[Any], str]] = {
    "dispatcher": (Dispatcher, "handle"),
    "topic": (TopicWorker, "handle"),
    "partition": (PartitionWorker, "handle"),
    "broker": (BrokerWorker, "handle"),
    "bridge": (Bridge, "handle"),
    "response": (LendableConnection, "_handle"),
    "retry": (RetryHandler, "handle"),
    "reports": (Reports, "handle"),
    "metadata": (Metadata, "handle"),
}


class Refusing:
    """Refuses one of the allocations of a step, a method, in its next call after :meth:`arm`.

    Meanwhile the calling thread waits, so that none of its own is refused.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: type[Any], step: str) -> None:
        self._real, self._testcapi = getattr(owner, step), pytest.importorskip("_testcapi")
        self._numbers: list[tuple[int, int]] = []
        self._begin, self._done = held_lock(), held_lock()
        monkeypatch.setattr(owner, step, lambda *args: self._step(*args))

    def arm(self, number: int, count: int) -> None:
        self._numbers.append((number, number + count))

    def refuse(self) -> None:
        self._begin.release()
        assert self._done.acquire(timeout=SOON)

    def _step(self, *args: Any) -> Any:
        if not self._numbers:
            return self._real(*args)
        numbers = self._numbers.pop()
        assert self._begin.acquire(timeout=SOON)
        self._testcapi.set_nomemory(*numbers)
        try:
            return self._real(*args)
        finally:
            self.end()
            self._done.release()

    def end(self) -> None:
        self._testcapi.remove_mem_hooks()


@needs_hook
# Of a thread of the cluster, and of generators that are not run to their end.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("first", partly(range(24), [0]))
def test_a_step_of_a_stage_without_memory(
    monkeypatch: pytest.MonkeyPatch, step: str, first: int
) -> None:
    """Each of its allocations is refused in turn: every message has one outcome, and is reported.

    The producer goes on, or it is broken with this cause.
    """
    refusing = Refusing(monkeypatch, *STEPS[step])

    def on_delivery(error: BaseException | None, delivery: Delivery) -> None:
        refusing.end()  # not the allocations of user code
        told(error, delivery)

    # With a partitioner in Python, send() leaves everything to the stages.
    settings = {"partitioner": to_the_first, "delivery_timeout_ms": 20_000}
    for number in range(first, 120, 24):
        told = Told()
        with ScriptedCluster(topics={"t": 1}) as cluster:
            producer = cluster.producer(**FAST, **settings, request_timeout_ms=1_000)
            warm_up(producer)
            pipeline = pipeline_of(producer)
            cluster.next("produce", Refuse(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            if step == "reports":  # what it handles is not ordinary
                cluster.next("produce", Refuse(ErrorCode.INVALID_RECORD))
            refusing.arm(number, 1 + 2 * (number % 2))
            deliveries = [producer.send("t", b"%d" % n, on_delivery=on_delivery) for n in range(3)]
            refusing.refuse()
            errors = outcomes(deliveries)
            with contextlib.suppress(DeliveryFailures, ProducerBrokenError):
                producer.flush(SOON)
            if pipeline.broken is None:
                assert offsets(send(producer, [b"after"]))
            else:
                assert isinstance(pipeline.broken, MemoryError | SystemError)
            for error, value in zip(errors, (b"0", b"1", b"2"), strict=True):
                count = log(cluster).count(value)
                assert count == 1 if error is None else count <= 1
            with contextlib.suppress(DeliveryFailures, ProducerBrokenError):
                producer.close(SOON)
            assert sorted(told.values) == [b"0", b"1", b"2"]


@needs_hook
@needs_callers
@pytest.mark.parametrize("number", partly(range(40), range(0, 40, 3)))
def test_a_request_of_a_caller_that_cannot_be_adopted(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """The broker has it, and then the connection is lost: the message may be in the log."""
    refusing = Refusing(monkeypatch, LendableConnection, "adopt")
    appended = threading.Event()

    def append_without_answer(exchange: Exchange) -> None:
        exchange.apply()
        appended.set()

    with (
        ScriptedCluster(topics={"t": 1}) as cluster,
        ended(cluster.producer(**FAST, enable_idempotence=False)) as producer,
    ):
        warm_up(producer)
        producer.send("t", b"warm").result(SOON)
        cluster.next("produce", append_without_answer)
        refusing.arm(number, 1 + 2 * (number % 2))
        delivery = producer.send("t", b"it")
        assert appended.wait(SOON)
        cluster.stop(0)
        refusing.refuse()
        producer.abort()
        assert error_of(delivery).status is Status.POSSIBLY_PERSISTED


class Acknowledged:
    def on_acknowledgement(self, metadata: object, exception: BaseException | None) -> None:
        pass


@needs_hook
@pytest.mark.parametrize("way", ["caller", "stages", "block", "intercepted"])
@pytest.mark.parametrize("count", [1, 3])
def test_a_send_without_memory(way: str, count: int) -> None:
    """The message is accepted, or send() raises: nothing is left half entered."""
    testcapi: Any = pytest.importorskip("_testcapi")
    settings: dict[str, Any] = {}
    if way == "stages":
        settings["partitioner"] = to_the_first
    elif way == "intercepted":
        settings["interceptors"] = [Acknowledged()]
    accepted = []

    def send_it(value: bytes) -> None:
        if way == "block":
            producer.send_many("t", [value])
        else:
            producer.send("t", value)
        testcapi.remove_mem_hooks()
        accepted.append(value)

    with running(**settings) as (cluster, producer):
        warm_up(producer)
        for number in range(40):
            call_without_memory(number, send_it, b"%d" % number, count=count)
            producer.flush(SOON)
        assert log(cluster)[1:] == accepted
        assert producer.accepted == len(accepted) + 1


#: Ends with an error, or crashes, if a call of a function needs memory from the system.
DEEP_CALLS = """
import resource
from pykaproducer._pipeline.worker import spawn

def call(depth):
    if depth:
        call(depth - 1)

def use_no_memory():
    unlimited = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm", "rb") as pages:
        used = int(pages.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used, unlimited[1]))
    for depth in range(200):
        call(depth)
    resource.setrlimit(resource.RLIMIT_AS, unlimited)
    print("done")

spawn("stage", use_no_memory).join()
"""


@pytest.mark.scripted
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_calls_of_a_stage_need_no_memory_of_the_system() -> None:
    """Without memory for the frames of calls, CPython 3.11 raises SystemError, or crashes."""
    assert run(DEEP_CALLS) == "done\n"
