"""``metrics()``: kafka-python's names and shape, checked against kafka-python itself."""

from __future__ import annotations

from typing import Any

import kafka
import pytest

from pykaproducer import Producer
from pykaproducer._errors.codes import ErrorCode
from pykaproducer.testing import FakeClock, KafkaCluster, ScriptedCluster
from pykaproducer.testing.scripted import Refuse
from tests._support.peers import needs_kafka_python_3
from tests.pipeline.helper import FAST, SOON, Amend, ended, error_of, offsets, send, warm_up

#: kafka-python's groups for which there is no equivalent.
BOOTSTRAP = "producer-node-metrics.node-bootstrap"


def throttled(milliseconds: int) -> Amend:
    def change(answer: Any) -> None:
        answer.throttle_time_ms = milliseconds

    return Amend(change)


@needs_kafka_python_3
def test_every_name_of_kafka_python_is_there(cluster: KafkaCluster, topic: str) -> None:
    cluster.create_topic(topic)
    settings = {"bootstrap_servers": cluster.bootstrap_servers, "compression_type": "gzip"}
    tables = []
    for kind in (kafka.KafkaProducer, Producer):
        producer = kind(**settings)
        for _ in range(100):
            producer.send(topic, b"x" * 100)
        producer.flush()
        tables.append(producer.metrics())
        producer.close()
    theirs, ours = tables
    for group, names in theirs.items():
        if group.startswith(BOOTSTRAP):
            continue
        assert set(names) <= set(ours[group]), group
    assert all(isinstance(value, float) for names in ours.values() for value in names.values())
    count = sum(len(names) for names in ours.values())
    assert ours["kafka-metrics-count"] == {"count": count}
    # The same messages give the same numbers, except for those that depend on time.
    for table in tables:
        node = table["producer-topic-metrics." + topic]
        assert 0 < node["compression-rate"] < 1
        assert table["producer-metrics"]["record-size-max"] > 100


def test_what_was_sent() -> None:
    with (
        ScriptedCluster(topics={"t": 1, "u": 1}) as cluster,
        cluster.producer(**FAST) as producer,
    ):
        warm_up(producer)
        cluster.next("produce", Refuse(ErrorCode.NOT_ENOUGH_REPLICAS))
        offsets(send(producer, [b"again"]))
        cluster.next("produce", Refuse(ErrorCode.INVALID_RECORD))
        error_of(send(producer, [b"bad"], topic="u")[0])
        producer.flush(SOON)  # by then the memory is free, too
        metrics = producer.metrics()
        assert metrics is not None
        everything = metrics["producer-metrics"]
        assert everything["record-send-total"] == 4  # one of them twice
        assert everything["record-retry-total"] == 1
        assert everything["record-error-total"] == 1
        assert metrics["producer-topic-metrics.u"]["record-error-total"] == 1
        assert metrics["producer-topic-metrics.t"]["record-error-total"] == 0
        assert everything["batch-size-max"] >= everything["batch-size-avg"] > 0
        assert everything["records-per-request-avg"] == 1
        requests = len(cluster.received("produce"))
        assert metrics["producer-node-metrics.node-0"]["request-size-avg"] > 60
        assert metrics["producer-node-metrics.node-0"]["request-rate"] <= requests
        assert everything["connection-count"] == 2
        assert everything["buffer-available-bytes"] == everything["buffer-total-bytes"]


def test_rates_and_averages_end_with_the_window() -> None:
    clock = FakeClock()
    with ScriptedCluster(topics={"t": 1}) as cluster:
        settings = {"metrics_num_samples": 2, "metrics_sample_window_ms": 10_000}
        with ended(cluster.producer(clock=clock, **settings)) as producer:
            for _ in range(3):
                offsets(send(producer, [b"1234567890"] * 10))
                clock.jump(4)
            group = producer.metrics()["producer-metrics"]  # type: ignore[index]
            assert group["record-send-rate"] == pytest.approx(30 / 12)
            assert group["request-latency-avg"] == 0
            clock.jump(20)
            group = producer.metrics()["producer-metrics"]  # type: ignore[index]
            assert group["record-send-rate"] == 0
            assert group["batch-size-avg"] == 0
            assert group["record-send-total"] == 30


def test_raw_has_the_objects() -> None:
    with ScriptedCluster(topics={"t": 1}) as cluster, cluster.producer(client_id="me") as producer:
        warm_up(producer)
        raw = producer.metrics(raw=True)
        tables = producer.metrics()
        assert raw is not None
        assert tables is not None
        names = {(metric.group, metric.name) for metric in raw}
        assert names == {(group, name) for group in tables for name in tables[group]}
        for name, metric in raw.items():
            assert metric.metric_name == name
            assert isinstance(metric.value(), float)
            assert dict(name.tags) == {"client-id": "me"}


def test_none_if_they_are_switched_off() -> None:
    with (
        ScriptedCluster(topics={"t": 1}) as cluster,
        cluster.producer(metrics_enabled=False) as producer,
    ):
        warm_up(producer)
        assert producer.metrics() is None
        assert producer.stats()["messages"]["delivered"] == 1


def test_before_the_first_message_and_after_the_end() -> None:
    with ScriptedCluster(topics={"t": 1}) as cluster:
        producer = cluster.producer()
        assert set(producer.metrics() or ()) == {"kafka-metrics-count", "producer-metrics"}
        warm_up(producer)
        producer.close()
        closed = producer.metrics()
        assert closed is not None
        assert closed["producer-metrics"]["record-send-total"] == 1
        assert closed["producer-metrics"]["connection-count"] == 0


def test_throttling_is_measured() -> None:
    with ScriptedCluster(topics={"t": 1}) as cluster, cluster.producer(**FAST) as producer:
        warm_up(producer)
        cluster.next("produce", throttled(3))
        offsets(send(producer, [b"1"]))
        metrics = producer.metrics()
        assert metrics is not None
        assert metrics["producer-metrics"]["throttle-time-max"] == 3
        assert producer.stats()["requests"]["throttle_ms"] == 3
        producer.flush(SOON)
