"""Transactions in ``stats()``, ``metrics()``, Prometheus, OpenTelemetry and confluent's JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from prometheus_client import CollectorRegistry, generate_latest

from pykaproducer import Producer, TransactionAbortableError
from pykaproducer.confluent.settings import translate
from pykaproducer.confluent.statistics import statistics
from pykaproducer.delivery import TopicPartition
from pykaproducer.metrics import ProducerCollector, TracingInterceptor, observe
from pykaproducer.testing import MockProducer
from tests._support.snapshots import TRANSACTIONS, Said, snapshot


def used() -> MockProducer:
    """Return a mock with a committed, an aborted and an open transaction."""
    producer = MockProducer(transactional_id="mine", client_id="app")
    with producer.transaction():
        producer.send("events", b"1")
    with producer.transaction() as transaction:
        producer.send("events", b"2")
        transaction.abort()
    producer.begin_transaction()
    producer.send("events", b"3")
    return producer


def scraped(producer: Any) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(ProducerCollector(producer))
    lines = generate_latest(registry).decode().splitlines()
    return {
        name.removeprefix("pykaproducer_").replace('client_id="app"', ""): float(value)
        for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        if "transaction" in name or "commit" in name
    }


def test_stats() -> None:
    producer = MockProducer(transactional_id="mine")
    before = producer.stats()
    assert before["transactions"]["state"] == "uninitialized"
    assert before["transactions"]["producer_id"] == -1
    assert before["transactions"]["open_s"] is None
    producer = used()
    found = producer.stats()
    assert json.loads(json.dumps(found)) == found
    transactions = found["transactions"]
    assert set(transactions) == set(TRANSACTIONS) == set(before["transactions"])
    assert (transactions["state"], transactions["serial"]) == ("open", 3)
    assert (transactions["committed"], transactions["aborted"], transactions["fenced"]) == (1, 1, 0)
    assert (transactions["partitions"], transactions["protocol"]) == (1, 2)
    assert transactions["open_s"] >= transactions["state_s"] >= 0
    assert transactions["assignments"] == transactions["producer_epoch"] + 1 == 3
    commit = found["latency_ms"]["commit"]
    assert commit["count"] == sum(commit["histogram"]["counts"]) == 1
    producer.close()
    closed = producer.stats()["transactions"]
    assert (closed["state"], closed["committed"], closed["aborted"]) == ("closed", 1, 2)
    assert MockProducer().stats()["transactions"] is None
    assert set(MockProducer().stats()["latency_ms"]) == {"delivery", "request", "queue"}


def test_the_reason_for_which_it_must_be_aborted() -> None:
    producer = used()
    assert producer.stats()["transactions"]["error"] is None
    producer.refuse_next("commit_transaction", 120)
    with pytest.raises(TransactionAbortableError):
        producer.commit_transaction()
    found = producer.stats()["transactions"]
    assert found["state"] == "abortable"
    assert "TRANSACTION_ABORTABLE" in found["error"]


def test_names_of_kafka_python_and_java() -> None:
    found = used().metrics()
    assert found is not None
    group: Any = found["producer-metrics"]  # type: ignore[index]
    assert group["txn-commit-total"] == group["txn-abort-total"] == 1.0
    assert group["txn-fenced-total"] == 0.0
    for call in ("init", "commit", "abort"):
        assert group[f"txn-{call}-time-ns-total"] >= 0
    assert group["txn-commit-time-avg"] == group["txn-commit-time-max"]
    without: Any = MockProducer().metrics()
    assert not any(name.startswith("txn-") for name in without["producer-metrics"])


def test_prometheus() -> None:
    producer = used()
    found = scraped(producer)
    assert found["transactions_committed_total{}"] == 1
    assert found["transactions_aborted_total{}"] == 1
    assert found["transactions_fenced_total{}"] == 0
    assert found["transaction_partitions{}"] == 1
    assert found["transaction_open_seconds{}"] >= 0
    assert found['commit_latency_seconds_bucket{,le="+Inf"}'] == 1
    states = {name for name, value in found.items() if "transaction_state" in name and value}
    assert states == {'transaction_state{,state="open"}'}
    producer.close()
    found = scraped(producer)
    assert found["transactions_aborted_total{}"] == 2
    assert "transaction_open_seconds{}" not in found


def test_prometheus_without_transactions() -> None:
    producer = MockProducer(client_id="app")
    assert scraped(producer) == {}


def test_opentelemetry() -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    said = Said(transactions=TRANSACTIONS)
    observe(said, meter_provider=provider)
    data = reader.get_metrics_data()
    assert data is not None
    values = {
        metric.name: [point.value for point in metric.data.data_points]  # type: ignore[union-attr]
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    assert values["pykaproducer.transactions.committed"] == [40]
    assert values["pykaproducer.transaction.open"] == [0.25]
    assert sum(values["pykaproducer.transaction.state"]) == 1
    provider.shutdown()


def test_spans_have_the_transactional_id() -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with MockProducer(
        transactional_id="mine", interceptors=[TracingInterceptor(provider)], auto_complete=False
    ) as producer:
        with producer.transaction():
            producer.send("events", b"committed")
        with producer.transaction() as transaction:
            producer.send("events", b"aborted")
            transaction.abort()
    spans = [span for span in exporter.get_finished_spans() if span.kind is SpanKind.PRODUCER]
    committed, aborted = (dict(span.attributes or {}) for span in spans)
    assert committed["pykaproducer.transactional_id"] == "mine"
    assert "error.type" not in committed
    assert aborted["error.type"] == "pykaproducer.errors.TransactionAbortedError"
    provider.shutdown()


def test_calls_that_wait_for_brokers_have_spans() -> None:
    """Also one that raises. They are children of the current span."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    producer = MockProducer(
        transactional_id="mine", client_id="app", interceptors=[TracingInterceptor(provider)]
    )
    with provider.get_tracer("test").start_as_current_span("transfer") as transfer:
        with producer.transaction():
            producer.send("events", b"value")
            producer.send_offsets_to_transaction({TopicPartition("input", 0): 1}, "group")
        with producer.transaction() as transaction:
            transaction.abort()
        producer.begin_transaction()
        producer.send("events", b"value")
        producer.refuse_next("commit_transaction", 120)
        with pytest.raises(TransactionAbortableError):
            producer.commit_transaction()
        producer.abort_transaction()
    spans = [span for span in exporter.get_finished_spans() if span.kind is SpanKind.CLIENT]
    assert [span.name for span in spans] == [
        "init_transactions",
        "send_offsets_to_transaction",
        "commit_transaction",
        "abort_transaction",
        "commit_transaction",
        "abort_transaction",
    ]
    own = transfer.get_span_context()
    assert {span.parent and span.parent.span_id for span in spans} == {own.span_id}
    for span in spans:
        found = dict(span.attributes or {})
        failed = found.pop("error.type", None)
        assert found == {
            "messaging.system": "kafka",
            "messaging.operation.name": span.name,
            "messaging.client.id": "app",
            "pykaproducer.transactional_id": "mine",
        }
        assert (span.status.status_code is StatusCode.ERROR) == (span is spans[4])
        assert (failed is not None) == (span is spans[4])
    assert "TRANSACTION_ABORTABLE" in (spans[4].status.description or "")
    provider.shutdown()


