"""``Producer.metrics()``: the counters under kafka-python's names.

Names and groups are kafka-python's. Times are in milliseconds, sizes in bytes, rates per second
over the last samples. Some names of the Java client are added (totals, the buffer).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from pykaproducer._pipeline.metrics import copied

if TYPE_CHECKING:
    from pykaproducer._kernel import Budget, ConnectionMetrics, SampledStat, TopicMetrics
    from pykaproducer._pipeline.metrics import (
        ForgottenStat,
        ForgottenTopics,
        MergedStat,
        ProducerMetrics,
        TransactionMetrics,
    )
    from pykaproducer._pipeline.wiring import Pipeline

S = TypeVar("S")
T = TypeVar("T")

#: The minimum time for a rate, without which the first message would count as thousands per second
#: (seconds).
_LEAST = 1.0

Row = tuple[str, str, float]


class MetricName(NamedTuple):
    """The name of a metric, with the fields of kafka-python's ``MetricName``."""

    name: str
    group: str
    description: str
    tags: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Metric:
    """A metric at the time of the call, with the attributes of kafka-python's ``KafkaMetric``."""

    metric_name: MetricName
    measured: float

    def value(self) -> float:
        """Return the value at the time of the call."""
        return self.measured


class MetricsInput(NamedTuple):
    """The origin of the numbers."""

    metrics: ProducerMetrics
    pipeline: Pipeline | None
    budget: Budget
    waiting: int
    now: float
    transactional: bool = False


def rows(source: MetricsInput) -> Iterator[Row]:
    """Yield the group, name and value of every metric."""
    metrics, now = source.metrics, source.now
    group = "producer-metrics"
    yield from _of_links(group, metrics, now)
    yield from _of_batches(group, metrics, now)
    yield from _of_now(group, source)
    if source.transactional:
        yield from _of_transactions(group, metrics.transactions, now)
    for broker_id, link in sorted(copied(lambda: list(metrics.links.items()))):
        yield from _of_link(f"producer-node-metrics.node-{broker_id}", _one(link), now)
    for name, topic in sorted(copied(lambda: list(metrics.topics.items()))):
        yield from _of_topic(f"producer-topic-metrics.{name}", _one(topic), now)


def as_tables(found: list[Row]) -> dict[str, dict[str, float]]:
    """Return the result of kafka-python's ``metrics()``, by group and name."""
    tables: dict[str, dict[str, float]] = {"kafka-metrics-count": {"count": float(len(found) + 1)}}
    for group, name, value in found:
        tables.setdefault(group, {})[name] = value
    return tables


def as_metrics(found: list[Row], client_id: str) -> dict[MetricName, Metric]:
    """Return the result of kafka-python's ``metrics(raw=True)``."""
    metrics: dict[MetricName, Metric] = {}
    for group, name, value in [("kafka-metrics-count", "count", float(len(found) + 1)), *found]:
        called = MetricName(name, group, "", (("client-id", client_id),))
        metrics[called] = Metric(called, value)
    return metrics


# Values of a sampled statistic --------------------------------------------------------------------


def _rate(stat: SampledStat | MergedStat, now: float) -> float:
    """Return the number of values per second."""
    count, _, _, seconds = stat.recent(now)
    return count / max(seconds, _LEAST)


def _flow(stat: SampledStat | MergedStat, now: float) -> float:
    """Return the sum of the values per second."""
    _, total, _, seconds = stat.recent(now)
    return total / max(seconds, _LEAST)


def _mean(stat: SampledStat | MergedStat, now: float, unit: float = 1.0) -> float:
    count, total, _, _ = stat.recent(now)
    return total / count * unit if count else 0.0


def _most(stat: SampledStat | MergedStat, now: float, unit: float = 1.0) -> float:
    return stat.recent(now)[2] * unit


def _one(counted: T) -> Callable[[Callable[[T], S]], S]:
    return lambda which: which(counted)


# Groups -------------------------------------------------------------------------------------------


def _of_link(
    group: str, of: Callable[[Callable[[ConnectionMetrics], SampledStat]], Any], now: float
) -> Iterator[Row]:
    """Yield the metrics of connections; *of* returns a statistic of them."""
    outgoing, incoming = of(lambda link: link.outgoing), of(lambda link: link.incoming)
    latency, throttle = of(lambda link: link.latency), of(lambda link: link.throttle)
    yield group, "outgoing-byte-rate", _flow(outgoing, now)
    yield group, "request-rate", _rate(outgoing, now)
    yield group, "request-size-avg", _mean(outgoing, now)
    yield group, "request-size-max", _most(outgoing, now)
    yield group, "incoming-byte-rate", _flow(incoming, now)
    yield group, "response-rate", _rate(incoming, now)
    yield group, "request-latency-avg", _mean(latency, now, 1000)
    yield group, "request-latency-max", _most(latency, now, 1000)
    yield group, "throttle-time-avg", _mean(throttle, now, 1000)
    yield group, "throttle-time-max", _most(throttle, now, 1000)


