"""The ledger of ``verify``: reported outcomes of numbered messages, and whether they were found.

One byte per message, in segments. A segment whose messages are all delivered, or all delivered and
found, is reduced to a single byte. Memory is thus needed mainly for messages that are in flight, or
that were read from one partition and not yet from another.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import NamedTuple

#: Messages per segment.
SEGMENT = 1 << 16

_FOUND = 8


class ReportedOutcome(enum.IntEnum):
    """The outcome of a message, as reported by the producer."""

    NONE = 0
    DELIVERED = 1
    #: Failed, and certainly not in the log.
    NOT_WRITTEN = 2
    #: Failed, but possibly in the log.
    AMBIGUOUS = 3


class LedgerEntry(NamedTuple):
    """The state of a message."""

    outcome: ReportedOutcome
    found: bool


class Ledger:
    """Reported outcomes and found messages. For one thread at a time."""

    def __init__(self) -> None:
        #: By segment number. A single byte is the state of all messages of the segment.
        self._segments: dict[int, bytearray] = {}
        # Messages of an open segment that are delivered, and that are delivered and found.
        self._delivered: dict[int, int] = {}
        self._found: dict[int, int] = {}
        self.counts = dict.fromkeys(ReportedOutcome, 0)

    def report(self, number: int, outcome: ReportedOutcome) -> bool:
        """Record an outcome. Return false if the message already has one."""
        segment, place = divmod(number, SEGMENT)
        states = self._open(segment)
        if states[place]:
            return False
        states[place] = outcome
        self.counts[outcome] += 1
        if outcome is ReportedOutcome.DELIVERED:
            self._note(segment, self._delivered, outcome)
        return True

    def find(self, number: int) -> LedgerEntry:
        """Record that a message was found. Return its previous state."""
        segment, place = divmod(number, SEGMENT)
        before = self._segments.get(segment)
        if before is not None and len(before) == 1 and before[0] & _FOUND:
            return _entry(before[0])
        states = self._open(segment)
        entry = _entry(states[place])
        states[place] |= _FOUND
        if entry == (ReportedOutcome.DELIVERED, False):
            self._note(segment, self._found, ReportedOutcome.DELIVERED | _FOUND)
        return entry

    def lost(self) -> Iterator[int]:
        """Yield the numbers of messages that were reported as delivered but not found."""
        for segment, states in sorted(self._segments.items()):
            first = segment * SEGMENT
            if len(states) == 1:
                if not states[0] & _FOUND:
                    yield from range(first, first + SEGMENT)
                continue
            place = states.find(ReportedOutcome.DELIVERED)
            while place >= 0:
                yield first + place
                place = states.find(ReportedOutcome.DELIVERED, place + 1)

    @property
    def size(self) -> int:
        """Size of the ledger (bytes)."""
        return sum(map(len, self._segments.values()))

    def _open(self, segment: int) -> bytearray:
        states = self._segments.get(segment)
        if states is None:
            states = self._segments[segment] = bytearray(SEGMENT)
        elif len(states) == 1:
            states = self._segments[segment] = states * SEGMENT
        return states

    def _note(self, segment: int, counts: dict[int, int], state: int) -> None:
        """Count a message of *segment* that reached *state*; close the segment when all have."""
        count = counts[segment] = counts.get(segment, 0) + 1
        if count == SEGMENT:
            self._segments[segment] = bytearray([state])
            del counts[segment]


def _entry(state: int) -> LedgerEntry:
    return LedgerEntry(ReportedOutcome(state & ~_FOUND), bool(state & _FOUND))
