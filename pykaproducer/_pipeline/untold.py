"""Failures that nobody has been told of: ``flush()`` tells of them, and ``close()`` logs them.

A message's failure counts as told once its callback has been given it, or its outcome has been
read from a handle. So the count is final only when the handles are gone; until then the failed
slice is kept, which costs nothing that the handles do not keep as well.
"""

from __future__ import annotations

import threading
from collections import deque

from pykaproducer._kernel import Slice

#: So many slices are kept before the first look at which of them are final by now.
_FIRST_LOOK = 64
#: Of how many failures the error is kept.
_ERRORS = 10


class Untold:
    """Guarantees: each failure is told of once at most; memory is bounded by the live handles."""

    def __init__(self) -> None:
        #: What nobody has looked at yet.
        self._new: deque[Slice] = deque()
        # Guards all below. Re-entrant: a signal handler may flush or close in the middle of it. No
        # stage waits for it: that handler's flush would wait for the stage.
        self._lock = threading.RLock()
        self._open: list[Slice] = []
        self._look_at = _FIRST_LOOK
        self._count = 0
        self._taken = 0  # how often they have been taken
        self._errors: list[BaseException] = []

    def remember(self, part: Slice) -> None:
        """*part* is settled and reported."""
        if not part.untold_failures():
            return
        self._new.append(part)
        if self._lock.acquire(blocking=False):
            try:
                self._sort_in()
            finally:
                self._lock.release()

    def take(self) -> tuple[int, list[BaseException]]:
        """How many failures nobody has been told of since the last call, and the first errors.

        Whoever is interrupted before this returns has taken nothing; whoever is interrupted by a
        signal handler that takes them, what is left.
        """
        with self._lock:
            return self._take()

    def take_what_nobody_takes(self) -> tuple[int, list[BaseException]]:
        """As :meth:`take`; nothing if another thread takes them at this moment. Not for a user's
        thread: an interrupt between two lines would leave the lock taken."""
        if not self._lock.acquire(blocking=False):
            return 0, []
        try:
            return self._take()
        finally:
            self._lock.release()

    def _take(self) -> tuple[int, list[BaseException]]:
        while True:
            taken, new = self._taken, list(self._new)
            count, errors = self._count, list(self._errors)
            for part in (*self._open, *new):
                untold, error = part.untold_failures(), part.first_error()
                if untold and error is not None:
                    count += untold
                    errors.append(error)
            if taken == self._taken:
                self._forget(len(new))
                return count, errors[:_ERRORS]

    def _forget(self, new: int) -> None:
        self._taken += 1
        self._count, self._errors, self._open = 0, [], []
        for _ in range(new):
            self._new.popleft()

    def _sort_in(self) -> None:
        while self._new:
            part = self._new.popleft()
            if part.chunk.handles:
                self._open.append(part)
            else:
                self._add(part)
        # By stages alone, which nothing interrupts.
        if len(self._open) >= self._look_at:
            self._look()

    def _look(self) -> None:
        still_open = []
        for part in self._open:
            if part.chunk.handles:
                still_open.append(part)
            else:
                self._add(part)
        self._open = still_open
        # Each look is paid for by as many slices as it goes over.
        self._look_at = max(_FIRST_LOOK, 2 * len(still_open))

    def _add(self, part: Slice) -> None:
        untold, error = part.untold_failures(), part.first_error()
        if untold and error is not None:
            self._count += untold
            if len(self._errors) < _ERRORS:
                self._errors.append(error)
