"""Closing, exiting, forking, and many concurrent users."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import textwrap
import threading

import pytest

from pykaproducer import AbortedError, Delivery, Producer, ProducerClosedError, Status
from pykaproducer.testing import KafkaCluster
from tests._support.programs import run
from tests._support.threads import threads_left, threads_of

from .faults import paused
from .readback import assert_in_log, read_log, read_values

SOON = 30


@pytest.fixture(scope="module")
def cluster(own_cluster: KafkaCluster) -> KafkaCluster:
    """Return brokers that may be stopped."""
    return own_cluster


# close()


def test_close_delivers_everything_and_leaves_no_thread(cluster: KafkaCluster, topic: str) -> None:
    cluster.create_topic(topic, partitions=3)
    values = [b"%d" % i for i in range(3000)]
    producer = Producer(
        bootstrap_servers=cluster.bootstrap_servers, client_id="closing", linger_ms=60_000
    )
    deliveries = [producer.send(topic, value) for value in values]
    assert threads_of("closing")
    producer.close(SOON)
    assert threads_left("closing") == []
    assert all(delivery.done() for delivery in deliveries)
    assert_in_log(cluster, deliveries, values)
    producer.close(SOON)
    with pytest.raises(ProducerClosedError):
        producer.send(topic, b"late")
    # A handle outlives its producer.
    assert deliveries[0].result(0).topic == topic


@pytest.mark.parametrize("how", ["close(0)", "abort()", "close(0.1)"])
def test_closing_without_time_fails_the_rest(
    cluster: KafkaCluster, topic: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[BaseException | None] = []
    producer = Producer(bootstrap_servers=cluster.bootstrap_servers, client_id="short")
    done = producer.send(topic, b"delivered")
    done.result(SOON)
    with paused(cluster):
        deliveries = [producer.send(topic, b"%d" % i) for i in range(100)]
        producer.send(topic, b"reported", on_delivery=lambda error, delivery: told.append(error))
        match how:
            case "abort()":
                producer.abort()
            case "close(0)":
                producer.close(0)
            case _:
                producer.close(0.1)
        # The broker is still silent.
        assert threads_left("short") == []
        errors = [delivery.exception(0) for delivery in deliveries]
    assert done.exception(0) is None
    assert {type(error) for error in (*errors, *told)} == {AbortedError}
    assert len(told) == 1
    assert "close" in str(errors[0])
    for error in errors:
        assert isinstance(error, AbortedError)
        assert error.status in (Status.NOT_PERSISTED, Status.POSSIBLY_PERSISTED)


def test_close_says_how_many_failed_that_nobody_was_told_of(
    cluster: KafkaCluster, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.create_topic(topic)
    producer = Producer(bootstrap_servers=cluster.bootstrap_servers)
    for partition in range(5):
        producer.send(topic, b"value", partition=partition)
    producer.close()
    (record,) = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert record.name == "pykaproducer.producer"
    assert "4 messages were not delivered" in record.getMessage()


def test_close_in_a_callback_closes_by_itself(cluster: KafkaCluster, topic: str) -> None:
    asked = threading.Event()

    def stop(error: BaseException | None, delivery: Delivery) -> None:
        producer.close()
        asked.set()

    producer = Producer(bootstrap_servers=cluster.bootstrap_servers, client_id="inside")
    producer.send(topic, b"first", on_delivery=stop)
    second = producer.send(topic, b"second")
    assert asked.wait(SOON)
    with pytest.raises(ProducerClosedError):
        producer.send(topic, b"late")
    assert second.exception(SOON) is None
    assert threads_left("inside") == []


def test_several_threads_may_close_at_once(cluster: KafkaCluster, topic: str) -> None:
    producer = Producer(
        bootstrap_servers=cluster.bootstrap_servers, client_id="crowd", linger_ms=60_000
    )
    delivery = producer.send(topic, b"value")
    closers = [threading.Thread(target=producer.close, args=(SOON,)) for _ in range(5)]
    for closer in closers:
        closer.start()
    for closer in closers:
        closer.join(SOON)
    assert threads_left("crowd") == []
    assert delivery.exception(0) is None


def test_a_send_that_waits_for_space_learns_that_the_producer_is_closed(
    cluster: KafkaCluster, topic: str
) -> None:
    told: list[BaseException] = []
    filling = threading.Event()

    def fill() -> None:
        try:
            while True:
                producer.send(topic, bytes(1000))
                filling.set()
        except ProducerClosedError as error:
            told.append(error)

    producer = Producer(
        bootstrap_servers=cluster.bootstrap_servers,
        buffer_memory=50_000,
        max_block_ms=SOON * 1000,
    )
    producer.send(topic, b"first").result(SOON)
    thread = threading.Thread(target=fill)
    with paused(cluster):
        thread.start()
        assert filling.wait(SOON)
        producer.close(0)
        thread.join(SOON)
    assert len(told) == 1


# Concurrent users


def test_threads_keep_their_order_in_each_partition(cluster: KafkaCluster, topic: str) -> None:
    cluster.create_topic(topic, partitions=3)
    threads, count = 6, 1500
    start = threading.Barrier(threads)

    def send(number: int) -> None:
        start.wait(SOON)
        for i in range(count):
            producer.send(topic, b"%d %d" % (number, i), partition=i % 3)

    with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        senders = [threading.Thread(target=send, args=(number,)) for number in range(threads)]
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join(SOON)
    for partition, values in enumerate(read_values(cluster, topic, 3)):
        pairs = [tuple(map(int, (value or b"").split())) for value in values]
        for number in range(threads):
            assert [i for sender, i in pairs if sender == number] == [*range(partition, count, 3)]
        assert len(pairs) == threads * count // 3


def test_two_producers_do_not_disturb_each_other(cluster: KafkaCluster, topic: str) -> None:
    cluster.create_topic(topic)
    with (
        Producer(bootstrap_servers=cluster.bootstrap_servers) as one,
        Producer(bootstrap_servers=cluster.bootstrap_servers, acks=1) as other,
    ):
        for i in range(2000):
            one.send(topic, b"one %d" % i)
            other.send(topic, b"other %d" % i)
    values = read_log(cluster, topic).values
    for name in (b"one", b"other"):
        mine = [value for value in values if (value or b"").startswith(name + b" ")]
        assert mine == [b"%s %d" % (name, i) for i in range(2000)]


# Exit and fork, each in a separate process


EXITS = {
    "the end of the script": "",
    "sys.exit": "sys.exit(0)",
    "an error": "raise LookupError('a mistake of the user')",
    "SIGINT": "os.kill(os.getpid(), signal.SIGINT); signal.pause()",
}


@pytest.mark.parametrize("ending", EXITS.values(), ids=EXITS)
def test_an_exit_without_close_delivers(cluster: KafkaCluster, topic: str, ending: str) -> None:
    script = """
        import os, signal, sys
        from pykaproducer import Producer
        signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background it is ignored
        producer = Producer(bootstrap_servers=sys.argv[1], linger_ms=60_000)
        for i in range(1000):
            producer.send(sys.argv[2], b"%d" % i)
        """
    ended = subprocess.run(
        [
            sys.executable,
            "-c",
            textwrap.dedent(script) + ending,
            cluster.bootstrap_servers,
            topic,
        ],
        stderr=subprocess.PIPE,
        text=True,
        timeout=2 * SOON,
        check=False,
    )
    if ending.startswith("raise"):
        assert ended.stderr.endswith("LookupError: a mistake of the user\n")
    elif "SIGINT" in ending:
        assert ended.returncode == -signal.SIGINT
    else:
        assert ended.stderr == ""
    assert read_log(cluster, topic).values == [b"%d" % i for i in range(1000)]


def test_after_a_fork_the_child_starts_empty_and_works(cluster: KafkaCluster, topic: str) -> None:
    cluster.create_topic(topic)
    script = """
        import os, sys, threading
        from pykaproducer import ForkedProducerError, Producer
        servers, topic = sys.argv[1:]
        producer = Producer(bootstrap_servers=servers, linger_ms=60_000)
        settled = producer.send(topic, b"parent 0")
        producer.flush(30)
        told = []
        pending = producer.send(
            topic, b"parent 1", on_delivery=lambda error, delivery: told.append(os.getpid())
        )
        child = os.fork()
        if child == 0:
            try:
                assert settled.result(0).offset == 0
                for ask in (pending.result, pending.exception):
                    try:
                        ask(1)
                    except ForkedProducerError as error:
                        print(type(error).__name__)
                assert threading.active_count() == 1
                own = [producer.send(topic, b"child %d" % i) for i in range(3)]
                producer.flush(30)
                print([delivery.result(0).partition for delivery in own])
                producer.close(30)
                print(threading.active_count(), told)
                sys.stdout.flush()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        producer.flush(30)
        assert told == [os.getpid()]
        assert pending.result(0).offset > 0
        producer.send(topic, b"parent 2")
        producer.close(30)
        """
    output = run(script, cluster.bootstrap_servers, topic)
    assert output.splitlines() == [
        "ForkedProducerError",
        "ForkedProducerError",
        "[0, 0, 0]",
        "1 []",
    ]
    values = read_log(cluster, topic).values
    for who, count in ((b"parent", 3), (b"child", 3)):
        mine = [value for value in values if (value or b"").startswith(who)]
        assert mine == [b"%s %d" % (who, i) for i in range(count)]


def test_a_child_that_exits_delivers_its_own_messages_only(
    cluster: KafkaCluster, topic: str
) -> None:
    """A producer made before the fork, as with a web server's preload."""
    cluster.create_topic(topic)
    script = """
        import os, sys
        from pykaproducer import Producer
        servers, topic = sys.argv[1:]
        producer = Producer(bootstrap_servers=servers, linger_ms=60_000)
        producer.send(topic, b"parent")
        children = []
        for number in range(3):
            child = os.fork()
            if child == 0:
                producer.send(topic, b"child %d" % number)
                sys.exit(0)
            children.append(child)
        for child in children:
            assert os.waitpid(child, 0)[1] == 0
        """
    run(script, cluster.bootstrap_servers, topic)
    values = read_log(cluster, topic).values
    assert sorted(values, key=str) == [b"child 0", b"child 1", b"child 2", b"parent"]
