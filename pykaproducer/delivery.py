"""What becomes of a message: :class:`Delivery`, its outcome, and how to wait for it.

``Delivery`` itself is a class of the compiled kernel, one small object per message that the
garbage collector does not see. Its methods that wait, or make objects, are the functions of this
module: the kernel calls them by name.
"""

from __future__ import annotations

import _thread
import asyncio
import logging
import os
import sys
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from kafka.structs import TopicPartition

from pykaproducer import _kernel
from pykaproducer import _threads as threads
from pykaproducer._clock import Clock
from pykaproducer._frames import copied as copied
from pykaproducer._frames import without_frames as without_frames
from pykaproducer._kernel import Delivery
from pykaproducer._texts import place
from pykaproducer.errors import (
    CallbackThreadError,
    ForkedProducerError,
    OutcomeTimeoutError,
    Status,
)

__all__ = ["Delivery", "RecordMetadata", "Status", "TopicPartition"]

log = logging.getLogger("pykaproducer.delivery")


class RecordMetadata(NamedTuple):
    """Where a delivered message is, with the fields of kafka-python's ``RecordMetadata``."""

    topic: str
    partition: int
    topic_partition: TopicPartition
    #: Offset in the partition; -1 where the broker gave none (``acks=0``, or a retry that the
    #: broker knew already).
    offset: int
    #: Milliseconds since the epoch: the message's, or the broker's where the topic says so.
    timestamp: int
    #: Always None: since message format v2 a checksum covers the batch.
    checksum: None
    #: Bytes of the serialized key and value, -1 for None.
    serialized_key_size: int
    serialized_value_size: int
    #: -1: not kept.
    serialized_header_size: int


class HandleContext:
    """What a handle must know of the producer that it came from, and nothing that holds it.

    A handle may outlive its producer, and must not keep the pipeline alive.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.pid = os.getpid()
        #: Whether the caller is one of the producer's own threads: it runs a user's callback,
        #: partitioner or logging handler.
        self.in_own_thread: Callable[[], bool] = _never

    def check_may_wait(self, delivery: Delivery) -> None:
        """Raise if the outcome of a pending *delivery* can never reach the caller."""
        if self.pid != os.getpid():
            raise ForkedProducerError(
                f"{place(delivery.topic)}: the message was pending in process {self.pid} when "
                f"process {os.getpid()} was forked from it; its outcome is known there only",
                topic=delivery.topic,
            )
        if self.in_own_thread():
            raise CallbackThreadError(
                "a callback (or a partitioner) waits for the result of a pending message, which "
                "only its own thread could bring; use add_done_callback(), or wait in another "
                "thread"
            )


def _never() -> bool:
    return False


def wait(delivery: Delivery, timeout: float | None) -> bool:
    """Wait for the outcome; false if there is none after *timeout* seconds."""
    if delivery.settled():
        return True
    context: HandleContext = delivery.chunk.home
    context.check_may_wait(delivery)
    clock = context.clock
    deadline = clock.after(timeout)
    lock = _thread.allocate_lock()
    lock.acquire()
    if not delivery.watch(lock):
        return True
    try:
        # A wait longer than the platform's longest is cut in pieces: hence the loop.
        while not threads.acquire(clock, lock, deadline):
            if deadline is not None and clock.monotonic() >= deadline:
                return delivery.settled()
    finally:
        delivery.unwatch(lock)
    return True


def exception(delivery: Delivery, timeout: float | None = None) -> BaseException | None:
    """The error of a message, None if it was delivered."""
    if not wait(delivery, timeout):
        raise OutcomeTimeoutError(
            f"{place(delivery.topic, delivery.partition)}: no outcome within {timeout:.3g} s; the "
            f"message is still on its way (delivery_timeout_ms ends it)"
        )
    return delivery.failure()


def result(delivery: Delivery, timeout: float | None = None) -> RecordMetadata:
    """Where the message is; raises its error if it failed."""
    error = exception(delivery, timeout)
    if error is not None:
        try:
            raise error
        finally:
            # Its traceback refers to this frame, and so to the callers': without this line they
            # would stay until the garbage collector comes.
            del error
    return metadata(delivery)


def metadata(delivery: Delivery) -> RecordMetadata:
    """The RecordMetadata of a delivered message."""
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
        -1,
    )


def status(delivery: Delivery) -> Status:
    """Whether the message may be in the log, as far as is known now."""
    error = delivery.failure()
    if error is not None:
        found = getattr(error, "status", None)
        return found if isinstance(found, Status) else Status.POSSIBLY_PERSISTED
    if delivery.settled() and not delivery.chunk.unconfirmed:
        return Status.PERSISTED
    return Status.POSSIBLY_PERSISTED if delivery.possibly_persisted() else Status.NOT_PERSISTED


def add_done_callback(delivery: Delivery, function: Callable[[Delivery], object]) -> None:
    """Have *function* called with the settled *delivery*, once."""
    if not delivery.when_settled(function):
        # Settled already: run here, as concurrent.futures does.
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
    """Have *function* called with the metadata, if the message is delivered."""
    return _when_done(delivery, _metadata_if_delivered, function, args, kwargs)


def add_errback(
    delivery: Delivery,
    function: Callable[..., object],
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> Delivery:
    """Have *function* called with the error, if the message fails."""
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
    """Have *function* called with what *outcome* says of the settled message, if not None."""

    def on_done(settled: Delivery) -> None:
        found = outcome(settled)
        if found is not None:
            function(*args, found, **kwargs)

    add_done_callback(delivery, on_done)
    return delivery


def log_callback_error(function: object, error: BaseException) -> None:
    """A user's callback has raised: it harms its own message only (docs/design.rst, P9)."""
    log.error("callback %r raised; the other messages are not harmed", function, exc_info=error)


class _LoopWaiter:
    """Stands in for a lock in the kernel's table of waiters, and wakes an event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.settled = loop.create_future()

    def release(self) -> None:
        try:
            self.loop.call_soon_threadsafe(self._wake)
        except RuntimeError:
            pass  # the loop was closed meanwhile: nobody waits any more

    def _wake(self) -> None:
        if not self.settled.done():
            self.settled.set_result(None)


def wait_in_event_loop(delivery: Delivery) -> Generator[Any, None, RecordMetadata]:
    """``await delivery``: :func:`result` without blocking the loop."""
    yield from settled_in_event_loop(delivery)
    return result(delivery)


def settled_in_event_loop(delivery: Delivery) -> Generator[Any, None, None]:
    """Wait for the outcome without blocking the loop. (A generator: a coroutine that is
    interrupted between its making and its first step would be complained of.)"""
    if not delivery.settled():
        delivery.chunk.home.check_may_wait(delivery)
        waiter = _LoopWaiter(asyncio.get_running_loop())
        if delivery.watch(waiter):
            try:
                yield from waiter.settled.__await__()
            finally:
                delivery.unwatch(waiter)


def describe(delivery: Delivery) -> str:
    """``repr()``: where the message is bound and what became of it; never its payload."""
    where = delivery.topic
    if delivery.partition is not None:
        where += f"[{delivery.partition}]"
    if not delivery.settled():
        return f"<Delivery {where} pending>"
    error = delivery.look()  # a log, or a debugger, takes no failure from flush()
    if error is not None:
        return f"<Delivery {where} failed: {error}>"
    return f"<Delivery {where} offset {delivery.offset}>"


# `copied` and `without_frames` are for the kernel.
_kernel.set_behaviour(sys.modules[__name__])
