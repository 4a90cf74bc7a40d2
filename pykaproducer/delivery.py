"""The outcome of a message: :class:`Delivery`, and how to wait for it.

``Delivery`` is a class of the compiled kernel: one small object per message that the garbage
collector does not track. Its methods that wait or create objects are the functions of this module,
registered at the end of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, NamedTuple

import pykaproducer._kernel as _kernel
from pykaproducer._errors.formatting import format_partition
from pykaproducer._errors.kafka_python import TopicPartition
from pykaproducer._errors.tracebacks import copied, without_frames
from pykaproducer._kernel import Delivery
from pykaproducer._util import threads
from pykaproducer._util.clock import Clock, held_lock, in_seconds
from pykaproducer._util.guarded_log import GuardedLogger
from pykaproducer._util.memory import NO_MEMORY
from pykaproducer.errors import (
    CallbackThreadError,
    ForkedProducerError,
    OutcomeTimeoutError,
    Status,
)

if TYPE_CHECKING:
    import asyncio

__all__ = ["Delivery", "RecordMetadata", "Status", "TopicPartition"]

log = GuardedLogger("pykaproducer.delivery")


class RecordMetadata(NamedTuple):
    """The position of a delivered message, with the fields of kafka-python's ``RecordMetadata``."""

    topic: str
    partition: int
    topic_partition: TopicPartition
    #: Offset in the partition; -1 if the broker returned none (``acks=0``, or a retry of a batch
    #: that the broker already had).
    offset: int
    #: Milliseconds since the epoch: the message's, or the broker's if the topic is set up so.
    timestamp: int
    #: Always None: since message format v2, a checksum covers the whole batch.
    checksum: None
    #: Bytes of the serialized key and value, -1 for None.
    serialized_key_size: int
    serialized_value_size: int
    #: Always -1: it is not kept.
    serialized_header_size: int