@pytest.mark.parametrize(
    ("state", "txn_state", "idemp_state"),
    [
        ("uninitialized", "Init", "Init"),
        ("initializing", "WaitPID", "WaitPID"),
        ("ready", "Ready", "Assigned"),
        ("open", "InTransaction", "Assigned"),
        ("flushing", "BeginCommit", "Assigned"),
        ("committing", "CommittingTransaction", "Assigned"),
        ("abortable", "AbortableError", "Assigned"),
        ("aborting", "AbortingTransaction", "Assigned"),
        ("fatal", "FatalError", "FatalError"),
        ("closed", "Init", "Init"),
    ],
)
def test_the_section_of_librdkafka(state: str, txn_state: str, idemp_state: str) -> None:
    stats = snapshot(transactions={**TRANSACTIONS, "state": state})
    found = statistics(stats, translate({"bootstrap.servers": "a:1"}), 0, 1.0, 1.0)["eos"]
    assert found == {
        "idemp_state": idemp_state,
        "idemp_stateage": 500 if idemp_state == "Assigned" else 250,
        "txn_state": txn_state,
        "txn_stateage": 250,
        "txn_may_enq": state == "open",
        "producer_id": 4000,
        "producer_epoch": 49,
        "epoch_cnt": 50,
    }


def test_without_transactions_there_is_no_section() -> None:
    found = statistics(snapshot(), translate({"bootstrap.servers": "a:1"}), 0, 1.0, 1.0)
    assert "eos" not in found


def test_a_real_producer_that_is_not_started() -> None:
    producer = Producer(bootstrap_servers="127.0.0.1:9", transactional_id="mine", client_id="app")
    assert scraped(producer)["transactions_committed_total{}"] == 0
    producer.close()
