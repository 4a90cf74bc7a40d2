"""The producer: ``send()``, ``flush()``, ``close()``. The file to open first.

A message's way: :meth:`Producer.send` (compiled, ``_kernel.Admission``) appends it to its topic's
open chunk and tells the dispatcher; from there follow ``_pipeline/dispatcher.py``, ``topic.py``,
``partition.py``, ``broker.py``, ``bridge.py``, and back through ``broker.py`` and ``reports.py``.
``docs/design.rst`` has the whole journey in numbered steps.
"""

from __future__ import annotations

import _thread
import functools
import logging
import threading
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, NoReturn, Self

from pykaproducer import _closing as closing
from pykaproducer import _lifetime as lifetime
from pykaproducer import _remaking as remaking
from pykaproducer._clock import Clock
from pykaproducer._kernel import Budget, TopicSlot, Turn
from pykaproducer._net.secure import network_for
from pykaproducer._net.transport import Network
from pykaproducer._no_transactions import NoTransactions
from pykaproducer._pipeline.meter import Meter
from pykaproducer._pipeline.untold import Taken
from pykaproducer._pipeline.wiring import Pipeline
from pykaproducer._pipeline.worker import Errand, spawn, spawn_later
from pykaproducer._space import Space
from pykaproducer._texts import check_topic
from pykaproducer.block import BlockProducer, RefusedRows
from pykaproducer.config import Config
from pykaproducer.delivery import HandleContext
from pykaproducer.errors import (
    BufferFullError,
    CallbackThreadError,
    FlushTimeoutError,
    MessageTooLargeError,
    ProducerBrokenError,
    ProducerClosedError,
    Status,
)
from pykaproducer.observe import ObservedProducer

log = logging.getLogger("pykaproducer.producer")

#: How long the threads are waited for once nothing is left to be delivered (seconds). They take
#: milliseconds, unless the resolver holds one up.
_STOP_TIME = 0.5
#: How long close() waits for that end, which a thread of the producer carries out (seconds).
_END_TIME = 0.9