class ProducerRef:
    """The data of its producer that a handle needs, without a reference that keeps it alive.

    A handle may outlive its producer and must not keep the pipeline alive.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.pid = os.getpid()
        #: Returns whether the caller is on one of the producer's threads, which run callbacks
        #: and partitioners.
        self.in_own_thread: Callable[[], bool] = _never
        #: Returns why a message for a topic, and its partition if it has one, is still pending.
        self.reason_for: Callable[[str, int | None], str | None] = _unknown
        #: Sends lingering messages, because a thread waits alone.
        self.end_lingering: Callable[[], None] = _nothing

    def check_may_wait(self, delivery: Delivery) -> None:
        """Raise if the caller can never receive the outcome of the pending *delivery*."""
        if self.pid != os.getpid():
            raise ForkedProducerError(
                f"{format_partition(delivery.topic)}: the message was pending in process "
                f"{self.pid} when process {os.getpid()} was forked; only process {self.pid} knows "
                f"its outcome",
                topic=delivery.topic,
            )
        if self.in_own_thread():
            raise CallbackThreadError(
                "a callback or partitioner waits for the result of a pending message, which would "
                "deadlock; use add_done_callback(), or wait in another thread"
            )


def _never() -> bool:
    return False


def _nothing() -> None:
    pass


def _unknown(topic: str, partition: int | None) -> None:
    return None


def wait(delivery: Delivery, timeout: float | None, waited: float = 0.0) -> bool:
    """Wait for the outcome; return False if there is none after *timeout* seconds.

    *waited*: how much of *timeout* has already passed (seconds).
    """
    if delivery.settled():
        return True
    context: ProducerRef = delivery.chunk.owner
    context.check_may_wait(delivery)
    clock = context.clock
    deadline = clock.after(timeout)
    if deadline is not None:
        deadline -= waited
    if deadline is not None and clock.monotonic() >= deadline:
        return False
    lock = held_lock()
    if not delivery.watch(lock):
        return True
    try:
        if delivery.chunk.budget.ends_lingering:
            context.end_lingering()
        # The loop is needed because a wait longer than the platform's limit is split.
        while not threads.acquire_or_fork(clock, lock, deadline):
            if deadline is not None and clock.monotonic() >= deadline:
                return delivery.settled()
    finally:
        delivery.unwatch(lock)
    if not delivery.settled():  # a signal handler has forked
        context.check_may_wait(delivery)
    return True


def exception(
    delivery: Delivery, timeout: float | None = None, waited: float = 0.0
) -> BaseException | None:
    """Return the error of a message, or None if it was delivered."""
    timeout = in_seconds(timeout)
    if not wait(delivery, timeout, waited):
        topic, partition = delivery.topic, delivery.partition
        context: ProducerRef = delivery.chunk.owner
        reason = context.reason_for(topic, partition)
        raise OutcomeTimeoutError(
            f"{format_partition(topic, partition)}: no outcome within {timeout:.3g} s"
            + (f": {reason}" if reason else "")
            + "; the message is still being sent, until delivery_timeout_ms ends it"
        )
    return delivery.failure()


def result(delivery: Delivery, timeout: float | None = None, waited: float = 0.0) -> RecordMetadata:
    """Return the position of the message, or raise its error."""
    error = exception(delivery, timeout, waited)
    if error is not None:
        try:
            raise error
        finally:
            # The traceback refers to this frame and thereby to the callers' frames. Without this
            # line, they would stay alive until the garbage collector runs.
            del error
    return metadata(delivery)


def metadata(delivery: Delivery, header_size: int = -1) -> RecordMetadata:
    """Return the RecordMetadata of a delivered message.

    *header_size*: bytes of its headers, -1 if they are not known.
    """
    topic, partition, offset = delivery.topic, delivery.partition, delivery.offset
    assert partition is not None, "a delivered message has a partition"
    assert offset is not None, "a delivered message has an offset"
    return RecordMetadata(
        topic,
        partition,
        TopicPartition(topic, partition),
        offset,
        delivery.timestamp,
        None,
        delivery.serialized_key_size,
        delivery.serialized_value_size,
        header_size,
    )


def status(delivery: Delivery) -> Status:
    """Return whether the message may be in the log, as far as is known now."""
    error = delivery.failure()
    if error is not None:
        found = getattr(error, "status", None)
        return found if isinstance(found, Status) else Status.POSSIBLY_PERSISTED
    if delivery.settled() and not delivery.chunk.unconfirmed:
        return Status.PERSISTED
    return Status.POSSIBLY_PERSISTED if delivery.possibly_persisted() else Status.NOT_PERSISTED


def add_done_callback(delivery: Delivery, function: Callable[[Delivery], object]) -> None:
    """Call *function* once with *delivery* when it is settled."""
    if not delivery.when_settled(function):
        # Already settled: call it here, as concurrent.futures does.
        try:
            function(delivery)
        except Exception as error:
            log_callback_error(function, error)


def add_callback(
    delivery: Delivery,
    function: Callable[..., object],
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> Delivery:
    """Call *function* with the metadata if the message is delivered."""
    return _when_done(delivery, _metadata_if_delivered, function, args, kwargs)


def add_errback(
    delivery: Delivery,
    function: Callable[..., object],
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> Delivery:
    """Call *function* with the error if the message fails."""
    return _when_done(delivery, Delivery.failure, function, args, kwargs)


def _metadata_if_delivered(delivery: Delivery) -> RecordMetadata | None:
    return metadata(delivery) if delivery.succeeded() else None


def _when_done(
    delivery: Delivery,
    outcome: Callable[[Delivery], object],
    function: Callable[..., object],
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> Delivery:
    """Call *function* with the result of *outcome* for the settled message, unless it is None."""

    def on_done(settled: Delivery) -> None:
        found = outcome(settled)
        if found is not None:
            function(*args, found, **kwargs)

    add_done_callback(delivery, on_done)
    return delivery


def log_callback_error(function: object, error: BaseException) -> None:
    """Log a user callback's exception, which affects no other message (docs/design.rst, P9)."""
    log.error("exception in delivery callback %r", function, exc_info=error)


