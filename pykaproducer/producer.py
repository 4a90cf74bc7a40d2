"""The producer: ``send()``, ``flush()``, ``close()``. The file to open first.

:meth:`Producer.send` (compiled, ``_kernel.Admission``) appends a message to its topic's open chunk
and notifies the dispatcher. From there, follow ``_pipeline/dispatcher.py``, ``topic.py``,
``partition.py``, ``broker.py``, ``bridge.py``, and back through ``broker.py`` and ``reports.py``.
``docs/design.rst`` describes the whole way in numbered steps. The methods that ``send()`` calls on
rare occasions, such as starting the threads, are in ``_process/admission_hooks.py``.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from pykaproducer._kernel import Admission, Budget
from pykaproducer._net.networks import network_for
from pykaproducer._net.transport import Network
from pykaproducer._pipeline.background_task import BackgroundTask, spawn_later
from pykaproducer._pipeline.buffer_space import BufferSpaceWaiters
from pykaproducer._pipeline.incomplete import FlushBarrier
from pykaproducer._pipeline.metrics import ProducerMetrics
from pykaproducer._pipeline.unreported import Taken
from pykaproducer._pipeline.wiring import Pipeline, import_transactions
from pykaproducer._pipeline.worker import spawn
from pykaproducer._process import closing, lifecycle, producer_pickle, user_code
from pykaproducer._process.admission_hooks import AdmissionHooks
from pykaproducer._util.checksum import crc32c_function
from pykaproducer._util.clock import Clock, in_seconds
from pykaproducer._util.guarded_log import GuardedLogger
from pykaproducer._util.memory import NO_THREAD
from pykaproducer.config import Config
from pykaproducer.delivery import ProducerRef
from pykaproducer.errors import (
    CallbackThreadError,
    DeliveryError,
    MetadataTimeoutError,
    ProducerClosedError,
)
from pykaproducer.transactions import TransactionalMethods

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from pykaproducer._kernel import Delivery
    from pykaproducer.settings import ProducerSettings

log = GuardedLogger("pykaproducer.producer")

#: How long to wait for the threads after everything has its outcome (seconds). They need
#: milliseconds, unless the resolver blocks one of them.
_STOP_TIME = 0.5
#: How long close() waits for the thread of the producer that stops the others (seconds).
_END_TIME = 0.9


class Producer(AdmissionHooks, TransactionalMethods):
    """A Kafka producer.

    ``Producer(**settings)`` takes the settings of kafka-python's ``KafkaProducer`` and more (see
    the settings table). Neither the constructor nor :meth:`send` ever waits for the network. The
    threads start with the first use. A producer is thread-safe; after a fork, the child's producer
    is empty and usable.

    Raises:
        ConfigurationError: a setting is unknown, of a wrong type or out of range.
        UnsupportedFeatureError: a setting requires a feature that is not supported.
    """

    #: Tests replace these to control time and the network.
    _clock: Clock = Clock()
    _network_type: Callable[[Config], Network] = staticmethod(network_for)
    _config_type: type[Config] = Config

    #: The arguments of the constructor, by position and by name.
    _given: tuple[tuple[Any, ...], dict[str, Any]]

    def __new__(cls, *arguments: Any, **settings: Any) -> Self:
        made = super().__new__(cls)
        # For __reduce__. Stored here so that a subclass may have a different constructor.
        made._given = (arguments, settings)
        return made

    def __init__(self, *arguments: Any, **settings: Unpack[ProducerSettings]) -> None:
        if arguments:
            raise TypeError(
                f"{type(self).__name__}() takes settings by name, not a "
                f"{type(arguments[0]).__name__}: write bootstrap_servers='host:9092', and ** "
                f"before a dict of settings"
            )
        self.config = self._config_type.from_kwargs(settings)
        self._name = self.config.client_id
        # Held by the thread that stops the pipeline; never by a user thread, which an exception
        # may interrupt.
        self._ending = threading.Lock()
        # The thread that closes the producer after a callback has called close().
        self._closer: BackgroundTask | None = None
        # Receives the failures for the `with` block that raises them.
        self._handover: closing.Handover | None = None
        self._closed = False
        self._make_interceptors()
        crc32c_function()  # imported here, so that the first send() need not wait for it
        if self.config.transactional_id is not None:
            import_transactions()
        self._reset()
        lifecycle.register(self)

    def _reset(self) -> None:
        """Become empty and not started: at construction, and in the child of a fork."""
        self._ref = ProducerRef(self._clock)
        self._budget = Budget(self.config.buffer_memory)
        self._space = BufferSpaceWaiters(self._budget, self._clock, self.config.max_block_ms)
        self._pipeline: Pipeline | None = None
        self._refused = type(self)._refused
        self._metrics = ProducerMetrics.of(self.config)
        # The pipeline under a fixed key, for setdefault(), which no signal can interrupt.
        self._made: dict[str, Pipeline] = {}
        self._open(
            self._budget,
            self._announce,
            self._ref,
            delivery_timeout=self.config.delivery_timeout_ms / 1000,
            max_request_size=self.config.max_request_size,
            serializing=self.config.key_serializer is not None
            or self.config.value_serializer is not None,
            unconfirmed=self.config.acks == 0,
            fake_clock=None if self._clock.is_real else self._clock,
        )

    # Sending. Compiled: _kernel_parts/admission.pxi ---------------------------------------------

    if TYPE_CHECKING:

        def send(
            self,
            topic: str,
            value: Any = None,
            key: Any = None,
            headers: Sequence[tuple[str, Buffer | None]] | None = None,
            partition: int | None = None,
            timestamp_ms: int | None = None,
            *,
            on_delivery: Callable[[DeliveryError | None, Delivery], object] | None = None,
            delivery_timeout_ms: int | None = None,
        ) -> Delivery:
            """Accept one message for sending and return its :class:`Delivery` immediately.

            Never waits for the network. If ``buffer_memory`` has no space for the message, waits
            up to ``max_block_ms`` for it (KIP-286).

            Args:
                topic (str): topic name.
                value: bytes-like, or None (a tombstone). Any object if ``value_serializer`` is set.
                key: bytes-like, or None; decides the partition. Any object if ``key_serializer`` is
                    set.
                headers: list of ``(str, bytes or None)``, or None.
                partition (int): partition to send to. None: the partitioner decides.
                timestamp_ms (int): milliseconds since the epoch. None: the current time.
                on_delivery: called once as ``on_delivery(error, delivery)`` in the Reports thread.
                    The error is None if the message was delivered.
                delivery_timeout_ms (int): milliseconds until this message is delivered or fails.
                    None: the setting ``delivery_timeout_ms``.

            Returns:
                Delivery: the message's future and report.

            Raises:
                TypeError, ValueError: invalid argument (type, topic name, negative partition).
                MessageTooLargeError: larger than ``max_request_size`` or ``buffer_memory``.
                BufferFullError: no space within ``max_block_ms``; immediately in a callback.
                ProducerClosedError: after ``close()``.
                ProducerBrokenError: an internal error stopped the producer; the cause is chained.
                Exception: any exception of a serializer.

            If it raises, the message was not accepted. After an asynchronous exception such as
            ``KeyboardInterrupt`` it may have been accepted, and will then be sent.
            """
    else:
        send = Admission.send

    # Flush and close ---------------------------------------------------------------------------

    def flush(self, timeout: float | None = None) -> None:
        """Wait until all messages accepted so far have their outcome, and raise if any failed.

        Lingering is ignored during the wait. Messages sent later do not extend it.

        Args:
            timeout (float): seconds; None waits until the last deadline (``delivery_timeout_ms``).

        Raises:
            FlushTimeoutError: some messages have no outcome after *timeout*; they are still being
                sent.
            DeliveryFailures: messages have failed since the last flush, and neither a callback nor
                a read outcome has reported it.
            CallbackThreadError: called from a callback, which would deadlock waiting for itself.
        """
        pipeline = self._pipeline
        if pipeline is None or not self.accepted:
            return
        self._check_may_wait("flush()")
        timeout = in_seconds(timeout)
        deadline = self._clock.after(timeout)
        self._send_open(None if deadline is None else deadline - self._clock.monotonic())
        # A chunk is counted by its slot, or is in IncompleteChunks, until its failures are in
        # UnreportedFailures. So none is missed here.
        if self._is_at_rest() and not pipeline.incomplete.chunks():
            self._flushed(pipeline.unreported.take())
            return
        self._announce_missed_slots()
        process = os.getpid()
        pending = pipeline.flush(deadline)
        if os.getpid() != process:
            return  # a signal handler has forked: in the child, no message is pending
        if pending:
            why, stuck = pipeline.why_pending(), pipeline.stuck_callback(pending)
            raise closing.flush_timeout(pending, timeout or 0.0, why, stuck)
        self._flushed(pipeline.unreported.take())

    def _flushed(self, taken: Taken) -> None:
        """Raise the failures that :meth:`flush` has found."""
        closing.raise_failures(taken.failures)

    def _announce_missed_slots(self) -> None:
        # A KeyboardInterrupt may have interrupted send() between the append and the announcement.
        if slots := self._unannounced():
            self._announce(slots)

    def close(self, timeout: float | None = None) -> None:
        """Stop accepting messages, flush, fail the rest at the deadline, and stop all threads.

        A callback may still send while this waits. Failures that neither a callback nor a read
        outcome has reported are logged, not raised. Idempotent and thread-safe; every call returns
        once the producer is closed. From a callback it does not wait: no more messages are
        accepted, and a background thread closes the producer.

        With ``transactional_id``: aborts an open transaction, and waits for the end of one that is
        being committed or aborted. ``close(0)`` leaves it to the coordinator, which aborts it after
        ``transaction_timeout_ms``.

        Args:
            timeout (float): seconds for the flush; None waits until the last message's deadline.
                (For messages that callbacks send in the meantime, that is ``delivery_timeout_ms``
                after the call. It does not wait longer than that for a callback that does not
                return.) 0 fails all messages without an outcome immediately.
        """
        timeout = in_seconds(timeout)  # raises before anything happens if it is not a number
        in_own_thread = self._ref.in_own_thread()
        if in_own_thread and self._closed:
            return  # another thread is closing it, and may wait for this very thread
        self._end_admission()
        if timeout == 0 or in_own_thread:
            self._shut()
        if in_own_thread:
            finish = functools.partial(self._finish, timeout)
            self._closer = spawn_later(f"{self._name}-close", finish)
            return
        self._finish(timeout)
        if self._closer is not None:
            self._closer.join(_END_TIME)

    def abort(self) -> None:
        """Fail all messages that are not delivered, and close."""
        self.close(timeout=0)

    def _end_admission(self) -> None:
        self._closed = True
        if self.config.transactional_id is None:
            self._begin_to_close()
        else:
            self._shut()  # a callback cannot retry: an open transaction is aborted
        # Threads that wait for space or metadata raise ProducerClosedError.
        self._space.wake_all()
        pipeline = self._pipeline
        if pipeline is not None:
            pipeline.metadata.waiting_threads.wake_all()

    def _finish(self, timeout: float | None) -> None:
        pipeline = self._pipeline
        if pipeline is None:
            self._shut()
            self._stop_observing()
            return
        # Several threads may wait here at once, each with its own timeout.
        try:
            reason = closing.finish(self, pipeline, timeout)
        except Exception:  # a bug: nothing may go on running because of it
            self._shut()
            self._stop(pipeline, "close() failed with an error")
            raise
        self._stop(pipeline, reason)

    def _stop(self, pipeline: Pipeline, reason: str | None) -> None:
        # On a separate thread, so that a KeyboardInterrupt in this one can neither divide an
        # outcome nor stop the shutdown. A `with` block that begins to wait later gets nothing of
        # what this call has failed: abort() in the block logs it.
        ended = functools.partial(self._end, pipeline, reason, self._handover)
        try:
            end = spawn(f"{self._name}-end", ended)
        except NO_THREAD:  # no thread can be started; stop on this one
            ended()
            return
        end.join(_END_TIME)
        if end.is_alive():
            log.warning(
                "close(): not all threads stopped within %.3g s; stopping continues", _END_TIME
            )

    def _end(
        self, pipeline: Pipeline, reason: str | None, handover: closing.Handover | None
    ) -> None:
        """Fail all messages without an outcome for *reason*, and stop all threads."""
        with self._ending:
            if self._pipeline is not pipeline:
                return  # another thread has stopped it in the meantime
            # Not before: the other thread could stop Reports between the settling of these messages
            # and their reports.
            if reason is not None:
                pipeline.abort(reason)
            late = pipeline.stop(self._clock.monotonic() + _STOP_TIME)
            if late:
                log.warning("close(): still running after %.3g s: %s", _STOP_TIME, ", ".join(late))
            # Non-blocking: a flush() that takes them at this moment reports them.
            taken = pipeline.unreported.try_take()
            if handover is None or not handover.give(taken):
                closing.report(taken, "close()")
            if pipeline.coordinator is not None:
                self._last_outcome = pipeline.coordinator.machine.known_outcome()
            self._pipeline = None
            self._made.clear()
        self._stop_observing()

    def _check_may_wait(self, what: str) -> None:
        if self._ref.in_own_thread():
            raise CallbackThreadError(
                f"{what} was called from a callback or partitioner, where it would deadlock; call "
                f"it from another thread"
            )

    def _check_may_control(self, what: str) -> None:
        if self._ref.in_own_thread() or user_code.runs_in_send(self, self._interceptors):
            raise CallbackThreadError(
                f"{what} was called from a callback, partitioner, serializer or interceptor; the "
                f"transaction of a message must not change while they handle it; make the call "
                f"elsewhere, after send() has returned"
            )

    # Cluster information -------------------------------------------------------------------------

    def partitions_for(self, topic: str) -> set[int]:
        """Return the partition numbers of *topic*, waiting for metadata up to ``max_block_ms``.

        Raises:
            KafkaTimeoutError: there is no metadata by then; the text says why.
        """
        self._check_topic(topic)
        self._check_may_wait("partitions_for()")
        self._ensure_started()
        pipeline = self._pipeline
        if pipeline is None:
            raise ProducerClosedError("the producer is closed")
        deadline = self._clock.monotonic() + self.config.max_block_ms / 1000
        process = os.getpid()
        try:
            return pipeline.metadata.partitions_for(topic, deadline, self._ensure_started)
        except MetadataTimeoutError:
            if os.getpid() == process:
                raise
        return self.partitions_for(topic)  # a signal handler has forked, in the child

    def connect(self) -> None:
        """Start connecting without waiting, so that the first message need not wait for metadata.

        Optional: the first message starts it, too.
        """
        self._ensure_started()
        pipeline = self._pipeline
        if pipeline is not None:
            pipeline.metadata.want()

    def bootstrap_connected(self) -> bool:
        """Return whether a server of the cluster has answered."""
        pipeline = self._pipeline
        return pipeline is not None and bool(pipeline.metadata.view.brokers)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close. If an exception ends the block, wait at most ``exit_flush_timeout_ms``.

        Raises:
            DeliveryFailures: messages failed, and neither a callback nor a read outcome has
                reported it. If an exception ends the block, they are logged instead.
        """
        if kind is None:
            self._leave()
        else:
            # The program learns of the exception only when this returns.
            self.close(self.config.exit_flush_timeout_ms / 1000)

    def _leave(self) -> None:
        """Close at the end of a ``with`` block without exception, and raise the failures."""
        handover = self._handover = closing.Handover()
        try:
            self.close()
        except BaseException:  # KeyboardInterrupt, or an exception of a subclass
            taken = handover.take()
            if taken is not None:
                closing.report(taken, "close()")
            raise
        taken = handover.take()
        if taken is not None:
            closing.raise_failures(taken.failures)

    # For _process/lifecycle.py -------------------------------------------------------------------

    def _begin_exit(self) -> float:
        self._end_admission()
        end = self._clock.monotonic() + self.config.exit_flush_timeout_ms / 1000
        if (pipeline := self._pipeline) is not None:
            self._exit_flush = FlushBarrier()  # as long as it exists, nothing lingers
            pipeline.begin_flush(self._exit_flush)
        return end

    def _close_by(self, end: float) -> None:
        self.close(max(0.0, end - self._clock.monotonic()))

    def _is_running(self) -> bool:
        return self._pipeline is not None

    def _forked(self) -> None:
        pipeline = self._pipeline
        self._ending = threading.Lock()
        self._closer = None
        self._handover = None
        self.inherit_ids()
        self._reset_observing()
        self._reset()
        if pipeline is not None:
            if pipeline.coordinator is not None:
                pipeline.coordinator.forked()
            pipeline.abandon()
            pipeline.network.close_inherited()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the constructor's arguments (``_process/producer_pickle.py``)."""
        return producer_pickle.reduce_producer(self)

    def __repr__(self) -> str:
        config = self.__dict__.get("config")
        if config is None:  # the constructor has failed; a reporter of errors shows its frames
            return f"<{type(self).__name__} without settings>"
        servers = ",".join(f"{host}:{port}" for host, port in config.bootstrap_servers)
        return f"<Producer {config.client_id} bootstrap_servers={servers!r}>"
