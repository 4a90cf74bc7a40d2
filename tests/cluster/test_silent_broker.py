"""A broker that is silent: deadlines, flush(timeout), a full ``buffer_memory``."""

from __future__ import annotations

import threading

import pytest

from pykaproducer import BufferFullError, DeliveryTimeoutError, FlushTimeoutError, Producer, Status
from pykaproducer.testing import KafkaCluster
from tests._support.logs import told_by_log

from .faults import paused
from .readback import read_log
from .stream import PATIENCE, Stream

SOON = 30


# Deadlines


@pytest.fixture(scope="module")
def cluster(own_cluster: KafkaCluster) -> KafkaCluster:
    """Return brokers that may be stopped."""
    return own_cluster


def test_one_message_may_have_a_deadline_of_its_own(cluster: KafkaCluster, topic: str) -> None:
    with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        producer.send(topic, b"0").result(SOON)
        with paused(cluster):
            hurried = producer.send(topic, b"1", delivery_timeout_ms=300)
            patient = producer.send(topic, b"2")
            error = hurried.exception(SOON)
            assert isinstance(error, DeliveryTimeoutError)
            assert not patient.done()
            assert hurried.value == b"1"
        assert patient.exception(SOON) is None
    assert b"2" in read_log(cluster, topic).values
    # It reports how long this message has waited, not the setting.
    assert 0.3 <= error.waited < 60
    assert "120 s" not in str(error)


def test_a_message_that_was_never_written_expires_as_not_persisted(
    cluster: KafkaCluster, topic: str
) -> None:
    with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer, paused(cluster):
        delivery = producer.send(topic, b"1", delivery_timeout_ms=200)
        error = delivery.exception(SOON)
        assert isinstance(error, DeliveryTimeoutError)
        assert error.status is delivery.status is Status.NOT_PERSISTED


def test_a_message_that_was_written_expires_as_possibly_persisted(
    cluster: KafkaCluster, topic: str
) -> None:
    with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        producer.send(topic, b"0").result(SOON)
        with paused(cluster):
            delivery = producer.send(topic, b"1", delivery_timeout_ms=500)
            error = delivery.exception(SOON)
            assert isinstance(error, DeliveryTimeoutError)
            assert error.status is delivery.status is Status.POSSIBLY_PERSISTED


def test_flush_times_out_while_the_broker_is_silent(cluster: KafkaCluster, topic: str) -> None:
    values = [b"%d" % i for i in range(100)]
    with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        producer.send(topic, b"first").result(SOON)
        with paused(cluster):
            deliveries = [producer.send(topic, value) for value in values]
            with pytest.raises(FlushTimeoutError) as caught:
                producer.flush(0.1)
            assert caught.value.pending == 100
        producer.flush(SOON)
        assert [delivery.result(0).offset for delivery in deliveries] == list(range(1, 101))
    assert read_log(cluster, topic).values == [b"first", *values]


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_broker_that_answers_too_late(
    cluster: KafkaCluster, topic: str, idempotent: bool
) -> None:
    """The producer gives up requests that the broker appends after all, and retries them."""
    cluster.create_topic(topic, partitions=3)
    with Stream(
        cluster, topic, 3, 5000, request_timeout_ms=300, enable_idempotence=idempotent
    ) as stream:
        for _ in range(3):
            stream.wait_for_more(500)
            with told_by_log("did not answer a request in time") as told, paused(cluster):
                assert told.wait(PATIENCE)
        stream.finish()
    if idempotent:
        stream.assert_exactly_once()
    else:
        stream.assert_in_order()


# buffer_memory


def test_a_full_buffer_refuses_after_max_block_ms_and_empties_again(
    cluster: KafkaCluster, topic: str
) -> None:
    def fill() -> int:
        """Return how many messages are accepted while the broker is silent."""
        accepted = 0
        while True:
            try:
                producer.send(topic, bytes(1000))
            except BufferFullError:
                return accepted
            accepted += 1

    with Producer(
        bootstrap_servers=cluster.bootstrap_servers, buffer_memory=1_000_000, max_block_ms=50
    ) as producer:
        producer.send(topic, b"first").result(SOON)
        with paused(cluster):
            accepted = fill()
            # Each message costs its bytes and some overhead.
            assert 800 < accepted <= 1000
            with pytest.raises(BufferFullError, match=r"buffer_memory .*50 ms") as caught:
                producer.send(topic, bytes(1000))
            assert caught.value.status is Status.NOT_PERSISTED
        producer.flush(SOON)
        # All of it is free again: for one message that needs it all, and for as many as before.
        producer.send(topic, bytes(999_900)).result(SOON)
        with paused(cluster):
            assert abs(fill() - accepted) <= 1
    assert len(read_log(cluster, topic).records) >= 2 * accepted


def test_a_send_that_waits_for_space_goes_on_when_there_is_some(
    cluster: KafkaCluster, topic: str
) -> None:
    count = 500
    started = threading.Event()

    def send() -> None:
        for i in range(count):
            producer.send(topic, b"%1000d" % i)
            if i == 50:
                started.set()

    thread = threading.Thread(target=send)
    with Producer(
        bootstrap_servers=cluster.bootstrap_servers,
        buffer_memory=100_000,
        max_block_ms=SOON * 1000,
    ) as producer:
        producer.send(topic, b"first").result(SOON)
        with paused(cluster):
            thread.start()
            assert started.wait(SOON)
        thread.join(SOON)
        assert not thread.is_alive()
    values = read_log(cluster, topic).values
    assert values == [b"first", *(b"%1000d" % i for i in range(count))]