def _of_links(group: str, metrics: ProducerMetrics, now: float) -> Iterator[Row]:
    yield from _of_link(group, metrics.of_links, now)
    outgoing = metrics.of_links(lambda link: link.outgoing)
    incoming = metrics.of_links(lambda link: link.incoming)
    yield group, "network-io-rate", _rate(outgoing, now) + _rate(incoming, now)
    yield group, "connection-creation-rate", _rate(metrics.of_links(lambda link: link.made), now)
    yield group, "connection-close-rate", _rate(metrics.of_links(lambda link: link.lost), now)
    yield group, "request-total", float(outgoing.count)
    yield group, "response-total", float(incoming.count)
    yield group, "outgoing-byte-total", outgoing.sum
    yield group, "incoming-byte-total", incoming.sum


def _of_batches(group: str, metrics: ProducerMetrics, now: float) -> Iterator[Row]:
    batches = metrics.of_topics(lambda topic: topic.batches)
    yield group, "batch-size-avg", _mean(batches, now)
    yield group, "batch-size-max", _most(batches, now)
    yield group, "record-queue-time-avg", _mean(metrics.queue, now, 1000)
    yield group, "record-queue-time-max", _most(metrics.queue, now, 1000)
    yield group, "records-per-request-avg", _mean(metrics.requests, now)
    yield group, "record-size-max", _most(metrics.largest, now)
    yield group, "record-size-avg", _mean(metrics.largest, now)
    yield from _of_topic(group, metrics.of_topics, now, compression="compression-rate-avg")


def _of_topic(
    group: str,
    of: Callable[[Callable[[TopicMetrics | ForgottenTopics], SampledStat | ForgottenStat]], Any],
    now: float,
    *,
    compression: str = "compression-rate",
) -> Iterator[Row]:
    """Yield the metrics of topics; *of* returns a statistic of them."""
    records, batches = of(lambda topic: topic.records), of(lambda topic: topic.batches)
    retries, errors = of(lambda topic: topic.retries), of(lambda topic: topic.errors)
    yield group, "record-send-rate", _flow(records, now)
    yield group, "byte-rate", _flow(batches, now)
    yield group, compression, _mean(of(lambda topic: topic.compression), now)
    yield group, "record-retry-rate", _flow(retries, now)
    yield group, "record-error-rate", _flow(errors, now)
    yield group, "record-send-total", records.sum
    yield group, "byte-total", batches.sum
    yield group, "record-retry-total", retries.sum
    yield group, "record-error-total", errors.sum


def _of_transactions(group: str, found: TransactionMetrics, now: float) -> Iterator[Row]:
    yield group, "txn-init-time-ns-total", found.init.sum * 1e9
    yield group, "txn-commit-time-ns-total", found.commit.sum * 1e9
    yield group, "txn-abort-time-ns-total", found.abort.sum * 1e9
    yield group, "txn-commit-total", float(found.commit.count)
    yield group, "txn-abort-total", float(found.abort.count)
    yield group, "txn-fenced-total", float(found.fenced.count)
    yield group, "txn-commit-rate", _rate(found.commit, now)
    yield group, "txn-commit-time-avg", _mean(found.commit, now, 1000)
    yield group, "txn-commit-time-max", _most(found.commit, now, 1000)


def _of_now(group: str, source: MetricsInput) -> Iterator[Row]:
    pipeline, budget = source.pipeline, source.budget
    brokers = () if pipeline is None else pipeline.brokers.all()
    connections = sum(broker.bridge.ready for broker in brokers)
    age = 0.0
    if pipeline is not None:
        connections += pipeline.metadata.ready
        if pipeline.coordinator is not None:
            connections += pipeline.coordinator.ready
        refreshed = pipeline.metadata.refreshed
        age = 0.0 if refreshed is None else max(0.0, source.now - refreshed)
    yield group, "connection-count", float(connections)
    yield group, "requests-in-flight", float(sum(broker.requests for broker in brokers))
    yield group, "metadata-age", age
    yield group, "buffer-total-bytes", float(budget.limit)
    yield group, "buffer-available-bytes", float(budget.limit - budget.used)
    yield group, "waiting-threads", float(source.waiting)


#: The return type of :meth:`Producer.metrics`.
Tables = dict[str, dict[str, float]] | dict[MetricName, Metric]
