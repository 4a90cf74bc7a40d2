"""The queue between the thread that receives outcomes and the threads that call ``poll()``.

Guarantees: an outcome is counted and queued from the moment on that its message counts as finished,
and is served once, by one of the threads that poll.
"""

from __future__ import annotations

import _thread
import threading
from collections import deque
from collections.abc import Callable
from time import monotonic, time
from typing import Any

from pykaproducer._util import threads
from pykaproducer._util.clock import Clock
from pykaproducer.confluent.errors import KafkaError, kafka_error
from pykaproducer.confluent.message import report_of
from pykaproducer.delivery import Delivery

#: An item for poll(): an outcome (callback, error, delivery, key, value, seconds), or another call
#: (function, arguments).
Event = tuple[Any, ...]


class Events:
    """The queue of items for poll()."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.queue: deque[Event] = deque()
        # Locks of threads that wait for an event.
        self._waiters: list[Any] = []
        #: Held while counting served events. Re-entrant, because a signal handler may poll as well.
        self.counting = threading.RLock()
        # The last translated error, because all messages of a batch share one.
        self._last: tuple[BaseException, KafkaError] | None = None

    def renewed(self) -> Events:
        """Return an empty queue for the child of a fork, because the events are the parent's."""
        # If a callback has forked, the loop that serves it would otherwise continue in the child.
        self.queue.clear()
        return Events(self._clock)

    def put(self, function: Callable[..., object], *arguments: object) -> None:
        """Queue a call of ``function(*arguments)`` for poll()."""
        self.queue.append((function, arguments))
        self.wake()

    def wake(self) -> None:
        """Wake all waiting threads, which then check again."""
        for lock in list(self._waiters):
            try:
                lock.release()
            except RuntimeError:
                pass  # released already

    def wait(self, there_is_one: Callable[[], bool], deadline: float | None) -> None:
        """Wait until *there_is_one*, a call of :meth:`wake`, or *deadline*.

        No event is missed: this (1) registers its lock, (2) checks for events; a thread that adds
        an event (1) adds it, (2) wakes all registered locks.
        """
        lock = _thread.allocate_lock()
        lock.acquire()
        self._waiters.append(lock)
        try:
            if not there_is_one():
                threads.acquire(self._clock, lock, deadline)
        finally:
            self._waiters.remove(lock)

    def serve(self) -> int:
        """Call the callbacks of all current events, and return their number.

        An exception of a callback propagates to the caller; the other events remain queued.
        """
        queue, served = self.queue, 0
        for _ in range(len(queue)):
            try:
                event = queue.popleft()
            except IndexError:  # another thread polls as well
                break
            served += 1
            if len(event) == 2:
                event[0](*event[1])
                continue
            callback, error, delivery, key, value, took = event
            found = None if error is None else self._translated(error)
            callback(found, report_of(delivery, key, value, found, took))
        return served

    def _translated(self, error: BaseException) -> KafkaError:
        last = self._last
        if last is None or last[0] is not error:
            last = self._last = (error, kafka_error(error))
        return last[1]


class Channel:
    """The receiver of a producer's outcomes. Only the Reports thread writes its counters."""

    def __init__(self, events: Events, *, only_errors: bool) -> None:
        self._events = events
        self._queue = events.queue
        self._waiters = events._waiters
        self._only_errors = only_errors
        #: Messages of which the outcome has been received.
        self.finished = 0
        #: Those among them without a callback, for which nothing is queued.
        self.settled = 0
        #: How many of these have failed, and the first error.
        self.failed = 0
        self.failure: BaseException | None = None

    def report(
        self, callback: Callable[..., object], error: BaseException | None, delivery: Delivery
    ) -> None:
        """Receive the outcome of a message with a callback, to which this method is bound."""
        # The timestamp is the time of acceptance.
        self._report(callback, max(0.0, time() - delivery.timestamp / 1000), error, delivery)

    def report_since(
        self,
        callback: Callable[..., object],
        started: float,
        error: BaseException | None,
        delivery: Delivery,
    ) -> None:
        """Receive the outcome, as :meth:`report`, of a message with an explicit timestamp."""
        self._report(callback, monotonic() - started, error, delivery)

    def _report(
        self,
        callback: Callable[..., object],
        took: float,
        error: BaseException | None,
        delivery: Delivery,
    ) -> None:
        if error is not None or not self._only_errors:
            # Key and value are still readable here.
            self._queue.append((callback, error, delivery, delivery.key, delivery.value, took))
        # Last, so that a sum of both counts never misses the message.
        self.finished += 1
        if self._waiters:
            self._events.wake()

    def settle(self, error: BaseException | None, delivery: Delivery) -> None:
        """Receive the outcome of a message without a callback."""
        self.settled += 1
        if error is not None:
            self.failure = self.failure or error
            self.failed += 1
        self.finished += 1
        if self._waiters:
            self._events.wake()
