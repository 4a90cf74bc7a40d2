"""Counts of the batches that a transactional producer has sealed, and that brokers have confirmed.

With the first transaction protocol an epoch continues after an abort only if both are the same:
then no sequence number is missing.
"""

from __future__ import annotations

from typing import Protocol


class CountsBatches(Protocol):
    """The part of a sealer that is used here."""

    @property
    def sealed_so_far(self) -> int:
        """The number of batches."""


class BatchTally:
    """The batches that one BrokerWorker has sealed, and those that were confirmed to it.

    A batch may be sealed by one worker and confirmed to another. So the number of unconfirmed
    batches is the sum over all workers.
    """

    def __init__(self, sealer: CountsBatches) -> None:
        self._sealer = sealer
        #: Batches confirmed by brokers. Changed by the worker only.
        self.confirmed = 0
        #: The worker has ended, and changes nothing any more.
        self.has_ended = False

    @property
    def unconfirmed(self) -> int:
        """The number of sealed batches minus that of confirmed ones."""
        return self._sealer.sealed_so_far - self.confirmed


class BatchTallies:
    """The tallies of all BrokerWorkers of a producer."""

    def __init__(self) -> None:
        # Replaced as a whole, or appended to.
        self._tallies: list[BatchTally] = []
        # Of the workers that have ended.
        self._ended = 0
        self._known = 0

    def of(self, sealer: CountsBatches) -> BatchTally:
        """Return a new tally, of the batches that *sealer* seals. From any stage."""
        tally = BatchTally(sealer)
        self._tallies.append(tally)
        return tally

    def missed_some(self) -> bool:
        """Return whether a batch sealed since the last call will never be confirmed.

        Called by one stage, when no batch is in flight.
        """
        for tally in [each for each in self._tallies if each.has_ended]:
            self._tallies.remove(tally)
            self._ended += tally.unconfirmed
        unconfirmed = self._ended + sum(each.unconfirmed for each in self._tallies)
        before, self._known = self._known, unconfirmed
        return unconfirmed != before
