"""Failures that neither a callback nor a read outcome has reported.

``flush()`` and the end of a ``with`` block raise them, and ``close()`` logs them. While the
producer runs, *Reports* logs them, with at most one line per ``INTERVAL`` seconds.

A failure is reported when its callback has been called with it, or its outcome has been read from a
handle. So the count is final only when the handles no longer exist. Until then the failed slice is
kept, which needs no additional memory: the handles keep it anyway.

The log waits for the final count too, but for a limited time. It counts a failure after ``GATHER``
seconds at the earliest: by then a waiting ``result()`` has read it, or a ``flush()`` has raised it.
It counts a failure after ``PATIENCE`` seconds at the latest, even if a handle may still be read.

Each failure is logged at most once, and raised at most once. ``flush()`` also raises failures that
were logged before, but failures that ``flush()`` has raised are no longer logged.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from pykaproducer._util.clock import Clock
from pykaproducer._util.memory import NO_MEMORY

#: Minimum time between two log lines (seconds).
INTERVAL = 30.0
#: Minimum age of a failure when it is logged (seconds).
GATHER = 1.0
#: Age at which a failure is logged even if a handle may still be read (seconds).
PATIENCE = 60.0

#: Number of open slices at which these are first checked for final ones.
_FIRST_LOOK = 64
#: Maximum number of errors, and of topic names, that are kept.
_ERRORS = 10


class Failures(NamedTuple):
    """Messages that failed."""

    number: int
    #: The first of their errors.
    errors: tuple[BaseException, ...]
    #: The first of their topics.
    topics: tuple[str, ...]


class Taken(NamedTuple):
    """The result of :meth:`UnreportedFailures.take`."""

    #: All failures that were not raised before.
    failures: Failures
    #: The subset that was not logged.
    unlogged: Failures


class Part(Protocol):
    """Settled messages: a ``Slice``, or the rejected rows of a block."""

    @property
    def topic(self) -> str | None: ...

    def unreported_failures(self) -> int: ...

    def first_error(self) -> BaseException | None: ...


class Holder(Protocol):
    """The chunk of a part, which counts the live handles of its messages."""

    @property
    def handles(self) -> int: ...


class _Tally:
    """A running count of failures."""

    def __init__(self) -> None:
        self.count = 0
        self._errors: list[BaseException] = []
        self._topics: list[str] = []

    def copy(self) -> _Tally:
        made = _Tally()
        made.count = self.count
        made._errors, made._topics = [*self._errors], [*self._topics]
        return made

    def added(self, part: Part) -> _Tally:
        """Return a copy with *part*, so that nothing has changed if there is no memory for it."""
        made = self.copy()
        made.add(part)
        return made

    def add(self, part: Part) -> None:
        """Count the unreported failures of *part*."""
        unreported, error = part.unreported_failures(), part.first_error()
        if not unreported or error is None:
            return
        self.count += unreported
        if len(self._errors) < _ERRORS:
            self._errors.append(error)
        topic = part.topic
        if topic is not None and len(self._topics) < _ERRORS and topic not in self._topics:
            self._topics.append(topic)

    def failures(self) -> Failures:
        return Failures(self.count, tuple(self._errors), tuple(self._topics))


@dataclass(eq=False, repr=False, slots=True)
class _Kept:
    """A part whose outcomes may still be read."""

    part: Part
    holder: Holder
    #: When it failed (monotonic seconds).
    since: float
    #: Whether it was logged.
    logged: bool = False

    @property
    def final(self) -> bool:
        """Whether its outcomes cannot be read any more."""
        return not self.holder.handles


class UnreportedFailures:
    """The unreported failures of one producer.

    Guarantees: each failure is raised at most once and logged at most once. Memory is bounded by
    the live handles.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        #: When to call :meth:`line` (monotonic seconds); None: there is nothing to log.
        self.due: float | None = None
        #: Parts that are not sorted in yet.
        self._new: deque[_Kept] = deque()
        # Guards all of the following. Re-entrant, because a signal handler may flush or close while
        # it is held. No stage waits for it: that handler's flush would wait for the stage.
        self._lock = threading.RLock()
        self._open: list[_Kept] = []
        self._look_at = _FIRST_LOOK
        self._final = _Tally()
        self._unlogged = _Tally()  # the final failures that were not logged
        self._last_line = float("-inf")
        self._taken = 0  # the number of completed take() calls

    def remember(self, part: Part, holder: Holder) -> bool:
        """Remember *part*, which is settled. For stages, which signals do not interrupt.

        Return whether :attr:`due` has just been set or moved to an earlier time.

        The log misses no failure: this method (1) appends it, (2) reads ``due``; :meth:`line` (1)
        sets ``due``, (2) checks for appended failures.
        """
        if not part.unreported_failures():
            return False
        sooner = self.enter(part, holder)
        try:
            if self._lock.acquire(blocking=False):
                try:
                    self._sort_in()
                finally:
                    self._lock.release()
        except NO_MEMORY:
            pass  # the next call does it
        return sooner

    def enter(self, part: Part, holder: Holder) -> bool:
        """Remember *part*, which has failed. May be called from any thread.

        Return whether :attr:`due` became earlier.
        """
        now = self._clock.monotonic()
        wanted = max(now + GATHER, self._last_line + INTERVAL)
        self._new.append(_Kept(part, holder, now))  # without memory, nothing has changed
        due = self.due
        if due is not None and due <= wanted:
            return False
        self.due = wanted
        return True

    # The log -----------------------------------------------------------------------------------

    def line(self, now: float) -> Failures:
        """Return the failures to log now, with count 0 if there are none. Set :attr:`due`."""
        if not self._lock.acquire(blocking=False):
            self.due = now + GATHER  # a concurrent flush() is taking them
            return _Tally().failures()
        try:
            self._sort_in()
            self._look()
            for kept in self._open:
                if not kept.logged and kept.since <= now - PATIENCE:
                    self._unlogged, kept.logged = self._unlogged.added(kept.part), True
            found, nothing, before = self._unlogged.failures(), _Tally(), self._last_line
            if found.number:
                self._last_line = now
            try:
                self._set_due(now)
            except NO_MEMORY:
                self._last_line = before
                raise
            self._unlogged = nothing
            return found
        finally:
            self._lock.release()

    def _set_due(self, now: float) -> None:
        oldest = min((kept.since for kept in self._open if not kept.logged), default=None)
        self.due = (
            None if oldest is None else max(oldest + PATIENCE, self._last_line + INTERVAL, now)
        )
        if self._new:
            wanted = max(now + GATHER, self._last_line + INTERVAL)
            self.due = wanted if self.due is None else min(self.due, wanted)

    # flush() and close() -----------------------------------------------------------------------

    def take(self) -> Taken:
        """Return all unreported failures that were not taken before; they count as reported.

        If interrupted before it returns, nothing is taken. If a signal handler takes the failures
        in the meantime, the interrupted call returns only the remaining ones.
        """
        with self._lock:
            return self._take()

    def try_take(self) -> Taken:
        """Return the same as :meth:`take`, but nothing if another thread is taking them now.

        Must not run on a user thread, where an interrupt could leave the lock held.
        """
        if not self._lock.acquire(blocking=False):
            nothing = _Tally().failures()
            return Taken(nothing, nothing)
        try:
            return self._take()
        finally:
            self._lock.release()

    def _take(self) -> Taken:
        while True:
            # By index: a copy would fail if another thread appends. None removes but this one.
            taken, new = self._taken, [self._new[place] for place in range(len(self._new))]
            found, unlogged = self._final.copy(), self._unlogged.copy()
            for kept in (*self._open, *new):
                found.add(kept.part)
                if not kept.logged:
                    unlogged.add(kept.part)
            if taken == self._taken:
                self._forget(len(new))
                return Taken(found.failures(), unlogged.failures())

    def _forget(self, new: int) -> None:
        self._taken += 1
        self._final, self._unlogged, self._open = _Tally(), _Tally(), []
        for _ in range(new):
            self._new.popleft()

    # Sorting in, with the lock held. Called by stages only, which signals do not interrupt -------

    def _sort_in(self) -> None:
        while self._new:
            kept = self._new[0]
            if kept.final:
                self._add(kept)
            else:
                self._open.append(kept)
            self._new.popleft()
        if len(self._open) >= self._look_at:
            self._look()

    def _look(self) -> None:
        """Count the parts that are now final; drop those whose outcomes have been read."""
        still_open = []
        final, unlogged = self._final.copy(), self._unlogged.copy()
        for kept in self._open:
            if kept.final:
                final.add(kept.part)
                if not kept.logged:
                    unlogged.add(kept.part)
            elif kept.part.unreported_failures():
                still_open.append(kept)
        self._final, self._unlogged, self._open = final, unlogged, still_open
        # Amortised: each check covers at most twice as many slices as were added since the last.
        self._look_at = max(_FIRST_LOOK, 2 * len(still_open))

    def _add(self, kept: _Kept) -> None:
        final = self._final.added(kept.part)
        unlogged = self._unlogged if kept.logged else self._unlogged.added(kept.part)
        self._final, self._unlogged = final, unlogged
