"""What a producer lets be seen: ``stats()``, ``metrics()``.

Whatever is asked here takes no lock that a stage or another thread may hold, so it may be asked
anywhere: in a callback, in a signal handler, in the middle of ``close()``.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pykaproducer import _kafka_metrics as kafka_metrics
from pykaproducer import _kernel
from pykaproducer._kafka_metrics import Tables
from pykaproducer._kernel import Intercepted
from pykaproducer._pipeline import survey
from pykaproducer._pipeline.meter import BOUNDS, Meter
from pykaproducer._pipeline.trace import Recorder
from pykaproducer._stats_server import StatsServer
from pykaproducer.config import shown_settings
from pykaproducer.interceptors import Interceptors, ProducerRecord

if TYPE_CHECKING:
    from pykaproducer._clock import Clock
    from pykaproducer._kernel import Budget, Delivery, Series
    from pykaproducer._pipeline.wiring import Pipeline
    from pykaproducer._space import Space
    from pykaproducer.config import Config


class ObservedProducer(_kernel.BlockAdmission):
    """What a producer says of itself. ``producer.Producer`` derives from it."""

    config: Config
    _clock: Clock
    _name: str
    _closed: bool
    _budget: Budget
    _space: Space
    _pipeline: Pipeline | None
    _meter: Meter
    #: When the first message was sent (seconds since the epoch).
    _started: float | None = None
    #: What listens at ``stats_socket``.
    _server: StatsServer | None = None
    #: The user's, None if there are none.
    _interceptors: Interceptors | None = None

    def _make_interceptors(self) -> None:
        """Once, when the producer is made."""
        if self.config.interceptors:
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
        """``send()`` with interceptors."""
        chain = self._interceptors
        assert chain is not None, "asked only while there are some"
        given = ProducerRecord(topic, value, key, headers, partition, timestamp_ms)
        record = chain.sent(given)
        past = Intercepted(on_delivery, chain.watcher(record))
        try:
            return self._accept(record, past, delivery_timeout_ms)
        except BaseException as error:
            # If it was interrupted behind the append, its own outcome is to come.
            if not past.accepted:
                chain.refused(record, error)
            raise

    def _begin_to_look(self) -> None:
        """The pipeline has just been made."""
        self._started = self._clock.time()
        path = self.config.stats_socket
        if path is None:
            return
        server = self._server = StatsServer(path, self._name, self._clock, self.stats)
        server.start()
        # close() (1) says that it is closed, (2) looks for the server; we the other way round.
        if self._closed:
            server.stop()

    def _end_looking(self) -> None:
        """The producer is closed. The user's own code, which may take its time, comes last."""
        if self._server is not None:
            self._server.stop()
        if self._interceptors is not None:
            self._interceptors.close()

    def _forget_looking(self) -> None:
        """In the child of a fork: what was begun is the parent's."""
        self._started = None
        server, self._server = self._server, None
        if server is not None:
            server.forsake()

    def stats(self) -> dict[str, Any]:
        """A snapshot of the pipeline: what was counted, and what each stage holds now.

        Never waits, and stops no stage: two numbers may be of slightly different moments. To be
        called anywhere, at any time; after ``close()`` the totals stay, after a fork the child
        counts from zero. Everything in it can be written as JSON:

        ``client_id``, ``pid``, ``time``, ``started``, ``state``
            Times are seconds since the epoch, ``started`` that of the first message, None before
            it. The state is ``idle`` (nothing sent yet), ``running``, ``closing``, ``closed`` or
            ``broken``.
        ``messages``
            ``accepted``, ``delivered``, ``failed`` since the start; ``pending``: the others.
        ``bytes``
            ``accepted`` and ``delivered`` since the start: of keys, values and headers.
        ``buffer``
            ``limit`` is ``buffer_memory``, ``used`` what of it is taken, ``waiting_senders`` how
            many threads wait for space.
        ``requests``
            Produce requests since the start: ``sent``, ``answered``, ``lost`` with their
            connection; ``batches`` sealed, ``retried_batches`` that went again (of these only
            such as a broker refused, or that were under way when a connection was lost);
            ``throttle_ms``: how long brokers have asked to be left alone (quotas).
        ``latency_ms``
            Over the last ``metrics_num_samples`` times ``metrics_sample_window_ms``. ``delivery``:
            of each message from ``send()`` until its delivery was known; of one with a
            ``delivery_timeout_ms`` of its own from the opening of its chunk, which is earlier by
            some milliseconds at most. ``request``: of each Produce request until its answer.
            ``queue``: of each message until its batch was sealed, counted from the opening of the
            oldest chunk in the batch. Each has ``count``, ``mean``, ``p50``, ``p95``, ``p99``,
            ``max`` (None before the first); percentiles are right within 7 %. ``histogram`` is
            since the start: ``counts`` of durations up to each of ``le_ms``, and above the last,
            and ``sum_ms``.
        ``trouble``
            Why no server of the cluster can be asked, None if one can, or nobody has asked.
        ``stages``
            ``stage`` (its kind), ``name`` of its thread, ``alive``: whether that runs (an idle
            stage may have none); ``inbox``: items in it; ``rows``, ``bytes``: messages that the
            stage holds, those in its inbox too; ``oldest_s``: how long ago the oldest of them
            were accepted (their chunk was opened), None if there are none; ``topic``,
            ``partition``, ``broker`` where it has one.
        ``brokers``
            ``id``, ``address``, ``state`` (``connected``, ``connecting``, ``down``: its last
            connection failed, ``idle``: none is needed, ``unused``: it leads no partition in use),
            ``references``: partitions that use it; ``unanswered_requests``, ``last_error``.
        ``topics``
            ``topic``, ``partitions`` (0: not known yet), ``error``: why its messages wait.
        ``partitions``
            ``topic``, ``partition``, ``leader`` (-1: none), ``level`` (how often its messages
            under way have failed), ``unanswered_batches``, ``waiting_rows`` and ``waiting_bytes``
            (not sealed, or for a retry), ``delivered`` and ``bytes`` since the start.
        """
        pipeline, meter = self._pipeline, self._meter
        # What has ended is looked at before what has begun: nothing is pending less than not.
        delivered, failed = meter.delivery.count, meter.failed.count
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
            "bytes": {"accepted": self.accepted_bytes, "delivered": meter.delivered_bytes()},
            "buffer": {
                "limit": self._budget.limit,
                "used": self._budget.used,
                "waiting_senders": self._space.waiting,
            },
            "requests": {
                "sent": meter.of_brokers(lambda link: link.outgoing).count,
                "answered": meter.of_brokers(lambda link: link.incoming).count,
                "lost": meter.lost.count,
                "retried_batches": meter.retried.count,
                "batches": meter.of_topics(lambda topic: topic.records).count,
                "throttle_ms": meter.of_brokers(lambda link: link.throttle).sum * 1000,
            },
            "latency_ms": {
                "delivery": _spread(meter.delivery, now),
                "request": _spread(meter.request, now),
                "queue": _spread(meter.queue, now),
            },
            "trouble": None if pipeline is None else pipeline.trouble.cluster,
            "stages": [],
            "brokers": [],
            "topics": [],
            "partitions": [],
        }
        if pipeline is not None:
            found["stages"] = survey.stages(pipeline, now, self._open_rows())
            found["brokers"] = survey.brokers(pipeline)
            found["topics"] = survey.topics(pipeline)
            found["partitions"] = survey.partitions(pipeline)
        return found

    def metrics(self, raw: bool = False) -> Tables | None:
        """What kafka-python's ``KafkaProducer.metrics()`` tells, by the same groups and names.

        ``{"producer-metrics": {"record-send-rate": ..., ...}, "producer-node-metrics.node-1":
        {...}, "producer-topic-metrics.events": {...}, "kafka-metrics-count": {"count": ...}}``.
        Every number is a float; averages and rates are over the last ``metrics_num_samples`` times
        ``metrics_sample_window_ms``, and 0 if nothing came. None with ``metrics_enabled=False``.

        Not as in kafka-python: ``record-queue-time`` is in milliseconds (kafka-python's are
        seconds) and is weighted by messages; request latencies are of Produce requests alone;
        rates are over the time since the first number, not over at least a whole window;
        connections to bootstrap servers have no group of their own. Added, as in the Java client:
        ``record-send-total``, ``byte-total``, ``record-retry-total``, ``record-error-total``,
        ``request-total``, ``response-total``, ``outgoing-byte-total``, ``incoming-byte-total``,
        ``buffer-total-bytes``, ``buffer-available-bytes``, ``waiting-threads``.

        Args:
            raw (bool): return the metrics as a dict of ``MetricName`` to objects with
                ``metric_name`` and ``value()``, which is of the moment of this call.
        """
        if not self.config.metrics_enabled:
            return None
        source = kafka_metrics.Source(
            self._meter,
            self._pipeline,
            self._budget,
            self._space.waiting,
            self._clock.monotonic(),
        )
        found = list(kafka_metrics.rows(source))
        if raw:
            return kafka_metrics.as_metrics(found, self._name)
        return kafka_metrics.as_tables(found)

    @contextlib.contextmanager
    def traced(self) -> Iterator[Recorder]:
        """Follow the messages that are sent meanwhile through the stages, with times.

        >>> with producer.traced() as trace:
        ...     delivery = producer.send("events", b"value")
        ...     delivery.result(timeout=10)
        >>> for event in trace.events(delivery):
        ...     print(f"{event['at_s'] * 1000:9.3f} ms  {event['event']}")

        :meth:`Recorder.events` says what an event has. It may be asked behind the block, too. For
        a look at single messages: while it goes on the stages do more for each batch.

        Raises:
            RuntimeError: somebody traces this producer already.
        """
        meter = self._meter
        if meter.trace is not None:
            raise RuntimeError(
                "this producer is traced already: traced() can be used once at a time"
            )
        meter.trace = recorder = Recorder(self._clock)
        try:
            yield recorder
        finally:
            meter.trace = None

    def _state(self) -> str:
        pipeline = self._pipeline
        if pipeline is None:
            return "closed" if self._closed else "idle"
        if pipeline.broken is not None:
            return "broken"
        return "closing" if self._closed else "running"


def _spread(series: Series, now: float) -> dict[str, Any]:
    count, total, largest, _ = series.lately(now)
    p50, p95, p99 = series.percentiles(now, 0.5, 0.95, 0.99)
    return {
        "count": count,
        "mean": _ms(total / count if count else None),
        "p50": _ms(p50),
        "p95": _ms(p95),
        "p99": _ms(p99),
        "max": _ms(largest if count else None),
        "histogram": {
            "le_ms": [bound * 1000 for bound in BOUNDS],
            "counts": series.spread(BOUNDS),
            "sum_ms": series.sum * 1000,
        },
    }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000
