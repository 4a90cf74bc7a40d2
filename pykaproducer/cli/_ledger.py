"""The books of ``verify``: what was told of each numbered message, and where it was found.

A byte a message, in segments; a segment whose messages are all delivered, or all delivered and
found, is not kept but counted. So many millions of messages take little more than those of them
that are on their way, or were read from one partition and not yet from another.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import NamedTuple

#: Messages of a segment.
SEGMENT = 1 << 16

_FOUND = 8


class Told(enum.IntEnum):
    """What the producer has said of a message."""

    NOTHING = 0
    DELIVERED = 1
    #: Failed, and not in the log.
    NOT_WRITTEN = 2
    #: Failed, and in the log or not.
    DOUBTFUL = 3


class Entry(NamedTuple):
    """What the books say of a message."""

    told: Told
    found: bool


class Ledger:
    """What was told and what was found. For one thread at a time."""

    def __init__(self) -> None:
        #: By number of the segment; one byte stands for all of its messages.
        self._segments: dict[int, bytearray] = {}
        # How many messages of an open segment are delivered, and delivered and found.
        self._delivered: dict[int, int] = {}
        self._found: dict[int, int] = {}
        self.counts = dict.fromkeys(Told, 0)

    def tell(self, number: int, told: Told) -> bool:
        """Note an outcome; false: there was one already."""
        segment, place = divmod(number, SEGMENT)
        states = self._open(segment)
        if states[place]:
            return False
        states[place] = told
        self.counts[told] += 1
        if told is Told.DELIVERED:
            self._note(segment, self._delivered, told)
        return True

    def find(self, number: int) -> Entry:
        """Note that a message was found; what the books said before."""
        segment, place = divmod(number, SEGMENT)
        before = self._segments.get(segment)
        if before is not None and len(before) == 1 and before[0] & _FOUND:
            return _entry(before[0])
        states = self._open(segment)
        entry = _entry(states[place])
        states[place] |= _FOUND
        if entry == (Told.DELIVERED, False):
            self._note(segment, self._found, Told.DELIVERED | _FOUND)
        return entry

    def lost(self) -> Iterator[int]:
        """The numbers of those that were told delivered and not found."""
        for segment, states in sorted(self._segments.items()):
            first = segment * SEGMENT
            if len(states) == 1:
                if not states[0] & _FOUND:
                    yield from range(first, first + SEGMENT)
                continue
            place = states.find(Told.DELIVERED)
            while place >= 0:
                yield first + place
                place = states.find(Told.DELIVERED, place + 1)

    @property
    def size(self) -> int:
        """Bytes that the books take."""
        return sum(map(len, self._segments.values()))

    def _open(self, segment: int) -> bytearray:
        states = self._segments.get(segment)
        if states is None:
            states = self._segments[segment] = bytearray(SEGMENT)
        elif len(states) == 1:
            states = self._segments[segment] = states * SEGMENT
        return states

    def _note(self, segment: int, counts: dict[int, int], state: int) -> None:
        """One more of *segment* has come to *state*; it is closed when all have."""
        count = counts[segment] = counts.get(segment, 0) + 1
        if count == SEGMENT:
            self._segments[segment] = bytearray([state])
            del counts[segment]


def _entry(state: int) -> Entry:
    return Entry(Told(state & ~_FOUND), bool(state & _FOUND))
