"""``stats()``: its content while messages wait, move and fail, and where it may be called."""

from __future__ import annotations

import json
import os
import signal
import threading
from typing import Any

import pytest

from pykaproducer import BufferFullError, DeliveryFailures
from pykaproducer._errors.codes import ErrorCode
from pykaproducer.testing import FakeClock, ScriptedCluster
from pykaproducer.testing.scripted import Refuse
from tests._support import programs
from tests.pipeline.helper import (
    FAST,
    LINGERING,
    SOON,
    Held,
    ended,
    error_of,
    offsets,
    pipeline_of,
    send,
    until,
    warm_up,
)

SUMMARY = {"count", "mean", "p50", "p95", "p99", "max", "histogram"}


def stage(stats: dict[str, Any], kind: str) -> dict[str, Any]:
    (found,) = [each for each in stats["stages"] if each["stage"] == kind]
    return dict(found)


def test_before_the_first_message() -> None:
    with ScriptedCluster(topics={"t": 1}) as cluster, cluster.producer(client_id="me") as producer:
        stats = producer.stats()
    assert json.loads(json.dumps(stats)) == stats
    assert stats["client_id"] == "me"
    assert stats["pid"] == os.getpid()
    assert stats["state"] == "idle"
    assert stats["started"] is None
    assert stats["messages"] == {"accepted": 0, "delivered": 0, "failed": 0, "pending": 0}
    assert stats["buffer"] == {"limit": 64 << 20, "used": 0, "waiting_senders": 0}
    assert set(stats["latency_ms"]) == {"delivery", "request", "queue"}
    for summary in stats["latency_ms"].values():
        assert set(summary) == SUMMARY
        assert summary["count"] == 0
        assert summary["p99"] is None
    for name in ("stages", "brokers", "topics", "partitions"):
        assert stats[name] == []


def test_messages_that_were_delivered() -> None:
    with ScriptedCluster(topics={"t": 2}) as cluster, cluster.producer() as producer:
        deliveries = send(producer, [b"12345"] * 10, partition=1)
        producer.flush(SOON)
        stats = producer.stats()
        del deliveries
        assert stats["state"] == "running"
        assert 0 < stats["started"] <= stats["time"]
        assert stats["messages"] == {"accepted": 10, "delivered": 10, "failed": 0, "pending": 0}
        assert stats["bytes"] == {"accepted": 50, "delivered": 50}
        requests = stats["requests"]
        assert requests["sent"] == requests["answered"] == len(cluster.received("produce"))
        assert requests["batches"] == len(cluster.batches("t", 1))
        assert requests["lost"] == requests["retried_batches"] == 0
        delivery = stats["latency_ms"]["delivery"]
        assert delivery["count"] == 10
        assert 0 < delivery["p50"] <= delivery["p95"] <= delivery["p99"] <= delivery["max"]
        assert stats["latency_ms"]["queue"]["count"] == 10
        assert sum(delivery["histogram"]["counts"]) == 10
        assert len(delivery["histogram"]["counts"]) == len(delivery["histogram"]["le_ms"]) + 1
        assert stats["topics"] == [{"topic": "t", "partitions": 2, "error": None}]
        (partition,) = stats["partitions"]
        assert partition == {
            "topic": "t",
            "partition": 1,
            "leader": 0,
            "level": 0,
            "unanswered_batches": 0,
            "waiting_rows": 0,
            "waiting_bytes": 0,
            "delivered": 10,
            "bytes": 50,
        }
        (broker,) = stats["brokers"]
        assert broker["state"] == "connected"
        assert (broker["references"], broker["unanswered_requests"]) == (1, 0)
        kinds = {each["stage"] for each in stats["stages"]}
        assert kinds == {
            "Dispatcher",
            "TopicWorker",
            "PartitionWorker",
            "BrokerWorker",
            "Bridge",
            "RetryHandler",
            "Reports",
            "LogWriter",
            "Metadata",
        }
        running = {thread.name for thread in threading.enumerate()}
        assert {each["name"] for each in stats["stages"] if each["alive"]} <= running