#: For how long it is tried again to wake tasks after a MemoryError of their event loop (seconds).
_WAKE_TIME = 10.0
#: The types of event loops and exceptions that have been logged.
_logged: set[tuple[type, type]] = set()


class _LoopWaiter(_kernel.TaskWaiter):
    """A waiter that wakes a task, in place of a lock in the kernel's table."""

    #: Its name in the log, while ``threads`` tries again after a MemoryError.
    name = "that wakes an event loop"

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.settled = loop.create_future()
        self._others: list[_LoopWaiter] = []
        self._until: float | None = None

    def release_with(self, others: list[_LoopWaiter]) -> None:
        """Wake the tasks of this waiter and of *others* in the same loop.

        The loop may be of any library, and may have ended: what it raises concerns its tasks only.
        """
        self._others = others
        threads.start(self)

    def start_thread(self) -> None:
        """Wake the tasks. Raises MemoryError, and is then called again by ``threads``."""
        try:
            self.loop.call_soon_threadsafe(_wake, [self, *self._others])
        except RuntimeError:
            pass  # the loop was closed in the meantime, so there is no waiter left
        except NO_MEMORY:
            now = _kernel.monotonic()
            if self._until is None:
                self._until = now + _WAKE_TIME
            if now < self._until:
                raise
        except Exception as error:
            kind = type(self.loop), type(error)
            if kind not in _logged:
                _logged.add(kind)
                log.error("cannot wake the tasks of %s", kind[0].__name__, exc_info=error)


def _wake(waiters: list[_LoopWaiter]) -> None:
    for waiter in waiters:
        if not waiter.settled.done():
            waiter.settled.set_result(None)


def wait_in_event_loop(delivery: Delivery) -> Generator[Any, None, RecordMetadata]:
    """Implement ``await delivery``: :func:`result` without blocking the loop."""
    yield from settled_in_event_loop(delivery)
    return metadata(delivery) if delivery.succeeded() else result(delivery)


def settled_in_event_loop(delivery: Delivery) -> Generator[Any, None, None]:
    """Wait for the outcome without blocking the loop.

    (A generator, because abandoning an unstarted coroutine emits a "never awaited" warning.)
    """
    if not delivery.settled():
        # Imported only here, because it is slow. A program that awaits has imported it already.
        import asyncio

        delivery.chunk.owner.check_may_wait(delivery)
        waiter = _LoopWaiter(asyncio.get_running_loop())
        if delivery.watch(waiter):
            try:
                yield from waiter.settled.__await__()
            finally:
                delivery.unwatch(waiter)


def describe(delivery: Delivery) -> str:
    """Implement ``repr()``: the destination and the outcome, but never the payload."""
    where = delivery.topic
    if delivery.partition is not None:
        where += f"[{delivery.partition}]"
    if not delivery.settled():
        return f"<Delivery {where} pending>"
    error = delivery.peek_failure()  # flush() still raises it
    if error is not None:
        return f"<Delivery {where} failed: {error}>"
    return f"<Delivery {where} offset {delivery.offset}>"


class DeliveryFunctions(NamedTuple):
    """The functions that the kernel calls: methods of ``Delivery``, and two for errors."""

    result: Callable[..., RecordMetadata]
    exception: Callable[..., BaseException | None]
    add_done_callback: Callable[..., None]
    wait_in_event_loop: Callable[..., Generator[Any, None, RecordMetadata]]
    add_callback: Callable[..., Delivery]
    add_errback: Callable[..., Delivery]
    status: Callable[[Delivery], Status | None]
    describe: Callable[[Delivery], str]
    #: Return a copy of an exception, to be raised.
    copied: Callable[..., BaseException]
    #: Return an exception without the frames of its traceback.
    without_frames: Callable[..., BaseException]


_kernel.register_delivery_functions(
    DeliveryFunctions(
        result=result,
        exception=exception,
        add_done_callback=add_done_callback,
        wait_in_event_loop=wait_in_event_loop,
        add_callback=add_callback,
        add_errback=add_errback,
        status=status,
        describe=describe,
        copied=copied,
        without_frames=without_frames,
    )
)
