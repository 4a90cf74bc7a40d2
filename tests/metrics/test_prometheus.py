"""Prometheus: a scrape returns the producers' stats, and never fails."""

from __future__ import annotations

import gc
import logging
import pathlib
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterable
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from prometheus_client.parser import text_string_to_metric_families

from pykaproducer import Producer
from pykaproducer.metrics import ProducerCollector, SocketCollector
from pykaproducer.testing import KafkaCluster
from tests._support.snapshots import Said, snapshot
from tests._support.speaker import speaking

ROOT = pathlib.Path(__file__).parent.parent.parent


def parsed(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Return the samples by name and labels, read by prometheus-client's own parser."""
    found = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation.endswith("."), family.name
        for sample in family.samples:
            labels = frozenset((name, value) for name, value in sample.labels.items() if value)
            assert (sample.name, labels) not in found, "a sample is there twice"
            found[sample.name, labels] = sample.value
    return found


def scraped(*collectors: Any) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    registry = CollectorRegistry()
    for collector in collectors:
        registry.register(collector)
    return parsed(generate_latest(registry).decode())


def key(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return f"pykaproducer_{name}", frozenset(labels.items())


def names(found: Iterable[tuple[str, frozenset[tuple[str, str]]]]) -> set[str]:
    return {name for name, _ in found}


def test_what_the_producer_said_under_the_names_that_prometheus_wants() -> None:
    said = Said()
    found = scraped(ProducerCollector(said))
    app = {"client_id": "app"}
    assert found[key("messages_accepted_total", **app)] == 1000
    assert found[key("messages_delivered_total", **app)] == 900
    assert found[key("messages_failed_total", **app)] == 10
    assert found[key("messages_pending", **app)] == 90
    assert found[key("delivered_bytes_total", **app)] == 90_000
    assert found[key("buffer_used_bytes", **app)] == 1_000_000
    assert found[key("throttle_seconds_total", **app)] == 1.5
    assert found[key("retried_batches_total", **app)] == 3
    assert found[key("delivery_latency_recent_seconds", **app, quantile="0.99")] == 0.008
    assert found[key("stage_messages", **app, stage="BrokerWorker", broker="1")] == 40
    assert found[key("stage_threads", **app, stage="Bridge", broker="1")] == 1
    assert found[key("broker_connected", **app, broker="1")] == 1
    assert found[key("broker_down", **app, broker="2")] == 1
    assert found[key("cluster_failing", **app)] == 0
    assert found[key("broker_unanswered", **app, broker="1")] == 3
    assert found[key("partition_messages", **app, topic="events", partition="1")] == 11
    assert found[key("topic_failing", **app, topic="gone")] == 1
    assert found[key("state", **app, state="running")] == 1
    assert found[key("state", **app, state="broken")] == 0
    # The queue has not been measured, so it has no sample.
    assert not [name for name in names(found) if "queue_latency" in name]


def test_one_series_for_a_topics_partitions() -> None:
    said = Said()
    found = scraped(ProducerCollector(said, per_partition=False))
    assert found[key("partition_messages", client_id="app", topic="events")] == 21
    assert found[key("partition_level", client_id="app", topic="events")] == 1
    stage = {"client_id": "app", "stage": "PartitionWorker", "topic": "events"}
    assert found[key("stage_messages", **stage)] == 3
    assert found[key("stage_oldest_seconds", **stage)] == 1.5
    assert not [labels for _, labels in found if "partition" in dict(labels)]


def test_histograms_count_from_the_smallest_on() -> None:
    said = Said()
    said.snapshot["latency_ms"]["delivery"] = {
        **said.snapshot["latency_ms"]["delivery"],
        "histogram": {"le_ms": [1, 10], "counts": [5, 3, 2], "sum_ms": 500.0},
    }
    found = scraped(ProducerCollector(said))
    name = "delivery_latency_seconds"
    assert found[key(f"{name}_bucket", client_id="app", le="0.001")] == 5
    assert found[key(f"{name}_bucket", client_id="app", le="0.01")] == 8
    assert found[key(f"{name}_bucket", client_id="app", le="+Inf")] == 10
    assert found[key(f"{name}_count", client_id="app")] == 10
    assert found[key(f"{name}_sum", client_id="app")] == 0.5


def test_several_producers_also_with_the_same_name() -> None:
    one, two, other = Said(), Said(messages={**snapshot()["messages"], "accepted": 7}), Said()
    other.snapshot["client_id"] = "other"
    collector = ProducerCollector(one, two, labels={"service": "shop"})
    collector.add(other)
    collector.add(one)  # adding it twice has no effect
    name = "messages_accepted_total"
    for client_id, accepted in {"app": 1000, "app#2": 7, "other": 1000}.items():
        found = scraped(collector)
        assert found[key(name, client_id=client_id, service="shop")] == accepted
    collector.remove(one)
    assert key(name, client_id="app", service="shop") not in scraped(collector)
    assert key(name, client_id="app#2", service="shop") in scraped(collector)


def test_a_label_that_is_taken_is_refused() -> None:
    with pytest.raises(ValueError, match="topic"):
        ProducerCollector(labels={"topic": "x"})


def test_a_producer_that_is_gone_drops_out_and_a_closed_one_stays_at_its_totals() -> None:
    said, closed = Said(), Said(state="closed", stages=[], brokers=[], topics=[], partitions=[])
    collector = ProducerCollector(said, closed)
    found = scraped(collector)
    assert found[key("messages_delivered_total", client_id="app#2")] == 900
    assert found[key("state", client_id="app#2", state="closed")] == 1
    assert key("messages_pending", client_id="app#2") not in found
    del said
    gc.collect()
    found = scraped(collector)
    assert key("messages_delivered_total", client_id="app") not in found
    assert key("messages_delivered_total", client_id="app#2") in found


class Failing(Said):
    def stats(self) -> dict[str, Any]:
        raise RuntimeError("no")


def test_a_producer_that_fails_costs_no_scrape(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "pykaproducer.metrics")
    failing, said = Failing(), Said()
    collector = ProducerCollector(failing, said)
    for _ in range(2):
        assert key("messages_delivered_total", client_id="app") in scraped(collector)
    assert len(caplog.records) == 1, "the error is not logged once"


def test_all_processes_that_listen(tmp_path: pathlib.Path) -> None:
    """As under gunicorn: each process serves the stats of all; unreachable ones are left out."""
    with (
        speaking(tmp_path / "1.sock", lambda: snapshot(pid=1)),
        speaking(tmp_path / "2.sock", lambda: snapshot(pid=2)),
        speaking(tmp_path / "3.sock", lambda: b"HTTP/1.1 400 Bad Request\r\n\r\n"),
    ):
        (tmp_path / "4.sock").write_bytes(b"")
        found = scraped(SocketCollector(str(tmp_path / "*.sock")))
    name = "messages_delivered_total"
    assert {dict(labels)["pid"] for series, labels in found if series.endswith(name)} == {"1", "2"}


def test_nothing_is_imported_before_it_is_used() -> None:
    program = (
        "import sys, pykaproducer.metrics\n"
        "loaded = {name.split('.')[0] for name in sys.modules}\n"
        "assert not loaded & {'prometheus_client', 'opentelemetry'}, loaded\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


@pytest.mark.parametrize(
    ("missing", "name"),
    [("prometheus_client", "ProducerCollector"), ("opentelemetry", "TracingInterceptor")],
)
def test_a_missing_extra_is_named(missing: str, name: str) -> None:
    program = (
        f"import sys; sys.modules[{missing!r}] = None; from pykaproducer.metrics import {name}"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    extra = missing.removesuffix("_client")
    assert f"pip install 'pykaproducer[{extra}]'" in done.stderr.splitlines()[-1]


def test_a_real_scrape_of_a_real_producer(cluster: KafkaCluster, topic: str) -> None:
    cluster.create_topic(topic, partitions=3)
    registry = CollectorRegistry()
    producer = Producer(bootstrap_servers=cluster.bootstrap_servers, client_id="scraped")
    registry.register(ProducerCollector(producer))
    server, thread = start_http_server(0, "127.0.0.1", registry)
    url = f"http://127.0.0.1:{server.server_port}/metrics"

    def scrape() -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        with urllib.request.urlopen(url, timeout=30) as answer:
            assert answer.status == 200
            return parsed(answer.read().decode())

    try:
        assert scrape()[key("messages_accepted_total", client_id="scraped")] == 0
        for number in range(300):
            producer.send(topic, b"value", b"%d" % number)
        producer.flush(60)
        found = scrape()
        assert found[key("messages_delivered_total", client_id="scraped")] == 300
        assert found[key("state", client_id="scraped", state="running")] == 1
        assert found[key("requests_answered_total", client_id="scraped")] >= 1
        assert found[key("topic_partitions", client_id="scraped", topic=topic)] == 3
        producer.close()
        found = scrape()
        assert found[key("messages_delivered_total", client_id="scraped")] == 300
        assert found[key("state", client_id="scraped", state="closed")] == 1
    finally:
        producer.close()
        server.shutdown()
        server.server_close()
        thread.join(30)


def test_the_documentation_has_every_name_and_no_other() -> None:
    text = (ROOT / "docs" / "observability.rst").read_text()
    table = re.findall(r"^``(\w+)``  ", text, re.MULTILINE)
    registry = CollectorRegistry()
    registry.register(ProducerCollector())
    there = []
    for line in generate_latest(registry).decode().splitlines():
        if line.startswith("# TYPE "):
            there.append(line.split()[2].removeprefix("pykaproducer_"))
    assert sorted(table) == sorted(there)
    queried = re.findall(r"pykaproducer_(\w+?)(?:_bucket)?[\[({ )]", text)
    assert set(queried) - {"messages_delivered"} <= set(there)