class Producer(BlockProducer, ObservedProducer, NoTransactions):
    """A Kafka producer.

    ``Producer(**settings)``: the settings are those of kafka-python's ``KafkaProducer`` and more
    (see the settings table). Neither the constructor nor :meth:`send` ever waits for the network;
    threads start with the first use. To be used from any number of threads; after a fork the
    child's producer is empty and works.

    Raises:
        ConfigurationError: a setting is unknown, of a wrong type or out of range.
        UnsupportedFeatureError: a setting asks for what is not built.
    """

    #: What tests put in place of the machine's clock and network.
    _clock: Clock = Clock()
    _network_type: Callable[[Config], Network] = staticmethod(network_for)
    _config_type: type[Config] = Config

    #: What it was made with, by position and by name.
    _given: tuple[tuple[Any, ...], dict[str, Any]]

    def __new__(cls, *arguments: Any, **settings: Any) -> Self:
        made = super().__new__(cls)
        # For __reduce__; here, so that a subclass may have a constructor of its own.
        made._given = (arguments, settings)
        return made

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        if arguments:
            raise TypeError(
                f"{type(self).__name__}() takes settings by name, not a "
                f"{type(arguments[0]).__name__}: write bootstrap_servers='host:9092', and ** in "
                f"front of a dict of settings"
            )
        self.config = self._config_type.from_kwargs(settings)
        self._name = self.config.client_id
        # Held by the thread that ends the pipeline; never by a user's, which may be interrupted.
        self._ending = threading.Lock()
        # The thread that closes because a callback has asked for it.
        self._closer: Errand | None = None
        # The end of a `with` block waits for what failed.
        self._handover: closing.Handover | None = None
        self._closed = False
        self._make_interceptors()
        self._reset()
        lifetime.watch(self)

    def _reset(self) -> None:
        """Empty and not started: at construction, and in the child of a fork."""
        self._home = HandleContext(self._clock)
        self._budget = Budget(self.config.buffer_memory)
        self._space = Space(self._budget, self._clock, self.config.max_block_ms)
        self._pipeline: Pipeline | None = None
        self._meter = Meter.of(self.config)
        # The one that was made, for setdefault(), which no signal can divide.
        self._made: dict[str, Pipeline] = {}
        self._open(
            self._budget,
            self._announce,
            self._home,
            delivery_timeout=self.config.delivery_timeout_ms / 1000,
            max_request_size=self.config.max_request_size,
            serializing=self.config.key_serializer is not None
            or self.config.value_serializer is not None,
            unconfirmed=self.config.acks == 0,
            fake_clock=None if self._clock.is_real else self._clock,
        )

    # What send() asks for, when it is not per message ----------------------------------------

    def _start(self) -> None:
        """First use, or no more use: called by ``send()`` while the producer is not ready.

        Several threads may come here at once, and a signal handler in the middle of it, which may
        close the producer: no lock is held, the first pipeline that is made counts, and after
        ``_shut()`` nothing is admitted whoever says that it is ready.
        """
        self._check_not_closed()
        pipeline = self._pipeline
        if pipeline is None:
            lifetime.first_use()
            made = Pipeline(
                self.config,
                self._clock,
                self._network_type(self.config),
                self._name,
                self._take,
                self._take_all,
                self._broke,
                self._let_go,
                self._meter,
            )
            pipeline = self._made.setdefault("pipeline", made)
            self._home.in_own_thread = pipeline.own_threads()
            self._pipeline = pipeline
            if pipeline is made:
                self._end_lingering_when_full(pipeline)
                self._begin_to_look()
                lifetime.warn_of_many()
        self._admit()
        # Looked at behind that: who closes (1) says so, (2) shuts.
        self._check_not_closed()
        if pipeline.broken is not None:
            self._refuse_broken(pipeline.broken)

    def _check_not_closed(self) -> None:
        if self._closed and not self._may_still_send():
            raise ProducerClosedError("the producer is closed")

    def _may_still_send(self) -> bool:
        """Return whether this is a callback while ``close()`` waits (``_closing.py``)."""
        pipeline = self._pipeline
        return (
            self._closing
            and pipeline is not None
            and pipeline.reports.thread is threading.current_thread()
        )

    def _announce(self, slot: TopicSlot) -> bool:
        """Announce a topic's open chunk. Return false if the next message must repeat that."""
        pipeline = self._pipeline
        # None: close() has ended it between the append and this, and has found the chunk.
        return pipeline is None or pipeline.dispatcher.announce(slot)

    def _check_topic(self, topic: object) -> None:
        check_topic(topic)

    def _too_large(self, topic: str | None, size: int, row: int | None = None) -> NoReturn:
        allowed = f"max_request_size allows {self.config.max_request_size}"
        if size <= self.config.max_request_size:
            allowed = f"buffer_memory is {self._budget.limit} bytes"
        where = "" if topic is None else f"topic {topic!r}: "
        raise MessageTooLargeError(
            f"{where}the message would take {size} bytes; {allowed}", row=row
        )

    def _serialize(self, topic: str, key: Any, value: Any, headers: Any) -> tuple[Any, Any]:
        name = "key_serializer"
        try:
            if self.config.key_serializer is not None:
                key = self.config.key_serializer(topic, headers, key)
            name = "value_serializer"
            if self.config.value_serializer is not None:
                value = self.config.value_serializer(topic, headers, value)
        except Exception as error:
            error.add_note(f"raised by {name}, for a message to topic {topic!r}")
            raise
        return key, value

    def _not_bytes(self, name: str, data: object) -> None:
        """Raise TypeError if a serializer returned *data*, a key or value that cannot be sent."""
        if getattr(self.config, f"{name}_serializer") is not None:
            raise TypeError(
                f"{name}_serializer returned {type(data).__name__}; it must return bytes, "
                f"bytearray, memoryview or None (encode a str with .encode())"
            )

    def _rows_refused(self, rows: RefusedRows) -> None:
        pipeline = self._pipeline
        # None: close() has ended it, and has logged what failed.
        if pipeline is not None:
            pipeline.settler.refuse(rows, rows)
        else:
            log.error("%d rows of a block were refused: %s", rows.count, rows.error)

    def _may_wait(self, amount: int) -> _thread.LockType | None:
        """Return a lock to wait with for ``buffer_memory``; None in a callback."""
        self._space.check_can_ever_fit(amount)
        if self._home.in_own_thread():
            return None
        lock = _thread.allocate_lock()
        lock.acquire()
        return lock

    def _end_lingering_when_full(self, pipeline: Pipeline) -> None:
        space = self._space
        full = weakref.WeakMethod(pipeline.buffer_is_full)  # the pipeline refers to the space

        def on_full() -> None:
            tell = full()
            if tell is not None:
                tell()

        pipeline.space_wanted = lambda: space.wanted
        space.on_full = on_full

    def _wait_for_space(self, turn: Turn) -> None:
        self._space.wait(turn, lambda: self._ready)

    def _buffer_is_full(self, amount: int) -> NoReturn:
        self._space.lacks(amount)
        raise BufferFullError(
            f"buffer_memory ({self._budget.limit} bytes) is full, and in a callback (or a "
            f"partitioner) send() cannot wait for space: it may be its own thread that frees it"
        )

    # Flush and close ---------------------------------------------------------------------------

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything accepted before has its outcome, and say what failed.

        Lingering is ignored meanwhile; messages sent later do not extend the wait.

        Args:
            timeout (float): seconds; None: until the last deadline (``delivery_timeout_ms``).

        Raises:
            FlushTimeoutError: some have no outcome by then; they go on.
            DeliveryFailures: messages have failed since the last flush, and neither a callback nor
                a read outcome has reported it.
            CallbackThreadError: called in a callback, whose own end it would wait for.
        """
        pipeline = self._pipeline
        if pipeline is None or not self.accepted:
            return
        self._check_may_wait("flush()")
        self._announce_strays()
        deadline = self._clock.after(timeout)
        pending = pipeline.flush(deadline)
        if pending:
            raise FlushTimeoutError(
                f"{pending} messages had no outcome after {timeout:.3g} s; they go on until their "
                f"deadline (delivery_timeout_ms)",
                pending=pending,
            )
        self._flushed(pipeline.untold.take())

    def _flushed(self, taken: Taken) -> None:
        """Report what :meth:`flush` has found."""
        closing.raise_failures(taken.failures)

    def _announce_strays(self) -> None:
        # A KeyboardInterrupt may have cut send() between the append and the announcement.
        for slot in self._unannounced():
            self._announce(slot)

    def close(self, timeout: float | None = None) -> None:
        """End admission, flush, fail the rest at the deadline, end every thread.

        A callback may still send while this waits. Failures that neither a callback nor a read
        outcome has reported are written to the log, not raised. May be called again, and from
        several threads: each call returns when the producer is closed. In a callback it does not
        wait: nothing more is accepted, and a background thread closes the producer.

        Args:
            timeout (float): seconds for the flush; None: until the last message's deadline (of
                what callbacks send in the meantime: ``delivery_timeout_ms`` after the call).
                0: fail what has no outcome now.
        """
        self._clock.after(timeout)  # no number: nothing has happened
        in_own_thread = self._home.in_own_thread()
        if in_own_thread and self._closed:
            return  # somebody closes it, and may wait for this very thread
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
        """Fail everything that is not delivered, at once, and close."""
        self.close(timeout=0)

    def _end_admission(self) -> None:
        self._closed = True
        self._begin_to_close()
        # Those who wait for space, or for metadata, learn that the producer is closed.
        self._space.came()
        pipeline = self._pipeline
        if pipeline is not None:
            pipeline.metadata.wake_lookers()

    def _finish(self, timeout: float | None) -> None:
        pipeline = self._pipeline
        if pipeline is None:
            self._shut()
            self._end_looking()
            return
        # Several threads may wait here at once, each with its own timeout.
        reason = closing.finish(self, pipeline, timeout)
        # In a thread of its own: an outcome must not be cut in two by a KeyboardInterrupt that
        # strikes here, and the end goes on if whoever waits for it is interrupted.
        try:
            end = spawn(f"{self._name}-end", functools.partial(self._end, pipeline, reason))
        except (RuntimeError, MemoryError):  # no thread can be started; end it all the same
            self._end(pipeline, reason)
            return
        end.join(_END_TIME)
        if end.is_alive():
            log.warning("close(): the producer has not ended after %.3g s; it goes on", _END_TIME)

    def _end(self, pipeline: Pipeline, reason: str | None) -> None:
        """Fail what has no outcome, for *reason*, and end every thread."""
        if reason is not None:
            pipeline.abort(reason)
        with self._ending:
            if self._pipeline is not pipeline:
                return  # another thread has ended it meanwhile
            late = pipeline.stop(self._clock.monotonic() + _STOP_TIME)
            if late:
                log.warning("close(): still running after %.3g s: %s", _STOP_TIME, ", ".join(late))
            # Without waiting: a flush() that takes them at this moment reports them.
            taken = pipeline.untold.take_what_nobody_takes()
            if self._handover is None or not self._handover.give(taken):
                closing.report(taken, "close()")
            self._pipeline = None
        self._end_looking()

    def _broke(self) -> None:
        self._shut()
        self._space.came()

    def _refuse_broken(self, cause: BaseException) -> NoReturn:
        raise ProducerBrokenError(
            "the producer is broken by an error in the library; make a new one",
            status=Status.NOT_PERSISTED,
            cause=cause,
        )

    def _check_may_wait(self, what: str) -> None:
        if self._home.in_own_thread():
            raise CallbackThreadError(
                f"{what} was called in a callback (or a partitioner) and would wait for its own "
                f"thread; call it in another one"
            )

    # Looking at the cluster ----------------------------------------------------------------------

    def partitions_for(self, topic: str) -> set[int]:
        """Partition numbers of *topic*. Waits for its metadata, at most ``max_block_ms``.

        Raises:
            KafkaTimeoutError: no metadata by then; the text says why.
        """
        self._check_topic(topic)
        self._check_may_wait("partitions_for()")
        if not self._ready:
            self._start()
        pipeline = self._pipeline
        if pipeline is None:
            raise ProducerClosedError("the producer is closed")
        deadline = self._clock.monotonic() + self.config.max_block_ms / 1000
        return pipeline.metadata.partitions_for(topic, deadline, self._start)

    def connect(self) -> None:
        """Begin to connect, without waiting for it: the first message then finds the cluster known.

        Not needed: the first message does it, too.
        """
        if not self._ready:
            self._start()
        pipeline = self._pipeline
        if pipeline is not None:
            pipeline.metadata.want()

    def bootstrap_connected(self) -> bool:
        """Whether a server of the cluster has answered."""
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
        """Close. Somebody who presses Ctrl-C, or exits, waits no longer than at the exit.

        Raises:
            DeliveryFailures: messages failed, and neither a callback nor a read outcome has
                reported it. If another exception ends the block, they are logged instead.
        """
        if kind is None:
            self._leave()
        elif issubclass(kind, Exception):
            self.close()
        else:
            self.close(self.config.exit_flush_timeout_ms / 1000)

    def _leave(self) -> None:
        """Close at the end of a ``with`` block that no exception ends, and raise what failed."""
        handover = self._handover = closing.Handover()
        try:
            self.close()
        except BaseException:  # KeyboardInterrupt, or what a subclass raises
            taken = handover.take()
            if taken is not None:
                closing.report(taken, "close()")
            raise
        taken = handover.take()
        if taken is not None:
            closing.raise_failures(taken.failures)

    # What _lifetime.py asks for ------------------------------------------------------------------

    def _begin_exit(self) -> float:
        self._end_admission()
        return self._clock.monotonic() + self.config.exit_flush_timeout_ms / 1000

    def _close_by(self, end: float) -> None:
        self.close(max(0.0, end - self._clock.monotonic()))

    def _is_running(self) -> bool:
        return self._pipeline is not None

    def _forked(self) -> None:
        pipeline = self._pipeline
        self._ending = threading.Lock()
        self._closer = None
        self._handover = None
        self._forget_looking()
        self._reset()
        if pipeline is not None:
            pipeline.network.forsake()

    def __reduce__(self) -> tuple[Any, ...]:
        """As its configuration: the copy connects where it is unpickled (``_remaking.py``)."""
        return remaking.recipe(self)

    def __repr__(self) -> str:
        servers = ",".join(f"{host}:{port}" for host, port in self.config.bootstrap_servers)
        return f"<Producer {self._name} bootstrap_servers={servers!r}>"
