"""What has been accepted and is not yet settled and reported: the counter that flush waits on.

It counts chunks, not messages: a chunk enters when the dispatcher takes it, and leaves when its
last row is settled and its last callback has run.

Guarantees: when :meth:`wait` returns true, everything that had been taken before the mark is
settled and reported; later chunks do not extend the wait.
"""

from __future__ import annotations

import _thread
import threading
import weakref

from pykaproducer import _threads as threads
from pykaproducer._clock import Clock
from pykaproducer._kernel import Chunk

#: How long a flush whose time is over waits for the dispatcher, which waits for nothing itself, to
#: count what the flush leaves behind (seconds).
_MEETING = 1.0


class Mark:
    """What one flush waits for: the chunks that were there when the dispatcher met the mark."""

    def __init__(self) -> None:
        self.pending: set[int] | None = None
        # Released when the dispatcher has met the mark.
        self.met = _thread.allocate_lock()
        self.met.acquire()
        # Released when `pending` is empty. A raw lock, for a wait that a signal can interrupt.
        self.reached = _thread.allocate_lock()
        self.reached.acquire()


class InFlight:
    """The live chunks."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # Guards all below against the stages; never held while anything else is called. A user's
        # thread takes it only where no stage is left to be waited for: its signal handler may
        # flush, and the dispatcher would wait for the lock.
        self._lock = threading.RLock()
        self._live: dict[int, Chunk] = {}
        # Weak: see wiring.Pipeline.
        self._marks: weakref.WeakSet[Mark] = weakref.WeakSet()

    def enter(self, chunk: Chunk) -> None:
        """The dispatcher has taken *chunk*."""
        with self._lock:
            self._live[chunk.serial] = chunk

    def leave(self, chunk: Chunk) -> None:
        """The last row of *chunk* is settled and reported."""
        with self._lock:
            self._live.pop(chunk.serial, None)
            for mark in [*self._marks] if self._marks else ():
                if mark.pending is not None:
                    mark.pending.discard(chunk.serial)
                    self._look(mark)

    def chunks(self) -> list[Chunk]:
        """The live chunks, oldest first."""
        return list(self._live.values())

    def meet(self, mark: Mark) -> None:
        """The dispatcher has met *mark*: all that was accepted before it has entered."""
        with self._lock:
            if mark.pending is not None:
                return  # met before: by the dispatcher, or because a stage has died
            mark.pending = set(self._live)
            if mark.met.locked():
                mark.met.release()
            self._marks.add(mark)
            self._look(mark)

    def abandon(self, chunks: list[Chunk]) -> None:
        """A stage has died: *chunks* have been settled, and nobody waits for them any more."""
        for chunk in chunks:
            self.leave(chunk)

    def wait(self, mark: Mark, deadline: float | None) -> bool:
        """Wait until *mark* is reached; false if it is not by *deadline*."""
        while not threads.acquire(self._clock, mark.reached, deadline):
            if deadline is not None and self._clock.monotonic() >= deadline:
                return False
        return True

    def pending(self, mark: Mark) -> int:
        """How many messages *mark* still waits for.

        Asked once, when the time of a flush is over. That may be before the dispatcher has taken
        what stands before the mark: it would look as if nothing were left.
        """
        threads.acquire(self._clock, mark.met, self._clock.monotonic() + _MEETING)
        pending = None if mark.pending is None else set(mark.pending)
        return sum(
            chunk.unsettled for chunk in self.chunks() if pending is None or chunk.serial in pending
        )

    def _look(self, mark: Mark) -> None:
        if not mark.pending and mark in self._marks:
            self._marks.discard(mark)
            mark.reached.release()
