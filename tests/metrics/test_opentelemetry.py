"""OpenTelemetry: spans from send() to the outcome, their context in the log, and metrics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import messaging_attributes
from opentelemetry.semconv._incubating.metrics import messaging_metrics
from opentelemetry.trace import SpanKind, StatusCode

from pykaproducer import MessageTooLargeError, Producer
from pykaproducer.metrics import TracingInterceptor, observe
from pykaproducer.testing import KafkaCluster
from tests._support.consumer import consume
from tests._support.snapshots import Said
from tests.cli.helper import NOWHERE


class Traces:
    """A tracer provider that keeps its spans in memory."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def spans(self) -> list[ReadableSpan]:
        return [s for s in self._exporter.get_finished_spans() if s.kind is SpanKind.PRODUCER]


class Meters:
    """A meter provider whose metrics are read in memory."""

    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        self.provider = MeterProvider([self._reader])

    def read(self) -> dict[str, list[Any]]:
        data = self._reader.get_metrics_data()
        return {
            metric.name: list(metric.data.data_points)
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


@pytest.fixture
def traces() -> Iterator[Traces]:
    found = Traces()
    yield found
    found.provider.shutdown()


@pytest.fixture
def meters() -> Iterator[Meters]:
    found = Meters()
    yield found
    found.provider.shutdown()


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def traceparent(span: ReadableSpan) -> bytes:
    found = span.get_span_context()
    assert found is not None
    ids = f"{found.trace_id:032x}-{found.span_id:016x}"
    return f"00-{ids}-{found.trace_flags:02x}".encode()


def test_a_span_goes_with_the_message(cluster: KafkaCluster, topic: str, traces: Traces) -> None:
    cluster.create_topic(topic, partitions=2)
    tracer = traces.provider.get_tracer("test")
    with Producer(
        bootstrap_servers=cluster.bootstrap_servers,
        client_id="traced",
        interceptors=[TracingInterceptor(traces.provider)],
    ) as producer:
        with tracer.start_as_current_span("order") as order:
            delivery = producer.send(topic, b"value", headers=[("mine", b"x")], partition=1)
        offset = delivery.result(60).offset
    (span,) = traces.spans()
    assert span.name == f"send {topic}"
    assert span.parent is not None
    assert span.parent.span_id == order.get_span_context().span_id
    assert span.status.status_code is StatusCode.UNSET
    assert attributes(span) == {
        messaging_attributes.MESSAGING_SYSTEM: "kafka",
        messaging_attributes.MESSAGING_OPERATION_NAME: "send",
        messaging_attributes.MESSAGING_OPERATION_TYPE: "send",
        messaging_attributes.MESSAGING_CLIENT_ID: "traced",
        messaging_attributes.MESSAGING_DESTINATION_NAME: topic,
        messaging_attributes.MESSAGING_DESTINATION_PARTITION_ID: "1",
        messaging_attributes.MESSAGING_KAFKA_OFFSET: offset,
        messaging_attributes.MESSAGING_MESSAGE_BODY_SIZE: 5,
    }
    (record,) = consume(cluster.bootstrap_servers, topic, 1, [1])
    assert list(record.headers) == [("mine", b"x"), ("traceparent", traceparent(span))]


def test_the_headers_name_the_parent_where_nobody_else_does(
    cluster: KafkaCluster, topic: str, traces: Traces
) -> None:
    """A forwarded message's old context is replaced, and becomes the parent of the new one."""
    cluster.create_topic(topic)
    old = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with Producer(
        bootstrap_servers=cluster.bootstrap_servers,
        interceptors=[TracingInterceptor(traces.provider)],
    ) as producer:
        producer.send(topic, None, b"key", headers=[("traceparent", old), ("other", None)])
    (span,) = traces.spans()
    assert span.parent is not None
    assert f"{span.parent.span_id:016x}" == "b7ad6b7169203331"
    assert attributes(span)[messaging_attributes.MESSAGING_KAFKA_MESSAGE_TOMBSTONE] is True
    (record,) = consume(cluster.bootstrap_servers, topic, 1)
    assert list(record.headers) == [("other", None), ("traceparent", traceparent(span))]
    assert traceparent(span) != old


def test_a_message_that_fails(traces: Traces, meters: Meters) -> None:
    interceptor = TracingInterceptor(
        traces.provider, durations=True, meter_provider=meters.provider
    )
    producer = Producer(
        bootstrap_servers=NOWHERE, delivery_timeout_ms=200, interceptors=[interceptor]
    )
    error = producer.send("lost", b"value").exception(60)
    with pytest.raises(MessageTooLargeError):
        producer.send("lost", b"x" * 2_000_000)
    producer.close()
    assert error is not None
    # In either order: one ends in this thread, the other in the callback thread.
    lost, refused = sorted(traces.spans(), key=lambda span: "TooLarge" in str(attributes(span)))
    for span, kind in ((refused, MessageTooLargeError), (lost, type(error))):
        name = f"{kind.__module__}.{kind.__qualname__}"
        assert span.status.status_code is StatusCode.ERROR
        assert attributes(span)["error.type"] == name
    assert lost.status.description == str(error)
    points = meters.read()[messaging_metrics.MESSAGING_CLIENT_OPERATION_DURATION]
    assert {point.attributes["error.type"] for point in points} == {
        attributes(span)["error.type"] for span in (refused, lost)
    }
    assert sum(point.count for point in points) == 2


def test_who_wants_no_spans_gets_none(traces: Traces) -> None:
    producer = Producer(
        bootstrap_servers=NOWHERE, interceptors=[TracingInterceptor(traces.provider)]
    )
    token = contexts.attach(contexts.set_value("suppress_instrumentation", True))
    try:
        producer.send("t", b"value")
    finally:
        contexts.detach(token)
    producer.close(0)
    assert traces.spans() == []


def test_without_a_provider_it_is_harmless() -> None:
    """The API without an SDK makes spans that record nothing."""
    provider = trace.NoOpTracerProvider()
    producer = Producer(bootstrap_servers=NOWHERE, interceptors=[TracingInterceptor(provider)])
    delivery = producer.send("t", b"value")
    producer.close(0)
    assert delivery.exception(0) is not None


def test_metrics_are_what_the_producer_said(meters: Meters) -> None:
    said = Said()
    observe(said, meter_provider=meters.provider)
    found = meters.read()

    def value(name: str, **wanted: object) -> float:
        (point,) = [
            point
            for point in found[name]
            if all(point.attributes.get(key.replace("__", ".")) == v for key, v in wanted.items())
        ]
        return float(point.value)

    assert value("pykaproducer.messages.accepted", messaging__client__id="app") == 1000
    assert value("pykaproducer.throttle") == 1.5
    assert value("pykaproducer.delivery.latency.recent", quantile="0.99") == 0.008
    assert value("pykaproducer.stage.messages", pykaproducer__stage="BrokerWorker") == 40
    topic = {"messaging__destination__name": "events"}
    partition = {**topic, "messaging__destination__partition__id": "1"}
    assert value("pykaproducer.partition.messages", **partition) == 11
    sent = found[messaging_metrics.MESSAGING_CLIENT_SENT_MESSAGES]
    assert {point.attributes.get("error.type"): point.value for point in sent} == {
        None: 900,
        "_OTHER": 10,
    }


def test_metrics_of_a_real_producer(cluster: KafkaCluster, topic: str, meters: Meters) -> None:
    cluster.create_topic(topic)
    with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        observe(producer, meter_provider=meters.provider, per_partition=False)
        for _ in range(100):
            producer.send(topic, b"value")
        producer.flush(60)
        found = meters.read()
        assert [point.value for point in found["pykaproducer.messages.delivered"]] == [100]
        assert found["pykaproducer.stage.threads"]