def test_messages_that_wait_for_metadata() -> None:
    clock = FakeClock()
    with ScriptedCluster() as cluster, ended(cluster.producer(clock=clock)) as producer:
        send(producer, [b"12345"] * 3)
        cluster.wait_for("metadata", 1)
        clock.jump(0.05)
        stats = producer.stats()
        dispatcher = stage(stats, "Dispatcher")
        assert (dispatcher["rows"], dispatcher["bytes"]) == (3, 15)
        assert dispatcher["oldest_s"] == pytest.approx(0.05)
        assert stats["messages"]["pending"] == 3
        (topic,) = stats["topics"]
        assert topic["topic"] == "t"
        assert topic["partitions"] == 0
        assert topic["error"]


def test_messages_that_linger_and_messages_under_way() -> None:
    """They linger in the open chunk, which counts for the dispatcher, and then at the broker."""
    clock, held = FakeClock(), Held()
    with ScriptedCluster(topics={"t": 1}) as cluster:
        with ended(cluster.producer(clock=clock, **LINGERING)) as producer:
            delivery = send(producer, [b"first"])
            producer.flush(SOON)
            offsets(delivery)
            # The flush may return while the stage still handles the response, after which it takes
            # what the dispatcher holds.
            (broker,) = pipeline_of(producer).brokers.all()
            until(lambda: not broker.requests)
            with broker._running:
                pass
            send(producer, [b"12345"] * 3)
            until(lambda: bool(pipeline_of(producer).dispatcher.held))
            assert stage(producer.stats(), "Dispatcher")["rows"] == 3
            clock.jump(0.01)
            until(lambda: stage(producer.stats(), "BrokerWorker")["rows"] == 3)
            (partition,) = producer.stats()["partitions"]
            assert (partition["waiting_rows"], partition["waiting_bytes"]) == (3, 15)
        cluster.next("produce", held)
        with cluster.producer() as producer:
            (delivery,) = send(producer, [b"12345"])
            held.wait_until_held()
            stats = producer.stats()
            assert stage(stats, "Bridge")["rows"] == 1
            assert stats["brokers"][0]["unanswered_requests"] == 1
            assert stats["partitions"][0]["unanswered_batches"] == 1
            assert stats["buffer"]["used"] > 5
            held.release()
            offsets([delivery])


def test_failures_and_what_goes_again_are_counted() -> None:
    with ScriptedCluster(topics={"t": 1}) as cluster, cluster.producer(**FAST) as producer:
        warm_up(producer)
        cluster.next("produce", Refuse(ErrorCode.NOT_ENOUGH_REPLICAS), Refuse(ErrorCode.NONE))
        offsets(send(producer, [b"again"]))
        cluster.next("produce", Refuse(ErrorCode.INVALID_RECORD))
        error_of(send(producer, [b"bad"])[0])
        stats = producer.stats()
        assert stats["requests"]["retried_batches"] == 1
        assert stats["messages"] == {"accepted": 3, "delivered": 2, "failed": 1, "pending": 0}
        cluster.stop(0)
        producer.send("t", b"lost")
        until(lambda: producer.stats()["brokers"][0]["state"] == "down")
        assert "broker" in str(producer.stats()["brokers"][0]["last_error"])
        cluster.start(0)
        producer.flush(SOON)


def test_after_the_end_the_totals_stay() -> None:
    with ScriptedCluster(topics={"t": 1}) as cluster:
        producer = cluster.producer()
        offsets(send(producer, [b"1", b"2"]))
        producer.close()
        stats = producer.stats()
        assert stats["state"] == "closed"
        assert stats["messages"]["delivered"] == 2
        assert stats["latency_ms"]["delivery"]["count"] == 2
        assert stats["stages"] == []


def test_the_window_passes_and_the_totals_stay() -> None:
    clock = FakeClock()
    with ScriptedCluster(topics={"t": 1}) as cluster:
        settings = {"metrics_num_samples": 2, "metrics_sample_window_ms": 1000}
        with ended(cluster.producer(clock=clock, **settings)) as producer:
            offsets(send(producer, [b"1"]))
            assert producer.stats()["latency_ms"]["delivery"]["count"] == 1
            clock.jump(3)
            stats = producer.stats()
            assert stats["latency_ms"]["delivery"]["count"] == 0
            assert stats["latency_ms"]["delivery"]["max"] is None
            assert sum(stats["latency_ms"]["delivery"]["histogram"]["counts"]) == 1
            assert stats["messages"]["delivered"] == 1


