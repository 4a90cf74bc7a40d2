"""The observability methods of a producer: ``stats()``, ``metrics()``, ``traced()``.

They take no lock that a stage or another thread may hold, so they may be called anywhere: in a
callback, in a signal handler, during ``close()``.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pykaproducer._kernel as _kernel
from pykaproducer._kernel import Intercepted
from pykaproducer._observability import kafka_metrics
from pykaproducer._observability.kafka_metrics import Tables
from pykaproducer._observability.stats_server import StatsServer
from pykaproducer._pipeline import snapshot, transaction_snapshot
from pykaproducer._pipeline.metrics import BOUNDS, ProducerMetrics
from pykaproducer._pipeline.trace import Recorder
from pykaproducer.config import shown_settings

if TYPE_CHECKING:
    from pykaproducer._kernel import Budget, Delivery, SampledStat
    from pykaproducer._pipeline.buffer_space import BufferSpaceWaiters
    from pykaproducer._pipeline.wiring import Pipeline
    from pykaproducer._util.clock import Clock
    from pykaproducer.config import Config
    from pykaproducer.interceptors import Interceptors


class ObservedProducer(_kernel.BlockAdmission):
    """The observability methods of a producer, from which ``producer.Producer`` derives."""

    config: Config
    _clock: Clock
    _name: str
    _closed: bool
    _budget: Budget
    _space: BufferSpaceWaiters
    _pipeline: Pipeline | None
    _metrics: ProducerMetrics
    #: When the first message was sent (seconds since the epoch).
    _started: float | None = None
    #: The server that listens at ``stats_socket``.
    _server: StatsServer | None = None
    #: The user's interceptors, or None.
    _interceptors: Interceptors | None = None

    def _make_interceptors(self) -> None:
        """Create the interceptors when the producer is created."""
        if self.config.interceptors:
            # Most producers have none.
            from pykaproducer.interceptors import Interceptors

            self._interceptors = Interceptors(self.config.interceptors, shown_settings(self.config))
        self._intercepting = self._interceptors is not None

    def _intercept(
        self,
        topic: Any,
        value: Any,
        key: Any,
        headers: Any,
        partition: Any,
        timestamp_ms: Any,
        on_delivery: Any,
        delivery_timeout_ms: Any,
    ) -> Delivery:
        """Implement ``send()`` with interceptors."""
        chain = self._interceptors
        assert chain is not None, "called only with interceptors"
        began = self._transaction  # before user code runs
        record = chain.sent(topic, value, key, headers, partition, timestamp_ms)
        past = Intercepted(on_delivery, chain.watcher(record), began)
        try:
            return self._accept(record, past, delivery_timeout_ms)
        except BaseException as error:
            # After the append, even an interrupted message gets its own outcome later.
            if not past.accepted:
                chain.refused(record, error)
            raise

    def _call_began(
        self, call: str, transactional_id: str
    ) -> Callable[[BaseException | None], None] | None:
        """Tell the interceptors of a call for transactions; return what is called at its end."""
        chain = self._interceptors
        return None if chain is None else chain.began(call, transactional_id)

    def _start_observing(self) -> None:
        """Start observing when the pipeline has been created."""
        self._started = self._clock.time()
        path = self.config.stats_socket
        if path is None:
            return
        server = self._server = StatsServer(path, self._name, self._clock, self.stats)
        server.start()
        # close() sets _closed first and looks for the server second; this does the reverse.
        if self._closed:
            server.stop()

    def _stop_observing(self) -> None:
        """Stop when the producer is closed. User code, which may take long, runs last."""
        if self._server is not None:
            self._server.stop()
        if self._interceptors is not None:
            self._interceptors.close()

    def _reset_observing(self) -> None:
        """Reset in the child of a fork, because the server is the parent's."""
        self._started = None
        server, self._server = self._server, None
        if server is not None:
            server.close_inherited()

    def stats(self) -> dict[str, Any]:
        """Return a snapshot of the pipeline: counters, and what each stage holds now.

        Never waits and stops no stage, so that two numbers may be from slightly different times.
        It may be called anywhere and at any time. After ``close()`` the totals remain; after a
        fork the child counts from zero. The result can be written as JSON:

        ``client_id``, ``pid``, ``time``, ``started``, ``state``
            Times are seconds since the epoch; ``started`` is that of the first message, None
            before it. The state is ``idle`` (nothing sent yet), ``running``, ``closing``,
            ``closed`` or ``broken``.
        ``messages``
            ``accepted``, ``delivered`` and ``failed`` since the start; ``pending`` is the rest.
        ``bytes``
            ``accepted`` and ``delivered`` since the start: bytes of keys, values and headers.
        ``buffer``
            ``limit`` is ``buffer_memory``, ``used`` the part in use, ``waiting_senders`` the number
            of threads that wait for space.
        ``requests``
            Produce requests since the start: ``sent``, ``answered``, and ``lost`` with their
            connection; ``batches`` sealed; ``retried_batches`` (only those that a broker rejected,
            or that were in flight when a connection was lost); ``throttle_ms``: for how long
            brokers have enforced quotas.
        ``latency_ms``
            Over the last ``metrics_num_samples`` times ``metrics_sample_window_ms``. ``delivery``:
            for each message, from ``send()`` until its delivery was known; for one with its own
            ``delivery_timeout_ms``, from the opening of its chunk, which is at most some
            milliseconds earlier. ``request``: for each Produce request, until its response.
            ``queue``: for each message, until its batch was sealed, from the opening of the oldest
            chunk in the batch. Each has ``count``, ``mean``, ``p50``, ``p95``, ``p99`` and ``max``
            (None before the first value); percentiles are accurate to 7 %. ``histogram`` is since
            the start: ``counts`` has the number of durations up to each of ``le_ms`` and the number
            above the last, ``sum_ms`` their sum.
        ``cluster_error``
            Why no server of the cluster can be reached; None if one can, or none has been tried.
        ``stages``
            ``stage`` (its kind), ``name`` of its thread, ``alive``: whether that runs (an idle
            stage may have none); ``inbox``: number of items in it; ``rows``, ``bytes``: messages
            that the stage holds, including those in its inbox; ``oldest_s``: time since the oldest
            of them were accepted (their chunk was opened), None if there are none; ``topic``,
            ``partition``, ``broker`` if it has one.
        ``brokers``
            ``id``, ``address``, ``state`` (``connected``, ``connecting``, ``down``: the last
            connection failed, ``idle``: no connection is needed, ``unused``: it leads no partition
            in use), ``references``: number of partitions that use it, ``unanswered_requests``,
            ``last_error``.
        ``topics``
            ``topic``, ``partitions`` (0: not yet known), ``error``: why its messages wait.
        ``partitions``
            ``topic``, ``partition``, ``leader`` (-1: none), ``level`` (how often its messages in
            flight have failed), ``unanswered_batches``, ``waiting_rows`` and ``waiting_bytes``
            (not sealed, or waiting for a retry), ``delivered`` and ``bytes`` since the start.
        ``transactions``
            None without ``transactional_id``. ``committed`` and ``aborted``: transactions since the
            start; ``fenced``: whether another producer has taken over the id (0 or 1). ``state``:
            ``uninitialized``, ``initializing``, ``ready``, ``open``, ``flushing`` (a commit waits
            for messages), ``committing`` (for the coordinator), ``abortable``, ``aborting``,
            ``prepared`` or ``fatal``, and ``state_s``, for how long. ``error``: the reason of
            ``abortable`` and ``fatal``. ``serial``: number of transactions begun. ``open_s``: time
            since ``begin_transaction()``, None if none is open; ``partitions`` in it.
            ``transactional_id``, ``protocol`` (1, or 2 with KIP-890), ``producer_id`` and
            ``producer_epoch`` (-1: none yet), ``assignments``: how often they have changed, and
            ``assigned_s``, when that was; ``coordinator``: its address. ``latency_ms`` then also
            has ``commit``: from ``commit_transaction()`` until the coordinator has confirmed it.
        """
        pipeline, metrics = self._pipeline, self._metrics
        # Read the finished counters first, so that `pending` never comes out negative.
        delivered, failed = metrics.delivery.count, metrics.failed.count
        accepted = self.accepted
        now = self._clock.monotonic()
        found: dict[str, Any] = {
            "client_id": self._name,
            "pid": os.getpid(),
            "time": self._clock.time(),
            "started": self._started,
            "state": self._state(),
            "messages": {
                "accepted": accepted,
                "delivered": delivered,
                "failed": failed,
                "pending": max(0, accepted - delivered - failed),
            },
            "bytes": {"accepted": self.accepted_bytes, "delivered": metrics.delivered_bytes()},
            "buffer": {
                "limit": self._budget.limit,
                "used": self._budget.used,
                "waiting_senders": self._space.waiting,
            },
            "requests": _request_counts(metrics),
            "latency_ms": {
                "delivery": _latency_summary(metrics.delivery, now),
                "request": _latency_summary(metrics.request, now),
                "queue": _latency_summary(metrics.queue, now),
            },
            "cluster_error": None if pipeline is None else pipeline.last_errors.cluster,
            "stages": [],
            "brokers": [],
            "topics": [],
            "partitions": [],
            "transactions": None,
        }
        if self.config.transactional_id is not None:
            found["transactions"] = self._transaction_stats(self.config.transactional_id, now)
            found["latency_ms"]["commit"] = _latency_summary(metrics.transactions.commit, now)
        if pipeline is not None:
            found["stages"] = snapshot.stages(pipeline, now, self._open_rows())
            found["brokers"] = snapshot.brokers(pipeline)
            found["topics"] = snapshot.topics(pipeline)
            found["partitions"] = snapshot.partitions(pipeline)
        return found

    def _transaction_stats(self, transactional_id: str, now: float) -> dict[str, Any]:
        found = transaction_snapshot.counts(transactional_id, self._metrics.transactions)
        details = self._transaction_details(now)
        if details is not None:
            found |= details
        elif self._closed:
            found["state"] = "closed"
        return found

    def _transaction_details(self, now: float) -> dict[str, Any] | None:
        """Return what the coordinator's stage knows, None without it."""
        pipeline = self._pipeline
        if pipeline is None or pipeline.coordinator is None:
            return None
        count = functools.partial(transaction_snapshot.partitions_in, pipeline)
        return transaction_snapshot.details(pipeline.coordinator, count, now)

    def metrics(self, raw: bool = False) -> Tables | None:
        """Return the metrics of kafka-python's ``KafkaProducer.metrics()``, by group and name.

        ``{"producer-metrics": {"record-send-rate": ..., ...}, "producer-node-metrics.node-1":
        {...}, "producer-topic-metrics.events": {...}, "kafka-metrics-count": {"count": ...}}``.
        Every number is a float. Averages and rates are over the last ``metrics_num_samples`` times
        ``metrics_sample_window_ms``, and 0 without values. None with ``metrics_enabled=False``.

        Differences from kafka-python: ``record-queue-time`` is in milliseconds (not seconds) and
        weighted by messages; request latencies are those of Produce requests only; rates are over
        the time since the first value, not over at least one whole window; connections to bootstrap
        servers have no separate group. Added from the Java client: ``record-send-total``,
        ``byte-total``, ``record-retry-total``, ``record-error-total``, ``request-total``,
        ``response-total``, ``outgoing-byte-total``, ``incoming-byte-total``,
        ``buffer-total-bytes``, ``buffer-available-bytes``, ``waiting-threads``; and with
        ``transactional_id`` ``txn-init-time-ns-total``, ``txn-commit-time-ns-total`` and
        ``txn-abort-time-ns-total``, beside ``txn-commit-total``, ``txn-abort-total``,
        ``txn-fenced-total``, ``txn-commit-rate``, ``txn-commit-time-avg`` and
        ``txn-commit-time-max``, which only this library has.

        Args:
            raw (bool): return the metrics as a dict of ``MetricName`` to objects with
                ``metric_name`` and ``value()``, which is the value at the time of this call.
        """
        if not self.config.metrics_enabled:
            return None
        source = kafka_metrics.MetricsInput(
            self._metrics,
            self._pipeline,
            self._budget,
            self._space.waiting,
            self._clock.monotonic(),
            transactional=self.config.transactional_id is not None,
        )
        found = list(kafka_metrics.rows(source))
        if raw:
            return kafka_metrics.as_metrics(found, self._name)
        return kafka_metrics.as_tables(found)

    @contextlib.contextmanager
    def traced(self) -> Iterator[Recorder]:
        """Trace the messages sent within the block through the stages, with times.

        >>> with producer.traced() as trace:
        ...     delivery = producer.send("events", b"value")
        ...     delivery.result(timeout=10)
        >>> for event in trace.events(delivery):
        ...     print(f"{event['at_s'] * 1000:9.3f} ms  {event['event']}")

        :meth:`Recorder.events` describes the events. It may also be called after the block.
        Intended for single messages: while a trace runs, the stages do more work for each batch.

        Raises:
            RuntimeError: this producer is already being traced.
        """
        metrics = self._metrics
        if metrics.trace is not None:
            raise RuntimeError(
                "this producer is already being traced; only one traced() may run at a time"
            )
        metrics.trace = recorder = Recorder(self._clock)
        try:
            yield recorder
        finally:
            metrics.trace = None

    def _state(self) -> str:
        pipeline = self._pipeline
        if pipeline is None:
            return "closed" if self._closed else "idle"
        if pipeline.broken is not None:
            return "broken"
        return "closing" if self._closed else "running"


def _request_counts(metrics: ProducerMetrics) -> dict[str, float]:
    return {
        "sent": metrics.of_brokers(lambda link: link.outgoing).count,
        "answered": metrics.of_brokers(lambda link: link.incoming).count,
        "lost": metrics.lost.count,
        "retried_batches": metrics.retried.count,
        "batches": metrics.of_topics(lambda topic: topic.records).count,
        "throttle_ms": metrics.of_brokers(lambda link: link.throttle).sum * 1000,
    }


def _latency_summary(stat: SampledStat, now: float) -> dict[str, Any]:
    count, total, largest, _ = stat.recent(now)
    p50, p95, p99 = stat.percentiles(now, 0.5, 0.95, 0.99)
    return {
        "count": count,
        "mean": _ms(total / count if count else None),
        "p50": _ms(p50),
        "p95": _ms(p95),
        "p99": _ms(p99),
        "max": _ms(largest if count else None),
        "histogram": {
            "le_ms": [bound * 1000 for bound in BOUNDS],
            "counts": stat.histogram(BOUNDS),
            "sum_ms": stat.sum * 1000,
        },
    }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000
