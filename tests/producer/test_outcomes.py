"""References that an outcome must not keep: callers' frames, others' errors, the producer."""

from __future__ import annotations

import asyncio
import gc
import logging
import traceback
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pykaproducer import (
    BlockFailures,
    Delivery,
    DeliveryError,
    DeliveryFailures,
    PartitionerError,
    Producer,
    ProducerBrokenError,
)
from pykaproducer._errors.codes import ErrorCode
from pykaproducer._pipeline.topic import TopicWorker
from pykaproducer.testing import ScriptedCluster
from pykaproducer.testing.scripted import Refuse
from tests.pipeline.helper import ended

SOON = 30


class Request:
    """A large object on the caller's stack."""


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with ScriptedCluster(topics={"t": 1}) as made:
        yield made


def refused(cluster: ScriptedCluster, producer: Producer, **how: Any) -> Delivery:
    cluster.next("produce", Refuse(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    return producer.send("t", b"v", **how)


def by_result(cluster: ScriptedCluster, producer: Producer) -> Any:
    return refused(cluster, producer).result(SOON)


def by_get(cluster: ScriptedCluster, producer: Producer) -> Any:
    return refused(cluster, producer).get(SOON)


def by_await(cluster: ScriptedCluster, producer: Producer) -> Any:
    async def wait() -> Any:
        return await refused(cluster, producer)

    return asyncio.run(wait())


def by_exception(cluster: ScriptedCluster, producer: Producer) -> Any:
    error = refused(cluster, producer).exception(SOON)
    assert error is not None
    raise error


def by_cause(cluster: ScriptedCluster, producer: Producer) -> Any:
    delivery = refused(cluster, producer)
    assert delivery.exception(SOON) is not None
    assert delivery.error is not None
    assert delivery.error.__cause__ is not None
    raise delivery.error.__cause__


def by_errback(cluster: ScriptedCluster, producer: Producer) -> Any:
    delivery = refused(cluster, producer)
    delivery.exception(SOON)

    def raises(error: BaseException) -> None:
        raise error

    delivery.add_errback(raises)  # the exception is logged
    raise LookupError


def by_block(cluster: ScriptedCluster, producer: Producer) -> Any:
    cluster.next("produce", Refuse(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    block = producer.send_many("t", [b"v"])
    with pytest.raises(BlockFailures):
        block.result(SOON)
    raise block.outcome().failed[0][1]


def by_flush(cluster: ScriptedCluster, producer: Producer) -> Any:
    delivery = refused(cluster, producer)
    try:
        producer.flush(SOON)
    except DeliveryFailures as failures:
        assert delivery.done()
        raise failures.errors[0] from None


@pytest.mark.parametrize(
    "ask",
    [by_result, by_get, by_await, by_exception, by_cause, by_errback, by_block, by_flush],
    ids=lambda ask: ask.__name__,
)
def test_a_failure_keeps_nothing_of_its_callers_stack(
    ask: Callable[[ScriptedCluster, Producer], Any],
    cluster: ScriptedCluster,
    caplog: pytest.LogCaptureFixture,
) -> None:
    # a log record keeps references to its arguments
    caplog.set_level(logging.CRITICAL, logger="pykaproducer")
    seen: list[weakref.ref[Request]] = []

    def handle_request(producer: Producer) -> None:
        request = Request()
        seen.append(weakref.ref(request))
        try:
            ask(cluster, producer)
        except Exception:
            return
        raise AssertionError("it did not fail")

    with ended(cluster.producer(linger_ms=0)) as producer:
        handle_request(producer)
        gc.collect()
        assert seen[0]() is None


def test_a_raised_outcome_goes_without_the_garbage_collector(cluster: ScriptedCluster) -> None:
    with ended(cluster.producer()) as producer:
        delivery = refused(cluster, producer)
        delivery.exception(SOON)
        gc.disable()
        try:

            def handle_request() -> weakref.ref[Request]:
                request = Request()
                try:
                    delivery.result()
                except DeliveryError:
                    pass
                return weakref.ref(request)

            assert handle_request()() is None
        finally:
            gc.enable()


def test_each_caller_sees_its_own_traceback_alone(cluster: ScriptedCluster) -> None:
    """Two messages that failed together: neither caller's exceptions show in the other's."""
    with ended(cluster.producer(linger_ms=1000)) as producer:
        cluster.next("produce", Refuse(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
        first, second = (producer.send("t", b"v") for _ in range(2))
        with pytest.raises(DeliveryFailures):
            producer.flush(SOON)
        try:
            raise ValueError("the first caller's secret")
        except ValueError:
            with pytest.raises(DeliveryError) as caught:
                first.result()
            caught.value.add_note("the first caller's note")
        with pytest.raises(DeliveryError) as other:
            second.result()
        assert "the first caller's" not in "".join(traceback.format_exception(other.value))
        with pytest.raises(DeliveryError) as again:
            first.result()
        assert "the first caller's" not in "".join(traceback.format_exception(again.value))


class BadKeyError(Exception):
    """An error that cannot be copied by its arguments."""

    def __init__(self, key: bytes, *, partition: int) -> None:
        super().__init__(f"no place for {key!r}")
        self.partition = partition


def test_a_partitioner_that_raises_leaves_nothing_of_its_stack(cluster: ScriptedCluster) -> None:
    seen: list[weakref.ref[Request]] = []
    told: list[BaseException | None] = []

    def choose(key: bytes | None, everything: list[int], available: list[int]) -> int:
        request = Request()
        seen.append(weakref.ref(request))
        raise BadKeyError(key or b"", partition=3)

    with ended(cluster.producer(partitioner=choose)) as producer:
        handle = producer.send("t", b"v", b"k", on_delivery=lambda error, _: told.append(error))
        producer.flush(SOON)
        gc.collect()
        assert seen[0]() is None
        for error in (*told, handle.error):
            assert isinstance(error, PartitionerError)
            assert isinstance(error.__cause__, BadKeyError)
            assert error.__cause__.partition == 3
            assert error.__cause__.__traceback__ is None
            # The note names the place where it was raised.
            (note,) = error.__notes__
            assert "choose" in note
            assert "test_outcomes.py" in note
        # Nor does code that raises the cause again leave any.
        assert handle.error is not None

        def handle_request() -> None:
            request = Request()
            seen.append(weakref.ref(request))
            try:
                assert handle.error is not None
                assert handle.error.__cause__ is not None
                raise handle.error.__cause__
            except BadKeyError:
                pass

        handle_request()
        gc.collect()
        assert seen[-1]() is None


def test_the_cause_of_a_broken_producer_is_text(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def step(worker: TopicWorker, item: object) -> None:
        raise LookupError("a bug")

    monkeypatch.setattr(TopicWorker, "handle", step)
    with ended(cluster.producer()) as producer:
        error = producer.send("t", b"v").exception(SOON)
        with pytest.raises(ProducerBrokenError) as caught:
            producer.send("t", b"v")
    for broken in (error, caught.value):
        assert isinstance(broken, ProducerBrokenError)
        cause = broken.__cause__
        assert isinstance(cause, LookupError)
        assert cause.__traceback__ is None
        assert "in step" in cause.__notes__[0]
    assert "a bug" in caplog.text
    assert "Traceback" in caplog.text


def test_a_handle_that_is_kept_does_not_keep_its_producer(cluster: ScriptedCluster) -> None:
    class Service:
        def __init__(self) -> None:
            self.producer = cluster.producer(value_serializer=self.encode)
            self.last: Delivery | None = None

        def encode(self, value: bytes) -> bytes:
            return value

    service = Service()
    service.last = service.producer.send("t", b"v")
    service.last.result(SOON)
    service.producer.close()
    kept = service.last
    alive = [weakref.ref(service), weakref.ref(service.producer)]
    del service
    gc.collect()
    assert [reference() for reference in alive] == [None, None]
    assert kept.result().offset == 0


def test_a_repr_does_not_count_as_told(cluster: ScriptedCluster) -> None:
    with ended(cluster.producer(linger_ms=1000)) as producer:
        cluster.next("produce", Refuse(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
        handle = producer.send("t", b"v")
        with pytest.raises(DeliveryFailures):
            producer.flush(SOON)
        for send in (lambda: producer.send("t", b"v"), lambda: producer.send_many("t", [b"v"])):
            cluster.next("produce", Refuse(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
            handle = send()
            producer._pipeline.flush(None)  # type: ignore[union-attr]  # without its telling
            assert "failed" in repr(handle)
            with pytest.raises(DeliveryFailures, match="1 message"):
                producer.flush(SOON)