def test_in_a_callback() -> None:
    seen: list[dict[str, Any]] = []
    with ScriptedCluster(topics={"t": 1}) as cluster, cluster.producer() as producer:
        producer.send("t", b"1", on_delivery=lambda *_: seen.append(producer.stats()))
        producer.flush(SOON)
    (stats,) = seen
    assert stats["messages"]["delivered"] == 1


def test_in_a_signal_handler() -> None:
    """At any point in the main thread."""
    seen: list[dict[str, Any]] = []
    with ScriptedCluster(topics={"t": 1}) as cluster, cluster.producer() as producer:
        before = signal.signal(signal.SIGALRM, lambda *_: seen.append(producer.stats()))
        signal.setitimer(signal.ITIMER_REAL, 0.005, 0.005)
        try:
            for number in range(2000):
                delivery = producer.send("t", b"%d" % number)
                if number % 100 == 0:
                    producer.flush(SOON)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        offsets([delivery])
    assert seen
    for stats in seen:
        counted = stats["messages"]
        assert counted["delivered"] <= counted["accepted"]
        assert counted["pending"] >= 0


def test_threads_that_wait_for_space_are_counted() -> None:
    with (
        ScriptedCluster() as cluster,
        ended(cluster.producer(buffer_memory=2000, max_block_ms=3_600_000)) as producer,
    ):
        producer.send("t", bytes(1500))

        def wait() -> None:
            with pytest.raises(Exception, match="closed"):
                producer.send("t", bytes(1500))

        thread = threading.Thread(target=wait)
        thread.start()
        until(lambda: producer.stats()["buffer"]["waiting_senders"] == 1)
        producer.abort()
        thread.join(SOON)


def test_a_full_buffer_is_seen() -> None:
    with (
        ScriptedCluster() as cluster,
        ended(cluster.producer(buffer_memory=2000, max_block_ms=0)) as producer,
    ):
        producer.send("t", bytes(1500))
        with pytest.raises(BufferFullError):
            producer.send("t", bytes(1500))
        assert producer.stats()["buffer"]["used"] > 1500


def test_after_a_fork_it_counts_from_zero() -> None:
    script = """
        import os
        from pykaproducer import Producer

        producer = Producer(bootstrap_servers="127.0.0.1:1")
        producer.send("t", b"1")
        child = os.fork()
        if not child:
            stats = producer.stats()
            assert stats["messages"] == {"accepted": 0, "delivered": 0, "failed": 0, "pending": 0}
            assert (stats["state"], stats["pid"]) == ("idle", os.getpid())
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert producer.stats()["messages"]["pending"] == 1
        producer.abort()
        """
    programs.run(script)


def test_a_broken_producer_says_so() -> None:
    with ScriptedCluster(topics={"t": 1}) as cluster, ended(cluster.producer()) as producer:
        offsets(send(producer, [b"1"]))
        pipeline = producer._pipeline
        assert pipeline is not None
        pipeline.dispatcher.put(object())  # nothing happens
        pipeline.retry.put(object())  # it ignores unknown items
        until(lambda: producer.stats()["state"] == "broken")


def test_what_nobody_was_told_is_still_raised() -> None:
    """Reading the stats does not count as reporting a failure."""
    with ScriptedCluster(topics={"t": 1}) as cluster, cluster.producer() as producer:
        cluster.next("produce", Refuse(ErrorCode.INVALID_RECORD))
        producer.send("t", b"bad")
        until(lambda: producer.stats()["messages"]["failed"] == 1)
        with pytest.raises(DeliveryFailures):
            producer.flush(SOON)


def test_a_stage_can_be_looked_at_as_soon_as_it_is_there() -> None:
    class Looked(dict[Any, None]):
        """A table of the stages that reads the stats whenever a stage is added."""

        def __setitem__(self, stage: Any, value: None) -> None:
            super().__setitem__(stage, value)
            looks.append(producer.stats())

    looks: list[dict[str, Any]] = []
    with ScriptedCluster(topics={"t": 1}) as cluster, cluster.producer() as producer:
        producer.connect()
        assert producer._pipeline is not None
        producer._pipeline.stages = Looked(producer._pipeline.stages)
        producer.send("t", b"v").result(SOON)
        assert stage(looks[0], "TopicWorker")["topic"] == "t"
        assert looks[-1]["partitions"][0]["topic"] == "t"
