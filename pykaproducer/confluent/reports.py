"""What lies between the thread that learns of outcomes and the ones that call ``poll()``.

Guarantees: an outcome is counted and waits in the queue from the moment on that its message counts
as finished; it is served once, by one of the threads that poll.
"""

from __future__ import annotations

import _thread
import threading
from collections import deque
from collections.abc import Callable
from time import monotonic, time
from typing import Any

from pykaproducer import _threads as threads
from pykaproducer._clock import Clock
from pykaproducer.confluent.errors import KafkaError, kafka_error
from pykaproducer.confluent.message import report_of
from pykaproducer.delivery import Delivery

#: What waits for poll(): an outcome (callback, error, delivery, key, value, seconds), or
#: something else to be called: (function, arguments).
Event = tuple[Any, ...]


class Events:
    """The queue of what poll() is to serve."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.queue: deque[Event] = deque()
        # Locks of threads that wait for an event.
        self._waiters: list[Any] = []
        #: Held by whoever counts what he serves. Re-entrant: a signal handler may poll as well.
        self.counting = threading.RLock()
        # The error that was translated last: one serves all messages of a batch.
        self._last: tuple[BaseException, KafkaError] | None = None

    def renewed(self) -> Events:
        """For the child of a fork, where what waits is the parent's."""
        # A callback may have forked: whoever serves it would go on here with the others.
        self.queue.clear()
        return Events(self._clock)

    def put(self, function: Callable[..., object], *arguments: object) -> None:
        """Have ``function(*arguments)`` called by poll()."""
        self.queue.append((function, arguments))
        self.wake()

    def wake(self) -> None:
        """Whoever waits looks again."""
        for lock in list(self._waiters):
            try:
                lock.release()
            except RuntimeError:
                pass  # released already

    def wait(self, there_is_one: Callable[[], bool], deadline: float | None) -> None:
        """Wait until *there_is_one*, or somebody wakes us, or *deadline* has come.

        No event is missed: (1) we enter our lock, (2) we look; whoever brings one (1) brings it,
        (2) wakes everybody who has entered.
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
        """Call the callbacks of all that is there now; how many there were.

        What a callback raises goes to the caller; the others then stay for the next time.
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
    """Takes the outcomes of one producer below. Its numbers have one writer: the Reports thread."""

    def __init__(self, events: Events, *, only_errors: bool) -> None:
        self._events = events
        self._queue = events.queue
        self._waiters = events._waiters
        self._only_errors = only_errors
        #: Messages that have their outcome here.
        self.finished = 0
        #: Among them those without a callback, for which nothing waits.
        self.settled = 0
        #: How many of these have failed, and the first one's error.
        self.failed = 0
        self.failure: BaseException | None = None

    def report(
        self, callback: Callable[..., object], error: BaseException | None, delivery: Delivery
    ) -> None:
        """A message with a callback has its outcome. Bound to the callback it is called back."""
        # Its timestamp is when it was accepted.
        self._report(callback, max(0.0, time() - delivery.timestamp / 1000), error, delivery)

    def report_since(
        self,
        callback: Callable[..., object],
        started: float,
        error: BaseException | None,
        delivery: Delivery,
    ) -> None:
        """As :meth:`report`, of a message with a timestamp of its own."""
        self._report(callback, monotonic() - started, error, delivery)

    def _report(
        self,
        callback: Callable[..., object],
        took: float,
        error: BaseException | None,
        delivery: Delivery,
    ) -> None:
        if error is not None or not self._only_errors:
            # Here key and value can still be read.
            self._queue.append((callback, error, delivery, delivery.key, delivery.value, took))
        # Behind it: who adds the two finds the message in one of them at least.
        self.finished += 1
        if self._waiters:
            self._events.wake()

    def settle(self, error: BaseException | None, delivery: Delivery) -> None:
        """A message without a callback has its outcome."""
        self.settled += 1
        if error is not None:
            self.failure = self.failure or error
            self.failed += 1
        self.finished += 1
        if self._waiters:
            self._events.wake()
