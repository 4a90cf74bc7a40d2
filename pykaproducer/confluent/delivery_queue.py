"""The queue between the thread that receives outcomes and the threads that call ``poll()``.

Guarantees: an outcome is counted and queued from the moment on that its message counts as finished,
and is served once, by one of the threads that poll.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from pykaproducer._kernel import EventQueue, PolledOutcomes
from pykaproducer._util import threads
from pykaproducer._util.clock import Clock, discard, held_lock, wake_all
from pykaproducer.confluent.errors import KafkaError, kafka_error
from pykaproducer.confluent.message import Message


class Events:
    """The queue of items for poll()."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.queue = EventQueue()
        #: Locks of threads that wait for an event.
        self.waiters: list[Any] = []
        #: Held while counting served events. Re-entrant, because a signal handler may poll as well.
        self.counting = threading.RLock()
        # The last translated error, because all messages of a batch share one.
        self._last: tuple[BaseException, KafkaError] | None = None

    def renewed(self) -> Events:
        """Return an empty queue for the child of a fork, because the events are the parent's."""
        # If a callback has forked, the loop that serves it would otherwise continue in the child.
        self.queue.clear()
        return Events(self._clock)

    def outcomes(self, *, only_errors: bool) -> PolledOutcomes:
        """Return a receiver of a producer's outcomes, which queues them here."""
        return PolledOutcomes(self.queue, self.waiters, self.wake, Message, only_errors=only_errors)

    def put(self, function: Callable[..., object], *arguments: object) -> None:
        """Queue a call of ``function(*arguments)`` for poll()."""
        self.queue.put(function, arguments)
        self.wake()

    def wake(self) -> None:
        """Wake all waiting threads, which then check again."""
        wake_all(self.waiters)

    def wait(self, there_is_one: Callable[[], bool], deadline: float | None) -> None:
        """Wait until *there_is_one*, a call of :meth:`wake`, or *deadline*.

        No event is missed: this (1) registers its lock, (2) checks for events; a thread that adds
        an event (1) adds it, (2) wakes all registered locks.
        """
        lock = held_lock()
        try:  # not before: an interrupt in between would leave the lock there
            self.waiters.append(lock)
            if not there_is_one():
                threads.acquire_or_fork(self._clock, lock, deadline)
        finally:
            discard(self.waiters, lock)

    def serve(self) -> int:
        """Call the callbacks of all current events, and return their number.

        An exception of a callback propagates to the caller; the other events remain queued.
        """
        return self.queue.serve(self._translated)

    def _translated(self, error: BaseException) -> KafkaError:
        last = self._last
        if last is None or last[0] is not error:
            last = self._last = (error, kafka_error(error))
        return last[1]
