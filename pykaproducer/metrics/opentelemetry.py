"""OpenTelemetry: spans that are propagated with messages, and metrics, by the semantic conventions.

Spans come from an interceptor, metrics from :func:`observe`::

    from pykaproducer.metrics import TracingInterceptor, observe

    producer = Producer(interceptors=[TracingInterceptor()], ...)
    observe(producer)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

try:
    from opentelemetry import context as contexts
    from opentelemetry import propagate, trace
    from opentelemetry.metrics import get_meter

    from pykaproducer.metrics._otel_metrics import Observed, observe
except ImportError as error:
    raise ImportError(
        "pykaproducer.metrics.opentelemetry needs opentelemetry-api: "
        "pip install 'pykaproducer[opentelemetry]'"
    ) from error
from pykaproducer._kernel import monotonic
from pykaproducer._version import VERSION
from pykaproducer.interceptors import Interceptor, ProducerRecord

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.context import Context
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.propagators.textmap import TextMapPropagator
    from opentelemetry.trace import Span, TracerProvider
    from opentelemetry.util.types import AttributeValue

    from pykaproducer.delivery import RecordMetadata

__all__ = ["Observed", "TracingInterceptor", "observe"]

#: Set in a context to suppress spans.
_SUPPRESSED = "suppress_instrumentation"

#: Bucket boundaries for the duration of a message, as proposed by the conventions (seconds).
_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)


class TracingInterceptor(Interceptor):
    """An interceptor that creates a span for each message, from ``send()`` to its outcome.

    The span is a child of the current span where ``send()`` is called; if there is none, of the
    span in the message's headers. The propagator writes its context to the headers for consumers,
    by default as W3C's ``traceparent``. A message whose span is not sampled has the context, too.

    Each call for transactions that waits for the brokers, such as ``commit_transaction()``, has a
    span of the kind *client*, with the name of the method.

    Args:
        tracer_provider: default: the global one.
        propagator: writes the headers; default: the global one.
        durations (bool): also record ``messaging.client.operation.duration`` for each message.
        meter_provider: for the durations; default: the global one.
    """

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        *,
        propagator: TextMapPropagator | None = None,
        durations: bool = False,
        meter_provider: MeterProvider | None = None,
    ) -> None:
        self._tracer = trace.get_tracer("pykaproducer", VERSION, tracer_provider)
        self._propagator = propagator
        self._client: dict[str, AttributeValue] = {}
        # Of spans only: it would be a time series of its own for each id.
        self._transactional: dict[str, AttributeValue] = {}
        self._durations = None
        if durations:
            self._durations = get_meter("pykaproducer", VERSION, meter_provider).create_histogram(
                "messaging.client.operation.duration",
                "s",
                "Duration of messaging operation initiated by a producer or consumer client.",
                explicit_bucket_boundaries_advisory=_BOUNDS,
            )

    def configure(self, configs: dict[str, Any]) -> None:
        """Remember the client id for the spans."""
        if configs.get("client_id"):
            self._client = {"messaging.client.id": str(configs["client_id"])}
        if configs.get("transactional_id"):
            name = str(configs["transactional_id"])
            self._transactional = {"pykaproducer.transactional_id": name}

    def on_send(self, record: ProducerRecord) -> ProducerRecord | None:
        """Start the span and write its context to the headers."""
        if contexts.get_value(_SUPPRESSED):
            return None
        propagator = self._propagator or propagate.get_global_textmap()
        headers = list(record.headers or ())
        topic = str(record.topic)
        span = self._tracer.start_span(
            f"send {topic}",
            self._parent(propagator, headers),
            trace.SpanKind.PRODUCER,
            attributes=self._attributes(record, topic),
        )
        record.context[self] = (span, monotonic())
        carrier: dict[str, str] = {}
        propagator.inject(carrier, trace.set_span_in_context(span))
        if not carrier:
            return None
        # Headers with the context of the preceding span are replaced by ours.
        kept = [(name, value) for name, value in headers if name not in propagator.fields]
        return record.replace(
            headers=[*kept, *((name, value.encode()) for name, value in carrier.items())]
        )

    def on_acknowledgement(
        self, metadata: RecordMetadata, exception: BaseException | None, record: ProducerRecord
    ) -> None:
        """End the span with the outcome."""
        found = record.context.pop(self, None)
        if found is None:
            return
        span, began = found
        if span.is_recording():
            _finish(span, metadata, exception)
        span.end()
        if self._durations is not None:
            labels = {
                "messaging.system": "kafka",
                "messaging.operation.name": "send",
                "messaging.destination.name": str(record.topic),
                **self._client,
            }
            if exception is not None:
                labels["error.type"] = _kind(exception)
            self._durations.record(monotonic() - began, labels)

    def begin_control_call(
        self, call: str, transactional_id: str
    ) -> Callable[[BaseException | None], None]:
        """Start the span of a call for transactions; return a function that ends it."""
        if contexts.get_value(_SUPPRESSED):
            return lambda error: None
        span = self._tracer.start_span(
            call,
            kind=trace.SpanKind.CLIENT,
            attributes={
                "messaging.system": "kafka",
                "messaging.operation.name": call,
                **self._client,
                "pykaproducer.transactional_id": transactional_id,
            },
        )

        def end(error: BaseException | None) -> None:
            if error is not None:
                _set_error(span, error)
            span.end()

        return end

    def _parent(
        self, propagator: TextMapPropagator, headers: list[tuple[str, bytes | None]]
    ) -> Context | None:
        """Return the context of the parent, or None for the current one."""
        if not headers or trace.get_current_span().get_span_context().is_valid:
            return None
        texts = {
            name: value.decode("ascii", errors="replace")
            for name, value in headers
            if name in propagator.fields and isinstance(value, bytes)
        }
        return propagator.extract(texts) if texts else None

    def _attributes(self, record: ProducerRecord, topic: str) -> dict[str, AttributeValue]:
        found: dict[str, AttributeValue] = {
            "messaging.system": "kafka",
            "messaging.operation.name": "send",
            "messaging.operation.type": "send",
            "messaging.destination.name": topic,
            **self._client,
            **self._transactional,
        }
        if record.value is None:
            found["messaging.kafka.message.tombstone"] = True
        return found


def _finish(span: Span, metadata: RecordMetadata, exception: BaseException | None) -> None:
    if metadata.partition is not None and metadata.partition >= 0:
        span.set_attribute("messaging.destination.partition.id", str(metadata.partition))
    if metadata.offset >= 0:
        span.set_attribute("messaging.kafka.offset", metadata.offset)
    if metadata.serialized_value_size >= 0:
        span.set_attribute("messaging.message.body.size", metadata.serialized_value_size)
    if exception is not None:
        _set_error(span, exception)


def _set_error(span: Span, error: BaseException) -> None:
    span.set_attribute("error.type", _kind(error))
    span.set_status(trace.StatusCode.ERROR, str(error))


def _kind(error: BaseException) -> str:
    return f"{type(error).__module__}.{type(error).__qualname__}"
