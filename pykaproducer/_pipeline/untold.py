"""Failures that neither a callback nor a read outcome has reported.

``flush()`` and the end of a ``with`` block raise them, ``close()`` logs them, and while the
producer runs *Reports* logs them: at most one line in ``INTERVAL`` seconds.

A failure is reported once its callback has been called with it, or its outcome has been read from
a handle. So the count is final only when the handles are gone; until then the failed slice is
kept, which costs nothing that the handles do not keep as well.

The log waits for that too, but not without bound. It counts a failure ``GATHER`` seconds after it
at the earliest (a ``result()`` that waits has read it by then, and a ``flush()`` has raised it),
and ``PATIENCE`` seconds after it at the latest, also if a handle is still there to be read.

A failure is in one line of the log at most, and is raised once at most. The two are independent in
one direction: ``flush()`` raises what the log has named, but what ``flush()`` has raised is no
longer logged.
"""

from __future__ import annotations

import dataclasses
import threading
from collections import deque
from typing import Protocol

from pykaproducer._clock import Clock

#: At most one line is logged in this time (seconds).
INTERVAL = 30.0
#: A failure is at least this old when it is logged (seconds).
GATHER = 1.0
#: A failure is logged at this age although a handle may still be read (seconds).
PATIENCE = 60.0

#: How many slices are kept before the first look at which of them are final.
_FIRST_LOOK = 64
#: How many errors, and how many topic names, are kept.
_ERRORS = 10


@dataclasses.dataclass(frozen=True, slots=True)
class Failures:
    """Messages that failed."""

    count: int
    #: The first of their errors.
    errors: tuple[BaseException, ...]
    #: The first of their topics.
    topics: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Taken:
    """What :meth:`Untold.take` found."""

    #: All that was not raised before.
    failures: Failures
    #: Of these, those that no line of the log has counted.
    unlogged: Failures


class Part(Protocol):
    """Messages that have their outcomes: a ``Slice``, or the rows of a block that were refused."""

    @property
    def topic(self) -> str | None: ...

    def untold_failures(self) -> int: ...

    def first_error(self) -> BaseException | None: ...


class Holder(Protocol):
    """Knows how many handles of a part's messages are alive: the part's chunk."""

    @property
    def handles(self) -> int: ...


class _Tally:
    """Counts failures."""

    def __init__(self) -> None:
        self.count = 0
        self._errors: list[BaseException] = []
        self._topics: list[str] = []

    def copy(self) -> _Tally:
        made = _Tally()
        made.count = self.count
        made._errors, made._topics = [*self._errors], [*self._topics]
        return made

    def add(self, part: Part) -> None:
        """Count the unreported failures of *part*."""
        untold, error = part.untold_failures(), part.first_error()
        if not untold or error is None:
            return
        self.count += untold
        if len(self._errors) < _ERRORS:
            self._errors.append(error)
        topic = part.topic
        if topic is not None and len(self._topics) < _ERRORS and topic not in self._topics:
            self._topics.append(topic)

    def failures(self) -> Failures:
        return Failures(self.count, tuple(self._errors), tuple(self._topics))


@dataclasses.dataclass(slots=True)
class _Kept:
    """A part whose outcomes may still be read."""

    part: Part
    holder: Holder
    #: When it failed (monotonic seconds).
    since: float
    #: Whether a line of the log has counted it.
    logged: bool = False

    @property
    def final(self) -> bool:
        """Return whether no outcome of it can be read any more."""
        return not self.holder.handles


class Untold:
    """Guarantees: each failure is raised once and logged once at most; memory is bounded by the
    live handles."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        #: When :meth:`line` is to be called (monotonic seconds), None: no failure waits for it.
        self.due: float | None = None
        #: What was not sorted in yet.
        self._new: deque[_Kept] = deque()
        # Guards all below. Re-entrant: a signal handler may flush or close in the middle of it. No
        # stage waits for it: that handler's flush would wait for the stage.
        self._lock = threading.RLock()
        self._open: list[_Kept] = []
        self._look_at = _FIRST_LOOK
        self._final = _Tally()
        self._unlogged = _Tally()  # of the final ones
        self._last_line = float("-inf")
        self._taken = 0  # how often they have been taken

    def remember(self, part: Part, holder: Holder) -> bool:
        """Remember *part*, settled and reported. For stages, which no signal interrupts.

        Return whether :attr:`due` has just been set, or is earlier now.

        No failure is forgotten by the log: we (1) append it, (2) look at ``due``; :meth:`line` (1)
        sets ``due`` to None, (2) looks at what was appended.
        """
        if not part.untold_failures():
            return False
        sooner = self.enter(part, holder)
        if self._lock.acquire(blocking=False):
            try:
                self._sort_in()
            finally:
                self._lock.release()
        return sooner

    def enter(self, part: Part, holder: Holder) -> bool:
        """Remember *part*, which has failed, as :meth:`remember` does. For any thread."""
        now = self._clock.monotonic()
        self._new.append(_Kept(part, holder, now))
        due, wanted = self.due, max(now + GATHER, self._last_line + INTERVAL)
        if due is not None and due <= wanted:
            return False
        self.due = wanted
        return True

    # The log -----------------------------------------------------------------------------------

    def line(self, now: float) -> Failures:
        """What the log is to name now; an empty count if there is nothing. Sets :attr:`due`."""
        if not self._lock.acquire(blocking=False):
            self.due = now + GATHER  # a flush() takes them at this moment
            return _Tally().failures()
        try:
            self._sort_in()
            self._look()
            for kept in self._open:
                if not kept.logged and kept.since <= now - PATIENCE:
                    kept.logged = True
                    self._unlogged.add(kept.part)
            found, self._unlogged = self._unlogged.failures(), _Tally()
            if found.count:
                self._last_line = now
            self._set_due(now)
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
        """All failures that are unreported and were not taken before; they count as reported.

        Whoever is interrupted before this returns has taken nothing; whoever is interrupted by a
        signal handler that takes them, what is left.
        """
        with self._lock:
            return self._take()

    def take_what_nobody_takes(self) -> Taken:
        """As :meth:`take`; nothing if another thread takes them at this moment. Not for a user's
        thread: an interrupt between two lines would leave the lock taken."""
        if not self._lock.acquire(blocking=False):
            nothing = _Tally().failures()
            return Taken(nothing, nothing)
        try:
            return self._take()
        finally:
            self._lock.release()

    def _take(self) -> Taken:
        while True:
            taken, new = self._taken, list(self._new)
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

    # Sorting in, under the lock. By stages alone, which nothing interrupts -----------------------

    def _sort_in(self) -> None:
        while self._new:
            kept = self._new.popleft()
            if kept.final:
                self._add(kept)
            else:
                self._open.append(kept)
        if len(self._open) >= self._look_at:
            self._look()

    def _look(self) -> None:
        """Count what is final by now; let go of what has been read."""
        still_open = []
        for kept in self._open:
            if kept.final:
                self._add(kept)
            elif kept.part.untold_failures():
                still_open.append(kept)
        self._open = still_open
        # Each look is paid for by as many slices as it goes over.
        self._look_at = max(_FIRST_LOOK, 2 * len(still_open))

    def _add(self, kept: _Kept) -> None:
        self._final.add(kept.part)
        if not kept.logged:
            self._unlogged.add(kept.part)
