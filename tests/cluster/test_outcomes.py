"""How a caller receives the outcome of a message: handles, callbacks, ``await``; and failures."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest
from kafka.errors import KafkaTimeoutError, MessageSizeTooLargeError

from pykaproducer import (
    BrokerRejectedError,
    Delivery,
    DeliveryError,
    DeliveryFailures,
    DeliveryTimeoutError,
    PartitionerError,
    Producer,
    Status,
)
from pykaproducer.testing import KafkaCluster

from .readback import assert_in_log, read_log, read_values

SOON = 30


class Reports:
    """A record of ``on_delivery`` calls, and a way to wait for them."""

    def __init__(self, expected: int) -> None:
        self.told: list[tuple[BaseException | None, Delivery]] = []
        self.threads: set[str] = set()
        self._expected = expected
        self._complete = threading.Event()

    def __call__(self, error: BaseException | None, delivery: Delivery) -> None:
        self.told.append((error, delivery))
        self.threads.add(threading.current_thread().name)
        if len(self.told) == self._expected:
            self._complete.set()

    def wait(self) -> list[tuple[BaseException | None, Delivery]]:
        assert self._complete.wait(SOON), f"{len(self.told)} of {self._expected} were reported"
        return self.told


# Callbacks


def test_each_message_is_reported_once_and_in_order(cluster: KafkaCluster, topic: str) -> None:
    cluster.create_topic(topic, partitions=3)
    count = 6000
    reports = Reports(count)
    with Producer(bootstrap_servers=cluster.bootstrap_servers, client_id="app") as producer:
        for i in range(count):
            producer.send(topic, b"%d" % i, partition=i % 3, on_delivery=reports)
        reports.wait()
        # Nothing is reported late, or twice.
        producer.flush(SOON)
    assert len(reports.told) == count
    assert reports.threads == {"app-reports"}
    assert {error for error, _ in reports.told} == {None}
    for partition in range(3):
        offsets = [d.offset for _, d in reports.told if d.partition == partition]
        assert offsets == list(range(count // 3))
    assert [[int(v or b"") for v in values] for values in read_values(cluster, topic, 3)] == [
        list(range(partition, count, 3)) for partition in range(3)
    ]


def test_flush_waits_for_the_callbacks_too(cluster: KafkaCluster, topic: str) -> None:
    reports = Reports(1)
    with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        producer.send(topic, b"value", on_delivery=reports)
        producer.flush(SOON)
        assert len(reports.told) == 1


def test_a_callback_can_read_the_message_and_send_another(
    cluster: KafkaCluster, topic: str
) -> None:
    seen: list[Any] = []
    done = threading.Event()

    def forward(error: BaseException | None, delivery: Delivery) -> None:
        seen.append((error, delivery.key, delivery.value, delivery.topic))
        if delivery.key == b"key":
            producer.send(topic, b"second", on_delivery=forward)
        else:
            done.set()

    with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        producer.send(topic, b"first", key=b"key", on_delivery=forward)
        assert done.wait(SOON)
    assert seen == [(None, b"key", b"first", topic), (None, None, b"second", topic)]


def test_a_callback_that_raises_is_logged_and_harms_nobody(
    cluster: KafkaCluster, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(error: BaseException | None, delivery: Delivery) -> None:
        raise LookupError("a mistake of the user")

    reports = Reports(2)
    with Producer(bootstrap_servers=cluster.bootstrap_servers, linger_ms=20) as producer:
        producer.send(topic, b"0", on_delivery=reports)
        harmed = producer.send(topic, b"1", on_delivery=broken)
        producer.send(topic, b"2", on_delivery=reports)
        reports.wait()
        producer.flush(SOON)
    assert harmed.result(0).offset == 1
    (record,) = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert record.name == "pykaproducer.delivery"
    assert "a mistake of the user" in str(record.exc_info)


def test_done_callbacks_run_once_before_and_after_the_outcome(
    cluster: KafkaCluster, topic: str
) -> None:
    told: list[Any] = []
    cluster.create_topic(topic)
    with Producer(bootstrap_servers=cluster.bootstrap_servers, linger_ms=60_000) as producer:
        good = producer.send(topic, b"good")
        bad = producer.send(topic, b"bad", partition=7)
        good.add_done_callback(lambda delivery: told.append(("early", delivery)))
        good.add_callback(lambda tag, metadata: told.append((tag, metadata.offset)), "callback")
        good.add_errback(lambda error: told.append("never"))
        bad.add_errback(lambda error: told.append(type(error)))
        bad.add_callback(lambda metadata: told.append("never"))
        # All callbacks have been called.
        producer.flush(SOON)
        good.add_done_callback(lambda delivery: told.append(("late", delivery)))
    assert len(told) == 4
    assert told[-1] == ("late", good)
    assert ("early", good) in told
    assert ("callback", 0) in told
    assert PartitionerError in told
    assert (good.succeeded(), good.failed()) == (True, False)
    assert (bad.succeeded(), bad.failed()) == (False, True)


# Waiting


def test_result_times_out_and_the_message_goes_on(cluster: KafkaCluster, topic: str) -> None:
    with Producer(bootstrap_servers=cluster.bootstrap_servers, linger_ms=60_000) as producer:
        delivery = producer.send(topic, b"value")
        with pytest.raises(TimeoutError, match="still being sent"):
            delivery.result(0.01)
        with pytest.raises(TimeoutError):
            delivery.exception(0)
        with pytest.raises(KafkaTimeoutError):
            delivery.get(0.01)
        assert not delivery.done()
        producer.flush(SOON)
        assert delivery.result(0).offset == 0


def test_many_threads_may_wait_for_one_message(cluster: KafkaCluster, topic: str) -> None:
    offsets: list[int] = []
    with Producer(bootstrap_servers=cluster.bootstrap_servers, linger_ms=60_000) as producer:
        delivery = producer.send(topic, b"value")
        threads = [
            threading.Thread(target=lambda: offsets.append(delivery.result(SOON).offset))
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        producer.flush(SOON)
        for thread in threads:
            thread.join(SOON)
    assert offsets == [0] * 8


def test_await(cluster: KafkaCluster, topic: str) -> None:
    cluster.create_topic(topic)

    async def use(producer: Producer) -> None:
        first, *others = await asyncio.gather(*(send(producer, i) for i in range(50)))
        assert [first, *others] == list(range(50))
        settled = producer.send(topic, b"value")
        assert (await settled).offset == 50
        assert (await settled).offset == 50
        with pytest.raises(PartitionerError):
            await producer.send(topic, b"value", partition=9)

    async def send(producer: Producer, number: int) -> Any:
        return (await producer.send(topic, b"%d" % number)).offset

    with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        asyncio.run(asyncio.wait_for(use(producer), SOON))


def test_giving_up_an_await_leaves_the_message_on_its_way(
    cluster: KafkaCluster, topic: str
) -> None:
    async def use(producer: Producer) -> Any:
        delivery = producer.send(topic, b"value")

        async def wait() -> Any:
            return await delivery

        with pytest.raises(TimeoutError):
            await asyncio.wait_for(wait(), 0.01)
        await asyncio.to_thread(producer.flush, SOON)
        return (await delivery).offset

    with Producer(bootstrap_servers=cluster.bootstrap_servers, linger_ms=60_000) as producer:
        assert asyncio.run(use(producer)) == 0


# Topics


def test_an_unknown_topic_is_created(cluster: KafkaCluster, topic: str) -> None:
    with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        assert producer.send(topic, b"value").result(SOON).offset == 0
    assert read_log(cluster, topic).values == [b"value"]


def test_one_send_before_the_topic_exists_and_none_after_is_delivered(
    cluster: KafkaCluster, topic: str
) -> None:
    """KIP-286: the message waits for its topic, and no further send() is needed."""
    with Producer(
        bootstrap_servers=cluster.bootstrap_servers,
        allow_auto_create_topics=False,
        max_block_ms=300,
    ) as producer:
        delivery = producer.send(topic, b"value")
        with pytest.raises(KafkaTimeoutError, match="UNKNOWN_TOPIC_OR_PARTITION"):
            producer.partitions_for(topic)
        assert not delivery.done()
        cluster.create_topic(topic, partitions=2)
        assert delivery.result(SOON).offset == 0


def test_a_topic_that_never_comes_is_named_in_the_error(cluster: KafkaCluster, topic: str) -> None:
    with Producer(
        bootstrap_servers=cluster.bootstrap_servers,
        allow_auto_create_topics=False,
        delivery_timeout_ms=400,
    ) as producer:
        error = producer.send(topic, b"value").exception(SOON)
    assert isinstance(error, DeliveryTimeoutError)
    assert error.status is Status.NOT_PERSISTED
    assert topic in str(error)
    assert "UNKNOWN_TOPIC_OR_PARTITION" in str(error)


def test_a_topic_that_has_just_been_made_gets_everything_in_order(
    cluster: KafkaCluster, topic: str
) -> None:
    """Its leaders may not know yet that they lead: they reject one batch and accept the next."""
    values = [b"%d" % i for i in range(600)]
    with Producer(
        bootstrap_servers=cluster.bootstrap_servers, partitioner="round_robin", batch_size=500
    ) as producer:
        for number in range(5):
            name = f"{topic}-{number}"
            cluster.create_topic(name, partitions=6)
            deliveries = [producer.send(name, value) for value in values]
            producer.flush(SOON)
            assert_in_log(cluster, deliveries, values)
            for partition in read_values(cluster, name, 6):
                numbers = [int(value or b"") for value in partition]
                assert numbers == sorted(numbers)
                assert len(numbers) == 100


# Rejected messages


def test_a_message_that_the_topic_refuses_fails_alone(cluster: KafkaCluster, topic: str) -> None:
    cluster.create_topic(topic, config={"max.message.bytes": "10000"})
    with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        before = producer.send(topic, b"before")
        assert before.result(SOON).offset == 0
        large = producer.send(topic, bytes(50_000))
        error = large.exception(SOON)
        assert isinstance(error, BrokerRejectedError)
        assert isinstance(error, MessageSizeTooLargeError)
        assert (error.code, error.status) == (10, Status.NOT_PERSISTED)
        assert (error.topic, error.partition) == (topic, 0)
        following = [producer.send(topic, b"%d" % i) for i in range(100)]
        assert [delivery.result(SOON).offset for delivery in following] == list(range(1, 101))
    assert read_log(cluster, topic).values == [b"before", *(b"%d" % i for i in range(100))]


@pytest.mark.parametrize("idempotent", [True, False])
def test_what_was_sent_behind_a_refused_message_is_delivered(
    cluster: KafkaCluster, topic: str, idempotent: bool
) -> None:
    """The batches after it are in flight while it is rejected."""
    cluster.create_topic(topic, config={"max.message.bytes": "10000"})
    with Producer(
        bootstrap_servers=cluster.bootstrap_servers,
        enable_idempotence=idempotent,
        batch_size=0,  # each message alone
    ) as producer:
        deliveries = [
            producer.send(topic, b"%d" % i if i % 50 != 7 else bytes(50_000)) for i in range(300)
        ]
        errors = [delivery.exception(SOON) for delivery in deliveries]
    for i, error in enumerate(errors):
        if i % 50 == 7:
            assert isinstance(error, MessageSizeTooLargeError)
        else:
            assert error is None, i
    expected = [b"%d" % i for i in range(300) if i % 50 != 7]
    assert read_log(cluster, topic).values == expected


def test_a_batch_that_is_too_large_for_the_topic_is_split(
    cluster: KafkaCluster, topic: str
) -> None:
    cluster.create_topic(topic, config={"max.message.bytes": "10000"})
    values = [b"%200d" % i for i in range(500)]
    with Producer(bootstrap_servers=cluster.bootstrap_servers, linger_ms=60_000) as producer:
        for value in values:
            producer.send(topic, value)
    assert read_log(cluster, topic).values == values


# flush()


def test_flush_tells_of_failures_that_nobody_was_told_of(cluster: KafkaCluster, topic: str) -> None:
    cluster.create_topic(topic)
    reports = Reports(1)
    with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        producer.send(topic, b"delivered")
        producer.send(topic, b"dropped handle", partition=5)
        unread = producer.send(topic, b"unread handle", partition=6)
        read = producer.send(topic, b"read", partition=7)
        assert isinstance(read.exception(SOON), PartitionerError)
        producer.send(topic, b"with callback", partition=8, on_delivery=reports)
        with pytest.raises(DeliveryFailures) as caught:
            producer.flush(SOON)
        assert caught.value.count == 2
        assert {type(error) for error in caught.value.errors} == {PartitionerError}
        assert "no partition 5" in str(caught.value)
        # Reported once.
        producer.flush(SOON)
        assert isinstance(unread.exception(0), DeliveryError)
    assert isinstance(reports.wait()[0][0], PartitionerError)
