"""Accepted chunks that are not yet settled and reported: ``flush()`` waits for them.

Chunks are tracked, not messages. A chunk enters when the dispatcher takes it, when the Bridge
settles or adopts a caller's request, or when a caller settles one with a callback. It leaves when
its last row is settled and its last callback has run.

Guarantees: when :meth:`IncompleteChunks.wait` returns true, every chunk that was taken before the
barrier is settled and reported. Later chunks do not extend the wait.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable

import pykaproducer._kernel as _kernel
from pykaproducer._kernel import Chunk
from pykaproducer._util import threads
from pykaproducer._util.clock import Clock, held_lock
from pykaproducer._util.memory import NO_MEMORY

#: How long a flush that timed out waits for the dispatcher to arm its barrier, so that the
#: remaining messages can be counted (seconds). The dispatcher itself never waits.
_ARM_TIMEOUT = 1.0


class FlushBarrier:
    """The chunks that one flush waits for: those that are incomplete when it is armed.

    With *settled_only*, those with a row without an outcome.
    """

    def __init__(
        self, notify: Callable[[], None] | None = None, *, settled_only: bool = False
    ) -> None:
        #: Called, without a lock, when `pending` is empty.
        self.notify = notify
        self.settled_only = settled_only
        #: Serial numbers of the chunks; None before the barrier is armed.
        self.pending: set[int] | None = None
        # Released when the dispatcher has armed the barrier.
        self.armed = held_lock()
        # Released when `pending` is empty. A raw lock, so that a signal can interrupt the wait.
        self.done = held_lock()


class IncompleteChunks:
    """The incomplete chunks of one producer."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._process = os.getpid()
        # Guards all of the following among stages; never held during a call of other code. User
        # threads avoid it while the dispatcher runs: a signal handler in such a thread might flush,
        # and wait for the dispatcher, which would wait for the lock. Not used with `with`, which
        # needs memory to release it.
        self._lock = threading.RLock()
        #: By serial number. Compiled code (the Bridge's wait, or a caller) adds and removes chunks
        #: without the lock, but with the GIL: see ReportsInbox.
        self.live: dict[int, Chunk] = {}
        # Weak: see wiring.Pipeline. Not a WeakSet: a barrier that is dropped by a user thread would
        # remove itself without the lock, while a stage iterates over the set.
        #: By identity; compiled code looks whether there is one: see ReportsInbox.
        self.barriers: dict[int, weakref.ref[FlushBarrier]] = {}
        #: Whether a barrier waits for outcomes only, so that :meth:`settled` is to be called.
        self.watches_outcomes = False

    def enter(self, chunk: Chunk) -> None:
        """Add *chunk*, which was taken from its slot."""
        self._lock.acquire()
        try:
            self.live[chunk.serial] = chunk
        finally:
            self._lock.release()

    def enter_late(self, chunk: Chunk) -> None:
        """Add *chunk*, which may have left already.

        It does not stay: the stage that reports its last row (1) counts the row as reported,
        (2) removes the chunk; this method (1) adds it, (2) looks at the count.
        """
        self.enter(chunk)
        if not chunk.unsettled:
            self.leave(chunk)

    def leave(self, chunk: Chunk) -> None:
        """Remove *chunk*, whose last row is settled and reported.

        Nothing else would do that, so it waits for memory, as :meth:`settled` does.
        """
        self._remove(chunk, settled_only=False)

    def settled(self, chunk: Chunk) -> None:
        """Notify the barriers that wait for outcomes only: all rows of *chunk* have one.

        No chunk is missed: a stage (1) settles the last row, (2) reads ``watches_outcomes``;
        :meth:`arm` (1) sets that, (2) looks at the rows.
        """
        self._remove(chunk, settled_only=True)

    def _remove(self, chunk: Chunk, *, settled_only: bool) -> None:
        """Remove *chunk*, or with *settled_only* only from the barriers that wait for outcomes.

        End the barriers that are met. Each step may be repeated.
        """
        while True:
            try:
                self._lock.acquire()
                try:
                    if not settled_only:
                        self.live.pop(chunk.serial, None)
                    met = []
                    for key, reference in [*self.barriers.items()] if self.barriers else ():
                        barrier = reference()
                        if barrier is None:
                            self.barriers.pop(key, None)
                        elif barrier.pending is not None and (
                            barrier.settled_only or not settled_only
                        ):
                            barrier.pending.discard(chunk.serial)
                            met.append(barrier)
                finally:
                    self._lock.release()
                for barrier in met:
                    self._look(barrier)
                if self.watches_outcomes:
                    self._watch_outcomes()
                return
            except NO_MEMORY:
                _kernel.pause_for_memory()

    def chunks(self) -> list[Chunk]:
        """Return the incomplete chunks, oldest first."""
        return list(self.live.values())

    def arm(self, barrier: FlushBarrier) -> None:
        """Start *barrier*: every chunk that was accepted before it has entered."""
        self._lock.acquire()
        try:
            if barrier.pending is None:  # not armed yet, by the dispatcher or after a crash
                self.watches_outcomes |= barrier.settled_only
                # First: a stage (1) looks whether there is a barrier, and (2) removes its chunk
                # from `live`, in one step.
                self.barriers[id(barrier)] = weakref.ref(barrier)
                barrier.pending = {
                    serial
                    for serial, chunk in list(self.live.items())
                    if not (barrier.settled_only and chunk.is_settled)
                }
            if barrier.armed.locked():
                barrier.armed.release()
            for key, reference in [*self.barriers.items()]:
                if reference() is None:
                    self.barriers.pop(key, None)
        finally:
            self._lock.release()
        self._look(barrier)
        if self.watches_outcomes:
            self._watch_outcomes()

    def abandon(self, chunks: list[Chunk]) -> None:
        """Remove *chunks*, which were settled because a stage has crashed."""
        for chunk in chunks:
            self.leave(chunk)

    def wait(self, barrier: FlushBarrier, deadline: float | None) -> bool:
        """Wait until the chunks of *barrier* are complete; return False if *deadline* passes.

        Return True in the child of a fork, where no chunk is incomplete.
        """
        if self._process != os.getpid():
            return True
        while not threads.acquire_or_fork(self._clock, barrier.done, deadline):
            if deadline is not None and self._clock.monotonic() >= deadline:
                return False
        return True

    def pending(self, barrier: FlushBarrier) -> int:
        """Return the number of messages for which *barrier* still waits.

        Called once, when a flush has timed out. Wait briefly for the dispatcher to arm the barrier;
        otherwise chunks queued before it would not be counted.
        """
        threads.acquire(self._clock, barrier.armed, self._clock.monotonic() + _ARM_TIMEOUT)
        pending = None if barrier.pending is None else set(barrier.pending)
        return sum(
            chunk.unsettled for chunk in self.chunks() if pending is None or chunk.serial in pending
        )

    def _look(self, barrier: FlushBarrier) -> None:
        """End the wait of *barrier* if it is met. May be repeated after a MemoryError.

        Without the lock, so others must not assume that the barriers they look at stay.
        """
        if barrier.pending or self.barriers.pop(id(barrier), None) is None:
            return
        barrier.done.release()
        while barrier.notify is not None:
            try:
                barrier.notify()
                break
            except NO_MEMORY:
                _kernel.pause_for_memory()

    def _watch_outcomes(self) -> None:
        """Note whether a barrier waits for outcomes only."""
        self._lock.acquire()
        try:
            barriers = [reference() for reference in [*self.barriers.values()]]
            # Not any(): a Ctrl-C in a generator that it ends before its last item would be lost.
            waiting = [each for each in barriers if each is not None and each.settled_only]
            self.watches_outcomes = bool(waiting)
        finally:
            self._lock.release()
